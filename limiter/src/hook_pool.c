/* DESIGN
 *
 * cuMemAllocAsync and its pools. A pool takes memory from the device in chunks of its own choice and keeps it after
 * blocks are freed, so counting blocks drifts away from the truth in both directions. What is charged is the pool's own
 * figure, RESERVED_MEM_CURRENT, read again whenever it may have changed: after an allocation, a free, a trim, a
 * synchronisation, before a query and before a refusal.
 *
 * An allocation reserves what the pool must grow by at least (the bytes that its free part cannot serve), asks the
 * driver, and then sets the charge to the new reading. If the pool grew by more than that and this goes past the limit,
 * the allocation is undone (free, synchronise, trim) and refused. Before any refusal the stream is synchronised and
 * the pool trimmed once, as blocks freed but not yet seen by the host still count.
 *
 * A destroyed pool gives its memory back only when its blocks are freed, and can no longer be read. A block of 512 bytes
 * keeps a whole chunk, so the blocks' sizes are not what it takes. Hence a pool of which blocks are outstanding is retired
 * first: it is no device's current pool, keeps nothing that it does not need, and is destroyed with the first settlement that
 * finds it empty. Until then it is read like any other.
 *
 * Capture: an allocation on a capturing stream is a graph node, not memory. It is passed on and not counted here, and
 * no call that would break the capture is made.
 */
#include "hook_pool.h"

#include "account.h"
#include "claim.h"
#include "compute.h"
#include "gauge.h"
#include "hidden.h"
#include "hook_graph_memory.h"
#include "physical.h"

/* One asynchronous allocation on its way. */
struct request {
    struct lim_process *process;
    struct lim_site site;
    CUmemoryPool pool;
    CUstream stream;
    bool per_thread;
    uint64_t granules; /* reserved for it */
};

static uint64_t key_of(CUmemoryPool pool)
{
    return (uint64_t)(uintptr_t)pool;
}

static CUmemoryPool pool_of(uint64_t key)
{
    return (CUmemoryPool)(uintptr_t)key;
}

static bool read_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, uint64_t *value)
{
    cuuint64_t figure = 0;
    bool known = CALL(cuMemPoolGetAttribute, pool, attribute, &figure) == CUDA_SUCCESS;
    *value = figure; /* zero where it could not be read */
    return known;
}

/* Lock held. */
static bool has_blocks(struct lim_process *process, uint64_t pool)
{
    struct record *record;
    for (size_t at = 0; (record = lim_ledger_from(&process->ledger, at)) != NULL;) {
        if (record->class == RECORD_ASYNC && record->link == pool) {
            return true;
        }
        at = (size_t)(record - process->ledger.records) + 1u;
    }
    return false;
}

static bool is_retired(struct lim_process *process, uint64_t pool)
{
    lim_lock(process);
    const struct record *gauge = lim_gauge_find(process, RECORD_POOL, pool);
    bool retired = gauge != NULL && gauge->mark != 0;
    lim_unlock(process);
    return retired;
}

static void forget_pool(struct lim_process *process, uint64_t key);

/* Destroys a retired pool once it is empty. Blocks that a stream has still to free keep it. */
LIM_COLD static void settle_retired(struct lim_process *process, uint64_t pool)
{
    uint64_t reserved = 0;
    CALL(cuMemPoolTrimTo, pool_of(pool), 0);
    lim_gauge_read(process, RECORD_POOL, pool, 0, false);
    lim_lock(process);
    bool is_empty = !has_blocks(process, pool);
    lim_unlock(process);
    if (is_empty && read_attribute(pool_of(pool), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) && reserved == 0 &&
        CALL(cuMemPoolDestroy, pool_of(pool)) == CUDA_SUCCESS) {
        forget_pool(process, pool);
    }
}

void lim_settle_pool(struct lim_process *process, uint64_t pool)
{
    if (LIM_USUAL(!is_retired(process, pool))) {
        lim_gauge_read(process, RECORD_POOL, pool, 0, false);
    } else {
        settle_retired(process, pool);
    }
}

