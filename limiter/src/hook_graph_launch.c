/* DESIGN
 *
 * Launches of executable graphs: memory first, which may refuse, then time, which may wait. A graph has one charge for
 * all its nodes, learned by measuring its launches, as conditional nodes make no sum of its kernels right. An update of
 * the graph changes its time; the next measurements follow.
 */
#include "compute.h"
#include "hook_graph_memory.h"

static CUresult call_driver(CUgraphExec exec, CUstream stream, bool per_thread)
{
    return per_thread ? CALL(cuGraphLaunch_ptsz, exec, stream) : CALL(cuGraphLaunch, exec, stream);
}

static CUresult launch_held(struct lim_process *process, CUgraphExec exec, CUstream stream, bool per_thread)
{
    struct lim_launch launch;
    const struct lim_order order = {.what = (uint64_t)(uintptr_t)exec, .stream = stream, .per_thread = per_thread};
    lim_launch_begin(&launch, process, &order);
    return lim_launch_end(&launch, call_driver(exec, stream, per_thread));
}

static CUresult launch_graph(CUgraphExec exec, CUstream stream, bool per_thread)
{
    struct lim_process *process = lim_process();
    struct lim_graph_launch memory;
    if (process == NULL) {
        return LIM_DENIED;
    }
    CUresult result = lim_graph_begin(&memory, exec, stream, per_thread);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = LIM_USUAL(lim_runs_free(process)) ? call_driver(exec, stream, per_thread)
                                               : launch_held(process, exec, stream, per_thread);
    lim_graph_finish(&memory);
    return result;
}

LIM_EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    return launch_graph(exec, stream, false);
}

LIM_EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    return launch_graph(exec, stream, true);
}
