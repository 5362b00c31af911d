/* DESIGN
 *
 * Launches as a card of some size takes them: waves of blocks, cooperative launches that must fit, the calls of CUDA 2.0,
 * several devices at once; and what a capture forbids. Times are the model's own (between two events), never the
 * machine's.
 */
#include "sim_world.h"

#include <pthread.h>

static CUmodule module;

static CUfunction kernel(const char *name)
{
    CUfunction function;
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

/* Microseconds of model time that a launch takes behind work that lasts long enough. */
static uint64_t time_of(CUfunction function, unsigned blocks, unsigned threads)
{
    CUevent start;
    CUevent end;
    float milliseconds;
    OK(cuEventCreate(&start, 0));
    OK(cuEventCreate(&end, 0));
    OK(cuLaunchKernel(kernel("head_ms_40"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuEventRecord(start, NULL));
    OK(cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, NULL, NULL, NULL));
    OK(cuEventRecord(end, NULL));
    OK(cuEventSynchronize(end));
    OK(cuEventElapsedTime(&milliseconds, start, end));
    OK(cuEventDestroy_v2(start));
    OK(cuEventDestroy_v2(end));
    return (uint64_t)((double)milliseconds * 1000 + 0.5);
}

/* 20 SMs: 8 blocks of 256 threads on each are 160 at once, 2 of 1024 are 40, and never more than 32 on one. */
static void a_grid_takes_as_many_waves_as_it_fills(void)
{
    CUfunction f = kernel("k_block_us_300");
    CHECK_EQ_U64(time_of(f, 1, 256), 300);
    CHECK_EQ_U64(time_of(f, 160, 256), 300);
    CHECK_EQ_U64(time_of(f, 161, 256), 600);
    CHECK_EQ_U64(time_of(f, 40, 1024), 300);
    CHECK_EQ_U64(time_of(f, 41, 1024), 600);
    CHECK_EQ_U64(time_of(f, 640, 1), 300);
    CHECK_EQ_U64(time_of(f, 641, 1), 600);
    CHECK_EQ_U64(time_of(kernel("k_us_300"), 5000, 1024), 300); /* others do not look at their grid */
}

static void cooperative_blocks_must_all_fit(void)
{
    CUfunction f = kernel("k_block_us_10");
    OK(cuLaunchCooperativeKernel(f, 160, 1, 1, 256, 1, 1, 0, NULL, NULL));
    IS(cuLaunchCooperativeKernel(f, 161, 1, 1, 256, 1, 1, 0, NULL, NULL), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    IS(cuLaunchCooperativeKernel(f, 0, 1, 1, 256, 1, 1, 0, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    CUDA_LAUNCH_PARAMS list[2] = {{.function = f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL},
                                  {.function = f, 641, 1, 1, 32, 1, 1, 0, NULL, NULL}};
    OK(cuLaunchCooperativeKernelMultiDevice(list, 1, 0));
    IS(cuLaunchCooperativeKernelMultiDevice(list, 2, 0), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    IS(cuLaunchCooperativeKernelMultiDevice(list, 0, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxSynchronize());
}

static void the_oldest_calls_keep_their_blocks_in_the_function(void)
{
    CUfunction f = kernel("old_us_5");
    OK(cuFuncSetBlockShape(f, 16, 16, 1));
    OK(cuLaunch(f));
    OK(cuLaunchGrid(f, 3, 4));
    OK(cuLaunchGridAsync(f, 3, 4, NULL));
    IS(cuFuncSetBlockShape(f, 64, 64, 1), CUDA_ERROR_INVALID_VALUE);
    IS(cuLaunchGrid(f, 0, 4), CUDA_ERROR_INVALID_VALUE);
    IS(cuLaunch(NULL), CUDA_ERROR_INVALID_HANDLE);
    OK(cuCtxSynchronize());
}

static CUevent event;
static CUresult answer;

static void *query(void *relaxed)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (relaxed != NULL) OK(cuThreadExchangeStreamCaptureMode(&mode));
    answer = cuEventQuery(event);
    return NULL;
}

/* What a query does to a capture, in its own thread (other false) or another one, in mode relaxed or as it is. */
static void check_query(CUstreamCaptureMode mode, bool other, bool relaxed, CUresult end)
{
    CUstream stream;
    CUgraph graph;
    pthread_t thread;
    CUstreamCaptureMode before = CU_STREAM_CAPTURE_MODE_RELAXED;
    OK(cuStreamCreate(&stream, 1));
    OK(cuStreamBeginCapture_v2(stream, mode));
    if (other) {
        CHECK(pthread_create(&thread, NULL, query, relaxed ? &thread : NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    } else {
        if (relaxed) OK(cuThreadExchangeStreamCaptureMode(&before));
        answer = cuEventQuery(event);
        if (relaxed) OK(cuThreadExchangeStreamCaptureMode(&before));
    }
    IS(answer, end == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    IS(cuStreamEndCapture(stream, &graph), end);
    if (graph != NULL) OK(cuGraphDestroy(graph));
    OK(cuEventQuery(event)); /* and nothing is left of it */
}

static void a_query_ends_the_captures_that_forbid_it(void)
{
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    check_query(CU_STREAM_CAPTURE_MODE_GLOBAL, false, false, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    check_query(CU_STREAM_CAPTURE_MODE_GLOBAL, true, false, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    check_query(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false, false, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    check_query(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, true, false, CUDA_SUCCESS);
    check_query(CU_STREAM_CAPTURE_MODE_RELAXED, false, false, CUDA_SUCCESS);
    check_query(CU_STREAM_CAPTURE_MODE_GLOBAL, false, true, CUDA_SUCCESS);
    check_query(CU_STREAM_CAPTURE_MODE_GLOBAL, true, true, CUDA_SUCCESS);
}

int main(void)
{
    world_write("driver kernel_us=10\ndevice memory_mib=1024 sms=20\n");
    world_context(0);
    OK(cuModuleLoadData(&module, "image"));
    a_grid_takes_as_many_waves_as_it_fills();
    cooperative_blocks_must_all_fit();
    the_oldest_calls_keep_their_blocks_in_the_function();
    a_query_ends_the_captures_that_forbid_it();
    return 0;
}
