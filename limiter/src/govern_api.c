/* DESIGN
 *
 * A governor's words, written into the control page under the seqlock of region_api.c. Orders follow src/order.h: what the
 * processes asked for is read before the order that answers it is written, and the governor is heard of last, so that one
 * that dies in between has said nothing.
 */
#include "tessera_govern.h"

#include "account.h"
#include "atomics.h"
#include "compute_api.h"
#include "order.h"
#include "region.h"

#define SPILL_MINOR 2u

/* A library older than 1.2 would take a cap for a limit of nothing. */
static bool is_understood(const struct tessera_region *region)
{
    return region->header.minor >= SPILL_MINOR;
}

int tessera_region_govern(struct tessera_region *region, uint32_t device, const struct tessera_rule *rule,
                          uint64_t now_ns)
{
    if (device >= lim_device_count(region) || rule == NULL || rule->cap_milli > 1000u) {
        return TESSERA_ERROR_ARGUMENT;
    }
    if (!is_understood(region)) {
        return TESSERA_ERROR_OK;
    }
    struct tessera_device_control *row = &region->control.device[device];
    uint64_t asked = word_load(&region->usage.device[device].asked);
    uint64_t order = lim_order_next(word_load(&row->order), asked, rule->is_idle != 0);
    lim_begin_change(&region->control);
    __atomic_store_n(&row->cap_milli, rule->cap_milli, __ATOMIC_RELEASE);
    word_store(&row->memory_ceiling, rule->memory_ceiling);
    word_store(&row->order, order);
    lim_derive_gated(&region->control, lim_device_count(region));
    word_store(&region->control.governor_ns, now_ns);
    lim_end_change(&region->control);
    return TESSERA_ERROR_OK;
}

int tessera_region_launches(const struct tessera_region *region, uint64_t *launches)
{
    if (launches == NULL) {
        return TESSERA_ERROR_ARGUMENT;
    }
    uint64_t mark = word_load(&region->usage.slot_high_water);
    *launches = 0;
    for (uint32_t device = 0; device < lim_device_count(region); device++) {
        *launches += word_load(&region->usage.device[device].asked);
    }
    for (uint64_t index = 0; index < mark && index < TESSERA_MAX_SLOTS; index++) {
        *launches += word_load(&region->slot[index].launches);
    }
    return TESSERA_ERROR_OK;
}

int tessera_region_set_priority(struct tessera_region *region, uint32_t device, uint32_t priority)
{
    if (device >= lim_device_count(region) || priority > TESSERA_PRIORITY_CRITICAL) {
        return TESSERA_ERROR_ARGUMENT;
    }
    lim_begin_change(&region->control);
    __atomic_store_n(&region->control.device[device].priority, priority, __ATOMIC_RELEASE);
    lim_end_change(&region->control);
    return TESSERA_ERROR_OK;
}

int tessera_region_set_spill(struct tessera_region *region, uint32_t device, uint64_t bytes)
{
    if (device >= lim_device_count(region) || (bytes > 0 && !lim_has_spill(region))) {
        return TESSERA_ERROR_ARGUMENT;
    }
    if (!lim_has_spill(region)) {
        return TESSERA_ERROR_OK;
    }
    lim_begin_change(&region->control);
    word_store(&region->control.device[device + TESSERA_SPILL_ACCOUNT].memory_limit, bytes);
    lim_end_change(&region->control);
    return TESSERA_ERROR_OK;
}

int tessera_region_spilled(const struct tessera_region *region, uint32_t device, uint64_t *bytes)
{
    if (device >= lim_device_count(region) || bytes == NULL) {
        return TESSERA_ERROR_ARGUMENT;
    }
    *bytes = lim_spilled_granules(region, device) * TESSERA_GRANULE;
    return TESSERA_ERROR_OK;
}
