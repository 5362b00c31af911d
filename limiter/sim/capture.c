/* DESIGN
 *
 * Stream capture: between begin and end, launches on the stream become nodes of a graph and take
 * no time; a synchronisation of the stream breaks the capture, which end then reports. Capture
 * A capture in mode global forbids every thread what could wait (cuEventQuery here), one in mode
 * thread-local its own thread, unless the thread's own mode is relaxed; who does it ends the capture. Capture
 * of allocations, and of other streams through events, is not modelled.
 *
 * Source: CUDA driver API, Stream Management.
 */
#include "sim.h"

#include <sys/syscall.h>
#include <unistd.h>

static _Thread_local CUstreamCaptureMode thread_mode;
static CUstream captures; /* that are under way */

static int thread_id(void)
{
    return (int)syscall(SYS_gettid);
}

CUresult sim_refuse_unsafe(void)
{
    CUresult result = CUDA_SUCCESS;
    if (__atomic_load_n(&captures, __ATOMIC_RELAXED) == NULL || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return result;
    sim_lock();
    for (CUstream stream = captures; stream != NULL; stream = stream->next_capture) {
        bool ours = stream->thread == thread_id();
        if (stream->mode == CU_STREAM_CAPTURE_MODE_RELAXED || (stream->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && !ours))
            continue;
        stream->broken = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    sim_unlock();
    return result;
}

static void list_capture(CUstream stream, int mode)
{
    sim_lock();
    stream->mode = mode;
    stream->thread = thread_id();
    stream->next_capture = captures;
    __atomic_store_n(&captures, stream, __ATOMIC_RELAXED);
    sim_unlock();
}

static void unlist_capture(CUstream stream)
{
    sim_lock();
    for (CUstream *at = &captures; *at != NULL; at = &(*at)->next_capture) {
        if (*at != stream) continue;
        __atomic_store_n(at, stream->next_capture, __ATOMIC_RELAXED);
        break;
    }
    sim_unlock();
}

static CUresult begin(CUstream handle, int mode)
{
    CUstream stream;
    CUresult result = sim_stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    /* The legacy stream cannot capture. */
    if (stream == &stream->context->stream[0]) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture != NULL) return CUDA_ERROR_ILLEGAL_STATE;
    stream->capture = sim_graph_new();
    stream->broken = false;
    if (stream->capture == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    list_capture(stream, mode);
    return CUDA_SUCCESS;
}

static CUresult do_cuStreamBeginCapture(CUstream stream)
{
    return begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

SIM_TWINS(cuStreamBeginCapture, cuStreamBeginCapture_ptsz, (CUstream stream), (stream), "%p", (void *)stream)

static CUresult do_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    return (unsigned)mode > 2 ? CUDA_ERROR_INVALID_VALUE : begin(stream, (int)mode);
}

SIM_TWINS(cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz, (CUstream stream, CUstreamCaptureMode mode),
          (stream, mode), "%p %d", (void *)stream, (int)mode)

static CUresult do_cuStreamEndCapture(CUstream handle, CUgraph *out)
{
    CUstream stream;
    CUresult result = sim_stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (out == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture == NULL) return CUDA_ERROR_ILLEGAL_STATE;
    unlist_capture(stream);
    *out = stream->broken ? NULL : stream->capture;
    if (stream->broken) {
        sim_lock();
        sim_graph_drop(stream->capture);
        sim_unlock();
    }
    stream->capture = NULL;
    return stream->broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

SIM_TWINS(cuStreamEndCapture, cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *out), (stream, out), "%p",
          (void *)stream)

static CUstreamCaptureStatus status_of(CUstream stream)
{
    if (stream->capture == NULL) return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream->broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static CUresult capture_status(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph)
{
    CUstream stream;
    CUresult result = sim_stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (status == NULL) return CUDA_ERROR_INVALID_VALUE;
    *status = status_of(stream);
    if (id != NULL) *id = (cuuint64_t)(uintptr_t)stream->capture;
    if (graph != NULL) *graph = stream->capture;
    return CUDA_SUCCESS;
}

static CUresult do_cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    return capture_status(stream, status, NULL, NULL);
}

SIM_TWINS(cuStreamIsCapturing, cuStreamIsCapturing_ptsz, (CUstream stream, CUstreamCaptureStatus *status),
          (stream, status), "%p", (void *)stream)

static CUresult do_cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
    return capture_status(stream, status, id, NULL);
}

SIM_TWINS(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz,
          (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id), (stream, status, id), "%p",
          (void *)stream)

static CUresult do_cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                             CUgraph *graph, const CUgraphNode **nodes, size_t *count)
{
    if (nodes != NULL) *nodes = NULL;
    if (count != NULL) *count = 0;
    return capture_status(stream, status, id, graph);
}

SIM_TWINS(cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz,
          (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
           const CUgraphNode **nodes, size_t *count),
          (stream, status, id, graph, nodes, count), "%p", (void *)stream)

static CUresult do_cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                             CUgraph *graph, const CUgraphNode **nodes,
                                             const CUgraphEdgeData **edges, size_t *count)
{
    if (edges != NULL) *edges = NULL;
    return do_cuStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
}

SIM_TWINS(cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz,
          (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
           const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count),
          (stream, status, id, graph, nodes, edges, count), "%p", (void *)stream)

SIM_API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    SIM_CALL("%s", "");
    if (mode == NULL || (unsigned)*mode > 2) return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
