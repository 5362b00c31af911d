/* DESIGN
 *
 * Which calls are held to a compute limit, what a launch leaves behind, and that nothing of it shows to the program: no
 * capture is spoilt, no error is another one, no launch waits beyond its bound. Without an agent; where time matters, in
 * virtual time.
 */
#include <pthread.h>

#include "virtual_time.h"

#include "limiter_world.h"

#define MS UINT64_C(1000000)

static uint64_t case_number;
static CUmodule module;
static CUstream stream;

static CUfunction kernel(const char *name)
{
    CUfunction function;
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

static void set_up(void)
{
    world_context(0);
    OK(cuModuleLoadData(&module, "image"));
    OK(cuStreamCreate(&stream, 1));
}

static const struct tessera_device_usage *usage(uint32_t device)
{
    return &the_region()->usage.device[device];
}

static void launch(CUfunction function, CUstream on)
{
    OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, on, NULL, NULL));
}

/* Device time charged to device 0 since the last call. */
static int64_t newly_charged(void)
{
    static int64_t before;
    int64_t now = usage(0)->spent_ns;
    int64_t charged_now = now - before;
    before = now;
    return charged_now;
}

static CUgraphExec a_graph(CUfunction function)
{
    CUgraph graph;
    CUgraphExec exec;
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch(function, stream);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

/* -- what is held -------------------------------------------------------------------------------------------------- */

#define CHARGES(call)                                                          \
    do {                                                                       \
        OK(call);                                                              \
        if (newly_charged() <= 0) CHECK_FAIL("%s was not charged", #call);     \
    } while (0)

#define CHARGES_NOTHING(call)                                                  \
    do {                                                                       \
        OK(call);                                                              \
        if (newly_charged() != 0) CHECK_FAIL("%s was charged", #call);         \
    } while (0)

static void every_way_to_launch_is_charged(void)
{
    set_up();
    CUfunction f = kernel("k_us_10");
    CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, stream, NULL, 0};
    CUDA_LAUNCH_PARAMS one = {.function = f, 1, 1, 1, 32, 1, 1, 0, stream, NULL};
    CUgraphExec exec = a_graph(f);
    newly_charged();
    CHARGES(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    CHARGES(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    CHARGES(cuLaunchKernel_ptsz(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    CHARGES(cuLaunchKernelEx(&config, f, NULL, NULL));
    CHARGES(cuLaunchKernelEx_ptsz(&config, f, NULL, NULL));
    CHARGES(cuLaunchCooperativeKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, NULL));
    CHARGES(cuLaunchCooperativeKernel_ptsz(f, 1, 1, 1, 32, 1, 1, 0, stream, NULL));
    CHARGES(cuLaunchCooperativeKernelMultiDevice(&one, 1, 0));
    CHARGES(cuLaunch(f));
    CHARGES(cuLaunchGrid(f, 2, 2));
    CHARGES(cuLaunchGridAsync(f, 2, 2, stream));
    CHARGES(cuGraphLaunch(exec, stream));
    CHARGES(cuGraphLaunch_ptsz(exec, stream));
}

static void called(void *data)
{
    ++*(int *)data;
}

static void captures_copies_and_host_functions_are_not(void)
{
    CUdeviceptr memory;
    CUgraph graph;
    int calls = 0;
    char host[64] = {0};
    set_up();
    OK(cuMemAlloc_v2(&memory, 4096));
    newly_charged();
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHARGES_NOTHING(cuLaunchKernel(kernel("k_ms_1"), 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    OK(cuStreamEndCapture(stream, &graph));
    CHARGES_NOTHING(cuLaunchHostFunc(stream, called, &calls));
    CHARGES_NOTHING(cuMemcpyHtoD_v2(memory, host, sizeof host));
    CHARGES_NOTHING(cuMemsetD8_v2(memory, 0, sizeof host));
    CHECK_EQ_U64(calls, 1);
}

/* Card 1 has no limit in these cases. */
static void a_limit_holds_on_its_own_device_only(void)
{
    CUcontext other;
    CUmodule code;
    CUfunction function;
    set_up();
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuCtxPushCurrent_v2(other));
    OK(cuModuleLoadData(&code, "image"));
    OK(cuModuleGetFunction(&function, code, "k_ms_1"));
    for (int i = 0; i < 100; i++) launch(function, NULL);
    CHECK_EQ_U64(usage(1)->spent_ns, 0);
    CHECK_EQ_U64(usage(0)->spent_ns, 0);
    launch(function, stream); /* a stream says which device is meant, not the current context */
    CHECK(usage(0)->spent_ns > 0);
}

/* Virtual time from here on; each case begins after all that the machine has seen. */
static void leave_real_time(void)
{
    static const uint64_t hour_ns = UINT64_C(3600000000000);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    time_begin((uint64_t)now.tv_sec * 1000 * MS + case_number * hour_ns);
}

/* -- what stays behind --------------------------------------------------------------------------------------------- */

static uint64_t booked_ns(uint32_t slot)
{
    return (uint64_t)the_region()->slot[slot].booked[0] * TESSERA_BOOKED_NS;
}

/* What was launched after the last measurement on a stream is not known to be complete, up to a millisecond of it. */
static const uint64_t tail_ns = MS + TESSERA_BOOKED_NS;

static void what_the_driver_refuses_is_given_back(void)
{
    set_up();
    CUfunction f = kernel("k_us_10");
    int64_t before;
    launch(f, stream);
    OK(cuStreamSynchronize(stream));
    before = usage(0)->granted_ns - usage(0)->spent_ns;
    IS(cuLaunchKernel(f, 0, 1, 1, 32, 1, 1, 0, stream, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    IS(cuLaunchKernel(NULL, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
    IS(cuLaunchKernelEx(NULL, f, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    IS(cuLaunchCooperativeKernelMultiDevice(NULL, 1, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuLaunchGrid(f, -1, 3), CUDA_ERROR_INVALID_VALUE);
    IS(cuLaunchCooperativeKernel(f, 100000, 1, 1, 1024, 1, 1, 0, stream, NULL), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    CHECK(usage(0)->granted_ns - usage(0)->spent_ns >= before);
    CHECK(booked_ns(0) <= tail_ns);
}

static void finished_work_is_not_booked_any_more(void)
{
    leave_real_time();
    set_up();
    CUfunction f = kernel("k_ms_2");
    for (int i = 0; i < 5; i++) launch(f, stream);
    CHECK(booked_ns(0) > 0);
    OK(cuStreamSynchronize(stream));
    CHECK_EQ_U64(booked_ns(0), 0); /* each of them is measured */
    CHECK_EQ_U64(usage(0)->finished_ns / MS, 10); /* five of two milliseconds, as measured */
    CHECK(usage(0)->longest_ns >= 2 * MS);
}

static void a_child_of_fork_begins_with_empty_books(void)
{
    int status;
    set_up();
    launch(kernel("k_ms_2"), stream);
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        set_up();
        for (int i = 0; i < 50; i++) launch(kernel("k_us_300"), stream);
        OK(cuStreamSynchronize(stream));
        CHECK(booked_ns(1) <= tail_ns);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(cuStreamSynchronize(stream));
}

/* -- nothing shows ------------------------------------------------------------------------------------------------- */

/* A capture in mode global forbids queries of events to all threads, ours included. */
static void measuring_spoils_no_capture(void)
{
    CUstream other;
    CUgraph graph;
    set_up();
    OK(cuStreamCreate(&other, 1));
    CUfunction f = kernel("k_us_50");
    launch(f, other); /* a measurement is under way when the capture begins */
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < 200; i++) {
        launch(f, stream);
        launch(f, other);
    }
    OK(cuStreamEndCapture(stream, &graph));
    CHECK(graph != NULL);
}

static void contexts_may_end_with_measurements_under_way(void)
{
    for (int round = 0; round < 30; round++) {
        CUcontext context;
        CUmodule code;
        CUfunction function;
        OK(cuInit(0));
        OK(cuCtxCreate_v2(&context, 0, 0));
        OK(cuModuleLoadData(&code, "image"));
        OK(cuModuleGetFunction(&function, code, "k_us_20"));
        for (int i = 0; i < 10; i++) launch(function, NULL);
        OK(cuCtxDestroy_v2(context));
    }
    set_up();
    for (int i = 0; i < 100; i++) launch(kernel("k_us_20"), stream);
    OK(cuStreamSynchronize(stream));
    CHECK(booked_ns(0) <= tail_ns);
}

static void *launch_and_destroy(void *unused)
{
    (void)unused;
    for (int round = 0; round < 5; round++) {
        CUcontext context;
        CUmodule code;
        CUfunction function;
        CUstream own;
        OK(cuCtxCreate_v2(&context, 0, 0));
        OK(cuStreamCreate(&own, 1));
        OK(cuModuleLoadData(&code, "image"));
        OK(cuModuleGetFunction(&function, code, "k_us_5"));
        for (int i = 0; i < 200; i++) launch(function, i % 2 == 0 ? own : NULL);
        OK(cuStreamSynchronize(own));
        OK(cuCtxDestroy_v2(context));
    }
    return NULL;
}

static void threads_launch_at_once(void)
{
    pthread_t threads[4];
    OK(cuInit(0));
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, launch_and_destroy, NULL) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(booked_ns(0) <= tail_ns);
    CHECK(usage(0)->finished_ns > 0);
}

/* Kernels that wait for one another, and one that never ends: every launch goes within its bound. */
static void no_launch_waits_beyond_its_bound(void)
{
    leave_real_time();
    set_up();
    CUfunction endless = kernel("k_ms_3600000");
    for (int i = 0; i < 5; i++) {
        CUstream own;
        OK(cuStreamCreate(&own, 1));
        uint64_t from_ns = time_now();
        launch(endless, own);
        CHECK(time_now() - from_ns <= 300 * MS);
    }
    for (int i = 0; i < 5; i++) {
        uint64_t from_ns = time_now();
        launch(kernel("other_ms_1"), stream);
        CHECK(time_now() - from_ns <= 300 * MS);
    }
}

static void many_streams_and_kernels_find_room(void)
{
    CUstream streams[200];
    char name[32];
    leave_real_time();
    set_up();
    for (int i = 0; i < 200; i++) OK(cuStreamCreate(&streams[i], 1));
    uint64_t from_ns = time_now();
    for (int i = 0; i < 6000; i++) {
        snprintf(name, sizeof name, "k%d_us_4", i % 3000);
        launch(kernel(name), streams[i % 200]);
    }
    for (int i = 0; i < 200; i++) OK(cuStreamSynchronize(streams[i]));
    CHECK(usage(0)->finished_ns >= 20 * MS); /* 6,000 of 4 us, most of them at the charge of unknown ones */
    CHECK(time_now() - from_ns < 5000 * MS);
}

static void with_limit(const char *name, void (*body)(void), uint32_t milli)
{
    struct tessera_share_spec spec = a_share(TESSERA_UNLIMITED, TESSERA_UNLIMITED);
    int status;
    spec.device[0].compute_limit_milli = milli;
    case_number++;
    grant(&spec);
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        body();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) CHECK_FAIL("case %s failed with status %#x", name, status);
}

#define LIMITED(body, milli) with_limit(#body, body, milli)

int main(void)
{
    LIMITED(every_way_to_launch_is_charged, 900);
    LIMITED(captures_copies_and_host_functions_are_not, 900);
    LIMITED(a_limit_holds_on_its_own_device_only, 900);
    LIMITED(what_the_driver_refuses_is_given_back, 900);
    LIMITED(a_child_of_fork_begins_with_empty_books, 900);
    LIMITED(measuring_spoils_no_capture, 900);
    LIMITED(contexts_may_end_with_measurements_under_way, 900);
    LIMITED(threads_launch_at_once, 900);
    /* In virtual time, which begins after the real one: these come last. */
    LIMITED(finished_work_is_not_booked_any_more, 900);
    LIMITED(no_launch_waits_beyond_its_bound, 500);
    LIMITED(many_streams_and_kernels_find_room, 900);
    return 0;
}
