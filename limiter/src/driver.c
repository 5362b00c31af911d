/* DESIGN
 *
 * One pointer per row of hooks.def, filled from the driver's own symbol table, so that no lookup of ours passes
 * through anything that was interposed (us included). Binding is idempotent and needs no lock: every thread writes the
 * same values. cuGetProcAddress may hand in a pointer first (resolve.c); it stays.
 *
 * Devices are known by UUID. The driver's numbers depend on CUDA_VISIBLE_DEVICES and on its ordering; they are
 * mapped once per number and process.
 */
#include "driver.h"

#include <string.h>

#include "elf.h"

struct lim_driver lim_driver;

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

struct lim_site lim_current_site(struct lim_process *process)
{
    struct lim_site site = {.context = NULL, .ordinal = 0, .device = LIM_NO_DEVICE};
    if (CALL(cuCtxGetCurrent, &site.context) == CUDA_SUCCESS && site.context != NULL &&
        CALL(cuCtxGetDevice, &site.ordinal) == CUDA_SUCCESS) {
        site.device = lim_device_of(process, site.ordinal);
    }
    return site;
}

struct lim_site lim_stream_site(struct lim_process *process, CUstream stream, bool per_thread)
{
    struct lim_site site = lim_current_site(process);
    CUcontext owner = NULL;
    CUresult result = per_thread ? CALL(cuStreamGetCtx_ptsz, stream, &owner) : CALL(cuStreamGetCtx, stream, &owner);
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
