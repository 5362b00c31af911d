/* DESIGN
 *
 * Symbols: every name is exported, and cuGetProcAddress follows the version rules.
 */
#include "sim_world.h"

#include <dlfcn.h>

static const struct {
    const char *name;
    int version;
} names[] = {
#define CU_NAME(name, version) {#name, version},
#include "../sim/names.def"
#undef CU_NAME
};

static void *driver;

static void *address(const char *name, int version, int flags, int expected)
{
    void *found = (void *)1;
    CUdriverProcAddressQueryResult status;
    OK(cuGetProcAddress_v2(name, &found, version, (cuuint64_t)flags, &status));
    CHECK_EQ_U64(status, expected);
    CHECK((found == NULL) == (expected != CU_GET_PROC_ADDRESS_SUCCESS));
    return found;
}

static void expect(const char *name, int version, int flags, const char *symbol)
{
    void *found = address(name, version, flags, CU_GET_PROC_ADDRESS_SUCCESS);
    if (found != dlsym(driver, symbol)) CHECK_FAIL("%s at %d flags %d is not %s", name, version, flags, symbol);
}

static void every_name_is_exported(void)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (dlsym(driver, names[i].name) == NULL) CHECK_FAIL("%s is not exported", names[i].name);
}

static void the_newest_form_not_newer_than_asked(void)
{
    expect("cuMemAlloc", 2000, 0, "cuMemAlloc");
    expect("cuMemAlloc", 3010, 0, "cuMemAlloc");
    expect("cuMemAlloc", 3020, 0, "cuMemAlloc_v2");
    expect("cuMemAlloc", 13000, 0, "cuMemAlloc_v2");
    expect("cuCtxCreate", 11030, 0, "cuCtxCreate_v2");
    expect("cuCtxCreate", 11040, 0, "cuCtxCreate_v3");
    expect("cuCtxCreate", 12050, 0, "cuCtxCreate_v4");
    expect("cuGetProcAddress", 11030, 0, "cuGetProcAddress");
    expect("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2");
    expect("cuMemcpy", 13000, 0, "cuMemcpy"); /* cuMemcpy_v2 is exported, never resolved */
}

static void per_thread_forms_only_when_asked_and_there(void)
{
    expect("cuMemAllocAsync", 11020, 0, "cuMemAllocAsync");
    expect("cuMemAllocAsync", 11020, 1, "cuMemAllocAsync");
    expect("cuMemAllocAsync", 11020, 2, "cuMemAllocAsync_ptsz");
    expect("cuMemcpyHtoD", 3020, 2, "cuMemcpyHtoD_v2");
    expect("cuMemcpyHtoD", 7000, 2, "cuMemcpyHtoD_v2_ptds");
    expect("cuMemAlloc", 13000, 2, "cuMemAlloc_v2");
    expect("cuStreamGetCaptureInfo", 12030, 2, "cuStreamGetCaptureInfo_v3_ptsz");
}

static void what_cannot_be_had_is_null_with_a_reason(void)
{
    void *found;
    address("cuMemAllocAsync", 11010, 0, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    address("cuMemAlloc", 0, 0, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    address("cuNoSuchThing", 12000, 0, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    address("cuMemAlloc_v2", 12000, 0, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    address("cuMemAll", 12000, 0, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    address("", 0, 0, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    /* 13.1 is newer than this driver: the name does not exist in it. */
    address("cuMulticastBindMem", 13000, 0, CU_GET_PROC_ADDRESS_SUCCESS);
    address("cuDevSmResourceSplit", 13000, 0, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    IS(cuGetProcAddress_v2("cuMemAlloc", &found, 13010, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    IS(cuGetProcAddress_v2("cuMemAlloc", &found, 12000, 3, NULL), CUDA_ERROR_INVALID_VALUE);
    IS(cuGetProcAddress_v2(NULL, &found, 12000, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuGetProcAddress("cuNoSuchThing", &found, 12000, 0));
    CHECK(found == NULL);
}

static void a_stub_says_not_supported(void)
{
    CUresult (*stub)(void) = (CUresult (*)(void))(uintptr_t)dlsym(driver, "cuTexRefCreate");
    IS(stub(), CUDA_ERROR_NOT_SUPPORTED);
    const void *table;
    CUuuid id = {{0}};
    IS(cuGetExportTable(&table, &id), CUDA_ERROR_NOT_FOUND);
}

static void errors_have_names(void)
{
    const char *text;
    OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK_EQ_STR(text, "CUDA_ERROR_OUT_OF_MEMORY");
    OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK_EQ_STR(text, "out of memory");
    IS(cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
}

int main(void)
{
    int version;
    world_write("driver version=13.0\ndevice\n");
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    CHECK(driver != NULL);
    OK(cuDriverGetVersion(&version)); /* all of this before cuInit */
    CHECK_EQ_U64(version, 13000);
    every_name_is_exported();
    the_newest_form_not_newer_than_asked();
    per_thread_forms_only_when_asked_and_there();
    what_cannot_be_had_is_null_with_a_reason();
    a_stub_says_not_supported();
    errors_have_names();
    return 0;
}
