/* DESIGN
 *
 * Each formula reads one view of a node: milli left in all, cores left, what the pod takes. Nothing is kept. Division
 * rounds towards minus infinity wherever a dividend may be negative, as numpy's does.
 */
#include "baseline.h"

#include <stdbool.h>

enum { WHOLE = 1000, MOST_CPU = 128000, MOST_MILLI = 8 * WHOLE, CPU_SEEN = 1 << 27 };

/* A node before the pod comes; each is what it takes of one device, by the node's first. */
struct sight {
    const struct place_fleet *fleet;
    const struct place_ask *ask;
    int64_t node, first, devices;
    int64_t gpu, cpu, each;
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t floor_divide(int64_t a, int64_t b)
{
    int64_t quotient = a / b;
    return a % b < 0 ? quotient - 1 : quotient;
}

static struct sight look_at(const struct place_fleet *fleet, const struct place_ask *ask, int64_t node)
{
    struct sight sight = {.fleet = fleet, .ask = ask, .node = node, .first = fleet->first[node]};
    sight.devices = fleet->first[node + 1] - sight.first;
    sight.cpu = least(most(fleet->cpu[node] - fleet->used_cpu[node], 0), CPU_SEEN);
    for (int64_t d = 0; d < sight.devices; d++) {
        sight.gpu += fleet->left[sight.first + d];
    }
    sight.each = sight.devices > 0 && ask->count > 0 ? ask->takes[sight.first] : 0;
    return sight;
}

static int64_t best_fit(const struct sight *sight)
{
    int64_t scale = MOST_CPU / MOST_MILLI, taken = sight->each * sight->ask->count;
    int64_t rest = sight->cpu - sight->ask->cpu + scale * (sight->gpu - taken);
    return floor_divide(100 * (2 * MOST_CPU - rest), 2 * MOST_CPU);
}

static int64_t dot_product(const struct sight *sight)
{
    int64_t scale = MOST_CPU / MOST_MILLI, whole = (int64_t)2 * MOST_CPU * MOST_CPU;
    int64_t product = sight->cpu * sight->ask->cpu + scale * scale * sight->gpu * sight->each * sight->ask->count;
    /* Divided before it is multiplied, since a hundred times the product may not fit into 64 bits. */
    return 100 - product / whole * 100 + floor_divide(-(product % whole * 100), whole);
}

/* The percent left of the devices that would be taken, and how many of those are free. */
static void tightest(const struct sight *sight, int64_t *percent, int64_t *free_ones)
{
    bool taken[PLACE_MOST_DEVICES] = {false};
    for (int64_t n = 0; n < sight->ask->count; n++) {
        int64_t best = -1;
        for (int64_t d = 0; d < sight->devices; d++) {
            int64_t left = sight->fleet->left[sight->first + d];
            bool able = !taken[d] && left >= sight->each;
            if (able && (best < 0 || left < sight->fleet->left[sight->first + best])) {
                best = d;
            }
        }
        /* A device may fit by its memory and its compute, and have a milli less left by the rounding of both. */
        int64_t left = best < 0 ? 2 * WHOLE : sight->fleet->left[sight->first + best];
        if (best >= 0) {
            taken[best] = true;
        }
        *percent += left * 100 / WHOLE;
        *free_ones += left == WHOLE;
    }
}

static int64_t gpu_packing(const struct sight *sight)
{
    int64_t free_ones = 0, percent = 0, taken = 0;
    if (sight->ask->count == 0) {
        return 0;
    }
    for (int64_t d = 0; d < sight->devices; d++) {
        free_ones += sight->fleet->left[sight->first + d] == WHOLE;
    }
    if (free_ones == sight->devices) {
        return most(33 - free_ones, free_ones);
    }
    tightest(sight, &percent, &taken);
    return taken > 0 ? most(50 - taken, 33) : most(100 - percent / 10, 50);
}

/* The place of a number of devices in sizes: of 1, of 2 or 3, of 4 to 7, of more. */
static int64_t size_place(int64_t count) { return count >= 8 ? 4 : count >= 4 ? 3 : count >= 2 ? 2 : count; }

static int64_t gpu_clustering(const struct sight *sight)
{
    int64_t sizes = sight->fleet->sizes[sight->node], kinds = 0;
    if (sight->ask->count == 0) {
        return 0;
    }
    for (int64_t place = 0; place < 5; place++) {
        kinds += (sizes >> PLACE_SIZE_BITS * place) % (1 << PLACE_SIZE_BITS) > 0;
    }
    int64_t own = sight->ask->count == 1 && sight->each < WHOLE ? 0 : size_place(sight->ask->count);
    bool among = (sizes >> PLACE_SIZE_BITS * own) % (1 << PLACE_SIZE_BITS) > 0;
    int64_t base = among ? (kinds == 1 ? 75 : 50) : (kinds == 0 ? 25 : 0);
    return base + 25 * most(MOST_MILLI - sight->gpu, 0) / MOST_MILLI;
}

int64_t baseline_score(const struct place_fleet *fleet, const struct place_ask *ask, int64_t node)
{
    struct sight sight = look_at(fleet, ask, node);
    switch (ask->ranking) {
    case PLACE_BEST_FIT:
        return best_fit(&sight);
    case PLACE_DOT_PRODUCT:
        return dot_product(&sight);
    case PLACE_GPU_PACKING:
        return gpu_packing(&sight);
    default:
        return gpu_clustering(&sight);
    }
}

/* SplitMix64's (Steele et al., OOPSLA 2014). */
static uint64_t mixed(uint64_t value)
{
    value += UINT64_C(0x9E3779B97F4A7C15);
    value = (value ^ (value >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94D049BB133111EB);
    return value ^ (value >> 31);
}

int64_t scattered(int64_t node, int64_t generation)
{
    return (int64_t)(mixed(mixed((uint64_t)generation) ^ (uint64_t)node * 2) >> 2);
}
