/* DESIGN
 *
 * Memory that no call shows. The simulated card takes 300 MiB for the first context of a process; code and heaps take
 * what a test chooses. What the books say must be what the host's NVML says, to the byte.
 */
#include <pthread.h>
#include <time.h>

#include "limiter_world.h"

static const char heavy_text[] = "driver version=13.0 context_mib=300\n"
                                 "device uuid=" CARD_0 " memory_mib=81920 pci=0000:07:00.0\n"
                                 "device uuid=" CARD_1 " memory_mib=81920 pci=0000:0b:00.0\n";

static const CUdeviceptr UNTOUCHED = 0x1234;

static CUdeviceptr allocated(size_t bytes)
{
    CUdeviceptr pointer = UNTOUCHED;
    OK(cuMemAlloc_v2(&pointer, bytes));
    return pointer;
}

static void refused(size_t bytes)
{
    CUdeviceptr pointer = UNTOUCHED;
    IS(cuMemAlloc_v2(&pointer, bytes), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(pointer, UNTOUCHED);
}

/* What the host sees on the first card, without a context of ours. */
static uint64_t seen_by_the_host(void)
{
    nvmlDevice_t card;
    nvmlMemory_t memory;
    CHECK_EQ_U64(REAL_NVML(nvmlInit_v2)(), NVML_SUCCESS);
    CHECK_EQ_U64(REAL_NVML(nvmlDeviceGetHandleByUUID)(CARD_0, &card), NVML_SUCCESS);
    CHECK_EQ_U64(REAL_NVML(nvmlDeviceGetMemoryInfo)(card, &memory), NVML_SUCCESS);
    return memory.used;
}

static void a_context_is_charged_what_it_takes(void)
{
    size_t free_bytes;
    size_t total;
    world_context(0);
    CHECK_EQ_U64(charged(0), 300 * MIB);
    CHECK_EQ_U64(the_region()->slot[0].device[0].hidden_granules, 300 * MIB / 512);
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    CHECK_EQ_U64(total, GIB);
    CHECK_EQ_U64(free_bytes, 724 * MIB);
    refused(724 * MIB + 1);
    allocated(724 * MIB);
    CHECK_EQ_U64(seen_by_the_host(), GIB); /* the limit, to the byte */
}

static void a_context_that_does_not_fit_is_refused_and_leaves_nothing(void)
{
    CUcontext context = (CUcontext)0x10;
    CUcontext current;
    OK(cuInit(0));
    IS(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_OUT_OF_MEMORY);
    IS(cuCtxCreate_v2(&context, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    IS(cuCtxCreate_v3(&context, NULL, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    IS(cuCtxCreate_v4(&context, NULL, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(context == (CUcontext)0x10);
    OK(cuCtxGetCurrent(&current));
    CHECK(current == NULL);
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(seen_by_the_host(), 0);
    CHECK_EQ_U64(the_region()->usage.device[0].refused_count, 4);
    IS(cuDevicePrimaryCtxRetain(NULL, 0), REAL(cuDevicePrimaryCtxRetain)(NULL, 0));
    IS(cuDevicePrimaryCtxRetain(&context, 99), REAL(cuDevicePrimaryCtxRetain)(&context, 99));
    IS(cuCtxCreate_v2(NULL, 0, 0), REAL(cuCtxCreate_v2)(NULL, 0, 0));
    IS(cuCtxCreate_v2(&context, 0, 99), REAL(cuCtxCreate_v2)(&context, 0, 99));
}

static void the_last_context_gives_back_what_the_first_took(void)
{
    CUcontext one;
    CUcontext two;
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&one, 0, 0));
    OK(cuCtxCreate_v2(&two, 0, 0));
    CHECK_EQ_U64(charged(0), 300 * MIB);
    allocated(MIB);
    OK(cuCtxDestroy_v2(two));
    CHECK_EQ_U64(charged(0), 300 * MIB);
    OK(cuCtxDestroy_v2(one));
    CHECK_EQ_U64(charged(0), 0);
    world_context(0);
    CHECK_EQ_U64(charged(0), 300 * MIB);
    OK(cuDevicePrimaryCtxReset_v2(0));
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(seen_by_the_host(), 0);
}

static void a_context_on_the_other_card_is_charged_there(void)
{
    world_context(1);
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(charged(1), 300 * MIB);
}

static void loaded_code_is_charged_and_unloaded_code_given_back(void)
{
    CUmodule module;
    world_context(0);
    OK(cuModuleLoadData(&module, "code_mib=100"));
    CHECK_EQ_U64(charged(0), 400 * MIB);
    OK(cuModuleUnload(module));
    allocated(724 * MIB);
    CHECK_EQ_U64(seen_by_the_host(), GIB);
}

static void code_that_does_not_fit_is_unloaded_and_refused(void)
{
    CUmodule module = (CUmodule)0x10;
    CUlibrary library = (CUlibrary)0x10;
    world_context(0);
    allocated(700 * MIB);
    IS(cuModuleLoad(&module, "code_mib=25"), CUDA_ERROR_OUT_OF_MEMORY);
    IS(cuModuleLoadData(&module, "code_mib=25"), CUDA_ERROR_OUT_OF_MEMORY);
    IS(cuModuleLoadDataEx(&module, "code_mib=25", 0, NULL, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    IS(cuModuleLoadFatBinary(&module, "code_mib=25"), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(module == (CUmodule)0x10);
    CHECK_EQ_U64(seen_by_the_host(), 1000 * MIB);
    OK(cuModuleLoadData(&module, "code_mib=24"));
    CHECK_EQ_U64(charged(0), GIB);
    OK(cuLibraryLoadData(&library, "code_mib=1", NULL, NULL, 0, NULL, NULL, 0)); /* nothing yet: lazy */
    IS(cuModuleLoadData(NULL, "image"), REAL(cuModuleLoadData)(NULL, "image"));
    IS(cuModuleLoadData(&module, NULL), REAL(cuModuleLoadData)(&module, NULL));
}

static void code_that_is_loaded_lazily_is_charged_before_the_next_allocation(void)
{
    CUlibrary library;
    CUkernel kernel;
    CUdeviceptr pointer;
    size_t free_bytes;
    size_t total;
    world_context(0);
    OK(cuLibraryLoadData(&library, "code_mib=500", NULL, NULL, 0, NULL, NULL, 0));
    CHECK_EQ_U64(charged(0), 300 * MIB);
    OK(cuLibraryGetKernel(&kernel, library, "kernel"));
    refused(224 * MIB + 1);
    CHECK_EQ_U64(charged(0), 800 * MIB);
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    CHECK_EQ_U64(free_bytes, 224 * MIB);
    OK(cuLibraryUnload(library));
    OK(cuMemAllocAsync(&pointer, 700 * MIB, NULL));
    CHECK_EQ_U64(charged(0), 1004 * MIB); /* 22 chunks of 32 */
}

static void code_that_cannot_be_taken_back_leaves_nothing_for_others(void)
{
    CUlibrary library;
    CUkernel kernel;
    size_t free_bytes;
    size_t total;
    world_context(0);
    allocated(724 * MIB);
    OK(cuLibraryLoadData(&library, "code_mib=100", NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "kernel"));
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    CHECK_EQ_U64(free_bytes, 0);
    CHECK_EQ_U64(total, GIB);
    CHECK_EQ_U64(charged(0), 1124 * MIB); /* known, and seen by the agent */
    refused(1);
}

static void a_heap_is_charged_when_it_is_set_and_refused_when_it_does_not_fit(void)
{
    size_t value;
    world_context(0);
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 108 * MIB)); /* 8 MiB are there anyway */
    CHECK_EQ_U64(charged(0), 400 * MIB);
    IS(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, GIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuCtxGetLimit(&value, CU_LIMIT_MALLOC_HEAP_SIZE));
    CHECK_EQ_U64(value, 108 * MIB);
    CHECK_EQ_U64(charged(0), 400 * MIB);
    /* A stack of 2 KiB: 1 KiB more for each of 2,048 threads on each of 108 multiprocessors. */
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
    CHECK_EQ_U64(charged(0), 400 * MIB + 108ULL * 2048 * 1024);
    CHECK_EQ_U64(seen_by_the_host(), charged(0));
    IS(cuCtxSetLimit((CUlimit)99, 1), REAL(cuCtxSetLimit)((CUlimit)99, 1));
}

static void managed_memory_is_counted_once_wherever_it_is(void)
{
    CUdeviceptr pointer;
    CUmodule module;
    world_context(0);
    OK(cuMemAllocManaged(&pointer, 200 * MIB, CU_MEM_ATTACH_GLOBAL));
    CHECK_EQ_U64(charged(0), 500 * MIB);
    OK(cuModuleLoadData(&module, "image")); /* a reason to measure */
    CHECK_EQ_U64(charged(0), 500 * MIB);
    OK(cuMemPrefetchAsync(pointer, 200 * MIB, 0, NULL));
    CHECK_EQ_U64(seen_by_the_host(), 500 * MIB);
    OK(cuModuleLoadData(&module, "image"));
    CHECK_EQ_U64(charged(0), 500 * MIB);
    OK(cuMemFree_v2(pointer));
    CHECK_EQ_U64(charged(0), 300 * MIB);
}

static void hold_a_context(int in, int out)
{
    CUcontext context;
    OK(cuInit(0));
    tell(out, cuDevicePrimaryCtxRetain(&context, 0));
    hear(in);
}

static void contexts_of_all_processes_count_and_the_dead_give_theirs_back(void)
{
    struct child one = child_start(hold_a_context);
    struct child two = child_start(hold_a_context);
    CHECK_EQ_U64(hear(one.from), CUDA_SUCCESS);
    CHECK_EQ_U64(hear(two.from), CUDA_SUCCESS);
    CHECK_EQ_U64(charged(0), 600 * MIB);
    struct child three = child_start(hold_a_context);
    CHECK_EQ_U64(hear(three.from), CUDA_ERROR_OUT_OF_MEMORY);
    child_end(&one, SIGKILL);
    struct child four = child_start(hold_a_context);
    CHECK_EQ_U64(hear(four.from), CUDA_SUCCESS);
    CHECK_EQ_U64(charged(0), 600 * MIB);
    child_end(&two, 0);
    child_end(&three, 0);
    child_end(&four, 0);
}

static void what_the_host_found_beyond_the_books_narrows_the_limit(void)
{
    size_t free_bytes;
    size_t total;
    nvmlDevice_t card;
    nvmlMemory_t memory;
    world_context(0);
    CHECK_EQ_U64(tessera_region_set_unseen(the_region(), 0, 100 * MIB), TESSERA_ERROR_OK);
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    CHECK_EQ_U64(free_bytes, 624 * MIB);
    CHECK_EQ_U64(total, GIB);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(nvmlDeviceGetHandleByUUID(CARD_0, &card), NVML_SUCCESS);
    CHECK_EQ_U64(nvmlDeviceGetMemoryInfo(card, &memory), NVML_SUCCESS);
    CHECK_EQ_U64(memory.used, 400 * MIB);
    refused(624 * MIB + 1);
    CUdeviceptr pointer = allocated(624 * MIB);
    CHECK_EQ_U64(tessera_region_set_unseen(the_region(), 0, 2 * GIB), TESSERA_ERROR_OK);
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    CHECK_EQ_U64(free_bytes, 0);
    OK(cuMemFree_v2(pointer));
    refused(1);
    CHECK_EQ_U64(tessera_region_set_unseen(the_region(), 0, 0), TESSERA_ERROR_OK);
    allocated(724 * MIB);
    IS(tessera_region_set_unseen(the_region(), 2, 0), TESSERA_ERROR_ARGUMENT);
}

static void without_a_measurement_a_context_costs_what_was_configured(void)
{
    CUcontext context;
    CHECK(setenv("TESSERA_SIM_FAIL", "nvmlInit_v2:1+:9", 1) == 0);
    CHECK_EQ_U64(tessera_region_set_context_bytes(the_region(), 0, 256 * MIB), TESSERA_ERROR_OK);
    world_context(0);
    CHECK_EQ_U64(charged(0), 256 * MIB);
    OK(cuCtxCreate_v2(&context, 0, 0));
    CHECK_EQ_U64(charged(0), 256 * MIB);
    OK(cuCtxDestroy_v2(context));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    CHECK_EQ_U64(charged(0), 0);
}

/* -- a driver that lists processes by the host's numbers ---------------------------------------------------------- */

/* The card as heavy_text has it, with every process listed by a number that is larger by `shift`. */
static void shifted_by(pid_t shift)
{
    char text[512];
    snprintf(text, sizeof text, "driver version=13.0 context_mib=300 pid_shift=%d\n%s", (int)shift,
             strchr(heavy_text, '\n') + 1);
    world_write(text);
}

/* A neighbour outside of the share, with 300 MiB and 500 more on the card while it is told nothing. */
static void hold_past_the_library(int in, int out)
{
    CUdeviceptr pointer;
    CHECK_EQ_U64(hear(in), 1);
    hidden_context(0);
    OK(REAL(cuMemAlloc_v2)(&pointer, 500 * MIB));
    tell(out, 1);
    hear(in);
}

/* 400 MiB fit beside the 100 that its context is taken for where nothing can be measured. */
static void use_a_share_of_500(int in, int out)
{
    CUmodule module;
    hear(in);
    world_context(0);
    refused(400 * MIB + 1);
    allocated(400 * MIB);
    tell(out, charged(0));
    while (hear(in) != 0) {
        OK(cuModuleLoadData(&module, "image")); /* measures again */
        tell(out, charged(0));
    }
}

static void a_number_that_is_there_before_the_first_context_is_somebody_elses(void)
{
    struct child neighbour = child_start(hold_past_the_library);
    struct child tenant = child_start(use_a_share_of_500);
    shifted_by(tenant.pid - neighbour.pid); /* so the neighbour is listed by the tenant's number */
    CHECK_EQ_U64(tessera_region_set_context_bytes(the_region(), 0, 100 * MIB), TESSERA_ERROR_OK);
    tell(neighbour.to, 1);
    CHECK_EQ_U64(hear(neighbour.from), 1);
    tell(tenant.to, 1);
    CHECK_EQ_U64(hear(tenant.from), 500 * MIB);
    tell(tenant.to, 1);
    CHECK_EQ_U64(hear(tenant.from), 500 * MIB);
    child_end(&tenant, 0);
    child_end(&neighbour, 0);
}

static void a_number_that_comes_long_after_the_first_context_is_somebody_elses(void)
{
    struct child neighbour = child_start(hold_past_the_library);
    struct child tenant = child_start(use_a_share_of_500);
    const struct timespec longer_than_any_lag = {.tv_nsec = 600 * 1000 * 1000};
    shifted_by(tenant.pid - neighbour.pid);
    CHECK_EQ_U64(tessera_region_set_context_bytes(the_region(), 0, 100 * MIB), TESSERA_ERROR_OK);
    tell(tenant.to, 1);
    CHECK_EQ_U64(hear(tenant.from), 500 * MIB); /* nobody is listed by its number, though it has a context */
    CHECK(nanosleep(&longer_than_any_lag, NULL) == 0);
    tell(tenant.to, 1);
    CHECK_EQ_U64(hear(tenant.from), 500 * MIB);
    tell(neighbour.to, 1);
    CHECK_EQ_U64(hear(neighbour.from), 1);
    tell(tenant.to, 1);
    CHECK_EQ_U64(hear(tenant.from), 500 * MIB);
    child_end(&tenant, 0);
    child_end(&neighbour, 0);
}

enum { THREADS = 4, TURNS = 200 };

static pthread_barrier_t together;

static void *make_a_context(void *unused)
{
    CUcontext context;
    pthread_barrier_wait(&together);
    OK(cuCtxCreate_v2(&context, 0, 0));
    return unused;
}

static void threads_that_make_the_first_contexts_at_once_are_measured(void)
{
    pthread_t threads[THREADS];
    CUmodule module;
    OK(cuInit(0));
    CHECK(pthread_barrier_init(&together, NULL, THREADS) == 0);
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, make_a_context, NULL) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    world_context(0);
    OK(cuModuleLoadData(&module, "code_mib=8"));
    CHECK_EQ_U64(charged(0), seen_by_the_host());
}

static void *load_and_unload(void *unused)
{
    CUmodule module;
    CUcontext context;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < TURNS; i++) {
        OK(cuModuleLoadData(&module, "code_mib=8"));
        CUdeviceptr pointer = allocated(MIB);
        OK(cuModuleUnload(module));
        OK(cuMemFree_v2(pointer));
    }
    OK(cuDevicePrimaryCtxRelease_v2(0));
    return unused;
}

static void threads_that_load_at_once_lose_nothing(void)
{
    pthread_t threads[THREADS];
    world_context(0);
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, load_and_unload, NULL) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    allocated(724 * MIB);
    CHECK_EQ_U64(charged(0), GIB);
    CHECK_EQ_U64(seen_by_the_host(), GIB);
}

static void heavy_case(const char *name, void (*body)(void), uint64_t limit_0)
{
    struct tessera_share_spec spec = a_share(limit_0, GIB);
    grant(&spec);
    world_write(heavy_text);
    run_case(name, body, limit_0, GIB);
}

#define HEAVY(body, limit_0) heavy_case(#body, body, limit_0)

int main(void)
{
    HEAVY(a_context_is_charged_what_it_takes, GIB);
    HEAVY(a_context_that_does_not_fit_is_refused_and_leaves_nothing, 300 * MIB - 1);
    HEAVY(the_last_context_gives_back_what_the_first_took, GIB);
    HEAVY(a_context_on_the_other_card_is_charged_there, GIB);
    HEAVY(loaded_code_is_charged_and_unloaded_code_given_back, GIB);
    HEAVY(code_that_does_not_fit_is_unloaded_and_refused, GIB);
    HEAVY(code_that_is_loaded_lazily_is_charged_before_the_next_allocation, GIB);
    HEAVY(code_that_cannot_be_taken_back_leaves_nothing_for_others, GIB);
    HEAVY(a_heap_is_charged_when_it_is_set_and_refused_when_it_does_not_fit, GIB);
    HEAVY(managed_memory_is_counted_once_wherever_it_is, GIB);
    HEAVY(contexts_of_all_processes_count_and_the_dead_give_theirs_back, 700 * MIB);
    HEAVY(what_the_host_found_beyond_the_books_narrows_the_limit, GIB);
    HEAVY(threads_that_load_at_once_lose_nothing, GIB);
    HEAVY(a_number_that_is_there_before_the_first_context_is_somebody_elses, 500 * MIB);
    HEAVY(a_number_that_comes_long_after_the_first_context_is_somebody_elses, 500 * MIB);
    HEAVY(threads_that_make_the_first_contexts_at_once_are_measured, GIB);
    HEAVY(without_a_measurement_a_context_costs_what_was_configured, GIB);
    return 0;
}
