/* Memory that one process of the share handed out and another one opened: who is charged for it. */
#ifndef LIM_EXPORTS_H
#define LIM_EXPORTS_H

#include "process.h"

/* Who is charged for exported memory, as an entry of the region tells it. */
struct lim_holder {
    uint64_t granules;
    uint32_t device;
    bool lives; /* its process is there; else nobody is charged */
};

/* The tag of a handle's bytes; never 0. */
uint64_t lim_export_tag(const void *handle, size_t size);

/* Notes that the caller's slot is charged for what the tag stands for. Without room for it nothing is noted: the memory
 * then is nobody's if the caller dies before those who opened it. */
void lim_export_note(struct lim_process *process, uint64_t tag, uint32_t device, uint64_t granules);

/* The memory is freed: forgets the tag. */
void lim_export_forget(struct lim_process *process, uint64_t tag);

/* True if the share knows the tag; *holder then says who is charged. */
bool lim_export_find(const struct tessera_region *region, uint64_t tag, struct lim_holder *holder);

/* Takes the charge over if nobody has it any more; true for the one caller who has to pay from now on. */
bool lim_export_adopt(struct lim_process *process, uint64_t tag);

/* The caller is charged no longer, though the memory may live on with others who opened it. */
void lim_export_abandon(struct lim_process *process, uint64_t tag);

#endif
