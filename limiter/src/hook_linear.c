/* DESIGN
 *
 * cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged and cuMemFree.
 *
 * Every allocation goes: claim (charge the share, reserve a record) - driver - settle (record, or give back). A claim
 * that goes past the limit answers CUDA_ERROR_OUT_OF_MEMORY without calling the driver, and the caller's variables
 * stay as they were. Calls that the driver is going to refuse anyhow (no context, null pointer, no bytes, unknown
 * flags) are not claimed, so that their errors are the driver's own. Should it accept one, it is charged after the
 * fact or undone: nothing stays uncounted.
 *
 * Managed memory is charged in full: where its pages are cannot be seen per call.
 */
#include "hook_linear.h"

#include "account.h"
#include "hook_pool.h"

#define PITCH_ALIGNMENT 512u /* the estimate; the driver's pitch is what is charged in the end */

struct claim {
    struct lim_process *process;
    struct lim_site site;
    uint64_t granules;
    bool charged;
};

static CUresult charge(struct claim *claim, uint64_t granules)
{
    uint32_t device = (uint32_t)claim->site.device;
    if (claim->site.device == LIM_UNLISTED_DEVICE) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!lim_take(claim->process, device, granules, 1)) {
        lim_relieve_pools(claim->process);
        if (!lim_take_or_refuse(claim->process, device, granules, 1)) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    claim->granules = granules;
    claim->charged = true;
    return CUDA_SUCCESS;
}

/* Before the driver call. Anything but CUDA_SUCCESS is the hook's answer. */
static CUresult begin_claim(struct claim *claim, bool is_sound, uint64_t granules)
{
    *claim = (struct claim){.process = lim_process()};
    if (claim->process == NULL) {
        return LIM_DENIED;
    }
    if (!is_sound) {
        return CUDA_SUCCESS;
    }
    claim->site = lim_current_site(claim->process);
    return claim->site.device == LIM_NO_DEVICE ? CUDA_SUCCESS : charge(claim, granules);
}

static void drop_claim(struct claim *claim)
{
    if (claim->charged) {
        lim_lock(claim->process);
        lim_ledger_unreserve(&claim->process->ledger, 1);
        lim_give_locked(claim->process, (uint32_t)claim->site.device, claim->granules);
        lim_unlock(claim->process);
    }
}

/* Corrects a claim to what the driver really took. False: that is past the limit. */
static bool correct_claim(struct claim *claim, uint64_t granules)
{
    uint32_t device = (uint32_t)claim->site.device;
    if (granules > claim->granules && !lim_take_or_refuse(claim->process, device, granules - claim->granules, 0)) {
        return false;
    }
    if (granules < claim->granules) {
        lim_give(claim->process, device, claim->granules - granules);
    }
    claim->granules = granules;
    return true;
}

/* The driver accepted a call that was not claimed. */
static bool claim_late(struct claim *claim, uint64_t granules)
{
    claim->site = lim_current_site(claim->process);
    return claim->site.device >= 0 && charge(claim, granules) == CUDA_SUCCESS;
}

/* After a driver call that succeeded with `pointer`: records it, or undoes it and answers out of memory. */
static CUresult keep(struct claim *claim, CUdeviceptr pointer, uint64_t granules)
{
    bool kept = claim->charged ? correct_claim(claim, granules) : claim_late(claim, granules);
    if (!kept) {
        CALL(cuMemFree_v2, pointer);
        drop_claim(claim);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct record record = {.key = pointer,
                            .context = (uint64_t)(uintptr_t)claim->site.context,
                            .granules = granules,
                            .class = RECORD_LINEAR,
                            .device = (uint8_t)claim->site.device};
    lim_record(claim->process, &record);
    return CUDA_SUCCESS;
}

static CUresult finish_claim(struct claim *claim, CUresult result, CUdeviceptr *out, CUdeviceptr pointer, uint64_t granules)
{
    if (result != CUDA_SUCCESS || out == NULL) {
        drop_claim(claim);
        return result;
    }
    result = keep(claim, pointer, granules);
    if (result == CUDA_SUCCESS) {
        *out = pointer;
    }
    return result;
}

LIM_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    struct claim claim;
    CUdeviceptr pointer = 0;
    CUresult result = begin_claim(&claim, dptr != NULL && bytesize != 0, lim_granules(bytesize));
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = CALL(cuMemAlloc_v2, dptr == NULL ? NULL : &pointer, bytesize);
    return finish_claim(&claim, result, dptr, pointer, lim_granules(bytesize));
}

