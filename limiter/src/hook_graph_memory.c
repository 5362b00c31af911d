/* DESIGN
 *
 * Allocation nodes. A node has its address from the start; memory comes when the graph is instantiated, uploaded or
 * launched, as the driver likes, and stays reserved for the graphs of the process until cuDeviceGraphMemTrim.
 * Charged is that reserve, one gauge per device (gauge.c).
 *
 * How nodes came to be (typed call, generic call, capture, clone, child graph) does not matter: a graph is looked
 * through when it is instantiated, and what its nodes may take at most is written down with the executable graph.
 * Nodes whose lives do not overlap share memory, so the sum is an upper bound. Before an upload or a launch the
 * bound is charged if it fits, and corrected afterwards. If it does not fit, unused pools and graph memory are given
 * back first, and then the driver is asked for the truth: the graph is uploaded, which takes what it really needs
 * and runs nothing. If that is past the limit it is trimmed again and the launch is refused.
 *
 * A launch on a capturing stream takes no memory and is left alone.
 *
 * Source: CUDA driver API, Graph Management; Programming Guide, Graph Memory Nodes.
 */
#include "hook_graph_memory.h"

#include <sys/mman.h>

#include "account.h"
#include "claim.h"
#include "gauge.h"
#include "hook_pool.h"

#define MOST_NESTED 8u           /* child graphs in child graphs */
#define DEVICE_BITS UINT64_C(15) /* added to an executable graph's address, which is aligned */

_Static_assert(TESSERA_MAX_DEVICES <= DEVICE_BITS + 1u, "a device's index fits beside an address");

/* What the nodes of a graph may take at most, by the region's index of devices. */
struct plan {
    uint64_t granules[TESSERA_MAX_DEVICES];
    CUdevice ordinal[TESSERA_MAX_DEVICES];
    bool is_possible; /* false: a device that the share does not have, or a graph that could not be read */
    bool allocates;
};

static uint64_t key_of(CUgraphExec exec, uint32_t device)
{
    return (uint64_t)(uintptr_t)exec + device;
}

/* A node's memory in the driver's units: it may be given pages of its own. */
static uint64_t node_granules(const CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = params->poolProps.location};
    size_t unit = 0;
    uint64_t bytes = params->bytesize;
    if (CALL(cuMemGetAllocationGranularity, &unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS &&
        unit != 0 && bytes % unit != 0 && bytes <= UINT64_MAX - unit) {
        bytes += unit - bytes % unit;
    }
    return lim_granules(bytes);
}

static void plan_node(struct lim_process *process, CUgraphNode node, struct plan *plan)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    if (CALL(cuGraphMemAllocNodeGetParams, node, &params) != CUDA_SUCCESS) {
        plan->is_possible = false;
        return;
    }
    int device = lim_location_device(process, &params.poolProps.location);
    if (device == LIM_NO_DEVICE) {
        return; /* host memory */
    }
    if (device == LIM_UNLISTED_DEVICE) {
        plan->is_possible = false;
        return;
    }
    uint64_t granules = node_granules(&params);
    uint64_t sum = plan->granules[device] + granules;
    plan->granules[device] = sum < granules ? UINT64_MAX : sum;
    plan->ordinal[device] = params.poolProps.location.id;
    plan->allocates = true;
}

static void plan_nodes(struct lim_process *process, CUgraph graph, unsigned depth, struct plan *plan);

static void plan_any(struct lim_process *process, CUgraphNode node, unsigned depth, struct plan *plan)
{
    CUgraphNodeType type;
    CUgraph child;
    if (CALL(cuGraphNodeGetType, node, &type) != CUDA_SUCCESS) {
        return;
    }
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        plan_node(process, node, plan);
    } else if (type == CU_GRAPH_NODE_TYPE_GRAPH && depth < MOST_NESTED &&
               CALL(cuGraphChildGraphNodeGetGraph, node, &child) == CUDA_SUCCESS) {
        plan_nodes(process, child, depth + 1u, plan);
    }
}

