/* DESIGN
 *
 * dlsym and dlvsym, replaced: the way by which cudart, PyTorch, NCCL and ctypes reach the driver. A plain export would
 * catch only programs that link with -lcuda.
 *
 * Names that no hook has are not looked at further: the call ends in a jump to the real function, with the caller's
 * return address in place, so that RTLD_NEXT and the caller's namespace mean what they meant (checked by
 * test_limiter_resolve; sibling calls need -O2, which this file always gets).
 *
 * Hooked names: the real function answers first. NULL stays NULL, with dlerror() set. An address in a driver library
 * becomes that hook's target, and the hook is returned. An address in another library (someone's wrapper) is returned
 * as it is. An address in this library comes from a global lookup, which finds our exports before the driver's; there
 * the lookup is repeated behind us, so that a program without a driver is told so.
 *
 * Names that are not hooked may still be refused, where the share's policy wants that (unknown.c).
 *
 * Limits. For hooked names only, RTLD_NEXT is taken as "after this library" and not "after the caller": a library that
 * wraps the driver and sits before us in the search order still reaches the driver through us. dlmopen, RTLD_DEEPBIND
 * and static programs are not reached; the agent sees them from outside.
 *
 * The real dlsym is found in libc's symbol table (libdl's before glibc 2.34) by elf.c: no dlsym is needed to find
 * dlsym.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "driver.h"
#include "elf.h"
#include "resolve.h"
#include "unknown.h"

#define LIBC "libc.so.6"
#define LIBDL "libdl.so.2" /* has the functions before glibc 2.34 */

typedef void *(*dlsym_function)(void *, const char *);
typedef void *(*dlvsym_function)(void *, const char *, const char *);

LIM_EXPORT void *dlsym(void *restrict handle, const char *restrict name);
LIM_EXPORT void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version);

static void *libc_function(void **cache, const char *name)
{
    void *function = __atomic_load_n(cache, __ATOMIC_RELAXED);
    if (function == NULL) {
        function = lim_elf_symbol(LIBC, name);
        if (function == NULL) {
            function = lim_elf_symbol(LIBDL, name);
        }
        __atomic_store_n(cache, function, __ATOMIC_RELAXED);
    }
    return function;
}

static dlsym_function real_dlsym(void)
{
    static void *cache;
    return (dlsym_function)libc_function(&cache, "dlsym");
}

static dlvsym_function real_dlvsym(void)
{
    static void *cache;
    return (dlvsym_function)libc_function(&cache, "dlvsym");
}

/* A quick no for nearly every lookup of a program. */
static bool may_be_hooked(const char *name)
{
    return name != NULL && ((name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v') ||
                            (name[0] == 'd' && name[1] == 'l'));
}

static void *hook_for(const char *name, const char **library)
{
    if (!may_be_hooked(name)) {
        return NULL;
    }
    *library = LIBC;
    if (strcmp(name, "dlsym") == 0) {
        return (void *)&dlsym;
    }
    if (strcmp(name, "dlvsym") == 0) {
        return (void *)&dlvsym;
    }
    return lim_hook_by_name(name, library);
}

/* The real lookup; from this frame RTLD_NEXT means "after this library". */
static void *look_up(void *handle, const char *name, const char *version)
{
    void *address = NULL;
    if (version == NULL) {
        dlsym_function real = real_dlsym();
        address = real == NULL ? NULL : real(handle, name);
    } else {
        dlvsym_function real = real_dlvsym();
        address = real == NULL ? NULL : real(handle, name, version);
    }
    __asm__ volatile("" : "+r"(address)); /* not a sibling call: the frame is the point */
    return address;
}

/* An answer of ours, or `hooked` false: the caller then jumps to the real function. Returned in registers: a local of
 * dlsym whose address is taken would turn that jump into a call. */
struct answer {
    void *address;
    size_t hooked;
};

static void *replace(void *address, const char *name, const char *library, void *hook)
{
    if (lim_elf_owns(library, address) || (strcmp(library, LIBC) == 0 && lim_elf_owns(LIBDL, address))) {
        lim_adopt_target(name, address);
        return hook;
    }
    return address;
}

/* A driver function that the share's policy refuses (unknown.c): the lookup fails, and dlerror() says which symbol. */
static struct answer refuse_unknown(void *handle, const char *name, const char *version)
{
    void *address = look_up(handle, name, version);
    if (address != NULL && lim_elf_owns(CUDA_LIBRARY, address)) {
        address = look_up(handle, name, "TESSERA_REFUSED"); /* no library has such a version */
    }
    return (struct answer){address, 1};
}

static __attribute__((noinline)) struct answer answer(void *handle, const char *name, const char *version)
{
    const char *library = NULL;
    void *hook = hook_for(name, &library);
    if (hook == NULL) {
        bool is_refused = may_be_hooked(name) && lim_is_unknown(name) && lim_refuses_unknown();
        return is_refused ? refuse_unknown(handle, name, version) : (struct answer){NULL, 0};
    }
    void *address = look_up(handle, name, version);
    if (address != NULL && lim_elf_is_ours(address)) {
        address = look_up(RTLD_NEXT, name, version);
    }
    return (struct answer){address == NULL ? NULL : replace(address, name, library, hook), 1};
}

LIM_EXPORT void *dlsym(void *restrict handle, const char *restrict name)
{
    struct answer ours = answer(handle, name, NULL);
    if (ours.hooked != 0) {
        return ours.address;
    }
    dlsym_function real = real_dlsym();
    return real == NULL ? NULL : real(handle, name);
}

LIM_EXPORT void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version)
{
    struct answer ours = answer(handle, name, version);
    if (ours.hooked != 0) {
        return ours.address;
    }
    dlvsym_function real = real_dlvsym();
    return real == NULL ? NULL : real(handle, name, version);
}
