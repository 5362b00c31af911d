/* Memory that no call shows: contexts, code, heaps, local memory. Charged as measured. */
#ifndef LIM_HIDDEN_H
#define LIM_HIDDEN_H

#include "driver.h"

/* Bits of lim_process.dirty. */
#define LIM_POOLS_DIRTY 1u  /* memory was given to pools that they may still return */
#define LIM_HIDDEN_DIRTY 2u /* calls were made that may have taken hidden memory */

static inline bool lim_is_dirty(struct lim_process *process, uint32_t bit)
{
    return (__atomic_load_n(&process->dirty, __ATOMIC_RELAXED) & bit) != 0;
}

static inline void lim_mark_dirty(struct lim_process *process, uint32_t bit)
{
    if (!lim_is_dirty(process, bit)) {
        __atomic_fetch_or(&process->dirty, bit, __ATOMIC_RELAXED);
    }
}

static inline void lim_mark_clean(struct lim_process *process, uint32_t bit)
{
    __atomic_fetch_and(&process->dirty, ~bit, __ATOMIC_RELAXED);
}

/* Sets the charge for hidden memory on a device to what is measured now. False only if `strict` and the growth goes
 * past the limit; then nothing changed. */
bool lim_hidden_settle(struct lim_process *process, int device, bool strict);

/* Settles every device on which the process has a context: what is there already is charged, limit or not. */
LIM_COLD void lim_hidden_catch_up(struct lim_process *process);

/* The same before a refusal, marked or not, but not more often than every 100 ms. */
LIM_COLD void lim_hidden_look_again(struct lim_process *process);

#endif
