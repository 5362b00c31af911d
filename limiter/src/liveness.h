/* Who a process is and whether it still lives, from /proc alone. */
#ifndef LIM_LIVENESS_H
#define LIM_LIVENESS_H

#include <stdbool.h>
#include <stdint.h>

#include "tessera_region.h"

struct process_identity {
    uint32_t pid;
    uint64_t start_ticks;  /* 0 when /proc is not readable */
    uint64_t image_stack;  /* 0 when unknown */
    uint64_t image_random;
    uint64_t pid_namespace; /* 0 when unknown */
    char command[16];
};

/* The calling process. */
struct process_identity lim_identity(void);

/* The inode of the caller's PID namespace; 0 when unknown. */
uint64_t lim_pid_namespace(void);

/* Phase CLAIMED, epoch and the identity's PID and tags: what a slot's word becomes when it is claimed. */
uint64_t lim_claimed_state(uint64_t free_state, const struct process_identity *identity);

/* True if the process in `slot`, whose state word was read as `state` (CLAIMED or LIVE), is certainly gone: ended,
 * waiting to be collected, replaced under its PID, or replaced by exec. Judges only the caller's own PID namespace. */
bool lim_is_gone(const struct tessera_slot *slot, uint64_t state, const struct process_identity *judge);

/* True if the word names the identity's PID: a slot of its own, of what it was before exec, or of one that is dead. */
bool lim_bears_pid(uint64_t state, const struct process_identity *identity);

/* The part of lim_is_gone that costs one system call: no process has that PID any more, or it is the judge's own from before
 * exec. Ended processes that nobody has collected, and PIDs that somebody else has, are left to lim_is_gone. */
bool lim_is_absent(const struct tessera_slot *slot, uint64_t state, const struct process_identity *judge);

/* CLOCK_MONOTONIC, nanoseconds; no system call where the vDSO serves it. */
uint64_t lim_now_ns(void);

/* The same, some milliseconds old, for a fifth of the price. */
uint64_t lim_coarse_ns(void);

#endif
