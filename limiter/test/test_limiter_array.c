/* DESIGN
 *
 * Arrays: charged by what the driver says they take, not by the product of their sides. The simulated driver pads in
 * its own way, so a guess would show.
 */
#include "limiter_world.h"

static const CUarray UNTOUCHED = (CUarray)0x1234;

static CUDA_ARRAY_DESCRIPTOR flat(size_t width, size_t height)
{
    return (CUDA_ARRAY_DESCRIPTOR){width, height, CU_AD_FORMAT_FLOAT, 1};
}

static void arrays_are_charged_what_they_take(void)
{
    CUarray one;
    CUarray two;
    const CUDA_ARRAY_DESCRIPTOR odd = flat(333, 77);
    const CUDA_ARRAY3D_DESCRIPTOR deep = {100, 50, 25, CU_AD_FORMAT_HALF, 4, 0};
    world_context(0);
    OK(cuArrayCreate_v2(&one, &odd));
    CHECK_EQ_U64(charged(0), taken());
    CHECK(charged(0) >= 333 * 77 * 4);
    OK(cuArray3DCreate_v2(&two, &deep));
    CHECK_EQ_U64(charged(0), taken());
    OK(cuArrayDestroy(one));
    OK(cuArrayDestroy(two));
    CHECK_EQ_U64(charged(0), 0);
}

static void arrays_past_the_limit_are_refused(void)
{
    CUarray array = UNTOUCHED;
    const CUDA_ARRAY_DESCRIPTOR quarter = flat(16384, 16384 / 4); /* 256 MiB */
    world_context(0);
    for (int i = 0; i < 4; i++) {
        OK(cuArrayCreate_v2(&array, &quarter));
    }
    array = UNTOUCHED;
    CHECK_EQ_U64(charged(0), GIB);
    IS(cuArrayCreate_v2(&array, &quarter), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(array == UNTOUCHED);
    CHECK_EQ_U64(taken(), GIB);
}

static void mipmapped_arrays_count_all_levels(void)
{
    CUmipmappedArray array;
    CUarray level;
    const CUDA_ARRAY3D_DESCRIPTOR descriptor = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    world_context(0);
    OK(cuMipmappedArrayCreate(&array, &descriptor, 5));
    CHECK_EQ_U64(charged(0), taken());
    CHECK(charged(0) > 1024 * 1024 * 4);
    OK(cuMipmappedArrayGetLevel(&level, array, 1));
    cuArrayDestroy(level); /* a view: whatever the driver says, nothing is given back */
    CHECK_EQ_U64(charged(0), taken());
    OK(cuMipmappedArrayDestroy(array));
    CHECK_EQ_U64(charged(0), 0);
}

static void sparse_and_deferred_arrays_take_nothing(void)
{
    CUarray array;
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {16384, 16384, 16, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_SPARSE};
    world_context(0);
    OK(cuArray3DCreate_v2(&array, &descriptor));
    descriptor.Flags = CUDA_ARRAY3D_DEFERRED_MAPPING;
    OK(cuArray3DCreate_v2(&array, &descriptor));
    CHECK_EQ_U64(charged(0), 0);
}

static void a_driver_that_tells_no_size_is_charged_the_product(void)
{
    CUarray array;
    const CUDA_ARRAY_DESCRIPTOR descriptor = flat(1024, 1024);
    CHECK(setenv("TESSERA_SIM_FAIL", "cuArrayGetMemoryRequirements:1+:801", 1) == 0);
    world_context(0);
    OK(cuArrayCreate_v2(&array, &descriptor));
    CHECK_EQ_U64(charged(0), 1024 * 1024 * 4);
}

static void errors_are_the_drivers_and_cost_nothing(void)
{
    CUarray array = UNTOUCHED;
    CUarray other = UNTOUCHED;
    CUmipmappedArray mipmapped;
    const CUDA_ARRAY_DESCRIPTOR empty = flat(0, 0);
    const CUDA_ARRAY3D_DESCRIPTOR odd = {64, 64, 0, (CUarray_format)0x77, 3, 0};
    world_context(0);
    IS(cuArrayCreate_v2(&array, &empty), REAL(cuArrayCreate_v2)(&other, &empty));
    IS(cuArrayCreate_v2(NULL, &empty), REAL(cuArrayCreate_v2)(NULL, &empty));
    IS(cuArrayCreate_v2(&array, NULL), REAL(cuArrayCreate_v2)(&other, NULL));
    IS(cuArray3DCreate_v2(&array, &odd), REAL(cuArray3DCreate_v2)(&other, &odd));
    IS(cuMipmappedArrayCreate(&mipmapped, &odd, 0), REAL(cuMipmappedArrayCreate)(&mipmapped, &odd, 0));
    IS(cuArrayDestroy(NULL), REAL(cuArrayDestroy)(NULL));
    CHECK(array == UNTOUCHED);
    CHECK_EQ_U64(charged(0), 0);
}

static void a_destroyed_context_gives_back_its_arrays(void)
{
    CUcontext context;
    CUarray array;
    const CUDA_ARRAY_DESCRIPTOR descriptor = flat(1024, 1024);
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuArrayCreate_v2(&array, &descriptor));
    OK(cuCtxDestroy_v2(context));
    CHECK_EQ_U64(charged(0), 0);
}

int main(void)
{
    CASE(arrays_are_charged_what_they_take, GIB, GIB);
    CASE(arrays_past_the_limit_are_refused, GIB, GIB);
    CASE(mipmapped_arrays_count_all_levels, GIB, GIB);
    CASE(sparse_and_deferred_arrays_take_nothing, GIB, GIB);
    CASE(a_driver_that_tells_no_size_is_charged_the_product, GIB, GIB);
    CASE(errors_are_the_drivers_and_cost_nothing, GIB, GIB);
    CASE(a_destroyed_context_gives_back_its_arrays, GIB, GIB);
    return 0;
}
