/* DESIGN
 *
 * The forms of CUDA 2.0, with sizes and addresses of 32 bits. No 64-bit program can use what they return, but drivers
 * still export them, and memory taken through them is memory: they are counted like their successors.
 *
 * Source: signatures, cuda.h of CUDA 13.5 (its internal-ABI block).
 */
#include "account.h"
#include "claim.h"

static void undo(uint64_t pointer)
{
    CALL(cuMemFree, (CUdeviceptr_v1)pointer);
}

static CUresult finish(struct lim_claim *claim, CUresult result, CUdeviceptr_v1 *out, CUdeviceptr_v1 pointer,
                       uint64_t bytes)
{
    const struct lim_made made = {
        .key = pointer, .granules = lim_granules(bytes), .class = RECORD_LINEAR, .undo = undo};
    result = lim_claim_finish(claim, result, out == NULL ? NULL : &made);
    if (result == CUDA_SUCCESS && out != NULL) {
        *out = pointer;
    }
    return result;
}

LIM_EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *out, unsigned int bytes)
{
    struct lim_claim claim;
    CUdeviceptr_v1 pointer = 0;
    CUresult result = lim_claim_begin(&claim, out != NULL && bytes != 0, lim_granules(bytes));
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = CALL(cuMemAlloc, out == NULL ? NULL : &pointer, bytes);
    return finish(&claim, result, out, pointer, bytes);
}

LIM_EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *out, unsigned int *pitch_out, unsigned int width,
                                    unsigned int height, unsigned int element)
{
    struct lim_claim claim;
    CUdeviceptr_v1 pointer = 0;
    unsigned int pitch = 0;
    bool is_sound = out != NULL && pitch_out != NULL && width != 0 && height != 0;
    CUresult result = lim_claim_begin(&claim, is_sound, lim_granules((uint64_t)width * height));
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = CALL(cuMemAllocPitch, out == NULL ? NULL : &pointer, pitch_out == NULL ? NULL : &pitch, width, height,
                  element);
    result = finish(&claim, result, out, pointer, (uint64_t)pitch * height);
    if (result == CUDA_SUCCESS && pitch_out != NULL) {
        *pitch_out = pitch;
    }
    return result;
}

LIM_EXPORT CUresult cuMemFree(CUdeviceptr_v1 pointer)
{
    struct lim_process *process = lim_attached();
    struct record record = {.class = RECORD_NONE};
    if (process != NULL) {
        record = lim_withdraw(process, pointer, RECORD_LINEAR);
    }
    CUresult result = CALL(cuMemFree, pointer);
    if (process != NULL && result == CUDA_SUCCESS) {
        lim_release(process, &record);
    } else if (process != NULL) {
        lim_restore(process, &record);
    }
    return result;
}

/* Handles of arrays are the same in both forms, so the wider call makes them. */
LIM_EXPORT CUresult cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *old)
{
    if (out == NULL || old == NULL) {
        return CALL(cuArrayCreate, out, old);
    }
    const CUDA_ARRAY_DESCRIPTOR wide = {
        .Width = old->Width, .Height = old->Height, .Format = old->Format, .NumChannels = old->NumChannels};
    return cuArrayCreate_v2(out, &wide);
}

LIM_EXPORT CUresult cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *old)
{
    if (out == NULL || old == NULL) {
        return CALL(cuArray3DCreate, out, old);
    }
    const CUDA_ARRAY3D_DESCRIPTOR wide = {.Width = old->Width,
                                          .Height = old->Height,
                                          .Depth = old->Depth,
                                          .Format = old->Format,
                                          .NumChannels = old->NumChannels,
                                          .Flags = old->Flags};
    return cuArray3DCreate_v2(out, &wide);
}

LIM_EXPORT CUresult cuMemAllocHost(void **out, unsigned int bytes)
{
    return out == NULL ? CALL(cuMemAllocHost, out, bytes) : cuMemAllocHost_v2(out, bytes);
}

/* What does not fit in 32 bits is as much as they can say. */
static unsigned int narrow(size_t bytes)
{
    return bytes > UINT32_MAX ? UINT32_MAX : (unsigned int)bytes;
}

LIM_EXPORT CUresult cuMemGetInfo(unsigned int *free_out, unsigned int *total_out)
{
    size_t free = 0;
    size_t total = 0;
    CUresult result = cuMemGetInfo_v2(free_out == NULL ? NULL : &free, total_out == NULL ? NULL : &total);
    if (result == CUDA_SUCCESS && free_out != NULL) {
        *free_out = narrow(free);
    }
    if (result == CUDA_SUCCESS && total_out != NULL) {
        *total_out = narrow(total);
    }
    return result;
}

LIM_EXPORT CUresult cuDeviceTotalMem(unsigned int *out, CUdevice device)
{
    size_t total = 0;
    CUresult result = cuDeviceTotalMem_v2(out == NULL ? NULL : &total, device);
    if (result == CUDA_SUCCESS && out != NULL) {
        *out = narrow(total);
    }
    return result;
}
