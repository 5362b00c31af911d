/* DESIGN
 *
 * Any sequence of allocating, freeing and launching calls with any arguments, on the library's hooks over the simulated
 * driver. An input is read byte by byte: an operation, then what it needs; where it ends, zeroes follow. Judged:
 *
 *     nothing is touched outside of what it should be (the sanitizers)
 *     what makes no sense gets the driver's own answer, as without the library
 *     after every call the books hold what the driver says is taken, and never more than the limit
 *     after everything is given back, both are empty
 *
 * Handles are those of earlier operations, near misses of them, small numbers and nonsense. One process, one device of
 * 256 MiB, a compute limit that nothing reaches, so that launches take the held road.
 */
#include "../test/limiter_world.h"
#include "input.h"

enum { HELD = 16, LIMIT_MIB = 256, STEPS_MAX = 200 };

enum kind { NOTHING, LINEAR, MANAGED, ASYNC, ARRAY, MIPMAPPED, HANDLE, MAPPING, HOST, POOL, KINDS };

struct held {
    enum kind kind;
    uint64_t handle;
    uint64_t size;
};

static struct {
    const uint8_t *at;
    const uint8_t *end;
} input;

static struct held held[HELD];
static uint64_t managed;
static CUfunction kernel;
static CUgraphExec graph;

static uint8_t byte(void)
{
    return input.at < input.end ? *input.at++ : 0;
}

static uint64_t word(unsigned bytes)
{
    uint64_t value = 0;
    while (bytes-- > 0) value = value << 8 | byte();
    return value;
}

/* Sizes of interest: small, of megabytes, whole chunks, past every limit, around wrap-arounds. */
static size_t a_size(void)
{
    switch (byte() % 8) {
    case 0: return word(1);
    case 1: return word(2);
    case 2: return word(1) * MIB;
    case 3: return word(1) * (2 * MIB);
    case 4: return word(3);
    case 5: return SIZE_MAX - word(2);
    case 6: return (size_t)1 << byte() % 44;
    default: return word(8) & ((UINT64_C(1) << 44) - 1); /* the simulated driver keeps tables of what it maps */
    }
}

/* A handle of an earlier operation or next to it, or none. */
static uint64_t a_handle(void)
{
    uint8_t draw = byte();
    const struct held *one = &held[draw % HELD];
    switch (draw / HELD % 8) {
    case 0: return 0;
    case 1: return word(1);
    case 2: return word(8) | UINT64_C(1) << 63; /* never a pointer of this process */
    case 3: return one->handle + word(1);
    case 4: return one->handle - word(1);
    default: return one->handle;
    }
}

/* The default streams: the driver follows any other handle, sound or not. */
static CUstream a_stream(void)
{
    return (CUstream)(uintptr_t)(byte() % 3);
}

/* -- what is taken ---------------------------------------------------------------------------------------------------- */

static CUmemLocation a_location(void)
{
    const int types[] = {1, 1, 1, 0, 2, 3, 5, -1};
    const int ids[] = {0, 0, 0, 1, -1, 77, INT32_MAX, INT32_MIN};
    uint8_t draw = byte();
    return (CUmemLocation){.type = (CUmemLocationType)types[draw % 8], .id = ids[draw / 8 % 8]};
}

static CUDA_ARRAY3D_DESCRIPTOR a_shape(void)
{
    return (CUDA_ARRAY3D_DESCRIPTOR){.Width = word(2),
                                     .Height = word(2),
                                     .Depth = byte() % 4,
                                     .Format = (CUarray_format)byte(),
                                     .NumChannels = byte() % 6,
                                     .Flags = byte()};
}

