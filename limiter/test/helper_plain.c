/* DESIGN
 *
 * A program that is not linked with the driver. "absent": it must be told that there is none. "runtime": it does what
 * cudart does: opens the driver, takes one symbol by dlsym, everything else through that pointer, by base name and
 * version. "versioned": it uses dlvsym on a driver that has symbol versions.
 */
#include <dlfcn.h>

#include "check.h"
#include "cuda_abi.h"

static __typeof__(&cuGetProcAddress_v2) get;

static void *by_version(const char *name, int version, cuuint64_t flags)
{
    void *function = NULL;
    CHECK_EQ_U64(get(name, &function, version, flags, NULL), CUDA_SUCCESS);
    CHECK(function != NULL);
    return function;
}

static int absent(void)
{
    static const char *const names[] = {"cuInit", "cuMemAlloc_v2", "nvmlDeviceGetMemoryInfo"};
    for (size_t i = 0; i < 3; i++) {
        CHECK(dlsym(RTLD_DEFAULT, names[i]) == NULL);
        CHECK(dlerror() != NULL);
        CHECK(dlsym(dlopen(NULL, RTLD_NOW), names[i]) == NULL);
    }
    return 0;
}

static int runtime(void)
{
    CUdevice device;
    CUcontext context;
    CUdeviceptr pointer = 7;
    void *nothing = &nothing;
    size_t free_bytes;
    size_t total;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(driver != NULL);
    get = (__typeof__(get))dlsym(driver, "cuGetProcAddress_v2");
    CHECK(get != NULL);
    get("", &nothing, 0, 0, NULL); /* cudart's first request */
    CHECK_EQ_U64(((__typeof__(&cuInit))by_version("cuInit", 2000, 0))(0), CUDA_SUCCESS);
    CHECK_EQ_U64(((__typeof__(&cuDeviceGet))by_version("cuDeviceGet", 2000, 0))(&device, 0), CUDA_SUCCESS);
    __typeof__(&cuDevicePrimaryCtxRetain) retain = (__typeof__(retain))by_version("cuDevicePrimaryCtxRetain", 7000, 0);
    CHECK_EQ_U64(retain(&context, device), CUDA_SUCCESS);
    CHECK_EQ_U64(((__typeof__(&cuCtxSetCurrent))by_version("cuCtxSetCurrent", 4000, 0))(context), CUDA_SUCCESS);
    __typeof__(&cuMemAlloc_v2) allocate = (__typeof__(allocate))by_version("cuMemAlloc", 3020, 0);
    __typeof__(&cuMemGetInfo_v2) info = (__typeof__(info))by_version("cuMemGetInfo", 3020, 0);
    CHECK_EQ_U64(allocate(&pointer, (1 << 30) + 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(pointer, 7);
    CHECK_EQ_U64(allocate(&pointer, 1 << 30), CUDA_SUCCESS);
    CHECK_EQ_U64(info(&free_bytes, &total), CUDA_SUCCESS);
    CHECK_EQ_U64(total, 1 << 30);
    CHECK_EQ_U64(free_bytes, 0);
    __typeof__(&cuMemAllocAsync) async = (__typeof__(async))by_version("cuMemAllocAsync", 11020, 2);
    CHECK_EQ_U64(async(&pointer, 1, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    return 0;
}

/* dlvsym finds versioned symbols only. Without a region the hook tells itself by what it answers. */
static int versioned(void)
{
    CUdeviceptr pointer;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(driver != NULL);
    CHECK(dlvsym(driver, "cuMemAlloc_v2", "DRIVER_2") == NULL);
    __typeof__(&cuMemAlloc_v2) allocate = (__typeof__(allocate))dlvsym(driver, "cuMemAlloc_v2", "DRIVER_1");
    CHECK(allocate != NULL && (void *)allocate == dlsym(driver, "cuMemAlloc_v2"));
    CHECK_EQ_U64(allocate(&pointer, 1), CUDA_ERROR_NOT_PERMITTED);
    return 0;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    if (strcmp(argv[1], "absent") == 0) {
        return absent();
    }
    return strcmp(argv[1], "versioned") == 0 ? versioned() : runtime();
}
