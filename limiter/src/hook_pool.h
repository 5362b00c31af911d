/* Memory pools: what they have reserved is what they are charged. */
#ifndef LIM_HOOK_POOL_H
#define LIM_HOOK_POOL_H

#include "driver.h"

/* Sets a pool's charge to what the driver says it has reserved now. */
void lim_settle_pool(struct lim_process *process, uint64_t pool);

/* The same for every listed pool of the process, and for what its graphs have reserved. */
void lim_settle_pools(struct lim_process *process);

/* Reads again what calls since the last time may have changed: pools, graphs, hidden memory. */
LIM_COLD void lim_settle_dirty(struct lim_process *process);

/* Gives unused memory of pools and graphs back to the device and settles: for use before a refusal. Does not wait for
 * streams. */
void lim_relieve_pools(struct lim_process *process);

/* A block of a pool was freed; its record is gone already. */
void lim_pool_block_freed(struct lim_process *process, const struct record *record);

#endif
