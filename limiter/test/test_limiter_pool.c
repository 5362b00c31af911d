/* DESIGN
 *
 * Stream-ordered memory. The simulated pool grows in steps of 32 MiB, keeps freed blocks until a synchronisation finds
 * them above the release threshold (0 unless set), and reuses blocks in stream order.
 */
#include "limiter_world.h"

static const CUdeviceptr UNTOUCHED = 0x1234;
static const uint64_t CHUNK = 32 * MIB;

static CUdeviceptr allocated(size_t bytes)
{
    CUdeviceptr pointer = UNTOUCHED;
    OK(cuMemAllocAsync(&pointer, bytes, NULL));
    return pointer;
}

static void refused(size_t bytes)
{
    CUdeviceptr pointer = UNTOUCHED;
    IS(cuMemAllocAsync(&pointer, bytes, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(pointer, UNTOUCHED);
}

static void pairs_of_allocation_and_free_do_not_drift(void)
{
    world_context(0);
    for (int i = 0; i < 200; i++) {
        OK(cuMemFreeAsync(allocated(CHUNK), NULL));
        CHECK(charged(0) <= 512 * MIB);
    }
    OK(cuStreamSynchronize(NULL));
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(taken(), 0);
}

static void without_frees_the_chunk_that_would_pass_the_limit_is_refused(void)
{
    world_context(0);
    for (uint64_t i = 1; i <= 16; i++) { /* 16 x 32 MiB = 536,870,912 bytes */
        allocated(CHUNK);
        CHECK_EQ_U64(charged(0), i * CHUNK);
    }
    refused(CHUNK);
    refused(1);
    CHECK_EQ_U64(charged(0), 536870912);
    CHECK_EQ_U64(taken(), 536870912);
}

static void a_pool_that_would_grow_past_the_limit_for_a_small_block_is_undone(void)
{
    world_context(0);
    refused(512); /* the pool takes 32 MiB for it; 16 are the limit */
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(taken(), 0);
    CHECK_EQ_U64(the_region()->usage.device[0].refused_count, 1);
}

static void freed_blocks_are_collected_before_a_refusal(void)
{
    world_context(0);
    CUdeviceptr pool_block = allocated(512 * MIB);
    OK(cuMemFreeAsync(pool_block, NULL));
    CUdeviceptr plain = UNTOUCHED;
    OK(cuStreamSynchronize(NULL));
    OK(cuMemAlloc_v2(&plain, 512 * MIB));
    CHECK_EQ_U64(charged(0), 512 * MIB);
}

static void the_release_threshold_keeps_the_charge_until_trim(void)
{
    CUmemoryPool pool;
    uint64_t threshold = UINT64_MAX;
    world_context(0);
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    OK(cuMemFreeAsync(allocated(256 * MIB), NULL));
    OK(cuStreamSynchronize(NULL));
    CHECK_EQ_U64(charged(0), 256 * MIB);
    CHECK_EQ_U64(taken(), 256 * MIB);
    OK(cuMemPoolTrimTo(pool, 0));
    CHECK_EQ_U64(charged(0), 0);
}

static void memory_kept_by_a_pool_is_trimmed_for_a_plain_allocation(void)
{
    CUmemoryPool pool;
    CUdeviceptr plain;
    uint64_t threshold = UINT64_MAX;
    world_context(0);
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    OK(cuMemFreeAsync(allocated(512 * MIB), NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemAlloc_v2(&plain, 512 * MIB));
    CHECK_EQ_U64(charged(0), 512 * MIB);
}

static void async_memory_may_be_freed_synchronously(void)
{
    world_context(0);
    for (int i = 0; i < 50; i++) {
        OK(cuMemFree_v2(allocated(256 * MIB)));
    }
    OK(cuCtxSynchronize());
    CHECK_EQ_U64(charged(0), 0);
}

static void plain_memory_may_be_freed_asynchronously(void)
{
    CUdeviceptr pointer;
    world_context(0);
    OK(cuMemAlloc_v2(&pointer, 256 * MIB));
    CUresult expected = REAL(cuMemFreeAsync)(0xdead0000, NULL);
    CHECK(expected != CUDA_SUCCESS);
    IS(cuMemFreeAsync(0xdead0000, NULL), expected);
    CUresult result = cuMemFreeAsync(pointer, NULL);
    OK(cuStreamSynchronize(NULL));
    CHECK_EQ_U64(charged(0), result == CUDA_SUCCESS ? 0 : 256 * MIB);
    CHECK_EQ_U64(charged(0), taken());
}

static CUmemoryPool a_pool(CUmemLocationType type, int id)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = type, .id = id}};
    CUmemoryPool pool;
    OK(cuMemPoolCreate(&pool, &props));
    return pool;
}

