/* DESIGN
 *
 * The stream-ordered allocator: when the reserve grows, who may reuse what, when it is given back.
 * Figures by hand: the reserve moves in steps of 32 MiB.
 */
#include "sim_world.h"

static const uint64_t CARD = 1024 * MIB, STEP = 32 * MIB;
static CUfunction kernel; /* runs for an hour: work before it never ends within the test */

static uint64_t gauge(CUmemoryPool pool, CUmemPool_attribute attribute)
{
    uint64_t value;
    OK(cuMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

static void expect(CUmemoryPool pool, uint64_t reserved, uint64_t used)
{
    CHECK_EQ_U64(gauge(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), reserved);
    CHECK_EQ_U64(gauge(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), used);
    CHECK_EQ_U64(world_free(), CARD - reserved);
}

static CUmemoryPool new_pool(size_t most)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                            .maxSize = most};
    CUmemoryPool pool;
    OK(cuMemPoolCreate(&pool, &props));
    return pool;
}

static CUdeviceptr take(CUmemoryPool pool, size_t bytes, CUstream stream)
{
    CUdeviceptr address;
    OK(cuMemAllocFromPoolAsync(&address, bytes, pool, stream));
    return address;
}

static CUstream new_stream(void)
{
    CUstream stream;
    OK(cuStreamCreate(&stream, 0));
    return stream;
}

