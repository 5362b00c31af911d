/* DESIGN
 *
 * The stream-ordered allocator. A pool is a reserve, charged to the device in steps of 32 MiB,
 * and three sums inside it:
 *
 *     reserved >= live + pending
 *
 * live: allocated, not freed by a call. pending: freed by a call, but the stream has not got
 * there or nobody has looked. Pending bytes serve the same stream at once (stream order) and
 * another stream once the work before the free is done. What is neither is free in the pool and
 * stays reserved until a synchronisation finds the reserve above the release threshold, or trim.
 * Trim counts only frees that a synchronisation has observed, as the real driver documents.
 *
 * Fragmentation is not modelled: a pool with enough free bytes never grows.
 *
 * Source: CUDA driver API, Stream Ordered Memory Allocator; the step is the usual growth.
 */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t STEP = 32 * SIM_MIB, UNIT = 512;

static CUmemoryPool pools;                      /* every pool object of this process */
static CUmemoryPool defaults[SIM_MAX_DEVICES];  /* by CUDA ordinal */
static CUmemoryPool chosen[SIM_MAX_DEVICES];    /* set by cuDeviceSetMemPool */

void sim_pools_forget(void)
{
    for (CUmemoryPool pool = pools, next; pool != NULL; pool = next) {
        next = pool->next;
        free(pool->pending);
        free(pool);
    }
    pools = NULL;
    memset(defaults, 0, sizeof defaults);
    memset(chosen, 0, sizeof chosen);
}

static bool is_pool(CUmemoryPool pool)
{
    return pool != NULL && pool->magic == SIM_POOL_MAGIC;
}

static uint64_t stepped(uint64_t bytes)
{
    return (bytes + STEP - 1) / STEP * STEP;
}

static uint64_t used(CUmemoryPool pool)
{
    return pool->live + pool->pending_bytes;
}

/* -- the reserve -------------------------------------------------------------------------- */

static bool reserve_charge(CUmemoryPool pool, uint64_t bytes)
{
    if (pool->row < 0) return true; /* host memory is not counted */
    if (pool->charge != 0) return sim_resize(pool->charge, bytes);
    pool->charge = sim_take(pool->row, bytes, SIM_POOL);
    return pool->charge != 0;
}

static bool grow(CUmemoryPool pool, uint64_t needed)
{
    uint64_t most = pool->props.maxSize, bytes = stepped(needed);
    if (most != 0 && needed > most) return false;
    if (most != 0 && bytes > most) bytes = most;
    if (!reserve_charge(pool, bytes)) return false;
    pool->reserved = bytes;
    if (bytes > pool->reserved_high) pool->reserved_high = bytes;
    return true;
}

/* Gives back what is free above `keep`. */
static void shrink(CUmemoryPool pool, uint64_t keep)
{
    uint64_t least = stepped(used(pool)), bytes = stepped(keep);
    if (bytes < least) bytes = least;
    if (bytes >= pool->reserved) return;
    pool->reserved = bytes;
    if (pool->charge == 0) return;
    if (bytes != 0) {
        sim_resize(pool->charge, bytes);
        return;
    }
    sim_give(pool->charge);
    pool->charge = 0;
}

/* -- pending frees ------------------------------------------------------------------------ */

static void settle(CUmemoryPool pool, uint32_t index, uint64_t bytes)
{
    struct sim_pending *entry = &pool->pending[index];
    entry->bytes -= bytes;
    pool->pending_bytes -= bytes;
    if (entry->bytes == 0) *entry = pool->pending[--pool->pendings];
}

static void settle_up_to(CUmemoryPool pool, uint64_t ticket)
{
    for (uint32_t i = pool->pendings; i-- > 0;)
        if (pool->pending[i].ticket <= ticket) settle(pool, i, pool->pending[i].bytes);
}

static void pend(CUmemoryPool pool, CUstream stream, uint64_t bytes)
{
    if (pool->pendings == pool->room) {
        uint32_t room = pool->room == 0 ? 16 : pool->room * 2;
        struct sim_pending *more = realloc(pool->pending, room * sizeof *more);
        if (more == NULL) return;
        pool->pending = more;
        pool->room = room;
    }
    pool->pending[pool->pendings++] = (struct sim_pending){stream, stream->tail, bytes};
    pool->pending_bytes += bytes;
}

/* Takes up to `bytes` of what this stream itself has freed. */
static void reuse_own(CUmemoryPool pool, CUstream stream, uint64_t bytes)
{
    for (uint32_t i = pool->pendings; i-- > 0 && bytes != 0;) {
        if (pool->pending[i].stream != stream) continue;
        uint64_t taken = pool->pending[i].bytes < bytes ? pool->pending[i].bytes : bytes;
        settle(pool, i, taken);
        bytes -= taken;
    }
}

static void reuse_finished(CUmemoryPool pool)
{
    if (pool->pendings == 0 || pool->row < 0) return;
    sim_clock_reached(pool->row, UINT64_MAX); /* brings the queue up to now */
    settle_up_to(pool, sim_machine->owner[sim_self].queue[pool->row].done);
}

