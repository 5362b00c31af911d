/* DESIGN
 *
 * What a program is told about memory. All answers follow one rule, so that frameworks, which mix them, see one card:
 *
 *     total = min(limit, physical)    used = the whole share's
 *     free = min(max(0, total - used), min(physical free, below the ceiling) + what may still be spilled)
 *
 * The driver is asked first: its errors are the answer, and its figures bound ours. Subtractions clamp at zero, also
 * while the limit is below what is in use. NVML's process list shows the processes of the share that hold memory on
 * the device, with PIDs as the caller's namespace numbers them.
 */
#include <string.h>

#include "account.h"
#include "atomics.h"
#include "driver.h"
#include "hidden.h"
#include "hook_pool.h"
#include "physical.h"
#include "tessera_region_api.h"

struct view {
    uint64_t total;
    uint64_t used;
    uint64_t free;
};

static uint64_t smaller(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

/* What may be taken of the device itself until the share's ceiling is reached. */
static uint64_t below_ceiling(const struct tessera_region *region, uint32_t device)
{
    uint64_t used = lim_gauge_used(word_load(&region->usage.device[device].gauge));
    uint64_t ceiling = lim_ceiling_granules(region, device);
    uint64_t room = ceiling > used ? ceiling - used : 0;
    return room < TESSERA_MAX_GRANULES ? room * TESSERA_GRANULE : TESSERA_MAX_GRANULES * TESSERA_GRANULE;
}

/* The share's view of a device of which the driver says `total` and `free`. */
static struct view share_view(struct tessera_region *region, int device, uint64_t total, uint64_t free)
{
    struct view view = {0, 0, 0};
    if (device < 0) {
        return view; /* not in the share: a card without memory */
    }
    uint64_t limit = lim_limit(region, (uint32_t)device);
    view.used = lim_used(region, (uint32_t)device);
    view.total = smaller(limit, total);
    uint64_t spill = lim_spill_limit(region, (uint32_t)device);
    uint64_t spilled = lim_spilled_granules(region, (uint32_t)device) * TESSERA_GRANULE;
    uint64_t most = smaller(free, below_ceiling(region, (uint32_t)device)) + (spill > spilled ? spill - spilled : 0);
    view.free = smaller(view.total > view.used ? view.total - view.used : 0, most);
    return view;
}

/* Pools may hold less than when they were last read, and loaded code is measured only when somebody looks. */
static void refresh(void)
{
    struct lim_process *process = lim_attached();
    if (process != NULL && lim_is_dirty(process, LIM_POOLS_DIRTY | LIM_HIDDEN_DIRTY)) {
        lim_settle_dirty(process);
    }
}

LIM_EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    struct lim_process *process = lim_process();
    size_t real_free = 0;
    size_t real_total = 0;
    if (process == NULL) {
        return LIM_DENIED;
    }
    CUresult result = CALL(cuMemGetInfo_v2, free == NULL ? NULL : &real_free, total == NULL ? NULL : &real_total);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    refresh();
    /* The driver answered for the current context, so there is one and the site is its. */
    struct view view = share_view(process->region, lim_current_site(process).device, real_total, real_free);
    if (free != NULL) {
        *free = view.free;
    }
    if (total != NULL) {
        *total = view.total;
    }
    return CUDA_SUCCESS;
}

LIM_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    struct tessera_region *region = lim_region();
    size_t total = 0;
    if (region == NULL) {
        return LIM_DENIED;
    }
    CUresult result = CALL(cuDeviceTotalMem_v2, bytes == NULL ? NULL : &total, device);
    if (result == CUDA_SUCCESS && bytes != NULL) {
        /* Asked early, by processes that never allocate: takes no slot, so has no table of devices to look in. */
        int index = lim_device_in(region, device);
        *bytes = index < 0 ? 0 : smaller(lim_limit(region, (uint32_t)index), total);
    }
    return result;
}

/* Region index of an NVML handle. */
static int nvml_device(const struct tessera_region *region, nvmlDevice_t device)
{
    char uuid[NVML_DEVICE_UUID_BUFFER_SIZE] = "";
    if (CALL_OR(NVML_ERROR_FUNCTION_NOT_FOUND, nvmlDeviceGetUUID, device, uuid, sizeof uuid) != NVML_SUCCESS) {
        return LIM_NO_DEVICE;
    }
    for (uint32_t index = 0; index < lim_device_count(region); index++) {
        if (strncmp(region->header.device_uuid[index], uuid, TESSERA_UUID_SIZE) == 0) {
            return (int)index;
        }
    }
    return LIM_UNLISTED_DEVICE;
}

LIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct tessera_region *region = lim_region();
    nvmlMemory_t real;
    if (region == NULL) {
        return NVML_ERROR_NO_PERMISSION;
    }
    /* In NVML total is used + free: the card's own free memory, which others take, cannot bound ours here. */
    nvmlReturn_t result =
        CALL_OR(NVML_ERROR_FUNCTION_NOT_FOUND, nvmlDeviceGetMemoryInfo, device, memory == NULL ? NULL : &real);
    if (result == NVML_SUCCESS && memory != NULL) {
        refresh();
        struct view view = share_view(region, nvml_device(region, device), real.total, real.total);
        *memory = (nvmlMemory_t){.total = view.total, .free = view.free, .used = view.used};
    }
    return result;
}

/* The caller's struct goes to the driver itself, which checks its version field; on failure it is as the driver left
 * it. */
LIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    struct tessera_region *region = lim_region();
    if (region == NULL) {
        return NVML_ERROR_NO_PERMISSION;
    }
    nvmlReturn_t result = CALL_OR(NVML_ERROR_FUNCTION_NOT_FOUND, nvmlDeviceGetMemoryInfo_v2, device, memory);
    if (result == NVML_SUCCESS && memory != NULL) {
        refresh();
        struct view view = share_view(region, nvml_device(region, device), memory->total, memory->total);
        memory->total = view.total;
        memory->used = view.used;
        memory->free = view.free;
        memory->reserved = 0; /* total = used + free + reserved must hold */
    }
    return result;
}

struct holder {
    unsigned int pid;
    unsigned long long used;
};

/* The n-th process of the share that holds memory on a device; false behind the last. `*slot` keeps the place. */
static bool next_holder(const struct tessera_region *region, int device, uint32_t *slot, struct holder *holder)
{
    for (; device >= 0 && *slot < TESSERA_MAX_SLOTS; (*slot)++) {
        const struct tessera_slot *at = &region->slot[*slot];
        if ((word_load(&at->state) & 3u) != TESSERA_LIVE) {
            continue; /* free, or being claimed or given back: holds nothing that counts for long */
        }
        holder->pid = at->pid;
        holder->used = word_load(&at->device[device].used_granules) * TESSERA_GRANULE;
        if (holder->used > 0) {
            (*slot)++;
            return true;
        }
    }
    return false;
}

/* The caller's array, in either of the two layouts that NVML has. */
struct process_list {
    nvmlProcessInfo_v1_t *v1;
    nvmlProcessInfo_v2_t *v2;
};

static void write_holder(const struct process_list *list, unsigned int i, const struct holder *holder)
{
    if (list->v1 != NULL) {
        list->v1[i] = (nvmlProcessInfo_v1_t){.pid = holder->pid, .usedGpuMemory = holder->used};
    } else {
        list->v2[i] = (nvmlProcessInfo_v2_t){.pid = holder->pid,
                                             .usedGpuMemory = holder->used,
                                             .gpuInstanceId = NVML_NO_INSTANCE,
                                             .computeInstanceId = NVML_NO_INSTANCE};
    }
}

/* NVML's two-call protocol: *count in is the room, out the need; too little room is an error that tells it. `probe` is
 * what the driver says to a call without room, and decides whether the handle is good. */
static nvmlReturn_t list_holders(nvmlReturn_t probe, nvmlDevice_t device, unsigned int *count, struct process_list list)
{
    struct tessera_region *region = lim_region();
    struct holder holder;
    unsigned int found = 0;
    uint32_t slot = 0;
    if (probe != NVML_SUCCESS && probe != NVML_ERROR_INSUFFICIENT_SIZE) {
        return probe;
    }
    if (region == NULL) {
        return NVML_ERROR_NO_PERMISSION;
    }
    int index = nvml_device(region, device);
    if (index >= 0) {
        lim_used(region, (uint32_t)index); /* reaps the dead */
    }
    while (next_holder(region, index, &slot, &holder)) {
        if (found < *count && (list.v1 != NULL || list.v2 != NULL)) {
            write_holder(&list, found, &holder);
        }
        found++;
    }
    bool fits = found <= *count;
    *count = found;
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

#define PROBE(name, device, count)                                                                                    \
    CALL_OR(NVML_ERROR_FUNCTION_NOT_FOUND, name, device, (count) == NULL ? NULL : &(unsigned int){0}, NULL)

LIM_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                             nvmlProcessInfo_v1_t *infos)
{
    nvmlReturn_t probe = PROBE(nvmlDeviceGetComputeRunningProcesses, device, count);
    return list_holders(probe, device, count, (struct process_list){.v1 = infos});
}

LIM_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                                nvmlProcessInfo_v2_t *infos)
{
    nvmlReturn_t probe = PROBE(nvmlDeviceGetComputeRunningProcesses_v2, device, count);
    return list_holders(probe, device, count, (struct process_list){.v2 = infos});
}

LIM_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                                nvmlProcessInfo_v2_t *infos)
{
    nvmlReturn_t probe = PROBE(nvmlDeviceGetComputeRunningProcesses_v3, device, count);
    return list_holders(probe, device, count, (struct process_list){.v2 = infos});
}
