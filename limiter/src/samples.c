/* DESIGN
 *
 * A measured launch has an event before and one behind it, in its own stream. Their distance is the time of the kernel
 * alone, whatever waits before it. Every launch is measured that was never measured before, that takes longer than a
 * millisecond, or that comes a millisecond of work or 32 launches after the last measurement on its stream. So a stream
 * always has a fence at most about a millisecond behind its end, by which everything before it is known to be complete.
 *
 * Events are read (cuEventQuery, cuEventElapsedTime) by whoever passes by, one thread at a time, and never waited for.
 * Reading must not disturb a capture of the program: a query in another thread's global capture ends that capture, so
 * reading happens under CU_STREAM_CAPTURE_MODE_RELAXED, which is the calling thread's own.
 *
 * Events die with their context. A call that may end one first waits until nobody reads (lim_stop_collecting), and
 * nobody begins to while such a call is under way; afterwards its samples are dropped, their events untouched.
 *
 * Source: CUDA driver API, Event Management and Stream Management (cuThreadExchangeStreamCaptureMode).
 */
#include "samples.h"

#include "books.h"
#include "controller.h"
#include "costs.h"

#define VAIN_READS 8
#define ENDINGS_MASK ((UINT64_C(1) << LIM_ENDINGS_BITS) - 1u)

static bool suits(const struct lim_sample *sample, const void *context)
{
    return sample->state == LIM_SAMPLE_FREE && sample->context == context;
}

struct lim_sample *lim_sample_take(struct lim_compute *compute, const void *context)
{
    struct lim_sample *found = NULL;
    for (unsigned i = 0; i < LIM_SAMPLES && found == NULL; i++) {
        if (suits(&compute->samples[i], context)) {
            found = &compute->samples[i];
        }
    }
    for (unsigned i = 0; i < LIM_SAMPLES && found == NULL; i++) {
        if (suits(&compute->samples[i], NULL)) {
            found = &compute->samples[i];
        }
    }
    if (found != NULL) {
        found->state = LIM_SAMPLE_TAKEN;
        found->context = (void *)(uintptr_t)context;
    }
    return found;
}

/* Events belong to the context that is current when they are made. */
static bool make_events(struct lim_sample *sample)
{
    CUcontext popped = NULL;
    if (CALL(cuCtxPushCurrent_v2, (CUcontext)sample->context) != CUDA_SUCCESS) {
        return false;
    }
    CUevent start = NULL;
    CUevent end = NULL;
    bool made = CALL(cuEventCreate, &start, CU_EVENT_DEFAULT) == CUDA_SUCCESS &&
                CALL(cuEventCreate, &end, CU_EVENT_DEFAULT) == CUDA_SUCCESS;
    if (!made && start != NULL) {
        CALL(cuEventDestroy_v2, start);
        start = NULL;
    }
    CALL(cuCtxPopCurrent_v2, &popped);
    sample->start = start;
    sample->end = end;
    return made;
}

static bool record(const struct lim_launch *launch, void *event)
{
    CUstream stream = launch->order.stream;
    return (launch->order.per_thread ? CALL(cuEventRecord_ptsz, (CUevent)event, stream)
                                     : CALL(cuEventRecord, (CUevent)event, stream)) == CUDA_SUCCESS;
}

/* Events that cannot be recorded are not tried again: their context may have ended. */
static bool record_or_forget(const struct lim_launch *launch, void *event)
{
    bool recorded = record(launch, event);
    if (!recorded) {
        launch->sample->start = NULL;
        launch->sample->end = NULL;
    }
    return recorded;
}

bool lim_sample_start(const struct lim_launch *launch)
{
    struct lim_sample *sample = launch->sample;
    return (sample->start != NULL || make_events(sample)) && record_or_forget(launch, sample->start);
}

bool lim_sample_end(const struct lim_launch *launch)
{
    return record_or_forget(launch, launch->sample->end);
}

void lim_sample_pend(struct lim_compute *compute, struct lim_sample *sample)
{
    sample->number = ++compute->sample_number;
    sample->state = LIM_SAMPLE_PENDING;
    compute->work[sample->device].pending++;
    __atomic_store_n(&compute->pending, compute->pending + 1u, __ATOMIC_RELAXED);
}

static void end_trial(struct lim_compute *compute, struct lim_sample *sample)
{
    struct lim_cost *cost = lim_cost_known(compute, sample->cost_key);
    if (sample->is_trial != 0 && cost != NULL && cost->trials > 0) {
        cost->trials--;
    }
    sample->is_trial = 0;
}

