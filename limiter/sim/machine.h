/* DESIGN
 *
 * The simulated machine as all its processes share it: one mapped file, `<description>.state`,
 * of fixed size. It knows charges (device bytes and who holds them), owners (process images) and
 * per-device time; what a charge *is* (a pointer, a pool, a VMM handle) is private to the process
 * that holds it.
 *
 * Invariant: device.used, owner.held and group.used are sums over live charges. They are derived: a process
 * that dies inside the lock leaves them to be rebuilt from the charges by the next one
 * (EOWNERDEAD). A charge is live exactly when its kind is not SIM_FREE, and kind is written last
 * when taking and first when giving, so a table cut off at any instruction is a sound table.
 *
 * Owners are (pid, start time, image): a reused pid is someone else, and so is the same pid after
 * exec. Who is gone is found by reading /proc, never on the allocation path unless memory is
 * short. Memory is never refused without looking; cuMemGetInfo alone may tell figures up to
 * SIM_LOOK_EVERY_NS old, as frameworks ask it in loops.
 */
#ifndef TESSERA_SIM_MACHINE_H
#define TESSERA_SIM_MACHINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "description.h"

#define SIM_MAGIC 0x7465737365726131ULL /* "tessera1" */
#define SIM_LAYOUT 3u
#define SIM_MAX_OWNERS 512
#define SIM_MAX_CHARGES (1u << 18)
#define SIM_MAX_GROUPS 1024
#define SIM_BREAKS 128
#define SIM_SAMPLES 32
#define SIM_LOOK_EVERY_NS 2000000ULL

enum sim_kind { SIM_FREE = 0, SIM_CONTEXT, SIM_LINEAR, SIM_MANAGED, SIM_POOL, SIM_VMM, SIM_ARRAY };

struct sim_charge {
    _Atomic uint32_t kind; /* enum sim_kind */
    union {
        uint32_t next;  /* next free one, while free */
        uint32_t group; /* slot + 1 of the cgroup that pays, while live; 0: nobody */
    };
    uint16_t owner;
    uint16_t device;
    uint32_t importer; /* slot + 1 of an owner that has it open too and gets it when its owner dies; 0: nobody */
    uint64_t bytes;
};

/* At time `at`, `done` nanoseconds of work were finished; between two marks done is linear. */
struct sim_mark {
    uint64_t at;
    uint64_t done;
};

struct sim_sample {
    uint64_t at; /* end of the period, monotonic ns */
    uint64_t percent;
};

/* The work one owner has given to one device: executed in the order of submission. */
struct sim_queue {
    uint64_t submitted; /* ns of work ever submitted; a ticket is a value of this */
    uint64_t done;      /* ns of work ever finished */
    uint64_t sampled;   /* done at the last sample */
    uint32_t marks;     /* ever written; the newest is (marks - 1) % SIM_BREAKS */
    uint32_t samples;   /* ever written */
    struct sim_mark mark[SIM_BREAKS];
    struct sim_sample sample[SIM_SAMPLES];
};

struct sim_owner {
    _Atomic uint32_t pid; /* 0: slot is free; written last */
    uint32_t guarded;     /* holds its byte of the guard file for as long as it lives */
    uint64_t start;     /* /proc/PID/stat field 22 */
    uint64_t stack;     /* field 28: differs between images while ASLR is on; 0 unknown */
    uint64_t image;     /* kernel's random bytes for this exec: exact, known to itself only */
    uint64_t namespace; /* inode of the pid namespace: pids of another one mean nothing here: see guarded */
    uint64_t held[SIM_MAX_DEVICES];
    uint32_t contexts[SIM_MAX_DEVICES];
    struct sim_queue queue[SIM_MAX_DEVICES];
};

/* A cgroup, see cgroup.h. `used` is what its own processes took, without those of the groups below it. */
struct sim_group {
    uint64_t id;     /* inode of its directory; 0: free */
    uint32_t parent; /* slot + 1; 0: a root, or not known yet */
    uint32_t unused;
    uint64_t hard[SIM_MAX_DEVICES]; /* ~0: no limit */
    uint64_t soft[SIM_MAX_DEVICES];
    uint64_t used[SIM_MAX_DEVICES];
    char path[512]; /* where who set a limit saw it; empty: nobody did */
};

struct sim_device {
    uint64_t capacity; /* memory - reserved */
    uint64_t used;
    uint64_t clock;     /* monotonic ns up to which the queues are advanced */
    uint64_t sample_at; /* end of the running sample period */
    uint64_t percent;   /* utilisation of the last whole period */
};

struct sim_machine {
    uint64_t magic; /* written last at creation */
    uint32_t layout;
    uint32_t device_count;
    uint64_t size;
    uint64_t hash;
    int64_t wall_offset; /* realtime - monotonic at creation, ns */
    pthread_mutex_t lock;
    uint64_t reaped_at; /* monotonic ns */
    uint32_t owners;    /* slots ever used */
    uint32_t charges;   /* charges ever used; 0 is never handed out */
    uint32_t free_head;
    uint32_t repairs; /* times a lock was found with a dead holder */
    uint32_t groups;  /* slots ever used */
    uint32_t unused;
    struct sim_device device[SIM_MAX_DEVICES];
    struct sim_group group[SIM_MAX_GROUPS];
    struct sim_owner owner[SIM_MAX_OWNERS];
    struct sim_charge charge[SIM_MAX_CHARGES];
};

_Static_assert(sizeof(struct sim_charge) == 24, "a charge is 24 bytes in every build");
_Static_assert(sizeof(struct sim_mark) == 16 && sizeof(struct sim_sample) == 16, "layout");

/* The machine of this process: set by sim_machine_open; only NVML, which owns nothing there, lets go of it. */
extern struct sim_description sim_description;
extern struct sim_machine *sim_machine;
extern uint32_t sim_self; /* own slot in owner[], SIM_MAX_OWNERS before registration */

/* Parses the description and maps the state file (creating it at need). Idempotent. */
bool sim_machine_open(void);

/* Unmaps it and closes every file of it, for a process that never registered: a driver can then be replaced. */
void sim_machine_close(void);

/* Everything below is called with the lock held, except sim_now. */
void sim_lock(void);
void sim_unlock(void);
uint64_t sim_now(void); /* monotonic ns */

/* Takes a slot for this process image and returns what older images of this pid held. */
bool sim_register(void);
/* After fork: the child is nobody until it registers. */
void sim_forget(void);

/* A charge of `bytes` on `device`, or 0 when memory is short even after reaping. */
uint32_t sim_take(int device, uint64_t bytes, enum sim_kind kind);
void sim_give(uint32_t charge);
bool sim_resize(uint32_t charge, uint64_t bytes);

/* Returns everything held by owners that are no longer there. */
void sim_reap(void);
/* The same, unless somebody did within SIM_LOOK_EVERY_NS. */
void sim_reap_sometimes(void);

#endif
