/* What is done when the device is full though the share's limit is not reached. Order and reasons: physical.c. */
#ifndef LIM_PHYSICAL_H
#define LIM_PHYSICAL_H

#include "claim.h"

/* What of a device the share may have in host memory at most, in bytes; 0: nothing. */
uint64_t lim_spill_limit(const struct tessera_region *region, uint32_t device);

/* The driver found no memory for what is charged already: makes room if it can, waits if somebody else is about to. False:
 * there is no sense in asking again. */
LIM_COLD bool lim_room_again(struct lim_process *process, uint32_t device, uint64_t granules,
                             struct lim_patience *patience);

/* Counts an allocation within the limit that found the device full. */
void lim_note_full(struct lim_process *process, uint32_t device);

/* Allocates a spilled claim: managed memory that stays with the host. The driver's answer, or out of memory where the
 * device cannot reach such memory. */
LIM_COLD CUresult lim_spill(const struct lim_claim *claim, CUdeviceptr *out, size_t bytes);

#endif