static void plan_nodes(struct lim_process *process, CUgraph graph, unsigned depth, struct plan *plan)
{
    size_t count = 0;
    /* A graph that cannot be looked at is for the driver to refuse. */
    if (CALL(cuGraphGetNodes, graph, NULL, &count) != CUDA_SUCCESS || count == 0) {
        return;
    }
    size_t bytes = count * sizeof(CUgraphNode); /* the driver has them in memory: no overflow */
    CUgraphNode *nodes = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (nodes == MAP_FAILED) {
        plan->is_possible = false;
        return;
    }
    if (CALL(cuGraphGetNodes, graph, nodes, &count) == CUDA_SUCCESS) {
        for (size_t i = 0; i < count && i < bytes / sizeof *nodes; i++) {
            plan_any(process, nodes[i], depth, plan);
        }
    }
    munmap(nodes, bytes);
}

/* -- the gauges ------------------------------------------------------------------------------------------------- */

static void settle(struct lim_process *process, CUdevice ordinal)
{
    lim_gauge_read(process, RECORD_GRAPHS, (uint64_t)ordinal, 0, false);
}

static void each_ordinal(struct lim_process *process, void (*visit)(struct lim_process *, CUdevice))
{
    uint64_t left = __atomic_load_n(&process->graph_ordinals, __ATOMIC_RELAXED);
    for (; left != 0; left &= left - 1u) {
        visit(process, __builtin_ctzll(left));
    }
}

void lim_settle_graphs(struct lim_process *process)
{
    each_ordinal(process, settle);
}

static void trim(struct lim_process *process, CUdevice ordinal)
{
    CALL(cuDeviceGraphMemTrim, ordinal);
    settle(process, ordinal);
}

void lim_trim_graphs(struct lim_process *process)
{
    each_ordinal(process, trim);
}

/* The charge for a device follows its gauge; `reserved` granules of the caller's are used up. False: past the limit,
 * also without the dead. */
static bool charge_gauge(struct lim_process *process, CUdevice ordinal, uint64_t reserved)
{
    if (lim_gauge_read(process, RECORD_GRAPHS, (uint64_t)ordinal, reserved, true)) {
        return true;
    }
    lim_reap_now(process);
    return lim_gauge_read(process, RECORD_GRAPHS, (uint64_t)ordinal, reserved, true);
}

/* -- executable graphs ------------------------------------------------------------------------------------------ */

/* The planned memory of an executable graph on a device; class NONE without any. */
static struct record planned(struct lim_process *process, CUgraphExec exec, uint32_t device)
{
    struct record none = {.class = RECORD_NONE};
    lim_lock(process);
    struct record *found = lim_ledger_find(&process->ledger, key_of(exec, device), RECORD_EXEC);
    none = found == NULL ? none : *found;
    lim_unlock(process);
    return none;
}

