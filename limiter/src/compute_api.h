/* The agent's side of compute limits, for the helpers. */
#ifndef LIM_COMPUTE_API_H
#define LIM_COMPUTE_API_H

#include "tessera_compute.h"
#include "tessera_region_api.h"

/* Modes, rates and gates of a new region, from its limits. */
void lim_fill_compute(struct tessera_control *control, uint32_t devices);

/* Sets which devices launches have to look at more than once: after a change of a limit, a mode, a pause, a cap or an
 * order. */
void lim_derive_gated(struct tessera_control *control, uint32_t devices);

#endif
