/* The shared region: one memory-mapped file per share, version 1.2.
 *
 * DESIGN
 *
 * The file is what the node agent (or `tessera run`) and the preload library agree on. The agent writes the
 * limits, the processes of the share write what they use, and both map the file MAP_SHARED. This header is the
 * definition; every other reader (the Python codec) is tested against it field by field.
 *
 *   offset  0      struct tessera_header   written once at creation, covered by a CRC-32
 *   offset  4096   struct tessera_control  written by the agent only; a seqlock makes a group of changes atomic
 *   offset  8192   struct tessera_usage    written by processes only; one gauge word per device
 *   offset 16384   struct tessera_slot[1024]  one per process, never moved
 *
 * Agent-owned and process-owned fields never share a page, so that a later version can map the first two pages
 * read-only in the tenant. All integers are little-endian and naturally aligned. The file is sparse: a slot
 * costs disk or memory only once a process used it.
 *
 * Memory is counted in granules of 512 bytes: cuMemAlloc's alignment, and small enough for exact refusals. 33
 * bits of granules are 4 TiB per device. Fields whose unit is not bytes say so in their name.
 *
 * Three packed words carry the accounting; how they are used is explained in src/account.c.
 *
 *   gauge   bits 31..63 used granules | bits 21..30 slot of the last writer | bits 0..20 its operation number
 *   intent  bits 2..63 operation number | bits 0..1 enum tessera_intent
 *   state   bits 52..63 PID namespace tag | 38..51 start time tag | 16..37 PID | 2..15 epoch | 0..1 enum
 *           tessera_phase
 *
 * Spill accounts (since 1.2). What a share has in host memory because the device was full is charged twice: to the
 * device like all it has, and to a spill account, which is the device TESSERA_SPILL_ACCOUNT further on in every table
 * (control: its limit; usage: its gauge; slots: what each process has there). So it survives a kill like any other charge,
 * by the same code. A share of more than TESSERA_SPILL_DEVICES devices has none.
 *
 * Orders (since 1.2). A governor (the agent, or whoever supervises) may freeze a share that does nothing on a device: its
 * next launch has to ask. tessera_device_control.order holds {number, what}, and only the governor writes it;
 * tessera_device_usage.asked holds the highest number that a waiting launch wants ended, and only grows.
 *
 *      governor                                      launch
 *      RUN n     -- nothing launched for a while --> FREEZE n+1
 *      FREEZE n  -- asked >= n --> RUN n+1           FREEZE n: asked = max(asked, n), then wait until
 *                                                      the order is another one (look at that one again), or
 *                                                      the governor has not been heard of for TESSERA_LEASE_NS, or
 *                                                      it has waited TESSERA_THAW_NS in all
 *
 * No request is lost: it names the order that it wants ended, so it stands until that order ends, whoever dies meanwhile,
 * and a late one cannot end a later order. No wait is without end: each of the three is enough, and the last needs nobody.
 * A cap (cap_milli) holds only while the governor is heard of. src/order.h has both sides; test/test_region_order.c
 * walks every interleaving of governor, processes, kills and restarts.
 *
 * Compatibility: a reader refuses another major version; a minor version only gives meaning to reserved bytes. What is new
 * in a minor version is zero in an older region, which means "not there"; the helpers leave regions older than 1.2 alone
 * where a library of their time would not understand (tessera_region_govern, tessera_region_set_spill).
 */
#ifndef TESSERA_REGION_H
#define TESSERA_REGION_H

#include <stddef.h>
#include <stdint.h>

#define TESSERA_REGION_MAGIC "TESSERA" /* eight bytes with the final NUL */
#define TESSERA_REGION_MAJOR 1u
#define TESSERA_REGION_MINOR 2u

#define TESSERA_MAX_DEVICES 16u
#define TESSERA_MAX_SLOTS 1024u
#define TESSERA_GRANULE 512u
#define TESSERA_UUID_SIZE 48u
#define TESSERA_SHARE_ID_SIZE 64u
#define TESSERA_SYMBOL_SIZE 64u
#define TESSERA_BOOKED_NS 65536u       /* unit of tessera_slot.booked */
#define TESSERA_NO_PROGRESS UINT64_MAX /* tessera_slot.progress_ns while nothing is under way */
#define TESSERA_MAX_EXPORTS 128u
#define TESSERA_SPILL_ACCOUNT 8u /* added to the number of a device: its spill account */
#define TESSERA_SPILL_DEVICES 8u /* a share of more devices has no spill accounts */
#define TESSERA_LEASE_NS UINT64_C(500000000) /* silence of a supervisor after which what it lent, capped or froze is not in force */
#define TESSERA_THAW_NS UINT64_C(1000000000) /* what a launch waits at most for orders to end */

