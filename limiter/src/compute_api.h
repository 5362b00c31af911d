/* The agent's side of compute limits, for the helpers. */
#ifndef LIM_COMPUTE_API_H
#define LIM_COMPUTE_API_H

#include "tessera_compute.h"
#include "tessera_region_api.h"

/* Modes, rates and gates of a new region, from its limits. */
void lim_fill_compute(struct tessera_control *control, uint32_t devices);

#endif
