/* DESIGN: a compute limit as device time
 *
 * The question: when may a share launch its next kernel, so that its time on the device is its limit, whatever the
 * card, the kernels, the processes and the neighbours? Nothing here counts SMs or blocks: the unit is a nanosecond of
 * the device.
 *
 * 1. Charges. A kernel k (function and size of grid) is charged c(k) when it is launched. c(k) is learned from pairs of
 *    events around some of its launches: c <- c + (m - c) / 5, the first measurement as it is. No later measurement is
 *    believed beyond twice the charge: what takes longer than that is waiting for somebody. A kernel that really became
 *    slower is followed all the same, by a fifth at a time.
 * 2. The queue. Per share and device two sums, `granted` and `spent`. A launch takes its turn t = spent,
 *    spent <- t + c, and goes once granted > t: first come first served, over all processes of the share, with nobody
 *    asking whose turn it is. granted grows by rate * time and is never more than spent + burst. A launch may go into
 *    debt with its own charge (a kernel cannot be cut), so the next one waits c / rate, and the mean is the rate.
 * 3. Corrections. A measurement m of a launch that was charged c leaves m - c to settle: credit first reduces what is
 *    owed, then is granted at once. A debt is owed: 3/10 of every grant pays it; beyond LIM_OWED_NS it is taken at once.
 *    Rules 1 and 3 are what keeps collectives going, where a kernel spins until its partner's launch has had its turn. A
 *    rank that comes early by d is charged for d, hence comes late by d (1 - s) / s the next time: below s = 1/2 both
 *    ranks would drive each other apart without end. As it is, whatever a launch took, the next one waits no longer than
 *    for 2 c at 7/10 of the rate (the model in test/test_region_compute.c: 3.4 to 3.7 times the time at s = 0.4).
 * 4. Dilation. Events tell the time between two points of a stream, which is longer than the device time of the share
 *    while neighbours have their slices, or other streams of its own overlap. So from outside the busy time of the share
 *    is measured, and
 *        dilation = charged time of finished work / busy time,    rate = limit * dilation
 *    over the last 300 ms of busy time, or four of the longest kernels. Being a ratio of what happened it needs no
 *    demand to be right, does not wind up while the share idles, and repairs wrong charges as well. It rises by at most a
 *    tenth per 100 ms and falls at once.
 *    A cap of a governor (governor.c) is a limit as well: rate = min(limit, cap) * dilation, while the governor speaks.
 * 5. Lending. What a share leaves unused, limit - 2 * used, is lent to those of the device that had to wait and may have
 *    more, by weight. Twice the use, since time slices give an owner that wakes up its use again without asking: it
 *    doubles, and what was lent is called back at the next tick. A share that had to wait lends nothing. What is lent
 *    ends by itself when the agent falls silent.
 */
#include "controller.h"

#include <string.h>

#include "order.h"

#define WHOLE_MILLI 1000u
#define UNHURRIED 4u
#define LEARN_SHIFT_PARTS 5
#define INSTALMENT_TENTHS 3
#define LONGEST_KERNELS 1u
#define DILATION_MIN (LIM_ONE_Q32 / 4u)
#define DILATION_MAX (LIM_ONE_Q32 * 16u)
#define PRIOR_NS (50 * LIM_MS) /* of busy time: until then dilation leans towards 1 */
#define RISE_NS (100 * LIM_MS)

__extension__ typedef unsigned __int128 wide;

