/* DESIGN
 *
 * cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged and cuMemFree, by way of claim.c. Calls that the driver is going to
 * refuse anyhow (null pointer, no bytes, unknown flags) are not claimed, so that their errors are the driver's own.
 *
 * Managed memory is charged in full: where its pages are cannot be seen per call.
 *
 * The driver always writes into a variable of ours. The caller's is written last, once the memory is recorded: another
 * thread of the program may read it at any time, and an allocation that is undone must leave no pointer behind.
 */
#include "account.h"
#include "claim.h"
#include "physical.h"

#define PITCH_ALIGNMENT 512u /* the estimate; the driver's pitch is what is charged in the end */

static void undo(uint64_t pointer)
{
    CALL(cuMemFree_v2, pointer);
}

/* After the driver: the pointer becomes the caller's only if its memory is within the limit. */
static CUresult finish(struct lim_claim *claim, CUresult result, CUdeviceptr *out, CUdeviceptr pointer,
                       uint64_t granules, enum record_class class)
{
    const struct lim_made made = {.key = pointer, .granules = granules, .class = class, .undo = undo};
    result = lim_claim_finish(claim, result, out == NULL ? NULL : &made);
    if (result == CUDA_SUCCESS && out != NULL) {
        *out = pointer;
    }
    return result;
}

LIM_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    struct lim_claim claim;
    struct lim_patience patience = {0, 0};
    CUdeviceptr pointer = 0;
    CUresult result = lim_claim_begin_spillable(&claim, dptr != NULL && bytesize != 0, lim_granules(bytesize));
    if (result != CUDA_SUCCESS) {
        return result;
    }
    do {
        if (!LIM_USUAL(!claim.is_spilled)) {
            result = lim_spill(&claim, &pointer, bytesize);
            return finish(&claim, result, dptr, pointer, lim_granules(bytesize), RECORD_SPILLED);
        }
        /* A null pointer goes on as one: the driver's error is the answer. */
        result = CALL(cuMemAlloc_v2, dptr == NULL ? NULL : &pointer, bytesize);
    } while (!LIM_USUAL(result != CUDA_ERROR_OUT_OF_MEMORY) && lim_claim_again(&claim, &patience));
    return finish(&claim, result, dptr, pointer, lim_granules(bytesize), RECORD_LINEAR);
}

LIM_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    struct lim_claim claim;
    CUdeviceptr pointer = 0;
    /* Exactly one of the two flags; the driver refuses both together. */
    bool is_sound = dptr != NULL && bytesize != 0 && (flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST);
    CUresult result = lim_claim_begin(&claim, is_sound, lim_granules(bytesize));
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = CALL(cuMemAllocManaged, dptr == NULL ? NULL : &pointer, bytesize, flags);
    return finish(&claim, result, dptr, pointer, lim_granules(bytesize), RECORD_MANAGED);
}

/* width x height in granules, saturating where the product does not fit. */
static uint64_t pitched_granules(uint64_t pitch, uint64_t height)
{
    uint64_t bytes;
    return __builtin_mul_overflow(pitch, height, &bytes) ? UINT64_MAX : lim_granules(bytes);
}

static uint64_t aligned_width(uint64_t width)
{
    uint64_t short_of = (PITCH_ALIGNMENT - width % PITCH_ALIGNMENT) % PITCH_ALIGNMENT;
    return width > UINT64_MAX - short_of ? width : width + short_of;
}

LIM_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t width, size_t height,
                                       unsigned int element)
{
    struct lim_claim claim;
    struct lim_patience patience = {0, 0};
    CUdeviceptr pointer = 0;
    size_t pitch = 0;
    /* The three element sizes that the driver admits. */
    bool is_sound = dptr != NULL && pPitch != NULL && width != 0 && height != 0 &&
                    (element == 4 || element == 8 || element == 16);
    CUresult result = lim_claim_begin(&claim, is_sound, pitched_granules(aligned_width(width), height));
    if (result != CUDA_SUCCESS) {
        return result;
    }
    do {
        result = CALL(cuMemAllocPitch_v2, dptr == NULL ? NULL : &pointer, pPitch == NULL ? NULL : &pitch, width, height,
                      element);
    } while (!LIM_USUAL(result != CUDA_ERROR_OUT_OF_MEMORY) && lim_claim_again(&claim, &patience));
    result = finish(&claim, result, dptr, pointer, pitched_granules(pitch, height), RECORD_LINEAR);
    if (result == CUDA_SUCCESS && pPitch != NULL) {
        *pPitch = pitch;
    }
    return result;
}

/* What cuMemFree takes: besides plain memory managed one, with what was spilled, and blocks of pools. */
LIM_COLD static struct record withdraw_other(struct lim_process *process, uint64_t pointer)
{
    struct record record = lim_withdraw(process, pointer, RECORD_ASYNC);
    record = record.class == RECORD_NONE ? lim_withdraw(process, pointer, RECORD_MANAGED) : record;
    return record.class == RECORD_NONE ? lim_withdraw(process, pointer, RECORD_SPILLED) : record;
}

LIM_EXPORT CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    struct lim_process *process = lim_attached();
    if (process == NULL) {
        return CALL(cuMemFree_v2, dptr); /* a free is never refused */
    }
    /* Before the driver: it may give the same address out again at once. */
    struct record record = lim_withdraw(process, dptr, RECORD_LINEAR);
    if (!LIM_USUAL(record.class != RECORD_NONE)) {
        record = withdraw_other(process, dptr);
    }
    CUresult result = CALL(cuMemFree_v2, dptr);
    if (result == CUDA_SUCCESS) {
        lim_release(process, &record);
    } else {
        lim_restore(process, &record);
    }
    return result;
}
