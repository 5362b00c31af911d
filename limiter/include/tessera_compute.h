/* Compute limits of a running share, from the side of the agent: libtessera_region.so, by ctypes or linked.
 *
 * The agent sets a limit and a mode, and calls tessera_region_tick for every device of every share each 50 to 250 ms
 * with what it measured from outside. Without ticks the limit holds on what the processes measure themselves, which
 * gives a share less than its limit beside busy neighbours, and nothing is lent. Formulas: src/controller.c.
 *
 * Rules of tessera_region_api.h: codes of enum tessera_error, nothing blocks, one writer at a time.
 */
#ifndef TESSERA_COMPUTE_H
#define TESSERA_COMPUTE_H

#include "tessera_region.h"

#ifndef TESSERA_API
#define TESSERA_API __attribute__((visibility("default")))
#endif

#define TESSERA_CALIBRATION_LOOKS 16u

/* What the agent remembers of a device of a share between ticks; all zero to begin with. 312 bytes. */
struct tessera_calibration {
    double charged_ns; /* sums over the recent past */
    double busy_ns;
    double seen_finished_ns; /* up to the last reading */
    double step;             /* time of the last tick, in hundreds of milliseconds */
    uint64_t seen_busy_ns;
    uint64_t seen_at_ns;
    uint64_t at_ns[TESSERA_CALIBRATION_LOOKS]; /* the last ticks */
    uint64_t finished_ns[TESSERA_CALIBRATION_LOOKS];
    uint32_t looks;
    uint32_t reserved;
};

/* What was measured from outside: device time that the processes of the share have had in all until some moment. An
 * unchanged moment means that there is nothing new. */
struct tessera_reading {
    uint64_t busy_ns;
    uint64_t busy_at_ns; /* CLOCK_MONOTONIC */
};

/* A share of a device, for who gets what others leave. 24 bytes. */
struct tessera_borrower {
    uint32_t limit_milli;
    uint32_t mode;      /* enum tessera_mode */
    uint32_t used_milli; /* of the device, over the last half second or so */
    uint32_t weight;     /* 0 counts as 1 */
    uint32_t waits;      /* non-zero: launches of it waited for the limit lately */
    uint32_t reserved;
};

_Static_assert(sizeof(struct tessera_calibration) == 312, "calibration changed size");
_Static_assert(sizeof(struct tessera_reading) == 16, "reading changed size");
_Static_assert(sizeof(struct tessera_borrower) == 24, "borrower changed size");

/* Changes the limit and the mode of a device under running processes; launches that wait see it within 10 ms. 0 or
 * 1000 and more milli mean no limit, as TESSERA_MODE_OFF does. */
TESSERA_API int tessera_region_set_compute(struct tessera_region *region, uint32_t device, uint32_t milli, uint32_t mode);

/* The same with the mode as it is; TESSERA_MODE_OFF becomes TESSERA_MODE_HARD. */
TESSERA_API int tessera_region_set_compute_limit(struct tessera_region *region, uint32_t device, uint32_t milli);

/* Holds every launch of the share until resumed; what is under way goes on. */
TESSERA_API int tessera_region_pause(struct tessera_region *region, uint32_t paused);

/* Takes a reading into the dilation of the device, and puts `granted_milli` (the limit, or more if more is lent) in
 * force from now on. Call at least every 500 ms while anything is lent. */
TESSERA_API int tessera_region_tick(struct tessera_region *region, uint32_t device,
                                    struct tessera_calibration *calibration, const struct tessera_reading *reading,
                                    uint32_t granted_milli, uint64_t now_ns);

/* Milli-devices for each share of one device: its limit, and for those that wait and may borrow a part of what the
 * others leave, by weight. */
TESSERA_API void tessera_compute_lend(const struct tessera_borrower *shares, uint32_t count, uint32_t *granted_milli);

#endif
