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

/* zlib's CRC-32. */
static uint32_t crc32_of(const void *data, size_t size)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < size * 8; i++) {
        uint32_t bit = (uint32_t)(((const unsigned char *)data)[i / 8] >> i % 8) & 1u;
        crc = ((crc ^ bit) & 1u) != 0 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
    }
    return ~crc;
}

/* Gives the region another minor version, with what that may have put into bytes that are reserved today. */
static void become_minor(uint32_t minor, unsigned char reserved)
{
    struct tessera_header header;
    int file = open(region_path, O_RDWR);
    CHECK(file >= 0 && pread(file, &header, sizeof header, 0) == sizeof header);
    header.minor = minor;
    memset(header.reserved, reserved, sizeof header.reserved);
    header.checksum = 0;
    header.checksum = crc32_of(&header, sizeof header);
    CHECK(pwrite(file, &header, sizeof header, 0) == sizeof header);
    for (off_t at = 4096 + 128 + 104; reserved != 0 && at < 4096 + 2176; at += 128) { /* device_control.reserved */
        for (off_t i = 0; i < 24; i++) {
            CHECK(pwrite(file, &reserved, 1, at + i) == 1);
        }
    }
    close(file);
}

static void a_whole_share_is_there(void)
{
    CUcontext context;
    CUdeviceptr pointer;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc_v2(&pointer, GIB));
    IS(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY);
}

/* The agent was upgraded, and a process has the library that its container was given before. */
static void a_region_of_a_newer_agent_is_used_by_what_it_means_to_us(void)
{
    become_minor(7, 0xA5);
    a_whole_share_is_there();
}

/* The library was upgraded, and the container goes on under a region that an older agent made; a newer agent then
 * changes limits in it. */
static void a_region_of_an_older_agent_is_used_and_can_be_changed(void)
{
    CUdeviceptr pointer;
    become_minor(0, 0);
    a_whole_share_is_there();
    CHECK_EQ_U64(tessera_region_set_memory_limit(the_region(), 0, GIB + MIB), TESSERA_ERROR_OK);
    CHECK_EQ_U64(tessera_region_set_compute(the_region(), 0, 300, TESSERA_MODE_HARD), TESSERA_ERROR_OK);
    OK(cuMemAlloc_v2(&pointer, MIB));
    IS(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(the_region()->control.gated, 1);
    CHECK_EQ_U64(the_region()->header.minor, 0); /* whose it is stays to be seen */
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
    CASE(a_region_of_a_newer_agent_is_used_by_what_it_means_to_us, GIB, GIB);
    CASE(a_region_of_an_older_agent_is_used_and_can_be_changed, GIB, GIB);
    CASE(a_directory_is_no_region, GIB, GIB);
    CASE(an_empty_variable_is_no_region, GIB, GIB);
    CASE(freeing_still_works, GIB, GIB);
    CASE(a_region_that_appears_later_opens, GIB, GIB);
    return 0;
}