/* A limit that no allocation reaches. Zero is a real limit: nothing may be allocated. */
#define TESSERA_UNLIMITED UINT64_MAX

/* Packing of the gauge word. */
#define TESSERA_GAUGE_SEQ_BITS 21u
#define TESSERA_GAUGE_SLOT_BITS 10u
#define TESSERA_GAUGE_USED_BITS 33u
#define TESSERA_MAX_GRANULES ((UINT64_C(1) << TESSERA_GAUGE_USED_BITS) - 1u)

/* Packing of the state word. */
#define TESSERA_STATE_EPOCH_SHIFT 2u
#define TESSERA_STATE_EPOCH_BITS 14u
#define TESSERA_STATE_PID_SHIFT 16u
#define TESSERA_STATE_PID_BITS 22u
#define TESSERA_STATE_START_SHIFT 38u
#define TESSERA_STATE_START_BITS 14u
#define TESSERA_STATE_SPACE_SHIFT 52u
#define TESSERA_STATE_SPACE_BITS 12u

/* Life of a slot. Only LIVE slots hold a process; CLAIMED is the moment before, REAPING the moment after. */
enum tessera_phase { TESSERA_FREE = 0, TESSERA_CLAIMED = 1, TESSERA_LIVE = 2, TESSERA_REAPING = 3 };

/* What the operation number in an intent word is doing. */
enum tessera_intent {
    TESSERA_IDLE = 0,      /* the number is the last completed operation */
    TESSERA_PENDING = 1,   /* begun by the owner; intent_used_granules is the value if it takes effect */
    TESSERA_REAP_USED = 2, /* begun by a reaper: give back used_granules */
    TESSERA_REAP_NEW = 3   /* begun by a reaper: the owner's last operation took effect, give back its value */
};

/* Flags of a device (control page). */
#define TESSERA_DEVICE_ENABLED UINT32_C(1) /* a listed device without this flag is refused like an unlisted one */

/* Policies (control page). */
#define TESSERA_REFUSE_UNKNOWN UINT32_C(1) /* allocating driver functions that the library does not know are not there */
#define TESSERA_CHARGE_IMPORTS UINT32_C(2) /* memory imported from outside the share is charged to who imports it */
#define TESSERA_RECLAIM UINT32_C(4) /* since 1.2: the governor gets memory back for who is within its request and finds none */

/* How a compute limit is meant. OFF: not at all. HARD: never more. BURST: more while others leave their time unused.
 * BEST_EFFORT: what others leave, and the limit as a floor. */
enum tessera_mode {
    TESSERA_MODE_OFF = 0,
    TESSERA_MODE_HARD = 1,
    TESSERA_MODE_BURST = 2,
    TESSERA_MODE_BEST_EFFORT = 3 /* since 1.1 */
};

/* Who goes first on a device, between shares and between the processes of one. DEFAULT counts as MEDIUM. Since 1.2. */
enum tessera_priority {
    TESSERA_PRIORITY_DEFAULT = 0,
    TESSERA_PRIORITY_LOW = 1,
    TESSERA_PRIORITY_MEDIUM = 2,
    TESSERA_PRIORITY_HIGH = 3,
    TESSERA_PRIORITY_CRITICAL = 4
};

/* Bits 0..1 of an order; above them its number. Since 1.2. */
enum tessera_order { TESSERA_ORDER_RUN = 0, TESSERA_ORDER_FREEZE = 1 };

struct tessera_header {
    char magic[8];
    uint32_t major;
    uint32_t minor;
    uint64_t total_size;     /* bytes; the file has exactly this length */
    uint32_t checksum;       /* CRC-32 (zlib's) of this whole struct with the field itself taken as zero */
    uint32_t device_count;   /* 1..16 */
    uint32_t slot_count;
    uint32_t granule;        /* bytes */
    uint64_t control_offset;
    uint64_t usage_offset;
    uint64_t slots_offset;
    uint64_t slot_stride;
    uint64_t created_unix_ns;
    char share_id[TESSERA_SHARE_ID_SIZE];                         /* NUL-terminated */
    char device_uuid[TESSERA_MAX_DEVICES][TESSERA_UUID_SIZE];     /* as NVML writes it: GPU-... or MIG-... */
    uint8_t reserved[3184];
};