static void retire(CUmemoryPool pool)
{
    if (pool->magic == SIM_DEAD) shrink(pool, 0);
}

void sim_pools_synced(int row, uint64_t ticket)
{
    for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next) {
        if (pool->row != row) continue;
        settle_up_to(pool, ticket);
        if (pool->reserved > pool->threshold) shrink(pool, pool->threshold);
        retire(pool);
    }
}

/* -- allocate and free -------------------------------------------------------------------- */

/* Called with the lock held. */
static CUresult allocate(CUmemoryPool pool, uint64_t bytes, CUstream stream, CUdeviceptr *out)
{
    uint64_t room = pool->reserved - used(pool);
    if (room < bytes) reuse_own(pool, stream, bytes - room);
    room = pool->reserved - used(pool);
    if (room < bytes && pool->reuse[CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC]) reuse_finished(pool);
    if (pool->reserved - used(pool) < bytes && !grow(pool, used(pool) + bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sim_block *block = sim_block_new(bytes, 0, SIM_BLOCK_POOL);
    if (block == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    block->pool = pool;
    block->context = stream->context;
    pool->live += bytes;
    if (used(pool) > pool->used_high) pool->used_high = used(pool);
    *out = block->base;
    return CUDA_SUCCESS;
}

static CUmemoryPool new_pool(CUdevice device, const CUmemPoolProps *props)
{
    CUmemoryPool pool = calloc(1, sizeof *pool);
    if (pool == NULL) return NULL;
    pool->magic = SIM_POOL_MAGIC;
    pool->device = device;
    pool->row = device < 0 ? -1 : sim_visible[device];
    pool->props = *props;
    for (int i = 1; i < 4; i++) pool->reuse[i] = 1;
    pool->next = pools;
    pools = pool;
    return pool;
}

/* Called with the lock held. */
static CUmemoryPool default_pool(CUdevice device)
{
    if (defaults[device] == NULL) {
        CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
        defaults[device] = new_pool(device, &props);
        if (defaults[device] != NULL) defaults[device]->is_default = true;
    }
    return defaults[device];
}

static CUmemoryPool current_pool(CUdevice device)
{
    return is_pool(chosen[device]) ? chosen[device] : default_pool(device);
}

static CUresult allocate_on(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream handle)
{
    CUstream stream;
    CUresult result = sim_stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (out == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > 1ULL << 41) return CUDA_ERROR_OUT_OF_MEMORY;
    if (stream->capture != NULL) return sim_graph_alloc(stream->capture, stream->context->device, bytes, out);
    sim_lock();
    if (pool == NULL) pool = current_pool(stream->context->device);
    result = is_pool(pool) ? allocate(pool, (bytes + UNIT - 1) / UNIT * UNIT, stream, out)
                           : CUDA_ERROR_INVALID_VALUE;
    sim_unlock();
    return result;
}

static CUresult do_cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream)
{
    return allocate_on(out, bytes, NULL, stream);
}

SIM_TWINS(cuMemAllocAsync, cuMemAllocAsync_ptsz, (CUdeviceptr *out, size_t bytes, CUstream stream),
          (out, bytes, stream), "%zu %p", bytes, (void *)stream)

static CUresult do_cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return pool == NULL ? CUDA_ERROR_INVALID_VALUE : allocate_on(out, bytes, pool, stream);
}

SIM_TWINS(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz,
          (CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream), (out, bytes, pool, stream),
          "%zu %p %p", bytes, (void *)pool, (void *)stream)

void sim_pool_free_block(struct sim_block *block, CUstream stream)
{
    CUmemoryPool pool = block->pool;
    pool->live -= block->bytes;
    /* Without a stream the caller has waited already. A free whose record cannot be kept counts
     * as done at once: too early, but nothing is lost. */
    if (stream != NULL) pend(pool, stream, block->bytes);
    sim_block_drop(block);
    retire(pool);
}

static CUresult do_cuMemFreeAsync(CUdeviceptr address, CUstream handle)
{
    CUstream stream;
    CUresult result = sim_stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (address == 0) return CUDA_SUCCESS;
    if (stream->capture != NULL) return sim_graph_free(stream->capture, address);
    sim_lock();
    struct sim_block *block = sim_block_find(address);
    bool ours = sim_is_freeable(block, address);
    if (ours && block->kind == SIM_BLOCK_POOL) sim_pool_free_block(block, stream);
    else if (ours) sim_block_free(block);
    sim_unlock();
    return ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_TWINS(cuMemFreeAsync, cuMemFreeAsync_ptsz, (CUdeviceptr address, CUstream stream), (address, stream),
          "%llx %p", address, (void *)stream)

/* -- pool objects ------------------------------------------------------------------------- */

/* The CUDA ordinal that a location means, -1 for host memory, -2 for nonsense. */
static CUdevice device_at(const CUmemLocation *location)
{
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: return sim_is_device(location->id) ? location->id : -2;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return -1;
    default: return -2;
    }
}

SIM_API cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
    SIM_CALL("%zu", props == NULL ? 0 : props->maxSize);
    if (out == NULL || props == NULL || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    CUdevice device = device_at(&props->location);
    if (device == -2) return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    CUmemoryPool pool = new_pool(device, props);
    sim_unlock();
    if (pool != NULL) *out = pool;
    return pool == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SIM_API cuMemPoolDestroy(CUmemoryPool pool)
{
    SIM_CALL("%p", (void *)pool);
    if (!is_pool(pool)) return CUDA_ERROR_INVALID_VALUE;
    if (pool->is_default) return CUDA_ERROR_NOT_PERMITTED;
    sim_lock();
    pool->magic = SIM_DEAD; /* the reserve goes with the last allocation */
    reuse_finished(pool);
    shrink(pool, 0);
    sim_unlock();
    return CUDA_SUCCESS;
}

SIM_API cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    SIM_CALL("%p %zu", (void *)pool, keep);
    if (!is_pool(pool)) return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    shrink(pool, keep);
    sim_unlock();
    return CUDA_SUCCESS;
}

/* -- attributes --------------------------------------------------------------------------- */

static CUresult set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, const void *value)
{
    switch ((int)attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        memcpy(&pool->reuse[attribute], value, sizeof(int));
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: memcpy(&pool->threshold, value, 8); return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: /* only 0 is legal: start again from now */
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: {
        uint64_t zero;
        memcpy(&zero, value, 8);
        if (zero != 0) return CUDA_ERROR_INVALID_VALUE;
        if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) pool->used_high = used(pool);
        else pool->reserved_high = pool->reserved;
        return CUDA_SUCCESS;
    }
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

SIM_API cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    SIM_CALL("%p %d", (void *)pool, (int)attribute);
    if (!is_pool(pool) || value == NULL) return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    CUresult result = set_attribute(pool, attribute, value);
    sim_unlock();
    return result;
}

