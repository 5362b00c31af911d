/* DESIGN
 *
 * cuInit, where a process enters its share, and the life of contexts. Making one takes memory that no call shows: it is
 * measured and charged (hidden.c), and a context that does not fit is destroyed again and refused. Ending one frees
 * everything that was allocated in it: the records of that context go too. Handles of cuMemCreate and pools belong to
 * the process or the device and stay; pools are read again.
 *
 * A primary context is known by its device's number only; retaining it tells which context that is. It ends with the
 * last release, which the driver is asked about, or with a reset.
 *
 * Every call here that may end a context tells driver.c before and after, as a context's address may come back.
 */
#include "claim.h"
#include "compute.h"
#include "driver.h"
#include "hidden.h"
#include "hook_pool.h"
#include "measure.h"
#include "unknown.h"

/* A share without room for one more process is told at the start, not at the first allocation. */
LIM_EXPORT CUresult cuInit(unsigned int flags)
{
    struct lim_process *process = lim_process();
    if (process == NULL) {
        return LIM_DENIED;
    }
    CUresult result = CALL(cuInit, flags);
    if (result == CUDA_SUCCESS) {
        lim_report_unknown(process->region);
    }
    return result;
}

/* -- the end of a context --------------------------------------------------------------------------------------- */

static bool is_in_a_context(const struct record *record)
{
    return record->class == RECORD_LINEAR || record->class == RECORD_MANAGED || record->class == RECORD_SPILLED ||
           record->class == RECORD_ARRAY;
}

/* Forgets what was allocated in a context that is gone. After the driver call: until then the memory is in use, and a
 * call that fails keeps it. Pools may have shrunk too. */
static void drop_context(struct lim_process *process, uint64_t context)
{
    struct record *record;
    lim_forget_context(process, (const void *)(uintptr_t)context);
    lim_lock(process);
    for (size_t at = 0; (record = lim_ledger_from(&process->ledger, at)) != NULL;) {
        at = (size_t)(record - process->ledger.records);
        if (!is_in_a_context(record) || record->context != context) {
            at++;
            continue;
        }
        lim_repay_locked(process, record);
        lim_ledger_remove(&process->ledger, record); /* another record may be here now: look again */
    }
    lim_unlock(process);
    lim_settle_pools(process);
}

/* The record of a context leaves the ledger; class NONE for one that is not known. */
static struct record take_out(struct lim_process *process, uint64_t key)
{
    struct record taken = {.class = RECORD_NONE};
    lim_lock(process);
    struct record *record = lim_ledger_find(&process->ledger, key, RECORD_CONTEXT);
    if (record != NULL) {
        taken = *record;
        lim_ledger_remove(&process->ledger, record);
    }
    lim_unlock(process);
    return taken;
}

/* What a context known by `key` held, and what it was, is given back. */
static void end_context(struct lim_process *process, uint64_t key)
{
    struct record record = take_out(process, key);
    if (record.class != RECORD_NONE) {
        drop_context(process, record.context);
        lim_hidden_settle(process, record.device, false);
    }
}

/* -- the beginning ---------------------------------------------------------------------------------------------- */

/* Writes down a context that is known by `key`; false if it was known already, or there is no memory for that. */
static bool write_down(struct lim_process *process, uint64_t key, CUcontext context, int device)
{
    struct record record = {.key = key,
                            .context = (uint64_t)(uintptr_t)context,
                            .class = RECORD_CONTEXT,
                            .device = (uint8_t)device};
    lim_lock(process);
    struct record *known = lim_ledger_find(&process->ledger, key, RECORD_CONTEXT);
    bool is_new = known == NULL || known->context != record.context;
    /* Without room it goes unwritten: then its records stay, which counts too much, never too little. */
    is_new = is_new && lim_ledger_reserve(&process->ledger, 1);
    if (is_new) {
        lim_ledger_insert(&process->ledger, &record, NULL);
    }
    lim_unlock(process);
    return is_new;
}

/* Charges what a context that the driver just made takes. False: it does not fit, or the share does not have its
 * device; nothing is left of it in the books, and the caller ends it. */
static bool admit(struct lim_process *process, uint64_t key, CUcontext context, CUdevice ordinal)
{
    int device = lim_device_of(process, ordinal);
    if (device < 0) {
        return false;
    }
    if (!write_down(process, key, context, device) || lim_hidden_settle(process, device, true)) {
        return true;
    }
    lim_relieve_pools(process);
    lim_reap_now(process);
    if (lim_hidden_settle(process, device, true)) {
        return true;
    }
    take_out(process, key);
    lim_note_refusal(process, (uint32_t)device, 0);
    return false;
}

