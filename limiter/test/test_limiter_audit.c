/* DESIGN
 *
 * Which of a driver's symbols end in the library, by every road a program has: all of src/hooks.def and nothing
 * else, peer access and other questions least of all. Without the library in the process, which is how control is
 * disabled for a process, none.
 */
#include <dlfcn.h>

#include "limiter_world.h"

static const char *const cuda_names[] = {
#define CU_NAME(name, version) #name,
#include "../sim/names.def"
#undef CU_NAME
};

static const char *const nvml_names[] = {
#define NVML_NAME(name) #name,
#include "../sim/nvml_names.def"
#undef NVML_NAME
};

static const char *const hooks[] = {
#define CUDA_HOOK(name, base, since, variant) #name,
#define CUDA_PASS(name, base, since, variant)
#define NVML_HOOK(name) #name,
#define CUDA_NEED(name)
#define NVML_NEED(name)
#include "../src/hooks.def"
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static bool is_hooked(const char *name)
{
    for (size_t i = 0; i < COUNT(hooks); i++) {
        if (strcmp(hooks[i], name) == 0) return true;
    }
    return false;
}

static bool is_ours(void *address)
{
    Dl_info info;
    return address != NULL && dladdr(address, &info) != 0 && strstr(info.dli_fname, "libtessera.so") != NULL;
}

/* True if a lookup of the name by any road ends in the library. */
static bool is_interposed(const char *library, const char *name)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
    CHECK(handle != NULL);
    bool by_handle = is_ours(dlsym(handle, name));
    bool by_default = is_ours(dlsym(RTLD_DEFAULT, name));
    if (by_handle != by_default) CHECK_FAIL("%s: the roads differ", name);
    return by_handle;
}

static unsigned audit(const char *library, const char *const *names, size_t count, bool is_controlled)
{
    unsigned found = 0;
    for (size_t i = 0; i < count; i++) {
        bool expected = is_controlled && is_hooked(names[i]);
        if (is_interposed(library, names[i]) != expected) {
            CHECK_FAIL("%s is %sinterposed", names[i], expected ? "not " : "");
        }
        found += expected;
    }
    return found;
}

/* Base names at the newest version, in every stream form. */
static unsigned audit_resolver(bool is_controlled)
{
    unsigned found = 0;
    for (size_t i = 0; i < COUNT(cuda_names); i++) {
        for (cuuint64_t flags = 0; flags < 3; flags++) {
            void *address = NULL;
            OK(cuGetProcAddress_v2(cuda_names[i], &address, 13000, flags, NULL));
            CHECK(is_controlled || !is_ours(address));
            found += is_ours(address);
        }
    }
    return found;
}

static void report(bool is_controlled)
{
    unsigned cuda = audit("libcuda.so.1", cuda_names, COUNT(cuda_names), is_controlled);
    unsigned nvml = audit("libnvidia-ml.so.1", nvml_names, COUNT(nvml_names), is_controlled);
    unsigned resolved = audit_resolver(is_controlled);
    CHECK_EQ_U64(cuda + nvml, is_controlled ? COUNT(hooks) : 0);
    CHECK((resolved > 0) == is_controlled);
    printf("%s: %u of %zu driver symbols, %u of %zu NVML symbols, %u answers of the resolver\n",
           is_controlled ? "under control" : "control disabled", cuda, COUNT(cuda_names), nvml, COUNT(nvml_names),
           resolved);
}

static void the_hooks_and_nothing_else_are_interposed(void)
{
    report(true);
    fflush(stdout);
}

static void without_the_library_nothing_is_interposed(void)
{
    CHECK(unsetenv("LD_PRELOAD") == 0);
    execl("/proc/self/exe", "audit", "bare", (char *)NULL);
    _exit(127);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "bare") == 0) {
        report(false);
        return 0;
    }
    CASE(the_hooks_and_nothing_else_are_interposed, GIB, GIB);
    CASE(without_the_library_nothing_is_interposed, GIB, GIB);
    return 0;
}
