/* Charges of kernels and work of streams, in tables of a fixed size. Callers hold the lock of struct lim_compute. */
#ifndef LIM_COSTS_H
#define LIM_COSTS_H

#include <stdbool.h>

#include "compute_state.h"

/* The key of a launch: what is launched, its number of blocks in powers of two, the device. Never 0. */
uint64_t lim_cost_key(uint64_t what, uint64_t blocks, uint32_t device);

/* The entry of a key; a new one if there is none, in the place of another when its row of the table is full. */
struct lim_cost *lim_cost_of(struct lim_compute *compute, uint64_t key);

/* The entry of a key, or NULL. */
struct lim_cost *lim_cost_known(struct lim_compute *compute, uint64_t key);

/* The lane of a stream; a stream that finds no room shares another one's. */
struct lim_lane *lim_lane_of(struct lim_compute *compute, uint64_t context, uint64_t stream, uint32_t device);

/* Puts a charge on a lane; its position. */
int64_t lim_lane_submit(struct lim_lane *lane, int64_t charge_ns);

/* The work of a lane up to a position is complete; returns what that newly completes. */
int64_t lim_lane_complete(struct lim_lane *lane, int64_t position_ns);

/* True if the next launch on the lane is to be measured, whatever it is. */
bool lim_lane_needs_fence(const struct lim_lane *lane, int64_t charge_ns);

#endif
