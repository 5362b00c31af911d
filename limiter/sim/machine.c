/* DESIGN
 *
 * The shared state file: creation, lock and repair, charges. See machine.h for the invariants.
 *
 * Creation: under flock on the description's sibling `.lock`, a complete file is built under a
 * temporary name and renamed, so nobody ever maps a half-made machine. A state file of another
 * layout or description is replaced when no owner of it is alive; else opening fails, because
 * two machines must not share one name.
 *
 * Hot path: sim_take and sim_give are a few stores under a robust process-shared mutex; neither
 * makes a system call unless the lock is contended or memory is short.
 */
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cgroup.h"
#include "owner.h"

struct sim_description sim_description;
struct sim_machine *sim_machine;
uint32_t sim_self = SIM_MAX_OWNERS;

uint64_t sim_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

/* -- lock and repair ---------------------------------------------------------------------- */

/* Sums and the free list again from the charges; called when a holder died inside the lock. */
static void rebuild(struct sim_machine *m)
{
    for (uint32_t d = 0; d < m->device_count; d++) m->device[d].used = 0;
    for (uint32_t o = 0; o < m->owners; o++) memset(m->owner[o].held, 0, sizeof m->owner[o].held);
    for (uint32_t g = 0; g < m->groups; g++) memset(m->group[g].used, 0, sizeof m->group[g].used);
    m->free_head = 0;
    for (uint32_t i = m->charges; i-- > 1;) {
        struct sim_charge *charge = &m->charge[i];
        if (atomic_load_explicit(&charge->kind, memory_order_acquire) == SIM_FREE) {
            charge->next = m->free_head;
            m->free_head = i;
        } else {
            m->device[charge->device].used += charge->bytes;
            m->owner[charge->owner].held[charge->device] += charge->bytes;
            if (charge->group != 0) m->group[charge->group - 1].used[charge->device] += charge->bytes;
        }
    }
    m->repairs++;
}

void sim_lock(void)
{
    if (pthread_mutex_lock(&sim_machine->lock) == EOWNERDEAD) {
        rebuild(sim_machine);
        pthread_mutex_consistent(&sim_machine->lock);
    }
}

void sim_unlock(void)
{
    pthread_mutex_unlock(&sim_machine->lock);
}

/* -- charges ------------------------------------------------------------------------------ */

static bool fits(const struct sim_device *device, uint64_t more)
{
    return more <= device->capacity - device->used;
}

static bool make_room(int device, uint32_t group, uint64_t more)
{
    struct sim_device *d = &sim_machine->device[device];
    if (fits(d, more) && (group == 0 || sim_group_fits(group, device, more))) return true;
    sim_reap();
    return fits(d, more) && (group == 0 || sim_group_fits(group, device, more));
}

/* Who pays; managed memory is the system's, and a driver without accounting asks nobody. */
static bool find_payer(enum sim_kind kind, uint32_t *group)
{
    *group = 0;
    if (sim_description.accounting == SIM_ACCOUNT_OFF || kind == SIM_MANAGED) return true;
    *group = sim_group_self();
    return *group != 0;
}

static void count(const struct sim_charge *charge, uint64_t bytes)
{
    sim_machine->device[charge->device].used += bytes;
    sim_machine->owner[charge->owner].held[charge->device] += bytes;
    if (charge->group != 0) sim_machine->group[charge->group - 1].used[charge->device] += bytes;
}

uint32_t sim_take(int device, uint64_t bytes, enum sim_kind kind)
{
    struct sim_machine *m = sim_machine;
    uint32_t group;
    if (!find_payer(kind, &group) || !make_room(device, group, bytes)) return 0;
    uint32_t index = m->free_head;
    if (index != 0) {
        m->free_head = m->charge[index].next;
    } else {
        if (m->charges == SIM_MAX_CHARGES) return 0;
        index = m->charges++;
    }
    struct sim_charge *charge = &m->charge[index];
    charge->owner = (uint16_t)sim_self;
    charge->group = group;
    charge->device = (uint16_t)device;
    charge->bytes = bytes;
    charge->importer = 0;
    atomic_store_explicit(&charge->kind, kind, memory_order_release);
    count(charge, bytes);
    return index;
}

void sim_give(uint32_t index)
{
    struct sim_charge *charge = &sim_machine->charge[index];
    count(charge, 0 - charge->bytes);
    atomic_store_explicit(&charge->kind, SIM_FREE, memory_order_release);
    charge->next = sim_machine->free_head;
    sim_machine->free_head = index;
}

