/* DESIGN
 *
 * Streams, events and launches through the driver API, and utilisation through NVML. What is
 * asserted is order and lower bounds that the model guarantees, never how fast a machine is.
 */
#include "sim_world.h"

static CUmodule module;

static CUfunction kernel(const char *name)
{
    CUfunction function;
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

static void launch(CUfunction function, CUstream stream)
{
    OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
}

static CUevent new_event(unsigned flags)
{
    CUevent event;
    OK(cuEventCreate(&event, flags));
    return event;
}

static void a_kernel_takes_the_time_its_name_says(void)
{
    static const struct {
        const char *name;
        float milliseconds;
    } cases[] = {{"spin_ms_3", 3.0F}, {"spin_us_2500", 2.5F}, {"spin_ns_4000000", 4.0F}, {"plain", 0.01F}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CUevent start = new_event(0), end = new_event(0);
        float elapsed = -1;
        OK(cuEventRecord(start, NULL));
        launch(kernel(cases[i].name), NULL);
        OK(cuEventRecord(end, NULL));
        OK(cuEventSynchronize(end));
        OK(cuEventElapsedTime(&elapsed, start, end));
        CHECK(elapsed >= cases[i].milliseconds);
        OK(cuEventDestroy_v2(start));
        OK(cuEventDestroy_v2(end));
    }
}

static void back_to_back_kernels_leave_no_gap(void)
{
    CUevent between = new_event(0), end = new_event(0);
    float elapsed;
    launch(kernel("spin_ms_100"), NULL); /* long enough for the next lines to be early */
    OK(cuEventRecord(between, NULL));
    launch(kernel("spin_ms_5"), NULL);
    OK(cuEventRecord(end, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuEventElapsedTime_v2(&elapsed, between, end));
    CHECK(elapsed > 4.999F && elapsed < 5.001F); /* model time, not the machine's */
}

static void a_stream_is_busy_until_it_is_waited_for(void)
{
    CUstream stream, other;
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamCreate(&other, 1));
    OK(cuStreamQuery(stream));
    OK(cuEventQuery(event)); /* never recorded: nothing to wait for */
    launch(kernel("spin_ms_3600000"), stream);
    OK(cuEventRecord(event, stream));
    IS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    IS(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    OK(cuStreamQuery(other));
    OK(cuStreamWaitEvent(other, event, 0));
    IS(cuStreamQuery(other), CUDA_ERROR_NOT_READY);
    OK(cuStreamDestroy_v2(stream));
    IS(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
}

static CUstream watched;
static int called;

static void look(void *data)
{
    OK(cuStreamQuery(watched));
    called += *(int *)data;
}

static void a_host_function_runs_after_the_work_before_it(void)
{
    int one = 1;
    OK(cuStreamCreate(&watched, 0));
    launch(kernel("spin_ms_4"), watched);
    OK(cuLaunchHostFunc(watched, look, &one));
    CHECK_EQ_U64(called, 1);
}

static void wrong_launches_are_refused(void)
{
    CUfunction function = kernel("spin_ms_1"), again = kernel("spin_ms_1");
    CUfunction none = NULL;
    CUmodule other;
    CHECK(function == again);
    IS(cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    IS(cuLaunchKernel(function, 1, 1, 1, 1025, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    IS(cuLaunchKernel(none, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
    OK(cuModuleLoadData(&other, "image"));
    OK(cuModuleGetFunction(&function, other, "x"));
    OK(cuModuleUnload(other));
    IS(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
}

static void the_other_launch_calls_reach_the_same_queue(void)
{
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, NULL, NULL, 0};
    CUevent start = new_event(0), end = new_event(0);
    float elapsed;
    CUlibrary library;
    CUkernel from_library;
    OK(cuLibraryLoadData(&library, "image", NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&from_library, library, "spin_ms_1"));
    OK(cuEventRecord(start, NULL));
    OK(cuLaunchKernelEx(&config, (CUfunction)from_library, NULL, NULL));
    OK(cuLaunchKernelEx_ptsz(&config, kernel("spin_ms_1"), NULL, NULL));
    OK(cuLaunchCooperativeKernel(kernel("spin_ms_1"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL));
    OK(cuEventRecord(end, NULL));
    OK(cuCtxSynchronize());
    OK(cuEventElapsedTime(&elapsed, start, end));
    CHECK(elapsed >= 3.0F);
}

static void a_busy_process_shows_in_nvml(void)
{
    nvmlDevice_t device;
    nvmlProcessUtilizationSample_t sample;
    nvmlUtilization_t rates;
    unsigned count = 1;
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    launch(kernel("spin_ms_400"), NULL); /* fills at least three periods of 100 ms */
    OK(cuCtxSynchronize());
    CHECK_EQ_U64(nvmlDeviceGetProcessUtilization(device, &sample, &count, 0), NVML_SUCCESS);
    CHECK_EQ_U64(count, 1);
    CHECK_EQ_U64(sample.pid, getpid());
    CHECK(sample.smUtil > 0 && sample.smUtil <= 100);
    CHECK_EQ_U64(nvmlDeviceGetProcessUtilization(device, &sample, &count, UINT64_MAX), NVML_ERROR_NOT_FOUND);
    CHECK_EQ_U64(nvmlDeviceGetUtilizationRates(device, &rates), NVML_SUCCESS);
    CHECK(rates.gpu <= 100);
    CHECK_EQ_U64(nvmlShutdown(), NVML_SUCCESS);
}

int main(void)
{
    world_write("driver kernel_us=10 sample_ms=100\ndevice memory_mib=1024\n");
    world_context(0);
    OK(cuModuleLoadData(&module, "image"));
    a_kernel_takes_the_time_its_name_says();
    back_to_back_kernels_leave_no_gap();
    a_host_function_runs_after_the_work_before_it();
    wrong_launches_are_refused();
    the_other_launch_calls_reach_the_same_queue();
    a_busy_process_shows_in_nvml();
    a_stream_is_busy_until_it_is_waited_for(); /* last: an hour stays queued */
    return 0;
}
