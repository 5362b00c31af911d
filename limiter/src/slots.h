/* Process slots: taking one, finding the dead, listing the living. */
#ifndef LIM_SLOTS_H
#define LIM_SLOTS_H

#include "liveness.h"
#include "tessera_region.h"

/* Claims a slot for the calling process, reaping some of the dead first, and all before it gives up. Its index, or
 * TESSERA_ERROR_FULL. */
int lim_register(struct tessera_region *region, const struct process_identity *self);

/* Reaps every slot whose process is gone; returns how many this call freed. `own` is the caller's slot, or
 * TESSERA_MAX_SLOTS. Never waits for anybody. */
unsigned lim_reap_dead(struct tessera_region *region, const struct process_identity *judge, uint32_t own);

#endif