static struct held take_linear(enum kind kind)
{
    CUdeviceptr pointer = 0;
    size_t size = a_size();
    size_t pitch;
    CUresult result;
    if (kind == MANAGED) {
        result = cuMemAllocManaged(&pointer, size, word(1) % 5);
        managed += result == CUDA_SUCCESS ? (size + 511) / 512 * 512 : 0;
    } else if (kind == ASYNC) {
        result = cuMemAllocAsync(&pointer, size, a_stream());
    } else if (byte() % 2 == 0) {
        result = cuMemAlloc_v2(&pointer, size);
    } else {
        result = cuMemAllocPitch_v2(&pointer, &pitch, size, (size_t)word(2), (unsigned)word(1));
    }
    return result == CUDA_SUCCESS ? (struct held){kind, pointer, size} : (struct held){0};
}

static struct held take_shaped(enum kind kind)
{
    CUarray array = NULL;
    CUmipmappedArray levels = NULL;
    const CUDA_ARRAY3D_DESCRIPTOR shape = a_shape();
    const CUDA_ARRAY_DESCRIPTOR flat = {shape.Width, shape.Height, shape.Format, shape.NumChannels};
    if (kind == MIPMAPPED) {
        return cuMipmappedArrayCreate(&levels, &shape, byte()) == 0 ? (struct held){kind, (uintptr_t)levels, 0} : (struct held){0};
    }
    CUresult result = byte() % 2 == 0 ? cuArray3DCreate_v2(&array, &shape) : cuArrayCreate_v2(&array, &flat);
    return result == CUDA_SUCCESS ? (struct held){kind, (uintptr_t)array, 0} : (struct held){0};
}

static struct held take_physical(void)
{
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp prop = {.type = (CUmemAllocationType)(byte() % 4 == 0 ? byte() : 1), .location = a_location()};
    size_t size = a_size();
    return cuMemCreate(&handle, size, &prop, byte() % 8 == 0 ? word(1) : 0) == 0 ? (struct held){HANDLE, handle, size}
                                                                                    : (struct held){0};
}

static struct held take_pool(void)
{
    CUmemoryPool pool = NULL;
    const CUmemPoolProps props = {.allocType = (CUmemAllocationType)(byte() % 4 == 0 ? byte() : 1),
                                  .location = a_location(),
                                  .maxSize = byte() % 2 == 0 ? 0 : a_size()};
    return cuMemPoolCreate(&pool, &props) == 0 ? (struct held){POOL, (uintptr_t)pool, 0} : (struct held){0};
}

static struct held take_host(void)
{
    void *pointer = NULL;
    size_t size = word(2); /* real memory of this process */
    return cuMemHostAlloc(&pointer, size, byte() % 16) == 0 ? (struct held){HOST, (uintptr_t)pointer, size} : (struct held){0};
}

static struct held take_from_pool(void)
{
    CUdeviceptr pointer = 0;
    const struct held *pool = &held[byte() % HELD];
    size_t size = a_size();
    if (pool->kind != POOL) return (struct held){0};
    CUresult result = cuMemAllocFromPoolAsync(&pointer, size, (CUmemoryPool)(uintptr_t)pool->handle, a_stream());
    return result == CUDA_SUCCESS ? (struct held){ASYNC, pointer, size} : (struct held){0};
}

static struct held take(void)
{
    switch (byte() % 9) {
    case 0: return take_linear(LINEAR);
    case 1: return take_linear(MANAGED);
    case 2: return take_linear(ASYNC);
    case 3: return take_shaped(ARRAY);
    case 4: return take_shaped(MIPMAPPED);
    case 5: return take_physical();
    case 6: return take_pool();
    case 7: return take_from_pool();
    default: return take_host();
    }
}

/* -- what is given back ------------------------------------------------------------------------------------------------ */

