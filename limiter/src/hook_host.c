/* DESIGN
 *
 * Pinned host memory. It takes no device memory and is not bounded by the share; how much a process has pinned is
 * shown beside its other figures, under the device whose context it was pinned in. On an integrated GPU host and
 * device memory are one: there what the driver allocates is charged like any other memory of the device. Memory that
 * the program had already and only registers is its own in either case.
 *
 * Source: CUDA driver API, cuMemHostAlloc; CU_DEVICE_ATTRIBUTE_INTEGRATED.
 */
#include "account.h"
#include "atomics.h"
#include "claim.h"

/* The figure for the agent. Lock held; `change` wraps when negative. */
static void show(struct lim_process *process, uint32_t device, uint64_t change)
{
    uint64_t *shown = &process->region->slot[process->slot].device[device].host_pinned_bytes;
    word_store(shown, word_load(shown) + change);
}

/* Where pinned memory is written down: on the current device. */
struct pinning {
    struct lim_process *process;
    int device;
    uint64_t charge; /* granules */
};

static bool is_integrated(CUdevice ordinal)
{
    int integrated = 0;
    return CALL(cuDeviceGetAttribute, &integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED, ordinal) == CUDA_SUCCESS &&
           integrated != 0;
}

/* Before the driver call. Anything but CUDA_SUCCESS is the hook's answer. */
static CUresult begin(struct pinning *pinning, bool is_sound, uint64_t bytes, bool allocates)
{
    *pinning = (struct pinning){.process = lim_process(), .device = LIM_NO_DEVICE};
    if (pinning->process == NULL) {
        return LIM_DENIED;
    }
    if (!is_sound) {
        return CUDA_SUCCESS;
    }
    struct lim_site site = lim_current_site(pinning->process);
    if (site.device < 0) {
        return CUDA_SUCCESS; /* without a context the driver refuses; a device of somebody else's is not ours to show */
    }
    pinning->device = site.device;
    pinning->charge = allocates && is_integrated(site.ordinal) ? lim_granules(bytes) : 0;
    bool taken = lim_take_or_refuse(pinning->process, (uint32_t)site.device, pinning->charge, 1);
    return taken ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult finish(const struct pinning *pinning, CUresult result, void *pages, uint64_t bytes)
{
    struct lim_process *process = pinning->process;
    if (pinning->device < 0) {
        return result;
    }
    uint32_t device = (uint32_t)pinning->device;
    lim_lock(process);
    if (result == CUDA_SUCCESS) {
        struct record record = {.key = (uint64_t)(uintptr_t)pages,
                                .link = bytes,
                                .granules = pinning->charge,
                                .class = RECORD_HOST,
                                .device = (uint8_t)device};
        struct record old = {.class = RECORD_NONE};
        lim_ledger_insert(&process->ledger, &record, &old);
        show(process, device, bytes);
        if (old.class != RECORD_NONE) {
            show(process, old.device, 0 - old.link);
            lim_give_locked(process, old.device, old.granules);
        }
    } else {
        lim_ledger_unreserve(&process->ledger, 1);
        lim_give_locked(process, device, pinning->charge);
    }
    lim_unlock(process);
    return result;
}

/* Before the driver may give the same address to another thread. */
static struct record withdraw(const void *pages)
{
    struct record none = {.class = RECORD_NONE};
    struct lim_process *process = lim_attached();
    return process == NULL ? none : lim_withdraw(process, (uint64_t)(uintptr_t)pages, RECORD_HOST);
}

static CUresult released(const struct record *record, CUresult result)
{
    struct lim_process *process = lim_attached();
    if (process == NULL || record->class == RECORD_NONE) {
        return result;
    }
    if (result != CUDA_SUCCESS) {
        lim_restore(process, record);
        return result;
    }
    lim_lock(process);
    lim_ledger_unreserve(&process->ledger, 1);
    show(process, record->device, 0 - record->link);
    lim_give_locked(process, record->device, record->granules);
    lim_unlock(process);
    return result;
}

LIM_EXPORT CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
    struct pinning pinning;
    void *pages = NULL;
    CUresult result = begin(&pinning, out != NULL && bytes != 0, bytes, true);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = CALL(cuMemHostAlloc, out == NULL ? NULL : &pages, bytes, flags);
    result = finish(&pinning, result, pages, bytes);
    if (result == CUDA_SUCCESS && out != NULL) {
        *out = pages;
    }
    return result;
}

LIM_EXPORT CUresult cuMemAllocHost_v2(void **out, size_t bytes)
{
    struct pinning pinning;
    void *pages = NULL;
    CUresult result = begin(&pinning, out != NULL && bytes != 0, bytes, true);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = CALL(cuMemAllocHost_v2, out == NULL ? NULL : &pages, bytes);
    result = finish(&pinning, result, pages, bytes);
    if (result == CUDA_SUCCESS && out != NULL) {
        *out = pages;
    }
    return result;
}

LIM_EXPORT CUresult cuMemHostRegister(void *pages, size_t bytes, unsigned int flags)
{
    struct pinning pinning;
    CUresult result = begin(&pinning, pages != NULL && bytes != 0, bytes, false);
    return result != CUDA_SUCCESS ? result
                                  : finish(&pinning, CALL(cuMemHostRegister, pages, bytes, flags), pages, bytes);
}

LIM_EXPORT CUresult cuMemHostRegister_v2(void *pages, size_t bytes, unsigned int flags)
{
    struct pinning pinning;
    CUresult result = begin(&pinning, pages != NULL && bytes != 0, bytes, false);
    return result != CUDA_SUCCESS ? result
                                  : finish(&pinning, CALL(cuMemHostRegister_v2, pages, bytes, flags), pages, bytes);
}

LIM_EXPORT CUresult cuMemFreeHost(void *pages)
{
    struct record record = withdraw(pages);
    return released(&record, CALL(cuMemFreeHost, pages));
}

LIM_EXPORT CUresult cuMemHostUnregister(void *pages)
{
    struct record record = withdraw(pages);
    return released(&record, CALL(cuMemHostUnregister, pages));
}
