/* Lock-free accounting of device memory between the processes of a share. Meaning and proof: account.c. */
#ifndef LIM_ACCOUNT_H
#define LIM_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "tessera_region.h"

/* Granules that `bytes` take, rounded up; saturates at a value that no limit admits. */
uint64_t lim_granules(uint64_t bytes);

/* Devices in the region, never more than its tables hold even if the header was overwritten after it was checked. */
uint32_t lim_device_count(const struct tessera_region *region);

/* True if the share can have memory in host memory instead, with accounts for it (tessera_region.h). */
bool lim_has_spill(const struct tessera_region *region);

/* Granules of a device's that are in host memory now, all processes together; 0 where there are no accounts. */
uint64_t lim_spilled_granules(const struct tessera_region *region, uint32_t device);

/* Used granules in a gauge word. */
uint64_t lim_gauge_used(uint64_t gauge);

/* Charges `granules` to `slot` on `device` if used + granules stays within limit_granules: one atomic step with the
 * check. The caller owns the slot and serialises its own threads. False: refused, nothing changed. */
bool lim_charge(struct tessera_region *region, uint32_t slot, uint32_t device, uint64_t granules,
                uint64_t limit_granules);

/* Gives back at most what the slot holds on the device; never fails, never wraps. Same caller rules. */
void lim_discharge(struct tessera_region *region, uint32_t slot, uint32_t device, uint64_t granules);

/* Gives back everything that a dead slot holds, exactly once however many processes try, and frees the slot. `state`
 * is the slot's word in phase REAPING. Any process may call it, also after another one died doing so. True for the
 * one caller that freed the slot. */
bool lim_finish_reap(struct tessera_region *region, uint32_t slot, uint64_t state);

/* Makes a slot that the caller just claimed empty, keeping its operation numbers growing. */
void lim_reset_slot(struct tessera_slot *slot);

/* Builds the word of a slot in another phase, or of a freed slot in its next epoch. */
uint64_t lim_state_with_phase(uint64_t state, enum tessera_phase phase);
uint64_t lim_state_freed(uint64_t state);

#endif
