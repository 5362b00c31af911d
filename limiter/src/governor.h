/* Decisions of a governor, as arithmetic: no clock, no region. Formulas: governor.c. */
#ifndef LIM_GOVERNOR_H
#define LIM_GOVERNOR_H

#include "tessera_compute.h"
#include "tessera_govern.h"

/* A priority as a number that compares: DEFAULT is MEDIUM, and what is beyond CRITICAL is CRITICAL. */
static inline uint32_t lim_level(uint32_t priority)
{
    if (priority == TESSERA_PRIORITY_DEFAULT) {
        return TESSERA_PRIORITY_MEDIUM;
    }
    return priority < TESSERA_PRIORITY_CRITICAL ? priority : TESSERA_PRIORITY_CRITICAL;
}

#endif
