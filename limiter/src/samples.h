/* Measuring launches by pairs of events. */
#ifndef LIM_SAMPLES_H
#define LIM_SAMPLES_H

#include "compute.h"

/* A sample for a launch in `context`, or NULL when all are under way. Lock held. */
struct lim_sample *lim_sample_take(struct lim_compute *compute, const void *context);

/* Records the first event; false: the launch goes unmeasured, and the sample is the caller's to drop. */
bool lim_sample_start(const struct lim_launch *launch);

/* Records the second event; false as above. */
bool lim_sample_end(const struct lim_launch *launch);

/* From now on the sample may be collected. Lock held. */
void lim_sample_pend(struct lim_compute *compute, struct lim_sample *sample);

/* Gives a sample back that nothing will come of. Lock held. */
void lim_sample_drop(struct lim_compute *compute, struct lim_sample *sample);

/* Takes work that is complete off the books of a device, and shows it. Lock held; `newly_ns` from a lane. */
void lim_work_done(struct lim_process *process, uint32_t device, int64_t newly_ns, int64_t measured_more_ns);

#endif
