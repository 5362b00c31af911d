/* DESIGN
 *
 * Every road by which a program can reach a driver function ends at the hook, and nothing else changes: linked, dlsym,
 * dlvsym, cuGetProcAddress in both ABIs and every version. The rows come from hooks.def, so a new row is tested at
 * once.
 */
#include <dlfcn.h>

#include "limiter_world.h"

enum { PLAIN, PTSZ };

struct row {
    const char *name;
    const char *base; /* NULL: NVML */
    int since;
    int variant;
    void *linked; /* NULL: a forwarded ABI */
};

#define CUDA_HOOK(name, base, since, variant) {#name, #base, since, variant, (void *)&name},
#define CUDA_PASS(name, base, since, variant) {#name, #base, since, variant, NULL},
#define NVML_HOOK(name) {#name, NULL, 0, PLAIN, (void *)&name},
#define CUDA_NEED(name)
#define NVML_NEED(name)
static const struct row rows[] = {
#include "../src/hooks.def"
};
#define EACH_ROW(row) (const struct row *row = rows; row < rows + sizeof rows / sizeof *rows; row++)

static void *hook_of(const struct row *row)
{
    return lim_elf_symbol("libtessera.so", row->name);
}

static void *opened(const struct row *row)
{
    void *handle = dlopen(row->base == NULL ? "libnvidia-ml.so.1" : "libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    CHECK(handle != NULL);
    return handle;
}

static void every_hook_is_exported_and_found_by_linked_programs(void)
{
    for EACH_ROW (row) {
        if (row->linked == NULL) {
            CHECK(hook_of(row) == NULL);
            continue;
        }
        if (hook_of(row) == NULL || row->linked != hook_of(row)) CHECK_FAIL("%s is not hooked", row->name);
    }
}

static void dlsym_answers_with_the_hook(void)
{
    for EACH_ROW (row) {
        void *expected = row->linked;
        if (expected == NULL) expected = lim_elf_symbol("libcuda.so", row->name);
        if (dlsym(opened(row), row->name) != expected) CHECK_FAIL("dlsym %s", row->name);
        if (dlvsym(opened(row), row->name, "VERSION") != NULL) CHECK_FAIL("dlvsym %s", row->name); /* has no versions */
        if (row->linked == NULL) continue;
        if (dlsym(RTLD_DEFAULT, row->name) != expected) CHECK_FAIL("RTLD_DEFAULT %s", row->name);
        if (dlsym(RTLD_NEXT, row->name) != expected) CHECK_FAIL("RTLD_NEXT %s", row->name);
    }
}

/* What a driver function of this base name, version and variant is to answer: worked out here from the rule "the
 * newest ABI that is not newer", over the rows. */
static const struct row *expected_row(const char *base, int version, int variant)
{
    const struct row *best = NULL;
    for EACH_ROW (row) {
        if (row->base == NULL || strcmp(row->base, base) != 0) continue;
        if (row->since > version || row->variant != variant) continue;
        if (best == NULL || row->since > best->since) best = row;
    }
    return best;
}

static void check_version(const char *base, int version, cuuint64_t flags)
{
    CUdriverProcAddressQueryResult status = 99;
    CUdriverProcAddressQueryResult real_status = 99;
    void *got = &status;
    void *real = &status;
    void *old_abi = &status;
    CUresult result = cuGetProcAddress_v2(base, &got, version, flags, &status);
    IS(result, REAL(cuGetProcAddress_v2)(base, &real, version, flags, &real_status));
    CHECK_EQ_U64(status, real_status);
    IS(cuGetProcAddress(base, &old_abi, version, flags), result);
    if (result != CUDA_SUCCESS || real == NULL) {
        CHECK(got == real);
        return;
    }
    const struct row *row = flags == 2 ? expected_row(base, version, PTSZ) : NULL;
    if (row == NULL) row = expected_row(base, version, PLAIN);
    void *expected = row == NULL || row->linked == NULL ? real : row->linked;
    if (got != expected || old_abi != expected) CHECK_FAIL("%s version %d flags %d", base, version, (int)flags);
}

static void every_version_of_every_name_resolves_by_the_rule(void)
{
    static const int versions[] = {0,     1000,  2000,  3010,  3020,  4000,  6000,  7000,  10020, 11000, 11010,
                                   11020, 11030, 11040, 12000, 12080, 12090, 13000, 13010, 20000};
    OK(REAL(cuInit)(0));
    for EACH_ROW (row) {
        if (row->base == NULL) continue;
        for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
            check_version(row->base, versions[i], 0);
            check_version(row->base, versions[i], 1);
            check_version(row->base, versions[i], 2);
        }
        check_version(row->base, row->since, 0);
        check_version(row->base, row->since - 10, 0);
    }
}

