/* DESIGN
 *
 * cuInit, where a process enters its share, and the calls that end a context, where the driver frees everything that
 * was allocated in it: the records of that context go too. Handles of cuMemCreate and pools belong to the process or
 * the device and stay; pools are read again.
 *
 * A primary context is known by its device's number only; retaining it tells which context that is. It ends with the
 * last release, which the driver is asked about, or with a reset.
 *
 * Every call here that may end a context tells driver.c before and after, as a context's address may come back.
 */
#include "driver.h"
#include "hook_pool.h"

/* A share without room for one more process is told at the start, not at the first allocation. */
LIM_EXPORT CUresult cuInit(unsigned int flags)
{
    return lim_process() == NULL ? LIM_DENIED : CALL(cuInit, flags);
}

/* Forgets what was allocated in a context that is gone. After the driver call: until then the memory is in use, and a
 * call that fails keeps it. Pools may have shrunk too. */
static void drop_context(struct lim_process *process, uint64_t context)
{
    struct record *record;
    lim_lock(process);
    for (size_t at = 0; (record = lim_ledger_from(&process->ledger, at)) != NULL;) {
        at = (size_t)(record - process->ledger.records);
        bool is_in_it = record->class == RECORD_LINEAR || record->class == RECORD_ARRAY;
        if (!is_in_it || record->context != context) {
            at++;
            continue;
        }
        lim_give_locked(process, record->device, record->granules);
        lim_ledger_remove(&process->ledger, record); /* another record may be here now: look again */
    }
    lim_unlock(process);
    lim_settle_pools(process);
}

static uint64_t primary_context(struct lim_process *process, CUdevice device)
{
    lim_lock(process);
    struct record *record = lim_ledger_find(&process->ledger, (uint64_t)device, RECORD_CONTEXT);
    uint64_t context = record == NULL ? 0 : record->context;
    lim_unlock(process);
    return context;
}

LIM_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult result = CALL(cuDevicePrimaryCtxRetain, context, device);
    struct lim_process *process = lim_attached();
    if (result != CUDA_SUCCESS || process == NULL) {
        return result;
    }
    struct record record = {.key = (uint64_t)device, .context = (uint64_t)(uintptr_t)*context, .class = RECORD_CONTEXT};
    lim_lock(process);
    /* Without room it goes unwritten: then its records stay, which counts too much, never too little. */
    if (lim_ledger_reserve(&process->ledger, 1)) {
        lim_ledger_insert(&process->ledger, &record, NULL);
    }
    lim_unlock(process);
    return result;
}

/* Forgets what was allocated in a device's primary context, unless somebody still holds that. */
static void drop_primary(struct lim_process *process, CUdevice device, bool only_if_inactive)
{
    unsigned int flags = 0;
    int active = 0;
    /* The driver counts retains, also those of libraries that looked past us: its word decides, not a count of ours. */
    if (only_if_inactive &&
        (CALL(cuDevicePrimaryCtxGetState, device, &flags, &active) != CUDA_SUCCESS || active != 0)) {
        return;
    }
    uint64_t context = primary_context(process, device);
    if (context != 0) {
        drop_context(process, context);
    }
}

/* The three below come after the driver call; `process` is what lim_context_ending() returned before it. */
static CUresult primary_ended(struct lim_process *process, CUresult result, CUdevice device, bool only_if_inactive)
{
    lim_context_ended(process);
    if (result == CUDA_SUCCESS && process != NULL) {
        drop_primary(process, device, only_if_inactive);
    }
    return result;
}

static CUresult context_ended(struct lim_process *process, CUresult result, CUcontext context)
{
    lim_context_ended(process);
    if (result == CUDA_SUCCESS && process != NULL && context != NULL) {
        drop_context(process, (uint64_t)(uintptr_t)context);
    }
    return result;
}

/* Whether a context ended, and which one, cannot be told: its records stay until their process ends. */
static CUresult some_context_ended(struct lim_process *process, CUresult result)
{
    lim_context_ended(process);
    return result;
}

LIM_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    struct lim_process *process = lim_context_ending();
    return primary_ended(process, CALL(cuDevicePrimaryCtxRelease, device), device, true);
}

LIM_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    struct lim_process *process = lim_context_ending();
    return primary_ended(process, CALL(cuDevicePrimaryCtxRelease_v2, device), device, true);
}

LIM_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    struct lim_process *process = lim_context_ending();
    return primary_ended(process, CALL(cuDevicePrimaryCtxReset, device), device, false);
}

LIM_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    struct lim_process *process = lim_context_ending();
    return primary_ended(process, CALL(cuDevicePrimaryCtxReset_v2, device), device, false);
}

LIM_EXPORT CUresult cuCtxDestroy(CUcontext context)
{
    struct lim_process *process = lim_context_ending();
    return context_ended(process, CALL(cuCtxDestroy, context), context);
}

LIM_EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    struct lim_process *process = lim_context_ending();
    return context_ended(process, CALL(cuCtxDestroy_v2, context), context);
}

LIM_EXPORT CUresult cuCtxDetach(CUcontext context)
{
    struct lim_process *process = lim_context_ending();
    return some_context_ended(process, CALL(cuCtxDetach, context));
}

LIM_EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx context)
{
    struct lim_process *process = lim_context_ending();
    return some_context_ended(process, CALL(cuGreenCtxDestroy, context));
}
