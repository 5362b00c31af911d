/* Charges that follow a figure of the driver instead of single allocations: what a pool has reserved, what the graphs
 * of a device have reserved. */
#ifndef LIM_GAUGE_H
#define LIM_GAUGE_H

#include "driver.h"

/* Learns a gauge (RECORD_POOL or RECORD_GRAPHS); a negative `device` makes it one that costs nothing. False when there
 * is no memory to write it down. Knowing it already is fine. */
bool lim_gauge_learn(struct lim_process *process, enum record_class class, uint64_t key, int device);

/* The record of a gauge that counts, NULL for one that is unknown or costs nothing. Lock held. */
struct record *lim_gauge_find(struct lim_process *process, enum record_class class, uint64_t key);

/* Sets the charge of a gauge to `target` granules; `reserved` of what is charged belongs to the caller and is used up.
 * Lock held. False only if `strict` and the growth goes past the limit; then nothing changed. */
bool lim_gauge_set(struct lim_process *process, struct record *gauge, uint64_t target, uint64_t reserved, bool strict);

/* Asks the driver and sets the charge to its answer, unless a later answer was applied. As above otherwise; true for a
 * gauge that does not count. */
bool lim_gauge_read(struct lim_process *process, enum record_class class, uint64_t key, uint64_t reserved, bool strict);

/* Forgets a gauge whose figure cannot be read any more; `kept` granules stay charged, as what the caller says they are.
 * Lock held. */
void lim_gauge_end(struct lim_process *process, struct record *gauge, uint64_t kept);

#endif
