/* Regions that stay readable for a supervisor when a tenant cuts their file off. */
#ifndef LIM_GUARD_H
#define LIM_GUARD_H

#include <stdbool.h>

#include "tessera_region.h"

/* From now on a page of `region` that its file has no more reads as zeros, and what is written there is lost, where
 * the process would be ended by SIGBUS. False when too many regions are guarded already. Threads may call it. */
bool lim_guard(struct tessera_region *region);

/* The region is about to be unmapped. */
void lim_unguard(struct tessera_region *region);

#endif
