/* DESIGN: holding launches to a limit, in the processes of the share
 *
 * controller.c has the rules; here they meet clocks, streams and processes that die.
 *
 * A launch on a device with a limit
 *     1  waits while the share is paused; while it is frozen it asks to be let go, and waits for that (order.h);
 *     2  lets processes of the share go first that have a higher priority and wait for their turn;
 *     3  waits while its kernel's first measurement is under way (one launch at a charge that is a guess is enough), or
 *        while the process has more than in_flight_limit_ns of work under way;
 *     4  is charged: spent += c, which is its turn;
 *     5  waits until granted passes its turn;
 *     6  goes, between two events if it is to be measured.
 * Where granted is past the turn already, which is so below the limit, nobody reads a clock: 4 is one exchange-and-add.
 *
 * Bounds. A freeze ends after TESSERA_THAW_NS, and with the governor's life TESSERA_LEASE_NS after its last word. 2 ends
 * after nine times the launch's own charge, and after LIM_PATIENCE_NS; a turn that was taken is not given up, so the one of
 * a higher priority waits for no more than what those below it have under way. 3 ends after LIM_PATIENCE_NS, or four times
 * what is under way if that is longer. 5 ends when its turn comes, and after twice the time that this looked like at first,
 * plus LIM_PATIENCE_NS, at any rate. No launch waits for another one
 * to do anything, only for time and for the device, so launches that need each other (collectives, a spinning kernel and
 * its producer) cannot lock up. A launch that went early is charged all the same. Only a pause lasts until it ends.
 *
 * Never held, nor measured: launches into a capture (they do not run), host functions, copies.
 *
 * Death. `booked` of the slot says what was charged and is not known to be complete; a reaper gives it back (books.h).
 * Launches that wait look for the dead every 100 ms, so what they held comes back while somebody needs it. Nothing else
 * of a launch is in shared memory.
 *
 * Grants are made by whoever needs one: an exchange of `last_ns` decides who may add the time since. Killed between the
 * exchange and the addition, a process takes a moment's grant with it, no more than some microseconds under load.
 *
 * What others of the share see is a sum of relaxed additions, in any order: each is right whenever it arrives.
 */
#include "compute.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "atomics.h"
#include "books.h"
#include "controller.h"
#include "costs.h"
#include "order.h"
#include "samples.h"

#define REAP_EVERY_NS (100 * LIM_MS)
#define PATIENCE_FACTOR 4u
#define YIELD_FACTOR 9u
#define PRESSED_NS (20 * LIM_MS) /* who waited no longer ago than this waits now: naps are shorter */

static struct tessera_device_usage *usage_of(const struct lim_launch *launch)
{
    return &launch->process->region->usage.device[launch->site.device];
}

static const struct tessera_device_control *control_of(const struct lim_launch *launch)
{
    return &launch->process->region->control.device[launch->site.device];
}

static uint64_t or_default(const uint64_t *word, uint64_t otherwise)
{
    uint64_t value = __atomic_load_n(word, __ATOMIC_RELAXED);
    return value != 0 ? value : otherwise;
}

/* nanosleep is where a thread may be cancelled; a launch is not. */
void lim_nap(uint64_t ns)
{
    uint64_t bounded = ns < LIM_NAP_SHORT_NS ? LIM_NAP_SHORT_NS : (ns > LIM_NAP_LONG_NS ? LIM_NAP_LONG_NS : ns);
    struct timespec time = {.tv_nsec = (long)bounded};
    int saved = errno;
    int state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    nanosleep(&time, NULL);
    pthread_setcancelstate(state, NULL);
    errno = saved;
}

/* -- grants ------------------------------------------------------------------------------------------------------- */

