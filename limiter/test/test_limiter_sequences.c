/* DESIGN
 *
 * Random sequences of calls of every family, sound ones and nonsense, against an oracle: after each call the share's
 * books hold exactly what the driver says is taken (managed memory in full besides, since its pages are nowhere
 * yet), and never more than the limit. Nonsense gets the driver's own answer and changes nothing.
 *
 * Arguments: ROUNDS SEED; a failure prints the seed of its round.
 */
#include "limiter_world.h"

enum { HELD = 24, STEPS = 300, LIMIT_MIB = 256 };

/* Everything that a step may hold in its place. */
struct held {
    enum { NOTHING, LINEAR, MANAGED, ASYNC, ARRAY, MIPMAPPED, HANDLE, MAPPING, EXEC } kind;
    uint64_t handle;
    uint64_t size;
    CUgraph graph;
};

static struct held held[HELD];
static uint64_t managed;
static uint64_t state;
static uint64_t seed_of_round;

static uint64_t next_random(uint64_t below)
{
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (state >> 33) % below;
}

static size_t a_size(void)
{
    switch (next_random(6)) {
    case 0: return next_random(4096);
    case 1: return SIZE_MAX - next_random(4096);
    case 2: return (size_t)next_random(300) * MIB;
    default: return next_random(24 * MIB);
    }
}

static CUmemAllocationProp a_location(void)
{
    static const int types[] = {1, 1, 1, 2, 3, 0, 5, 6, 77, -1};
    static const int ids[] = {0, 0, 0, 0, -1, 1000, 0x7fffffff};
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = (CUmemLocationType)types[next_random(10)],
                                              .id = ids[next_random(7)]}};
}

static struct held take(void)
{
    const struct held nothing = {.kind = NOTHING};
    size_t size = a_size();
    size_t pitch;
    CUdeviceptr pointer = 0;
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp prop = a_location();
    CUarray array = NULL;
    CUmipmappedArray mipmapped = NULL;
    const CUDA_ARRAY3D_DESCRIPTOR flat = {.Width = next_random(2000),
                                          .Height = next_random(2000),
                                          .Depth = next_random(3),
                                          .Format = (CUarray_format)next_random(40),
                                          .NumChannels = (unsigned)next_random(5),
                                          .Flags = next_random(4) == 0 ? 0x80 : 0};
    switch (next_random(8)) {
    case 0: return cuMemAlloc_v2(&pointer, size) == 0 ? (struct held){LINEAR, pointer, size, NULL} : nothing;
    case 1:
        return cuMemAllocPitch_v2(&pointer, &pitch, size, next_random(64), (unsigned)next_random(20)) == 0
                   ? (struct held){LINEAR, pointer, size, NULL}
                   : nothing;
    case 2:
        if (cuMemAllocManaged(&pointer, size, (unsigned)next_random(4)) != 0) return nothing;
        managed += (size + 511) / 512 * 512;
        return (struct held){MANAGED, pointer, size, NULL};
    case 3: return cuMemAllocAsync(&pointer, size, NULL) == 0 ? (struct held){ASYNC, pointer, size, NULL} : nothing;
    case 4:
        return cuArray3DCreate_v2(&array, &flat) == 0 ? (struct held){ARRAY, (uintptr_t)array, 0, NULL} : nothing;
    case 5:
        return cuMipmappedArrayCreate(&mipmapped, &flat, (unsigned)next_random(4)) == 0
                   ? (struct held){MIPMAPPED, (uintptr_t)mipmapped, 0, NULL}
                   : nothing;
    case 6:
        size = next_random(2) == 0 ? size / (2 * MIB) * (2 * MIB) : size;
        return cuMemCreate(&handle, size, &prop, 0) == 0 ? (struct held){HANDLE, handle, size, NULL} : nothing;
    default: return nothing;
    }
}

/* Puts physical memory at an address and lets its handle go: what it was is a mapping then. */
static void map(struct held *at)
{
    CUdeviceptr address = 0;
    if (cuMemAddressReserve(&address, at->size, 0, 0, 0) != 0) return;
    OK(cuMemMap(address, at->size, 0, at->handle, 0));
    OK(cuMemRelease(at->handle));
    *at = (struct held){MAPPING, address, at->size, NULL};
}