static uint32_t listed_count(struct lim_process *process)
{
    lim_lock(process);
    uint32_t count = process->pool_count;
    lim_unlock(process);
    return count;
}

/* The i-th listed pool; false behind the last. */
static bool listed_pool(struct lim_process *process, uint32_t i, uint64_t *key)
{
    lim_lock(process);
    bool exists = i < process->pool_count;
    *key = exists ? process->pools[i] : 0;
    lim_unlock(process);
    return exists;
}

void lim_settle_pools(struct lim_process *process)
{
    uint64_t key;
    lim_mark_clean(process, LIM_POOLS_DIRTY); /* first: a call that comes meanwhile marks it again */
    for (uint32_t i = listed_count(process); i-- > 0;) { /* from the end: a retired one may go, and the last takes its place */
        if (listed_pool(process, i, &key)) {
            lim_settle_pool(process, key);
        }
    }
    lim_settle_graphs(process);
}

void lim_settle_dirty(struct lim_process *process)
{
    if (lim_is_dirty(process, LIM_POOLS_DIRTY)) {
        lim_settle_pools(process);
    }
    if (lim_is_dirty(process, LIM_HIDDEN_DIRTY)) {
        lim_hidden_catch_up(process);
    }
}

void lim_relieve_pools(struct lim_process *process)
{
    uint64_t key;
    for (uint32_t i = listed_count(process); i-- > 0;) {
        if (listed_pool(process, i, &key)) {
            CALL(cuMemPoolTrimTo, pool_of(key), 0);
            lim_settle_pool(process, key);
        }
    }
    lim_trim_graphs(process);
    lim_hidden_look_again(process);
}

static void list_pool(struct lim_process *process, uint64_t key)
{
    for (uint32_t i = 0; i < process->pool_count; i++) {
        if (process->pools[i] == key) {
            return;
        }
    }
    if (process->pool_count < LIM_LISTED_POOLS) {
        process->pools[process->pool_count++] = key;
    }
}

static void unlist_pool(struct lim_process *process, uint64_t key)
{
    for (uint32_t i = 0; i < process->pool_count; i++) {
        if (process->pools[i] == key) {
            process->pools[i] = process->pools[--process->pool_count];
            return;
        }
    }
}

/* Learns a pool. False when there is no memory to write it down. */
static bool learn_pool(struct lim_process *process, CUmemoryPool handle, int device)
{
    lim_lock(process);
    bool known = lim_ledger_find(&process->ledger, key_of(handle), RECORD_POOL) != NULL;
    lim_unlock(process);
    if (known || !lim_gauge_learn(process, RECORD_POOL, key_of(handle), device)) {
        return known;
    }
    lim_lock(process);
    if (device >= 0) {
        list_pool(process, key_of(handle));
    }
    lim_unlock(process);
    return true;
}

static void synchronise(const struct request *request)
{
    if (request->per_thread) {
        CALL(cuStreamSynchronize_ptsz, request->stream);
    } else {
        CALL(cuStreamSynchronize, request->stream);
    }
}

/* What the pool must grow by at least to serve `bytes`. */
static uint64_t least_growth(CUmemoryPool pool, uint64_t bytes)
{
    uint64_t reserved = 0;
    uint64_t used = 0;
    read_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
    read_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
    uint64_t unused = reserved > used ? reserved - used : 0;
    return bytes > unused ? lim_granules(bytes - unused) : 0;
}

/* Reserves for the request; if need be after synchronising and trimming once. One ledger record is reserved too. */
static bool reserve(struct request *request, uint64_t bytes)
{
    uint32_t device = (uint32_t)request->site.device;
    request->granules = least_growth(request->pool, bytes);
    if (lim_take(request->process, device, request->granules, 1)) {
        return true;
    }
    /* Only now, as it waits for the stream: a program below its limit is never slowed down. */
    synchronise(request);
    lim_relieve_pools(request->process);
    request->granules = least_growth(request->pool, bytes);
    return lim_take_or_refuse(request->process, device, request->granules, 1);
}

