/* DESIGN
 *
 * Memory that graphs allocate: charged as the driver reserves it, in steps of 2 MiB here, however the nodes came to be;
 * refused exactly, with a graph whose nodes share memory charged for what it takes and not for their sum.
 */
#include "limiter_world.h"

static CUDA_MEM_ALLOC_NODE_PARAMS an_allocation(size_t bytes, CUdevice device)
{
    return (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
        .bytesize = bytes};
}

static CUgraph a_graph(void)
{
    CUgraph graph;
    OK(cuInit(0));
    OK(cuGraphCreate(&graph, 0));
    return graph;
}

static CUdeviceptr add_allocation(CUgraph graph, size_t bytes)
{
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS params = an_allocation(bytes, 0);
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
    return params.dptr;
}

static void add_free(CUgraph graph, CUdeviceptr pointer)
{
    CUgraphNode node;
    OK(cuGraphAddMemFreeNode(&node, graph, NULL, 0, pointer));
}

static CUgraphExec ready(CUgraph graph)
{
    CUgraphExec exec = NULL;
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(exec != NULL);
    return exec;
}

/* A graph that holds `bytes` from its launch on. */
static CUgraphExec a_holder(size_t bytes)
{
    CUgraph graph = a_graph();
    add_allocation(graph, bytes);
    return ready(graph);
}

static void a_node_costs_nothing_until_its_graph_runs_and_then_what_is_reserved(void)
{
    CUgraph graph = a_graph();
    world_context(0);
    CUdeviceptr pointer = add_allocation(graph, 3 * MIB);
    CUgraphExec exec = ready(graph);
    CHECK_EQ_U64(charged(0), 0);
    OK(cuGraphLaunch(exec, NULL));
    CHECK_EQ_U64(charged(0), 4 * MIB); /* two steps */
    CHECK_EQ_U64(taken(), 4 * MIB);
    OK(cuMemFree_v2(pointer));
    CHECK_EQ_U64(charged(0), 4 * MIB); /* reserved until it is trimmed */
    OK(cuDeviceGraphMemTrim(0));
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(taken(), 0);
}

static void an_upload_takes_the_memory_and_a_launch_then_no_more(void)
{
    world_context(0);
    CUgraphExec exec = a_holder(64 * MIB);
    OK(cuGraphUpload(exec, NULL));
    CHECK_EQ_U64(charged(0), 64 * MIB);
    OK(cuGraphLaunch(exec, NULL));
    CHECK_EQ_U64(charged(0), 64 * MIB);
    CHECK_EQ_U64(taken(), 64 * MIB);
}

