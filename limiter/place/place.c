/* DESIGN
 *
 * A node is scored in four steps: which of its devices fit, whether the node is open, what is left of it (the *state*:
 * per group of the expected workload, how many devices have enough left and what is wasted on the others), and for each
 * way to place the pod how the state changes. Choosing one device changes one term of each sum, so a way costs a pass
 * over the groups and not over the node. Devices alike give one way, and nodes alike one score: a pass over a whole
 * fleet, in which hundreds are idle, remembers some nodes and copies the score of one that is equal in all that counts.
 * The sums of a state are 32 bits wide, so that the compiler counts four groups at once.
 *
 * Division rounds towards minus infinity wherever a dividend may be negative, as numpy's does. All numbers are whole but
 * the F of PLACE_FGD, which published.c adds up.
 */
#include "place.h"

#include "baseline.h"
#include "published.h"

#include <stdbool.h>
#include <stddef.h>

static const int64_t out = INT64_MIN;

enum {
    WHOLE = 1000,
    FINE_BITS = 20, /* fixed point of worth, softplus, price and cost: parts of a milli */
    PROBABILITY_BITS = 32,
    CONVEX_BITS = 10,
    LARGEST_NODE = 8000,
    MOST_LOAD = 1 << 20,
    STEP = 20,
};
static const int64_t cpu_cap = (int64_t)1 << 40;

/* Weights in tenths; tessera.policy.pwr says of what. */
enum { FRAGMENT = 3, STRAND = 20, WORTH = 40, CONVEX = 1, PROTECT = 20, KEEP = 20, TENTHS = 10 };

/* The groups of the expected workload. */
struct groups {
    int32_t count;
    int32_t milli[PLACE_MOST_GROUPS], devices[PLACE_MOST_GROUPS];
};

/* A node as the formulas read it. */
struct view {
    const struct place_fleet *fleet;
    const struct place_outlook *outlook;
    const struct place_ask *ask;
    struct groups groups;
    int64_t node, first, devices;
    int64_t cpu_before, cpu_after;
    const int64_t *weight_before, *weight_after;
    int64_t fragment_before, idle_before;
    double published_before;
    struct state state;
};

