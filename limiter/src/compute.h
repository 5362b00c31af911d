/* Holding launches to the share's compute limit. What is enforced and why it holds: controller.c and compute.c. */
#ifndef LIM_COMPUTE_H
#define LIM_COMPUTE_H

#include "driver.h"

/* A launch, as its hook knows it. */
struct lim_order {
    uint64_t what;   /* function or executable graph: what has a time of its own */
    uint64_t blocks; /* size of the grid; 0 for what has none */
    CUstream stream;
    bool per_thread; /* how stream 0 is meant */
};

/* A launch on its way. */
struct lim_launch {
    struct lim_process *process;
    struct lim_order order;
    struct lim_site site;
    bool is_held; /* to a limit; all below is valid then */
    bool is_due;   /* its turn came when it was charged */
    bool is_guess; /* its kernel was never measured */
    struct lim_sample *sample; /* NULL: not measured */
    uint64_t key;
    int64_t charge_ns;
    int64_t turn_ns;
    uint16_t lane;
};

static inline struct tessera_slot *lim_own_slot(const struct lim_process *process)
{
    return &process->region->slot[process->slot];
}

/* True if no device of the share has a limit or is paused. Shows that the process is active, in any case. */
static inline bool lim_runs_free(const struct lim_process *process)
{
    uint64_t *launches = &lim_own_slot(process)->launches;
    __atomic_store_n(launches, __atomic_load_n(launches, __ATOMIC_RELAXED) + 1u, __ATOMIC_RELAXED);
    return __atomic_load_n(&process->region->control.gated, __ATOMIC_RELAXED) == 0;
}

/* Before the driver call: waits for the launch's turn. Never longer than bounds that compute.c states, never inside a
 * capture, and never refuses. */
void lim_launch_begin(struct lim_launch *launch, struct lim_process *process, const struct lim_order *order);

/* After it: the hook's answer. */
CUresult lim_launch_end(struct lim_launch *launch, CUresult result);

/* Sleeps for `ns`, within the bounds of LIM_NAP_SHORT_NS and LIM_NAP_LONG_NS. Not a place where a thread is cancelled; errno
 * stays. */
LIM_COLD void lim_nap(uint64_t ns);

/* Reads measurements that are ready. Cheap when there are none; call where the program waits for its device anyway. */
void lim_collect(struct lim_process *process);

/* Before a driver call that may end a context: measurements being read now are finished with. */
void lim_stop_collecting(struct lim_process *process);

/* A context ended, with its events; NULL: some context did, nobody knows which. */
void lim_forget_context(struct lim_process *process, const void *context);

#endif
