/* DESIGN
 *
 * Linear memory: allocate, free, measure, and copies. Device memory has an address but no bytes
 * behind it: copies and sets check their addresses and take no time; data is moved only between
 * addresses of the host's (pinned and managed memory).
 *
 * A linear allocation is charged its size rounded up to 512 B, exactly: no chunks are modelled.
 * Managed memory is charged nothing until it is prefetched to a device, and then what fits.
 *
 * Source: CUDA driver API, Memory Management; pitch alignment 512 as on current cards.
 */
#include "cgroup.h"
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { UNIT = 512 };

static const uint64_t MOST = 1ULL << 41;

static uint64_t rounded(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* -- allocate ----------------------------------------------------------------------------- */

/* Called with the lock held. */
static CUresult allocate_locked(CUcontext context, uint64_t bytes, CUdeviceptr *out)
{
    uint32_t charge = sim_take(context->row, bytes, SIM_LINEAR);
    if (charge == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    struct sim_block *block = sim_block_new(bytes, 0, SIM_BLOCK_LINEAR);
    if (block == NULL) {
        sim_give(charge);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    block->charge = charge;
    block->context = context;
    *out = block->base;
    return CUDA_SUCCESS;
}

static CUresult allocate(uint64_t bytes, CUdeviceptr *out)
{
    CUcontext context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (bytes > MOST) return CUDA_ERROR_OUT_OF_MEMORY;
    sim_lock();
    result = allocate_locked(context, rounded(bytes, UNIT), out);
    sim_unlock();
    return result;
}

SIM_API cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
    SIM_CALL("%zu", bytes);
    if (out == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    return allocate(bytes, out);
}

SIM_API cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    SIM_CALL("%zu %zu %u", width, height, element);
    if (out == NULL || pitch == NULL || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
    if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
    if (width > MOST || height > MOST / rounded(width, UNIT)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = allocate(rounded(width, UNIT) * height, out);
    if (result == CUDA_SUCCESS) *pitch = rounded(width, UNIT);
    return result;
}

SIM_API cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned int flags)
{
    SIM_CALL("%zu %u", bytes, flags);
    CUcontext context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (out == NULL || bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > MOST) return CUDA_ERROR_OUT_OF_MEMORY;
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    sim_lock();
    struct sim_block *block = sim_block_host(pages, bytes, SIM_BLOCK_MANAGED);
    if (block != NULL) block->context = context;
    sim_unlock();
    if (block == NULL) {
        munmap(pages, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = block->base;
    return CUDA_SUCCESS;
}

/* -- free --------------------------------------------------------------------------------- */

void sim_block_free(struct sim_block *block)
{
    if (block->kind == SIM_BLOCK_POOL) {
        sim_pool_free_block(block, NULL);
        return;
    }
    if (block->kind == SIM_BLOCK_GRAPH) {
        sim_graph_free_block(block);
        return;
    }
    if (block->charge != 0) sim_give(block->charge);
    if (block->kind == SIM_BLOCK_MANAGED) munmap((void *)(uintptr_t)block->base, block->bytes);
    if (block->kind == SIM_BLOCK_HOST && block->flags == 0) free((void *)(uintptr_t)block->base);
    sim_block_drop(block);
}

static void free_if_of(struct sim_block *block, void *with)
{
    if (block->context == with && block->kind != SIM_BLOCK_RANGE && block->kind != SIM_BLOCK_GRAPH)
        sim_block_free(block);
}

void sim_blocks_of_context_free(CUcontext context)
{
    sim_block_each(free_if_of, context);
}

/* Graph memory can be freed while a launch holds it (flags), not before and not twice. */
bool sim_is_freeable(const struct sim_block *block, CUdeviceptr address)
{
    if (block == NULL || block->base != address) return false;
    if (block->kind == SIM_BLOCK_GRAPH) return block->flags != 0;
    return block->kind == SIM_BLOCK_LINEAR || block->kind == SIM_BLOCK_MANAGED || block->kind == SIM_BLOCK_POOL;
}

SIM_API cuMemFree_v2(CUdeviceptr address)
{
    SIM_CALL("%llx", address);
    CUcontext context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (address == 0) return CUDA_SUCCESS;
    sim_lock();
    struct sim_block *block = sim_block_find(address);
    if (!sim_is_freeable(block, address)) {
        sim_unlock();
        return CUDA_ERROR_INVALID_VALUE;
    }
    /* A free waits for the work that may still use the memory. */
    int row = (block->context == NULL ? context : block->context)->row;
    uint64_t tail = sim_clock_tail(row);
    if (!sim_clock_reached(row, tail)) {
        sim_unlock();
        sim_clock_wait(row, tail);
        sim_lock();
        block = sim_block_find(address);
    }
    bool still = sim_is_freeable(block, address); /* another thread may have freed it meanwhile */
    if (still) sim_block_free(block);
    sim_unlock();
    return still ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* -- measure ------------------------------------------------------------------------------ */

SIM_API cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    SIM_CALL("%s", "");
    CUcontext context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (free_bytes == NULL || total == NULL) return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    sim_reap_sometimes();
    const struct sim_device *device = &sim_machine->device[context->row];
    uint64_t left = device->capacity - device->used, capacity = device->capacity;
    if (sim_description.accounting != SIM_ACCOUNT_OFF)
        sim_group_view(sim_group_self(), context->row, &capacity, &left);
    *free_bytes = left;
    *total = capacity;
    sim_unlock();
    return CUDA_SUCCESS;
}

SIM_API cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    SIM_CALL("%llx", address);
    CUcontext context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    sim_lock();
    const struct sim_block *block = sim_block_find(address);
    if (block != NULL && base != NULL) *base = block->base;
    if (block != NULL && size != NULL) *size = block->bytes;
    sim_unlock();
    return block == NULL ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

static CUresult pointer_attribute(const struct sim_block *block, CUpointer_attribute attribute,
                                  CUdeviceptr address, void *data)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = block->context; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: /* 1 host, 2 device */
        *(unsigned *)data = block->kind == SIM_BLOCK_HOST ? 1 : 2;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)data = address; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)data = block->kind == SIM_BLOCK_MANAGED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = block->context == NULL ? 0 : block->context->device;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned char *)data = block->kind == SIM_BLOCK_LINEAR;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)data = block->base; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = block->bytes; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = block->kind == SIM_BLOCK_POOL ? block->pool : NULL;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

SIM_API cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
    SIM_CALL("%d %llx", (int)attribute, address);
    if (data == NULL) return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    const struct sim_block *block = sim_block_find(address);
    CUresult result = block == NULL ? CUDA_ERROR_INVALID_VALUE
                                    : pointer_attribute(block, attribute, address, data);
    sim_unlock();
    return result;
}