static CUresult put(void *value, uint64_t number, size_t width)
{
    memcpy(value, &number, width); /* little-endian: the low half is the int */
    return CUDA_SUCCESS;
}

static CUresult get_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        return put(value, (uint64_t)pool->reuse[attribute], sizeof(int));
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: return put(value, pool->threshold, 8);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return put(value, pool->reserved, 8);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return put(value, pool->reserved_high, 8);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return put(value, used(pool), 8);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return put(value, pool->used_high, 8);
    case CU_MEMPOOL_ATTR_ALLOCATION_TYPE: return put(value, pool->props.allocType, sizeof(int));
    case CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES: return put(value, pool->props.handleTypes, sizeof(int));
    case CU_MEMPOOL_ATTR_LOCATION_ID: return put(value, (uint64_t)pool->props.location.id, sizeof(int));
    case CU_MEMPOOL_ATTR_LOCATION_TYPE: return put(value, pool->props.location.type, sizeof(int));
    case CU_MEMPOOL_ATTR_MAX_POOL_SIZE: return put(value, pool->props.maxSize, 8);
    }
    return CUDA_ERROR_INVALID_VALUE;
}

SIM_API cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    SIM_CALL("%p %d", (void *)pool, (int)attribute);
    if (!is_pool(pool) || value == NULL) return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    CUresult result = get_attribute(pool, attribute, value);
    sim_unlock();
    return result;
}

SIM_API cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    SIM_CALL("%p %zu", (void *)pool, count);
    return is_pool(pool) && map != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
    SIM_CALL("%p", (void *)pool);
    if (!is_pool(pool) || flags == NULL || location == NULL) return CUDA_ERROR_INVALID_VALUE;
    bool own = location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id == pool->device;
    *flags = own ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

/* -- the pools of a device ---------------------------------------------------------------- */

static CUresult hand_out(CUmemoryPool *out, CUdevice device, CUmemoryPool (*which)(CUdevice device))
{
    if (out == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    sim_lock();
    CUmemoryPool pool = which(device);
    sim_unlock();
    if (pool != NULL) *out = pool;
    return pool == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SIM_API cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device)
{
    SIM_CALL("%d", device);
    return hand_out(out, device, default_pool);
}

SIM_API cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device)
{
    SIM_CALL("%d", device);
    return hand_out(out, device, current_pool);
}

SIM_API cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    SIM_CALL("%d %p", device, (void *)pool);
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!is_pool(pool) || pool->device != device) return CUDA_ERROR_INVALID_VALUE;
    chosen[device] = pool;
    return CUDA_SUCCESS;
}

static CUresult at_location(CUmemoryPool *out, const CUmemLocation *location, CUmemAllocationType type,
                            CUmemoryPool (*which)(CUdevice device))
{
    if (location == NULL || location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_NOT_SUPPORTED;
    return hand_out(out, location->id, which);
}

SIM_API cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type)
{
    SIM_CALL("%d", (int)type);
    return at_location(out, location, type, default_pool);
}

SIM_API cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type)
{
    SIM_CALL("%d", (int)type);
    return at_location(out, location, type, current_pool);
}
