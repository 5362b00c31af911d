/* The fragmentation in doubles, digit by digit as the published simulator has it; for PLACE_FGD alone. */
#ifndef TESSERA_PLACE_PUBLISHED_H
#define TESSERA_PLACE_PUBLISHED_H

#include "place.h"

/* A node's devices as the expected workload sees them: by group, those with enough left and the milli on the others. */
struct state {
    int64_t idle;
    int32_t able[PLACE_MOST_GROUPS], waste[PLACE_MOST_GROUPS];
};

/* F in milli of a node of this model with so many milli-cores left. */
double published_fragmentation(const struct place_outlook *outlook, const struct state *state, int64_t model, int64_t cpu);

/* 0 to 100 for a fall of F by so many milli. */
int64_t published_points(const struct place_outlook *outlook, double fall);

#endif