static CUresult give(const struct held *one)
{
    switch (one->kind) {
    case MANAGED: managed -= (one->size + 511) / 512 * 512; return cuMemFree_v2(one->handle);
    case LINEAR: return cuMemFree_v2(one->handle);
    case ASYNC: return byte() % 2 == 0 ? cuMemFree_v2(one->handle) : cuMemFreeAsync(one->handle, NULL);
    case ARRAY: return cuArrayDestroy((CUarray)(uintptr_t)one->handle);
    case MIPMAPPED: return cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)one->handle);
    case HANDLE: return cuMemRelease(one->handle);
    case MAPPING: return cuMemUnmap(one->handle, one->size);
    case HOST: return cuMemFreeHost((void *)(uintptr_t)one->handle);
    case POOL: return cuMemPoolDestroy((CUmemoryPool)(uintptr_t)one->handle);
    default: return CUDA_SUCCESS;
    }
}

static void drop(struct held *one)
{
    OK(give(one));
    one->kind = NOTHING;
}

/* Physical memory at an address; its handle goes, and what it was is a mapping then. */
static void map(struct held *one)
{
    CUdeviceptr address = 0;
    if (one->kind != HANDLE || cuMemAddressReserve(&address, one->size, 0, 0, 0) != 0) return;
    if (cuMemMap(address, one->size, 0, one->handle, 0) != 0) return;
    OK(cuMemRelease(one->handle));
    *one = (struct held){MAPPING, address, one->size};
}

/* -- calls whose answer must be the driver's ------------------------------------------------------------------------- */

#define SAME(name, ...)                                                                               \
    do {                                                                                              \
        CUresult ours = name(__VA_ARGS__);                                                            \
        CUresult theirs = REAL(name)(__VA_ARGS__);                                                    \
        if (ours != theirs) CHECK_FAIL("%s: %d, and the driver says %d", #name, (int)ours, (int)theirs); \
    } while (0)

/* True if freeing the number would free something: nonsense must not. */
static bool is_held(uint64_t handle)
{
    for (int i = 0; i < HELD; i++) {
        if (held[i].kind != NOTHING && held[i].handle == handle) return true;
    }
    return false;
}

static void free_nonsense(void)
{
    uint64_t handle = a_handle();
    size_t size = a_size();
    uint8_t draw = byte();
    if (is_held(handle) || (handle > UINT32_MAX && draw % 8 > 5)) return; /* the driver itself follows pointers */
    switch (draw % 8) {
    case 0: SAME(cuMemFree_v2, handle); break;
    case 1: SAME(cuMemFreeAsync, handle, NULL); break;
    case 2: SAME(cuMemRelease, handle); break;
    case 3: SAME(cuMemUnmap, handle, size); break;
    case 4: SAME(cuMemMap, handle, size, 0, handle, 0); break;
    case 5: SAME(cuIpcCloseMemHandle, handle); break;
    case 6: SAME(cuArrayDestroy, NULL); break;
    default: SAME(cuMemPoolTrimTo, NULL, size); break;
    }
}

static void take_into_nothing(void)
{
    size_t size = a_size();
    const CUDA_ARRAY3D_DESCRIPTOR shape = a_shape();
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = a_location()};
    switch (byte() % 9) {
    case 0: SAME(cuMemAlloc_v2, NULL, size); break;
    case 1: SAME(cuMemAllocPitch_v2, NULL, NULL, size, 16, 4); break;
    case 2: SAME(cuMemAllocManaged, NULL, size, 1); break;
    case 3: SAME(cuMemAllocAsync, NULL, size, NULL); break;
    case 4: SAME(cuArray3DCreate_v2, NULL, &shape); break;
    case 5: SAME(cuMipmappedArrayCreate, NULL, &shape, 1); break;
    case 6: SAME(cuMemCreate, NULL, size, &prop, 0); break;
    case 7: SAME(cuMemCreate, &(CUmemGenericAllocationHandle){0}, size, NULL, 0); break;
    default: SAME(cuMemHostAlloc, NULL, size, 0); break;
    }
}

