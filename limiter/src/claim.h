/* Charging one allocation around a driver call, and taking it back when it is freed. */
#ifndef LIM_CLAIM_H
#define LIM_CLAIM_H

#include "driver.h"

struct lim_claim {
    struct lim_process *process;
    struct lim_site site;
    uint64_t granules;
    bool charged;
    bool may_spill;  /* host memory will do if the device is full */
    bool is_spilled; /* and it is what is to be allocated */
};

/* What was tried when a device was found full; all zero to begin with. */
struct lim_patience {
    uint64_t from_ns;
    uint32_t tries;
};

/* What a driver call made: its record, and how to unmake it. */
struct lim_made {
    uint64_t key;
    uint64_t granules; /* what it really takes; the claim is corrected to it */
    enum record_class class;
    void (*undo)(uint64_t key);
};

/* Before the driver call, for the current context. Anything but CUDA_SUCCESS is the hook's answer. */
CUresult lim_claim_begin(struct lim_claim *claim, bool is_sound, uint64_t granules);

/* The same for memory that may lie in host memory: where the device has no room for it, is_spilled says so. */
CUresult lim_claim_begin_spillable(struct lim_claim *claim, bool is_sound, uint64_t granules);

/* After a driver call that found no memory: whether to call again, since there may be room by now or the claim was spilled.
 * physical.c says what is done for it, and for how long. */
LIM_COLD bool lim_claim_again(struct lim_claim *claim, struct lim_patience *patience);

/* After the driver call: the hook's answer. `made` is NULL when the call had nowhere to put its result. */
CUresult lim_claim_finish(struct lim_claim *claim, CUresult result, const struct lim_made *made);

/* Takes a record out before the driver frees what it stands for; class NONE if there is none. Room for its return is
 * kept until one of the next two. */
struct record lim_withdraw(struct lim_process *process, uint64_t key, enum record_class class);

/* The driver kept the memory: puts the record back. */
void lim_restore(struct lim_process *process, const struct record *record);

/* The driver freed it: gives back what the record stands for. */
void lim_release(struct lim_process *process, const struct record *record);

/* Writes a record into reserved room; charges of a stale one with the same key are given back. */
void lim_record(struct lim_process *process, const struct record *record);

/* Gives back what a record of memory stands for. Call with the lock held. */
void lim_repay_locked(struct lim_process *process, const struct record *record);

/* True if a record's granules are a charge of their own, not a pool's. */
bool lim_pays_itself(const struct record *record);

#endif
