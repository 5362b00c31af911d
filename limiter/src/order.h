/* Orders to a share on one device, from both sides: what the governor does next, and how long a launch waits. Arithmetic
 * alone, so that the model checker walks the very same code. Meaning and states: tessera_region.h. */
#ifndef LIM_ORDER_H
#define LIM_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "tessera_region.h"

#define LIM_ORDER_SHIFT 2u
#define LIM_ORDER_MASK UINT64_C(3)

static inline uint64_t lim_order_number(uint64_t order)
{
    return order >> LIM_ORDER_SHIFT;
}

static inline bool lim_order_freezes(uint64_t order)
{
    return (order & LIM_ORDER_MASK) == TESSERA_ORDER_FREEZE;
}

/* True while a governor that was last heard of at `governor_ns` counts. A moment ahead of `now_ns` is a clock that other
 * processes read later. */
static inline bool lim_is_governed(uint64_t governor_ns, uint64_t now_ns)
{
    return governor_ns != 0 && now_ns <= governor_ns + TESSERA_LEASE_NS;
}

/* The launch's side: whether to go on waiting, `waited_ns` after the first order that it met. */
static inline bool lim_order_holds(uint64_t order, uint64_t governor_ns, uint64_t now_ns, uint64_t waited_ns)
{
    return lim_order_freezes(order) && lim_is_governed(governor_ns, now_ns) && waited_ns < TESSERA_THAW_NS;
}

/* The governor's side: the order that follows. `is_idle`: nothing was launched for so long that the share may be frozen. */
static inline uint64_t lim_order_next(uint64_t order, uint64_t asked, bool is_idle)
{
    uint64_t following = (lim_order_number(order) + 1u) << LIM_ORDER_SHIFT;
    if (lim_order_freezes(order)) {
        /* Who is not idle any more is let go unasked: its launches may have gone by without the governor's word. */
        return asked >= lim_order_number(order) || !is_idle ? following | TESSERA_ORDER_RUN : order;
    }
    return is_idle ? following | TESSERA_ORDER_FREEZE : order;
}

#endif
