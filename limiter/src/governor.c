/* DESIGN: who goes first on a device, and who may have more memory than it requested
 *
 * Pure functions over all shares of one device. ADR 16 has the reasons.
 *
 * 1. Device time. A share that launched something lately keeps, from those below it,
 *        kept = all of the device             if it wants more and may have all of it (no limit, or it may borrow)
 *               its limit                     if it wants more
 *               min(limit, 2 * used + 2 %)    otherwise
 *    (twice its use, as in controller.c 5: it doubles before the next look). What is left to a priority is 1 - the sum of
 *    what all higher ones keep, and a share is capped there:
 *        cap = max(floor, left)     floor = min(limit, max(request, 5 %))
 *    Caps of nine tenths and more are none. A share without a limit has a cap of 1 also where that allows everything, for as long as there is somebody above it.
 *    So a high share runs as if alone but for the floors, an idle one costs nobody anything, and a low one is never stopped
 *    altogether. Among equals nothing changes. A share wants more if its launches waited, or, without a limit, if it had nine
 *    tenths of what those above it left. Idle time is then lent by controller.c, with caps in place of limits.
 * 2. Memory. Every share holds max(request, used): an unfilled request is as good as used, and what is in use beyond a
 *    request cannot be called back. What is left of the device,
 *        spare = physical - sum of holds,
 *    goes in parts to those whose limit allows more, by weight (request, twice as much per priority):
 *        ceiling = min(limit, hold + part)
 *    and to nobody where there is none: growth beyond the request is what is refused first. So long as governors look
 *    before memory is taken, requests fit by this sum alone. They do not when a share arrives while others have its
 *    memory: then it is got back from the lowest priority, and there from whoever has most beyond its request.
 */
#include "governor.h"

#include <stdbool.h>

#define WHOLE_MILLI 1000u
#define HEADROOM_MILLI 20u
#define NEARLY_ALL_MILLI 900u /* a cap from here on would cost more by its naps than it leaves to others */

__extension__ typedef unsigned __int128 wide;

