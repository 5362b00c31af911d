/* Memory that graphs allocate: charged as the driver reserves it. */
#ifndef LIM_HOOK_GRAPH_MEMORY_H
#define LIM_HOOK_GRAPH_MEMORY_H

#include "driver.h"

/* One launch or upload of an executable graph on its way. */
struct lim_graph_launch {
    struct lim_process *process; /* NULL: nothing to count */
    CUgraphExec exec;
    uint64_t granules[TESSERA_MAX_DEVICES]; /* reserved for it */
};

/* Before the driver call: charges what the graph may take. Anything but CUDA_SUCCESS is the hook's answer. Costs one
 * load where no executable graph of the process allocates. */
CUresult lim_graph_begin(struct lim_graph_launch *launch, CUgraphExec exec, CUstream stream, bool per_thread);

/* After it, whatever it answered: sets the charge to what the driver has reserved. */
void lim_graph_finish(struct lim_graph_launch *launch);

/* Sets the charge for graphs to what the driver has reserved for them now, on every device. */
void lim_settle_graphs(struct lim_process *process);

/* Gives what graphs have reserved and do not use back to the device, and settles. */
void lim_trim_graphs(struct lim_process *process);

#endif
