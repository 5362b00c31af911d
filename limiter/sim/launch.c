/* DESIGN
 *
 * Modules, libraries, functions and launches. Any image is accepted, any function name exists,
 * and the name says how long the kernel runs: `..._ns_N`, `..._us_N` or `..._ms_N` at its end;
 * other kernels take the description's kernel_us. `..._block_us_N` is the time of a block: such a kernel takes as many
 * waves of it as its grid fills on the device's SMs. Grid and block of others are checked, not used.
 *
 * CUfunction and CUkernel are one object, as the driver allows either where a function is due.
 */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

struct CUfunc_st {
    uint32_t magic;
    uint64_t ns;
    bool per_block; /* ns is the time of one block, else of the whole kernel */
    unsigned block; /* threads of a block, as cuFuncSetBlockShape left them */
    CUmodule module;
    struct CUfunc_st *next;
    char name[];
};

struct CUmod_st { /* also what a CUlibrary points to */
    uint32_t magic;
    uint64_t code; /* bytes, see footprint.c */
    CUfunction functions;
    struct CUmod_st *next;
};

static CUmodule modules; /* kept for ever: handles of unloaded modules must stay readable */

static bool is_module(CUmodule module)
{
    return module != NULL && module->magic == SIM_MODULE_MAGIC;
}

/* -- names that carry a time -------------------------------------------------------------- */

static uint64_t unit_of(const char *suffix, size_t length)
{
    if (length >= 4 && strncmp(suffix, "_ns_", 4) == 0) return 1;
    if (length >= 4 && strncmp(suffix, "_us_", 4) == 0) return 1000;
    if (length >= 4 && strncmp(suffix, "_ms_", 4) == 0) return 1000 * 1000;
    return 0;
}

static uint64_t time_in(const char *name)
{
    size_t length = strlen(name), digits = 0;
    while (digits < length && name[length - 1 - digits] >= '0' && name[length - 1 - digits] <= '9') digits++;
    if (digits == 0 || digits > 9 || length < digits + 4) return sim_description.kernel_ns;
    uint64_t unit = unit_of(name + length - digits - 4, 4);
    return unit == 0 ? sim_description.kernel_ns : unit * strtoull(name + length - digits, NULL, 10);
}

static bool is_per_block(const char *name)
{
    const char *digits = strrchr(name, '_');
    return digits != NULL && digits - name >= 9 && memcmp(digits - 9, "_block", 6) == 0;
}

/* Blocks that run on a device at once; threads and blocks of an SM bound them. */
static uint64_t resident(int row, uint64_t threads)
{
    uint64_t on_one = 2048 / threads;
    return (uint64_t)sim_description.device[row].sms * (on_one > 32 ? 32 : on_one);
}

uint64_t sim_kernel_ns(CUfunction function, int row, uint64_t blocks, uint64_t threads)
{
    if (!function->per_block || blocks == 0 || threads == 0 || threads > 1024) return function->ns;
    uint64_t at_once = resident(row, threads);
    return (blocks + at_once - 1) / at_once * function->ns;
}

/* -- modules ------------------------------------------------------------------------------ */

