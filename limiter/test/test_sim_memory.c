/* DESIGN
 *
 * Linear memory of the simulated driver in one process: what is charged, what is refused.
 */
#include "sim_world.h"

static const uint64_t CARD = 1024 * MIB;

static CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr address = 0;
    OK(cuMemAlloc_v2(&address, bytes));
    return address;
}

static void nothing_works_before_cuInit(void)
{
    int count;
    CUdeviceptr address;
    IS(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    IS(cuMemAlloc_v2(&address, 512), CUDA_ERROR_NOT_INITIALIZED);
    IS(cuInit(1), CUDA_ERROR_INVALID_VALUE);
    OK(cuInit(0));
    OK(cuInit(0));
    IS(cuMemAlloc_v2(&address, 512), CUDA_ERROR_INVALID_CONTEXT);
}

static void an_allocation_costs_its_size_rounded_up_to_512(void)
{
    CHECK_EQ_U64(world_free(), CARD);
    CUdeviceptr one = allocate(1), exact = allocate(512), more = allocate(513);
    CHECK_EQ_U64(world_free(), CARD - 512 - 512 - 1024);
    OK(cuMemFree_v2(one));
    OK(cuMemFree_v2(exact));
    OK(cuMemFree_v2(more));
    CHECK_EQ_U64(world_free(), CARD);
}

static void the_last_byte_can_be_had_and_not_one_more(void)
{
    CUdeviceptr most = allocate(CARD - 512), refused = 7;
    IS(cuMemAlloc_v2(&refused, 513), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(refused, 7); /* the out parameter is untouched */
    CUdeviceptr last = allocate(512);
    CHECK_EQ_U64(world_free(), 0);
    IS(cuMemAlloc_v2(&refused, 1), CUDA_ERROR_OUT_OF_MEMORY);
    IS(cuMemAlloc_v2(&refused, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFree_v2(most));
    CHECK_EQ_U64(world_free(), CARD - 512);
    OK(cuMemFree_v2(last));
}

static void wrong_frees_are_refused_and_change_nothing(void)
{
    CUdeviceptr address = allocate(4096);
    OK(cuMemFree_v2(0));
    IS(cuMemFree_v2(address + 512), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemFree_v2(12345), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ_U64(world_free(), CARD - 4096);
    OK(cuMemFree_v2(address));
    IS(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ_U64(world_free(), CARD);
    IS(cuMemAlloc_v2(&address, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemAlloc_v2(NULL, 512), CUDA_ERROR_INVALID_VALUE);
}

static void live_blocks_never_overlap(void)
{
    enum { COUNT = 5000 };
    static CUdeviceptr base[COUNT];
    for (int i = 0; i < COUNT; i++) base[i] = allocate(1 + (size_t)i * 37 % 9000);
    for (int i = 0; i < COUNT; i++) {
        CUdeviceptr start;
        size_t size, asked = 1 + (size_t)i * 37 % 9000;
        OK(cuMemGetAddressRange_v2(&start, &size, base[i] + asked - 1));
        CHECK_EQ_U64(start, base[i]);
        CHECK_EQ_U64(size, (asked + 511) / 512 * 512);
    }
    for (int i = 0; i < COUNT; i += 2) OK(cuMemFree_v2(base[i]));
    CUdeviceptr start;
    size_t size;
    IS(cuMemGetAddressRange_v2(&start, &size, base[0]), CUDA_ERROR_NOT_FOUND);
    OK(cuMemGetAddressRange_v2(&start, &size, base[1]));
    for (int i = 1; i < COUNT; i += 2) OK(cuMemFree_v2(base[i]));
    CHECK_EQ_U64(world_free(), CARD);
}

static void an_address_past_the_end_is_nobodys(void)
{
    CUdeviceptr start, address = allocate(1500); /* 1536 bytes, in a slot of 2048 */
    size_t size;
    OK(cuMemGetAddressRange_v2(&start, &size, address + 1535));
    IS(cuMemGetAddressRange_v2(&start, &size, address + 1536), CUDA_ERROR_NOT_FOUND);
    OK(cuMemFree_v2(address));
}

static void a_pitched_block_is_rows_of_512(void)
{
    CUdeviceptr address;
    size_t pitch;
    OK(cuMemAllocPitch_v2(&address, &pitch, 700, 10, 4));
    CHECK_EQ_U64(pitch, 1024);
    CHECK_EQ_U64(world_free(), CARD - 10 * 1024);
    OK(cuMemFree_v2(address));
    IS(cuMemAllocPitch_v2(&address, &pitch, 700, 10, 3), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemAllocPitch_v2(&address, &pitch, 1ULL << 40, 1ULL << 40, 4), CUDA_ERROR_OUT_OF_MEMORY);
}

static void managed_memory_costs_only_what_is_on_the_device(void)
{
    CUdeviceptr address;
    OK(cuMemAllocManaged(&address, 2 * CARD, CU_MEM_ATTACH_GLOBAL)); /* more than the card has */
    *(volatile char *)(uintptr_t)address = 1;                        /* the host may touch it */
    CHECK_EQ_U64(world_free(), CARD);
    OK(cuMemPrefetchAsync(address, 64 * MIB, 0, NULL));
    CHECK_EQ_U64(world_free(), CARD - 64 * MIB);
    OK(cuMemPrefetchAsync(address, 64 * MIB, -1, NULL));
    CHECK_EQ_U64(world_free(), CARD);
    OK(cuMemPrefetchAsync(address, 2 * CARD, 0, NULL));
    CHECK_EQ_U64(world_free(), 0);
    OK(cuMemFree_v2(address));
    CHECK_EQ_U64(world_free(), CARD);
}

static void host_memory_costs_the_device_nothing(void)
{
    void *pinned;
    static char own[4096];
    OK(cuMemHostAlloc(&pinned, 1 << 20, 0));
    memset(pinned, 1, 1 << 20);
    OK(cuMemHostRegister_v2(own, sizeof own, 0));
    IS(cuMemHostRegister_v2(own, sizeof own, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    CHECK_EQ_U64(world_free(), CARD);
    OK(cuMemHostUnregister(own));
    IS(cuMemHostUnregister(own), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    OK(cuMemFreeHost(pinned));
    IS(cuMemFreeHost(own), CUDA_ERROR_INVALID_VALUE);
}

static void copies_check_addresses_and_move_host_bytes(void)
{
    CUdeviceptr device = allocate(1024), managed;
    char here[1024] = "tessera", back[8];
    OK(cuMemcpyHtoD_v2(device, here, 1024));
    OK(cuMemcpyDtoHAsync_v2(here, device, 1024, NULL));
    IS(cuMemcpyHtoD_v2(device + 1, here, 1024), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemsetD32_v2(device, 7, 256));
    IS(cuMemsetD32_v2(device, 7, 257), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAllocManaged(&managed, 8, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemcpy(managed, (CUdeviceptr)(uintptr_t)here, 8));
    OK(cuMemcpyDtoH_v2(back, managed, 8));
    CHECK_EQ_STR(back, "tessera");
    OK(cuMemFree_v2(managed));
    OK(cuMemFree_v2(device));
}

static void destroying_a_context_frees_its_memory_and_only_its(void)
{
    CUcontext primary, extra;
    CUdeviceptr kept = allocate(4096), lost;
    OK(cuCtxGetCurrent(&primary));
    OK(cuCtxCreate_v2(&extra, 0, 0));
    lost = allocate(8192);
    CHECK_EQ_U64(world_free(), CARD - 4096 - 8192);
    OK(cuCtxDestroy_v2(extra));
    IS(cuCtxDestroy_v2(extra), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cuCtxSetCurrent(primary));
    CHECK_EQ_U64(world_free(), CARD - 4096);
    IS(cuMemFree_v2(lost), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(kept));
}

static void resetting_the_primary_context_frees_everything_in_it(void)
{
    CUcontext again;
    unsigned flags;
    int active;
    allocate(4096);
    OK(cuDevicePrimaryCtxReset_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(!active);
    CUdeviceptr address;
    IS(cuMemAlloc_v2(&address, 512), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cuDevicePrimaryCtxRetain(&again, 0));
    OK(cuCtxSetCurrent(again));
    CHECK_EQ_U64(world_free(), CARD);
}

static void the_call_asked_for_fails_and_no_other(void)
{
    CUdeviceptr a, b, c;
    setenv("TESSERA_SIM_FAIL", "cuMemAlloc_v2:2:2,cuMemFree_v2:1+:999", 1);
    OK(cuInit(0)); /* reads the variable again */
    OK(cuMemAlloc_v2(&a, 512));
    IS(cuMemAlloc_v2(&b, 512), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&c, 512));
    CHECK_EQ_U64(world_free(), CARD - 1024);
    IS(cuMemFree_v2(a), CUDA_ERROR_UNKNOWN);
    IS(cuMemFree_v2(c), CUDA_ERROR_UNKNOWN);
    unsetenv("TESSERA_SIM_FAIL");
    OK(cuInit(0));
    OK(cuMemFree_v2(a));
    OK(cuMemFree_v2(c));
}

static void the_audit_log_has_a_line_per_call(void)
{
    char path[300], line[128];
    int allocations = 0, frees = 0, pid;
    char name[64];
    snprintf(path, sizeof path, "%s.audit", world_path);
    setenv("TESSERA_SIM_AUDIT", path, 1);
    OK(cuInit(0));
    OK(cuMemFree_v2(allocate(1234)));
    unsetenv("TESSERA_SIM_AUDIT");
    OK(cuInit(0));
    FILE *log = fopen(path, "r");
    CHECK(log != NULL);
    while (fgets(line, sizeof line, log) != NULL) {
        CHECK(sscanf(line, "%d %63s", &pid, name) == 2);
        CHECK_EQ_U64(pid, getpid());
        allocations += strcmp(name, "cuMemAlloc_v2") == 0 && strstr(line, " 1234") != NULL;
        frees += strcmp(name, "cuMemFree_v2") == 0;
    }
    fclose(log);
    CHECK_EQ_U64(allocations, 1);
    CHECK_EQ_U64(frees, 1);
}

int main(void)
{
    world_write("device memory_mib=1024\n");
    nothing_works_before_cuInit();
    world_context(0);
    an_allocation_costs_its_size_rounded_up_to_512();
    the_last_byte_can_be_had_and_not_one_more();
    wrong_frees_are_refused_and_change_nothing();
    live_blocks_never_overlap();
    an_address_past_the_end_is_nobodys();
    a_pitched_block_is_rows_of_512();
    managed_memory_costs_only_what_is_on_the_device();
    host_memory_costs_the_device_nothing();
    copies_check_addresses_and_move_host_bytes();
    destroying_a_context_frees_its_memory_and_only_its();
    resetting_the_primary_context_frees_everything_in_it();
    the_call_asked_for_fails_and_no_other();
    the_audit_log_has_a_line_per_call();
    return 0;
}
