/* DESIGN
 *
 * Linear memory by the 32-bit forms of CUDA 2.0, which drivers still export: the memory is as real as any, its address
 * has 32 bits and lies below all others. Host memory in the same range (small programs) is avoided by taking the range
 * from 16 MiB to 1 GiB only, where no position-independent program lies.
 *
 * Source: CUDA driver API of version 2.0.
 */
#include "sim.h"

static const uint64_t FIRST = 16 * SIM_MIB, END = 1024 * SIM_MIB, UNIT = 512;

static uint64_t next_address;

/* Called with the lock held. */
static CUresult allocate_locked(CUcontext context, uint64_t bytes, CUdeviceptr_v1 *out)
{
    uint64_t at = next_address < FIRST ? FIRST : next_address;
    if (bytes > END - at) return CUDA_ERROR_OUT_OF_MEMORY;
    uint32_t charge = sim_take(context->row, bytes, SIM_LINEAR);
    struct sim_block *block = charge == 0 ? NULL : sim_block_host((void *)(uintptr_t)at, bytes, SIM_BLOCK_LINEAR);
    if (block == NULL && charge != 0) sim_give(charge);
    if (block == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    block->charge = charge;
    block->context = context;
    next_address = at + bytes; /* addresses are not used again: nobody allocates much this way */
    *out = (CUdeviceptr_v1)at;
    return CUDA_SUCCESS;
}

static CUresult allocate(uint64_t bytes, CUdeviceptr_v1 *out)
{
    CUcontext context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    sim_lock();
    result = allocate_locked(context, (bytes + UNIT - 1) / UNIT * UNIT, out);
    sim_unlock();
    return result;
}

SIM_API cuMemAlloc(CUdeviceptr_v1 *out, unsigned int bytes)
{
    SIM_CALL("%u", bytes);
    return out == NULL || bytes == 0 ? CUDA_ERROR_INVALID_VALUE : allocate(bytes, out);
}

SIM_API cuMemAllocPitch(CUdeviceptr_v1 *out, unsigned int *pitch, unsigned int width, unsigned int height,
                        unsigned int element)
{
    SIM_CALL("%u %u %u", width, height, element);
    if (out == NULL || pitch == NULL || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
    uint64_t row = (width + UNIT - 1) / UNIT * UNIT;
    CUresult result = allocate(row * height, out);
    if (result == CUDA_SUCCESS) *pitch = (unsigned int)row;
    return result;
}

SIM_API cuMemFree(CUdeviceptr_v1 address)
{
    SIM_CALL("%u", address);
    return cuMemFree_v2(address);
}
