/* DESIGN
 *
 * A program on a driver that is newer than the library (helper_newer.c). "given": it gets the driver's own functions,
 * unknown ones too. "refused": unknown ones that read like taking memory are not there, by any road, and all else is.
 */
#include <dlfcn.h>
#include <stdbool.h>

#include "check.h"
#include "cuda_abi.h"

static void *driver;

static void *by_version(const char *name, int version, int *status)
{
    void *function = &driver;
    void *by_older_form = &driver;
    __typeof__(&cuGetProcAddress_v2) get = (__typeof__(get))dlsym(driver, "cuGetProcAddress_v2");
    __typeof__(&cuGetProcAddress) older = (__typeof__(older))dlsym(driver, "cuGetProcAddress");
    CHECK_EQ_U64(get(name, &function, version, 0, (CUdriverProcAddressQueryResult *)status), CUDA_SUCCESS);
    CHECK_EQ_U64(older(name, &by_older_form, version, 0), CUDA_SUCCESS);
    CHECK(by_older_form == function);
    return function;
}

static void check_road(const char *name, int version, bool is_given)
{
    int status = 99;
    CHECK((by_version(name, version, &status) != NULL) == is_given);
    CHECK_EQ_U64(status, is_given ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

static void check_symbol(const char *name, bool is_given)
{
    dlerror();
    CHECK((dlsym(driver, name) != NULL) == is_given);
    CHECK((dlerror() == NULL) == is_given);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    bool is_given = strcmp(argv[1], "given") == 0;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(driver != NULL);
    CHECK_EQ_U64(((__typeof__(&cuInit))dlsym(driver, "cuInit"))(0), CUDA_SUCCESS);
    check_road("cuMemAllocTomorrow", 13000, is_given);
    check_symbol("cuMemAllocTomorrow", is_given);
    check_road("cuMemAlloc", 99000, is_given); /* an ABI with structures that nobody knows */
    check_symbol("cuMemAlloc_v9", is_given);
    check_road("cuMemAlloc", 3020, true);
    check_symbol("cuMemAlloc_v2", true);
    check_road("cuDeviceGetMood", 13000, true);
    check_symbol("cuDeviceGetMood", true);
    /* Names of other libraries are none of the driver's. */
    CHECK(dlsym(RTLD_DEFAULT, "cuOpenOfTheProgram") == (void *)dlsym(dlopen(NULL, RTLD_NOW), "cuOpenOfTheProgram"));
    CHECK(dlsym(RTLD_DEFAULT, "cuOpenOfTheProgram") != NULL);
    return 0;
}

__attribute__((visibility("default"))) int cuOpenOfTheProgram(void);
int cuOpenOfTheProgram(void)
{
    return 0;
}
