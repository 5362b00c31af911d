/* DESIGN
 *
 * Kernel launches. Without a limit on any device a launch costs two loads and a count, and jumps on to the driver. With
 * one it is held to it (compute.c), cooperative launches like any other: a launch is never split, and one that waits holds
 * nothing that another needs.
 *
 * The kernel of a launch is a CUfunction or a CUkernel in its place; either has its own charge. The three calls of CUDA
 * 2.0 keep their block shape and parameters in the function, and launch into stream 0 but for the last.
 */
#include "compute.h"

#define MOST_AT_ONCE 16u /* launches of one cuLaunchCooperativeKernelMultiDevice that are held, one a device */

static uint64_t blocks_of(unsigned x, unsigned y, unsigned z)
{
    return (uint64_t)x * y * z; /* grids are bounded by 2^31 x 2^16 x 2^16; beyond that the driver refuses */
}

/* A held launch: everything around the driver call, and the call itself, which takes its result from `call`. */
#define HOLD(process, function, grid, on, per_thread_, call)                                                          \
    do {                                                                                                              \
        struct lim_launch launch;                                                                                     \
        const struct lim_order order = {.what = (uint64_t)(uintptr_t)(function), .blocks = (grid), .stream = (on),     \
                                        .per_thread = (per_thread_)};                                                 \
        lim_launch_begin(&launch, process, &order);                                                                   \
        return lim_launch_end(&launch, call);                                                                         \
    } while (0)

/* The exported function: free ones jump, others are held out of line, so that their registers cost the free ones
 * nothing. */
#define LAUNCH_HOOK(name, parameters, arguments, function, grid, on, per_thread_)                                     \
    static __attribute__((noinline)) CUresult name##_held parameters                                                  \
    {                                                                                                                 \
        struct lim_process *process = lim_process();                                                                  \
        if (process == NULL) {                                                                                        \
            return LIM_DENIED;                                                                                        \
        }                                                                                                             \
        HOLD(process, function, grid, on, per_thread_, CALL_ARGUMENTS(name, arguments));                              \
    }                                                                                                                 \
    LIM_EXPORT CUresult name parameters                                                                               \
    {                                                                                                                 \
        struct lim_process *process = lim_process();                                                                  \
        if (LIM_USUAL(process != NULL && lim_runs_free(process) && HAS(name))) {                                      \
            return lim_driver.name arguments;                                                                         \
        }                                                                                                             \
        return name##_held arguments;                                                                                 \
    }
#define CALL_ARGUMENTS(name, arguments) (HAS(name) ? lim_driver.name arguments : LIM_NO_DRIVER)

#define KERNEL_PARAMETERS                                                                                             \
    (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,               \
     unsigned int bz, unsigned int shared, CUstream stream, void **params, void **extra)
#define KERNEL_ARGUMENTS (f, gx, gy, gz, bx, by, bz, shared, stream, params, extra)
LAUNCH_HOOK(cuLaunchKernel, KERNEL_PARAMETERS, KERNEL_ARGUMENTS, f, blocks_of(gx, gy, gz), stream, false)
LAUNCH_HOOK(cuLaunchKernel_ptsz, KERNEL_PARAMETERS, KERNEL_ARGUMENTS, f, blocks_of(gx, gy, gz), stream, true)

#define COOPERATIVE_PARAMETERS                                                                                        \
    (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,               \
     unsigned int bz, unsigned int shared, CUstream stream, void **params)
#define COOPERATIVE_ARGUMENTS (f, gx, gy, gz, bx, by, bz, shared, stream, params)
LAUNCH_HOOK(cuLaunchCooperativeKernel, COOPERATIVE_PARAMETERS, COOPERATIVE_ARGUMENTS, f, blocks_of(gx, gy, gz), stream,
            false)
LAUNCH_HOOK(cuLaunchCooperativeKernel_ptsz, COOPERATIVE_PARAMETERS, COOPERATIVE_ARGUMENTS, f, blocks_of(gx, gy, gz),
            stream, true)

static uint64_t blocks_in(const CUlaunchConfig *config)
{
    return config == NULL ? 0 : blocks_of(config->gridDimX, config->gridDimY, config->gridDimZ);
}

static CUstream stream_in(const CUlaunchConfig *config)
{
    return config == NULL ? NULL : config->hStream;
}

#define EX_PARAMETERS (const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
#define EX_ARGUMENTS (config, f, params, extra)
LAUNCH_HOOK(cuLaunchKernelEx, EX_PARAMETERS, EX_ARGUMENTS, f, blocks_in(config), stream_in(config), false)
LAUNCH_HOOK(cuLaunchKernelEx_ptsz, EX_PARAMETERS, EX_ARGUMENTS, f, blocks_in(config), stream_in(config), true)

static uint64_t blocks_of_2(int width, int height)
{
    return width > 0 && height > 0 ? (uint64_t)width * (uint64_t)height : 0;
}

LAUNCH_HOOK(cuLaunch, (CUfunction f), (f), f, 1, NULL, false)
LAUNCH_HOOK(cuLaunchGrid, (CUfunction f, int width, int height), (f, width, height), f, blocks_of_2(width, height), NULL,
            false)
LAUNCH_HOOK(cuLaunchGridAsync, (CUfunction f, int width, int height, CUstream stream), (f, width, height, stream), f,
            blocks_of_2(width, height), stream, false)

/* One launch on each of several devices: each has its turn on its own, then all go at once. */
static __attribute__((noinline)) CUresult launch_on_all(struct lim_process *process, CUDA_LAUNCH_PARAMS *list,
                                                        unsigned int count, unsigned int flags)
{
    struct lim_launch launches[MOST_AT_ONCE];
    unsigned held = list == NULL ? 0 : (count < MOST_AT_ONCE ? count : MOST_AT_ONCE);
    for (unsigned i = 0; i < held; i++) {
        const CUDA_LAUNCH_PARAMS *one = &list[i];
        const struct lim_order order = {.what = (uint64_t)(uintptr_t)one->function,
                                        .blocks = blocks_of(one->gridDimX, one->gridDimY, one->gridDimZ),
                                        .stream = one->hStream};
        lim_launch_begin(&launches[i], process, &order);
    }
    CUresult result = CALL(cuLaunchCooperativeKernelMultiDevice, list, count, flags);
    for (unsigned i = 0; i < held; i++) {
        lim_launch_end(&launches[i], result);
    }
    return result;
}

LIM_EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count,
                                                         unsigned int flags)
{
    struct lim_process *process = lim_process();
    if (process == NULL) {
        return LIM_DENIED;
    }
    if (lim_runs_free(process)) {
        return CALL(cuLaunchCooperativeKernelMultiDevice, list, count, flags);
    }
    return launch_on_all(process, list, count, flags);
}
