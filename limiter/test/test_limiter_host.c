/* DESIGN
 *
 * Pinned host memory, counted beside the share's device memory and against it only where the two are one; and the
 * 32-bit forms of CUDA 2.0, which take memory like any other.
 */
#include "limiter_world.h"

static const char integrated_text[] = "driver version=13.0\n"
                                      "device uuid=" CARD_0 " memory_mib=81920 pci=0000:07:00.0 integrated=1\n"
                                      "device uuid=" CARD_1 " memory_mib=81920 pci=0000:0b:00.0\n";

static uint64_t pinned(void)
{
    return the_region()->slot[0].device[0].host_pinned_bytes;
}

static void pinned_memory_is_shown_and_costs_nothing(void)
{
    static char pages[8192];
    void *one = NULL;
    void *two = NULL;
    void *three = NULL;
    world_context(0);
    OK(cuMemHostAlloc(&one, 3 * MIB, 0)); /* past the limit of the device's memory */
    OK(cuMemAllocHost_v2(&two, 1000));
    OK(cuMemHostRegister_v2(pages, sizeof pages, 0));
    OK(cuMemAllocHost(&three, 24));
    CHECK_EQ_U64(pinned(), 3 * MIB + 1000 + 8192 + 24);
    CHECK_EQ_U64(charged(0), 0);
    OK(cuMemFreeHost(one));
    OK(cuMemHostUnregister(pages));
    CHECK_EQ_U64(pinned(), 1024);
    OK(cuMemFreeHost(two));
    OK(cuMemFreeHost(three));
    CHECK_EQ_U64(pinned(), 0);
}

static void odd_calls_get_the_drivers_own_error(void)
{
    void *pages = (void *)0x10;
    world_context(0);
    IS(cuMemHostAlloc(NULL, 512, 0), REAL(cuMemHostAlloc)(NULL, 512, 0));
    IS(cuMemHostAlloc(&pages, 0, 0), REAL(cuMemHostAlloc)(&pages, 0, 0));
    IS(cuMemAllocHost_v2(NULL, 512), REAL(cuMemAllocHost_v2)(NULL, 512));
    IS(cuMemHostRegister_v2(NULL, 512, 0), REAL(cuMemHostRegister_v2)(NULL, 512, 0));
    IS(cuMemFreeHost((void *)0xdead0000), REAL(cuMemFreeHost)((void *)0xdead0000));
    IS(cuMemHostUnregister((void *)0xdead0000), REAL(cuMemHostUnregister)((void *)0xdead0000));
    CHECK(pages == (void *)0x10);
    CHECK_EQ_U64(pinned(), 0);
}

static void where_the_driver_fails_nothing_is_pinned(void)
{
    void *pages = NULL;
    CHECK(setenv("TESSERA_SIM_FAIL", "cuMemHostAlloc:1:2,cuMemFreeHost:1:999", 1) == 0);
    world_context(0);
    IS(cuMemHostAlloc(&pages, 512, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(pinned(), 0);
    OK(cuMemHostAlloc(&pages, 512, 0));
    IS(cuMemFreeHost(pages), CUDA_ERROR_UNKNOWN);
    CHECK_EQ_U64(pinned(), 512);
    OK(cuMemFreeHost(pages));
    CHECK_EQ_U64(pinned(), 0);
}

static void on_an_integrated_card_host_memory_is_device_memory(void)
{
    static char mine[4096];
    void *pages = NULL;
    CUdeviceptr pointer;
    world_write(integrated_text);
    world_context(0);
    OK(cuMemHostAlloc(&pages, MIB, 0));
    CHECK_EQ_U64(charged(0), MIB);
    IS(cuMemHostAlloc(&(void *){NULL}, MIB + 1, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemHostRegister_v2(mine, sizeof mine, 0)); /* the program's own */
    CHECK_EQ_U64(charged(0), MIB);
    OK(cuMemAlloc_v2(&pointer, MIB));
    IS(cuMemAllocHost_v2(&(void *){NULL}, 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFreeHost(pages));
    CHECK_EQ_U64(charged(0), MIB);
}

static void the_oldest_forms_are_counted(void)
{
    CUdeviceptr_v1 pointer = 7;
    unsigned int pitch = 7;
    unsigned int free_bytes;
    unsigned int total;
    CUarray array = NULL;
    world_context(0);
    IS(cuMemAlloc(&pointer, 2 * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(pointer, 7);
    OK(cuMemAlloc(&pointer, 2 * MIB));
    CHECK_EQ_U64(charged(0), 2 * MIB);
    OK(cuMemGetInfo(&free_bytes, &total));
    CHECK_EQ_U64(free_bytes, 0);
    CHECK_EQ_U64(total, 2 * MIB);
    OK(cuMemFree(pointer));
    CHECK_EQ_U64(charged(0), 0);
    IS(cuMemAllocPitch(&pointer, &pitch, 1000, 2049, 4), CUDA_ERROR_OUT_OF_MEMORY); /* rows of 1,024 */
    OK(cuMemAllocPitch(&pointer, &pitch, 1000, 2048, 4));
    CHECK_EQ_U64(pitch, 1024);
    CHECK_EQ_U64(charged(0), 2 * MIB);
    OK(cuMemFree_v2(pointer));
    CHECK_EQ_U64(charged(0), 0);
    const CUDA_ARRAY_DESCRIPTOR_v1 flat = {1024, 1024, CU_AD_FORMAT_FLOAT, 4}; /* 16 MiB */
    const CUDA_ARRAY3D_DESCRIPTOR_v1 solid = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 4, 0};
    const CUDA_ARRAY_DESCRIPTOR_v1 small = {128, 128, CU_AD_FORMAT_FLOAT, 1};
    IS(cuArrayCreate(&array, &flat), CUDA_ERROR_OUT_OF_MEMORY);
    IS(cuArray3DCreate(&array, &solid), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(array == NULL);
    OK(cuArrayCreate(&array, &small));
    CHECK_EQ_U64(charged(0), 65536); /* 128 rows of 512 bytes */
    CHECK_EQ_U64(taken(), 65536);
    OK(cuArrayDestroy(array));
    CHECK_EQ_U64(charged(0), 0);
    OK(cuDeviceTotalMem(&total, 0));
    CHECK_EQ_U64(total, 2 * MIB);
    IS(cuMemAlloc(NULL, 512), REAL(cuMemAlloc)(NULL, 512));
    IS(cuMemAlloc(&pointer, 0), REAL(cuMemAlloc)(&pointer, 0));
}

static void the_oldest_forms_say_what_they_can_of_a_large_card(void)
{
    unsigned int total;
    world_context(0);
    OK(cuDeviceTotalMem(&total, 0));
    CHECK_EQ_U64(total, UINT32_MAX);
}

int main(void)
{
    CASE(pinned_memory_is_shown_and_costs_nothing, 2 * MIB, GIB);
    CASE(odd_calls_get_the_drivers_own_error, 2 * MIB, GIB);
    CASE(where_the_driver_fails_nothing_is_pinned, 2 * MIB, GIB);
    CASE(the_oldest_forms_are_counted, 2 * MIB, GIB);
    CASE(the_oldest_forms_say_what_they_can_of_a_large_card, 8 * GIB, GIB);
    CASE(on_an_integrated_card_host_memory_is_device_memory, 2 * MIB, GIB);
    return 0;
}
