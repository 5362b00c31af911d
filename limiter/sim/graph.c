/* DESIGN
 *
 * Graphs, as far as they cost time or memory: kernel nodes carry time,
 * allocation nodes carry bytes, everything else is an empty node. Edges are accepted and not
 * kept: one process's work runs in order anyway.
 *
 * Graph memory is one reserve per device, charged in steps of 2 MiB when a graph is uploaded or
 * launched (nodes that free each other's memory share it), and kept until cuDeviceGraphMemTrim. An allocation node has its address from the
 * start; its bytes are in use from a launch until a free node of the same graph, or cuMemFree.
 *
 * Source: CUDA driver API, Graph Management.
 */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t STEP = 2 * SIM_MIB, UNIT = 512;

struct CUgraphNode_st {
    uint32_t magic;
    CUgraphNodeType type;
    CUgraph graph;
    uint64_t ns;
    struct sim_block *block; /* allocation nodes */
    bool freed;              /* by a free node of the same graph */
    CUdeviceptr freed_address; /* free nodes */
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc; /* allocation nodes */
    CUgraph child;                    /* child graph nodes */
    struct CUgraphNode_st *next;
};

struct CUgraph_st {
    uint32_t magic;
    CUgraphNode nodes, *last;
    size_t count;
    uint32_t users;     /* the handle and every exec: nodes live as long as one does */
    int row;            /* of the first allocation node, -1 for none */
};

struct CUgraphExec_st {
    uint32_t magic;
    CUgraph graph;
    uint64_t ns;
    uint64_t planned; /* most bytes of allocation nodes alive at once, in the order of nodes */
};

static struct {
    uint32_t charge;
    uint64_t reserved, used, reserved_high, used_high;
} memory[SIM_MAX_DEVICES];

enum { CU_GRAPH_NODE_TYPE_EMPTY_ = 5 };

void sim_graphs_forget(void)
{
    memset(memory, 0, sizeof memory);
}

static bool is_graph(CUgraph graph)
{
    return graph != NULL && graph->magic == SIM_GRAPH_MAGIC;
}

/* -- graphs and nodes --------------------------------------------------------------------- */

CUgraph sim_graph_new(void)
{
    CUgraph graph = calloc(1, sizeof *graph);
    if (graph == NULL) return NULL;
    graph->magic = SIM_GRAPH_MAGIC;
    graph->last = &graph->nodes;
    graph->users = 1;
    graph->row = -1;
    return graph;
}

static CUgraphNode new_node(CUgraph graph, int type)
{
    CUgraphNode node = calloc(1, sizeof *node);
    if (node == NULL) return NULL;
    node->magic = SIM_NODE_MAGIC;
    node->type = (CUgraphNodeType)type;
    node->graph = graph;
    *graph->last = node;
    graph->last = &node->next;
    graph->count++;
    return node;
}

/* Bytes still in use stay so: the address is freed by cuMemFree. */
void sim_graph_drop(CUgraph graph)
{
    if (--graph->users != 0) return;
    for (CUgraphNode node = graph->nodes, next; node != NULL; node = next) {
        next = node->next;
        if (node->block != NULL && node->block->flags == 0) sim_block_drop(node->block);
        if (node->child != NULL) sim_graph_drop(node->child);
        free(node);
    }
    free(graph);
}