static void a_graph_past_the_limit_is_refused_and_leaves_nothing(void)
{
    world_context(0);
    CUgraphExec fits = a_holder(100 * MIB);
    CUgraphExec exceeds = a_holder(102 * MIB);
    IS(cuGraphLaunch(exceeds, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    IS(cuGraphUpload(exceeds, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(taken(), 0);
    OK(cuGraphLaunch(fits, NULL));
    CHECK_EQ_U64(charged(0), 100 * MIB);
    CHECK_EQ_U64(the_region()->usage.device[0].refused_count, 2);
}

static void nodes_that_share_memory_cost_what_they_share(void)
{
    CUgraph graph = a_graph();
    world_context(0);
    for (int i = 0; i < 5; i++) {
        add_free(graph, add_allocation(graph, 64 * MIB));
    }
    CUgraphExec exec = ready(graph);
    OK(cuGraphLaunch(exec, NULL)); /* the sum is 320 MiB, the limit 100 */
    CHECK_EQ_U64(charged(0), 64 * MIB);
    OK(cuGraphLaunch(exec, NULL));
    CHECK_EQ_U64(charged(0), 64 * MIB);
    CHECK_EQ_U64(taken(), 64 * MIB);
}

static void plain_memory_and_graphs_count_together(void)
{
    CUdeviceptr pointer;
    world_context(0);
    CUgraphExec exec = a_holder(60 * MIB);
    OK(cuMemAlloc_v2(&pointer, 41 * MIB));
    IS(cuGraphLaunch(exec, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(charged(0), 41 * MIB);
    OK(cuMemFree_v2(pointer));
    OK(cuGraphLaunch(exec, NULL));
    IS(cuMemAlloc_v2(&pointer, 41 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&pointer, 40 * MIB));
}

static void what_graphs_reserve_without_need_is_given_back_before_anyone_is_refused(void)
{
    CUgraph graph = a_graph();
    CUdeviceptr pointer;
    world_context(0);
    add_free(graph, add_allocation(graph, 80 * MIB));
    OK(cuGraphLaunch(ready(graph), NULL));
    CHECK_EQ_U64(charged(0), 80 * MIB);
    OK(cuMemAlloc_v2(&pointer, 90 * MIB));
    CHECK_EQ_U64(charged(0), 90 * MIB);
}

typedef CUresult (*generic_add)(CUgraphNode *, CUgraph, const CUgraphNode *, const CUgraphEdgeData *, size_t,
                                CUgraphNodeParams *);

static CUresult add_first(CUgraphNode *out, CUgraph graph, const CUgraphNode *from, const CUgraphEdgeData *edges,
                          size_t count, CUgraphNodeParams *params)
{
    (void)edges;
    return cuGraphAddNode(out, graph, from, count, params);
}

static void every_way_to_make_a_node_counts_the_same(void)
{
    static const generic_add adds[] = {add_first, cuGraphAddNode_v2, cuGraphAddNode_v3};
    world_context(0);
    for (int i = 0; i < 3; i++) {
        CUgraphNode node;
        CUgraph graph = a_graph();
        CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .alloc = an_allocation(102 * MIB, 0)};
        OK(adds[i](&node, graph, NULL, NULL, 0, &params));
        IS(cuGraphLaunch(ready(graph), NULL), CUDA_ERROR_OUT_OF_MEMORY);
    }
    CUgraph parent = a_graph();
    CUgraph child = a_graph();
    CUgraphNode node;
    add_allocation(child, 102 * MIB);
    OK(cuGraphAddChildGraphNode(&node, parent, NULL, 0, child));
    IS(cuGraphLaunch(ready(parent), NULL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(charged(0), 0);
}

static CUgraph captured(size_t bytes, bool freed)
{
    CUstream stream;
    CUgraph graph;
    CUdeviceptr pointer;
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemAllocAsync(&pointer, bytes, stream));
    if (freed) {
        OK(cuMemFreeAsync(pointer, stream));
    }
    OK(cuStreamEndCapture(stream, &graph));
    return graph;
}

static void a_captured_allocation_is_a_node_like_any_other(void)
{
    world_context(0);
    CUgraphExec exec = ready(captured(50 * MIB, true));
    CHECK_EQ_U64(charged(0), 0);
    OK(cuGraphLaunch(exec, NULL));
    CHECK_EQ_U64(charged(0), 50 * MIB);
    IS(cuGraphLaunch(ready(captured(102 * MIB, false)), NULL), CUDA_ERROR_OUT_OF_MEMORY);
}

static void a_launch_on_a_capturing_stream_takes_nothing(void)
{
    CUstream stream;
    CUgraph graph;
    world_context(0);
    CUgraphExec exec = a_holder(200 * MIB);
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamEndCapture(stream, &graph));
    CHECK_EQ_U64(charged(0), 0);
}

static void every_instantiation_counts_the_same(void)
{
    CUgraph graph = a_graph();
    CUgraphExec exec[5];
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = 0};
    world_context(0);
    add_allocation(graph, 102 * MIB);
    OK(cuGraphInstantiate(&exec[0], graph, NULL, NULL, 0));
    OK(cuGraphInstantiate_v2(&exec[1], graph, NULL, NULL, 0));
    OK(cuGraphInstantiateWithFlags(&exec[2], graph, 0));
    OK(cuGraphInstantiateWithParams(&exec[3], graph, &params));
    OK(cuGraphInstantiateWithParams_ptsz(&exec[4], graph, &params));
    for (int i = 0; i < 5; i++) {
        IS(cuGraphLaunch(exec[i], NULL), CUDA_ERROR_OUT_OF_MEMORY);
        IS(cuGraphLaunch_ptsz(exec[i], NULL), CUDA_ERROR_OUT_OF_MEMORY);
        OK(cuGraphExecDestroy(exec[i]));
    }
    CHECK_EQ_U64(charged(0), 0);
    IS(cuGraphLaunch(NULL, NULL), REAL(cuGraphLaunch)(NULL, NULL));
    IS(cuGraphInstantiateWithFlags(NULL, graph, 0), REAL(cuGraphInstantiateWithFlags)(NULL, graph, 0));
    IS(cuGraphInstantiateWithFlags(&exec[0], NULL, 0), REAL(cuGraphInstantiateWithFlags)(&exec[0], NULL, 0));
    IS(cuGraphInstantiateWithParams(&exec[0], graph, NULL), REAL(cuGraphInstantiateWithParams)(&exec[0], graph, NULL));
}

static void a_graph_on_a_card_that_the_share_does_not_list_is_refused(void)
{
    struct tessera_share_spec spec = a_share(GIB, 0);
    CUgraphNode node;
    CUgraphExec exec = (CUgraphExec)0x10;
    CUDA_GRAPH_INSTANTIATE_PARAMS with = {.result_out = 0};
    CUDA_MEM_ALLOC_NODE_PARAMS params = an_allocation(MIB, 1);
    spec.device_count = 1;
    CHECK_EQ_U64(tessera_region_create(region_path, &spec), TESSERA_ERROR_OK);
    world_context(0);
    CUgraph graph = a_graph();
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
    IS(cuGraphInstantiateWithParams(&exec, graph, &with), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(exec == (CUgraphExec)0x10);
    CHECK_EQ_U64(with.result_out, CUDA_GRAPH_INSTANTIATE_ERROR);
}

static void a_launch_that_the_driver_refuses_costs_nothing(void)
{
    CHECK(setenv("TESSERA_SIM_FAIL", "cuGraphLaunch:1:999,cuGraphExecDestroy:1:999", 1) == 0);
    world_context(0);
    CUgraphExec exec = a_holder(50 * MIB);
    IS(cuGraphLaunch(exec, NULL), CUDA_ERROR_UNKNOWN);
    CHECK_EQ_U64(charged(0), 0);
    IS(cuGraphExecDestroy(exec), CUDA_ERROR_UNKNOWN); /* still there, still counted */
    OK(cuGraphLaunch(exec, NULL));
    CHECK_EQ_U64(charged(0), 50 * MIB);
}

static void hold_graph_memory(int in, int out)
{
    world_context(0);
    OK(cuGraphLaunch(a_holder(80 * MIB), NULL));
    tell(out, 1);
    hear(in);
}

static void a_killed_process_gives_its_graph_memory_back(void)
{
    CUdeviceptr pointer;
    struct child child = child_start(hold_graph_memory);
    CHECK_EQ_U64(hear(child.from), 1);
    CHECK_EQ_U64(charged(0), 80 * MIB);
    child_end(&child, SIGKILL);
    world_context(0);
    OK(cuMemAlloc_v2(&pointer, 100 * MIB));
}

int main(void)
{
    CASE(a_node_costs_nothing_until_its_graph_runs_and_then_what_is_reserved, 100 * MIB, GIB);
    CASE(an_upload_takes_the_memory_and_a_launch_then_no_more, 100 * MIB, GIB);
    CASE(a_graph_past_the_limit_is_refused_and_leaves_nothing, 100 * MIB, GIB);
    CASE(nodes_that_share_memory_cost_what_they_share, 100 * MIB, GIB);
    CASE(plain_memory_and_graphs_count_together, 100 * MIB, GIB);
    CASE(what_graphs_reserve_without_need_is_given_back_before_anyone_is_refused, 100 * MIB, GIB);
    CASE(every_way_to_make_a_node_counts_the_same, 100 * MIB, GIB);
    CASE(a_captured_allocation_is_a_node_like_any_other, 100 * MIB, GIB);
    CASE(a_launch_on_a_capturing_stream_takes_nothing, 100 * MIB, GIB);
    CASE(every_instantiation_counts_the_same, 100 * MIB, GIB);
    CASE(a_graph_on_a_card_that_the_share_does_not_list_is_refused, 100 * MIB, GIB);
    CASE(a_launch_that_the_driver_refuses_costs_nothing, 100 * MIB, GIB);
    CASE(a_killed_process_gives_its_graph_memory_back, 100 * MIB, GIB);
    return 0;
}