static void pools_of_ones_own_count_on_their_own_device(void)
{
    CUdeviceptr pointer = UNTOUCHED;
    CUstream stream;
    world_context(0);
    OK(cuStreamCreate(&stream, 0));
    CUmemoryPool pool = a_pool(CU_MEM_LOCATION_TYPE_DEVICE, 1);
    OK(cuMemAllocFromPoolAsync(&pointer, 256 * MIB, pool, stream));
    CHECK_EQ_U64(charged(1), 256 * MIB);
    CHECK_EQ_U64(charged(0), 0);
    CUdeviceptr more = UNTOUCHED;
    IS(cuMemAllocFromPoolAsync(&more, 257 * MIB, pool, stream), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(more, UNTOUCHED);
    OK(cuMemFreeAsync(pointer, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemPoolTrimTo(pool, 0));
    uint64_t reserved;
    OK(REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    CHECK_EQ_U64(charged(1), reserved);
}

static void host_pools_cost_no_device_memory(void)
{
    CUdeviceptr pointer;
    world_context(0);
    CUmemoryPool pool = a_pool(CU_MEM_LOCATION_TYPE_HOST, 0);
    OK(cuMemAllocFromPoolAsync(&pointer, 4 * GIB, pool, NULL));
    CHECK_EQ_U64(charged(0), 0);
    OK(cuMemFreeAsync(pointer, NULL));
}

static void blocks_outlive_their_pool_in_the_books(void)
{
    CUdeviceptr one;
    CUdeviceptr two;
    world_context(0);
    CUmemoryPool pool = a_pool(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    OK(cuMemAllocFromPoolAsync(&one, 64 * MIB, pool, NULL));
    OK(cuMemAllocFromPoolAsync(&two, 128 * MIB, pool, NULL));
    OK(cuMemPoolDestroy(pool));
    CHECK_EQ_U64(charged(0), 192 * MIB);
    OK(cuMemFreeAsync(one, NULL));
    OK(cuStreamSynchronize(NULL));
    CHECK_EQ_U64(charged(0), 128 * MIB);
    OK(cuMemFree_v2(two));
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(the_region()->slot[0].device[0].pool_granules, 0);
}

/* A block of 512 bytes keeps a chunk of 32 MiB, whoever destroyed the pool: a loop of this would be memory for nothing. */
static void a_small_block_of_a_destroyed_pool_costs_what_it_keeps(void)
{
    CUdeviceptr small[4];
    world_context(0);
    for (uint64_t i = 0; i < 4; i++) {
        CUmemoryPool pool = a_pool(CU_MEM_LOCATION_TYPE_DEVICE, 0);
        OK(cuMemAllocFromPoolAsync(&small[i], 512, pool, NULL));
        OK(cuMemPoolDestroy(pool));
        IS(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
        CHECK_EQ_U64(charged(0), (i + 1) * CHUNK);
        CHECK_EQ_U64(taken(), (i + 1) * CHUNK);
    }
    for (int i = 0; i < 4; i++) OK(cuMemFreeAsync(small[i], NULL));
    OK(cuStreamSynchronize(NULL));
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(taken(), 0);
}

static void a_destroyed_pool_is_no_devices_current_pool(void)
{
    CUdeviceptr block;
    CUmemoryPool found;
    CUmemoryPool usual;
    world_context(0);
    CUmemoryPool pool = a_pool(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    OK(cuDeviceSetMemPool(0, pool));
    block = allocated(512);
    OK(cuMemPoolDestroy(pool));
    OK(cuDeviceGetMemPool(&found, 0));
    OK(cuDeviceGetDefaultMemPool(&usual, 0));
    CHECK(found == usual);
    IS(cuMemPoolDestroy(usual), CUDA_ERROR_NOT_PERMITTED);
    OK(cuMemFree_v2(block));
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(taken(), 0);
}

/* The simulated driver records no allocation nodes; what counts is that its answer comes through, and that the capture
 * survives: a synchronisation or a trim in between would end it. */
static void allocations_while_capturing_pass_and_break_nothing(void)
{
    CUstream stream;
    CUgraph graph = NULL;
    CUdeviceptr pointer;
    world_context(0);
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUresult expected = REAL(cuMemAllocAsync)(&pointer, GIB, stream);
    IS(cuMemAllocAsync(&pointer, GIB, stream), expected);
    OK(cuStreamEndCapture(stream, &graph));
    CHECK(graph != NULL);
    CHECK_EQ_U64(charged(0), 0);
}

static void errors_of_the_driver_cost_nothing(void)
{
    CUdeviceptr pointer = UNTOUCHED;
    CHECK(setenv("TESSERA_SIM_FAIL", "cuMemAllocAsync:1+:2", 1) == 0);
    world_context(0);
    for (int i = 0; i < 40; i++) {
        refused(CHUNK);
    }
    CHECK_EQ_U64(charged(0), 0);
    IS(cuMemAllocAsync(NULL, 512, NULL), REAL(cuMemAllocAsync)(NULL, 512, NULL));
    IS(cuMemAllocFromPoolAsync(&pointer, 512, NULL, NULL), REAL(cuMemAllocFromPoolAsync)(&pointer, 512, NULL, NULL));
    IS(cuMemPoolCreate(NULL, NULL), REAL(cuMemPoolCreate)(NULL, NULL));
}

static void per_thread_streams_count_the_same(void)
{
    CUdeviceptr pointer = UNTOUCHED;
    world_context(0);
    for (int i = 0; i < 16; i++) {
        OK(cuMemAllocAsync_ptsz(&pointer, CHUNK, NULL));
    }
    IS(cuMemAllocAsync_ptsz(&pointer, CHUNK, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFreeAsync_ptsz(pointer, NULL));
    OK(cuStreamSynchronize_ptsz(NULL));
    CHECK_EQ_U64(charged(0), 15 * CHUNK);
}

int main(void)
{
    CASE(pairs_of_allocation_and_free_do_not_drift, 512 * MIB, GIB);
    CASE(without_frees_the_chunk_that_would_pass_the_limit_is_refused, 512 * MIB, GIB);
    CASE(a_pool_that_would_grow_past_the_limit_for_a_small_block_is_undone, 16 * MIB, GIB);
    CASE(freed_blocks_are_collected_before_a_refusal, 512 * MIB, GIB);
    CASE(the_release_threshold_keeps_the_charge_until_trim, 512 * MIB, GIB);
    CASE(memory_kept_by_a_pool_is_trimmed_for_a_plain_allocation, 512 * MIB, GIB);
    CASE(async_memory_may_be_freed_synchronously, 512 * MIB, GIB);
    CASE(plain_memory_may_be_freed_asynchronously, 512 * MIB, GIB);
    CASE(pools_of_ones_own_count_on_their_own_device, 512 * MIB, 512 * MIB);
    CASE(host_pools_cost_no_device_memory, 512 * MIB, GIB);
    CASE(a_small_block_of_a_destroyed_pool_costs_what_it_keeps, 512 * MIB, GIB);
    CASE(a_destroyed_pool_is_no_devices_current_pool, 512 * MIB, GIB);
    CASE(blocks_outlive_their_pool_in_the_books, 512 * MIB, GIB);
    CASE(allocations_while_capturing_pass_and_break_nothing, 512 * MIB, GIB);
    CASE(errors_of_the_driver_cost_nothing, 512 * MIB, GIB);
    CASE(per_thread_streams_count_the_same, 512 * MIB, GIB);
    return 0;
}
