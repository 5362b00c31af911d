/* DESIGN
 *
 * Streams and events. All work of a process on a device runs in the order of submission, so a
 * stream is only the ticket of the last work put into it, and an event is a ticket with a time.
 * That order satisfies every rule of stream order, default-stream synchronisation and event
 * waits on one device; what it lacks is overlap. A wait for an event of another device blocks
 * the caller instead of the stream.
 *
 * Host functions run in the calling thread, after the work before them.
 */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

struct CUevent_st {
    uint32_t magic;
    unsigned flags;
    int row;
    bool recorded;
    uint64_t ticket;
    uint64_t recorded_at;
    uint64_t reached_at; /* 0 until somebody saw it reached */
    struct CUevent_st *next;
};

static CUevent events; /* every event object: destroyed ones are reused */
static unsigned long long next_id = 1;
static struct {
    uint64_t ticket[1024]; /* of the last launches, for the depth of the launch queue */
    uint64_t count;
} in_flight[SIM_MAX_DEVICES];

void sim_streams_forget(void)
{
    memset(in_flight, 0, sizeof in_flight);
    for (CUevent event = events; event != NULL; event = event->next) event->magic = SIM_DEAD;
}

CUresult sim_stream_of(CUstream handle, CUstream *out)
{
    if ((uintptr_t)handle > 2) {
        if (handle->magic != SIM_STREAM_MAGIC) return CUDA_ERROR_INVALID_HANDLE;
        *out = handle;
        return handle->context->live ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    CUcontext context;
    CUresult result = sim_current(&context);
    if (result == CUDA_SUCCESS) *out = &context->stream[handle == CU_STREAM_PER_THREAD];
    return result;
}

/* A call that a capturing stream must not see: it ends the capture. */
static CUresult refuse_capture(CUstream stream)
{
    if (stream->capture == NULL) return CUDA_SUCCESS;
    stream->broken = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* -- work --------------------------------------------------------------------------------- */

CUresult sim_enqueue(CUstream stream, uint64_t ns)
{
    int row = stream->context->row;
    if (stream->capture != NULL) {
        sim_graph_kernel(stream->capture, ns);
        return CUDA_SUCCESS;
    }
    sim_lock();
    uint64_t *oldest = &in_flight[row].ticket[in_flight[row].count++ % sim_description.queue_depth];
    if (!sim_clock_reached(row, *oldest)) {
        uint64_t ticket = *oldest;
        sim_unlock();
        sim_clock_wait(row, ticket);
        sim_lock();
    }
    stream->tail = *oldest = sim_clock_submit(row, ns);
    sim_unlock();
    return CUDA_SUCCESS;
}

static void wait_for(int row, uint64_t ticket)
{
    sim_clock_wait(row, ticket);
    sim_lock();
    sim_pools_synced(row, ticket);
    sim_unlock();
}

void sim_drain(CUcontext context)
{
    sim_lock();
    uint64_t tail = sim_clock_tail(context->row);
    sim_unlock();
    wait_for(context->row, tail);
}

/* -- streams ------------------------------------------------------------------------------ */

static CUresult create(CUstream *out, unsigned int flags, int priority)
{
    CUcontext context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (out == NULL || flags > 1) return CUDA_ERROR_INVALID_VALUE;
    CUstream stream = calloc(1, sizeof *stream);
    if (stream == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    stream->magic = SIM_STREAM_MAGIC;
    stream->flags = flags;
    stream->priority = priority;
    stream->context = context;
    sim_lock();
    stream->id = next_id++;
    stream->next = context->streams;
    context->streams = stream;
    sim_unlock();
    *out = stream;
    return CUDA_SUCCESS;
}

SIM_API cuStreamCreate(CUstream *out, unsigned int flags)
{
    SIM_CALL("%u", flags);
    return create(out, flags, 0);
}

SIM_API cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority)
{
    SIM_CALL("%u %d", flags, priority);
    return create(out, flags, priority);
}

static CUresult destroy(CUstream stream)
{
    if ((uintptr_t)stream <= 2 || stream->magic != SIM_STREAM_MAGIC) return CUDA_ERROR_INVALID_HANDLE;
    stream->magic = SIM_DEAD;
    return CUDA_SUCCESS;
}

SIM_API cuStreamDestroy(CUstream stream)
{
    SIM_CALL("%p", (void *)stream);
    return destroy(stream);
}

SIM_API cuStreamDestroy_v2(CUstream stream)
{
    SIM_CALL("%p", (void *)stream);
    return destroy(stream);
}

static CUresult do_cuStreamSynchronize(CUstream handle)
{
    CUstream stream;
    CUresult result = sim_stream_of(handle, &stream);
    if (result == CUDA_SUCCESS) result = refuse_capture(stream);
    if (result == CUDA_SUCCESS) wait_for(stream->context->row, stream->tail);
    return result;
}

SIM_TWINS(cuStreamSynchronize, cuStreamSynchronize_ptsz, (CUstream stream), (stream), "%p", (void *)stream)

static CUresult do_cuStreamQuery(CUstream handle)
{
    CUstream stream;
    CUresult result = sim_stream_of(handle, &stream);
    if (result == CUDA_SUCCESS) result = refuse_capture(stream);
    if (result != CUDA_SUCCESS) return result;
    sim_lock();
    bool reached = sim_clock_reached(stream->context->row, stream->tail);
    sim_unlock();
    return reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

SIM_TWINS(cuStreamQuery, cuStreamQuery_ptsz, (CUstream stream), (stream), "%p", (void *)stream)

static CUresult do_cuStreamGetFlags(CUstream handle, unsigned int *flags)
{
    CUstream stream;
    CUresult result = sim_stream_of(handle, &stream);
    if (result == CUDA_SUCCESS) *flags = stream->flags;
    return result;
}

SIM_TWINS(cuStreamGetFlags, cuStreamGetFlags_ptsz, (CUstream stream, unsigned int *flags), (stream, flags),
          "%p", (void *)stream)

static CUresult do_cuStreamGetPriority(CUstream handle, int *priority)
{
    CUstream stream;
    CUresult result = sim_stream_of(handle, &stream);
    if (result == CUDA_SUCCESS) *priority = stream->priority;
    return result;
}

SIM_TWINS(cuStreamGetPriority, cuStreamGetPriority_ptsz, (CUstream stream, int *priority), (stream, priority),
          "%p", (void *)stream)

static CUresult do_cuStreamGetId(CUstream handle, unsigned long long *id)
{
    CUstream stream;
    CUresult result = sim_stream_of(handle, &stream);
    if (result == CUDA_SUCCESS) *id = stream->id;
    return result;
}

SIM_TWINS(cuStreamGetId, cuStreamGetId_ptsz, (CUstream stream, unsigned long long *id), (stream, id), "%p",
          (void *)stream)

static CUresult do_cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    CUstream stream;
    CUresult result = sim_stream_of(handle, &stream);
    if (result == CUDA_SUCCESS) *context = stream->context;
    return result;
}

SIM_TWINS(cuStreamGetCtx, cuStreamGetCtx_ptsz, (CUstream stream, CUcontext *context), (stream, context), "%p",
          (void *)stream)

static CUresult do_cuStreamGetCtx_v2(CUstream handle, CUcontext *context, CUgreenCtx *green)
{
    CUresult result = do_cuStreamGetCtx(handle, context);
    if (result == CUDA_SUCCESS && green != NULL) *green = NULL;
    return result;
}

SIM_TWINS(cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz, (CUstream stream, CUcontext *context, CUgreenCtx *green),
          (stream, context, green), "%p", (void *)stream)

static CUresult do_cuStreamGetDevice(CUstream handle, CUdevice *device)
{
    CUstream stream;
    CUresult result = sim_stream_of(handle, &stream);
    if (result == CUDA_SUCCESS) *device = stream->context->device;
    return result;
}

SIM_TWINS(cuStreamGetDevice, cuStreamGetDevice_ptsz, (CUstream stream, CUdevice *device), (stream, device),
          "%p", (void *)stream)

/* -- host functions ----------------------------------------------------------------------- */

static CUresult settle_stream(CUstream handle, CUstream *stream)
{
    CUresult result = sim_stream_of(handle, stream);
    if (result == CUDA_SUCCESS && (*stream)->capture == NULL)
        sim_clock_wait((*stream)->context->row, (*stream)->tail);
    return result;
}

static CUresult do_cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data)
{
    CUstream stream;
    if (function == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = settle_stream(handle, &stream);
    if (result == CUDA_SUCCESS && stream->capture == NULL) function(data);
    return result;
}

SIM_TWINS(cuLaunchHostFunc, cuLaunchHostFunc_ptsz, (CUstream stream, CUhostFn function, void *data),
          (stream, function, data), "%p", (void *)stream)

static CUresult do_cuStreamAddCallback(CUstream handle, CUstreamCallback function, void *data, unsigned int flags)
{
    CUstream stream;
    if (function == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = settle_stream(handle, &stream);
    if (result == CUDA_SUCCESS) result = refuse_capture(stream);
    if (result == CUDA_SUCCESS) function(handle, CUDA_SUCCESS, data);
    return result;
}

SIM_TWINS(cuStreamAddCallback, cuStreamAddCallback_ptsz,
          (CUstream stream, CUstreamCallback function, void *data, unsigned int flags),
          (stream, function, data, flags), "%p %u", (void *)stream, flags)

/* -- events ------------------------------------------------------------------------------- */

static bool is_event(CUevent event)
{
    return event != NULL && event->magic == SIM_EVENT_MAGIC;
}

SIM_API cuEventCreate(CUevent *out, unsigned int flags)
{
    SIM_CALL("%u", flags);
    CUcontext context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (out == NULL || flags > 7) return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    CUevent event = events;
    while (event != NULL && event->magic != SIM_DEAD) event = event->next;
    if (event == NULL && (event = calloc(1, sizeof *event)) != NULL) {
        event->next = events;
        events = event;
    }
    if (event != NULL) {
        event->magic = SIM_EVENT_MAGIC;
        event->flags = flags;
        event->row = context->row;
        event->recorded = false;
    }
    sim_unlock();
    *out = event;
    return event == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult destroy_event(CUevent event)
{
    if (!is_event(event)) return CUDA_ERROR_INVALID_HANDLE;
    sim_lock();
    event->magic = SIM_DEAD;
    sim_unlock();
    return CUDA_SUCCESS;
}

SIM_API cuEventDestroy(CUevent event)
{
    SIM_CALL("%p", (void *)event);
    return destroy_event(event);
}

SIM_API cuEventDestroy_v2(CUevent event)
{
    SIM_CALL("%p", (void *)event);
    return destroy_event(event);
}

static CUresult record(CUevent event, CUstream handle)
{
    CUstream stream;
    CUresult result = sim_stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!is_event(event) || event->row != stream->context->row) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture != NULL) return CUDA_SUCCESS; /* a node of the graph, not a record */
    sim_lock();
    /* The legacy stream waits for all others of its device. */
    bool legacy = stream == &stream->context->stream[0];
    event->ticket = legacy ? sim_clock_tail(event->row) : stream->tail;
    event->recorded_at = sim_now();
    event->reached_at = 0;
    event->recorded = true;
    sim_unlock();
    return CUDA_SUCCESS;
}

static CUresult do_cuEventRecord(CUevent event, CUstream stream)
{
    return record(event, stream);
}

SIM_TWINS(cuEventRecord, cuEventRecord_ptsz, (CUevent event, CUstream stream), (event, stream), "%p %p",
          (void *)event, (void *)stream)

static CUresult do_cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
    return flags > 1 ? CUDA_ERROR_INVALID_VALUE : record(event, stream);
}

SIM_TWINS(cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz,
          (CUevent event, CUstream stream, unsigned int flags), (event, stream, flags), "%p %p",
          (void *)event, (void *)stream)

/* Called with the lock held: reached, and when. */
static bool is_reached(CUevent event)
{
    if (!event->recorded || event->reached_at != 0) return true;
    if (!sim_clock_reached(event->row, event->ticket)) return false;
    event->reached_at = event->recorded_at;
    if (event->ticket != 0) {
        uint64_t at = sim_clock_time(event->row, event->ticket);
        if (at > event->reached_at) event->reached_at = at;
    }
    return true;
}

SIM_API cuEventQuery(CUevent event)
{
    SIM_CALL("%p", (void *)event);
    if (!is_event(event)) return CUDA_ERROR_INVALID_HANDLE;
    CUresult refused = sim_refuse_unsafe();
    if (refused != CUDA_SUCCESS) return refused;
    sim_lock();
    bool reached = is_reached(event);
    sim_unlock();
    return reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

SIM_API cuEventSynchronize(CUevent event)
{
    SIM_CALL("%p", (void *)event);
    if (!is_event(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (!event->recorded) return CUDA_SUCCESS;
    uint64_t ticket = event->ticket;
    wait_for(event->row, ticket);
    sim_lock();
    is_reached(event);
    sim_unlock();
    return CUDA_SUCCESS;
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end)
{
    if (milliseconds == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!is_event(start) || !is_event(end) || !start->recorded || !end->recorded ||
        ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0)
        return CUDA_ERROR_INVALID_HANDLE;
    sim_lock();
    bool reached = is_reached(start) && is_reached(end);
    if (reached) *milliseconds = (float)((double)(int64_t)(end->reached_at - start->reached_at) / 1e6);
    sim_unlock();
    return reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

SIM_API cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    SIM_CALL("%p %p", (void *)start, (void *)end);
    return elapsed(milliseconds, start, end);
}

SIM_API cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    SIM_CALL("%p %p", (void *)start, (void *)end);
    return elapsed(milliseconds, start, end);
}

static CUresult do_cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags)
{
    CUstream stream;
    CUresult result = sim_stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!is_event(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    if (!event->recorded || stream->capture != NULL) return CUDA_SUCCESS;
    if (event->row != stream->context->row) {
        sim_clock_wait(event->row, event->ticket);
        return CUDA_SUCCESS;
    }
    sim_lock();
    if (event->ticket > stream->tail) stream->tail = event->ticket;
    sim_unlock();
    return CUDA_SUCCESS;
}

SIM_TWINS(cuStreamWaitEvent, cuStreamWaitEvent_ptsz, (CUstream stream, CUevent event, unsigned int flags),
          (stream, event, flags), "%p %p", (void *)stream, (void *)event)
