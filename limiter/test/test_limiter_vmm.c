/* DESIGN
 *
 * Virtual memory management: who keeps an allocation alive, odd locations and sizes, errors. The simulated
 * granularity is 2 MiB, as on real cards; it does not export or import, so sharing between processes is not covered
 * here.
 */
#include "limiter_world.h"

static const uint64_t PAGE = 2 * MIB;
static const CUmemGenericAllocationHandle UNTOUCHED = 0x1234;

static CUmemAllocationProp props_of(CUmemLocationType type, int id)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = {.type = type, .id = id}};
}

static CUmemGenericAllocationHandle created(size_t size, int device)
{
    CUmemAllocationProp props = props_of(CU_MEM_LOCATION_TYPE_DEVICE, device);
    CUmemGenericAllocationHandle handle = UNTOUCHED;
    OK(cuMemCreate(&handle, size, &props, 0));
    return handle;
}

static CUdeviceptr reserved(size_t size)
{
    CUdeviceptr address;
    OK(cuMemAddressReserve(&address, size, 0, 0, 0));
    return address;
}

static void the_limit_is_exact_for_physical_memory(void)
{
    CUmemAllocationProp props = props_of(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    CUmemGenericAllocationHandle handle = UNTOUCHED;
    world_context(0);
    IS(cuMemCreate(&handle, GIB + PAGE, &props, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(handle, UNTOUCHED);
    CHECK_EQ_U64(taken(), 0);
    created(GIB, 0);
    CHECK_EQ_U64(charged(0), GIB);
    IS(cuMemCreate(&handle, PAGE, &props, 0), CUDA_ERROR_OUT_OF_MEMORY);
}

static void memory_lives_while_a_mapping_does(void)
{
    world_context(0);
    CUdeviceptr address = reserved(4 * PAGE);
    CUmemGenericAllocationHandle handle = created(2 * PAGE, 0);
    OK(cuMemMap(address, 2 * PAGE, 0, handle, 0));
    OK(cuMemMap(address + 2 * PAGE, 2 * PAGE, 0, handle, 0));
    OK(cuMemRelease(handle)); /* the usual pattern: release at once */
    CHECK_EQ_U64(charged(0), 2 * PAGE);
    CHECK_EQ_U64(taken(), 2 * PAGE);
    OK(cuMemUnmap(address, 2 * PAGE));
    CHECK_EQ_U64(charged(0), 2 * PAGE);
    OK(cuMemUnmap(address + 2 * PAGE, 2 * PAGE));
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(taken(), 0);
}

static void memory_lives_while_a_handle_does(void)
{
    world_context(0);
    CUdeviceptr address = reserved(PAGE);
    CUmemGenericAllocationHandle handle = created(PAGE, 0);
    OK(cuMemMap(address, PAGE, 0, handle, 0));
    OK(cuMemUnmap(address, PAGE));
    CHECK_EQ_U64(charged(0), PAGE);
    OK(cuMemRelease(handle));
    CHECK_EQ_U64(charged(0), 0);
}

static void a_retained_handle_keeps_the_memory(void)
{
    CUmemGenericAllocationHandle again;
    world_context(0);
    CUdeviceptr address = reserved(2 * PAGE);
    CUmemGenericAllocationHandle handle = created(2 * PAGE, 0);
    OK(cuMemMap(address, 2 * PAGE, 0, handle, 0));
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(address + PAGE + 5)));
    OK(cuMemRelease(handle));
    OK(cuMemUnmap(address, 2 * PAGE));
    CHECK_EQ_U64(charged(0), 2 * PAGE);
    CHECK_EQ_U64(taken(), 2 * PAGE);
    OK(cuMemRelease(again));
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(taken(), 0);
}

static void one_unmap_may_cover_many_mappings(void)
{
    enum { COUNT = 100 };
    world_context(0);
    CUdeviceptr address = reserved(COUNT * PAGE);
    for (uint64_t i = 0; i < COUNT; i++) {
        CUmemGenericAllocationHandle handle = created(PAGE, 0);
        OK(cuMemMap(address + i * PAGE, PAGE, 0, handle, 0));
        OK(cuMemRelease(handle));
    }
    CHECK_EQ_U64(charged(0), COUNT * PAGE);
    OK(cuMemUnmap(address, 60 * PAGE));
    CHECK_EQ_U64(charged(0), 40 * PAGE);
    CHECK_EQ_U64(taken(), 40 * PAGE);
    OK(cuMemUnmap(address + 60 * PAGE, 40 * PAGE));
    CHECK_EQ_U64(charged(0), 0);
}

static void odd_locations_get_the_drivers_answer_and_touch_nothing_else(void)
{
    static const struct {
        int type;
        int id;
    } odd[] = {{CU_MEM_LOCATION_TYPE_INVALID, 0},        {CU_MEM_LOCATION_TYPE_DEVICE, -1},
               {CU_MEM_LOCATION_TYPE_DEVICE, 2},         {CU_MEM_LOCATION_TYPE_DEVICE, 63},
               {CU_MEM_LOCATION_TYPE_DEVICE, 64},        {CU_MEM_LOCATION_TYPE_DEVICE, 1 << 30},
               {CU_MEM_LOCATION_TYPE_DEVICE, INT32_MIN}, {CU_MEM_LOCATION_TYPE_HOST_NUMA, 77},
               {CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0}, {99, 0},
               {-1, 5}};
    world_context(0);
    struct tessera_region *region = the_region();
    created(PAGE, 0);
    char *before = malloc(sizeof *region);
    CHECK(before != NULL);
    memcpy(before, region, sizeof *region);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        CUmemAllocationProp props = props_of((CUmemLocationType)odd[i].type, odd[i].id);
        CUmemGenericAllocationHandle handle = UNTOUCHED;
        CUmemGenericAllocationHandle expected_handle = UNTOUCHED;
        CUresult expected = REAL(cuMemCreate)(&expected_handle, PAGE, &props, 0);
        IS(cuMemCreate(&handle, PAGE, &props, 0), expected);
        CHECK(expected == CUDA_SUCCESS || handle == UNTOUCHED);
    }
    CHECK(memcmp(before, region, sizeof *region) == 0);
    free(before);
}

