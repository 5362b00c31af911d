/* DESIGN
 *
 * The library without a valid region: everything that would take memory is refused with CUDA_ERROR_NOT_PERMITTED, the
 * driver is not called, nothing crashes, and a region that appears later is used.
 */
#include <fcntl.h>

#include "limiter_world.h"

static void everything_is_refused(void)
{
    CUdeviceptr pointer = 1;
    CUmemGenericAllocationHandle handle = 1;
    CUmemAllocationProp props = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    size_t size = 1;
    IS(cuInit(0), CUDA_ERROR_NOT_PERMITTED);
    OK(REAL(cuInit)(0)); /* a program that gets past cuInit */
    CUcontext context;
    OK(REAL(cuDevicePrimaryCtxRetain)(&context, 0));
    OK(REAL(cuCtxSetCurrent)(context));
    IS(cuMemAlloc_v2(&pointer, 512), CUDA_ERROR_NOT_PERMITTED);
    IS(cuMemAllocManaged(&pointer, 512, 1), CUDA_ERROR_NOT_PERMITTED);
    IS(cuMemAllocPitch_v2(&pointer, &size, 512, 1, 4), CUDA_ERROR_NOT_PERMITTED);
    IS(cuMemAllocAsync(&pointer, 512, NULL), CUDA_ERROR_NOT_PERMITTED);
    IS(cuMemAllocAsync_ptsz(&pointer, 512, NULL), CUDA_ERROR_NOT_PERMITTED);
    IS(cuMemCreate(&handle, 2 * MIB, &props, 0), CUDA_ERROR_NOT_PERMITTED);
    IS(cuArrayCreate_v2(&(CUarray){NULL}, &(CUDA_ARRAY_DESCRIPTOR){64, 64, CU_AD_FORMAT_FLOAT, 1}),
       CUDA_ERROR_NOT_PERMITTED);
    IS(cuMemGetInfo_v2(&size, &size), CUDA_ERROR_NOT_PERMITTED);
    IS(cuDeviceTotalMem_v2(&size, 0), CUDA_ERROR_NOT_PERMITTED);
    CHECK_EQ_U64(pointer, 1);
    CHECK_EQ_U64(handle, 1);
    CHECK_EQ_U64(size, 1);
    CHECK_EQ_U64(taken(), 0);
}

static void freeing_still_works(void)
{
    CUdeviceptr pointer;
    CHECK(unlink(region_path) == 0);
    everything_is_refused();
    OK(REAL(cuMemAlloc_v2)(&pointer, 512));
    OK(cuMemFree_v2(pointer));
    OK(cuStreamSynchronize(NULL));
}

static void a_missing_region_closes(void)
{
    CHECK(unlink(region_path) == 0);
    everything_is_refused();
}

static void a_truncated_region_closes(void)
{
    CHECK(truncate(region_path, 100000) == 0);
    everything_is_refused();
    CHECK(truncate(region_path, 0) == 0);
    everything_is_refused();
}

static void write_byte(off_t at, unsigned char byte)
{
    int file = open(region_path, O_WRONLY);
    CHECK(file >= 0 && pwrite(file, &byte, 1, at) == 1);
    close(file);
}

static void a_damaged_region_closes(void)
{
    write_byte(150, 'X');
    everything_is_refused();
}

static void a_region_of_another_version_closes(void)
{
    write_byte(8, 2);
    everything_is_refused();
}

static void a_directory_is_no_region(void)
{
    CHECK(setenv("TESSERA_REGION", "/tmp", 1) == 0);
    everything_is_refused();
}

static void an_empty_variable_is_no_region(void)
{
    CHECK(setenv("TESSERA_REGION", "", 1) == 0);
    everything_is_refused();
}

static void a_region_that_appears_later_opens(void)
{
    struct tessera_share_spec spec = a_share(GIB, GIB);
    CUdeviceptr pointer;
    CHECK(unlink(region_path) == 0);
    everything_is_refused();
    CHECK_EQ_U64(tessera_region_create(region_path, &spec), TESSERA_ERROR_OK);
    OK(cuInit(0));
    OK(cuMemAlloc_v2(&pointer, GIB));
    IS(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY);
}

int main(void)
{
    CASE(a_missing_region_closes, GIB, GIB);
    CASE(a_truncated_region_closes, GIB, GIB);
    CASE(a_damaged_region_closes, GIB, GIB);
    CASE(a_region_of_another_version_closes, GIB, GIB);
    CASE(a_directory_is_no_region, GIB, GIB);
    CASE(an_empty_variable_is_no_region, GIB, GIB);
    CASE(freeing_still_works, GIB, GIB);
    CASE(a_region_that_appears_later_opens, GIB, GIB);
    return 0;
}