SIM_API cuGraphCreate(CUgraph *out, unsigned int flags)
{
    SIM_CALL("%u", flags);
    if (out == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    *out = sim_graph_new();
    return *out == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SIM_API cuGraphDestroy(CUgraph graph)
{
    SIM_CALL("%p", (void *)graph);
    if (!is_graph(graph)) return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    sim_graph_drop(graph);
    sim_unlock();
    return CUDA_SUCCESS;
}

static CUresult add(CUgraphNode *out, CUgraph graph, int type, CUgraphNode *made)
{
    if (!is_graph(graph) || out == NULL) return CUDA_ERROR_INVALID_VALUE;
    *made = new_node(graph, type);
    if (*made != NULL) *out = *made;
    return *made == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult add_kernel(CUgraphNode *out, CUgraph graph, const CUDA_KERNEL_NODE_PARAMS *params)
{
    CUgraphNode node;
    if (params == NULL || (params->func == NULL && params->kern == NULL)) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = add(out, graph, CU_GRAPH_NODE_TYPE_KERNEL, &node);
    if (result != CUDA_SUCCESS) return result;
    node->kernel = *params;
    uint64_t blocks = (uint64_t)params->gridDimX * params->gridDimY * params->gridDimZ;
    uint64_t threads = (uint64_t)params->blockDimX * params->blockDimY * params->blockDimZ;
    CUfunction function = params->func != NULL ? params->func : (CUfunction)params->kern;
    CUcontext context; /* a graph has no device of its own: the one that is current when it is made */
    int row = sim_current(&context) == CUDA_SUCCESS ? context->row : 0;
    node->ns = sim_kernel_ns(function, row, blocks, threads);
    return CUDA_SUCCESS;
}

SIM_API cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *from, size_t count,
                             const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    SIM_CALL("%p %zu", (void *)graph, count);
    (void)from;
    if (params == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS newer = {0};
    memcpy(&newer, params, sizeof *params); /* the newer structure begins with the older one */
    return add_kernel(out, graph, &newer);
}

SIM_API cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *from, size_t count,
                                const CUDA_KERNEL_NODE_PARAMS *params)
{
    SIM_CALL("%p %zu", (void *)graph, count);
    (void)from;
    return add_kernel(out, graph, params);
}

SIM_API cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *from, size_t count)
{
    CUgraphNode node;
    SIM_CALL("%p %zu", (void *)graph, count);
    (void)from;
    return add(out, graph, CU_GRAPH_NODE_TYPE_EMPTY_, &node);
}

SIM_API cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    SIM_CALL("%p %zu", (void *)graph, count);
    (void)from;
    (void)to;
    return is_graph(graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void sim_graph_kernel(CUgraph graph, uint64_t ns)
{
    CUgraphNode node = new_node(graph, CU_GRAPH_NODE_TYPE_KERNEL);
    if (node != NULL) node->ns = ns;
}

SIM_API cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    SIM_CALL("%p", (void *)graph);
    if (!is_graph(graph) || count == NULL) return CUDA_ERROR_INVALID_VALUE;
    size_t at = 0;
    for (CUgraphNode node = graph->nodes; nodes != NULL && node != NULL && at < *count; node = node->next)
        nodes[at++] = node;
    *count = nodes == NULL ? graph->count : at;
    return CUDA_SUCCESS;
}

SIM_API cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    SIM_CALL("%p", (void *)node);
    if (node == NULL || node->magic != SIM_NODE_MAGIC || type == NULL) return CUDA_ERROR_INVALID_VALUE;
    *type = node->type;
    return CUDA_SUCCESS;
}

SIM_API cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params)
{
    SIM_CALL("%p", (void *)node);
    if (node == NULL || node->magic != SIM_NODE_MAGIC || node->type != CU_GRAPH_NODE_TYPE_KERNEL || params == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *params = node->kernel;
    return CUDA_SUCCESS;
}

/* A child shares its graph's nodes here instead of copying them. Its allocations are the parent's to make. */
SIM_API cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *from, size_t count, CUgraph child)
{
    CUgraphNode node;
    SIM_CALL("%p %zu %p", (void *)graph, count, (void *)child);
    (void)from;
    if (!is_graph(child) || child == graph) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = add(out, graph, CU_GRAPH_NODE_TYPE_GRAPH, &node);
    if (result != CUDA_SUCCESS) return result;
    sim_lock();
    child->users++;
    node->child = child;
    if (graph->row < 0) graph->row = child->row;
    sim_unlock();
    return CUDA_SUCCESS;
}

SIM_API cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
    SIM_CALL("%p", (void *)node);
    if (node == NULL || node->magic != SIM_NODE_MAGIC || node->child == NULL || graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = node->child;
    return CUDA_SUCCESS;
}

/* -- allocation and free nodes ------------------------------------------------------------ */

static CUresult add_alloc(CUgraphNode *out, CUgraph graph, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    CUgraphNode node;
    if (params == NULL || params->bytesize == 0 || params->bytesize > 1ULL << 40) return CUDA_ERROR_INVALID_VALUE;
    if (params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE || !sim_is_device(params->poolProps.location.id))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = add(out, graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &node);
    if (result != CUDA_SUCCESS) return result;
    sim_lock();
    node->block = sim_block_new((params->bytesize + UNIT - 1) / UNIT * UNIT, 0, SIM_BLOCK_GRAPH);
    if (node->block != NULL) params->dptr = node->block->base;
    sim_unlock();
    graph->row = sim_visible[params->poolProps.location.id];
    node->alloc = *params;
    return node->block == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult add_free(CUgraphNode *out, CUgraph graph, CUdeviceptr address);

CUresult sim_graph_alloc(CUgraph graph, CUdevice device, uint64_t bytes, CUdeviceptr *out)
{
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
        .bytesize = bytes};
    CUresult result = add_alloc(&node, graph, &params);
    if (result == CUDA_SUCCESS) *out = params.dptr;
    return result;
}

CUresult sim_graph_free(CUgraph graph, CUdeviceptr address)
{
    CUgraphNode node;
    return add_free(&node, graph, address);
}

SIM_API cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    SIM_CALL("%p", (void *)node);
    if (node == NULL || node->magic != SIM_NODE_MAGIC || node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || params == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *params = node->alloc;
    return CUDA_SUCCESS;
}