static void host_memory_is_not_charged(void)
{
    CUmemAllocationProp props = props_of(CU_MEM_LOCATION_TYPE_HOST, 0);
    CUmemGenericAllocationHandle handle;
    world_context(0);
    CUresult expected = REAL(cuMemCreate)(&handle, 4 * GIB, &props, 0);
    IS(cuMemCreate(&handle, 4 * GIB, &props, 0), expected);
    CHECK_EQ_U64(charged(0), 0);
    if (expected == CUDA_SUCCESS) OK(cuMemRelease(handle));
}

static void odd_sizes_get_the_drivers_error_even_past_the_limit(void)
{
    CUmemAllocationProp props = props_of(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    CUmemGenericAllocationHandle handle = UNTOUCHED;
    world_context(0);
    CUresult expected = REAL(cuMemCreate)(&handle, PAGE + 1, &props, 0);
    CHECK(expected != CUDA_SUCCESS && expected != CUDA_ERROR_OUT_OF_MEMORY);
    IS(cuMemCreate(&handle, PAGE + 1, &props, 0), expected);
    IS(cuMemCreate(&handle, GIB + 1, &props, 0), expected);
    IS(cuMemCreate(&handle, 0, &props, 0), REAL(cuMemCreate)(&handle, 0, &props, 0));
    IS(cuMemCreate(NULL, PAGE, &props, 0), REAL(cuMemCreate)(NULL, PAGE, &props, 0));
    IS(cuMemCreate(&handle, PAGE, NULL, 0), REAL(cuMemCreate)(&handle, PAGE, NULL, 0));
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(handle, UNTOUCHED);
}

static void invalid_handles_get_the_drivers_error(void)
{
    CUmemGenericAllocationHandle handle;
    world_context(0);
    CUdeviceptr address = reserved(PAGE);
    IS(cuMemRelease(77), REAL(cuMemRelease)(77));
    IS(cuMemMap(address, PAGE, 0, 77, 0), REAL(cuMemMap)(address, PAGE, 0, 77, 0));
    IS(cuMemUnmap(address, PAGE), REAL(cuMemUnmap)(address, PAGE));
    IS(cuMemRetainAllocationHandle(&handle, NULL), REAL(cuMemRetainAllocationHandle)(&handle, NULL));
    handle = created(PAGE, 0);
    OK(cuMemRelease(handle));
    CHECK(cuMemRelease(handle) != CUDA_SUCCESS);
    CHECK_EQ_U64(charged(0), 0);
}

static void the_device_of_the_properties_is_charged(void)
{
    world_context(0);
    CUmemGenericAllocationHandle handle = created(4 * PAGE, 1);
    CHECK_EQ_U64(charged(1), 4 * PAGE);
    CHECK_EQ_U64(charged(0), 0);
    OK(cuMemRelease(handle));
    CHECK_EQ_U64(charged(1), 0);
}

static CUmemGenericAllocationHandle a_multicast_object(size_t size)
{
    const CUmulticastObjectProp prop = {.numDevices = 1, .size = size};
    CUmemGenericAllocationHandle object = UNTOUCHED;
    OK(cuMulticastCreate(&object, &prop));
    OK(cuMulticastAddDevice(object, 0));
    return object;
}

static void a_multicast_object_costs_nothing_and_keeps_what_is_bound_to_it(void)
{
    world_context(0);
    CUmemGenericAllocationHandle object = a_multicast_object(8 * PAGE);
    CHECK_EQ_U64(charged(0), 0);
    CUmemGenericAllocationHandle handle = created(2 * PAGE, 0);
    OK(cuMulticastBindMem(object, 0, handle, 0, 2 * PAGE, 0));
    OK(cuMulticastBindMem_v2(object, 0, 2 * PAGE, handle, 0, 2 * PAGE, 0));
    OK(cuMemRelease(handle));
    CHECK_EQ_U64(charged(0), 2 * PAGE); /* once, and alive */
    CHECK_EQ_U64(taken(), 2 * PAGE);
    OK(cuMulticastUnbind(object, 0, 0, 2 * PAGE));
    CHECK_EQ_U64(charged(0), 2 * PAGE);
    OK(cuMulticastUnbind(object, 0, 2 * PAGE, 2 * PAGE));
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(taken(), 0);
    OK(cuMemRelease(object));
}

static void the_end_of_a_multicast_object_frees_what_only_it_kept(void)
{
    world_context(0);
    CUmemGenericAllocationHandle object = a_multicast_object(8 * PAGE);
    CUdeviceptr address = reserved(PAGE);
    for (int i = 0; i < 4; i++) {
        CUmemGenericAllocationHandle handle = created(PAGE, 0);
        OK(cuMulticastBindMem(object, (size_t)i * PAGE, handle, 0, PAGE, 0));
        OK(cuMemRelease(handle));
    }
    CUmemGenericAllocationHandle mapped = created(PAGE, 0);
    OK(cuMemMap(address, PAGE, 0, mapped, 0));
    OK(cuMulticastBindAddr(object, 4 * PAGE, address, PAGE, 0));
    OK(cuMulticastBindAddr_v2(object, 0, 5 * PAGE, address, PAGE, 0));
    OK(cuMemRelease(mapped));
    CHECK_EQ_U64(charged(0), 5 * PAGE);
    OK(cuMemRelease(object));
    CHECK_EQ_U64(charged(0), PAGE); /* still mapped */
    CHECK_EQ_U64(taken(), PAGE);
    OK(cuMemUnmap(address, PAGE));
    CHECK_EQ_U64(charged(0), 0);
    IS(cuMulticastBindMem(object, 0, mapped, 0, PAGE, 0), REAL(cuMulticastBindMem)(object, 0, mapped, 0, PAGE, 0));
    IS(cuMulticastUnbind(object, 0, 0, PAGE), REAL(cuMulticastUnbind)(object, 0, 0, PAGE));
    IS(cuMulticastCreate(NULL, NULL), REAL(cuMulticastCreate)(NULL, NULL));
}

static void an_import_that_fails_gets_the_drivers_error(void)
{
    CUmemGenericAllocationHandle handle = UNTOUCHED;
    const CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    world_context(0);
    CUresult expected = REAL(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)-1, type);
    CHECK(expected != CUDA_SUCCESS);
    IS(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)-1, type), expected);
    CHECK_EQ_U64(charged(0), 0);
}