static void unreserve(struct request *request)
{
    lim_lock(request->process);
    lim_ledger_unreserve(&request->process->ledger, 1);
    lim_give_locked(request->process, (uint32_t)request->site.device, request->granules);
    lim_unlock(request->process);
}

/* The pool grew past the limit: takes the block back and the pool with it. */
static CUresult undo(struct request *request, CUdeviceptr pointer)
{
    if (request->per_thread) {
        CALL(cuMemFreeAsync_ptsz, pointer, request->stream);
    } else {
        CALL(cuMemFreeAsync, pointer, request->stream);
    }
    synchronise(request);
    CALL(cuMemPoolTrimTo, request->pool, 0);
    unreserve(request);
    lim_settle_pool(request->process, key_of(request->pool));
    lim_note_refusal(request->process, (uint32_t)request->site.device, 0);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* After the driver: settles the charge and records the block, or gives the reservation back. */
static CUresult finish(struct request *request, CUresult result, CUdeviceptr *out, CUdeviceptr pointer, uint64_t bytes)
{
    uint64_t key = key_of(request->pool);
    if (result != CUDA_SUCCESS) {
        unreserve(request);
        lim_settle_pool(request->process, key);
        return result;
    }
    if (!lim_gauge_read(request->process, RECORD_POOL, key, request->granules, true)) {
        /* The pool took more than it was asked for, past the limit. The dead may leave room for it. */
        lim_reap_now(request->process);
        if (!lim_gauge_read(request->process, RECORD_POOL, key, request->granules, true)) {
            return undo(request, pointer);
        }
    }
    struct record record = {.key = pointer,
                            .granules = lim_granules(bytes),
                            .link = key,
                            .class = RECORD_ASYNC,
                            .device = (uint8_t)request->site.device};
    lim_record(request->process, &record);
    lim_mark_dirty(request->process, LIM_POOLS_DIRTY);
    *out = pointer;
    return CUDA_SUCCESS;
}

/* Finds device and pool of a request. False: the driver is to answer, uncounted. */
static bool place_request(struct request *request)
{
    lim_lock(request->process);
    struct record *known = lim_ledger_find(&request->process->ledger, key_of(request->pool), RECORD_POOL);
    struct record pool = known == NULL ? (struct record){.class = RECORD_NONE} : *known;
    lim_unlock(request->process);
    /* A named pool is on its own device, whatever stream serves it; a default pool is that of the stream's device. */
    if (pool.class != RECORD_NONE && request->pool != NULL) {
        request->site.device = pool.device;
        return !pool.uncounted;
    }
    request->site = lim_stream_site(request->process, request->stream, request->per_thread);
    if (request->site.device == LIM_NO_DEVICE) {
        return false;
    }
    return request->pool != NULL || CALL(cuDeviceGetMemPool, &request->pool, request->site.ordinal) == CUDA_SUCCESS;
}

static CUresult call_driver(const struct request *request, CUmemoryPool asked, CUdeviceptr *out, size_t bytes)
{
    CUstream stream = request->stream;
    if (asked != NULL) {
        return request->per_thread ? CALL(cuMemAllocFromPoolAsync_ptsz, out, bytes, asked, stream)
                                   : CALL(cuMemAllocFromPoolAsync, out, bytes, asked, stream);
    }
    return request->per_thread ? CALL(cuMemAllocAsync_ptsz, out, bytes, stream)
                               : CALL(cuMemAllocAsync, out, bytes, stream);
}

/* As lim_claim_again, for what a pool is short of. */
LIM_COLD static bool try_for_room(struct request *request, struct lim_patience *patience)
{
    uint32_t device = (uint32_t)request->site.device;
    if (patience->tries == 0) {
        synchronise(request);
    }
    bool again = lim_room_again(request->process, device, request->granules, patience);
    if (!again) {
        lim_note_full(request->process, device);
    }
    return again;
}

static CUresult allocate(CUdeviceptr *out, size_t bytes, CUmemoryPool asked, CUstream stream, bool per_thread)
{
    struct request request = {.process = lim_process(), .pool = asked, .stream = stream, .per_thread = per_thread};
    CUdeviceptr pointer = 0;
    if (request.process == NULL) {
        return LIM_DENIED;
    }
    if (lim_is_dirty(request.process, LIM_HIDDEN_DIRTY)) {
        lim_hidden_catch_up(request.process);
    }
    if (out == NULL || bytes == 0 || lim_is_capturing(stream, per_thread) || !place_request(&request)) {
        return call_driver(&request, asked, out, bytes);
    }
    if (request.site.device == LIM_UNLISTED_DEVICE || !learn_pool(request.process, request.pool, request.site.device) ||
        !reserve(&request, bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct lim_patience patience = {0, 0};
    CUresult result = call_driver(&request, asked, &pointer, bytes);
    while (!LIM_USUAL(result != CUDA_ERROR_OUT_OF_MEMORY) && try_for_room(&request, &patience)) {
        result = call_driver(&request, asked, &pointer, bytes);
    }
    return finish(&request, result, out, pointer, bytes);
}

LIM_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream stream)
{
    return allocate(dptr, bytesize, NULL, stream, false);
}

LIM_EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream stream)
{
    return allocate(dptr, bytesize, NULL, stream, true);
}

/* A null pool is an error of the caller; it must not turn into the default pool. */
LIM_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream)
{
    return pool == NULL ? CALL(cuMemAllocFromPoolAsync, dptr, bytesize, pool, stream)
                        : allocate(dptr, bytesize, pool, stream, false);
}

