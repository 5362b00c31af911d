/* Memory that is charged call by call, and freeing any pointer. */
#ifndef LIM_HOOK_LINEAR_H
#define LIM_HOOK_LINEAR_H

#include "driver.h"

/* Takes the record of a pointer out before the driver frees it, as the driver may give the same pointer to another
 * thread at once. class NONE if there is none. Room for its return is kept until one of the next two. */
struct record lim_withdraw(struct lim_process *process, CUdeviceptr pointer);

/* The driver kept the memory: puts the record back. */
void lim_restore(struct lim_process *process, const struct record *record);

/* The driver freed it: gives back what the record stands for. */
void lim_release(struct lim_process *process, const struct record *record);

/* Writes a record into reserved room; charges of a stale one with the same key are given back. */
void lim_record(struct lim_process *process, const struct record *record);

#endif