/* Nodes of a pass whose scores may be copied, by what counts of them. */
enum { REMEMBERED_NODES = 256, LONG_PASS = 64 };
struct memory {
    int64_t node[REMEMBERED_NODES];
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t floor_divide(int64_t a, int64_t b)
{
    int64_t quotient = a / b;
    return a % b < 0 ? quotient - 1 : quotient;
}

/* How many of the ascending bounds are not above x. */
static int64_t rank_of(const int64_t *bounds, int64_t count, int64_t x)
{
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (bounds[middle] <= x) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool device_fits(const struct place_fleet *fleet, const struct place_ask *ask, int64_t row)
{
    int64_t compute = fleet->used_compute[row], slots = fleet->used_slots[row];
    if (ask->ruled_out[row] || fleet->exclusive[row] > 0 || slots >= fleet->slots[row]) {
        return false;
    }
    if (fleet->used_memory[row] > ask->memory_room[row] || compute > ask->compute_room[row]) {
        return false;
    }
    if ((ask->wants_idle && slots > 0) || (ask->unknown != NULL && ask->unknown[row])) {
        return false;
    }
    return !(ask->free_riding != NULL && ask->free_riding[row] && compute >= fleet->compute[row]);
}

static bool node_is_open(const struct place_fleet *fleet, const struct place_ask *ask, int64_t node)
{
    if (!fleet->open[node] || fleet->pods[node] + 1 > fleet->max_pods[node]) {
        return false;
    }
    if (ask->checked_cpu > 0 && fleet->used_cpu[node] + ask->checked_cpu > fleet->cpu[node]) {
        return false;
    }
    return !(ask->host_memory > 0 && fleet->used_host_memory[node] + ask->host_memory > fleet->host_memory[node]);
}

static void read_groups(const struct place_outlook *outlook, struct groups *groups)
{
    groups->count = (int32_t)outlook->groups;
    for (int32_t g = 0; g < groups->count; g++) {
        groups->milli[g] = (int32_t)outlook->value[outlook->group_value[g]];
        groups->devices[g] = (int32_t)outlook->group_count[g];
    }
}

/* Count that many devices in, or out where negative, that have so much left. */
static void count_devices(const struct groups *groups, struct state *state, int32_t left, int32_t devices)
{
    state->idle += (int64_t)left * devices;
    int32_t all = left * devices;
    for (int32_t g = 0; g < groups->count; g++) {
        bool able = left >= groups->milli[g];
        state->able[g] += able ? devices : 0;
        state->waste[g] += able ? 0 : all;
    }
}

/* What the state becomes after one device that had `left` has `after`. */
static void state_with(const struct groups *groups, const struct state *state, int32_t left, int32_t after,
                       struct state *with)
{
    with->idle = state->idle - left + after;
    for (int32_t g = 0; g < groups->count; g++) {
        int32_t milli = groups->milli[g];
        with->able[g] = state->able[g] - (left >= milli) + (after >= milli);
        with->waste[g] = state->waste[g] - (left < milli ? left : 0) + (after < milli ? after : 0);
    }
}

static int64_t fragmentation(const struct view *view, const int64_t *weight)
{
    int64_t unable = view->outlook->total, wasted = 0;
    for (int32_t g = 0; g < view->groups.count; g++) {
        int64_t counts = view->state.able[g] >= view->groups.devices[g] ? weight[g] : 0;
        unable -= counts;
        wasted += counts * view->state.waste[g];
    }
    return view->state.idle * unable + wasted;
}

/* The same after one device that had `left` has `after`. */
static int64_t fragmentation_with(const struct view *view, const int64_t *weight, int32_t left, int32_t after)
{
    int64_t unable = view->outlook->total, wasted = 0;
    for (int32_t g = 0; g < view->groups.count; g++) {
        int32_t milli = view->groups.milli[g];
        int32_t able = view->state.able[g] - (left >= milli) + (after >= milli);
        int32_t waste = view->state.waste[g] - (left < milli ? left : 0) + (after < milli ? after : 0);
        int64_t counts = able >= view->groups.devices[g] ? weight[g] : 0;
        unable -= counts;
        wasted += counts * waste;
    }
    return (view->state.idle - left + after) * unable + wasted;
}

static double published_of(const struct view *view, const struct state *state, int64_t cpu)
{
    return published_fragmentation(view->outlook, state, view->fleet->node_model[view->node], cpu);
}

static int64_t published_score(const struct view *view, const struct state *after)
{
    return published_points(view->outlook, view->published_before - published_of(view, after, view->cpu_after));
}

static void open_view(struct view *view, int64_t node)
{
    const struct place_fleet *fleet = view->fleet;
    const struct place_outlook *outlook = view->outlook;
    view->node = node;
    view->first = fleet->first[node];
    view->devices = fleet->first[node + 1] - view->first;
    view->cpu_before = least(most(fleet->cpu[node] - fleet->used_cpu[node], 0), cpu_cap);
    view->cpu_after = most(view->cpu_before - view->ask->cpu, 0);
    const int64_t *model = outlook->weight + fleet->node_model[node] * (outlook->cpus + 1) * outlook->groups;
    view->weight_before = model + rank_of(outlook->cpu, outlook->cpus, view->cpu_before) * outlook->groups;
    view->weight_after = model + rank_of(outlook->cpu, outlook->cpus, view->cpu_after) * outlook->groups;
    view->state.idle = 0;
    for (int32_t g = 0; g < view->groups.count; g++) {
        view->state.able[g] = view->state.waste[g] = 0;
    }
    for (int64_t d = 0, alike; d < view->devices; d += alike) {
        int64_t left = fleet->left[view->first + d];
        for (alike = 1; d + alike < view->devices && fleet->left[view->first + d + alike] == left; alike++) {
        }
        count_devices(&view->groups, &view->state, (int32_t)left, (int32_t)alike);
    }
    view->idle_before = view->state.idle;
    if (view->ask->ranking == PLACE_FGD) {
        view->published_before = published_of(view, &view->state, view->cpu_before);
    } else {
        view->fragment_before = fragmentation(view, view->weight_before);
    }
}

static int64_t stranded(const struct place_outlook *outlook, int64_t idle, int64_t cpu)
{
    int64_t excess = idle - cpu * WHOLE / outlook->stranding;
    if (excess >= outlook->reach) {
        return excess << FINE_BITS;
    }
    return outlook->softplus[most(excess, -outlook->reach) + outlook->reach];
}

/* The score of a way; loss is the worth that devices lose, asked the milli that are taken of them. */
static int64_t score_of(const struct view *view, int64_t idle_after, int64_t fragment_after, int64_t loss, int64_t asked)
{
    const struct place_outlook *outlook = view->outlook;
    int64_t growth = fragment_after - view->fragment_before;
    int64_t idle = view->idle_before;
    int64_t cost = FRAGMENT * floor_divide(growth, (int64_t)1 << (PROBABILITY_BITS - FINE_BITS)) + WORTH * loss;
    if (outlook->stranding > 0) {
        cost += STRAND * (stranded(outlook, idle_after, view->cpu_after) - stranded(outlook, idle, view->cpu_before));
    }
    int64_t load = least(most(asked, view->ask->cpu * WHOLE / outlook->cpu_per_device), MOST_LOAD);
    cost += CONVEX * (idle * load * (1 << CONVEX_BITS) / LARGEST_NODE) * (1 << (FINE_BITS - CONVEX_BITS));
    cost += PROTECT * outlook->price[view->fleet->node_model[view->node]] * asked;
    cost += idle == outlook->kept[view->node] ? KEEP * load * (1 << FINE_BITS) : 0;
    return -floor_divide(cost, (int64_t)TENTHS * STEP << FINE_BITS);
}

static int64_t worth_of(const struct place_outlook *outlook, int64_t left)
{
    return outlook->worth[least(left, WHOLE)];
}

/* Choosing one device. */
static int64_t one_device(struct view *view, int64_t row)
{
    const struct place_outlook *outlook = view->outlook;
    int64_t left = view->fleet->left[row], asked = view->ask->takes[row], after = most(left - asked, 0);
    if (view->ask->ranking == PLACE_FGD) {
        struct state with;
        state_with(&view->groups, &view->state, (int32_t)left, (int32_t)after, &with);
        return published_score(view, &with);
    }
    int64_t fragment_after = fragmentation_with(view, view->weight_after, (int32_t)left, (int32_t)after);
    int64_t idle_after = view->state.idle - left + after;
    int64_t loss = worth_of(outlook, left) - worth_of(outlook, after);
    return score_of(view, idle_after, fragment_after, loss, asked);
}

/* Choosing none or several: those that fit and have the least left, the first of them where they are alike. The state is
 * afterwards that of the node with the pod. */
static int64_t several_devices(struct view *view)
{
    const struct place_outlook *outlook = view->outlook;
    const struct place_ask *ask = view->ask;
    bool taken[PLACE_MOST_DEVICES] = {false};
    int64_t loss = 0, asked = 0;
    for (int64_t n = 0; n < ask->count; n++) {
        int64_t best = -1;
        for (int64_t d = 0; d < view->devices; d++) {
            int64_t row = view->first + d;
            if (ask->fits[row] && !taken[d] && (best < 0 || view->fleet->left[row] < view->fleet->left[best])) {
                best = row;
            }
        }
        taken[best - view->first] = true;
        int64_t left = view->fleet->left[best], after = most(left - ask->takes[best], 0);
        count_devices(&view->groups, &view->state, (int32_t)left, -1);
        count_devices(&view->groups, &view->state, (int32_t)after, 1);
        loss += worth_of(outlook, left) - worth_of(outlook, after);
        asked += ask->takes[best];
    }
    if (ask->ranking == PLACE_FGD) {
        return published_score(view, &view->state);
    }
    int64_t fragment_after = fragmentation(view, view->weight_after);
    return score_of(view, view->state.idle, fragment_after, loss, asked);
}

/* The scores of all devices alone; the best of them. */
static int64_t each_device(struct view *view, int64_t *scores)
{
    const struct place_fleet *fleet = view->fleet;
    const struct place_ask *ask = view->ask;
    int64_t best = out;
    for (int64_t d = 0; d < view->devices; d++) {
        int64_t row = view->first + d;
        scores[d] = out;
        if (!ask->fits[row]) {
            continue;
        }
        for (int64_t e = 0; e < d && scores[d] == out; e++) {
            int64_t other = view->first + e;
            bool alike = fleet->left[other] == fleet->left[row] && ask->takes[other] == ask->takes[row];
            scores[d] = ask->fits[other] && alike ? scores[e] : out;
        }
        if (scores[d] == out) {
            scores[d] = one_device(view, row);
        }
        best = most(best, scores[d]);
    }
    return best;
}

static int64_t node_score(struct view *view, int64_t node)
{
    int64_t fill = view->fleet->node_fill[node], scores[PLACE_MOST_DEVICES];
    switch (view->ask->ranking) {
    case PLACE_BINPACK:
        return fill;
    case PLACE_SPREAD:
        return -fill;
    case PLACE_BEST_FIT:
    case PLACE_DOT_PRODUCT:
    case PLACE_GPU_PACKING:
    case PLACE_GPU_CLUSTERING:
        return baseline_score(view->fleet, view->ask, node);
    case PLACE_RANDOM:
        return scattered(node, view->outlook->generation);
    default:
        open_view(view, node);
        return view->ask->count == 1 ? each_device(view, scores) : several_devices(view);
    }
}

/* A place in the memory for all that the score of a node depends on; equal nodes have equal places. */
static int64_t place_of(const struct place_fleet *fleet, const struct place_ask *ask, int64_t node)
{
    uint64_t hash = (uint64_t)(fleet->node_model[node] ^ (fleet->cpu[node] - fleet->used_cpu[node]) << 4);
    for (int64_t row = fleet->first[node]; row < fleet->first[node + 1]; row++) {
        hash = (hash ^ (uint64_t)fleet->left[row]) * 0x9e3779b97f4a7c15u;
        hash ^= ask->count > 0 ? ask->fits[row] : 0;
    }
    return (int64_t)(hash * 0x9e3779b97f4a7c15u >> 56);
}

static bool are_alike(const struct place_fleet *fleet, const struct place_outlook *outlook, const struct place_ask *ask,
                      int64_t a, int64_t b)
{
    int64_t first = fleet->first[a], other = fleet->first[b], devices = fleet->first[a + 1] - first;
    bool alike = fleet->first[b + 1] - other == devices && fleet->node_model[a] == fleet->node_model[b] &&
                 outlook->kept[a] == outlook->kept[b] &&
                 fleet->cpu[a] - fleet->used_cpu[a] == fleet->cpu[b] - fleet->used_cpu[b];
    for (int64_t d = 0; alike && d < devices; d++) {
        alike = fleet->left[first + d] == fleet->left[other + d];
        if (alike && ask->count > 0) {
            alike = ask->fits[first + d] == ask->fits[other + d] && ask->takes[first + d] == ask->takes[other + d];
        }
    }
    return alike;
}

/* The score of a node that can host, copied from a node alike where one is remembered. */
static int64_t remembered_score(struct view *view, struct memory *memory, int64_t node)
{
    int64_t *known = &memory->node[place_of(view->fleet, view->ask, node)];
    if (*known < 0 || !are_alike(view->fleet, view->outlook, view->ask, *known, node)) {
        *known = node;
        return node_score(view, node);
    }
    return view->ask->scores[*known];
}

static bool can_host(const struct place_fleet *fleet, const struct place_ask *ask, int64_t node)
{
    int64_t fitting = 0;
    for (int64_t row = fleet->first[node]; ask->count > 0 && row < fleet->first[node + 1]; row++) {
        ask->fits[row] = device_fits(fleet, ask, row);
        fitting += ask->fits[row];
    }
    return fitting >= ask->count && node_is_open(fleet, ask, node);
}

static void open_pass(struct view *view, const struct place_fleet *fleet, const struct place_outlook *outlook,
                      const struct place_ask *ask)
{
    view->fleet = fleet;
    view->outlook = outlook;
    view->ask = ask;
    read_groups(outlook, &view->groups);
}

void tessera_place_look(const struct place_fleet *fleet, const struct place_outlook *outlook, const struct place_ask *ask,
                        const int64_t *nodes, int64_t count)
{
    struct view view;
    struct memory memory;
    bool remember = count >= LONG_PASS && (ask->ranking == PLACE_FGD || ask->ranking == PLACE_PWR);
    open_pass(&view, fleet, outlook, ask);
    for (int64_t n = 0; remember && n < REMEMBERED_NODES; n++) {
        memory.node[n] = -1;
    }
    for (int64_t n = 0; n < count; n++) {
        int64_t node = nodes == NULL ? n : nodes[n];
        if (!can_host(fleet, ask, node)) {
            ask->scores[node] = out;
        } else {
            ask->scores[node] = remember ? remembered_score(&view, &memory, node) : node_score(&view, node);
        }
    }
}

void tessera_place_devices(const struct place_fleet *fleet, const struct place_outlook *outlook,
                           const struct place_ask *ask, int64_t node, int64_t *scores)
{
    struct view view;
    open_pass(&view, fleet, outlook, ask);
    open_view(&view, node);
    each_device(&view, scores);
}
