/* DESIGN
 *
 * How exact a refusal is, by every family: a process allocates until it is refused, and what the host then sees on the
 * card (contexts and code included) is held against the limit. The simulated card takes 300 MiB for a context; chunks
 * are 16 MiB, then halved until nothing fits.
 */
#include "card.h"

static const char heavy_text[] = "driver version=13.0 context_mib=300\n"
                                 "device uuid=" CARD_0 " memory_mib=81920 pci=0000:07:00.0\n"
                                 "device uuid=" CARD_1 " memory_mib=81920 pci=0000:0b:00.0\n";

enum { LIMIT_MIB = 2048, CHUNK_MIB = 16 };

static CUresult linear(size_t bytes)
{
    CUdeviceptr pointer;
    return cuMemAlloc_v2(&pointer, bytes);
}

static CUresult pitched(size_t bytes)
{
    CUdeviceptr pointer;
    size_t pitch;
    return cuMemAllocPitch_v2(&pointer, &pitch, 4096, bytes / 4096, 4);
}

static CUresult managed(size_t bytes)
{
    CUdeviceptr pointer;
    CUresult result = cuMemAllocManaged(&pointer, bytes, CU_MEM_ATTACH_GLOBAL);
    return result != CUDA_SUCCESS ? result : cuMemPrefetchAsync(pointer, bytes, card_ordinal, NULL);
}

static CUresult asynchronous(size_t bytes)
{
    CUdeviceptr pointer;
    return cuMemAllocAsync(&pointer, bytes, NULL);
}

static CUresult from_a_pool(size_t bytes)
{
    static CUmemoryPool pool;
    CUdeviceptr pointer;
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = card_ordinal}};
    if (pool == NULL) OK(cuMemPoolCreate(&pool, &props));
    return cuMemAllocFromPoolAsync(&pointer, bytes, pool, NULL);
}

static CUresult physical(size_t bytes)
{
    CUmemGenericAllocationHandle handle;
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = card_ordinal}};
    return cuMemCreate(&handle, bytes, &prop, 0);
}

static CUresult array(size_t bytes)
{
    CUarray made;
    const CUDA_ARRAY_DESCRIPTOR descriptor = {1000, bytes / 4000, CU_AD_FORMAT_FLOAT, 1};
    return cuArrayCreate_v2(&made, &descriptor);
}

static CUresult mipmapped(size_t bytes)
{
    CUmipmappedArray made;
    const CUDA_ARRAY3D_DESCRIPTOR descriptor = {
        .Width = 1000, .Height = bytes / 6000, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    return cuMipmappedArrayCreate(&made, &descriptor, 4);
}

static CUresult graph(size_t bytes)
{
    CUgraph made;
    CUgraphNode node;
    CUgraphExec exec;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                       .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = card_ordinal}},
                                         .bytesize = bytes};
    OK(cuGraphCreate(&made, 0));
    OK(cuGraphAddMemAllocNode(&node, made, NULL, 0, &params));
    CUresult result = cuGraphInstantiateWithFlags(&exec, made, 0);
    return result != CUDA_SUCCESS ? result : cuGraphLaunch(exec, NULL);
}

static CUresult code(size_t bytes)
{
    char image[32];
    CUmodule module;
    snprintf(image, sizeof image, "code_mib=%zu", (size_t)(bytes / MIB));
    return cuModuleLoadData(&module, image);
}

static CUresult heap(size_t bytes)
{
    static size_t size;
    CUresult result = cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * MIB + size + bytes);
    size += result == CUDA_SUCCESS ? bytes : 0;
    return result;
}

static const struct {
    const char *name;
    CUresult (*allocate)(size_t bytes);
    size_t least; /* what the driver takes at least at once */
} families[] = {
    {"cuMemAlloc", linear, 512},
    {"cuMemAllocPitch", pitched, 4096},
    {"cuMemAllocManaged, prefetched", managed, 4096},
    {"cuMemAllocAsync", asynchronous, 512},
    {"cuMemAllocFromPoolAsync", from_a_pool, 512},
    {"cuMemCreate", physical, 2 * MIB},
    {"cuArrayCreate", array, 65536},
    {"cuMipmappedArrayCreate", mipmapped, 65536},
    {"graph allocation nodes", graph, 512},
    {"cuModuleLoadData (code)", code, MIB},
    {"cuCtxSetLimit (heap)", heap, 512},
};

static unsigned chosen;

/* What the host sees taken of the card. */
static unsigned long long seen(void)
{
    nvmlDevice_t card;
    nvmlMemory_t memory;
    CHECK_EQ_U64(REAL_NVML(nvmlInit_v2)(), NVML_SUCCESS);
    CHECK_EQ_U64(REAL_NVML(nvmlDeviceGetHandleByUUID)(card_uuid(), &card), NVML_SUCCESS);
    CHECK_EQ_U64(REAL_NVML(nvmlDeviceGetMemoryInfo)(card, &memory), NVML_SUCCESS);
    return memory.used;
}

static void the_host_sees_no_more_than_the_limit(void)
{
    unsigned long long before = seen(); /* other processes', and the driver's own */
    card_context();
    for (size_t bytes = CHUNK_MIB * MIB; bytes >= families[chosen].least; bytes /= 2) {
        CUresult result;
        while ((result = families[chosen].allocate(bytes)) == CUDA_SUCCESS) continue;
        IS(result, CUDA_ERROR_OUT_OF_MEMORY);
    }
    double used = (double)(seen() - before);
    double difference = used - LIMIT_MIB * MIB;
    printf("%-30s host sees %10.3f MiB of %d, %+8.3f MiB = %+.3f %%\n", families[chosen].name,
           used / MIB, LIMIT_MIB, difference / MIB, 100.0 * difference / (LIMIT_MIB * MIB));
    fflush(stdout);
    CHECK(difference <= 0 && difference >= -0.01 * LIMIT_MIB * MIB);
}

/* Each family in a process of its own. The images of code that the simulated driver takes are none for a device. */
int main(void)
{
    for (chosen = 0; chosen < sizeof families / sizeof *families; chosen++) {
        int status;
        if (families[chosen].allocate == code && !is_simulated()) continue;
        grant_card(heavy_text, LIMIT_MIB * MIB, 0);
        fflush(NULL);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            the_host_sees_no_more_than_the_limit();
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child);
        if (status != 0) CHECK_FAIL("%s failed with status %#x", families[chosen].name, status);
    }
    return 0;
}