struct tessera_device_control {
    uint64_t memory_limit;        /* bytes, enforced; TESSERA_UNLIMITED for none */
    uint64_t memory_request;      /* bytes, charged by the scheduler; shown only */
    uint32_t compute_limit_milli; /* 1000 = the whole device */
    uint32_t compute_request_milli;
    uint32_t flags;               /* TESSERA_DEVICE_* */
    uint32_t mode;                /* enum tessera_mode */
    uint32_t priority;  /* since 1.2: enum tessera_priority */
    uint32_t cap_milli; /* since 1.2: what shares of a higher priority leave of the device now; 0: all of it */
    uint64_t rate_q32;            /* device nanoseconds granted per nanosecond, Q32: the limit, what is lent, dilation */
    uint64_t burst_ns;            /* device time that may be saved up; 0: the default of src/controller.h */
    uint64_t in_flight_limit_ns;  /* device time that a process may have under way; 0: the default */
    uint64_t unseen_bytes; /* since 1.1: what the host measured of the share beyond its gauge; narrows the limit */
    uint64_t unseen_ns;    /* since 1.1: CLOCK_MONOTONIC of that measurement; 0: never */
    uint64_t context_bytes; /* since 1.1: cost of a process's first context where it cannot be measured */
    uint64_t floor_q32;    /* since 1.1: the limit alone, nothing lent or stretched; in force when the agent is silent */
    uint64_t dilation_q32; /* since 1.1: charged time per device time, as measured from outside, Q32; 0: as 1 */
    uint64_t order;          /* since 1.2: number and enum tessera_order; see above */
    uint64_t memory_ceiling; /* since 1.2: bytes of device memory that the share may have now; 0: up to its limit */
    uint8_t reserved[8];
};

struct tessera_control {
    uint64_t generation; /* odd while the agent writes; even and larger after */
    uint32_t pause;      /* non-zero: launches wait */
    uint32_t policy;     /* since 1.1: TESSERA_REFUSE_UNKNOWN, TESSERA_CHARGE_IMPORTS */
    uint64_t agent_heartbeat_ns; /* CLOCK_MONOTONIC of the last tick of the compute controller */
    uint64_t gated;              /* since 1.1: bit n: launches on device n are held to a limit, or pause, or have to ask */
    uint64_t governor_ns;        /* since 1.2: CLOCK_MONOTONIC of the last call of tessera_region_govern */
    uint8_t reserved1[88];
    struct tessera_device_control device[TESSERA_MAX_DEVICES];
    uint8_t reserved2[1920];
};

struct tessera_device_usage {
    uint64_t gauge;         /* changed by compare-and-swap only */
    uint8_t reserved0[56];  /* the gauge has its cache line to itself */
    uint64_t refused_count; /* allocations answered with out of memory */
    uint64_t peak_granules;
    uint64_t full_count;     /* since 1.2: allocations within the limit that found the device full */
    uint64_t short_granules; /* since 1.2: what the last of them lacked that was within the share's request */
    uint64_t short_ns;       /* since 1.2: CLOCK_MONOTONIC of that, renewed while it waits; 0: nobody waits */
    uint64_t spill_count;    /* since 1.2: allocations that went to host memory instead */
    uint8_t reserved1[16];
    int64_t granted_ns; /* device time ever granted; less spent_ns it is what may be launched at once: src/compute.c */
    uint64_t last_ns;   /* CLOCK_MONOTONIC of the last grant; 0: never */
    int64_t spent_ns;   /* device time ever asked for by launches */
    int64_t owed_ns;    /* since 1.1: measured beyond what was charged, taken off later grants by and by */
    uint64_t finished_ns;     /* since 1.1: charged time of work known to be complete */
    uint64_t longest_ns;      /* since 1.1: charge of the longest kernel */
    uint64_t throttled_ns;    /* since 1.1: time that launches waited for the limit */
    uint64_t throttled_count; /* since 1.1: launches that did */
    uint64_t waited_ns;       /* since 1.1: CLOCK_MONOTONIC of the last one */
    uint64_t asked;         /* since 1.2: the highest number of an order that a waiting launch wants ended */
    uint64_t yielded_ns;    /* since 1.2: time that launches waited for orders, and for processes of a higher priority */
    uint64_t yielded_count; /* since 1.2 */
    uint64_t pressed_ns[3]; /* since 1.2: when a process of MEDIUM, HIGH, CRITICAL priority waited for its turn last */
    uint8_t reserved2[8];
};

