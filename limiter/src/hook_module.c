/* DESIGN
 *
 * Code and the variables that it declares. No call tells their size, and the driver may load lazily, with the first use
 * of a function. Loading a module or a library is measured at once: what does not fit is unloaded again and refused, as
 * a module may declare more device memory than any allocation asks for. The calls by which code is first used come by
 * the thousand and cannot be undone; they only say that there is something to measure (hidden.c).
 *
 * Source: CUDA Programming Guide, Lazy Loading.
 */
#include "driver.h"
#include "hidden.h"
#include "hook_pool.h"

/* Charges what loading took on the current device. False: it does not fit. */
static bool fits(struct lim_process *process)
{
    int device = lim_current_site(process).device;
    if (lim_hidden_settle(process, device, true)) {
        return true;
    }
    lim_relieve_pools(process);
    lim_reap_now(process);
    if (lim_hidden_settle(process, device, true)) {
        return true;
    }
    lim_note_refusal(process, (uint32_t)device, 0);
    return false;
}

static CUresult module_loaded(CUresult result, CUmodule *out, CUmodule module)
{
    struct lim_process *process = lim_attached();
    if (result != CUDA_SUCCESS || out == NULL) {
        return result;
    }
    if (process != NULL && !fits(process)) {
        CALL(cuModuleUnload, module);
        lim_mark_dirty(process, LIM_HIDDEN_DIRTY);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = module;
    return CUDA_SUCCESS;
}

static CUresult library_loaded(CUresult result, CUlibrary *out, CUlibrary library)
{
    struct lim_process *process = lim_attached();
    if (result != CUDA_SUCCESS || out == NULL) {
        return result;
    }
    if (process != NULL && !fits(process)) {
        CALL(cuLibraryUnload, library);
        lim_mark_dirty(process, LIM_HIDDEN_DIRTY);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = library;
    return CUDA_SUCCESS;
}

/* A call by which the driver may have loaded or unloaded code. */
static CUresult touched(CUresult result)
{
    struct lim_process *process = lim_attached();
    if (process != NULL && result == CUDA_SUCCESS) {
        lim_mark_dirty(process, LIM_HIDDEN_DIRTY);
    }
    return result;
}

LIM_EXPORT CUresult cuModuleLoad(CUmodule *out, const char *path)
{
    CUmodule module = NULL;
    CUresult result = CALL(cuModuleLoad, out == NULL ? NULL : &module, path);
    return module_loaded(result, out, module);
}

LIM_EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    CUmodule module = NULL;
    CUresult result = CALL(cuModuleLoadData, out == NULL ? NULL : &module, image);
    return module_loaded(result, out, module);
}

LIM_EXPORT CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int count, CUjit_option *options,
                                       void **values)
{
    CUmodule module = NULL;
    CUresult result = CALL(cuModuleLoadDataEx, out == NULL ? NULL : &module, image, count, options, values);
    return module_loaded(result, out, module);
}

LIM_EXPORT CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image)
{
    CUmodule module = NULL;
    CUresult result = CALL(cuModuleLoadFatBinary, out == NULL ? NULL : &module, image);
    return module_loaded(result, out, module);
}

LIM_EXPORT CUresult cuLibraryLoadData(CUlibrary *out, const void *code, CUjit_option *jit, void **jit_values,
                                      unsigned int jit_count, CUlibraryOption *options, void **values,
                                      unsigned int count)
{
    CUlibrary library = NULL;
    CUresult result = CALL(cuLibraryLoadData, out == NULL ? NULL : &library, code, jit, jit_values, jit_count, options,
                           values, count);
    return library_loaded(result, out, library);
}

LIM_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, CUjit_option *jit, void **jit_values,
                                          unsigned int jit_count, CUlibraryOption *options, void **values,
                                          unsigned int count)
{
    CUlibrary library = NULL;
    CUresult result = CALL(cuLibraryLoadFromFile, out == NULL ? NULL : &library, path, jit, jit_values, jit_count,
                           options, values, count);
    return library_loaded(result, out, library);
}

LIM_EXPORT CUresult cuModuleUnload(CUmodule module)
{
    return touched(CALL(cuModuleUnload, module));
}

LIM_EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    return touched(CALL(cuLibraryUnload, library));
}

LIM_EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
    return touched(CALL(cuModuleGetFunction, out, module, name));
}

LIM_EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *out, size_t *bytes, CUmodule module, const char *name)
{
    return touched(CALL(cuModuleGetGlobal_v2, out, bytes, module, name));
}

LIM_EXPORT CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name)
{
    return touched(CALL(cuLibraryGetKernel, out, library, name));
}

LIM_EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *out, size_t *bytes, CUlibrary library, const char *name)
{
    return touched(CALL(cuLibraryGetGlobal, out, bytes, library, name));
}

LIM_EXPORT CUresult cuLibraryGetManaged(CUdeviceptr *out, size_t *bytes, CUlibrary library, const char *name)
{
    return touched(CALL(cuLibraryGetManaged, out, bytes, library, name));
}

LIM_EXPORT CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel)
{
    return touched(CALL(cuKernelGetFunction, out, kernel));
}

LIM_EXPORT CUresult cuFuncLoad(CUfunction function)
{
    return touched(CALL(cuFuncLoad, function));
}

LIM_EXPORT CUresult cuLinkComplete(CUlinkState state, void **image, size_t *size)
{
    return touched(CALL(cuLinkComplete, state, image, size));
}
