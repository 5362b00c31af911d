/* Who goes first on a device, and how much of its memory beyond its request a share may have: libtessera_region.so, by
 * ctypes or linked.
 *
 * A governor is one supervisor per device: the node's agent. It looks at all shares of the device a few times a second,
 * works out what each may have (the two pure functions below; formulas in src/governor.c) and tells their regions.
 *
 * Rules of tessera_region_api.h: codes of enum tessera_error, nothing blocks, one writer at a time.
 */
#ifndef TESSERA_GOVERN_H
#define TESSERA_GOVERN_H

#include "tessera_region.h"

#ifndef TESSERA_API
#define TESSERA_API __attribute__((visibility("default")))
#endif

/* The least part of a device that whoever yields still has, unless its limit is less. */
#define TESSERA_FLOOR_MILLI 50u

/* A share of a device, for who runs and who yields. */
struct tessera_contender {
    uint32_t limit_milli;   /* 1000 without a limit */
    uint32_t request_milli; /* what it has in any case, and its weight where idle time is divided */
    uint32_t mode;          /* enum tessera_mode */
    uint32_t used_milli;    /* of the device, over the last half second or so */
    uint32_t priority;      /* enum tessera_priority */
    uint32_t waits;         /* non-zero: launches of it waited for their turn lately */
    uint32_t is_active;     /* non-zero: it launched something lately */
    uint32_t reserved;
};

/* What one may have: `granted_milli` for tessera_region_tick, `cap_milli` for tessera_region_govern (0: no cap). */
struct tessera_grant {
    uint32_t granted_milli;
    uint32_t cap_milli;
};

/* A share's memory on a device, in bytes. `used` is what it has on the device itself, without what it spilled. */
struct tessera_holding {
    uint64_t request;
    uint64_t limit;
    uint64_t used;
    uint32_t priority; /* enum tessera_priority */
    uint32_t reserved;
};

/* What a share is told on one device. */
struct tessera_rule {
    uint32_t cap_milli;      /* 0: all of the device */
    uint32_t is_idle; /* non-zero: tessera_region_launches has not changed for so long, half a second at least, that it may be frozen */
    uint64_t memory_ceiling; /* bytes; 0: up to the limit */
};

_Static_assert(sizeof(struct tessera_contender) == 32, "contender changed size");
_Static_assert(sizeof(struct tessera_grant) == 8, "grant changed size");
_Static_assert(sizeof(struct tessera_holding) == 32, "holding changed size");
_Static_assert(sizeof(struct tessera_rule) == 16, "rule changed size");

/* Device time of each share of one device. */
TESSERA_API void tessera_govern_compute(const struct tessera_contender *shares, uint32_t count,
                                        struct tessera_grant *grants);

/* Ceilings in bytes for each share of one device that has `physical` bytes for all of them. */
TESSERA_API void tessera_govern_memory(const struct tessera_holding *shares, uint32_t count, uint64_t physical,
                                       uint64_t *ceilings);

/* Which share is to give back memory, so that one within its request can have it: the lowest priority first, then the
 * most beyond its request. `count` if none has anything beyond. */
TESSERA_API uint32_t tessera_govern_victim(const struct tessera_holding *shares, uint32_t count);

/* Tells a share what holds for it on a device from now on. Call it at least every TESSERA_LEASE_NS while there is a cap or
 * anything may be frozen. A region older than 1.2 is left as it is. */
TESSERA_API int tessera_region_govern(struct tessera_region *region, uint32_t device, const struct tessera_rule *rule,
                                      uint64_t now_ns);

/* A number that changes when any process of the share launches work, or asks for an order to end; not a count. */
TESSERA_API int tessera_region_launches(const struct tessera_region *region, uint64_t *launches);

/* The share's priority on a device, enum tessera_priority: shown, and read back by governors. */
TESSERA_API int tessera_region_set_priority(struct tessera_region *region, uint32_t device, uint32_t priority);

/* How much of what the share may have of a device may lie in host memory instead when the device is full; 0: nothing.
 * Takes effect at the next allocation, and takes nothing back. */
TESSERA_API int tessera_region_set_spill(struct tessera_region *region, uint32_t device, uint64_t bytes);

/* What of its memory lies in host memory now. Part of what tessera_region_used says. */
TESSERA_API int tessera_region_spilled(const struct tessera_region *region, uint32_t device, uint64_t *bytes);

#endif
