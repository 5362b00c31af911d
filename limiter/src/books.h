/* What a process has booked of its share's device time for work that is not known to be complete, and its way back when
 * the process dies: tessera_slot.booked, explained in compute.c. */
#ifndef LIM_BOOKS_H
#define LIM_BOOKS_H

#include <stdint.h>

#include "account.h"
#include "controller.h"

/* What comes back of `booked_ns` that a process had when it died. Work under way exceeds LIM_IN_FLIGHT_NS by no more than
 * one kernel, so up to that all of it may have been waiting. Of a long kernel only what the time since its start does not
 * explain comes back: killing a process in mid-kernel, again and again, is no way to time that nobody pays for. */
static inline uint64_t lim_refund_ns(uint64_t booked_ns, uint64_t since_progress_ns)
{
    uint64_t unexplained = booked_ns > since_progress_ns ? booked_ns - since_progress_ns : 0;
    uint64_t waiting = booked_ns < LIM_IN_FLIGHT_NS ? booked_ns : LIM_IN_FLIGHT_NS;
    return unexplained > waiting ? unexplained : waiting;
}

/* Publishes `booked_ns` as the whole of what the slot has booked on the device; the caller owns the slot. */
static inline void lim_publish_booked(struct tessera_slot *slot, uint32_t device, int64_t booked_ns)
{
    uint64_t units = booked_ns > 0 ? ((uint64_t)booked_ns + TESSERA_BOOKED_NS / 2u) / TESSERA_BOOKED_NS : 0;
    __atomic_store_n(&slot->booked[device], (uint16_t)(units < UINT16_MAX ? units : UINT16_MAX), __ATOMIC_RELAXED);
}

/* The part of what a slot has booked that must have run by `now_ns`: events tell the time between two points of a stream,
 * so work is charged by the clock while it runs. */
static inline uint64_t lim_progress(const struct tessera_slot *slot, uint32_t device, uint64_t now_ns)
{
    uint64_t progress_ns = __atomic_load_n(&slot->progress_ns, __ATOMIC_RELAXED);
    uint64_t booked_ns = (uint64_t)__atomic_load_n(&slot->booked[device], __ATOMIC_RELAXED) * TESSERA_BOOKED_NS;
    uint64_t since_ns = progress_ns < now_ns ? now_ns - progress_ns : 0;
    return since_ns < booked_ns ? since_ns : booked_ns;
}

/* Gives back what a dead slot in phase REAPING had booked for work that never ran. Each figure is taken out by exchange,
 * so however many reapers try it comes back once; a reaper that dies in here loses one device's, at most some tens of
 * milliseconds that the share gets later. */
static inline void lim_refund(struct tessera_region *region, uint32_t index, uint64_t state, uint64_t now_ns)
{
    struct tessera_slot *slot = &region->slot[index];
    uint64_t progress_ns = __atomic_load_n(&slot->progress_ns, __ATOMIC_RELAXED);
    uint64_t since_ns = now_ns > progress_ns ? now_ns - progress_ns : 0;
    for (uint32_t device = 0; device < lim_device_count(region); device++) {
        if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) != state) {
            return; /* another reaper freed it, and it may be somebody else's by now */
        }
        uint64_t units = __atomic_exchange_n(&slot->booked[device], 0, __ATOMIC_ACQ_REL);
        if (units > 0) {
            uint64_t refund_ns = lim_refund_ns(units * TESSERA_BOOKED_NS, since_ns);
            __atomic_fetch_add(&region->usage.device[device].granted_ns, (int64_t)refund_ns, __ATOMIC_RELAXED);
        }
    }
}

#endif