static bool write_down(struct lim_process *process, CUgraphExec exec, uint32_t device, const struct plan *plan)
{
    CUdevice ordinal = plan->ordinal[device];
    struct record record = {.key = key_of(exec, device),
                            .link = (uint64_t)ordinal,
                            .granules = plan->granules[device],
                            .class = RECORD_EXEC,
                            .device = (uint8_t)device};
    if (!lim_gauge_learn(process, RECORD_GRAPHS, (uint64_t)ordinal, (int)device)) {
        return false;
    }
    lim_lock(process);
    bool reserved = lim_ledger_reserve(&process->ledger, 1);
    if (reserved) {
        lim_ledger_insert(&process->ledger, &record, NULL);
    }
    lim_unlock(process);
    if (reserved && ordinal < LIM_MAPPED_ORDINALS) {
        __atomic_fetch_or(&process->graph_ordinals, UINT64_C(1) << ordinal, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&process->graph_memory, 1u, __ATOMIC_RELAXED);
    return reserved;
}

/* Takes the records of an executable graph out, with room for their return. Returns how many there were. */
static unsigned withdraw(struct lim_process *process, CUgraphExec exec, struct record records[TESSERA_MAX_DEVICES])
{
    unsigned count = 0;
    for (uint32_t device = 0; device < TESSERA_MAX_DEVICES; device++) {
        records[count] = lim_withdraw(process, key_of(exec, device), RECORD_EXEC);
        count += records[count].class != RECORD_NONE;
    }
    return count;
}

static void forget(struct lim_process *process, const struct record *records, unsigned count)
{
    lim_lock(process);
    lim_ledger_unreserve(&process->ledger, count);
    lim_unlock(process);
    for (unsigned i = 0; i < count; i++) {
        settle(process, (CUdevice)records[i].link);
    }
}

/* Writes an executable graph's plan down and charges what instantiating it took. False: undone. */
static bool admit(struct lim_process *process, CUgraphExec exec, const struct plan *plan)
{
    bool admitted = plan->is_possible;
    for (uint32_t device = 0; admitted && device < TESSERA_MAX_DEVICES; device++) {
        if (plan->granules[device] == 0) {
            continue;
        }
        admitted = write_down(process, exec, device, plan) && charge_gauge(process, plan->ordinal[device], 0);
        if (!admitted) {
            lim_note_refusal(process, device, 0);
        }
    }
    if (!admitted) {
        struct record records[TESSERA_MAX_DEVICES];
        unsigned count = withdraw(process, exec, records);
        CALL(cuGraphExecDestroy, exec);
        lim_trim_graphs(process);
        forget(process, records, count);
    }
    return admitted;
}

/* After the driver made an executable graph: the hook's answer; *out is written last. */
static CUresult instantiated(struct lim_process *process, CUresult result, CUgraphExec *out, CUgraphExec made,
                             CUgraph graph)
{
    struct plan plan = {.is_possible = true};
    if (result != CUDA_SUCCESS || out == NULL) {
        return result;
    }
    plan_nodes(process, graph, 0, &plan);
    if ((plan.allocates || !plan.is_possible) && !admit(process, made, &plan)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = made;
    return CUDA_SUCCESS;
}

LIM_EXPORT CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
    struct lim_process *process = lim_process();
    CUgraphExec made = NULL;
    if (process == NULL) {
        return LIM_DENIED;
    }
    CUresult result = CALL(cuGraphInstantiate, out == NULL ? NULL : &made, graph, error, log, size);
    return instantiated(process, result, out, made, graph);
}

LIM_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
    struct lim_process *process = lim_process();
    CUgraphExec made = NULL;
    if (process == NULL) {
        return LIM_DENIED;
    }
    CUresult result = CALL(cuGraphInstantiate_v2, out == NULL ? NULL : &made, graph, error, log, size);
    return instantiated(process, result, out, made, graph);
}

LIM_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    struct lim_process *process = lim_process();
    CUgraphExec made = NULL;
    if (process == NULL) {
        return LIM_DENIED;
    }
    CUresult result = CALL(cuGraphInstantiateWithFlags, out == NULL ? NULL : &made, graph, flags);
    return instantiated(process, result, out, made, graph);
}

static CUresult instantiate_with(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params,
                                 bool per_thread)
{
    struct lim_process *process = lim_process();
    CUgraphExec made = NULL;
    if (process == NULL) {
        return LIM_DENIED;
    }
    CUgraphExec *to = out == NULL ? NULL : &made;
    CUresult result = per_thread ? CALL(cuGraphInstantiateWithParams_ptsz, to, graph, params)
                                 : CALL(cuGraphInstantiateWithParams, to, graph, params);
    bool is_made = result == CUDA_SUCCESS;
    result = instantiated(process, result, out, made, graph);
    if (is_made && result != CUDA_SUCCESS) {
        params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
    }
    return result;
}

LIM_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    return instantiate_with(out, graph, params, false);
}

LIM_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph,
                                                      CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    return instantiate_with(out, graph, params, true);
}

LIM_EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    struct lim_process *process = lim_attached();
    struct record records[TESSERA_MAX_DEVICES];
    if (process == NULL || __atomic_load_n(&process->graph_memory, __ATOMIC_RELAXED) == 0) {
        return CALL(cuGraphExecDestroy, exec);
    }
    unsigned count = withdraw(process, exec, records);
    CUresult result = CALL(cuGraphExecDestroy, exec);
    if (result == CUDA_SUCCESS) {
        forget(process, records, count);
    } else {
        for (unsigned i = 0; i < count; i++) {
            lim_restore(process, &records[i]);
        }
    }
    return result;
}

LIM_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    struct lim_process *process = lim_attached();
    CUresult result = CALL(cuDeviceGraphMemTrim, device);
    if (process != NULL && result == CUDA_SUCCESS) {
        settle(process, device);
    }
    return result;
}

