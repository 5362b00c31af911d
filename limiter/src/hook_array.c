/* DESIGN
 *
 * Arrays and mipmapped arrays. Their size has no public formula. Since 11.6 the driver tells it for an array with
 * deferred mapping, which takes no memory: the same descriptor is created so, asked, and destroyed again, and that is
 * what is charged. A driver that cannot is charged the plain product, a lower bound.
 *
 * Sparse and deferred arrays take nothing at creation and are not charged. Level arrays of a mipmapped one are views;
 * nobody recorded them, so destroying one gives nothing back.
 *
 * Source: cuArrayGetMemoryRequirements, CUDA driver API.
 */
#include "account.h"
#include "claim.h"

static uint64_t channel_bytes(CUarray_format format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    default: return 4; /* the 32-bit ones; packed formats are not larger per channel */
    }
}

/* The product of the descriptor's figures, saturating. */
static uint64_t least_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    uint64_t bytes = descriptor->NumChannels * channel_bytes(descriptor->Format);
    const uint64_t extents[] = {descriptor->Width, descriptor->Height, descriptor->Depth};
    for (int i = 0; i < 3; i++) {
        if (extents[i] > 1 && __builtin_mul_overflow(bytes, extents[i], &bytes)) {
            return UINT64_MAX;
        }
    }
    return bytes;
}

static bool is_backed(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    return (descriptor->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) == 0;
}

/* What the driver says that the array will take on the current device; false if it does not say. */
static bool ask_size(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels, uint64_t *bytes)
{
    CUDA_ARRAY3D_DESCRIPTOR deferred = *descriptor;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {.size = 0};
    CUarray array = NULL;
    CUmipmappedArray mipmapped = NULL;
    CUdevice device;
    bool known = false;
    deferred.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING; /* a size, but no memory behind it */
    if (CALL(cuCtxGetDevice, &device) != CUDA_SUCCESS) {
        return false;
    }
    if (levels == 0 && CALL(cuArray3DCreate_v2, &array, &deferred) == CUDA_SUCCESS) {
        known = CALL(cuArrayGetMemoryRequirements, &needs, array, device) == CUDA_SUCCESS;
        CALL(cuArrayDestroy, array);
    }
    if (levels != 0 && CALL(cuMipmappedArrayCreate, &mipmapped, &deferred, levels) == CUDA_SUCCESS) {
        known = CALL(cuMipmappedArrayGetMemoryRequirements, &needs, mipmapped, device) == CUDA_SUCCESS;
        CALL(cuMipmappedArrayDestroy, mipmapped);
    }
    *bytes = needs.size;
    return known;
}

/* Granules to claim. A descriptor that the driver does not size may be unsound: then its error comes before ours. */
static uint64_t claimed_granules(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels)
{
    uint64_t bytes;
    return lim_granules(ask_size(descriptor, levels, &bytes) ? bytes : least_bytes(descriptor));
}

static void undo_array(uint64_t key)
{
    CALL(cuArrayDestroy, (CUarray)(uintptr_t)key);
}

static void undo_mipmapped(uint64_t key)
{
    CALL(cuMipmappedArrayDestroy, (CUmipmappedArray)(uintptr_t)key);
}

/* Two-dimensional arrays go the three-dimensional way here, but the driver gets the call that was made. */
static CUresult create_array(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *full, const CUDA_ARRAY_DESCRIPTOR *flat)
{
    struct lim_claim claim;
    struct lim_patience patience = {0, 0};
    CUarray array = NULL;
    uint64_t granules = claimed_granules(full, 0);
    /* Nothing to charge means a descriptor that the driver refuses. */
    CUresult result = lim_claim_begin(&claim, granules > 0, granules);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    do {
        result = flat != NULL ? CALL(cuArrayCreate_v2, &array, flat) : CALL(cuArray3DCreate_v2, &array, full);
    } while (!LIM_USUAL(result != CUDA_ERROR_OUT_OF_MEMORY) && lim_claim_again(&claim, &patience));
    const struct lim_made made = {(uint64_t)(uintptr_t)array, granules, RECORD_ARRAY, undo_array};
    result = lim_claim_finish(&claim, result, &made);
    if (result == CUDA_SUCCESS) {
        *out = array;
    }
    return result;
}

LIM_EXPORT CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
    if (lim_process() == NULL) {
        return LIM_DENIED;
    }
    if (out == NULL || descriptor == NULL) {
        return CALL(cuArrayCreate_v2, out, descriptor);
    }
    const CUDA_ARRAY3D_DESCRIPTOR full = {.Width = descriptor->Width,
                                          .Height = descriptor->Height,
                                          .Format = descriptor->Format,
                                          .NumChannels = descriptor->NumChannels};
    return create_array(out, &full, descriptor);
}

LIM_EXPORT CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    if (lim_process() == NULL) {
        return LIM_DENIED;
    }
    if (out == NULL || descriptor == NULL || !is_backed(descriptor)) {
        return CALL(cuArray3DCreate_v2, out, descriptor);
    }
    return create_array(out, descriptor, NULL);
}

LIM_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                           unsigned int levels)
{
    struct lim_claim claim;
    struct lim_patience patience = {0, 0};
    CUmipmappedArray array = NULL;
    if (lim_process() == NULL) {
        return LIM_DENIED;
    }
    if (out == NULL || descriptor == NULL || levels == 0 || !is_backed(descriptor)) {
        return CALL(cuMipmappedArrayCreate, out, descriptor, levels);
    }
    uint64_t granules = claimed_granules(descriptor, levels);
    CUresult result = lim_claim_begin(&claim, granules > 0, granules);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    do {
        result = CALL(cuMipmappedArrayCreate, &array, descriptor, levels);
    } while (!LIM_USUAL(result != CUDA_ERROR_OUT_OF_MEMORY) && lim_claim_again(&claim, &patience));
    const struct lim_made made = {(uint64_t)(uintptr_t)array, granules, RECORD_ARRAY, undo_mipmapped};
    result = lim_claim_finish(&claim, result, &made);
    if (result == CUDA_SUCCESS) {
        *out = array;
    }
    return result;
}

/* As for cuMemFree: out of the ledger before the driver may give the handle to somebody else. */
static struct record withdraw_array(struct lim_process *process, const void *array)
{
    struct record none = {.class = RECORD_NONE};
    return process == NULL ? none : lim_withdraw(process, (uint64_t)(uintptr_t)array, RECORD_ARRAY);
}

static CUresult settle(struct lim_process *process, const struct record *record, CUresult result)
{
    if (process != NULL && result == CUDA_SUCCESS) {
        lim_release(process, record);
    } else if (process != NULL) {
        lim_restore(process, record);
    }
    return result;
}

LIM_EXPORT CUresult cuArrayDestroy(CUarray array)
{
    struct lim_process *process = lim_attached();
    struct record record = withdraw_array(process, array);
    return settle(process, &record, CALL(cuArrayDestroy, array));
}

LIM_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    struct lim_process *process = lim_attached();
    struct record record = withdraw_array(process, array);
    return settle(process, &record, CALL(cuMipmappedArrayDestroy, array));
}
