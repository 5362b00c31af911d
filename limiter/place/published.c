/* DESIGN
 *
 * The only floating point of the kernel. src/tessera/policy/fragment.py says why, and adds the same doubles in the same
 * order; what keeps the two equal on every platform is that each operation here is rounded to a double on its own:
 * place.mk forbids fused operations, and a compiler that reorders or widens them is refused.
 */
#include "published.h"

#include <assert.h>
#include <float.h>
#include <stdbool.h>

static_assert(FLT_EVAL_METHOD == 0, "doubles are computed as doubles");
#ifdef __FAST_MATH__
#error "the published scores depend on the order of additions: compile without -ffast-math"
#endif

/* Why a kind leaves something unused, in the order in which the sums are added. */
enum reason { LACKS_BOTH, LACKS_DEVICES, LACKS_CPU, ALONE, ALONE_LACKS_CPU, WRONG_MODEL, REASONS };

static enum reason reason_of(const struct place_outlook *outlook, int64_t kind, bool runs, int64_t model, int64_t cpu)
{
    bool enough = cpu >= outlook->kind_cpu[kind];
    if (outlook->kind_group[kind] < 0) {
        return enough ? ALONE : ALONE_LACKS_CPU;
    }
    if (!outlook->kind_may[kind * outlook->models + model]) {
        return WRONG_MODEL;
    }
    if (enough) {
        return LACKS_DEVICES; /* also the rests that a kind that can run leaves */
    }
    return runs ? LACKS_CPU : LACKS_BOTH;
}

double published_fragmentation(const struct place_outlook *outlook, const struct state *state, int64_t model, int64_t cpu)
{
    double sums[REASONS] = {0.0}, idle = (double)state->idle;
    for (int64_t kind = 0; kind < outlook->kinds; kind++) {
        int64_t group = outlook->kind_group[kind];
        bool runs = group >= 0 && state->able[group] >= outlook->group_count[group];
        enum reason reason = reason_of(outlook, kind, runs, model, cpu);
        double unused = reason == LACKS_DEVICES && runs ? (double)state->waste[group] : idle;
        sums[reason] += outlook->kind_chance[kind] * unused;
    }
    double all = sums[0];
    for (int reason = 1; reason < REASONS; reason++) {
        all += sums[reason];
    }
    return all;
}

int64_t published_points(const struct place_outlook *outlook, double fall)
{
    int64_t low = 0, high = 99;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (outlook->thresholds[middle] <= fall) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}