static void a_driver_without_memory_costs_nothing(void)
{
    CUmemAllocationProp props = props_of(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    CUmemGenericAllocationHandle handle = UNTOUCHED;
    CHECK(setenv("TESSERA_SIM_FAIL", "cuMemCreate:1+:2", 1) == 0);
    world_context(0);
    IS(cuMemCreate(&handle, GIB, &props, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(handle, UNTOUCHED);
}

static void errors_of_the_driver_cost_nothing(void)
{
    CHECK(setenv("TESSERA_SIM_FAIL", "cuMemRelease:1:999", 1) == 0);
    world_context(0);
    CUmemGenericAllocationHandle handle = created(GIB, 0);
    IS(cuMemRelease(handle), CUDA_ERROR_UNKNOWN);
    CHECK_EQ_U64(charged(0), GIB);
    OK(cuMemRelease(handle));
    CHECK_EQ_U64(charged(0), 0);
}

int main(void)
{
    CASE(the_limit_is_exact_for_physical_memory, GIB, GIB);
    CASE(memory_lives_while_a_mapping_does, GIB, GIB);
    CASE(memory_lives_while_a_handle_does, GIB, GIB);
    CASE(a_retained_handle_keeps_the_memory, GIB, GIB);
    CASE(one_unmap_may_cover_many_mappings, GIB, GIB);
    CASE(odd_locations_get_the_drivers_answer_and_touch_nothing_else, GIB, GIB);
    CASE(host_memory_is_not_charged, GIB, GIB);
    CASE(odd_sizes_get_the_drivers_error_even_past_the_limit, GIB, GIB);
    CASE(invalid_handles_get_the_drivers_error, GIB, GIB);
    CASE(the_device_of_the_properties_is_charged, GIB, GIB);
    CASE(a_multicast_object_costs_nothing_and_keeps_what_is_bound_to_it, GIB, GIB);
    CASE(the_end_of_a_multicast_object_frees_what_only_it_kept, GIB, GIB);
    CASE(an_import_that_fails_gets_the_drivers_error, GIB, GIB);
    CASE(a_driver_without_memory_costs_nothing, GIB, GIB);
    CASE(errors_of_the_driver_cost_nothing, GIB, GIB);
    return 0;
}