/* Nothing above spent + burst can be saved up. */
static void cap(struct tessera_device_usage *usage, int64_t burst_ns)
{
    int64_t granted = __atomic_load_n(&usage->granted_ns, __ATOMIC_RELAXED);
    int64_t most_ns = __atomic_load_n(&usage->spent_ns, __ATOMIC_RELAXED) + burst_ns;
    if (granted > most_ns) {
        __atomic_compare_exchange_n(&usage->granted_ns, &granted, most_ns, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
}

static int64_t less_instalment(struct tessera_device_usage *usage, int64_t grant_ns)
{
    int64_t owed = __atomic_load_n(&usage->owed_ns, __ATOMIC_RELAXED);
    int64_t paid = lim_instalment(owed, grant_ns);
    if (paid > 0) {
        __atomic_fetch_sub(&usage->owed_ns, paid, __ATOMIC_RELAXED);
    }
    return grant_ns - paid;
}

/* Grants the time since the last grant, if nobody else does. */
static void grant(const struct lim_launch *launch, uint64_t now_ns, uint64_t rate_q32)
{
    struct tessera_device_usage *usage = usage_of(launch);
    int64_t burst_ns = (int64_t)or_default(&control_of(launch)->burst_ns, LIM_BURST_NS);
    uint64_t last_ns = __atomic_load_n(&usage->last_ns, __ATOMIC_RELAXED);
    if (now_ns <= last_ns ||
        !__atomic_compare_exchange_n(&usage->last_ns, &last_ns, now_ns, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        return;
    }
    int64_t grant_ns = last_ns == 0 ? burst_ns : less_instalment(usage, lim_grant(rate_q32, now_ns - last_ns));
    __atomic_fetch_add(&usage->granted_ns, grant_ns, __ATOMIC_RELAXED);
    cap(usage, burst_ns);
}

static int64_t missing(const struct lim_launch *launch)
{
    return launch->turn_ns + 1 - __atomic_load_n(&usage_of(launch)->granted_ns, __ATOMIC_RELAXED);
}

static uint64_t rate_of(const struct lim_launch *launch, uint64_t now_ns)
{
    return lim_rate_now(&launch->process->region->control, (uint32_t)launch->site.device, now_ns);
}

/* Who waits has time for the others: measurements that are ready, and the dead. */
static void use_the_wait(struct lim_process *process, uint64_t now_ns)
{
    lim_collect(process);
    if (now_ns - __atomic_load_n(&process->scanned_ns, __ATOMIC_RELAXED) >= REAP_EVERY_NS) {
        lim_reap_now(process);
    }
}

static bool is_still_held(const struct lim_launch *launch)
{
    uint64_t gated = __atomic_load_n(&launch->process->region->control.gated, __ATOMIC_RELAXED);
    return (gated >> launch->site.device & 1u) != 0;
}

/* True while launches take turns: for a limit, or for a cap as long as its governor is heard of. */
static bool takes_turns(const struct lim_launch *launch)
{
    const struct tessera_control *control = &launch->process->region->control;
    const struct tessera_device_control *row = control_of(launch);
    uint32_t milli = __atomic_load_n(&row->compute_limit_milli, __ATOMIC_RELAXED);
    if (LIM_USUAL(__atomic_load_n(&row->mode, __ATOMIC_RELAXED) != TESSERA_MODE_OFF && milli > 0 && milli < 1000)) {
        return true;
    }
    return __atomic_load_n(&row->cap_milli, __ATOMIC_RELAXED) != 0 &&
           lim_is_governed(__atomic_load_n(&control->governor_ns, __ATOMIC_RELAXED), lim_now_ns());
}

static bool is_held_to_turns(const struct lim_launch *launch)
{
    return is_still_held(launch) && takes_turns(launch);
}

static void note_throttling(const struct lim_launch *launch, uint64_t from_ns, uint64_t until_ns)
{
    struct tessera_device_usage *usage = usage_of(launch);
    __atomic_fetch_add(&usage->throttled_ns, until_ns - from_ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&usage->throttled_count, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&usage->waited_ns, until_ns, __ATOMIC_RELAXED);
}

/* -- priorities between the processes of a share ------------------------------------------------------------------- */

/* Tells those below that a launch of ours waits for its turn. */
static void press(const struct lim_launch *launch, uint64_t now_ns)
{
    uint32_t level = launch->process->priority;
    if (level >= TESSERA_PRIORITY_MEDIUM && level <= TESSERA_PRIORITY_CRITICAL) {
        uint64_t *pressed_ns = &usage_of(launch)->pressed_ns[level - TESSERA_PRIORITY_MEDIUM];
        __atomic_store_n(pressed_ns, now_ns, __ATOMIC_RELAXED);
    }
}

/* When somebody of a higher priority waited last; 0: never. */
static uint64_t pressed_above(const struct lim_launch *launch)
{
    const uint64_t *pressed_ns = usage_of(launch)->pressed_ns;
    uint64_t last_ns = 0;
    for (uint32_t level = launch->process->priority + 1u; level <= TESSERA_PRIORITY_CRITICAL; level++) {
        uint64_t at_ns = __atomic_load_n(&pressed_ns[level - TESSERA_PRIORITY_MEDIUM], __ATOMIC_RELAXED);
        last_ns = at_ns > last_ns ? at_ns : last_ns;
    }
    return last_ns;
}

static void note_yielding(const struct lim_launch *launch, uint64_t from_ns, uint64_t until_ns)
{
    struct tessera_device_usage *usage = usage_of(launch);
    __atomic_fetch_add(&usage->yielded_ns, until_ns - from_ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&usage->yielded_count, 1, __ATOMIC_RELAXED);
}

/* What a launch lets others go first: nine times its own charge, so that a tenth of the share is left to it. */
static uint64_t yield_ns(const struct lim_launch *launch)
{
    struct lim_compute *compute = &launch->process->compute;
    lim_lock_word(&compute->lock);
    const struct lim_cost *cost = lim_cost_known(compute, launch->key);
    uint64_t cost_ns = cost != NULL && cost->cost_ns != 0 ? cost->cost_ns : LIM_GUESS_NS;
    lim_unlock_word(&compute->lock);
    uint64_t all_ns = YIELD_FACTOR * cost_ns;
    return all_ns < LIM_PATIENCE_NS ? all_ns : LIM_PATIENCE_NS;
}

/* Step 2. */
LIM_COLD static void let_others_go_first(const struct lim_launch *launch)
{
    uint64_t from_ns = lim_now_ns();
    uint64_t now_ns = from_ns;
    uint64_t end_ns = from_ns + yield_ns(launch);
    while (now_ns < end_ns && now_ns <= pressed_above(launch) + PRESSED_NS && is_still_held(launch)) {
        lim_nap(LIM_MS);
        now_ns = lim_now_ns();
        use_the_wait(launch->process, now_ns);
    }
    if (now_ns > from_ns) {
        note_yielding(launch, from_ns, now_ns);
    }
}

/* -- turns ---------------------------------------------------------------------------------------------------------- */

/* Step 5: returns when the turn has come. */
LIM_COLD static void wait_turn(const struct lim_launch *launch)
{
    uint64_t from_ns = lim_now_ns();
    uint64_t now_ns = from_ns;
    uint64_t rate = rate_of(launch, now_ns);
    grant(launch, now_ns, rate);
    if (missing(launch) <= 0) {
        return;
    }
    uint64_t end_ns = now_ns + 2 * lim_wait_ns(missing(launch), rate) + LIM_PATIENCE_NS;
    while (missing(launch) > 0 && now_ns < end_ns && is_held_to_turns(launch)) {
        press(launch, now_ns);
        lim_nap(lim_wait_ns(missing(launch), rate));
        now_ns = lim_now_ns();
        use_the_wait(launch->process, now_ns);
        rate = rate_of(launch, now_ns);
        grant(launch, now_ns, rate);
    }
    note_throttling(launch, from_ns, now_ns);
}

/* -- charging ----------------------------------------------------------------------------------------------------- */

static bool may_enter(const struct lim_launch *launch, const struct lim_cost *cost, bool is_patient)
{
    const struct lim_device_work *work = &launch->process->compute.work[launch->site.device];
    if (!is_patient || work->pending == 0) {
        return true;
    }
    bool is_trial = cost->cost_ns == 0 && cost->trials > 0;
    return !is_trial && work->out_ns <= (int64_t)or_default(&control_of(launch)->in_flight_limit_ns, LIM_IN_FLIGHT_NS);
}

/* With no measurement under way that could tell, what is under way counts as complete once it is too much. */
static void presume_complete(const struct lim_launch *launch)
{
    struct lim_compute *compute = &launch->process->compute;
    uint32_t device = (uint32_t)launch->site.device;
    const struct lim_device_work *work = &compute->work[device];
    if (work->pending > 0 || work->out_ns <= (int64_t)LIM_IN_FLIGHT_NS / 2) {
        return;
    }
    for (unsigned i = 0; i < LIM_LANES; i++) {
        struct lim_lane *lane = &compute->lanes[i];
        if (lane->device == device) {
            lim_work_done(launch->process, device, lim_lane_complete(lane, lane->submitted_ns), 0);
        }
    }
}

/* Puts the launch among what is under way, and decides whether it is measured. Lock held. */
static void submit(struct lim_launch *launch, struct lim_cost *cost)
{
    struct lim_compute *compute = &launch->process->compute;
    uint32_t device = (uint32_t)launch->site.device;
    uint64_t stream = (uint64_t)(uintptr_t)launch->order.stream ^ (launch->order.per_thread ? 1u : 0u);
    struct lim_lane *lane = lim_lane_of(compute, (uint64_t)(uintptr_t)launch->site.context, stream, device);
    bool is_measured = cost == NULL || cost->cost_ns == 0 || cost->cost_ns >= LIM_FENCE_NS ||
                       lim_lane_needs_fence(lane, launch->charge_ns);
    int64_t position = lim_lane_submit(lane, launch->charge_ns);
    if (compute->work[device].out_ns == 0) {
        __atomic_store_n(&lim_own_slot(launch->process)->progress_ns, lim_coarse_ns(), __ATOMIC_RELAXED);
    }
    compute->work[device].out_ns += launch->charge_ns;
    launch->lane = (uint16_t)(lane - compute->lanes);
    launch->sample = is_measured ? lim_sample_take(compute, launch->site.context) : NULL;
    if (launch->sample == NULL) {
        return;
    }
    lane->fenced_ns = position;
    lane->launches = 0;
    launch->sample->cost_key = launch->key;
    launch->sample->charge_ns = launch->charge_ns;
    launch->sample->position_ns = position;
    launch->sample->lane = launch->lane;
    launch->sample->was_guess = launch->is_guess;
    launch->sample->device = (uint8_t)device;
    if (cost != NULL && cost->cost_ns == 0) {
        cost->trials++;
        launch->sample->is_trial = 1;
    }
}

/* Steps 3 and 4, and 6 if its turn has come already. False: not yet. Lock held. */
static bool enter(struct lim_launch *launch, bool is_patient)
{
    struct lim_compute *compute = &launch->process->compute;
    struct lim_device_work *work = &compute->work[launch->site.device];
    struct lim_cost *cost = lim_cost_of(compute, launch->key);
    presume_complete(launch);
    if (!may_enter(launch, cost, is_patient)) {
        return false;
    }
    launch->is_guess = cost->cost_ns == 0;
    launch->charge_ns = (int64_t)(launch->is_guess ? LIM_GUESS_NS : cost->cost_ns);
    launch->turn_ns = __atomic_fetch_add(&usage_of(launch)->spent_ns, launch->charge_ns, __ATOMIC_RELAXED);
    work->booked_ns += launch->charge_ns;
    lim_publish_booked(lim_own_slot(launch->process), (uint32_t)launch->site.device, work->booked_ns);
    if (missing(launch) <= 0) {
        launch->is_due = true;
        submit(launch, cost);
    }
    return true;
}

static bool try_enter(struct lim_launch *launch, bool is_patient)
{
    lim_lock_word(&launch->process->compute.lock);
    bool entered = enter(launch, is_patient);
    lim_unlock_word(&launch->process->compute.lock);
    return entered;
}

/* Step 3, when there is something to wait for. */
LIM_COLD static void wait_to_enter(struct lim_launch *launch)
{
    uint64_t from_ns = lim_now_ns();
    lim_lock_word(&launch->process->compute.lock);
    int64_t out_ns = launch->process->compute.work[launch->site.device].out_ns;
    lim_unlock_word(&launch->process->compute.lock);
    uint64_t patience = out_ns > 0 ? PATIENCE_FACTOR * (uint64_t)out_ns : 0;
    uint64_t end_ns = from_ns + (patience > LIM_PATIENCE_NS ? patience : LIM_PATIENCE_NS);
    uint64_t pause_ns = LIM_NAP_SHORT_NS;
    uint64_t now_ns = from_ns;
    do {
        lim_nap(pause_ns);
        pause_ns = pause_ns < LIM_MS ? pause_ns * 2 : LIM_MS;
        now_ns = lim_now_ns();
        press(launch, now_ns);
        use_the_wait(launch->process, now_ns);
    } while (!try_enter(launch, now_ns < end_ns));
    note_throttling(launch, from_ns, now_ns);
}

/* Step 1. */
LIM_COLD static void wait_while_paused(const struct lim_launch *launch)
{
    const struct tessera_control *control = &launch->process->region->control;
    if (LIM_USUAL(__atomic_load_n(&control->pause, __ATOMIC_RELAXED) == 0)) {
        return;
    }
    uint64_t from_ns = lim_now_ns();
    while (__atomic_load_n(&control->pause, __ATOMIC_ACQUIRE) != 0) {
        lim_nap(LIM_NAP_LONG_NS);
        use_the_wait(launch->process, lim_now_ns());
    }
    note_throttling(launch, from_ns, lim_now_ns());
}

/* Step 1 as well: asks to be let go, and waits no longer than order.h says. */
LIM_COLD static void ask_to_run(const struct lim_launch *launch)
{
    const struct tessera_control *control = &launch->process->region->control;
    const uint64_t *order_at = &control_of(launch)->order;
    uint64_t from_ns = lim_now_ns();
    uint64_t now_ns = from_ns;
    uint64_t order = word_load(order_at);
    while (lim_order_holds(order, word_load(&control->governor_ns), now_ns, now_ns - from_ns)) {
        word_raise(&usage_of(launch)->asked, lim_order_number(order));
        lim_nap(LIM_NAP_LONG_NS);
        now_ns = lim_now_ns();
        use_the_wait(launch->process, now_ns);
        order = word_load(order_at);
    }
    note_yielding(launch, from_ns, now_ns);
}

static bool is_frozen(const struct lim_launch *launch)
{
    return lim_order_freezes(__atomic_load_n(&control_of(launch)->order, __ATOMIC_RELAXED));
}

/* Step 5 for a launch whose turn was not due at once. */
LIM_COLD static void wait_and_submit(struct lim_launch *launch)
{
    wait_turn(launch);
    wait_while_paused(launch);
    lim_lock_word(&launch->process->compute.lock);
    submit(launch, lim_cost_known(&launch->process->compute, launch->key));
    lim_unlock_word(&launch->process->compute.lock);
}

LIM_COLD static void drop_sample(struct lim_launch *launch)
{
    lim_lock_word(&launch->process->compute.lock);
    lim_sample_drop(&launch->process->compute, launch->sample);
    lim_unlock_word(&launch->process->compute.lock);
    launch->sample = NULL;
}

void lim_launch_begin(struct lim_launch *launch, struct lim_process *process, const struct lim_order *order)
{
    launch->process = process;
    launch->order = *order;
    launch->is_held = false;
    launch->is_due = false;
    launch->sample = NULL;
    launch->site = lim_stream_site(process, order->stream, order->per_thread);
    if (launch->site.device < 0 || !is_still_held(launch) || lim_is_capturing(order->stream, order->per_thread)) {
        return;
    }
    wait_while_paused(launch);
    if (!LIM_USUAL(!is_frozen(launch))) {
        ask_to_run(launch);
    }
    if (!is_held_to_turns(launch)) {
        return; /* there was only the pause, or the order */
    }
    launch->is_held = true;
    launch->key = lim_cost_key(order->what, order->blocks, (uint32_t)launch->site.device);
    if (!LIM_USUAL(pressed_above(launch) == 0)) {
        let_others_go_first(launch);
    }
    if (!LIM_USUAL(try_enter(launch, true))) {
        wait_to_enter(launch);
    }
    if (!LIM_USUAL(launch->is_due)) {
        wait_and_submit(launch);
    }
    if (launch->sample != NULL && !lim_sample_start(launch)) {
        drop_sample(launch);
    }
}

/* The driver did not take it: nothing was used. */
LIM_COLD static void take_back(struct lim_launch *launch)
{
    struct lim_compute *compute = &launch->process->compute;
    uint32_t device = (uint32_t)launch->site.device;
    lim_lock_word(&compute->lock);
    compute->lanes[launch->lane].submitted_ns -= launch->charge_ns;
    lim_work_done(launch->process, device, launch->charge_ns, -launch->charge_ns);
    if (launch->sample != NULL) {
        lim_sample_drop(compute, launch->sample);
    }
    lim_unlock_word(&compute->lock);
    __atomic_fetch_add(&usage_of(launch)->granted_ns, launch->charge_ns, __ATOMIC_RELAXED);
}

LIM_COLD static void begin_measurement(struct lim_launch *launch)
{
    if (!lim_sample_end(launch)) {
        drop_sample(launch);
        return;
    }
    lim_lock_word(&launch->process->compute.lock);
    lim_sample_pend(&launch->process->compute, launch->sample);
    lim_unlock_word(&launch->process->compute.lock);
    lim_collect(launch->process);
}

CUresult lim_launch_end(struct lim_launch *launch, CUresult result)
{
    if (!launch->is_held) {
        return result;
    }
    if (!LIM_USUAL(result == CUDA_SUCCESS)) {
        take_back(launch);
    } else if (launch->sample != NULL) {
        begin_measurement(launch);
    }
    return result;
}