LIM_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    struct claim claim;
    CUdeviceptr pointer = 0;
    bool is_sound = dptr != NULL && bytesize != 0 && (flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST);
    CUresult result = begin_claim(&claim, is_sound, lim_granules(bytesize));
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = CALL(cuMemAllocManaged, dptr == NULL ? NULL : &pointer, bytesize, flags);
    return finish_claim(&claim, result, dptr, pointer, lim_granules(bytesize));
}

/* width x height in granules, saturating where the product does not fit. */
static uint64_t pitched_granules(uint64_t pitch, uint64_t height)
{
    uint64_t bytes;
    return __builtin_mul_overflow(pitch, height, &bytes) ? UINT64_MAX : lim_granules(bytes);
}

LIM_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t width, size_t height,
                                       unsigned int element)
{
    struct claim claim;
    CUdeviceptr pointer = 0;
    size_t pitch = 0;
    bool is_sound = dptr != NULL && pPitch != NULL && width != 0 && height != 0 &&
                    (element == 4 || element == 8 || element == 16);
    uint64_t rows = width > SIZE_MAX - PITCH_ALIGNMENT ? width : (width + PITCH_ALIGNMENT - 1u) & ~(size_t)(PITCH_ALIGNMENT - 1u);
    CUresult result = begin_claim(&claim, is_sound, pitched_granules(rows, height));
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = CALL(cuMemAllocPitch_v2, dptr == NULL ? NULL : &pointer, pPitch == NULL ? NULL : &pitch, width, height, element);
    result = finish_claim(&claim, result, dptr, pointer, pitched_granules(pitch, height));
    if (result == CUDA_SUCCESS && pPitch != NULL) {
        *pPitch = pitch;
    }
    return result;
}

struct record lim_withdraw(struct lim_process *process, CUdeviceptr pointer)
{
    struct record taken = {.class = RECORD_NONE};
    lim_lock(process);
    struct record *record = lim_ledger_find(&process->ledger, pointer, RECORD_LINEAR);
    if (record == NULL) {
        record = lim_ledger_find(&process->ledger, pointer, RECORD_ASYNC);
    }
    if (record != NULL) {
        taken = *record;
        lim_ledger_remove(&process->ledger, record);
        lim_ledger_reserve(&process->ledger, 1); /* the room just left: cannot fail */
    }
    lim_unlock(process);
    return taken;
}

void lim_record(struct lim_process *process, const struct record *record)
{
    struct record old;
    lim_lock(process);
    lim_ledger_insert(&process->ledger, record, &old);
    if (old.class == RECORD_LINEAR) {
        lim_give_locked(process, old.device, old.granules);
    }
    lim_unlock(process);
}

void lim_restore(struct lim_process *process, const struct record *record)
{
    if (record->class != RECORD_NONE) {
        lim_record(process, record);
    }
}

void lim_release(struct lim_process *process, const struct record *record)
{
    if (record->class == RECORD_NONE) {
        return;
    }
    lim_lock(process);
    lim_ledger_unreserve(&process->ledger, 1);
    bool pays_itself = record->class == RECORD_LINEAR || record->link == 0; /* 0: its pool is destroyed */
    if (pays_itself) {
        lim_give_locked(process, record->device, record->granules);
    }
    lim_unlock(process);
    if (!pays_itself) {
        lim_pool_block_freed(process, record);
    }
}

LIM_EXPORT CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    struct lim_process *process = lim_attached();
    if (process == NULL) {
        return CALL(cuMemFree_v2, dptr); /* a free is never refused */
    }
    struct record record = lim_withdraw(process, dptr);
    CUresult result = CALL(cuMemFree_v2, dptr);
    if (result == CUDA_SUCCESS) {
        lim_release(process, &record);
    } else {
        lim_restore(process, &record);
    }
    return result;
}