static CUresult add_free(CUgraphNode *out, CUgraph graph, CUdeviceptr address)
{
    CUgraphNode node;
    CUresult result = add(out, graph, CU_GRAPH_NODE_TYPE_MEM_FREE, &node);
    if (result == CUDA_SUCCESS) node->freed_address = address;
    for (CUgraphNode at = result == CUDA_SUCCESS ? graph->nodes : NULL; at != NULL; at = at->next)
        if (at->block != NULL && at->block->base == address) at->freed = true;
    return result;
}

SIM_API cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *from, size_t count,
                               CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    SIM_CALL("%p %zu %zu", (void *)graph, count, params == NULL ? 0 : params->bytesize);
    (void)from;
    return add_alloc(out, graph, params);
}

SIM_API cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *from, size_t count,
                              CUdeviceptr address)
{
    SIM_CALL("%p %zu %llx", (void *)graph, count, address);
    (void)from;
    return add_free(out, graph, address);
}

static CUresult add_any(CUgraphNode *out, CUgraph graph, CUgraphNodeParams *params)
{
    CUgraphNode node;
    if (params == NULL) return CUDA_ERROR_INVALID_VALUE;
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return add_kernel(out, graph, &params->kernel);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return add_alloc(out, graph, &params->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return add_free(out, graph, (CUdeviceptr)params->reserved1[0]);
    default: return add(out, graph, (int)params->type, &node);
    }
}

SIM_API cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *from, size_t count,
                       CUgraphNodeParams *params)
{
    SIM_CALL("%p %zu", (void *)graph, count);
    (void)from;
    return add_any(out, graph, params);
}

SIM_API cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *from, const CUgraphEdgeData *edges,
                          size_t count, CUgraphNodeParams *params)
{
    SIM_CALL("%p %zu", (void *)graph, count);
    (void)from;
    (void)edges;
    return add_any(out, graph, params);
}

SIM_API cuGraphAddNode_v3(CUgraphNode *out, CUgraph graph, const CUgraphNode *from, const CUgraphEdgeData *edges,
                          size_t count, CUgraphNodeParams *params)
{
    SIM_CALL("%p %zu", (void *)graph, count);
    (void)from;
    (void)edges;
    return add_any(out, graph, params);
}

/* -- graph memory ------------------------------------------------------------------------- */

/* Called with the lock held: the reserve holds at least `bytes`. */
static bool back(int row, uint64_t bytes)
{
    uint64_t wanted = (bytes + STEP - 1) / STEP * STEP;
    if (wanted <= memory[row].reserved) return true;
    if (memory[row].charge != 0) {
        if (!sim_resize(memory[row].charge, wanted)) return false;
    } else if ((memory[row].charge = sim_take(row, wanted, SIM_POOL)) == 0) {
        return false;
    }
    memory[row].reserved = wanted;
    if (wanted > memory[row].reserved_high) memory[row].reserved_high = wanted;
    return true;
}

void sim_graph_free_block(struct sim_block *block)
{
    int row = (int)block->flags - 1; /* flags: row + 1 while in use */
    memory[row].used -= block->bytes;
    block->flags = 0;
}

/* An allocation of an earlier launch is still in use. */
static bool holds_memory(CUgraph graph)
{
    for (CUgraphNode node = graph->nodes; node != NULL; node = node->next)
        if ((node->block != NULL && node->block->flags != 0) || (node->child != NULL && holds_memory(node->child)))
            return true;
    return false;
}

/* What the graph's own nodes do not free stays in use after a launch. */
static void keep_memory(CUgraph graph, int row)
{
    for (CUgraphNode node = graph->nodes; node != NULL; node = node->next) {
        if (node->child != NULL) keep_memory(node->child, row);
        if (node->block == NULL || node->freed) continue;
        node->block->flags = (unsigned)row + 1;
        memory[row].used += node->block->bytes;
    }
}

/* Called with the lock held: the allocations of one launch. */
static CUresult take_memory(CUgraphExec exec)
{
    int row = exec->graph->row;
    if (row < 0) return CUDA_SUCCESS;
    if (holds_memory(exec->graph)) return CUDA_ERROR_INVALID_VALUE; /* not freed yet */
    if (!back(row, memory[row].used + exec->planned)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (memory[row].used + exec->planned > memory[row].used_high)
        memory[row].used_high = memory[row].used + exec->planned;
    keep_memory(exec->graph, row);
    return CUDA_SUCCESS;
}

SIM_API cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
    SIM_CALL("%d %d", device, (int)attribute);
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (value == NULL || (unsigned)attribute > 3) return CUDA_ERROR_INVALID_VALUE;
    int row = sim_visible[device];
    sim_lock();
    const uint64_t values[] = {memory[row].used, memory[row].used_high, memory[row].reserved,
                               memory[row].reserved_high};
    sim_unlock();
    memcpy(value, &values[attribute], 8);
    return CUDA_SUCCESS;
}

