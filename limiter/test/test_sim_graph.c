/* DESIGN
 *
 * Graph memory, capture, and arrays: what they charge and when.
 */
#include "sim_world.h"

static const uint64_t CARD = 1024 * MIB;
static CUfunction kernel;

static uint64_t gauge(CUgraphMem_attribute attribute)
{
    uint64_t value;
    OK(cuDeviceGetGraphMemAttribute(0, attribute, &value));
    return value;
}

static void expect(uint64_t reserved, uint64_t used)
{
    CHECK_EQ_U64(gauge(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), reserved);
    CHECK_EQ_U64(gauge(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), used);
    CHECK_EQ_U64(world_free(), CARD - reserved);
}

static CUdeviceptr add_allocation(CUgraph graph, size_t bytes)
{
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
        .bytesize = bytes};
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
    return params.dptr;
}

static void an_allocation_is_backed_at_launch_and_kept_until_trim(void)
{
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node;
    OK(cuGraphCreate(&graph, 0));
    CUdeviceptr address = add_allocation(graph, 3 * MIB);
    OK(cuGraphAddMemFreeNode(&node, graph, NULL, 0, address));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    expect(0, 0);
    OK(cuGraphLaunch(exec, NULL));
    expect(4 * MIB, 0); /* freed by its own node; the reserve stays */
    OK(cuGraphLaunch(exec, NULL));
    expect(4 * MIB, 0);
    OK(cuDeviceGraphMemTrim(0));
    expect(0, 0);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

static void an_unfreed_allocation_is_used_until_cuMemFree(void)
{
    CUgraph graph;
    CUgraphExec exec;
    OK(cuGraphCreate(&graph, 0));
    CUdeviceptr address = add_allocation(graph, 2 * MIB);
    OK(cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0));
    IS(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE); /* not launched: nothing to free */
    OK(cuGraphLaunch(exec, NULL));
    expect(2 * MIB, 2 * MIB);
    IS(cuGraphLaunch(exec, NULL), CUDA_ERROR_INVALID_VALUE); /* still in use */
    OK(cuDeviceGraphMemTrim(0));
    expect(2 * MIB, 2 * MIB);
    OK(cuMemFree_v2(address));
    expect(2 * MIB, 0);
    OK(cuGraphLaunch(exec, NULL));
    OK(cuMemFreeAsync(address, NULL));
    OK(cuDeviceGraphMemTrim(0));
    expect(0, 0);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

static void a_graph_that_does_not_fit_is_refused_at_launch(void)
{
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr most;
    OK(cuMemAlloc_v2(&most, CARD - 2 * MIB));
    OK(cuGraphCreate(&graph, 0));
    add_allocation(graph, 4 * MIB);
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    IS(cuGraphUpload(exec, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    IS(cuGraphLaunch(exec, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFree_v2(most));
    OK(cuGraphUpload(exec, NULL));
    expect(4 * MIB, 0);
    OK(cuDeviceGraphMemTrim(0));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

static void captured_launches_become_nodes_and_run_at_launch(void)
{
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUstreamCaptureStatus status;
    size_t count = 0;
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    OK(cuStreamIsCapturing(stream, &status));
    CHECK_EQ_U64(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuStreamQuery(stream)); /* nothing has run: two hours would not be over */
    OK(cuGraphGetNodes(graph, NULL, &count));
    CHECK_EQ_U64(count, 2);
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph)); /* the executable graph lives on */
    OK(cuGraphLaunch(exec, stream));
    IS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    OK(cuGraphExecDestroy(exec));
}

static void a_sync_breaks_the_capture(void)
{
    CUstream stream;
    CUgraph graph = (CUgraph)1;
    CUstreamCaptureStatus status;
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    IS(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    OK(cuStreamIsCapturing(stream, &status));
    CHECK_EQ_U64(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(graph == NULL);
    IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
    IS(cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

static void arrays_cost_more_than_their_elements(void)
{
    /* 100 floats: 400 B, a row of 512; 10 rows padded to 16: 8192; the whole to 65536. */
    CUDA_ARRAY_DESCRIPTOR flat = {100, 10, CU_AD_FORMAT_FLOAT, 1};
    /* 1024 floats are 4096 B a row, 1024 rows: 4 MiB. */
    CUDA_ARRAY3D_DESCRIPTOR deep = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, 0}, deferred = deep;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs;
    CUarray a, b, c;
    OK(cuArrayCreate_v2(&a, &flat));
    CHECK_EQ_U64(world_free(), CARD - 65536);
    OK(cuArray3DCreate_v2(&b, &deep));
    CHECK_EQ_U64(world_free(), CARD - 65536 - 4 * MIB);
    IS(cuArrayGetMemoryRequirements(&needs, b, 0), CUDA_ERROR_INVALID_VALUE);
    deferred.Flags = CUDA_ARRAY3D_DEFERRED_MAPPING;
    OK(cuArray3DCreate_v2(&c, &deferred));
    OK(cuArrayGetMemoryRequirements(&needs, c, 0));
    CHECK_EQ_U64(needs.size, 4 * MIB);
    CHECK_EQ_U64(world_free(), CARD - 65536 - 4 * MIB);
    OK(cuArrayDestroy(a));
    OK(cuArrayDestroy(b));
    OK(cuArrayDestroy(c));
    IS(cuArrayDestroy(c), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQ_U64(world_free(), CARD);
}

static void levels_are_views(void)
{
    CUDA_ARRAY3D_DESCRIPTOR d = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    CUmipmappedArray whole;
    CUarray level;
    OK(cuMipmappedArrayCreate(&whole, &d, 2)); /* 4 MiB and a quarter of it */
    CHECK_EQ_U64(world_free(), CARD - 5 * MIB);
    OK(cuMipmappedArrayGetLevel(&level, whole, 1));
    IS(cuMipmappedArrayGetLevel(&level, whole, 2), CUDA_ERROR_INVALID_VALUE);
    OK(cuArrayDestroy(level));
    CHECK_EQ_U64(world_free(), CARD - 5 * MIB);
    OK(cuMipmappedArrayDestroy(whole));
    CHECK_EQ_U64(world_free(), CARD);
}

int main(void)
{
    CUmodule module;
    world_write("device memory_mib=1024\n");
    world_context(0);
    OK(cuModuleLoadData(&module, "image"));
    OK(cuModuleGetFunction(&kernel, module, "spin_ms_3600000"));
    an_allocation_is_backed_at_launch_and_kept_until_trim();
    an_unfreed_allocation_is_used_until_cuMemFree();
    a_graph_that_does_not_fit_is_refused_at_launch();
    arrays_cost_more_than_their_elements();
    levels_are_views();
    a_sync_breaks_the_capture();
    captured_launches_become_nodes_and_run_at_launch(); /* last: two hours stay queued */
    return 0;
}
