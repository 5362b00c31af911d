/* DESIGN
 *
 * Virtual memory management: physical memory lives while a handle reference or a map lives.
 */
#include "sim_world.h"

static const uint64_t CARD = 1024 * MIB, GRANULE = 2 * MIB;

static CUmemAllocationProp on_device(int device)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

static CUmemGenericAllocationHandle create(uint64_t bytes)
{
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle;
    OK(cuMemCreate(&handle, bytes, &prop, 0));
    return handle;
}

static CUdeviceptr reserve(uint64_t bytes)
{
    CUdeviceptr address;
    OK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
    return address;
}

static void memory_lives_while_a_map_lives(void)
{
    CUmemGenericAllocationHandle handle = create(4 * MIB);
    CUdeviceptr range = reserve(16 * MIB);
    CHECK_EQ_U64(world_free(), CARD - 4 * MIB);
    OK(cuMemMap(range, 4 * MIB, 0, handle, 0));
    OK(cuMemMap(range + 8 * MIB, 4 * MIB, 0, handle, 0)); /* twice mapped, once charged */
    CHECK_EQ_U64(world_free(), CARD - 4 * MIB);
    OK(cuMemRelease(handle));
    IS(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ_U64(world_free(), CARD - 4 * MIB);
    OK(cuMemUnmap(range, 4 * MIB));
    CHECK_EQ_U64(world_free(), CARD - 4 * MIB);
    OK(cuMemUnmap(range + 8 * MIB, 4 * MIB));
    CHECK_EQ_U64(world_free(), CARD);
    OK(cuMemAddressFree(range, 16 * MIB));
}

static void memory_lives_while_a_reference_lives(void)
{
    CUmemGenericAllocationHandle handle = create(GRANULE), again;
    CUdeviceptr range = reserve(GRANULE);
    OK(cuMemMap(range, GRANULE, 0, handle, 0));
    OK(cuMemRelease(handle));
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(range + 5)));
    CHECK_EQ_U64(again, handle);
    OK(cuMemUnmap(range, GRANULE));
    CHECK_EQ_U64(world_free(), CARD - GRANULE);
    OK(cuMemRelease(again));
    CHECK_EQ_U64(world_free(), CARD);
    IS(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)range), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressFree(range, GRANULE));
}

static void wrong_arguments_are_refused_without_a_charge(void)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = on_device(0), nowhere = on_device(9), bad = on_device(0);
    size_t granularity;
    OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK_EQ_U64(granularity, GRANULE);
    IS(cuMemCreate(&handle, GRANULE + 1, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemCreate(&handle, 0, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemCreate(&handle, GRANULE, &prop, 1), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemCreate(&handle, GRANULE, NULL, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemCreate(&handle, GRANULE, &nowhere, 0), CUDA_ERROR_INVALID_DEVICE);
    bad.location.type = (CUmemLocationType)77;
    IS(cuMemCreate(&handle, GRANULE, &bad, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemCreate(&handle, CARD + GRANULE, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    IS(cuMemRelease(0), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemRelease(0xdeadbeefULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ_U64(world_free(), CARD);
}

static void host_memory_is_not_charged(void)
{
    CUmemAllocationProp prop = on_device(0), back;
    CUmemGenericAllocationHandle handle;
    prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    prop.location.id = 77; /* a node, not a device */
    OK(cuMemCreate(&handle, 2 * CARD, &prop, 0));
    CHECK_EQ_U64(world_free(), CARD);
    OK(cuMemGetAllocationPropertiesFromHandle(&back, handle));
    CHECK_EQ_U64(back.location.type, CU_MEM_LOCATION_TYPE_HOST_NUMA);
    OK(cuMemRelease(handle));
}

static void maps_are_whole_and_do_not_overlap(void)
{
    CUmemGenericAllocationHandle handle = create(4 * MIB);
    CUdeviceptr range = reserve(8 * MIB);
    IS(cuMemMap(range, 4 * MIB, GRANULE, handle, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemMap(range, 6 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE); /* more than the handle has */
    IS(cuMemMap(range + 6 * MIB, 4 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE); /* beyond the range */
    OK(cuMemMap(range, 4 * MIB, 0, handle, 0));
    IS(cuMemMap(range + GRANULE, 4 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemUnmap(range, GRANULE), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemUnmap(range, 8 * MIB), CUDA_ERROR_INVALID_VALUE); /* a hole at the end */
    IS(cuMemAddressFree(range, 8 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(range + 4 * MIB, 4 * MIB, 0, handle, 0));
    OK(cuMemUnmap(range, 8 * MIB)); /* two whole maps at once */
    IS(cuMemAddressFree(range, 4 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressFree(range, 8 * MIB));
    OK(cuMemRelease(handle));
    CHECK_EQ_U64(world_free(), CARD);
}

static void access_makes_memory_of_a_map(void)
{
    CUmemGenericAllocationHandle handle = create(GRANULE);
    CUdeviceptr range = reserve(4 * MIB);
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    unsigned long long flags;
    IS(cuMemSetAccess(range, GRANULE, &access, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(range, GRANULE, 0, handle, 0));
    IS(cuMemsetD8_v2(range, 0, 16), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemSetAccess(range, GRANULE, &access, 1));
    OK(cuMemGetAccess(&flags, &access.location, range));
    CHECK_EQ_U64(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(cuMemsetD8_v2(range, 0, GRANULE));
    IS(cuMemsetD8_v2(range, 0, GRANULE + 1), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemFree_v2(range), CUDA_ERROR_INVALID_VALUE); /* mapped memory is unmapped, not freed */
    OK(cuMemUnmap(range, GRANULE));
    OK(cuMemAddressFree(range, 4 * MIB));
    OK(cuMemRelease(handle));
}

static void ranges_are_aligned_as_asked_and_large(void)
{
    CUdeviceptr a, b;
    OK(cuMemAddressReserve(&a, 90ULL << 30, 0, 0, 0));
    OK(cuMemAddressReserve(&b, GRANULE, 1ULL << 30, 0, 0));
    CHECK_EQ_U64(b % (1ULL << 30), 0);
    IS(cuMemAddressReserve(&b, GRANULE + 1, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemAddressReserve(&b, GRANULE, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ_U64(world_free(), CARD);
    OK(cuMemAddressFree(a, 90ULL << 30));
}

static void handles_outlive_the_context(void)
{
    CUmemGenericAllocationHandle handle = create(GRANULE);
    OK(cuDevicePrimaryCtxReset_v2(0));
    world_context(0);
    CHECK_EQ_U64(world_free(), CARD - GRANULE);
    OK(cuMemRelease(handle));
}

int main(void)
{
    world_write("device memory_mib=1024\n");
    world_context(0);
    memory_lives_while_a_map_lives();
    memory_lives_while_a_reference_lives();
    wrong_arguments_are_refused_without_a_charge();
    host_memory_is_not_charged();
    maps_are_whole_and_do_not_overlap();
    access_makes_memory_of_a_map();
    ranges_are_aligned_as_asked_and_large();
    handles_outlive_the_context();
    return 0;
}