LIM_EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream)
{
    return pool == NULL ? CALL(cuMemAllocFromPoolAsync_ptsz, dptr, bytesize, pool, stream)
                        : allocate(dptr, bytesize, pool, stream, true);
}

void lim_pool_block_freed(struct lim_process *process, const struct record *record)
{
    lim_mark_dirty(process, LIM_POOLS_DIRTY); /* the stream may reach the free later */
    lim_settle_pool(process, record->link);
}

static CUresult free_async(CUdeviceptr pointer, CUstream stream, bool per_thread)
{
    struct lim_process *process = lim_attached();
    struct record record = {.class = RECORD_NONE};
    if (process != NULL) {
        record = lim_withdraw(process, pointer, RECORD_ASYNC);
        record = record.class == RECORD_NONE ? lim_withdraw(process, pointer, RECORD_LINEAR) : record;
        record = record.class == RECORD_NONE ? lim_withdraw(process, pointer, RECORD_MANAGED) : record;
        record = record.class == RECORD_NONE ? lim_withdraw(process, pointer, RECORD_SPILLED) : record;
    }
    CUresult result = per_thread ? CALL(cuMemFreeAsync_ptsz, pointer, stream) : CALL(cuMemFreeAsync, pointer, stream);
    if (process != NULL && result == CUDA_SUCCESS) {
        lim_release(process, &record);
    } else if (process != NULL) {
        lim_restore(process, &record);
    }
    return result;
}

LIM_EXPORT CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream)
{
    return free_async(dptr, stream, false);
}

LIM_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream)
{
    return free_async(dptr, stream, true);
}

LIM_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    struct lim_process *process = lim_process();
    if (process == NULL) {
        return LIM_DENIED;
    }
    CUresult result = CALL(cuMemPoolCreate, pool, props);
    if (result == CUDA_SUCCESS) {
        int device = lim_location_device(process, &props->location);
        if (device == LIM_UNLISTED_DEVICE || !learn_pool(process, *pool, device)) {
            CALL(cuMemPoolDestroy, *pool);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return result;
}

/* An imported pool's memory is charged to the process that exported it. */
LIM_EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle,
                                                       CUmemAllocationHandleType type, unsigned long long flags)
{
    struct lim_process *process = lim_process();
    if (process == NULL) {
        return LIM_DENIED;
    }
    CUresult result = CALL(cuMemPoolImportFromShareableHandle, pool, handle, type, flags);
    if (result == CUDA_SUCCESS) {
        learn_pool(process, *pool, LIM_NO_DEVICE);
    }
    return result;
}