/* Memory that a process handed out for others to open (cuIpcGetMemHandle). Changed by compare-and-swap only; how it is
 * used is explained in src/exports.c. */
struct tessera_export {
    uint64_t tag;    /* hash of the handle; 0: free */
    uint64_t holder; /* who is charged: bits 31..63 granules | 21..30 slot | 17..20 device | 3..16 epoch of that slot */
};

struct tessera_usage {
    struct tessera_device_usage device[TESSERA_MAX_DEVICES];
    uint64_t slot_high_water; /* no slot with this index or a larger one was ever claimed */
    uint64_t reaped_count;    /* slots given back for dead processes */
    uint64_t full_count;      /* registrations refused because every slot was taken */
    uint64_t unknown_count;   /* since 1.1: allocating functions of a driver that the library does not know */
    char unknown_symbol[TESSERA_SYMBOL_SIZE];           /* since 1.1: the first of them, NUL-terminated */
    struct tessera_export export[TESSERA_MAX_EXPORTS];  /* since 1.1 */
    uint8_t reserved[1952];
};

struct tessera_slot_device {
    uint64_t used_granules;
    uint64_t intent;
    uint64_t intent_used_granules;
    uint64_t acked; /* the largest operation number that others saw take effect */
    uint64_t host_pinned_bytes;
    uint64_t pool_granules; /* the part of used_granules that backs memory pools */
    uint64_t vmm_granules;  /* the part that cuMemCreate took */
    uint64_t hidden_granules; /* since 1.1: the part that no call shows (contexts, code, heaps), as measured */
};

struct tessera_slot {
    uint64_t state;
    uint32_t pid; /* in the PID namespace below */
    uint32_t priority;      /* since 1.2: the process's own, within the share */
    uint64_t start_ticks;   /* field 22 of /proc/PID/stat */
    uint64_t image_stack;   /* field 28: changes with exec, readable by others; 0 when unknown */
    uint64_t image_random;  /* from AT_RANDOM: changes with exec, known to the process alone */
    uint64_t pid_namespace; /* inode of /proc/PID/ns/pid; 0 when unknown */
    uint64_t heartbeat_ns;  /* CLOCK_MONOTONIC of the last registration, query or refusal */
    uint64_t registered_ns; /* CLOCK_MONOTONIC */
    char command[16];       /* as in /proc/PID/comm, NUL-terminated */
    uint16_t booked[TESSERA_MAX_DEVICES]; /* since 1.1: charged for work not known to be complete, TESSERA_BOOKED_NS */
    uint64_t progress_ns; /* since 1.1: CLOCK_MONOTONIC when work was last begun from none or seen to complete */
    uint64_t launches;    /* since 1.1: changes whenever the process launches work; not an exact count */
    struct tessera_slot_device device[TESSERA_MAX_DEVICES];
};

struct tessera_region {
    struct tessera_header header;
    struct tessera_control control;
    struct tessera_usage usage;
    struct tessera_slot slot[TESSERA_MAX_SLOTS];
};

/* Every field once, for the assertions below and for the text that the Python codec is tested against.
 * TESSERA_FIELD(struct, field, offset, size). */