bool sim_resize(uint32_t index, uint64_t bytes)
{
    struct sim_charge *charge = &sim_machine->charge[index];
    uint64_t had = charge->bytes;
    if (bytes > had && !make_room(charge->device, charge->group, bytes - had)) return false;
    charge->bytes = bytes;
    count(charge, bytes - had);
    return true;
}

/* -- owners ------------------------------------------------------------------------------- */

/* Memory that somebody else has open outlives its owner: it becomes the other one's. */
static bool leave_to_importer(struct sim_charge *charge)
{
    uint32_t heir = charge->importer - 1;
    if (charge->importer == 0 || heir == charge->owner || sim_machine->owner[heir].pid == 0) return false;
    sim_machine->owner[charge->owner].held[charge->device] -= charge->bytes;
    sim_machine->owner[heir].held[charge->device] += charge->bytes;
    charge->owner = (uint16_t)heir;
    charge->importer = 0;
    return true;
}

static void release_owner(uint32_t slot)
{
    struct sim_machine *m = sim_machine;
    for (uint32_t i = 1; i < m->charges; i++) {
        struct sim_charge *charge = &m->charge[i];
        if (charge->owner == slot && atomic_load_explicit(&charge->kind, memory_order_acquire) != SIM_FREE &&
            !leave_to_importer(charge))
            sim_give(i);
    }
    atomic_store_explicit(&m->owner[slot].pid, 0, memory_order_release);
}

static int open_guard(void)
{
    char path[sizeof sim_description.path + 24];
    snprintf(path, sizeof path, "%s.state.lock", sim_description.path);
    return open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
}

/* The file description through which this process holds its byte, until it ends. A forked child has one of its own;
 * while it lives without exec, its parent's byte is held on. */
static int guard = -1;

static bool have_guard(void)
{
    if (guard < 0) guard = open_guard();
    return guard >= 0;
}

static struct flock byte_of(uint32_t slot)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
}

static bool hold_guard(uint32_t slot)
{
    struct flock byte = byte_of(slot);
    return have_guard() && fcntl(guard, F_OFD_SETLK, &byte) == 0;
}

/* Across PID namespaces (containers) /proc tells nothing; a lock ends with its holder, whoever looks. */
static bool guard_is_gone(const struct sim_machine *m, uint32_t slot)
{
    struct flock byte = byte_of(slot);
    return m->owner[slot].guarded != 0 && have_guard() && fcntl(guard, F_OFD_GETLK, &byte) == 0 &&
           byte.l_type == F_UNLCK;
}

static bool is_gone(const struct sim_machine *m, uint32_t slot, uint64_t own_namespace)
{
    const struct sim_owner *owner = &m->owner[slot];
    struct sim_life life;
    if (owner->namespace != own_namespace) return guard_is_gone(m, slot);
    if (!sim_life_of((pid_t)owner->pid, &life)) return true;
    if (life.start != owner->start) return true;
    return life.stack != 0 && owner->stack != 0 && life.stack != owner->stack;
}

void sim_reap(void)
{
    struct sim_machine *m = sim_machine;
    uint64_t own_namespace = sim_pid_namespace();
    for (uint32_t slot = 0; slot < m->owners; slot++) {
        if (slot == sim_self || m->owner[slot].pid == 0) continue;
        if (is_gone(m, slot, own_namespace)) release_owner(slot);
    }
    m->reaped_at = sim_now();
}

void sim_reap_sometimes(void)
{
    if (sim_now() - sim_machine->reaped_at > SIM_LOOK_EVERY_NS) sim_reap();
}

static uint32_t free_slot(void)
{
    struct sim_machine *m = sim_machine;
    for (uint32_t slot = 0; slot < m->owners; slot++)
        if (m->owner[slot].pid == 0) return slot;
    if (m->owners == SIM_MAX_OWNERS) return SIM_MAX_OWNERS;
    return m->owners++;
}