/* -- managed residency -------------------------------------------------------------------- */

/* Charges as much of a managed block to the device as fits; row < 0 sends it to the host. */
static void make_resident(struct sim_block *block, int row, uint64_t bytes)
{
    if (block->charge != 0) sim_give(block->charge);
    block->charge = 0;
    if (row < 0) return;
    const struct sim_device *device = &sim_machine->device[row];
    uint64_t room = device->capacity - device->used;
    if (bytes > room) bytes = room;
    if (bytes != 0) block->charge = sim_take(row, bytes, SIM_MANAGED);
}

static CUresult prefetch(CUdeviceptr address, uint64_t bytes, CUmemLocation location, CUstream handle)
{
    CUstream stream;
    CUresult result = sim_stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    bool to_device = location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (to_device && !sim_is_device(location.id)) return CUDA_ERROR_INVALID_DEVICE;
    sim_lock();
    struct sim_block *block = sim_block_find(address);
    bool managed = block != NULL && block->kind == SIM_BLOCK_MANAGED &&
                   bytes <= block->bytes - (address - block->base) && bytes != 0;
    if (managed) make_resident(block, to_device ? sim_visible[location.id] : -1, rounded(bytes, 4096));
    sim_unlock();
    return managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult do_cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream)
{
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    if (device == -1) location.type = CU_MEM_LOCATION_TYPE_HOST; /* CU_DEVICE_CPU */
    return prefetch(address, bytes, location, stream);
}

