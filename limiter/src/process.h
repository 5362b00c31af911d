/* What this process knows about its share: the mapped region, its slot, its ledger. */
#ifndef LIM_PROCESS_H
#define LIM_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compute_state.h"
#include "hints.h"
#include "ledger.h"
#include "liveness.h"
#include "tessera_region.h"

#define LIM_NO_DEVICE (-1)         /* the driver does not know the ordinal */
#define LIM_UNLISTED_DEVICE (-2)   /* the region does not list it: its limit is zero */
#define LIM_MAPPED_ORDINALS 64
#define LIM_LISTED_POOLS 256
#define LIM_ENDINGS_BITS 16 /* of lim_process.contexts: calls under way that may end a context; above: calls done */

/* Everything private to one process, in pages that the kernel zeroes in a forked child: all zero means "not attached
 * yet", so a child starts afresh whoever created it. */
struct lim_process {
    /* One cache line with everything that every allocation and free needs. */
    uint32_t lock;     /* 0 free, 1 held */
    uint32_t attached; /* non-zero: the fields below are valid */
    uint32_t slot;
    uint32_t dirty;       /* what has to be looked at again: LIM_*_DIRTY of hidden.h */
    uint64_t contexts;    /* changes whenever a context ends: driver.c */
    struct tessera_region *region;
    struct ledger ledger;

    uint64_t scanned_ns;
    uint32_t priority; /* the process's own, from LOW on */
    uint32_t spare;
    uint64_t measured_ns;     /* of hidden memory */
    uint32_t measurements[TESSERA_MAX_DEVICES]; /* of hidden memory, begun */
    uint32_t applied[TESSERA_MAX_DEVICES];      /* number of the last one applied */
    uint64_t next_allocation; /* number of the last VMM allocation recorded */
    struct process_identity identity;
    uint64_t expected_ns;    /* when a context was last about to be made: measure.c */
    uint32_t numbering;      /* whose process numbers the driver lists: measure.c */
    uint8_t device_of[LIM_MAPPED_ORDINALS]; /* CUdevice -> region index + 1; 0 not asked yet */
    uint32_t pool_count;
    uint32_t graph_memory;   /* not 0: executable graphs that allocate were made */
    uint32_t imports;        /* memory of other processes that is open */
    uint32_t bindings;       /* to multicast objects */
    uint64_t graph_ordinals; /* bit n: graphs reserve memory on the driver's device n */
    uint64_t pools[LIM_LISTED_POOLS]; /* counted pools; one more than fit is settled by its own calls only */
    struct lim_compute compute;
};

_Static_assert(offsetof(struct lim_process, scanned_ns) == 64, "what every call needs is one cache line");

/* The region, mapped on first use; NULL if there is none that is valid (the caller then refuses). */
struct tessera_region *lim_region(void);

/* The process with its slot, registered on first use; NULL if it has none (the caller then refuses). */
struct lim_process *lim_process(void);

/* The process if it has a slot already, else NULL: for calls that only give back. */
struct lim_process *lim_attached(void);

static inline bool lim_try_lock(uint32_t *lock)
{
    uint32_t expected = 0;
    return __atomic_compare_exchange_n(lock, &expected, 1u, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* Takes the lock when somebody else has it: rare, as it is held for a few instructions. Nobody is woken; waits have an
 * end. That keeps unlocking a plain store, which is most of what a lock costs when nobody else wants it. */
LIM_COLD void lim_wait_lock(uint32_t *lock);

static inline void lim_lock_word(uint32_t *lock)
{
    if (!LIM_USUAL(lim_try_lock(lock))) {
        lim_wait_lock(lock);
    }
}

static inline void lim_unlock_word(uint32_t *lock)
{
    __atomic_store_n(lock, 0u, __ATOMIC_RELEASE);
}

/* Serialises this process's threads. Held for a few instructions, never across a driver call. */
static inline void lim_lock(struct lim_process *process)
{
    if (!LIM_USUAL(lim_try_lock(&process->lock))) {
        lim_wait_lock(&process->lock);
    }
}

static inline void lim_unlock(struct lim_process *process)
{
    __atomic_store_n(&process->lock, 0u, __ATOMIC_RELEASE);
}

/* Charges and reserves room for `records` in the ledger, in one step. False: over the limit, nothing changed. */
bool lim_take(struct lim_process *process, uint32_t device, uint64_t granules, size_t records);

/* As lim_take, but before giving up reaps dead processes and tries again; counts the refusal. */
bool lim_take_or_refuse(struct lim_process *process, uint32_t device, uint64_t granules, size_t records);

/* Reaps dead processes now; true if memory came back. */
bool lim_reap_now(struct lim_process *process);

/* The same for memory that is to lie in host memory: charged to the device and to its spill account, whatever the ceiling.
 * False: not within the limits of both, nothing changed. */
bool lim_take_spilled(struct lim_process *process, uint32_t device, uint64_t granules, size_t records);

/* What is charged to the device already lies in host memory. False: the spill account has no room. */
bool lim_note_spilled(struct lim_process *process, uint32_t device, uint64_t granules);

/* Gives back to the spill account. Call with the lock held. */
void lim_unspill_locked(struct lim_process *process, uint32_t device, uint64_t granules);

/* As lim_take with the lock held and no ledger room. */
bool lim_take_locked(struct lim_process *process, uint32_t device, uint64_t granules);

/* Counts a refusal of so much more (0: not known): by the limit, or by the ceiling, which means that the device is full. */
void lim_note_refusal(struct lim_process *process, uint32_t device, uint64_t granules);

/* Charges what the driver took already, past the limit if need be. Call with the lock held. */
void lim_force_locked(struct lim_process *process, uint32_t device, uint64_t granules);

/* Gives back. The _locked form is for callers that hold the lock. */
void lim_give(struct lim_process *process, uint32_t device, uint64_t granules);
void lim_give_locked(struct lim_process *process, uint32_t device, uint64_t granules);

/* The limit of a device in bytes, as of now; zero for a disabled one. What the host found beyond the gauge is not taken
 * off: lim_used has it. */
uint64_t lim_limit(const struct tessera_region *region, uint32_t device);

/* The ceiling of a device in granules of the gauge: what may be in use of the device, and what is in host memory. Above
 * every limit where there is none. */
uint64_t lim_ceiling_granules(const struct tessera_region *region, uint32_t device);

/* Bytes in use on a device by the share, with what the host found beyond the gauge. Reaps the dead first, at most every 100 ms. */
uint64_t lim_used(struct tessera_region *region, uint32_t device);

/* The region's index of a device UUID (16 bytes), or LIM_UNLISTED_DEVICE. */
int lim_device_by_uuid(const struct tessera_region *region, const unsigned char uuid[16]);

#endif
