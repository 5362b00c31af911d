/* The real driver: forwarding pointers, and what the hooks ask it. */
#ifndef LIM_DRIVER_H
#define LIM_DRIVER_H

#include "cuda_abi.h"
#include "hints.h"
#include "nvml_abi.h"
#include "process.h"

#define LIM_EXPORT __attribute__((visibility("default")))

#define CUDA_LIBRARY "libcuda.so"
#define NVML_LIBRARY "libnvidia-ml.so"

/* What a hook answers when the real function cannot be found: the driver's "named symbol not found". */
#define LIM_NO_DRIVER CUDA_ERROR_NOT_FOUND
/* What a hook answers without a valid region. */
#define LIM_DENIED CUDA_ERROR_NOT_PERMITTED

#define CUDA_PASS(name, base, since, variant)
#define CUDA_HOOK(name, base, since, variant) __typeof__(&name) name;
#define NVML_HOOK(name) __typeof__(&name) name;
#define CUDA_NEED(name) __typeof__(&name) name;
#define NVML_NEED(name) __typeof__(&name) name;
struct lim_driver {
#include "hooks.def"
};
#undef CUDA_PASS
#undef CUDA_HOOK
#undef NVML_HOOK
#undef CUDA_NEED
#undef NVML_NEED

extern struct lim_driver lim_driver __attribute__((visibility("hidden")));

/* Fills every pointer that is still NULL from the loaded driver libraries. */
LIM_COLD void lim_bind_driver(void);

/* True if the loaded driver has the function; its pointer is then bound. */
#define HAS(name)                                                                                                     \
    (LIM_USUAL(__atomic_load_n(&lim_driver.name, __ATOMIC_RELAXED) != NULL) ||                                        \
     (lim_bind_driver(), __atomic_load_n(&lim_driver.name, __ATOMIC_RELAXED) != NULL))

/* Calls the real function, or answers `missing` when there is none. */
#define CALL_OR(missing, name, ...) (HAS(name) ? lim_driver.name(__VA_ARGS__) : (missing))
#define CALL(name, ...) CALL_OR(LIM_NO_DRIVER, name, __VA_ARGS__)

/* Where an allocation goes. */
struct lim_site {
    CUcontext context;
    CUdevice ordinal; /* the driver's number; valid with device != LIM_NO_DEVICE */
    int device;       /* index in the region, or LIM_NO_DEVICE / LIM_UNLISTED_DEVICE */
};

/* Region index of a driver's device number; LIM_NO_DEVICE if the driver does not know it. */
int lim_device_of(struct lim_process *process, CUdevice device);

/* Region index of the device that a location names; LIM_NO_DEVICE for host memory and numbers the driver refuses. */
int lim_location_device(struct lim_process *process, const CUmemLocation *location);

/* As lim_device_of for callers that have no slot, without the cache. */
int lim_device_in(const struct tessera_region *region, CUdevice device);

/* The calling thread's context and its device; LIM_NO_DEVICE without a context. */
struct lim_site lim_current_site(struct lim_process *process);

/* Brackets a driver call that may end a context, so that nothing remembered about contexts outlives one. The first
 * returns what the second takes. */
struct lim_process *lim_context_ending(void);
void lim_context_ended(struct lim_process *process);

/* The context of a stream and its device; `per_thread` tells how stream 0 is meant. */
struct lim_site lim_stream_site(struct lim_process *process, CUstream stream, bool per_thread);

/* True while calls on the stream become nodes of a graph: nothing may be waited for, and nothing takes memory yet. */
bool lim_is_capturing(CUstream stream, bool per_thread);

#endif
