/* How well a policy likes nodes for one kind of pod: the inner loop of Tessera's placement.
 *
 * All arrays are the caller's; int64 arrays hold milli (of a device, of a core) and MiB, uint8 arrays 0 or 1. Devices of
 * node n are the rows first[n] to first[n + 1]. The formulas stand in src/tessera/policy/fragment.py and pwr.py, whose
 * answers these equal bit for bit; src/tessera/runtime/kernel.py mirrors the structures.
 */
#ifndef TESSERA_PLACE_H
#define TESSERA_PLACE_H

#include <stdint.h>

#define PLACE_API __attribute__((visibility("default")))

enum { PLACE_MOST_DEVICES = 128, PLACE_MOST_GROUPS = 256 };

enum place_ranking {
    PLACE_BINPACK = 1,
    PLACE_SPREAD = 2,
    PLACE_FGD = 3,
    PLACE_PWR = 4,
    PLACE_BEST_FIT = 5,
    PLACE_DOT_PRODUCT = 6,
    PLACE_GPU_PACKING = 7,
    PLACE_GPU_CLUSTERING = 8,
    PLACE_RANDOM = 9,
};

/* Of each of the five counts in sizes: pods that share a device, have 1, 2 or 3, 4 to 7, and 8 devices or more. */
enum { PLACE_SIZE_BITS = 12 };

/* What there is and what is used of it. */
struct place_fleet {
    int64_t nodes;
    const int64_t *first, *node_model, *cpu, *host_memory, *max_pods, *compute, *slots;
    const uint8_t *open;
    const int64_t *used_memory, *used_compute, *used_slots, *exclusive, *left;
    const int64_t *node_fill, *used_cpu, *used_host_memory, *pods, *sizes;
};

/* What is expected to come: tables of tessera.policy.outlook. weight is [models][cpus + 1][groups]. */
struct place_outlook {
    int64_t cpus, values, groups, total;
    const int64_t *cpu, *value, *group_value, *group_count, *weight;
    const double *thresholds;  /* 99, milli */
    const int64_t *worth;      /* 1001, by milli left of a device */
    const int64_t *softplus;   /* 2 * reach + 1, by milli from -reach on */
    const int64_t *price;      /* by model */
    const int64_t *kept;       /* by node: its devices' milli where it is to stay idle, else -1 */
    int64_t reach, stranding, cpu_per_device, generation;
    /* The kinds, the most frequent first; group -1 asks for CPU alone; may is [kinds][models]. */
    int64_t kinds, models;
    const int64_t *kind_cpu, *kind_group;
    const uint8_t *kind_may;
    const double *kind_chance;
};

/* One kind of pod, and where its answers go: fits by device, scores by node. Without devices takes is unused. */
struct place_ask {
    int64_t ranking, count, cpu, checked_cpu, host_memory; /* cpu is weighed, checked_cpu has to fit */
    const int64_t *takes, *memory_room, *compute_room;
    const uint8_t *ruled_out, *unknown, *free_riding; /* the last two may be NULL */
    int64_t wants_idle;
    uint8_t *fits;
    int64_t *scores;
};

/* Look at these nodes (NULL: the first count of the fleet). */
PLACE_API void tessera_place_look(const struct place_fleet *fleet, const struct place_outlook *outlook,
                                  const struct place_ask *ask, const int64_t *nodes, int64_t count);

/* The score of choosing each device of a node alone, for those that fit; INT64_MIN for the others. */
PLACE_API void tessera_place_devices(const struct place_fleet *fleet, const struct place_outlook *outlook,
                                     const struct place_ask *ask, int64_t node, int64_t *scores);

#endif