static void launch(void)
{
    unsigned grid[3] = {(unsigned)word(2), byte() % 4, byte() % 4};
    unsigned block[3] = {(unsigned)word(2), byte() % 4, byte() % 4};
    unsigned shared = byte() % 4 == 0 ? (unsigned)word(4) : 0;
    CUfunction function = byte() % 4 == 0 ? NULL : kernel;
    CUgraphExec exec = byte() % 4 == 0 ? NULL : graph;
    unsigned count = (unsigned)word(4);
    CUlaunchConfig config = {.gridDimX = grid[0], .gridDimY = grid[1], .gridDimZ = grid[2], .blockDimX = block[0],
                             .blockDimY = block[1], .blockDimZ = block[2], .sharedMemBytes = shared, .hStream = NULL};
    const CUlaunchConfig *configured = byte() % 4 == 0 ? NULL : &config;
    switch (byte() % 8) {
    case 0: SAME(cuLaunchKernel, function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, NULL, NULL, NULL); break;
    case 1: SAME(cuLaunchCooperativeKernel, function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, NULL, NULL); break;
    case 2: SAME(cuLaunchKernelEx, configured, function, NULL, NULL); break;
    case 3: SAME(cuLaunchGrid, function, (int)count, (int)grid[0]); break;
    case 4: SAME(cuLaunch, function); break;
    case 5: SAME(cuGraphLaunch, exec, NULL); break;
    case 6: SAME(cuLaunchCooperativeKernelMultiDevice, NULL, count, 0); break;
    default: SAME(cuLaunchGridAsync, function, (int)count, (int)grid[0], NULL); break;
    }
}

/* -- an input --------------------------------------------------------------------------------------------------------- */

static void trim(void)
{
    CUmemoryPool pool;
    OK(cuDeviceGetMemPool(&pool, 0));
    OK(cuMemPoolTrimTo(pool, (size_t)word(1) * MIB));
    OK(cuDeviceGraphMemTrim(0));
}

static void step(void)
{
    struct held *one = &held[byte() % HELD];
    switch (byte() % 8) {
    case 0: free_nonsense(); break;
    case 1: take_into_nothing(); break;
    case 2: launch(); break;
    case 3: trim(); break;
    case 4: map(one); break;
    case 5: OK(cuStreamSynchronize(NULL)); break;
    default:
        if (one->kind == NOTHING) *one = take();
        else drop(one);
    }
    require(charged(0) == taken() + managed, "the books are not what the driver says");
    require(charged(0) <= LIMIT_MIB * MIB, "past the limit");
}

static void give_everything(void)
{
    for (int i = 0; i < HELD; i++) {
        if (held[i].kind != POOL) drop(&held[i]);
    }
    OK(cuStreamSynchronize(NULL));
    for (int i = 0; i < HELD; i++) drop(&held[i]); /* pools, once nothing of them is in use */
    input.at = input.end;
    trim();
    require(charged(0) == 0 && taken() == 0 && managed == 0, "something was not given back");
}

static void begin(void)
{
    CUmodule module;
    CUgraph made;
    CUgraphNode node;
    struct tessera_share_spec spec = a_share(LIMIT_MIB * MIB, 0);
    spec.device[0].compute_limit_milli = 999;
    grant(&spec);
    world_context(0);
    OK(cuModuleLoadData(&module, "image"));
    OK(cuModuleGetFunction(&kernel, module, "k_ns_1"));
    OK(cuGraphCreate(&made, 0));
    const CUDA_KERNEL_NODE_PARAMS params = {
        .func = kernel, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    OK(cuGraphAddKernelNode_v2(&node, made, NULL, 0, &params));
    OK(cuGraphInstantiateWithFlags(&graph, made, 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (kernel == NULL) begin();
    input.at = data;
    input.end = data + size;
    for (int i = 0; i < STEPS_MAX && input.at < input.end; i++) step();
    give_everything();
    return 0;
}

#ifndef LIBFUZZER
static size_t make_input(uint8_t *made)
{
    const size_t size = draw(400);
    for (size_t at = 0; at < size; at++) made[at] = (uint8_t)draw(256);
    return size;
}
#endif