static CUresult load(CUmodule *out, const void *image)
{
    if (out == NULL || image == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUmodule module = calloc(1, sizeof *module);
    if (module == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    module->magic = SIM_MODULE_MAGIC;
    module->code = sim_code_bytes(image);
    sim_lock();
    module->next = modules;
    modules = module;
    sim_unlock();
    *out = module;
    return CUDA_SUCCESS;
}

static CUresult load_here(CUmodule *out, const void *image)
{
    CUcontext context;
    CUresult result = sim_current(&context);
    if (result == CUDA_SUCCESS) result = load(out, image);
    if (result != CUDA_SUCCESS || sim_code_load(*out, context, (*out)->code)) return result;
    (*out)->magic = SIM_DEAD;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API cuModuleLoad(CUmodule *out, const char *path)
{
    SIM_CALL("%s", path == NULL ? "" : path);
    return load_here(out, path);
}

SIM_API cuModuleLoadData(CUmodule *out, const void *image)
{
    SIM_CALL("%p", image);
    return load_here(out, image);
}

SIM_API cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int count, CUjit_option *options,
                           void **values)
{
    SIM_CALL("%p %u", image, count);
    (void)options;
    (void)values;
    return load_here(out, image);
}

SIM_API cuModuleLoadFatBinary(CUmodule *out, const void *image)
{
    SIM_CALL("%p", image);
    return load_here(out, image);
}

static CUresult unload(CUmodule module)
{
    if (!is_module(module)) return CUDA_ERROR_INVALID_HANDLE;
    module->magic = SIM_DEAD;
    sim_code_unload(module);
    return CUDA_SUCCESS;
}

SIM_API cuModuleUnload(CUmodule module)
{
    SIM_CALL("%p", (void *)module);
    return unload(module);
}

/* Called with the lock held. */
static CUfunction function_named(CUmodule module, const char *name)
{
    for (CUfunction function = module->functions; function != NULL; function = function->next)
        if (strcmp(function->name, name) == 0) return function;
    CUfunction function = calloc(1, sizeof *function + strlen(name) + 1);
    if (function == NULL) return NULL;
    function->magic = SIM_FUNCTION_MAGIC;
    function->ns = time_in(name);
    function->per_block = is_per_block(name);
    function->block = 1;
    function->module = module;
    strcpy(function->name, name);
    function->next = module->functions;
    module->functions = function;
    return function;
}

static CUresult get_function(CUfunction *out, CUmodule module, const char *name)
{
    if (out == NULL || name == NULL || name[0] == '\0') return CUDA_ERROR_INVALID_VALUE;
    if (!is_module(module)) return CUDA_ERROR_INVALID_HANDLE;
    CUcontext context; /* libraries are loaded lazily, where they are used */
    if (sim_current(&context) == CUDA_SUCCESS && !sim_code_load(module, context, module->code))
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_lock();
    *out = function_named(module, name);
    sim_unlock();
    return *out == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SIM_API cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
    SIM_CALL("%s", name == NULL ? "" : name);
    return get_function(out, module, name);
}

/* -- libraries ---------------------------------------------------------------------------- */

SIM_API cuLibraryLoadData(CUlibrary *out, const void *image, CUjit_option *jit, void **jit_values,
                          unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count)
{
    SIM_CALL("%p %u %u", image, jit_count, count);
    (void)jit;
    (void)jit_values;
    (void)options;
    (void)values;
    return load((CUmodule *)out, image);
}

SIM_API cuLibraryLoadFromFile(CUlibrary *out, const char *path, CUjit_option *jit, void **jit_values,
                              unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count)
{
    SIM_CALL("%s %u %u", path == NULL ? "" : path, jit_count, count);
    (void)jit;
    (void)jit_values;
    (void)options;
    (void)values;
    return load((CUmodule *)out, path);
}

SIM_API cuLibraryUnload(CUlibrary library)
{
    SIM_CALL("%p", (void *)library);
    return unload((CUmodule)library);
}

SIM_API cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name)
{
    SIM_CALL("%s", name == NULL ? "" : name);
    return get_function((CUfunction *)out, (CUmodule)library, name);
}

SIM_API cuLibraryGetModule(CUmodule *out, CUlibrary library)
{
    SIM_CALL("%p", (void *)library);
    if (out == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!is_module((CUmodule)library)) return CUDA_ERROR_INVALID_HANDLE;
    *out = (CUmodule)library;
    return CUDA_SUCCESS;
}

static CUresult check(CUfunction function)
{
    return function != NULL && function->magic == SIM_FUNCTION_MAGIC && is_module(function->module)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_HANDLE;
}

SIM_API cuKernelGetFunction(CUfunction *out, CUkernel kernel)
{
    SIM_CALL("%p", (void *)kernel);
    if (out == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check((CUfunction)kernel);
    if (result == CUDA_SUCCESS) *out = (CUfunction)kernel;
    return result;
}

static CUresult name_of(const char **out, CUfunction function)
{
    CUresult result = check(function);
    if (out == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) *out = function->name;
    return result;
}

SIM_API cuFuncGetName(const char **out, CUfunction function)
{
    SIM_CALL("%p", (void *)function);
    return name_of(out, function);
}

SIM_API cuKernelGetName(const char **out, CUkernel kernel)
{
    SIM_CALL("%p", (void *)kernel);
    return name_of(out, (CUfunction)kernel);
}

SIM_API cuFuncGetModule(CUmodule *out, CUfunction function)
{
    SIM_CALL("%p", (void *)function);
    CUresult result = check(function);
    if (out == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) *out = function->module;
    return result;
}

SIM_API cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    SIM_CALL("%d", attribute);
    CUresult result = check(function);
    if (value == NULL || attribute < 0) return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) *value = attribute == 0 ? 1024 : 0; /* 0: most threads per block */
    return result;
}

SIM_API cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    SIM_CALL("%d %d", attribute, value);
    return check(function);
}

SIM_API cuFuncLoad(CUfunction function)
{
    SIM_CALL("%p", (void *)function);
    return check(function);
}

/* -- launches ----------------------------------------------------------------------------- */

struct shape {
    unsigned grid[3], block[3];
};

static bool is_sound(const struct shape *shape)
{
    uint64_t threads = (uint64_t)shape->block[0] * shape->block[1] * shape->block[2];
    return shape->grid[0] != 0 && shape->grid[1] != 0 && shape->grid[2] != 0 && threads != 0 && threads <= 1024;
}

static uint64_t blocks_of(const struct shape *shape)
{
    return (uint64_t)shape->grid[0] * shape->grid[1] * shape->grid[2];
}

