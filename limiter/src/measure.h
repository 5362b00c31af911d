/* What the driver says that this process holds on a device, all in all. */
#ifndef LIM_MEASURE_H
#define LIM_MEASURE_H

#include "driver.h"

/* Bytes that this process holds on a device of the region; false where that cannot be known. Some 10 us to 1 ms, the
 * first call far more: never for a call that a program makes often. */
bool lim_measure(struct lim_process *process, uint32_t device, uint64_t *bytes);

#endif