bool sim_register(void)
{
    struct sim_machine *m = sim_machine;
    struct sim_life life;
    uint64_t image = sim_image(), ns = sim_pid_namespace();
    uint32_t pid = (uint32_t)getpid();
    if (!sim_life_of((pid_t)pid, &life)) return false;
    /* A second copy of the library in one image keeps its own slot; an older image goes. */
    for (uint32_t slot = 0; slot < m->owners; slot++) {
        struct sim_owner *owner = &m->owner[slot];
        if (owner->pid == pid && owner->namespace == ns &&
            (owner->start != life.start || owner->image != image))
            release_owner(slot);
    }
    sim_reap();
    uint32_t slot = free_slot();
    if (slot == SIM_MAX_OWNERS) return false;
    struct sim_owner *owner = &m->owner[slot];
    memset(owner, 0, sizeof *owner);
    owner->start = life.start;
    owner->stack = life.stack;
    owner->image = image;
    owner->namespace = ns;
    owner->guarded = hold_guard(slot);
    atomic_store_explicit(&owner->pid, pid, memory_order_release);
    sim_self = slot;
    return true;
}

void sim_forget(void)
{
    sim_self = SIM_MAX_OWNERS;
    guard = -1; /* the parent's; not closed, as its number may be another file's by now */
}

/* -- creation ----------------------------------------------------------------------------- */

static void fill(struct sim_machine *m)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&m->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    uint64_t now = sim_now();
    m->layout = SIM_LAYOUT;
    m->size = sizeof *m;
    m->hash = sim_description.hash;
    m->wall_offset = (int64_t)wall.tv_sec * 1000000000LL + wall.tv_nsec - (int64_t)now;
    m->charges = 1;
    m->device_count = (uint32_t)sim_description.count;
    for (int i = 0; i < sim_description.count; i++) {
        m->device[i].capacity = sim_description.device[i].memory - sim_description.device[i].reserved;
        m->device[i].clock = now;
        m->device[i].sample_at = now + sim_description.sample_ns;
    }
    m->magic = SIM_MAGIC;
}

static struct sim_machine *map(int fd)
{
    void *at = mmap(NULL, sizeof(struct sim_machine), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

static struct sim_machine *create(const char *path)
{
    char temporary[sizeof sim_description.path + 64];
    snprintf(temporary, sizeof temporary, "%s.new", path);
    int fd = open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return NULL;
    struct sim_machine *m = NULL;
    if (ftruncate(fd, sizeof(struct sim_machine)) == 0) m = map(fd);
    close(fd);
    if (m == NULL) return NULL;
    fill(m);
    if (rename(temporary, path) == 0) return m;
    munmap(m, sizeof *m);
    return NULL;
}

static bool has_live_owner(const struct sim_machine *m)
{
    uint64_t own_namespace = sim_pid_namespace();
    for (uint32_t slot = 0; slot < m->owners && slot < SIM_MAX_OWNERS; slot++)
        if (m->owner[slot].pid != 0 && !is_gone(m, slot, own_namespace)) return true;
    return false;
}

/* The machine behind an existing state file; NULL with *replace set when it may be replaced. */
static struct sim_machine *adopt(const char *path, bool *replace)
{
    struct stat status;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    *replace = fd < 0 && errno == ENOENT;
    if (fd < 0) return NULL;
    bool sized = fstat(fd, &status) == 0 && status.st_size == sizeof(struct sim_machine);
    struct sim_machine *m = sized ? map(fd) : NULL;
    close(fd);
    if (m == NULL) {
        *replace = !sized;
        return NULL;
    }
    bool same = m->magic == SIM_MAGIC && m->layout == SIM_LAYOUT && m->size == sizeof *m;
    if (same && m->hash == sim_description.hash) return m;
    *replace = !same || !has_live_owner(m);
    munmap(m, sizeof *m);
    return NULL;
}

bool sim_machine_open(void)
{
    char path[sizeof sim_description.path + 16];
    if (sim_machine != NULL) return true;
    if (!sim_describe(&sim_description)) return false;
    snprintf(path, sizeof path, "%s.state", sim_description.path);
    int fd = open_guard();
    if (fd < 0) return false;
    while (flock(fd, LOCK_EX) != 0 && errno == EINTR) continue;
    bool replace;
    sim_machine = adopt(path, &replace);
    if (sim_machine == NULL && replace) sim_machine = create(path);
    close(fd);
    return sim_machine != NULL;
}

void sim_machine_close(void)
{
    if (sim_machine == NULL || sim_self != SIM_MAX_OWNERS) return;
    munmap(sim_machine, sizeof *sim_machine);
    sim_machine = NULL;
    if (guard >= 0) close(guard);
    guard = -1;
}