static uint64_t least(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

static uint64_t most(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

/* -- device time ---------------------------------------------------------------------------------------------------- */

static bool is_limited(const struct tessera_contender *share)
{
    return share->mode != TESSERA_MODE_OFF && share->limit_milli > 0 && share->limit_milli < WHOLE_MILLI;
}

static uint32_t limit_of(const struct tessera_contender *share)
{
    return is_limited(share) ? share->limit_milli : WHOLE_MILLI;
}

static bool wants_more(const struct tessera_contender *share, uint32_t left)
{
    uint64_t may = least(limit_of(share), left);
    return share->waits != 0 || UINT64_C(10) * share->used_milli >= 9 * may;
}

static uint32_t kept_by(const struct tessera_contender *share, uint32_t left)
{
    bool may_have_all = !is_limited(share) || share->mode == TESSERA_MODE_BURST || share->mode == TESSERA_MODE_BEST_EFFORT;
    if (share->is_active == 0) {
        return 0;
    }
    if (wants_more(share, left)) {
        return may_have_all ? WHOLE_MILLI : limit_of(share);
    }
    return (uint32_t)least(limit_of(share), UINT64_C(2) * least(share->used_milli, WHOLE_MILLI) + HEADROOM_MILLI);
}

static uint32_t floor_of(const struct tessera_contender *share)
{
    return (uint32_t)least(limit_of(share), most(share->request_milli, TESSERA_FLOOR_MILLI));
}

/* What all shares of one priority keep. */
static uint64_t kept_at(const struct tessera_contender *shares, uint32_t count, uint32_t level, uint32_t left)
{
    uint64_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        kept += lim_level(shares[i].priority) == level ? kept_by(&shares[i], left) : 0;
    }
    return kept;
}

static bool is_below_any(const struct tessera_contender *shares, uint32_t count, uint32_t level)
{
    for (uint32_t i = 0; i < count; i++) {
        if (lim_level(shares[i].priority) > level) {
            return true;
        }
    }
    return false;
}

/* A share without a limit that has somebody above it takes turns also while it may have everything, so that it never has
 * more in the driver's queue than turns let it: that could not be called back. */
static void cap_level(const struct tessera_contender *shares, uint32_t count, uint32_t level, uint32_t left,
                      struct tessera_grant *grants)
{
    uint32_t standing = is_below_any(shares, count, level) ? WHOLE_MILLI : 0;
    for (uint32_t i = 0; i < count; i++) {
        if (lim_level(shares[i].priority) == level) {
            uint32_t cap = (uint32_t)most(floor_of(&shares[i]), left);
            bool is_cap = cap < limit_of(&shares[i]) && cap < NEARLY_ALL_MILLI;
            grants[i].cap_milli = is_cap ? cap : (is_limited(&shares[i]) ? 0 : standing);
        }
    }
}

/* As controller.c lends: who is capped has its cap for a limit and borrows nothing. */
static void lend(const struct tessera_contender *shares, uint32_t count, struct tessera_grant *grants)
{
    struct tessera_borrower borrowers[TESSERA_MAX_SLOTS] = {0};
    uint32_t granted[TESSERA_MAX_SLOTS];
    for (uint32_t i = 0; i < count; i++) {
        bool is_capped = grants[i].cap_milli != 0;
        bool may_borrow = is_limited(&shares[i]) && !is_capped;
        borrowers[i] = (struct tessera_borrower){
            .limit_milli = is_capped ? grants[i].cap_milli : limit_of(&shares[i]),
            .mode = may_borrow ? shares[i].mode : TESSERA_MODE_OFF,
            .used_milli = shares[i].used_milli,
            .weight = shares[i].request_milli,
            .waits = is_limited(&shares[i]) ? shares[i].waits : 0};
    }
    tessera_compute_lend(borrowers, count, granted);
    for (uint32_t i = 0; i < count; i++) {
        grants[i].granted_milli = is_limited(&shares[i]) ? granted[i] : WHOLE_MILLI;
    }
}

void tessera_govern_compute(const struct tessera_contender *shares, uint32_t count, struct tessera_grant *grants)
{
    uint32_t left = WHOLE_MILLI;
    if (count > TESSERA_MAX_SLOTS) {
        return;
    }
    for (uint32_t level = TESSERA_PRIORITY_CRITICAL; level >= TESSERA_PRIORITY_LOW; level--) {
        cap_level(shares, count, level, left, grants);
        left -= (uint32_t)least(kept_at(shares, count, level, left), left);
    }
    lend(shares, count, grants);
}

/* -- memory --------------------------------------------------------------------------------------------------------- */

static uint64_t hold_of(const struct tessera_holding *share)
{
    return most(share->request, share->used);
}

static uint64_t room_of(const struct tessera_holding *share)
{
    return share->limit > hold_of(share) ? share->limit - hold_of(share) : 0;
}

static uint64_t weight_of(const struct tessera_holding *share)
{
    uint64_t request_mib = most(share->request >> 20, 1);
    return room_of(share) > 0 ? request_mib << (lim_level(share->priority) - TESSERA_PRIORITY_LOW) : 0;
}

void tessera_govern_memory(const struct tessera_holding *shares, uint32_t count, uint64_t physical, uint64_t *ceilings)
{
    wide held = 0;
    wide weights = 0;
    for (uint32_t i = 0; i < count; i++) {
        held += hold_of(&shares[i]);
        weights += weight_of(&shares[i]);
    }
    uint64_t spare = held < physical ? physical - (uint64_t)held : 0;
    for (uint32_t i = 0; i < count; i++) {
        wide part = weights > 0 ? (wide)spare * weight_of(&shares[i]) / weights : 0;
        ceilings[i] = hold_of(&shares[i]) + least((uint64_t)part, room_of(&shares[i]));
    }
}

static uint64_t excess_of(const struct tessera_holding *share)
{
    return share->used > share->request ? share->used - share->request : 0;
}

static bool gives_before(const struct tessera_holding *one, const struct tessera_holding *other)
{
    uint32_t level = lim_level(one->priority);
    uint32_t other_level = lim_level(other->priority);
    return level != other_level ? level < other_level : excess_of(one) > excess_of(other);
}

uint32_t tessera_govern_victim(const struct tessera_holding *shares, uint32_t count)
{
    uint32_t victim = count;
    for (uint32_t i = 0; i < count; i++) {
        if (excess_of(&shares[i]) > 0 && (victim == count || gives_before(&shares[i], &shares[victim]))) {
            victim = i;
        }
    }
    return victim;
}
