/* DESIGN
 *
 * The agent's side of compute limits: it writes the control page, under the seqlock of region_api.c, and reads what the
 * processes wrote. `gated` is derived from limits, modes, pause, caps and orders by whoever changes one of them: it is all that a
 * launch without a limit looks at.
 */
#include "compute_api.h"

#include <stdbool.h>

#include "account.h"
#include "atomics.h"
#include "books.h"
#include "controller.h"
#include "order.h"
#include "region.h"

#define WHOLE_MILLI 1000u

static uint32_t load(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void store(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static bool is_limited(const struct tessera_device_control *row)
{
    uint32_t milli = load(&row->compute_limit_milli);
    return load(&row->mode) != TESSERA_MODE_OFF && milli > 0 && milli < WHOLE_MILLI;
}

void lim_derive_gated(struct tessera_control *control, uint32_t devices)
{
    uint64_t gated = 0;
    bool paused = load(&control->pause) != 0;
    for (uint32_t device = 0; device < devices; device++) {
        const struct tessera_device_control *row = &control->device[device];
        bool is_held = paused || is_limited(row) || load(&row->cap_milli) != 0 || lim_order_freezes(word_load(&row->order));
        gated |= (uint64_t)is_held << device;
    }
    word_store(&control->gated, gated);
}

/* The limit alone, at the dilation that was last measured: in force until the next tick. Without ticks nobody knows
 * whether the neighbours that stretched our kernels are still there, so then the limit is taken as it is: less than
 * the limit beside a neighbour, and never more. */
static void derive_rate(struct tessera_device_control *row, uint32_t milli)
{
    word_store(&row->floor_q32, lim_rate(milli, 0));
    word_store(&row->rate_q32, lim_rate(milli, word_load(&row->dilation_q32)));
}

void lim_fill_compute(struct tessera_control *control, uint32_t devices)
{
    for (uint32_t device = 0; device < devices; device++) {
        struct tessera_device_control *row = &control->device[device];
        row->mode = row->compute_limit_milli > 0 && row->compute_limit_milli < WHOLE_MILLI ? TESSERA_MODE_HARD
                                                                                           : TESSERA_MODE_OFF;
        derive_rate(row, row->compute_limit_milli);
    }
    lim_derive_gated(control, devices);
}

int tessera_region_set_compute(struct tessera_region *region, uint32_t device, uint32_t milli, uint32_t mode)
{
    if (device >= lim_device_count(region) || mode > TESSERA_MODE_BEST_EFFORT) {
        return TESSERA_ERROR_ARGUMENT;
    }
    struct tessera_device_control *row = &region->control.device[device];
    lim_begin_change(&region->control);
    store(&row->compute_limit_milli, milli);
    store(&row->mode, mode);
    derive_rate(row, milli);
    lim_derive_gated(&region->control, lim_device_count(region));
    lim_end_change(&region->control);
    return TESSERA_ERROR_OK;
}

int tessera_region_set_compute_limit(struct tessera_region *region, uint32_t device, uint32_t milli)
{
    if (device >= lim_device_count(region)) {
        return TESSERA_ERROR_ARGUMENT;
    }
    uint32_t mode = load(&region->control.device[device].mode);
    return tessera_region_set_compute(region, device, milli, mode == TESSERA_MODE_OFF ? TESSERA_MODE_HARD : mode);
}

int tessera_region_pause(struct tessera_region *region, uint32_t paused)
{
    lim_begin_change(&region->control);
    store(&region->control.pause, paused != 0);
    lim_derive_gated(&region->control, lim_device_count(region));
    lim_end_change(&region->control);
    return TESSERA_ERROR_OK;
}

/* Charged time of work that has run until now, finished or not: in whole kernels it would run after the device's own
 * time by up to a kernel. */
static uint64_t charged_until(const struct tessera_region *region, uint32_t device, uint64_t now_ns)
{
    uint64_t charged = word_load(&region->usage.device[device].finished_ns);
    uint64_t mark = word_load(&region->usage.slot_high_water);
    for (uint64_t index = 0; index < mark && index < TESSERA_MAX_SLOTS; index++) {
        charged += lim_progress(&region->slot[index], device, now_ns);
    }
    return charged;
}

int tessera_region_tick(struct tessera_region *region, uint32_t device, struct tessera_calibration *calibration,
                        const struct tessera_reading *reading, uint32_t granted_milli, uint64_t now_ns)
{
    if (device >= lim_device_count(region) || calibration == NULL || reading == NULL) {
        return TESSERA_ERROR_ARGUMENT;
    }
    struct tessera_device_control *row = &region->control.device[device];
    const struct tessera_device_usage *usage = &region->usage.device[device];
    uint32_t milli;
    if (!is_limited(row) && load(&row->cap_milli) == 0) {
        calibration->looks = 0; /* launches are not charged now: begin afresh when they are */
    }
    lim_calibrate(calibration, reading, now_ns, charged_until(region, device, now_ns), word_load(&usage->longest_ns));
    uint64_t dilation = lim_dilation(calibration, word_load(&row->dilation_q32));
    lim_begin_change(&region->control);
    word_store(&row->dilation_q32, dilation);
    do { /* once more where the limit was changed meanwhile, by another process: the new one must stay in force */
        milli = load(&row->compute_limit_milli);
        word_store(&row->floor_q32, lim_rate(milli, 0));
        word_store(&row->rate_q32, lim_rate(granted_milli > milli ? granted_milli : milli, dilation));
    } while (load(&row->compute_limit_milli) != milli);
    word_store(&region->control.agent_heartbeat_ns, now_ns);
    lim_end_change(&region->control);
    return TESSERA_ERROR_OK;
}
