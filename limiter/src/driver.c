/* DESIGN
 *
 * One pointer per row of hooks.def, filled from the driver's own symbol table, so that no lookup of ours passes
 * through anything that was interposed (us included). Binding is idempotent and needs no lock: every thread writes the
 * same values. cuGetProcAddress may hand in a pointer first (resolve.c); it stays.
 *
 * Devices are known by UUID. The driver's numbers depend on CUDA_VISIBLE_DEVICES and on its ordering; they are
 * mapped once per number and process.
 *
 * The device of a context never changes, so every thread remembers the one of its last context and asks the driver only
 * which context is current. A context's address may be given to another one after it has ended. Each call that may end
 * a context therefore counts itself into process->contexts before (low bits) and out of it after (which also
 * advances the high bits): what was remembered holds only while the word is the same and no such call is under way.
 * A new context at an old address becomes current in a thread by that thread's own calls, hence after the driver
 * ended the old one, hence after the count. fork: the thread's memory survives, but the child's word starts elsewhere.
 */
#include "driver.h"

#include <string.h>

#include "compute.h"
#include "elf.h"

#define ENDINGS_MASK ((UINT64_C(1) << LIM_ENDINGS_BITS) - 1u)
#define ENDING_DONE ENDINGS_MASK /* one more done, one less under way */

struct lim_driver lim_driver;

/* In the static TLS block, at a fixed offset: no call, and no symbol newer than glibc 2.17. */
static _Thread_local struct {
    uint64_t contexts; /* 0: nothing yet */
    struct lim_site site;
} remembered __attribute__((tls_model("initial-exec")));

static void bind_function(void **pointer, const char *library, const char *symbol)
{
    if (__atomic_load_n(pointer, __ATOMIC_RELAXED) == NULL) {
        void *found = lim_elf_symbol(library, symbol);
        void *expected = NULL;
        __atomic_compare_exchange_n(pointer, &expected, found, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
}

void lim_bind_driver(void)
{
#define CUDA_PASS(name, base, since, variant)
#define CUDA_HOOK(name, base, since, variant) bind_function((void **)&lim_driver.name, CUDA_LIBRARY, #name);
#define NVML_HOOK(name) bind_function((void **)&lim_driver.name, NVML_LIBRARY, #name);
#define CUDA_NEED(name) bind_function((void **)&lim_driver.name, CUDA_LIBRARY, #name);
#define NVML_NEED(name) bind_function((void **)&lim_driver.name, NVML_LIBRARY, #name);
#include "hooks.def"
#undef CUDA_PASS
#undef CUDA_HOOK
#undef NVML_HOOK
#undef CUDA_NEED
#undef NVML_NEED
}

/* Under MIG the second form names the instance and the first one the card; a share may list either. */
int lim_device_in(const struct tessera_region *region, CUdevice device)
{
    CUuuid uuid;
    int index = LIM_NO_DEVICE;
    if (CALL(cuDeviceGetUuid_v2, &uuid, device) == CUDA_SUCCESS) {
        index = lim_device_by_uuid(region, (const unsigned char *)uuid.bytes);
    }
    if (index < 0 && CALL(cuDeviceGetUuid, &uuid, device) == CUDA_SUCCESS) {
        index = lim_device_by_uuid(region, (const unsigned char *)uuid.bytes);
    }
    return index;
}

int lim_device_of(struct lim_process *process, CUdevice device)
{
    if (device < 0 || device >= LIM_MAPPED_ORDINALS) {
        return lim_device_in(process->region, device);
    }
    uint8_t known = __atomic_load_n(&process->device_of[device], __ATOMIC_RELAXED);
    if (known != 0) {
        return known - 1;
    }
    int index = lim_device_in(process->region, device);
    if (index >= 0) {
        __atomic_store_n(&process->device_of[device], (uint8_t)(index + 1), __ATOMIC_RELAXED);
    }
    return index;
}

int lim_location_device(struct lim_process *process, const CUmemLocation *location)
{
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: return lim_device_of(process, location->id);
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN: return lim_device_of(process, location->localized.deviceId);
    default: return LIM_NO_DEVICE;
    }
}

struct lim_process *lim_context_ending(void)
{
    struct lim_process *process = lim_attached();
    if (process != NULL) {
        __atomic_fetch_add(&process->contexts, 1, __ATOMIC_ACQ_REL);
        lim_stop_collecting(process);
    }
    return process;
}

void lim_context_ended(struct lim_process *process)
{
    if (process != NULL) {
        __atomic_fetch_add(&process->contexts, ENDING_DONE, __ATOMIC_ACQ_REL);
    }
}

/* The device of the current context, by asking. */
LIM_COLD static struct lim_site ask_site(struct lim_process *process, CUcontext context, uint64_t contexts)
{
    struct lim_site site = {.context = context, .device = LIM_NO_DEVICE};
    if (context == NULL || CALL(cuCtxGetDevice, &site.ordinal) != CUDA_SUCCESS) {
        return site;
    }
    site.device = lim_device_of(process, site.ordinal);
    if (site.device >= 0 && (contexts & ENDINGS_MASK) == 0) {
        remembered.contexts = contexts;
        remembered.site = site;
    }
    return site;
}

struct lim_site lim_current_site(struct lim_process *process)
{
    CUcontext context = NULL;
    uint64_t contexts = __atomic_load_n(&process->contexts, __ATOMIC_ACQUIRE); /* before asking anything */
    if (CALL(cuCtxGetCurrent, &context) != CUDA_SUCCESS) {
        return (struct lim_site){.device = LIM_NO_DEVICE};
    }
    /* What is remembered was noted with no ending under way, so an equal word means that none is. */
    if (LIM_USUAL(context == remembered.site.context && contexts == remembered.contexts)) {
        return remembered.site;
    }
    return ask_site(process, context, contexts);
}

struct lim_site lim_stream_site(struct lim_process *process, CUstream stream, bool per_thread)
{
    CUcontext owner = NULL;
    uint64_t contexts = __atomic_load_n(&process->contexts, __ATOMIC_ACQUIRE); /* before asking anything */
    CUresult result = per_thread ? CALL(cuStreamGetCtx_ptsz, stream, &owner) : CALL(cuStreamGetCtx, stream, &owner);
    if (LIM_USUAL(result == CUDA_SUCCESS && owner == remembered.site.context && contexts == remembered.contexts)) {
        return remembered.site;
    }
    struct lim_site site = lim_current_site(process);
    if (result != CUDA_SUCCESS || owner == site.context) {
        return site;
    }
    /* The driver tells a context's device only for the current one. */
    if (CALL(cuCtxPushCurrent_v2, owner) == CUDA_SUCCESS) {
        site = lim_current_site(process);
        CALL(cuCtxPopCurrent_v2, &owner);
    }
    return site;
}

bool lim_is_capturing(CUstream stream, bool per_thread)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = per_thread ? CALL(cuStreamIsCapturing_ptsz, stream, &status)
                                 : CALL(cuStreamIsCapturing, stream, &status);
    return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}