static uint64_t threads_of(const struct shape *shape)
{
    return (uint64_t)shape->block[0] * shape->block[1] * shape->block[2];
}

static CUresult launch(CUfunction function, struct shape shape, CUstream handle)
{
    CUstream stream;
    CUresult result = check(function);
    if (result == CUDA_SUCCESS) result = sim_stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!is_sound(&shape)) return CUDA_ERROR_INVALID_VALUE;
    return sim_enqueue(stream, sim_kernel_ns(function, stream->context->row, blocks_of(&shape), threads_of(&shape)));
}

/* All blocks must run at once. */
static CUresult launch_together(CUfunction function, struct shape shape, CUstream handle)
{
    CUstream stream;
    CUresult result = check(function);
    if (result == CUDA_SUCCESS) result = sim_stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (is_sound(&shape) && blocks_of(&shape) > resident(stream->context->row, threads_of(&shape)))
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    return launch(function, shape, handle);
}

/* Eleven parameters: the ABI's count, not ours. */
#define LAUNCH_PARAMS                                                                                     \
    (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, \
     CUstream stream, void **params, void **extra)

static CUresult do_cuLaunchKernel LAUNCH_PARAMS
{
    (void)shared;
    (void)params;
    (void)extra;
    return launch(f, (struct shape){{gx, gy, gz}, {bx, by, bz}}, stream);
}

SIM_TWINS(cuLaunchKernel, cuLaunchKernel_ptsz, LAUNCH_PARAMS,
          (f, gx, gy, gz, bx, by, bz, shared, stream, params, extra), "%p %u %u %u %p", (void *)f, gx, gy, gz,
          (void *)stream)

#define COOPERATIVE_PARAMS                                                                                \
    (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, \
     CUstream stream, void **params)

static CUresult do_cuLaunchCooperativeKernel COOPERATIVE_PARAMS
{
    (void)shared;
    (void)params;
    return launch_together(f, (struct shape){{gx, gy, gz}, {bx, by, bz}}, stream);
}

SIM_TWINS(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz, COOPERATIVE_PARAMS,
          (f, gx, gy, gz, bx, by, bz, shared, stream, params), "%p %u %u %u %p", (void *)f, gx, gy, gz,
          (void *)stream)

static CUresult do_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
    (void)params;
    (void)extra;
    if (config == NULL) return CUDA_ERROR_INVALID_VALUE;
    struct shape shape = {{config->gridDimX, config->gridDimY, config->gridDimZ},
                          {config->blockDimX, config->blockDimY, config->blockDimZ}};
    return launch(f, shape, config->hStream);
}

SIM_TWINS(cuLaunchKernelEx, cuLaunchKernelEx_ptsz,
          (const CUlaunchConfig *config, CUfunction f, void **params, void **extra), (config, f, params, extra),
          "%p %p", (void *)f, config == NULL ? NULL : (void *)config->hStream)

SIM_API cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags)
{
    SIM_CALL("%u %u", count, flags);
    if (list == NULL || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        const CUDA_LAUNCH_PARAMS *one = &list[i];
        struct shape shape = {{one->gridDimX, one->gridDimY, one->gridDimZ}, {one->blockDimX, one->blockDimY, one->blockDimZ}};
        CUresult result = launch_together(one->function, shape, one->hStream);
        if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
}

/* -- launches of CUDA 2.0: the shape of a block is kept in the function --------------------- */

SIM_API cuFuncSetBlockShape(CUfunction function, int x, int y, int z)
{
    SIM_CALL("%d %d %d", x, y, z);
    CUresult result = check(function);
    if (result != CUDA_SUCCESS) return result;
    if (x < 1 || y < 1 || z < 1 || x > 1024 || y > 1024 || z > 64 || x * y * z > 1024) return CUDA_ERROR_INVALID_VALUE;
    function->block = (unsigned)(x * y * z);
    return CUDA_SUCCESS;
}

static CUresult launch_grid(CUfunction function, int width, int height, CUstream stream)
{
    CUresult result = check(function);
    if (result != CUDA_SUCCESS) return result;
    if (width < 1 || height < 1) return CUDA_ERROR_INVALID_VALUE;
    return launch(function, (struct shape){{(unsigned)width, (unsigned)height, 1}, {function->block, 1, 1}}, stream);
}

SIM_API cuLaunch(CUfunction function)
{
    SIM_CALL("%p", (void *)function);
    return launch_grid(function, 1, 1, NULL);
}

SIM_API cuLaunchGrid(CUfunction function, int width, int height)
{
    SIM_CALL("%p %d %d", (void *)function, width, height);
    return launch_grid(function, width, height, NULL);
}

SIM_API cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
    SIM_CALL("%p %d %d %p", (void *)function, width, height, (void *)stream);
    return launch_grid(function, width, height, stream);
}
