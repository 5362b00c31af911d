/* DESIGN
 *
 * Both tables are small, of a fixed size, and forget: an entry that had to make room is measured again when it comes
 * back, and streams that share a lane are told apart no more, which makes what is under way look smaller by their
 * overlap. Nothing depends on an entry being there.
 *
 * The size of a grid is part of a kernel's key, in powers of two: the time of most kernels follows it. Blocks are not
 * counted against anything.
 */
#include "costs.h"

#include <stddef.h>

#include "controller.h"

static uint64_t mix(uint64_t value)
{
    value ^= value >> 32;
    value *= UINT64_C(0x9e3779b97f4a7c15);
    return value ^ value >> 29;
}

uint64_t lim_cost_key(uint64_t what, uint64_t blocks, uint32_t device)
{
    uint64_t size = blocks == 0 ? 0 : 64u - (unsigned)__builtin_clzll(blocks);
    return mix(what ^ size << 56 ^ (uint64_t)device << 48) | 1u;
}

static struct lim_cost *row_of(struct lim_compute *compute, uint64_t key)
{
    return &compute->costs[(key >> 20) % (LIM_COSTS / LIM_COST_WAYS) * LIM_COST_WAYS];
}

struct lim_cost *lim_cost_known(struct lim_compute *compute, uint64_t key)
{
    struct lim_cost *row = row_of(compute, key);
    for (unsigned way = 0; way < LIM_COST_WAYS; way++) {
        if (row[way].key == key) {
            return &row[way];
        }
    }
    return NULL;
}

struct lim_cost *lim_cost_of(struct lim_compute *compute, uint64_t key)
{
    struct lim_cost *found = lim_cost_known(compute, key);
    if (found != NULL) {
        return found;
    }
    struct lim_cost *row = row_of(compute, key);
    found = &row[(key >> 8) % LIM_COST_WAYS];
    for (unsigned way = 0; way < LIM_COST_WAYS; way++) {
        if (row[way].key == 0) {
            found = &row[way];
        }
    }
    *found = (struct lim_cost){.key = key};
    return found;
}

struct lim_lane *lim_lane_of(struct lim_compute *compute, uint64_t context, uint64_t stream, uint32_t device)
{
    uint64_t key = mix(context ^ mix(stream)) | 1u;
    struct lim_lane *idle = NULL;
    for (unsigned step = 0; step < LIM_LANES; step++) {
        struct lim_lane *lane = &compute->lanes[(key + step) % LIM_LANES];
        if (lane->key == key) {
            return lane;
        }
        if (lane->key == 0) {
            idle = idle == NULL ? lane : idle;
            break; /* keys are never removed: behind a free one there is none of ours */
        }
        if (idle == NULL && lane->submitted_ns == lane->completed_ns) {
            idle = lane;
        }
    }
    if (idle == NULL) {
        return &compute->lanes[key % LIM_LANES];
    }
    /* Positions go on from where they were: a measurement of the last user may still be on its way. */
    idle->key = key;
    idle->context = context;
    idle->device = device;
    idle->launches = LIM_FENCE_LAUNCHES; /* the first launch on a stream is measured */
    return idle;
}

int64_t lim_lane_submit(struct lim_lane *lane, int64_t charge_ns)
{
    lane->submitted_ns += charge_ns;
    lane->launches++;
    return lane->submitted_ns;
}

int64_t lim_lane_complete(struct lim_lane *lane, int64_t position_ns)
{
    int64_t until_ns = position_ns < lane->submitted_ns ? position_ns : lane->submitted_ns;
    int64_t newly_ns = until_ns - lane->completed_ns;
    if (newly_ns <= 0) {
        return 0;
    }
    lane->completed_ns = until_ns;
    return newly_ns;
}

bool lim_lane_needs_fence(const struct lim_lane *lane, int64_t charge_ns)
{
    return lane->launches + 1u >= LIM_FENCE_LAUNCHES ||
           lane->submitted_ns + charge_ns - lane->fenced_ns >= (int64_t)LIM_FENCE_NS;
}
