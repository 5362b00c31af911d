/* DESIGN
 *
 * Linear memory: what is refused, at which byte, what is counted, and that everything the driver would say without the
 * library it says with it. Sizes count in units of 512 bytes.
 */
#include "limiter_world.h"

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
    uint64_t before = taken();
    IS(cuMemAlloc_v2(&pointer, bytes), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(pointer, UNTOUCHED);
    CHECK_EQ_U64(taken(), before);
}

static void the_limit_is_exact_for_plain_memory(void)
{
    world_context(0);
    refused(GIB + 1);
    allocated(GIB);
    CHECK_EQ_U64(charged(0), GIB);
    refused(1);
}

static void the_limit_is_exact_in_units_of_512(void)
{
    world_context(0);
    allocated(1);
    CHECK_EQ_U64(charged(0), 512);
    allocated(513);
    CHECK_EQ_U64(charged(0), 1536);
    allocated(512); /* 2,048 is the limit */
    refused(1);
}

static void a_limit_that_is_no_multiple_of_512_admits_what_lies_below(void)
{
    world_context(0);
    refused(1023); /* takes 1,024 */
    allocated(512);
    refused(1);
}

static void the_limit_is_exact_for_managed_memory(void)
{
    CUdeviceptr pointer = UNTOUCHED;
    world_context(0);
    IS(cuMemAllocManaged(&pointer, GIB + 1, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(pointer, UNTOUCHED);
    OK(cuMemAllocManaged(&pointer, GIB, CU_MEM_ATTACH_GLOBAL));
    CHECK_EQ_U64(charged(0), GIB);
    refused(1);
    OK(cuMemFree_v2(pointer));
    CHECK_EQ_U64(charged(0), 0);
}

static void the_limit_is_exact_for_pitched_memory(void)
{
    CUdeviceptr pointer = UNTOUCHED;
    size_t pitch = 99;
    world_context(0);
    /* Rows of 1,000 bytes take 1,024: 1,048,576 rows are one GiB. */
    IS(cuMemAllocPitch_v2(&pointer, &pitch, 1000, 1048577, 4), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(pointer, UNTOUCHED);
    CHECK_EQ_U64(pitch, 99);
    OK(cuMemAllocPitch_v2(&pointer, &pitch, 1000, 1048576, 4));
    CHECK_EQ_U64(pitch, 1024);
    CHECK_EQ_U64(charged(0), GIB);
    refused(1);
    OK(cuMemFree_v2(pointer));
    CHECK_EQ_U64(charged(0), 0);
}

static void products_that_overflow_are_refused(void)
{
    CUdeviceptr pointer = UNTOUCHED;
    size_t pitch = 99;
    world_context(0);
    IS(cuMemAllocPitch_v2(&pointer, &pitch, (size_t)1 << 40, (size_t)1 << 40, 4), CUDA_ERROR_OUT_OF_MEMORY);
    IS(cuMemAllocPitch_v2(&pointer, &pitch, SIZE_MAX, 2, 4), CUDA_ERROR_OUT_OF_MEMORY);
    refused(SIZE_MAX);
    refused(SIZE_MAX - 511);
    refused((size_t)1 << 42);
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(pointer, UNTOUCHED);
}

static void unlimited_means_the_card(void)
{
    world_context(0);
    allocated(80 * GIB);
    IS(cuMemAlloc_v2(&(CUdeviceptr){0}, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(charged(0), 80 * GIB);
}

static void a_limit_of_zero_admits_nothing(void)
{
    world_context(1);
    refused(1);
}

static void freeing_makes_room_again(void)
{
    world_context(0);
    CUdeviceptr one = allocated(GIB / 2);
    CUdeviceptr two = allocated(GIB / 2);
    refused(1);
    OK(cuMemFree_v2(one));
    CHECK_EQ_U64(charged(0), GIB / 2);
    allocated(GIB / 2);
    OK(cuMemFree_v2(two));
    CHECK_EQ_U64(charged(0), GIB / 2);
}

static void frees_of_what_is_not_ours_are_the_drivers_business(void)
{
    CUdeviceptr hidden;
    world_context(0);
    CUdeviceptr own = allocated(4096);
    CUresult unknown = REAL(cuMemFree_v2)(0xdead0000);
    CHECK(unknown != CUDA_SUCCESS);
    IS(cuMemFree_v2(0xdead0000), unknown);
    OK(cuMemFree_v2(0));
    OK(REAL(cuMemAlloc_v2)(&hidden, 4096));
    OK(cuMemFree_v2(hidden));
    CHECK_EQ_U64(charged(0), 4096);
    OK(cuMemFree_v2(own));
    IS(cuMemFree_v2(own), unknown);
    CHECK_EQ_U64(charged(0), 0);
}

static void invalid_arguments_get_the_drivers_own_error(void)
{
    CUdeviceptr pointer;
    size_t pitch;
    world_context(0);
    IS(cuMemAlloc_v2(NULL, 512), REAL(cuMemAlloc_v2)(NULL, 512));
    IS(cuMemAlloc_v2(&pointer, 0), REAL(cuMemAlloc_v2)(&pointer, 0));
    IS(cuMemAllocManaged(&pointer, 512, 77), REAL(cuMemAllocManaged)(&pointer, 512, 77));
    IS(cuMemAllocPitch_v2(&pointer, &pitch, 64, 2, 3), REAL(cuMemAllocPitch_v2)(&pointer, &pitch, 64, 2, 3));
    IS(cuMemAllocPitch_v2(&pointer, NULL, 64, 2, 4), REAL(cuMemAllocPitch_v2)(&pointer, NULL, 64, 2, 4));
    IS(cuMemAllocPitch_v2(NULL, &pitch, 64, 2, 4), REAL(cuMemAllocPitch_v2)(NULL, &pitch, 64, 2, 4));
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(taken(), 0);
}

static void without_a_context_the_driver_answers(void)
{
    CUdeviceptr pointer = UNTOUCHED;
    CUresult expected = REAL(cuMemAlloc_v2)(&pointer, 512);
    CHECK(expected != CUDA_SUCCESS);
    IS(cuMemAlloc_v2(&pointer, 512), expected); /* before cuInit */
    OK(cuInit(0));
    expected = REAL(cuMemAlloc_v2)(&pointer, 512);
    CHECK(expected != CUDA_SUCCESS);
    IS(cuMemAlloc_v2(&pointer, 512), expected);
    CHECK_EQ_U64(pointer, UNTOUCHED);
    CHECK_EQ_U64(charged(0), 0);
}

static void a_driver_that_refuses_costs_nothing(void)
{
    CUdeviceptr pointer = UNTOUCHED;
    CHECK(setenv("TESSERA_SIM_FAIL", "cuMemAlloc_v2:1+:2,cuMemAllocPitch_v2:1+:999,cuMemFree_v2:1:700", 1) == 0);
    world_context(0);
    for (int i = 0; i < 100; i++) {
        IS(cuMemAlloc_v2(&pointer, 512 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
        IS(cuMemAllocPitch_v2(&pointer, &(size_t){0}, 512, MIB, 4), CUDA_ERROR_UNKNOWN);
    }
    CHECK_EQ_U64(pointer, UNTOUCHED);
    CHECK_EQ_U64(charged(0), 0);
    OK(cuMemAllocManaged(&pointer, GIB, CU_MEM_ATTACH_GLOBAL));
    IS(cuMemFree_v2(pointer), CUDA_ERROR_ILLEGAL_ADDRESS); /* not freed: still counted */
    CHECK_EQ_U64(charged(0), GIB);
    OK(cuMemFree_v2(pointer));
    CHECK_EQ_U64(charged(0), 0);
}

static void memory_is_charged_to_the_device_of_the_context(void)
{
    CUcontext second;
    world_context(0);
    allocated(512 * MIB);
    OK(cuCtxCreate_v2(&second, 0, 1));
    CUdeviceptr pointer = allocated(256 * MIB);
    CHECK_EQ_U64(charged(0), 512 * MIB);
    CHECK_EQ_U64(charged(1), 256 * MIB);
    OK(cuCtxPopCurrent_v2(&second));
    OK(cuMemFree_v2(pointer)); /* from another context */
    CHECK_EQ_U64(charged(1), 0);
}

static void destroying_a_context_gives_back_what_it_held(void)
{
    CUcontext first;
    CUcontext second;
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&first, 0, 0));
    for (int i = 0; i < 600; i++) {
        allocated(4096);
    }
    OK(cuCtxCreate_v2(&second, 0, 0));
    for (int i = 0; i < 300; i++) {
        allocated(8192);
    }
    CHECK_EQ_U64(charged(0), 600 * 4096 + 300 * 8192);
    OK(cuCtxDestroy_v2(first));
    CHECK_EQ_U64(charged(0), 300 * 8192);
    OK(cuCtxDestroy_v2(second));
    CHECK_EQ_U64(charged(0), 0);
}

static void a_context_at_the_address_of_an_older_one_has_its_own_device(void)
{
    CUcontext first;
    CUcontext second;
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&first, 0, 0));
    allocated(4096);
    OK(cuCtxDestroy_v2(first));
    OK(cuCtxCreate_v2(&second, 0, 1));
    CHECK(second == first);
    CUdeviceptr pointer = allocated(8192);
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(charged(1), 8192);
    OK(cuMemFree_v2(pointer));
    CHECK_EQ_U64(charged(1), 0);
}

static void the_last_release_of_a_primary_context_gives_back_and_so_does_reset(void)
{
    CUcontext context;
    world_context(0);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    allocated(4096);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    CHECK_EQ_U64(charged(0), 4096);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    CHECK_EQ_U64(charged(0), 0);
    world_context(0);
    allocated(8192);
    OK(cuDevicePrimaryCtxReset_v2(0));
    CHECK_EQ_U64(charged(0), 0);
}

static void any_order_of_allocations_and_frees_keeps_the_books(void)
{
    enum { HELD = 300, STEPS = 20000 };
    static CUdeviceptr held[HELD];
    static uint64_t sizes[HELD];
    uint64_t sum = 0;
    uint64_t random = 42;
    world_context(0);
    for (int step = 0; step < STEPS; step++) {
        random = random * 6364136223846793005ULL + 1442695040888963407ULL;
        size_t at = random >> 33 & 0xffff;
        at %= HELD;
        if (held[at] != 0) {
            OK(cuMemFree_v2(held[at]));
            sum -= sizes[at];
            held[at] = 0;
        } else {
            size_t bytes = (random >> 20 & 0x7fffff) + 1;
            uint64_t rounded = (bytes + 511) / 512 * 512;
            CUresult result = cuMemAlloc_v2(&held[at], bytes);
            IS(result, sum + rounded <= GIB ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
            sizes[at] = rounded;
            sum += result == CUDA_SUCCESS ? rounded : 0;
            held[at] = result == CUDA_SUCCESS ? held[at] : 0;
        }
        CHECK_EQ_U64(charged(0), sum);
    }
}

static void a_lowered_limit_refuses_growth_and_shows_no_negative_room(void)
{
    size_t free_bytes;
    size_t total;
    world_context(0);
    CUdeviceptr pointer = allocated(GIB);
    CHECK_EQ_U64(tessera_region_set_memory_limit(the_region(), 0, 256 * MIB), TESSERA_ERROR_OK);
    refused(1);
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    CHECK_EQ_U64(free_bytes, 0);
    CHECK_EQ_U64(total, 256 * MIB);
    OK(cuMemFree_v2(pointer));
    allocated(256 * MIB);
    CHECK_EQ_U64(tessera_region_set_memory_limit(the_region(), 0, 512 * MIB), TESSERA_ERROR_OK);
    allocated(256 * MIB);
    refused(1);
}

static void visible_devices_in_another_order_keep_their_limits(void)
{
    CHECK(setenv("CUDA_VISIBLE_DEVICES", "1,0", 1) == 0);
    world_context(0); /* the second card */
    refused(256 * MIB + 1);
    allocated(256 * MIB);
    CHECK_EQ_U64(charged(1), 256 * MIB);
    CHECK_EQ_U64(charged(0), 0);
}

static void a_card_that_the_share_does_not_list_is_refused(void)
{
    struct tessera_share_spec spec = a_share(GIB, 0);
    spec.device_count = 1;
    CHECK_EQ_U64(tessera_region_create(region_path, &spec), TESSERA_ERROR_OK);
    OK(cuInit(0));
    IS(cuDevicePrimaryCtxRetain(&(CUcontext){NULL}, 1), CUDA_ERROR_OUT_OF_MEMORY);
    IS(cuCtxCreate_v2(&(CUcontext){NULL}, 0, 1), CUDA_ERROR_OUT_OF_MEMORY);
    hidden_context(1);
    refused(1);
    IS(cuMemAllocManaged(&(CUdeviceptr){0}, 1, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
    IS(cuMemAllocAsync(&(CUdeviceptr){0}, 1, NULL), CUDA_ERROR_OUT_OF_MEMORY);
}

int main(void)
{
    CASE(the_limit_is_exact_for_plain_memory, GIB, GIB);
    CASE(the_limit_is_exact_in_units_of_512, 2048, GIB);
    CASE(a_limit_that_is_no_multiple_of_512_admits_what_lies_below, 1023, GIB);
    CASE(the_limit_is_exact_for_managed_memory, GIB, GIB);
    CASE(the_limit_is_exact_for_pitched_memory, GIB, GIB);
    CASE(products_that_overflow_are_refused, GIB, GIB);
    CASE(unlimited_means_the_card, TESSERA_UNLIMITED, GIB);
    CASE(a_limit_of_zero_admits_nothing, GIB, 0);
    CASE(freeing_makes_room_again, GIB, GIB);
    CASE(frees_of_what_is_not_ours_are_the_drivers_business, GIB, GIB);
    CASE(invalid_arguments_get_the_drivers_own_error, GIB, GIB);
    CASE(without_a_context_the_driver_answers, GIB, GIB);
    CASE(a_driver_that_refuses_costs_nothing, GIB, GIB);
    CASE(memory_is_charged_to_the_device_of_the_context, GIB, GIB);
    CASE(destroying_a_context_gives_back_what_it_held, GIB, GIB);
    CASE(a_context_at_the_address_of_an_older_one_has_its_own_device, GIB, GIB);
    CASE(the_last_release_of_a_primary_context_gives_back_and_so_does_reset, GIB, GIB);
    CASE(any_order_of_allocations_and_frees_keeps_the_books, GIB, GIB);
    CASE(a_lowered_limit_refuses_growth_and_shows_no_negative_room, GIB, GIB);
    CASE(visible_devices_in_another_order_keep_their_limits, GIB, 256 * MIB);
    CASE(a_card_that_the_share_does_not_list_is_refused, GIB, GIB);
    return 0;
}
