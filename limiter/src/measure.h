/* What the driver says that this process holds on a device, all in all. */
#ifndef LIM_MEASURE_H
#define LIM_MEASURE_H

#include "driver.h"

/* Before a driver call that may make the first context of this process on a device (an index of the region, or one of
 * LIM_*_DEVICE): finds out whether the driver's list is by our numbers. Costs something only then. */
void lim_expect_context(struct lim_process *process, int device);

/* Bytes that this process holds on a device of the region; false where that cannot be known. Some 10 us to 1 ms, the
 * first call far more: never for a call that a program makes often. */
bool lim_measure(struct lim_process *process, uint32_t device, uint64_t *bytes);

#endif