#define TESSERA_LAYOUT(FIELD)                                                                                    \
    FIELD(header, magic, 0, 8)                                                                                   \
    FIELD(header, major, 8, 4)                                                                                   \
    FIELD(header, minor, 12, 4)                                                                                  \
    FIELD(header, total_size, 16, 8)                                                                             \
    FIELD(header, checksum, 24, 4)                                                                               \
    FIELD(header, device_count, 28, 4)                                                                           \
    FIELD(header, slot_count, 32, 4)                                                                             \
    FIELD(header, granule, 36, 4)                                                                                \
    FIELD(header, control_offset, 40, 8)                                                                         \
    FIELD(header, usage_offset, 48, 8)                                                                           \
    FIELD(header, slots_offset, 56, 8)                                                                           \
    FIELD(header, slot_stride, 64, 8)                                                                            \
    FIELD(header, created_unix_ns, 72, 8)                                                                        \
    FIELD(header, share_id, 80, 64)                                                                              \
    FIELD(header, device_uuid, 144, 768)                                                                         \
    FIELD(header, reserved, 912, 3184)                                                                           \
    FIELD(device_control, memory_limit, 0, 8)                                                                    \
    FIELD(device_control, memory_request, 8, 8)                                                                  \
    FIELD(device_control, compute_limit_milli, 16, 4)                                                            \
    FIELD(device_control, compute_request_milli, 20, 4)                                                          \
    FIELD(device_control, flags, 24, 4)                                                                          \
    FIELD(device_control, mode, 28, 4)                                                                           \
    FIELD(device_control, priority, 32, 4)                                                                       \
    FIELD(device_control, cap_milli, 36, 4)                                                                      \
    FIELD(device_control, rate_q32, 40, 8)                                                                       \
    FIELD(device_control, burst_ns, 48, 8)                                                                       \
    FIELD(device_control, in_flight_limit_ns, 56, 8)                                                             \
    FIELD(device_control, unseen_bytes, 64, 8)                                                                   \
    FIELD(device_control, unseen_ns, 72, 8)                                                                      \
    FIELD(device_control, context_bytes, 80, 8)                                                                  \
    FIELD(device_control, floor_q32, 88, 8)                                                                      \
    FIELD(device_control, dilation_q32, 96, 8)                                                                   \
    FIELD(device_control, order, 104, 8)                                                                         \
    FIELD(device_control, memory_ceiling, 112, 8)                                                                \
    FIELD(device_control, reserved, 120, 8)                                                                      \
    FIELD(control, generation, 0, 8)                                                                             \
    FIELD(control, pause, 8, 4)                                                                                  \
    FIELD(control, policy, 12, 4)                                                                                \
    FIELD(control, agent_heartbeat_ns, 16, 8)                                                                    \
    FIELD(control, gated, 24, 8)                                                                                 \
    FIELD(control, governor_ns, 32, 8)                                                                           \
    FIELD(control, reserved1, 40, 88)                                                                            \
    FIELD(control, device, 128, 2048)                                                                            \
    FIELD(control, reserved2, 2176, 1920)                                                                        \
    FIELD(device_usage, gauge, 0, 8)                                                                             \
    FIELD(device_usage, reserved0, 8, 56)                                                                        \
    FIELD(device_usage, refused_count, 64, 8)                                                                    \
    FIELD(device_usage, peak_granules, 72, 8)                                                                    \
    FIELD(device_usage, full_count, 80, 8)                                                                       \
    FIELD(device_usage, short_granules, 88, 8)                                                                   \
    FIELD(device_usage, short_ns, 96, 8)                                                                         \
    FIELD(device_usage, spill_count, 104, 8)                                                                     \
    FIELD(device_usage, reserved1, 112, 16)                                                                      \
    FIELD(device_usage, granted_ns, 128, 8)                                                                      \
    FIELD(device_usage, last_ns, 136, 8)                                                                         \
    FIELD(device_usage, spent_ns, 144, 8)                                                                        \
    FIELD(device_usage, owed_ns, 152, 8)                                                                         \
    FIELD(device_usage, finished_ns, 160, 8)                                                                     \
    FIELD(device_usage, longest_ns, 168, 8)                                                                      \
    FIELD(device_usage, throttled_ns, 176, 8)                                                                    \
    FIELD(device_usage, throttled_count, 184, 8)                                                                 \
    FIELD(device_usage, waited_ns, 192, 8)                                                                       \
    FIELD(device_usage, asked, 200, 8)                                                                           \
    FIELD(device_usage, yielded_ns, 208, 8)                                                                      \
    FIELD(device_usage, yielded_count, 216, 8)                                                                   \
    FIELD(device_usage, pressed_ns, 224, 24)                                                                     \
    FIELD(device_usage, reserved2, 248, 8)                                                                       \
    FIELD(export, tag, 0, 8)                                                                                     \
    FIELD(export, holder, 8, 8)                                                                                  \
    FIELD(usage, device, 0, 4096)                                                                                \
    FIELD(usage, slot_high_water, 4096, 8)                                                                       \
    FIELD(usage, reaped_count, 4104, 8)                                                                          \
    FIELD(usage, full_count, 4112, 8)                                                                            \
    FIELD(usage, unknown_count, 4120, 8)                                                                         \
    FIELD(usage, unknown_symbol, 4128, 64)                                                                       \
    FIELD(usage, export, 4192, 2048)                                                                             \
    FIELD(usage, reserved, 6240, 1952)                                                                           \
    FIELD(slot_device, used_granules, 0, 8)                                                                      \
    FIELD(slot_device, intent, 8, 8)                                                                             \
    FIELD(slot_device, intent_used_granules, 16, 8)                                                              \
    FIELD(slot_device, acked, 24, 8)                                                                             \
    FIELD(slot_device, host_pinned_bytes, 32, 8)                                                                 \
    FIELD(slot_device, pool_granules, 40, 8)                                                                     \
    FIELD(slot_device, vmm_granules, 48, 8)                                                                      \
    FIELD(slot_device, hidden_granules, 56, 8)                                                                   \
    FIELD(slot, state, 0, 8)                                                                                     \
    FIELD(slot, pid, 8, 4)                                                                                       \
    FIELD(slot, priority, 12, 4)                                                                                 \
    FIELD(slot, start_ticks, 16, 8)                                                                              \
    FIELD(slot, image_stack, 24, 8)                                                                              \
    FIELD(slot, image_random, 32, 8)                                                                             \
    FIELD(slot, pid_namespace, 40, 8)                                                                            \
    FIELD(slot, heartbeat_ns, 48, 8)                                                                             \
    FIELD(slot, registered_ns, 56, 8)                                                                            \
    FIELD(slot, command, 64, 16)                                                                                 \
    FIELD(slot, booked, 80, 32)                                                                                  \
    FIELD(slot, progress_ns, 112, 8)                                                                             \
    FIELD(slot, launches, 120, 8)                                                                                \
    FIELD(slot, device, 128, 1024)                                                                               \
    FIELD(region, header, 0, 4096)                                                                               \
    FIELD(region, control, 4096, 4096)                                                                           \
    FIELD(region, usage, 8192, 8192)                                                                             \
    FIELD(region, slot, 16384, 1179648)