/* -- uploads and launches --------------------------------------------------------------------------------------- */

/* Granules by which the driver may have to grow the reserve for `more`. */
static uint64_t most_growth(CUdevice ordinal, uint64_t more)
{
    cuuint64_t used = 0;
    cuuint64_t reserved = 0;
    CALL(cuDeviceGetGraphMemAttribute, ordinal, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used);
    CALL(cuDeviceGetGraphMemAttribute, ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved);
    uint64_t unused = reserved > used ? (reserved - used) / TESSERA_GRANULE : 0;
    return more > unused ? more - unused : 0;
}

/* Charges the upper bound on one device, if it fits. */
static bool take_bound(struct lim_graph_launch *launch, const struct record *plan)
{
    uint64_t growth = most_growth((CUdevice)plan->link, plan->granules);
    bool taken = lim_take(launch->process, plan->device, growth, 0);
    launch->granules[plan->device] = taken ? growth : 0;
    return taken;
}

/* The upper bound does not fit: takes what the graph really needs, and charges that if it fits. */
static CUresult take_truth(struct lim_graph_launch *launch, const struct record *plan, CUstream stream, bool per_thread)
{
    lim_relieve_pools(launch->process);
    lim_reap_now(launch->process);
    if (take_bound(launch, plan)) {
        return CUDA_SUCCESS;
    }
    CUresult result = per_thread ? CALL(cuGraphUpload_ptsz, launch->exec, stream)
                                 : CALL(cuGraphUpload, launch->exec, stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (charge_gauge(launch->process, (CUdevice)plan->link, 0)) {
        return CUDA_SUCCESS;
    }
    trim(launch->process, (CUdevice)plan->link);
    lim_note_refusal(launch->process, plan->device, 0);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult begin(struct lim_graph_launch *launch, struct lim_process *process, CUstream stream, bool per_thread)
{
    CUresult result = CUDA_SUCCESS;
    for (uint32_t device = 0; result == CUDA_SUCCESS && device < TESSERA_MAX_DEVICES; device++) {
        struct record plan = planned(process, launch->exec, device);
        launch->granules[device] = 0;
        if (plan.class == RECORD_NONE) {
            continue;
        }
        launch->process = process;
        if (!take_bound(launch, &plan)) {
            result = take_truth(launch, &plan, stream, per_thread);
        }
    }
    return result;
}

CUresult lim_graph_begin(struct lim_graph_launch *launch, CUgraphExec exec, CUstream stream, bool per_thread)
{
    struct lim_process *process = lim_attached();
    launch->process = NULL;
    if (LIM_USUAL(process == NULL || __atomic_load_n(&process->graph_memory, __ATOMIC_RELAXED) == 0)) {
        return CUDA_SUCCESS;
    }
    if (lim_is_capturing(stream, per_thread)) {
        return CUDA_SUCCESS;
    }
    for (uint32_t device = 0; device < TESSERA_MAX_DEVICES; device++) {
        launch->granules[device] = 0;
    }
    launch->exec = exec;
    CUresult result = begin(launch, process, stream, per_thread);
    if (result != CUDA_SUCCESS) {
        lim_graph_finish(launch);
    }
    return result;
}

void lim_graph_finish(struct lim_graph_launch *launch)
{
    for (uint32_t device = 0; launch->process != NULL && device < TESSERA_MAX_DEVICES; device++) {
        struct record plan = planned(launch->process, launch->exec, device);
        if (plan.class != RECORD_NONE) {
            lim_gauge_read(launch->process, RECORD_GRAPHS, plan.link, launch->granules[device], false);
        } else if (launch->granules[device] > 0) {
            lim_give(launch->process, device, launch->granules[device]); /* destroyed by another thread meanwhile */
        }
    }
}

static CUresult upload(CUgraphExec exec, CUstream stream, bool per_thread)
{
    struct lim_graph_launch launch;
    CUresult result = lim_graph_begin(&launch, exec, stream, per_thread);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = per_thread ? CALL(cuGraphUpload_ptsz, exec, stream) : CALL(cuGraphUpload, exec, stream);
    lim_graph_finish(&launch);
    return result;
}

LIM_EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    return upload(exec, stream, false);
}

LIM_EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return upload(exec, stream, true);
}
