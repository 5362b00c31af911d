/* What a process knows of its own launches: charges of kernels, streams, measurements under way. Private to the process;
 * all zero is the state of one that never launched anything. */
#ifndef LIM_COMPUTE_STATE_H
#define LIM_COMPUTE_STATE_H

#include <stdint.h>

#include "tessera_region.h"

#define LIM_COSTS 1024u
#define LIM_COST_WAYS 4u
#define LIM_LANES 64u
#define LIM_SAMPLES 128u

/* The charge of one kind of launch. */
struct lim_cost {
    uint64_t key;     /* of function, size and device; 0: free */
    uint64_t cost_ns; /* 0: not measured yet */
    uint32_t trials;  /* launches under way that will be its first measurement */
    uint32_t spare;
};

/* The work of one stream, in order. Positions are sums of charges. */
struct lim_lane {
    uint64_t key; /* of context and stream; 0: free */
    uint64_t context;
    int64_t submitted_ns;
    int64_t completed_ns; /* up to here work is known to be complete */
    int64_t fenced_ns;    /* up to here a measurement will tell */
    uint32_t launches;    /* since that measurement */
    uint32_t device;
};

enum lim_sample_state { LIM_SAMPLE_FREE = 0, LIM_SAMPLE_TAKEN, LIM_SAMPLE_PENDING };

/* A measurement: two events around one launch. Events are kept for the next one in the same context. */
struct lim_sample {
    void *context;
    void *start; /* CUevent */
    void *end;
    uint64_t cost_key;
    int64_t charge_ns;
    int64_t position_ns;
    uint64_t number; /* order of submission */
    uint16_t lane;
    uint8_t device;
    uint8_t state; /* enum lim_sample_state */
    uint16_t is_trial;  /* the first measurement of its kernel */
    uint16_t was_guess; /* its charge was one */
};

struct lim_device_work {
    int64_t booked_ns; /* charged for launches that wait or are under way */
    int64_t out_ns;    /* the part that is under way */
    uint32_t pending;  /* measurements under way */
    uint32_t spare;
};

struct lim_compute {
    uint32_t lock;       /* guards everything here; held for a few instructions */
    uint32_t collecting; /* held while measurements are read from the driver, or forgotten */
    uint32_t pending;    /* measurements under way, all devices */
    uint32_t spare;
    uint64_t sample_number;
    struct lim_device_work work[TESSERA_MAX_DEVICES];
    struct lim_lane lanes[LIM_LANES];
    struct lim_sample samples[LIM_SAMPLES];
    struct lim_cost costs[LIM_COSTS];
};

#endif