SIM_TWINS(cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz,
          (CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream),
          (address, bytes, device, stream), "%llx %zu %d", address, bytes, device)

static CUresult do_cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location,
                                         unsigned int flags, CUstream stream)
{
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : prefetch(address, bytes, location, stream);
}

SIM_TWINS(cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz,
          (CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned int flags, CUstream stream),
          (address, bytes, location, flags, stream), "%llx %zu %d", address, bytes, location.id)

SIM_API cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device)
{
    SIM_CALL("%llx %zu %d %d", address, bytes, advice, device);
    return CUDA_SUCCESS;
}

SIM_API cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location)
{
    SIM_CALL("%llx %zu %d %d", address, bytes, advice, location.id);
    return CUDA_SUCCESS;
}

/* -- pinned host memory ------------------------------------------------------------------- */

static CUresult host_allocate(void **out, size_t bytes)
{
    CUcontext context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (out == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > MOST) return CUDA_ERROR_OUT_OF_MEMORY;
    void *pages = aligned_alloc(4096, rounded(bytes, 4096));
    if (pages == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    sim_lock();
    struct sim_block *block = sim_block_host(pages, bytes, SIM_BLOCK_HOST);
    if (block != NULL) block->context = context;
    sim_unlock();
    if (block == NULL) free(pages);
    if (block != NULL) *out = pages;
    return block == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SIM_API cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
    SIM_CALL("%zu %u", bytes, flags);
    return host_allocate(out, bytes);
}

SIM_API cuMemAllocHost_v2(void **out, size_t bytes)
{
    SIM_CALL("%zu", bytes);
    return host_allocate(out, bytes);
}

/* `registered` tells memory that the caller owns from memory that we do. */
static CUresult host_release(void *pages, unsigned registered)
{
    sim_lock();
    struct sim_block *block = sim_block_find((CUdeviceptr)(uintptr_t)pages);
    bool ours = block != NULL && block->kind == SIM_BLOCK_HOST && block->flags == registered &&
                block->base == (CUdeviceptr)(uintptr_t)pages;
    if (ours) sim_block_free(block);
    sim_unlock();
    return ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API cuMemFreeHost(void *pages)
{
    SIM_CALL("%p", pages);
    return host_release(pages, 0);
}

static CUresult host_register(void *pages, size_t bytes)
{
    if (pages == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    bool known = sim_block_find((CUdeviceptr)(uintptr_t)pages) != NULL;
    struct sim_block *block = known ? NULL : sim_block_host(pages, bytes, SIM_BLOCK_HOST);
    if (block != NULL) block->flags = 1;
    sim_unlock();
    if (known) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    return block == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SIM_API cuMemHostRegister(void *pages, size_t bytes, unsigned int flags)
{
    SIM_CALL("%p %zu %u", pages, bytes, flags);
    return host_register(pages, bytes);
}

SIM_API cuMemHostRegister_v2(void *pages, size_t bytes, unsigned int flags)
{
    SIM_CALL("%p %zu %u", pages, bytes, flags);
    return host_register(pages, bytes);
}

SIM_API cuMemHostUnregister(void *pages)
{
    SIM_CALL("%p", pages);
    CUresult result = host_release(pages, 1);
    return result == CUDA_SUCCESS ? result : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

SIM_API cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *pages, unsigned int flags)
{
    SIM_CALL("%p %u", pages, flags);
    if (out == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdeviceptr)(uintptr_t)pages;
    return CUDA_SUCCESS;
}
