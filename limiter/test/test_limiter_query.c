/* DESIGN
 *
 * What programs are told: CUDA and NVML must show the same card, of the size of the share.
 */
#include "limiter_world.h"

struct figures {
    uint64_t total;
    uint64_t free;
};

static struct figures cuda_figures(void)
{
    size_t free_bytes;
    size_t total;
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    return (struct figures){total, free_bytes};
}

static nvmlDevice_t nvml_card(const char *uuid)
{
    nvmlDevice_t device;
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(nvmlDeviceGetHandleByUUID(uuid, &device), NVML_SUCCESS);
    return device;
}

static CUdeviceptr allocated(size_t bytes)
{
    CUdeviceptr pointer;
    OK(cuMemAlloc_v2(&pointer, bytes));
    return pointer;
}

static void every_query_shows_the_share(void)
{
    size_t total;
    nvmlMemory_t one;
    nvmlMemory_v2_t two = {.version = NVML_MEMORY_V2};
    world_context(0);
    nvmlDevice_t card = nvml_card(CARD_0);
    allocated(256 * MIB);
    struct figures seen = cuda_figures();
    CHECK_EQ_U64(seen.total, GIB);
    CHECK_EQ_U64(seen.free, 768 * MIB);
    OK(cuDeviceTotalMem_v2(&total, 0));
    CHECK_EQ_U64(total, GIB);
    CHECK_EQ_U64(nvmlDeviceGetMemoryInfo(card, &one), NVML_SUCCESS);
    CHECK_EQ_U64(one.total, GIB);
    CHECK_EQ_U64(one.used, 256 * MIB);
    CHECK_EQ_U64(one.free, 768 * MIB);
    CHECK_EQ_U64(nvmlDeviceGetMemoryInfo_v2(card, &two), NVML_SUCCESS);
    CHECK_EQ_U64(two.total, GIB);
    CHECK_EQ_U64(two.used + two.free + two.reserved, two.total);
    CHECK_EQ_U64(two.version, NVML_MEMORY_V2);
}

static void without_a_limit_the_card_shows_its_own_size(void)
{
    size_t total;
    world_context(0);
    CHECK_EQ_U64(cuda_figures().total, 80 * GIB);
    OK(cuDeviceTotalMem_v2(&total, 0));
    CHECK_EQ_U64(total, 80 * GIB);
}

static void free_memory_is_never_more_than_the_card_has(void)
{
    CUdeviceptr others;
    world_context(0);
    OK(REAL(cuMemAlloc_v2)(&others, 79 * GIB)); /* another tenant */
    CHECK_EQ_U64(cuda_figures().free, GIB);
    CHECK_EQ_U64(cuda_figures().total, 8 * GIB);
}

static void figures_never_wrap_below_a_lowered_limit(void)
{
    nvmlMemory_t memory;
    world_context(0);
    nvmlDevice_t card = nvml_card(CARD_0);
    allocated(512 * MIB);
    tessera_region_set_memory_limit(the_region(), 0, MIB);
    CHECK_EQ_U64(cuda_figures().free, 0);
    CHECK_EQ_U64(nvmlDeviceGetMemoryInfo(card, &memory), NVML_SUCCESS);
    CHECK_EQ_U64(memory.total, MIB);
    CHECK_EQ_U64(memory.free, 0);
    CHECK_EQ_U64(memory.used, 512 * MIB);
}

static void each_card_shows_its_own_limit_in_any_order(void)
{
    nvmlMemory_t memory;
    size_t total;
    CHECK(setenv("CUDA_VISIBLE_DEVICES", "1,0", 1) == 0);
    world_context(0);
    CHECK_EQ_U64(cuda_figures().total, 2 * GIB);
    OK(cuDeviceTotalMem_v2(&total, 1));
    CHECK_EQ_U64(total, GIB);
    CHECK_EQ_U64(nvmlDeviceGetMemoryInfo(nvml_card(CARD_1), &memory), NVML_SUCCESS);
    CHECK_EQ_U64(memory.total, 2 * GIB);
}