/* TESSERA_STRUCT(struct, size). */
#define TESSERA_LAYOUT_SIZES(STRUCT)                                                                             \
    STRUCT(header, 4096)                                                                                         \
    STRUCT(device_control, 128)                                                                                  \
    STRUCT(control, 4096)                                                                                        \
    STRUCT(device_usage, 256)                                                                                    \
    STRUCT(export, 16)                                                                                           \
    STRUCT(usage, 8192)                                                                                          \
    STRUCT(slot_device, 64)                                                                                      \
    STRUCT(slot, 1152)                                                                                           \
    STRUCT(region, 1196032)

#define TESSERA_ASSERT_FIELD(type, field, offset, size)                                                          \
    _Static_assert(offsetof(struct tessera_##type, field) == (offset), #type "." #field " moved");               \
    _Static_assert(sizeof(((struct tessera_##type *)0)->field) == (size), #type "." #field " changed size");
#define TESSERA_ASSERT_SIZE(type, size) _Static_assert(sizeof(struct tessera_##type) == (size), #type " changed size");

TESSERA_LAYOUT(TESSERA_ASSERT_FIELD)
TESSERA_LAYOUT_SIZES(TESSERA_ASSERT_SIZE)

_Static_assert(TESSERA_SPILL_ACCOUNT + TESSERA_SPILL_DEVICES <= TESSERA_MAX_DEVICES, "a spill account has its own row");
_Static_assert(sizeof(struct tessera_region) <= (size_t)4 << 20, "the region outgrew 4 MiB");
_Static_assert(TESSERA_GAUGE_SEQ_BITS + TESSERA_GAUGE_SLOT_BITS + TESSERA_GAUGE_USED_BITS == 64u, "gauge packing");
_Static_assert(TESSERA_MAX_SLOTS == 1u << TESSERA_GAUGE_SLOT_BITS, "a slot number must fit the gauge word");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the layout is little-endian");

#endif