LIM_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    struct lim_process *process = lim_process();
    CUcontext context = NULL;
    if (process == NULL) {
        return LIM_DENIED;
    }
    lim_expect_context(process, lim_device_of(process, device));
    CUresult result = CALL(cuDevicePrimaryCtxRetain, out == NULL ? NULL : &context, device);
    if (result != CUDA_SUCCESS || out == NULL) {
        return result;
    }
    if (!admit(process, (uint64_t)device, context, device)) {
        lim_context_ending();
        HAS(cuDevicePrimaryCtxRelease_v2) ? CALL(cuDevicePrimaryCtxRelease_v2, device)
                                          : CALL(cuDevicePrimaryCtxRelease, device);
        lim_context_ended(process);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = context;
    return CUDA_SUCCESS;
}

/* After the driver made a context: the hook's answer. */
static CUresult created(struct lim_process *process, CUresult result, CUcontext *out, CUcontext context,
                        CUdevice device)
{
    if (result != CUDA_SUCCESS || out == NULL) {
        return result;
    }
    if (!admit(process, (uint64_t)(uintptr_t)context, context, device)) {
        lim_context_ending();
        CALL(cuCtxDestroy_v2, context);
        lim_context_ended(process);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = context;
    return CUDA_SUCCESS;
}

#define CREATE(name, out, device, ...)                                                                                \
    do {                                                                                                              \
        struct lim_process *process = lim_process();                                                                  \
        CUcontext context = NULL;                                                                                     \
        if (process == NULL) {                                                                                        \
            return LIM_DENIED;                                                                                        \
        }                                                                                                             \
        lim_expect_context(process, lim_device_of(process, device));                                                  \
        CUresult result = CALL(name, (out) == NULL ? NULL : &context, __VA_ARGS__);                                   \
        return created(process, result, out, context, device);                                                        \
    } while (0)

LIM_EXPORT CUresult cuCtxCreate(CUcontext *out, unsigned int flags, CUdevice device)
{
    CREATE(cuCtxCreate, out, device, flags, device);
}

LIM_EXPORT CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice device)
{
    CREATE(cuCtxCreate_v2, out, device, flags, device);
}

LIM_EXPORT CUresult cuCtxCreate_v3(CUcontext *out, CUexecAffinityParam *affinity, int count, unsigned int flags,
                                   CUdevice device)
{
    CREATE(cuCtxCreate_v3, out, device, affinity, count, flags, device);
}

LIM_EXPORT CUresult cuCtxCreate_v4(CUcontext *out, CUctxCreateParams *params, unsigned int flags, CUdevice device)
{
    CREATE(cuCtxCreate_v4, out, device, params, flags, device);
}

/* It makes the primary context, if there is none. */
LIM_EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc resources, CUdevice device, unsigned int flags)
{
    struct lim_process *process = lim_process();
    if (process == NULL) {
        return LIM_DENIED;
    }
    lim_expect_context(process, lim_device_of(process, device));
    CUresult result = CALL(cuGreenCtxCreate, out, resources, device, flags);
    if (result == CUDA_SUCCESS) {
        lim_mark_dirty(process, LIM_HIDDEN_DIRTY);
    }
    return result;
}

/* Limits that cost memory: stacks, buffers and heaps of the current context. */
static bool is_memory_limit(CUlimit limit)
{
    return limit <= CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT;
}

/* A limit whose memory does not fit is set back and refused. */
LIM_EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    struct lim_process *process = lim_attached();
    size_t before = 0;
    if (process == NULL || !is_memory_limit(limit) || CALL(cuCtxGetLimit, &before, limit) != CUDA_SUCCESS) {
        return CALL(cuCtxSetLimit, limit, value);
    }
    CUresult result = CALL(cuCtxSetLimit, limit, value);
    int device = lim_current_site(process).device;
    if (result != CUDA_SUCCESS || lim_hidden_settle(process, device, true)) {
        return result;
    }
    CALL(cuCtxSetLimit, limit, before);
    lim_hidden_settle(process, device, false);
    lim_note_refusal(process, (uint32_t)device, 0);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* -- calls that may end one ------------------------------------------------------------------------------------- */

/* Forgets a device's primary context and what was allocated in it, unless somebody still holds it. */
static void drop_primary(struct lim_process *process, CUdevice device, bool only_if_inactive)
{
    unsigned int flags = 0;
    int active = 0;
    /* The driver counts retains, also those of libraries that looked past us: its word decides, not a count of ours. */
    if (only_if_inactive &&
        (CALL(cuDevicePrimaryCtxGetState, device, &flags, &active) != CUDA_SUCCESS || active != 0)) {
        return;
    }
    end_context(process, (uint64_t)device);
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
        end_context(process, (uint64_t)(uintptr_t)context);
    }
    return result;
}

/* Whether a context ended, and which one, cannot be told: its records stay until their process ends. */
static CUresult some_context_ended(struct lim_process *process, CUresult result)
{
    lim_context_ended(process);
    if (process != NULL && result == CUDA_SUCCESS) {
        lim_forget_context(process, NULL);
    }
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