static void processes_list_the_share_and_nobody_else(void)
{
    nvmlProcessInfo_v2_t list[8];
    nvmlProcessInfo_v1_t old[8];
    unsigned int count = 0;
    world_context(0);
    nvmlDevice_t card = nvml_card(CARD_0);
    CHECK_EQ_U64(nvmlDeviceGetComputeRunningProcesses_v3(card, &count, NULL), NVML_SUCCESS);
    CHECK_EQ_U64(count, 0);
    allocated(64 * MIB);
    CHECK_EQ_U64(nvmlDeviceGetComputeRunningProcesses_v3(card, &count, NULL), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_EQ_U64(count, 1);
    count = 8;
    CHECK_EQ_U64(nvmlDeviceGetComputeRunningProcesses_v3(card, &count, list), NVML_SUCCESS);
    CHECK_EQ_U64(count, 1);
    CHECK_EQ_U64(list[0].pid, getpid());
    CHECK_EQ_U64(list[0].usedGpuMemory, 64 * MIB);
    count = 8;
    CHECK_EQ_U64(nvmlDeviceGetComputeRunningProcesses(card, &count, old), NVML_SUCCESS);
    CHECK_EQ_U64(old[0].pid, getpid());
    CHECK_EQ_U64(old[0].usedGpuMemory, 64 * MIB);
    count = 8;
    CHECK_EQ_U64(nvmlDeviceGetComputeRunningProcesses_v2(nvml_card(CARD_1), &count, list), NVML_SUCCESS);
    CHECK_EQ_U64(count, 0);
}

static void invalid_queries_get_the_drivers_error(void)
{
    nvmlMemory_t memory;
    nvmlMemory_v2_t versioned = {.version = 77};
    unsigned int count = 1;
    size_t total;
    IS(cuMemGetInfo_v2(&total, &total), REAL(cuMemGetInfo_v2)(&total, &total)); /* no context */
    world_context(0);
    nvmlDevice_t card = nvml_card(CARD_0);
    IS(cuDeviceTotalMem_v2(&total, 99), REAL(cuDeviceTotalMem_v2)(&total, 99));
    IS(cuDeviceTotalMem_v2(NULL, 0), REAL(cuDeviceTotalMem_v2)(NULL, 0));
    IS(cuMemGetInfo_v2(NULL, &total), REAL(cuMemGetInfo_v2)(NULL, &total));
    IS(nvmlDeviceGetMemoryInfo(card, NULL), REAL_NVML(nvmlDeviceGetMemoryInfo)(card, NULL));
    IS(nvmlDeviceGetMemoryInfo(NULL, &memory), REAL_NVML(nvmlDeviceGetMemoryInfo)(NULL, &memory));
    IS(nvmlDeviceGetMemoryInfo_v2(card, &versioned), REAL_NVML(nvmlDeviceGetMemoryInfo_v2)(card, &versioned));
    CHECK_EQ_U64(versioned.version, 77);
    IS(nvmlDeviceGetComputeRunningProcesses_v3(card, NULL, NULL),
       REAL_NVML(nvmlDeviceGetComputeRunningProcesses_v3)(card, NULL, NULL));
    IS(nvmlDeviceGetComputeRunningProcesses_v3(NULL, &count, NULL),
       REAL_NVML(nvmlDeviceGetComputeRunningProcesses_v3)(NULL, &count, NULL));
}

static void a_card_outside_the_share_shows_no_memory(void)
{
    nvmlMemory_t memory;
    size_t total;
    struct tessera_share_spec spec = a_share(GIB, 0);
    spec.device_count = 1;
    CHECK_EQ_U64(tessera_region_create(region_path, &spec), TESSERA_ERROR_OK);
    hidden_context(1);
    CHECK_EQ_U64(cuda_figures().total, 0);
    CHECK_EQ_U64(cuda_figures().free, 0);
    OK(cuDeviceTotalMem_v2(&total, 1));
    CHECK_EQ_U64(total, 0);
    CHECK_EQ_U64(nvmlDeviceGetMemoryInfo(nvml_card(CARD_1), &memory), NVML_SUCCESS);
    CHECK_EQ_U64(memory.total, 0);
}

static void a_monitor_takes_no_slot(void)
{
    nvmlMemory_t memory;
    nvmlDevice_t card = nvml_card(CARD_0);
    CHECK_EQ_U64(nvmlDeviceGetMemoryInfo(card, &memory), NVML_SUCCESS);
    CHECK_EQ_U64(memory.total, GIB);
    CHECK_EQ_U64(tessera_region_processes(the_region(), NULL, 0), 0);
}

int main(void)
{
    CASE(every_query_shows_the_share, GIB, GIB);
    CASE(without_a_limit_the_card_shows_its_own_size, TESSERA_UNLIMITED, GIB);
    CASE(free_memory_is_never_more_than_the_card_has, 8 * GIB, GIB);
    CASE(figures_never_wrap_below_a_lowered_limit, GIB, GIB);
    CASE(each_card_shows_its_own_limit_in_any_order, GIB, 2 * GIB);
    CASE(processes_list_the_share_and_nobody_else, GIB, GIB);
    CASE(invalid_queries_get_the_drivers_error, GIB, GIB);
    CASE(a_card_outside_the_share_shows_no_memory, GIB, GIB);
    CASE(a_monitor_takes_no_slot, GIB, GIB);
    return 0;
}
