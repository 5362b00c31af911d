/* DESIGN
 *
 * Attaching is lazy: the library is preloaded into every process of a container, shells too, and most never touch a
 * GPU. There is no constructor. The first query maps the region, the first allocation or cuInit takes a slot.
 *
 * Fork. The child of a GPU process must not account as its parent. Private state lives in an anonymous mapping with
 * MADV_WIPEONFORK: a child finds zeroes, which read as "not attached", however it was created (raw clone included)
 * and without a getpid() on the hot path. Kernels before 4.14 lack it; there pthread_atfork does the same for fork().
 * The region's mapping is shared and stays valid. A vfork child runs in its parent's memory and counts as it.
 *
 * Which region. In a container the runtime mounts the file at MOUNTED_REGION, and that one wins: the environment is
 * the tenant's own. Anything there decides, also what cannot be opened, searched or read, for a tenant may arrange
 * that. Only where nothing is there does TESSERA_REGION count (`tessera run` on a bare machine), and never in a program
 * that runs with more rights than its caller.
 *
 * Locks. One word per process, itself in the wiped pages: a lock that another thread held at fork is free in the
 * child. Between processes there is no lock (account.c).
 *
 * Failure. No region, a region that is not ours, or no free slot: lim_process() is NULL and every hook refuses. That is
 * decided anew at every call, so a region that appears later is found.
 */
#include "process.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "account.h"
#include "atomics.h"
#include "hook_ipc.h"
#include "region.h"
#include "slots.h"

#define MOUNTED_REGION "/run/tessera/region"
#define SCAN_PERIOD_NS UINT64_C(100000000)
#define LOCK_SPINS 64u
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

static struct lim_process *process_pages;
static struct tessera_region *mapped_region;

#define LOAD(pointer) __atomic_load_n(&(pointer), __ATOMIC_ACQUIRE)

