/* The published heuristics as scores of 0 to 100; the formulas stand in src/tessera/policy/baselines.py. */
#ifndef TESSERA_PLACE_BASELINE_H
#define TESSERA_PLACE_BASELINE_H

#include "place.h"

/* The score of a node on which the pod fits (ask->fits is up to date there). */
int64_t baseline_score(const struct place_fleet *fleet, const struct place_ask *ask, int64_t node);

/* A number of 62 bits that looks drawn, for a node and a generation: the policy "random". */
int64_t scattered(int64_t node, int64_t generation);

#endif