static uint64_t least(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

static uint64_t most(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

uint64_t lim_rate(uint64_t milli, uint64_t dilation_q32)
{
    wide rate = (wide)(dilation_q32 == 0 ? LIM_ONE_Q32 : dilation_q32) * milli / WHOLE_MILLI;
    return rate > UINT64_MAX ? UINT64_MAX : (uint64_t)rate;
}

/* By the share's own limit, and what is lent to it. */
static uint64_t own_rate(const struct tessera_control *control, uint32_t device, uint64_t now_ns)
{
    const struct tessera_device_control *row = &control->device[device];
    uint64_t heard_ns = __atomic_load_n(&control->agent_heartbeat_ns, __ATOMIC_RELAXED);
    uint64_t lent = __atomic_load_n(&row->rate_q32, __ATOMIC_RELAXED);
    uint64_t own = __atomic_load_n(&row->floor_q32, __ATOMIC_RELAXED);
    if (lent != 0 && now_ns <= heard_ns + LIM_LEASE_NS) {
        return lent;
    }
    return own != 0 ? own : lim_rate(__atomic_load_n(&row->compute_limit_milli, __ATOMIC_RELAXED), 0);
}

uint64_t lim_rate_now(const struct tessera_control *control, uint32_t device, uint64_t now_ns)
{
    const struct tessera_device_control *row = &control->device[device];
    uint64_t own = own_rate(control, device, now_ns);
    uint32_t cap_milli = __atomic_load_n(&row->cap_milli, __ATOMIC_RELAXED);
    if (cap_milli == 0 || !lim_is_governed(__atomic_load_n(&control->governor_ns, __ATOMIC_RELAXED), now_ns)) {
        return own;
    }
    /* Who may have everything only takes turns: at the rate of the device itself, what a nap is too long would be lost. */
    uint64_t milli = cap_milli < WHOLE_MILLI ? cap_milli : UNHURRIED * WHOLE_MILLI;
    uint64_t cap = lim_rate(milli, __atomic_load_n(&row->dilation_q32, __ATOMIC_RELAXED));
    bool is_limited = own != 0 && __atomic_load_n(&row->mode, __ATOMIC_RELAXED) != TESSERA_MODE_OFF;
    return is_limited && own < cap ? own : cap;
}

int64_t lim_grant(uint64_t rate_q32, uint64_t elapsed_ns)
{
    wide grant = (wide)rate_q32 * elapsed_ns >> 32;
    return grant > INT64_MAX / 4 ? INT64_MAX / 4 : (int64_t)grant;
}

uint64_t lim_wait_ns(int64_t missing_ns, uint64_t rate_q32)
{
    if (missing_ns <= 0) {
        return 0;
    }
    wide wait = rate_q32 == 0 ? UINT64_MAX : ((wide)(uint64_t)missing_ns << 32) / rate_q32 + 1u;
    return wait > UINT64_MAX / 4 ? UINT64_MAX / 4 : (uint64_t)wait;
}

int64_t lim_instalment(int64_t owed_ns, int64_t grant_ns)
{
    int64_t most_of_it = grant_ns / 10 * INSTALMENT_TENTHS;
    if (owed_ns <= 0) {
        return 0;
    }
    return owed_ns < most_of_it ? owed_ns : most_of_it;
}

int64_t lim_believed(int64_t charge_ns, int64_t measured_ns, bool was_guess)
{
    return was_guess || measured_ns / 2 <= charge_ns ? measured_ns : 2 * charge_ns;
}

uint64_t lim_learn(uint64_t cost_ns, uint64_t believed_ns)
{
    if (cost_ns == 0) {
        return most(believed_ns, 1);
    }
    int64_t step = ((int64_t)believed_ns - (int64_t)cost_ns) / LEARN_SHIFT_PARTS;
    return most((uint64_t)((int64_t)cost_ns + step), 1);
}

/* -- dilation, in the agent --------------------------------------------------------------------------------------- */

uint64_t lim_dilation(const struct tessera_calibration *calibration, uint64_t before_q32)
{
    double busy = calibration->busy_ns;
    double prior = busy < (double)PRIOR_NS ? (double)PRIOR_NS - busy : 0.0;
    double ratio = (calibration->charged_ns + prior) / (busy + prior);
    double highest = (double)(before_q32 == 0 ? LIM_ONE_Q32 : before_q32) * (1.0 + 0.1 * calibration->step);
    double dilation = ratio * (double)LIM_ONE_Q32;
    dilation = dilation > highest ? highest : dilation;
    if (dilation < (double)DILATION_MIN) {
        return DILATION_MIN;
    }
    return dilation > (double)DILATION_MAX ? DILATION_MAX : (uint64_t)dilation;
}

/* What was finished at `at_ns`, on the line between two looks. */
static double finished_at(const struct tessera_calibration *calibration, uint64_t at_ns)
{
    for (uint32_t back = 1; back < TESSERA_CALIBRATION_LOOKS && back < calibration->looks; back++) {
        uint32_t newer = (calibration->looks - back) % TESSERA_CALIBRATION_LOOKS;
        uint32_t older = (calibration->looks - back - 1u) % TESSERA_CALIBRATION_LOOKS;
        uint64_t from_ns = calibration->at_ns[older];
        uint64_t to_ns = calibration->at_ns[newer];
        if (at_ns < from_ns || to_ns <= from_ns) {
            continue;
        }
        double part = at_ns >= to_ns ? 1.0 : (double)(at_ns - from_ns) / (double)(to_ns - from_ns);
        double gained = (double)(int64_t)(calibration->finished_ns[newer] - calibration->finished_ns[older]);
        return (double)calibration->finished_ns[older] + part * gained;
    }
    return calibration->seen_finished_ns;
}

static void forget_oldest(struct tessera_calibration *calibration, uint64_t longest_ns)
{
    double kept = (double)most(LIM_HISTORY_NS, LONGEST_KERNELS * least(longest_ns, UINT64_C(3600) * 1000 * LIM_MS));
    if (calibration->busy_ns > kept) {
        calibration->charged_ns *= kept / calibration->busy_ns;
        calibration->busy_ns = kept;
    }
}

void lim_calibrate(struct tessera_calibration *calibration, const struct tessera_reading *reading, uint64_t now_ns,
                   uint64_t finished_ns, uint64_t longest_ns)
{
    uint32_t slot = calibration->looks % TESSERA_CALIBRATION_LOOKS;
    uint64_t last_ns = calibration->looks == 0 ? now_ns
                                               : calibration->at_ns[(calibration->looks - 1u) % TESSERA_CALIBRATION_LOOKS];
    calibration->at_ns[slot] = now_ns;
    calibration->finished_ns[slot] = finished_ns;
    calibration->looks++;
    calibration->step = (double)least(now_ns - last_ns, 10 * RISE_NS) / (double)RISE_NS;
    bool is_first = calibration->looks == 1;
    if (!is_first && reading->busy_at_ns <= calibration->seen_at_ns) {
        return; /* nothing new from the device */
    }
    double finished = is_first ? (double)finished_ns : finished_at(calibration, reading->busy_at_ns);
    if (!is_first && reading->busy_ns >= calibration->seen_busy_ns) {
        /* What runs is an estimate, which may shrink: less than nothing is taken off what came before. */
        double charged = calibration->charged_ns + finished - calibration->seen_finished_ns;
        calibration->charged_ns = charged < 0.0 ? 0.0 : charged;
        calibration->busy_ns += (double)(reading->busy_ns - calibration->seen_busy_ns);
    }
    calibration->seen_finished_ns = finished;
    calibration->seen_busy_ns = reading->busy_ns;
    calibration->seen_at_ns = reading->busy_at_ns;
    forget_oldest(calibration, longest_ns);
}

/* -- lending, in the agent ---------------------------------------------------------------------------------------- */

/* Who is at its limit wants more also when a generous loan keeps it from waiting. */
static bool wants_more(const struct tessera_borrower *share)
{
    return share->waits != 0 || UINT64_C(10) * share->used_milli >= UINT64_C(9) * share->limit_milli;
}

static bool may_borrow(const struct tessera_borrower *share)
{
    return wants_more(share) && (share->mode == TESSERA_MODE_BURST || share->mode == TESSERA_MODE_BEST_EFFORT);
}

/* What the share keeps for itself. */
static uint32_t kept_milli(const struct tessera_borrower *share)
{
    uint32_t twice = share->used_milli < WHOLE_MILLI ? 2u * share->used_milli : 2u * WHOLE_MILLI;
    return wants_more(share) ? share->limit_milli : (uint32_t)least(share->limit_milli, twice);
}

void tessera_compute_lend(const struct tessera_borrower *shares, uint32_t count, uint32_t *granted_milli)
{
    uint64_t kept = 0;
    uint64_t weights = 0;
    for (uint32_t i = 0; i < count; i++) {
        kept += kept_milli(&shares[i]);
        weights += may_borrow(&shares[i]) ? most(shares[i].weight, 1) : 0;
    }
    uint64_t idle = kept < WHOLE_MILLI ? WHOLE_MILLI - kept : 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t lent = may_borrow(&shares[i]) ? idle * most(shares[i].weight, 1) / weights : 0;
        granted_milli[i] = (uint32_t)least(shares[i].limit_milli + lent, WHOLE_MILLI);
    }
}
