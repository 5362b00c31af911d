/* Memory of other processes. */
#ifndef LIM_HOOK_IPC_H
#define LIM_HOOK_IPC_H

#include "process.h"

/* Charges the caller for memory that it opened and whose holder died. Cheap where nothing is open. */
void lim_adopt_orphans(struct lim_process *process);

/* Memory that was handed out is being freed. */
void lim_export_freed(struct lim_process *process, uint64_t pointer);

#endif