SIM_API cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
    SIM_CALL("%d %d", device, (int)attribute);
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    int row = sim_visible[device];
    if (value == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) memory[row].used_high = memory[row].used;
    else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) memory[row].reserved_high = memory[row].reserved;
    else return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

SIM_API cuDeviceGraphMemTrim(CUdevice device)
{
    SIM_CALL("%d", device);
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    int row = sim_visible[device];
    sim_lock();
    uint64_t keep = (memory[row].used + STEP - 1) / STEP * STEP;
    if (memory[row].charge != 0 && keep == 0) {
        sim_give(memory[row].charge);
        memory[row].charge = 0;
    } else if (memory[row].charge != 0) {
        sim_resize(memory[row].charge, keep);
    }
    memory[row].reserved = keep;
    sim_unlock();
    return CUDA_SUCCESS;
}

/* -- executable graphs -------------------------------------------------------------------- */

static uint64_t bytes_at(CUgraph graph, CUdeviceptr address)
{
    for (CUgraphNode node = graph->nodes; node != NULL; node = node->next)
        if (node->block != NULL && node->block->base == address) return node->block->bytes;
    return 0;
}

/* Runs through the nodes: `alive` bytes before, the same after; the peak goes into exec->planned. */
static uint64_t plan(CUgraphExec exec, CUgraph graph, uint64_t alive)
{
    for (CUgraphNode node = graph->nodes; node != NULL; node = node->next) {
        exec->ns += node->ns;
        if (node->block != NULL) alive += node->block->bytes;
        if (alive > exec->planned) exec->planned = alive;
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_FREE) alive -= bytes_at(graph, node->freed_address);
        if (node->child != NULL) alive = plan(exec, node->child, alive);
    }
    return alive;
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph)
{
    if (out == NULL || !is_graph(graph)) return CUDA_ERROR_INVALID_VALUE;
    CUgraphExec exec = calloc(1, sizeof *exec);
    if (exec == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    exec->magic = SIM_EXEC_MAGIC;
    exec->graph = graph;
    plan(exec, graph, 0);
    sim_lock();
    graph->users++;
    sim_unlock();
    *out = exec;
    return CUDA_SUCCESS;
}

SIM_API cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t room)
{
    SIM_CALL("%p", (void *)graph);
    if (error != NULL) *error = NULL;
    if (log != NULL && room != 0) log[0] = '\0';
    return instantiate(out, graph);
}

SIM_API cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t room)
{
    SIM_CALL("%p", (void *)graph);
    if (error != NULL) *error = NULL;
    if (log != NULL && room != 0) log[0] = '\0';
    return instantiate(out, graph);
}

SIM_API cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    SIM_CALL("%p %llu", (void *)graph, flags);
    return instantiate(out, graph);
}

static CUresult do_cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    if (params == NULL) return CUDA_ERROR_INVALID_VALUE;
    params->hErrNode_out = NULL;
    params->result_out = 0;
    return instantiate(out, graph);
}

SIM_TWINS(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz,
          (CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params), (out, graph, params), "%p",
          (void *)graph)

static bool is_exec(CUgraphExec exec)
{
    return exec != NULL && exec->magic == SIM_EXEC_MAGIC;
}

SIM_API cuGraphExecDestroy(CUgraphExec exec)
{
    SIM_CALL("%p", (void *)exec);
    if (!is_exec(exec)) return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    sim_graph_drop(exec->graph);
    sim_unlock();
    exec->magic = SIM_DEAD;
    free(exec);
    return CUDA_SUCCESS;
}

static CUresult do_cuGraphUpload(CUgraphExec exec, CUstream handle)
{
    CUstream stream;
    CUresult result = sim_stream_of(handle, &stream);
    if (result != CUDA_SUCCESS || !is_exec(exec)) return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    int row = exec->graph->row;
    sim_lock();
    bool backed = row < 0 || back(row, memory[row].used + exec->planned);
    sim_unlock();
    return backed ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_TWINS(cuGraphUpload, cuGraphUpload_ptsz, (CUgraphExec exec, CUstream stream), (exec, stream), "%p %p",
          (void *)exec, (void *)stream)

static CUresult do_cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
    CUstream stream;
    CUresult result = sim_stream_of(handle, &stream);
    if (result == CUDA_SUCCESS && !is_exec(exec)) result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS) return result;
    if (stream->capture == NULL) {
        sim_lock();
        result = take_memory(exec);
        sim_unlock();
    }
    return result == CUDA_SUCCESS ? sim_enqueue(stream, exec->ns) : result;
}

SIM_TWINS(cuGraphLaunch, cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream), (exec, stream), "%p %p",
          (void *)exec, (void *)stream)