void lim_sample_drop(struct lim_compute *compute, struct lim_sample *sample)
{
    end_trial(compute, sample);
    if (sample->state == LIM_SAMPLE_PENDING) {
        compute->work[sample->device].pending--;
        __atomic_store_n(&compute->pending, compute->pending - 1u, __ATOMIC_RELAXED);
    }
    if (sample->start == NULL) {
        sample->context = NULL; /* without events it suits any context */
    }
    sample->state = LIM_SAMPLE_FREE;
}

/* -- what a measurement changes ----------------------------------------------------------------------------------- */

/* Settles what was charged too little or too much: rule 3 of controller.c. */
static void correct(struct tessera_device_usage *usage, int64_t more_ns)
{
    int64_t owed = __atomic_add_fetch(&usage->owed_ns, more_ns, __ATOMIC_RELAXED);
    int64_t kept = owed < 0 ? 0 : (owed > (int64_t)LIM_OWED_NS ? (int64_t)LIM_OWED_NS : owed);
    if (owed != kept &&
        __atomic_compare_exchange_n(&usage->owed_ns, &owed, kept, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        __atomic_fetch_add(&usage->granted_ns, kept - owed, __ATOMIC_RELAXED);
    }
}

static void raise(uint64_t *word, uint64_t value)
{
    if (__atomic_load_n(word, __ATOMIC_RELAXED) < value) {
        __atomic_store_n(word, value, __ATOMIC_RELAXED);
    }
}

void lim_work_done(struct lim_process *process, uint32_t device, int64_t newly_ns, int64_t measured_more_ns)
{
    struct lim_device_work *work = &process->compute.work[device];
    struct tessera_slot *slot = lim_own_slot(process);
    int64_t finished_ns = newly_ns + measured_more_ns;
    work->out_ns -= newly_ns;
    work->booked_ns -= newly_ns;
    lim_publish_booked(slot, device, work->booked_ns);
    __atomic_store_n(&slot->progress_ns, work->out_ns == 0 ? TESSERA_NO_PROGRESS : lim_coarse_ns(), __ATOMIC_RELAXED);
    if (finished_ns > 0) {
        __atomic_fetch_add(&process->region->usage.device[device].finished_ns, (uint64_t)finished_ns,
                           __ATOMIC_RELAXED);
    }
}

static void settle(struct lim_process *process, struct lim_sample *sample, int64_t measured_ns)
{
    struct lim_compute *compute = &process->compute;
    struct tessera_device_usage *usage = &process->region->usage.device[sample->device];
    int64_t believed_ns = lim_believed(sample->charge_ns, measured_ns, sample->was_guess != 0);
    int64_t more_ns = believed_ns - sample->charge_ns;
    uint32_t device = sample->device;
    lim_lock_word(&compute->lock);
    struct lim_cost *cost = lim_cost_known(compute, sample->cost_key);
    if (cost != NULL) {
        cost->cost_ns = lim_learn(cost->cost_ns, (uint64_t)believed_ns);
        raise(&usage->longest_ns, cost->cost_ns);
    }
    int64_t newly_ns = lim_lane_complete(&compute->lanes[sample->lane], sample->position_ns);
    lim_work_done(process, device, newly_ns, more_ns);
    lim_sample_drop(compute, sample);
    lim_unlock_word(&compute->lock);
    correct(usage, more_ns);
}

/* Without a time: its launch counts as complete, at its charge. Lock held. */
static void give_up(struct lim_process *process, struct lim_sample *sample)
{
    struct lim_compute *compute = &process->compute;
    int64_t newly_ns = lim_lane_complete(&compute->lanes[sample->lane], sample->position_ns);
    lim_work_done(process, sample->device, newly_ns, 0);
    lim_sample_drop(compute, sample);
}

/* -- reading ------------------------------------------------------------------------------------------------------ */

/* The oldest pending sample that was submitted after `number`; NULL at the end. */
static struct lim_sample *next_pending(struct lim_compute *compute, uint64_t number)
{
    struct lim_sample *next = NULL;
    lim_lock_word(&compute->lock);
    for (unsigned i = 0; i < LIM_SAMPLES; i++) {
        struct lim_sample *sample = &compute->samples[i];
        bool is_later = sample->state == LIM_SAMPLE_PENDING && sample->number > number;
        if (is_later && (next == NULL || sample->number < next->number)) {
            next = sample;
        }
    }
    lim_unlock_word(&compute->lock);
    return next;
}

static CUresult elapsed(struct lim_sample *sample, float *milliseconds)
{
    return HAS(cuEventElapsedTime_v2)
               ? CALL(cuEventElapsedTime_v2, milliseconds, (CUevent)sample->start, (CUevent)sample->end)
               : CALL(cuEventElapsedTime, milliseconds, (CUevent)sample->start, (CUevent)sample->end);
}

/* Reads one; false while its kernel runs. */
static bool read_one(struct lim_process *process, struct lim_sample *sample)
{
    float milliseconds = 0.0F;
    CUresult result = CALL(cuEventQuery, (CUevent)sample->end);
    if (result == CUDA_ERROR_NOT_READY) {
        return false;
    }
    if (result == CUDA_SUCCESS && elapsed(sample, &milliseconds) == CUDA_SUCCESS && milliseconds >= 0.0F) {
        settle(process, sample, (int64_t)((double)milliseconds * (double)LIM_MS));
        return true;
    }
    lim_lock_word(&process->compute.lock);
    give_up(process, sample);
    lim_unlock_word(&process->compute.lock);
    return true;
}

/* A stream whose oldest sample is not ready has none that is; others are looked at, up to some that are not either. */
static void read_ready(struct lim_process *process)
{
    struct lim_compute *compute = &process->compute;
    bool is_busy[LIM_LANES] = {false};
    int vain = 0;
    struct lim_sample *sample = next_pending(compute, 0);
    while (sample != NULL && vain < VAIN_READS) {
        uint64_t number = sample->number;
        uint16_t lane = sample->lane;
        if (!is_busy[lane] && !read_one(process, sample)) {
            is_busy[lane] = true;
            vain++;
        }
        sample = next_pending(compute, number);
    }
}

static bool is_ending(const struct lim_process *process)
{
    return (__atomic_load_n(&process->contexts, __ATOMIC_SEQ_CST) & ENDINGS_MASK) != 0;
}

void lim_collect(struct lim_process *process)
{
    struct lim_compute *compute = &process->compute;
    uint32_t idle = 0;
    if (__atomic_load_n(&compute->pending, __ATOMIC_RELAXED) == 0 ||
        !__atomic_compare_exchange_n(&compute->collecting, &idle, 1u, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
        return;
    }
    if (!is_ending(process)) {
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        bool relaxed = CALL(cuThreadExchangeStreamCaptureMode, &mode) == CUDA_SUCCESS;
        read_ready(process);
        if (relaxed) {
            CALL(cuThreadExchangeStreamCaptureMode, &mode);
        }
    }
    lim_unlock_word(&compute->collecting);
}

void lim_stop_collecting(struct lim_process *process)
{
    lim_lock_word(&process->compute.collecting);
    lim_unlock_word(&process->compute.collecting);
}

/* The driver ended the work of a context with it. Lock held. */
static void end_lanes(struct lim_process *process, const void *context)
{
    for (unsigned i = 0; i < LIM_LANES; i++) {
        struct lim_lane *lane = &process->compute.lanes[i];
        int64_t left_ns = lane->submitted_ns - lane->completed_ns;
        if (left_ns > 0 && (context == NULL || lane->context == (uint64_t)(uintptr_t)context)) {
            lim_work_done(process, lane->device, lim_lane_complete(lane, lane->submitted_ns), 0);
        }
    }
}

/* Samples that a launch has taken are left to it: it launches in a context while that is destroyed, and the driver tells
 * it so. */
void lim_forget_context(struct lim_process *process, const void *context)
{
    struct lim_compute *compute = &process->compute;
    lim_lock_word(&compute->collecting);
    lim_lock_word(&compute->lock);
    for (unsigned i = 0; i < LIM_SAMPLES; i++) {
        struct lim_sample *sample = &compute->samples[i];
        if (sample->context == NULL || (context != NULL && sample->context != context) ||
            sample->state == LIM_SAMPLE_TAKEN) {
            continue;
        }
        if (sample->state == LIM_SAMPLE_PENDING) {
            give_up(process, sample);
        }
        *sample = (struct lim_sample){.state = LIM_SAMPLE_FREE};
    }
    end_lanes(process, context);
    lim_unlock_word(&compute->lock);
    lim_unlock_word(&compute->collecting);
}
