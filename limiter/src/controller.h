/* What a share's launches are held to, as arithmetic: no clock, no driver, no shared memory. Formulas: controller.c. */
#ifndef LIM_CONTROLLER_H
#define LIM_CONTROLLER_H

#include <stdbool.h>
#include <stdint.h>

#include "tessera_compute.h"

#define LIM_MS UINT64_C(1000000)
#define LIM_ONE_Q32 (UINT64_C(1) << 32)

#define LIM_BURST_NS (50 * LIM_MS)       /* device time saved up at most, where the region names none */
#define LIM_IN_FLIGHT_NS (50 * LIM_MS)   /* device time under way per process at most, where the region names none */
#define LIM_OWED_NS (200 * LIM_MS)       /* more than this is not paid by instalments but at once */
#define LIM_GUESS_NS (LIM_MS / 5)        /* charge of a kernel that was never measured */
#define LIM_FENCE_NS LIM_MS              /* work on a stream after which the next launch is measured */
#define LIM_FENCE_LAUNCHES 32u           /* launches on a stream after which the next one is measured */
#define LIM_PATIENCE_NS (200 * LIM_MS)   /* what a launch waits beyond twice its turn before it goes anyway */
#define LIM_NAP_SHORT_NS (LIM_MS / 20)
#define LIM_NAP_LONG_NS (10 * LIM_MS)
#define LIM_LEASE_NS TESSERA_LEASE_NS
#define LIM_HISTORY_NS (300 * LIM_MS)    /* device time over which dilation is measured */

/* The rate of a limit: device time charged per time, Q32. `dilation_q32` 0 counts as 1. */
uint64_t lim_rate(uint64_t milli, uint64_t dilation_q32);

/* The rate that is in force at `now_ns` by the agent's words. */
uint64_t lim_rate_now(const struct tessera_control *control, uint32_t device, uint64_t now_ns);

/* Device nanoseconds granted in `elapsed_ns` at a rate; at most INT64_MAX / 4. */
int64_t lim_grant(uint64_t rate_q32, uint64_t elapsed_ns);

/* Nanoseconds until `missing_ns` more are granted; UINT64_MAX / 4 when that is never. */
uint64_t lim_wait_ns(int64_t missing_ns, uint64_t rate_q32);

/* The part of a grant that goes into what is owed. */
int64_t lim_instalment(int64_t owed_ns, int64_t grant_ns);

/* What is believed of a measurement of a launch that was charged `charge_ns`: at most twice that, unless the charge was
 * a guess. */
int64_t lim_believed(int64_t charge_ns, int64_t measured_ns, bool was_guess);

/* The charge of a kernel after one more measurement that is believed; `cost_ns` 0: never measured. */
uint64_t lim_learn(uint64_t cost_ns, uint64_t believed_ns);

/* Dilation after the sums of `calibration`, Q32. */
uint64_t lim_dilation(const struct tessera_calibration *calibration, uint64_t before_q32);

/* Adds what happened until `busy_at_ns` to the sums; `longest_ns` is the charge of the longest kernel. */
void lim_calibrate(struct tessera_calibration *calibration, const struct tessera_reading *reading, uint64_t now_ns,
                   uint64_t finished_ns, uint64_t longest_ns);

#endif