static void give(struct held *at)
{
    CUresult result = CUDA_SUCCESS;
    switch (at->kind) {
    case LINEAR: result = cuMemFree_v2(at->handle); break;
    case MANAGED:
        result = cuMemFree_v2(at->handle);
        managed -= (at->size + 511) / 512 * 512;
        break;
    case ASYNC: result = next_random(2) == 0 ? cuMemFree_v2(at->handle) : cuMemFreeAsync(at->handle, NULL); break;
    case ARRAY: result = cuArrayDestroy((CUarray)(uintptr_t)at->handle); break;
    case MIPMAPPED: result = cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)at->handle); break;
    case HANDLE: result = cuMemRelease(at->handle); break;
    case MAPPING: result = cuMemUnmap(at->handle, at->size); break;
    case EXEC:
        result = cuGraphExecDestroy((CUgraphExec)(uintptr_t)at->handle);
        OK(cuGraphDestroy(at->graph));
        break;
    default: break;
    }
    OK(result);
    at->kind = NOTHING;
}

/* A graph that takes and frees memory, launched. */
static struct held a_launched_graph(void)
{
    CUgraphNode node;
    CUgraphExec exec;
    struct held made = {.kind = EXEC};
    OK(cuGraphCreate(&made.graph, 0));
    for (uint64_t i = next_random(3) + 1; i > 0; i--) {
        CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                           .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
                                             .bytesize = next_random(100 * MIB) + 1};
        OK(cuGraphAddMemAllocNode(&node, made.graph, NULL, 0, &params));
        OK(cuGraphAddMemFreeNode(&node, made.graph, NULL, 0, params.dptr));
    }
    OK(cuGraphInstantiateWithFlags(&exec, made.graph, 0));
    CUresult result = cuGraphLaunch(exec, NULL);
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
    made.handle = (uintptr_t)exec;
    return made;
}

/* Calls that no driver accepts: the answer must be the driver's. */
static void nonsense(void)
{
    CUdeviceptr junk = 0xdead0000 + next_random(1 << 20);
    size_t size = a_size();
    switch (next_random(9)) {
    case 0: IS(cuMemFree_v2(junk), REAL(cuMemFree_v2)(junk)); break;
    case 1: IS(cuMemFreeAsync(junk, NULL), REAL(cuMemFreeAsync)(junk, NULL)); break;
    case 2: IS(cuMemRelease(junk), REAL(cuMemRelease)(junk)); break;
    case 3: IS(cuMemUnmap(junk, size), REAL(cuMemUnmap)(junk, size)); break;
    case 4: IS(cuMemMap(junk, size, 0, junk, 0), REAL(cuMemMap)(junk, size, 0, junk, 0)); break;
    case 5: IS(cuMemAlloc_v2(NULL, size), REAL(cuMemAlloc_v2)(NULL, size)); break;
    case 6: IS(cuMemPoolTrimTo(NULL, size), REAL(cuMemPoolTrimTo)(NULL, size)); break;
    case 7: IS(cuIpcCloseMemHandle(junk), REAL(cuIpcCloseMemHandle)(junk)); break;
    default: IS(cuArrayDestroy(NULL), REAL(cuArrayDestroy)(NULL)); break;
    }
}

static void step(void)
{
    CUmemoryPool pool;
    struct held *at = &held[next_random(HELD)];
    switch (next_random(10)) {
    case 0: nonsense(); break;
    case 1: OK(cuStreamSynchronize(NULL)); break;
    case 2:
        OK(cuDeviceGetMemPool(&pool, 0));
        OK(cuMemPoolTrimTo(pool, (size_t)next_random(64) * MIB));
        break;
    case 3:
        if (at->kind == NOTHING) *at = a_launched_graph();
        break;
    case 4: OK(cuDeviceGraphMemTrim(0)); break;
    case 5:
        if (at->kind == HANDLE) map(at);
        break;
    default:
        if (at->kind == NOTHING) *at = take();
        else give(at);
    }
}

static void run_round(uint64_t seed)
{
    state = seed;
    for (int i = 0; i < STEPS; i++) {
        step();
        if (charged(0) != taken() + managed || charged(0) > LIMIT_MIB * MIB) {
            CHECK_FAIL("seed %" PRIu64 ", step %d: the books have %" PRIu64 ", the driver %" PRIu64 " and %" PRIu64
                       " managed",
                       seed_of_round, i, charged(0), taken(), managed);
        }
    }
    for (int i = 0; i < HELD; i++) {
        give(&held[i]);
    }
    CUmemoryPool pool;
    OK(cuDeviceGetMemPool(&pool, 0));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemPoolTrimTo(pool, 0));
    OK(cuDeviceGraphMemTrim(0));
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(taken(), 0);
}

static uint64_t rounds = 40;
static uint64_t first_seed = 1;

static void every_sequence_keeps_the_books(void)
{
    world_context(0);
    for (uint64_t i = 0; i < rounds; i++) {
        seed_of_round = first_seed + i;
        run_round(seed_of_round);
    }
}

int main(int argc, char **argv)
{
    rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : rounds;
    first_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : first_seed;
    CASE(every_sequence_keeps_the_books, LIMIT_MIB * MIB, GIB);
    return 0;
}
