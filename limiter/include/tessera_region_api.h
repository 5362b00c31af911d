/* What the agent and `tessera run` call on a shared region: libtessera_region.so, by ctypes or linked.
 *
 * Every function that can fail returns one of enum tessera_error; counts are returned as values >= 0 in the same
 * int. No function blocks, prints, allocates from the heap or changes errno's meaning for the caller. A region
 * pointer may be used by several threads; calls that write controls (set_*) belong to one thread at a time. The one
 * exception: tessera_region_tick may come from another process than the rest, and takes up what that one changes.
 */
#ifndef TESSERA_REGION_API_H
#define TESSERA_REGION_API_H

#include "tessera_compute.h"
#include "tessera_govern.h"
#include "tessera_region.h"

#ifndef TESSERA_API
#define TESSERA_API __attribute__((visibility("default")))
#endif

/* Codes are stable: TESSERA_ERROR(name, value, text). */
#define TESSERA_ERRORS(ERROR)                                                                                   \
    ERROR(OK, 0, "no error")                                                                                    \
    ERROR(IO, -1, "the region file cannot be opened, read or written; check that the path exists and its mode") \
    ERROR(TRUNCATED, -2, "the region file is not as long as its layout says; create it again")                  \
    ERROR(MAGIC, -3, "the file is not a Tessera region; check the path")                                        \
    ERROR(VERSION, -4, "the region has another major version; use the library of the agent that wrote it")      \
    ERROR(CHECKSUM, -5, "the region's header is damaged; create it again")                                      \
    ERROR(LAYOUT, -6, "the region's header contradicts its version; create it again")                           \
    ERROR(ARGUMENT, -7, "an argument is out of range: 1..16 devices, distinct UUIDs shorter than 48 bytes")     \
    ERROR(FULL, -8, "all 1024 process slots are taken by living processes; end some or split the share")        \
    ERROR(DENIED, -9, "this process has no valid region; set TESSERA_REGION or mount /run/tessera/region")       \
    ERROR(MANY, -10, "this process has 4096 regions open already; close some")

#define TESSERA_ERROR_MEMBER(name, value, text) TESSERA_ERROR_##name = (value),
enum tessera_error { TESSERA_ERRORS(TESSERA_ERROR_MEMBER) };

/* What a region is created from. Sizes in bytes; TESSERA_UNLIMITED for no limit. 72 + 16 x 72 bytes. */
struct tessera_device_spec {
    char uuid[TESSERA_UUID_SIZE];
    uint64_t memory_limit;
    uint64_t memory_request;
    uint32_t compute_limit_milli;
    uint32_t compute_request_milli;
};

struct tessera_share_spec {
    char share_id[TESSERA_SHARE_ID_SIZE];
    uint32_t device_count;
    uint32_t reserved; /* zero */
    struct tessera_device_spec device[TESSERA_MAX_DEVICES];
};

/* A living process of the share. */
struct tessera_process {
    uint32_t pid;
    uint32_t slot;
    uint64_t start_ticks;
    uint64_t pid_namespace;
    char command[16];
    uint64_t used_bytes[TESSERA_MAX_DEVICES];
};

_Static_assert(sizeof(struct tessera_device_spec) == 72, "device_spec changed size");
_Static_assert(sizeof(struct tessera_share_spec) == 72 + 16 * 72, "share_spec changed size");
_Static_assert(sizeof(struct tessera_process) == 40 + 16 * 8, "process changed size");

/* Writes a region for `spec` at `path`, replacing what is there in one step (temporary file and rename): a reader
 * sees the old file or the whole new one. Processes that mapped the old one keep it. Mode 0666 less the umask. */
TESSERA_API int tessera_region_create(const char *path, const struct tessera_share_spec *spec);

/* Maps `path` read-write and checks it; *region is untouched unless TESSERA_ERROR_OK is returned. Where somebody cuts
 * the file off later, its pages read as zeros and what is written to them is lost: compare its length now and then.
 * The first call takes over SIGBUS, and passes on what is not about a region. */
TESSERA_API int tessera_region_open(const char *path, struct tessera_region **region);

/* Unmaps a region that tessera_region_open gave. */
TESSERA_API void tessera_region_close(struct tessera_region *region);

/* The text of a code: what is wrong and what to do. Never NULL. */
TESSERA_API const char *tessera_region_strerror(int code);

/* Gives back what dead processes held; returns how many there were. Judges only processes of the caller's own PID
 * namespace: from outside, every process of another namespace counts as living. */
TESSERA_API int tessera_region_reap(struct tessera_region *region);

/* Bytes in use on a device by the whole share (a multiple of 512), dead processes included until reaped. */
TESSERA_API int tessera_region_used(const struct tessera_region *region, uint32_t device, uint64_t *bytes);

/* Fills `list` with the first `capacity` living processes; returns how many there are in all. */
TESSERA_API int tessera_region_processes(const struct tessera_region *region, struct tessera_process *list,
                                         size_t capacity);

/* Changes a limit under running processes; the next allocation sees it. A limit below what is in use refuses all
 * growth and takes nothing back. */
TESSERA_API int tessera_region_set_memory_limit(struct tessera_region *region, uint32_t device, uint64_t bytes);

/* Changes what is charged for the share on a device, which is shown and enforces nothing by itself. */
TESSERA_API int tessera_region_set_requests(struct tessera_region *region, uint32_t device, uint64_t bytes,
                                            uint32_t milli);

/* What the host measured of the whole share on a device beyond its gauge, 0 for nothing: it leaves that much less to
 * allocate, and is shown as used. */
TESSERA_API int tessera_region_set_unseen(struct tessera_region *region, uint32_t device, uint64_t bytes);

/* What the first context of a process on a device is charged where the process cannot measure it. */
TESSERA_API int tessera_region_set_context_bytes(struct tessera_region *region, uint32_t device, uint64_t bytes);

/* TESSERA_REFUSE_UNKNOWN, TESSERA_CHARGE_IMPORTS and TESSERA_RECLAIM in any combination; 0 for none. */
TESSERA_API int tessera_region_set_policy(struct tessera_region *region, uint32_t policy);

/* The layout as text, a line per field and struct: "struct.field offset size" and "struct size". Returns the length
 * that the whole text has without its NUL; writes at most `size` bytes, always NUL-terminated when size > 0. */
TESSERA_API size_t tessera_region_layout(char *text, size_t size);

#endif