static void forget_pool(struct lim_process *process, uint64_t key)
{
    lim_lock(process);
    struct record *pool = lim_gauge_find(process, RECORD_POOL, key);
    if (pool != NULL) {
        unlist_pool(process, key);
        lim_gauge_end(process, pool, 0);
    } else if ((pool = lim_ledger_find(&process->ledger, key, RECORD_POOL)) != NULL) {
        lim_ledger_remove(&process->ledger, pool);
    }
    lim_unlock(process);
}

/* True if it is some device's default pool, which cannot be destroyed. A device whose current pool it is gets its default
 * one back, as by its destruction. */
static bool is_default_pool(CUmemoryPool pool)
{
    CUmemoryPool found = NULL;
    CUmemoryPool usual = NULL;
    int count = 0;
    CALL(cuDeviceGetCount, &count);
    for (CUdevice device = 0; device < count; device++) {
        if (CALL(cuDeviceGetDefaultMemPool, &usual, device) != CUDA_SUCCESS || usual == pool) {
            return true;
        }
        if (CALL(cuDeviceGetMemPool, &found, device) == CUDA_SUCCESS && found == pool) {
            CALL(cuDeviceSetMemPool, device, usual);
        }
    }
    return false;
}

/* True if the pool is retired now: its destruction comes with its last block. */
static bool retire(struct lim_process *process, CUmemoryPool pool)
{
    cuuint64_t nothing = 0;
    lim_lock(process);
    bool outlived = lim_gauge_find(process, RECORD_POOL, key_of(pool)) != NULL && has_blocks(process, key_of(pool));
    lim_unlock(process);
    if (!outlived || is_default_pool(pool)) {
        return false;
    }
    CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &nothing);
    lim_lock(process);
    struct record *gauge = lim_gauge_find(process, RECORD_POOL, key_of(pool));
    if (gauge != NULL) {
        gauge->mark = 1;
        list_pool(process, key_of(pool));
    }
    lim_unlock(process);
    lim_settle_pool(process, key_of(pool));
    return true;
}

LIM_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    struct lim_process *process = lim_attached();
    if (process != NULL && is_retired(process, key_of(pool))) {
        return CUDA_ERROR_INVALID_VALUE; /* was destroyed already */
    }
    if (process != NULL && retire(process, pool)) {
        return CUDA_SUCCESS;
    }
    CUresult result = CALL(cuMemPoolDestroy, pool);
    if (process != NULL && result == CUDA_SUCCESS) {
        forget_pool(process, key_of(pool));
    }
    return result;
}

static CUresult settle_after(CUresult result, CUmemoryPool pool)
{
    struct lim_process *process = lim_attached();
    if (process != NULL) {
        lim_settle_pool(process, key_of(pool));
    }
    return result;
}

LIM_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    return settle_after(CALL(cuMemPoolTrimTo, pool, minBytesToKeep), pool);
}

/* The release threshold decides what the next synchronisation gives back. */
LIM_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    return settle_after(CALL(cuMemPoolSetAttribute, pool, attribute, value), pool);
}

/* Synchronising is when pools give memory back, and when kernels have their code and stacks. Costs one load where there
 * is nothing to look at. */
static CUresult settle_dirty(CUresult result)
{
    struct lim_process *process = lim_attached();
    if (process != NULL) {
        lim_collect(process);
    }
    if (process != NULL && lim_is_dirty(process, LIM_POOLS_DIRTY | LIM_HIDDEN_DIRTY)) {
        lim_settle_dirty(process);
    }
    return result;
}

LIM_EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    return settle_dirty(CALL(cuStreamSynchronize, stream));
}

LIM_EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    return settle_dirty(CALL(cuStreamSynchronize_ptsz, stream));
}

LIM_EXPORT CUresult cuCtxSynchronize(void)
{
    return settle_dirty(CALL(cuCtxSynchronize));
}

LIM_EXPORT CUresult cuCtxSynchronize_v2(CUcontext context)
{
    return settle_dirty(CALL(cuCtxSynchronize_v2, context));
}