static void the_reserve_grows_in_steps_and_falls_at_a_sync(void)
{
    CUmemoryPool pool = new_pool(0);
    expect(pool, 0, 0);
    CUdeviceptr a = take(pool, 1, NULL), b = take(pool, 32 * MIB, NULL);
    expect(pool, 2 * STEP, 512 + 32 * MIB);
    OK(cuMemFreeAsync(a, NULL));
    OK(cuMemFreeAsync(b, NULL));
    expect(pool, 2 * STEP, 512 + 32 * MIB); /* nobody has looked yet */
    OK(cuStreamSynchronize(NULL));
    expect(pool, 0, 0);
    CHECK_EQ_U64(gauge(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 2 * STEP);
    CHECK_EQ_U64(gauge(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 512 + 32 * MIB);
    OK(cuMemPoolDestroy(pool));
}

static void a_threshold_keeps_the_reserve_until_trim(void)
{
    CUmemoryPool pool = new_pool(0);
    uint64_t all = UINT64_MAX;
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    CUdeviceptr a = take(pool, 100 * MIB, NULL);
    OK(cuMemFreeAsync(a, NULL));
    OK(cuMemPoolTrimTo(pool, 0));
    expect(pool, 4 * STEP, 100 * MIB); /* the free is not observed: trim may not have it */
    OK(cuCtxSynchronize());
    expect(pool, 4 * STEP, 0);
    OK(cuMemPoolTrimTo(pool, 33 * MIB));
    expect(pool, 2 * STEP, 0);
    OK(cuMemPoolTrimTo(pool, 0));
    expect(pool, 0, 0);
    OK(cuMemPoolDestroy(pool));
}

static void the_same_stream_reuses_at_once_another_only_when_done(void)
{
    CUmemoryPool pool = new_pool(0);
    CUstream busy = new_stream(), other = new_stream();
    CUdeviceptr a = take(pool, 32 * MIB, busy);
    OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, busy, NULL, NULL));
    OK(cuMemFreeAsync(a, busy));
    CUdeviceptr b = take(pool, 32 * MIB, other); /* the hour is not over: new memory */
    expect(pool, 2 * STEP, 64 * MIB);
    CUdeviceptr c = take(pool, 32 * MIB, busy); /* after the free in stream order: the same memory */
    expect(pool, 2 * STEP, 64 * MIB);
    OK(cuMemFreeAsync(b, other));
    CUdeviceptr d = take(pool, 32 * MIB, busy); /* the other stream was idle: its free is done */
    expect(pool, 2 * STEP, 64 * MIB);
    (void)c;
    (void)d;
    OK(cuDevicePrimaryCtxReset_v2(0)); /* nobody waits for the hour */
    world_context(0);
    CHECK_EQ_U64(gauge(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
}

static void full_means_full_and_a_pool_has_its_own_most(void)
{
    CUmemoryPool pool = new_pool(0), small = new_pool(40 * MIB);
    CUdeviceptr refused = 7, most = take(pool, CARD, NULL);
    IS(cuMemAllocFromPoolAsync(&refused, 512, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(refused, 7);
    OK(cuMemFree_v2(most)); /* a plain free takes pool memory too */
    OK(cuMemPoolTrimTo(pool, 0));
    CUdeviceptr a = take(small, 40 * MIB, NULL);
    expect(small, 40 * MIB, 40 * MIB);
    IS(cuMemAllocFromPoolAsync(&refused, 512, small, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFreeAsync(a, NULL));
    OK(cuCtxSynchronize());
    OK(cuMemPoolDestroy(small));
    OK(cuMemPoolDestroy(pool));
    CHECK_EQ_U64(world_free(), CARD);
}

static void a_destroyed_pool_lives_until_its_last_allocation(void)
{
    CUmemoryPool pool = new_pool(0);
    CUdeviceptr a = take(pool, MIB, NULL);
    OK(cuMemPoolDestroy(pool));
    IS(cuMemAllocFromPoolAsync(&a, 512, pool, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ_U64(world_free(), CARD - STEP);
    OK(cuMemFreeAsync(a, NULL));
    OK(cuStreamSynchronize(NULL));
    CHECK_EQ_U64(world_free(), CARD);
}

static void the_default_pool_serves_and_cannot_be_destroyed(void)
{
    CUmemoryPool pool, now, own = new_pool(0);
    CUdeviceptr a;
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuDeviceGetMemPool(&now, 0));
    CHECK(now == pool);
    IS(cuMemPoolDestroy(pool), CUDA_ERROR_NOT_PERMITTED);
    OK(cuMemAllocAsync_ptsz(&a, 512, NULL));
    expect(pool, STEP, 512);
    OK(cuMemFreeAsync_ptsz(a, NULL));
    OK(cuCtxSynchronize());
    OK(cuDeviceSetMemPool(0, own));
    OK(cuMemAllocAsync(&a, 512, NULL));
    expect(own, STEP, 512);
    OK(cuMemPoolDestroy(own));
    OK(cuDeviceGetMemPool(&now, 0));
    CHECK(now == pool);
    OK(cuMemFreeAsync(a, NULL));
    OK(cuCtxSynchronize());
    CHECK_EQ_U64(world_free(), CARD);
}

static void a_host_pool_takes_no_device_memory(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_HOST}};
    CUmemoryPool pool;
    CUdeviceptr a;
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemAllocFromPoolAsync(&a, 2 * CARD, pool, NULL));
    CHECK_EQ_U64(world_free(), CARD);
    OK(cuMemFreeAsync(a, NULL));
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    props.location.id = 9;
    IS(cuMemPoolCreate(&pool, &props), CUDA_ERROR_INVALID_VALUE);
}

int main(void)
{
    CUmodule module;
    world_write("device memory_mib=1024\n");
    world_context(0);
    OK(cuModuleLoadData(&module, "image"));
    OK(cuModuleGetFunction(&kernel, module, "spin_ms_3600000"));
    the_reserve_grows_in_steps_and_falls_at_a_sync();
    a_threshold_keeps_the_reserve_until_trim();
    full_means_full_and_a_pool_has_its_own_most();
    a_destroyed_pool_lives_until_its_last_allocation();
    the_default_pool_serves_and_cannot_be_destroyed();
    a_host_pool_takes_no_device_memory();
    the_same_stream_reuses_at_once_another_only_when_done(); /* last: the hour stays queued */
    return 0;
}