static bool publish(void *slot, void *value)
{
    void *expected = NULL;
    return __atomic_compare_exchange_n((void **)slot, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

void lim_wait_lock(uint32_t *lock)
{
    const struct timespec a_moment = {.tv_nsec = 50000};
    int saved = errno;
    for (unsigned spins = 1; !lim_try_lock(lock); spins++) {
        if (spins % LOCK_SPINS == 0) {
            syscall(SYS_futex, lock, FUTEX_WAIT_PRIVATE, 1u, &a_moment, NULL, 0);
        }
    }
    errno = saved;
}

static const char *region_path(void)
{
    int saved = errno;
    bool absent = access(MOUNTED_REGION, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR);
    errno = saved;
    const char *named = absent ? secure_getenv("TESSERA_REGION") : NULL;
    return named != NULL ? named : MOUNTED_REGION;
}

struct tessera_region *lim_region(void)
{
    struct tessera_region *region = LOAD(mapped_region);
    if (region != NULL) {
        return region;
    }
    if (lim_region_open(region_path(), &region) != TESSERA_ERROR_OK) {
        return NULL;
    }
    if (!publish(&mapped_region, region)) {
        munmap(region, sizeof *region); /* another thread was first */
    }
    return LOAD(mapped_region);
}

static void forget_in_child(void)
{
    memset(process_pages, 0, sizeof *process_pages);
}

static struct lim_process *pages(void)
{
    struct lim_process *process = LOAD(process_pages);
    if (process != NULL) {
        return process;
    }
    void *map = mmap(NULL, sizeof *process, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        return NULL;
    }
    int saved = errno;
    madvise(map, sizeof *process, MADV_WIPEONFORK);
    errno = saved;
    if (!publish(&process_pages, map)) {
        munmap(map, sizeof *process);
    } else {
        pthread_atfork(NULL, NULL, forget_in_child);
    }
    return LOAD(process_pages);
}

/* The word of TESSERA_PRIORITY. HAMi's CUDA_TASK_PRIORITY counts the other way round: 0 goes before 1, its default.
 * Source: HAMi 2.10, docs/config.md. */
static uint32_t own_priority(void)
{
    static const char *const words[] = {"low", "medium", "high", "critical"};
    const char *word = getenv("TESSERA_PRIORITY");
    for (uint32_t i = 0; word != NULL && i < sizeof words / sizeof *words; i++) {
        if (strcmp(word, words[i]) == 0) {
            return TESSERA_PRIORITY_LOW + i;
        }
    }
    word = getenv("CUDA_TASK_PRIORITY");
    if (word == NULL || *word < '0' || *word > '9' || strcmp(word, "1") == 0) {
        return TESSERA_PRIORITY_MEDIUM;
    }
    return strcmp(word, "0") == 0 ? TESSERA_PRIORITY_HIGH : TESSERA_PRIORITY_LOW;
}

/* Fills the wiped state; the lock keeps sibling threads from registering twice. */
static void attach(struct lim_process *process, struct tessera_region *region)
{
    lim_lock(process);
    if (process->attached == 0) {
        process->identity = lim_identity();
        int slot = lim_register(region, &process->identity);
        if (slot >= 0) {
            process->slot = (uint32_t)slot;
            process->region = region;
            process->scanned_ns = lim_coarse_ns(); /* registering has looked */
            process->priority = own_priority();
            region->slot[slot].priority = process->priority;
            process->contexts = lim_now_ns() << LIM_ENDINGS_BITS; /* a forked child never begins where its parent was */
            __atomic_store_n(&process->attached, 1u, __ATOMIC_RELEASE);
        }
    }
    lim_unlock(process);
}

struct lim_process *lim_attached(void)
{
    struct lim_process *process = LOAD(process_pages);
    return process != NULL && LOAD(process->attached) != 0 ? process : NULL;
}

/* First use, or the first one after a fork. */
LIM_COLD static struct lim_process *join(void)
{
    struct tessera_region *region = lim_region();
    struct lim_process *process = region == NULL ? NULL : pages();
    if (process == NULL) {
        return NULL;
    }
    attach(process, region);
    return lim_attached();
}

struct lim_process *lim_process(void)
{
    struct lim_process *process = lim_attached();
    return LIM_USUAL(process != NULL) ? process : join();
}

uint64_t lim_limit(const struct tessera_region *region, uint32_t device)
{
    const struct tessera_device_control *control = &region->control.device[device];
    uint32_t flags = __atomic_load_n(&control->flags, __ATOMIC_RELAXED);
    return (flags & TESSERA_DEVICE_ENABLED) != 0 ? word_load(&control->memory_limit) : 0;
}

static uint64_t unseen(const struct tessera_region *region, uint32_t device)
{
    return word_load(&region->control.device[device].unseen_bytes);
}

/* The limit in granules of the gauge. What is used without a record of ours leaves less for it. */
static uint64_t limit_granules(const struct tessera_region *region, uint32_t device)
{
    uint64_t limit = lim_limit(region, device);
    uint64_t taken = unseen(region, device);
    return limit > taken ? (limit - taken) / TESSERA_GRANULE : 0;
}

uint64_t lim_ceiling_granules(const struct tessera_region *region, uint32_t device)
{
    uint64_t ceiling = word_load(&region->control.device[device].memory_ceiling);
    uint64_t taken = unseen(region, device);
    if (LIM_USUAL(ceiling == 0)) {
        return UINT64_MAX;
    }
    return (ceiling > taken ? (ceiling - taken) / TESSERA_GRANULE : 0) + lim_spilled_granules(region, device);
}

bool lim_take_locked(struct lim_process *process, uint32_t device, uint64_t granules)
{
    uint64_t limit = limit_granules(process->region, device);
    uint64_t ceiling = lim_ceiling_granules(process->region, device);
    return granules == 0 ||
           lim_charge(process->region, process->slot, device, granules, ceiling < limit ? ceiling : limit);
}

/* True if the limit admits so much more: what refused it is the ceiling. */
static bool is_ceiling(const struct tessera_region *region, uint32_t device, uint64_t granules)
{
    uint64_t used = lim_gauge_used(word_load(&region->usage.device[device].gauge));
    uint64_t limit = limit_granules(region, device);
    return granules <= limit && used <= limit - granules && lim_ceiling_granules(region, device) < limit;
}

static bool charge_spill(struct lim_process *process, uint32_t device, uint64_t granules)
{
    uint32_t account = device + TESSERA_SPILL_ACCOUNT;
    uint64_t limit = word_load(&process->region->control.device[account].memory_limit) / TESSERA_GRANULE;
    return lim_charge(process->region, process->slot, account, granules, limit);
}

void lim_unspill_locked(struct lim_process *process, uint32_t device, uint64_t granules)
{
    lim_discharge(process->region, process->slot, device + TESSERA_SPILL_ACCOUNT, granules);
}

bool lim_note_spilled(struct lim_process *process, uint32_t device, uint64_t granules)
{
    lim_lock(process);
    bool charged = lim_has_spill(process->region) && charge_spill(process, device, granules);
    lim_unlock(process);
    return charged;
}

bool lim_take_spilled(struct lim_process *process, uint32_t device, uint64_t granules, size_t records)
{
    bool taken = false;
    lim_lock(process);
    if (lim_has_spill(process->region) && lim_ledger_reserve(&process->ledger, records)) {
        bool spilled = charge_spill(process, device, granules);
        taken = spilled && lim_charge(process->region, process->slot, device, granules,
                                      limit_granules(process->region, device));
        if (!taken) {
            lim_ledger_unreserve(&process->ledger, records);
        }
        if (spilled && !taken) {
            lim_unspill_locked(process, device, granules);
        }
    }
    lim_unlock(process);
    return taken;
}

bool lim_take(struct lim_process *process, uint32_t device, uint64_t granules, size_t records)
{
    bool taken = false;
    lim_lock(process);
    if (lim_ledger_reserve(&process->ledger, records)) {
        taken = lim_take_locked(process, device, granules);
        if (!taken) {
            lim_ledger_unreserve(&process->ledger, records);
        }
    }
    lim_unlock(process);
    return taken;
}

bool lim_reap_now(struct lim_process *process)
{
    uint64_t now = lim_coarse_ns();
    word_store(&process->region->slot[process->slot].heartbeat_ns, now);
    __atomic_store_n(&process->scanned_ns, now, __ATOMIC_RELAXED);
    bool reaped = lim_reap_dead(process->region, &process->identity, process->slot) > 0;
    lim_adopt_orphans(process); /* what the dead left open with us */
    return reaped;
}

void lim_note_refusal(struct lim_process *process, uint32_t device, uint64_t granules)
{
    struct tessera_device_usage *usage = &process->region->usage.device[device];
    word_add(is_ceiling(process->region, device, granules) ? &usage->full_count : &usage->refused_count, 1);
}

bool lim_take_or_refuse(struct lim_process *process, uint32_t device, uint64_t granules, size_t records)
{
    if (lim_take(process, device, granules, records)) {
        return true;
    }
    bool reaped;
    do { /* at least once more: somebody else may have reaped while we looked */
        reaped = lim_reap_now(process);
        if (lim_take(process, device, granules, records)) {
            return true;
        }
    } while (reaped);
    lim_note_refusal(process, device, granules);
    return false;
}

void lim_force_locked(struct lim_process *process, uint32_t device, uint64_t granules)
{
    if (granules > 0) {
        lim_charge(process->region, process->slot, device, granules, TESSERA_MAX_GRANULES);
    }
}

void lim_give_locked(struct lim_process *process, uint32_t device, uint64_t granules)
{
    if (granules > 0) {
        lim_discharge(process->region, process->slot, device, granules);
    }
}

void lim_give(struct lim_process *process, uint32_t device, uint64_t granules)
{
    lim_lock(process);
    lim_give_locked(process, device, granules);
    lim_unlock(process);
}

/* Queries come from processes without a slot too (nvidia-smi): they judge as themselves. */
static void reap_sometimes(struct tessera_region *region)
{
    struct lim_process *process = pages();
    uint64_t now = lim_coarse_ns();
    if (process == NULL || now - __atomic_load_n(&process->scanned_ns, __ATOMIC_RELAXED) < SCAN_PERIOD_NS) {
        return;
    }
    if (LOAD(process->attached) != 0) {
        lim_reap_now(process);
        return;
    }
    struct process_identity self = lim_identity();
    __atomic_store_n(&process->scanned_ns, now, __ATOMIC_RELAXED);
    lim_reap_dead(region, &self, TESSERA_MAX_SLOTS);
}

uint64_t lim_used(struct tessera_region *region, uint32_t device)
{
    reap_sometimes(region);
    uint64_t used = lim_gauge_used(word_load(&region->usage.device[device].gauge)) * TESSERA_GRANULE;
    uint64_t more = unseen(region, device);
    return more > UINT64_MAX - used ? UINT64_MAX : used + more;
}

static int hex_value(char digit)
{
    if (digit >= '0' && digit <= '9') {
        return digit - '0';
    }
    char lower = (char)(digit | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* True if the text after its four-letter prefix (GPU-, MIG-) spells the 16 bytes in hexadecimal, dashes anywhere. */
static bool is_uuid_text(const char *text, const unsigned char uuid[16])
{
    unsigned nibbles = 0;
    if (strnlen(text, TESSERA_UUID_SIZE) < 36) {
        return false;
    }
    for (const char *at = text + 4; *at != '\0' && at < text + TESSERA_UUID_SIZE; at++) {
        int value = hex_value(*at);
        if (*at == '-') {
            continue;
        }
        int wanted = nibbles >= 32 ? -2 : (nibbles % 2 == 0 ? uuid[nibbles / 2] >> 4 : uuid[nibbles / 2] & 15);
        if (value != wanted) {
            return false;
        }
        nibbles++;
    }
    return nibbles == 32;
}

int lim_device_by_uuid(const struct tessera_region *region, const unsigned char uuid[16])
{
    for (uint32_t device = 0; device < lim_device_count(region); device++) {
        if (is_uuid_text(region->header.device_uuid[device], uuid)) {
            return (int)device;
        }
    }
    return LIM_UNLISTED_DEVICE;
}