static void names_that_are_not_hooked_are_the_drivers(void)
{
    static const char *const names[] = {"",          "cuNothing",   "cuMemcpy", "cuLaunchKernel",
                                        "cuMemAllo", "cuMemAllocX", "nvmlInit"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        check_version(names[i], 13000, 0);
        check_version(names[i], 0, 2);
    }
    IS(cuGetProcAddress_v2(NULL, NULL, 0, 0, NULL), REAL(cuGetProcAddress_v2)(NULL, NULL, 0, 0, NULL));
    CHECK(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemcpy") == lim_elf_symbol("libcuda.so", "cuMemcpy"));
}

static void the_resolver_answers_itself(void)
{
    void *found;
    OK(cuGetProcAddress_v2("cuGetProcAddress", &found, 11030, 0, NULL));
    CHECK(found == (void *)&cuGetProcAddress);
    OK(cuGetProcAddress_v2("cuGetProcAddress", &found, 12000, 0, NULL));
    CHECK(found == (void *)&cuGetProcAddress_v2);
    CHECK(dlsym(RTLD_DEFAULT, "dlsym") == (void *)&dlsym);
    CHECK(dlsym(RTLD_DEFAULT, "dlvsym") == (void *)&dlvsym);
}

static void a_driver_newer_than_the_table_is_still_limited(void)
{
    void *found;
    CUdeviceptr pointer;
    world_write("driver version=99.9\ndevice uuid=" CARD_0 " memory_mib=81920\n");
    world_context(0);
    OK(cuGetProcAddress_v2("cuMemAlloc", &found, 99090, 0, NULL));
    IS(((__typeof__(&cuMemAlloc_v2))found)(&pointer, GIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
    world_write(machine_text);
}

static void other_lookups_mean_what_they_meant(void)
{
    char path[512];
    dlerror();
    CHECK(dlsym(RTLD_DEFAULT, "no_such_symbol_anywhere") == NULL);
    CHECK(dlerror() != NULL);
    CHECK(dlerror() == NULL);
    CHECK(dlsym(RTLD_DEFAULT, "cu_no_such_symbol") == NULL && dlerror() != NULL);
    CHECK(dlsym(RTLD_DEFAULT, "getpid") == (void *)&getpid);
    CHECK(dlvsym(RTLD_DEFAULT, "getpid", "NO_SUCH_VERSION") == NULL);
    snprintf(path, sizeof path, "%s/helper_next_b.so", getenv("TESSERA_TEST_HELPERS"));
    void *second = dlopen(path, RTLD_NOW);
    CHECK(second != NULL);
    CHECK(dlsym(second, "cuInit") == NULL); /* a library that has nothing to do with the driver */
    CHECK(dlerror() != NULL);
}

/* Loaded in this order, "next after a" is b; "next after libtessera" would be a. */
static void rtld_next_is_seen_from_its_caller(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/helper_next_a.so", getenv("TESSERA_TEST_HELPERS"));
    void *first = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* needs helper_next_b.so */
    CHECK(first != NULL);
    const char *(*(*ask)(void))(void) = (const char *(*(*)(void))(void))dlsym(first, "tessera_next_probe");
    CHECK(ask != NULL && ask() != NULL);
    CHECK_EQ_STR(ask()(), "b");
    /* Somebody's wrapper of a driver function is theirs. */
    CHECK(dlsym(first, "cuMemAlloc_v2") == lim_elf_symbol("helper_next_a", "cuMemAlloc_v2"));
}

static void helper(const char *mode)
{
    char path[512];
    snprintf(path, sizeof path, "%s/helper_plain", getenv("TESSERA_TEST_HELPERS"));
    execl(path, path, mode, (char *)NULL);
    _exit(127);
}

static void a_program_without_a_driver_is_told_so(void)
{
    helper("absent");
}

static void a_program_that_resolves_like_cudart_is_limited(void)
{
    CHECK(setenv("LD_LIBRARY_PATH", getenv("TESSERA_TEST_SIM"), 1) == 0);
    helper("runtime");
}

static void dlvsym_answers_with_the_hook(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/versioned", getenv("TESSERA_TEST_HELPERS"));
    CHECK(setenv("LD_LIBRARY_PATH", path, 1) == 0 && unlink(region_path) == 0);
    helper("versioned");
}

int main(void)
{
    CASE(every_hook_is_exported_and_found_by_linked_programs, GIB, GIB);
    CASE(dlsym_answers_with_the_hook, GIB, GIB);
    CASE(dlvsym_answers_with_the_hook, GIB, GIB);
    CASE(every_version_of_every_name_resolves_by_the_rule, GIB, GIB);
    CASE(names_that_are_not_hooked_are_the_drivers, GIB, GIB);
    CASE(the_resolver_answers_itself, GIB, GIB);
    CASE(a_driver_newer_than_the_table_is_still_limited, GIB, GIB);
    CASE(other_lookups_mean_what_they_meant, GIB, GIB);
    CASE(rtld_next_is_seen_from_its_caller, GIB, GIB);
    CASE(a_program_without_a_driver_is_told_so, GIB, GIB);
    CASE(a_program_that_resolves_like_cudart_is_limited, GIB, GIB);
    return 0;
}
