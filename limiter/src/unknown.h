/* Driver functions that may take memory and that this library does not know. */
#ifndef LIM_UNKNOWN_H
#define LIM_UNKNOWN_H

#include <stdbool.h>

#include "tessera_region.h"

/* True if the name reads like a driver function that takes memory or runs work, and is in no table of ours. `name` may
 * be an ELF name or the base name that cuGetProcAddress takes. */
bool lim_is_unknown(const char *name);

/* True if the share's policy refuses such functions. Without a region nothing is refused here: whatever takes memory is
 * refused by other means. */
bool lim_refuses_unknown(void);

/* Counts the unknown functions that the loaded driver exports, and notes the first, in the region. Once per process. */
void lim_report_unknown(struct tessera_region *region);

#endif
