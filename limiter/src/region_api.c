/* DESIGN
 *
 * The functions of tessera_region_api.h: what the agent and `tessera run` do with a region from outside. They go
 * through the same accounting as the library in the tenant, so a supervisor may reap while processes charge.
 *
 * Creating writes a whole file beside the target and renames it: nobody ever sees half a region, and a process that
 * mapped the old file keeps a consistent one.
 */
#include "tessera_region_api.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "account.h"
#include "atomics.h"
#include "compute_api.h"
#include "guard.h"
#include "liveness.h"
#include "region.h"
#include "slots.h"

#define PATH_SIZE 4096

static bool is_text(const char *text, size_t size)
{
    return text[0] != '\0' && memchr(text, '\0', size) != NULL;
}

static bool is_sound_spec(const struct tessera_share_spec *spec)
{
    if (spec->device_count < 1 || spec->device_count > TESSERA_MAX_DEVICES ||
        !is_text(spec->share_id, sizeof spec->share_id)) {
        return false;
    }
    for (uint32_t i = 0; i < spec->device_count; i++) {
        if (!is_text(spec->device[i].uuid, sizeof spec->device[i].uuid)) {
            return false;
        }
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(spec->device[i].uuid, spec->device[j].uuid) == 0) {
                return false;
            }
        }
    }
    return true;
}

static uint64_t unix_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void fill_header(struct tessera_header *header, const struct tessera_share_spec *spec)
{
    memcpy(header->magic, TESSERA_REGION_MAGIC, sizeof header->magic);
    header->major = TESSERA_REGION_MAJOR;
    header->minor = TESSERA_REGION_MINOR;
    header->total_size = sizeof(struct tessera_region);
    header->device_count = spec->device_count;
    header->slot_count = TESSERA_MAX_SLOTS;
    header->granule = TESSERA_GRANULE;
    header->control_offset = offsetof(struct tessera_region, control);
    header->usage_offset = offsetof(struct tessera_region, usage);
    header->slots_offset = offsetof(struct tessera_region, slot);
    header->slot_stride = sizeof(struct tessera_slot);
    header->created_unix_ns = unix_ns();
    memcpy(header->share_id, spec->share_id, strlen(spec->share_id));
    for (uint32_t i = 0; i < spec->device_count; i++) {
        memcpy(header->device_uuid[i], spec->device[i].uuid, strlen(spec->device[i].uuid));
    }
    header->checksum = lim_header_checksum(header);
}

static void fill_control(struct tessera_control *control, const struct tessera_share_spec *spec)
{
    for (uint32_t i = 0; i < spec->device_count; i++) {
        control->device[i].memory_limit = spec->device[i].memory_limit;
        control->device[i].memory_request = spec->device[i].memory_request;
        control->device[i].compute_limit_milli = spec->device[i].compute_limit_milli;
        control->device[i].compute_request_milli = spec->device[i].compute_request_milli;
        control->device[i].flags = TESSERA_DEVICE_ENABLED;
    }
    lim_fill_compute(control, spec->device_count);
}

/* The first two pages; everything behind them is a hole and reads as zero, which is an empty region. */
static bool write_pages(int file, const struct tessera_share_spec *spec)
{
    static const struct tessera_header no_header;
    static const struct tessera_control no_control;
    struct tessera_header header = no_header;
    struct tessera_control control = no_control;
    fill_header(&header, spec);
    fill_control(&control, spec);
    return pwrite(file, &header, sizeof header, 0) == (ssize_t)sizeof header &&
           pwrite(file, &control, sizeof control, sizeof header) == (ssize_t)sizeof control &&
           ftruncate(file, sizeof(struct tessera_region)) == 0 && fsync(file) == 0;
}

int tessera_region_create(const char *path, const struct tessera_share_spec *spec)
{
    char temporary[PATH_SIZE];
    if (path == NULL || spec == NULL || !is_sound_spec(spec)) {
        return TESSERA_ERROR_ARGUMENT;
    }
    int length = snprintf(temporary, sizeof temporary, "%s.%ld.new", path, (long)getpid());
    if (length < 0 || (size_t)length >= sizeof temporary) {
        return TESSERA_ERROR_ARGUMENT;
    }
    unlink(temporary); /* left by a process that died here and had our PID */
    int file = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0) {
        return TESSERA_ERROR_IO;
    }
    bool written = write_pages(file, spec);
    close(file);
    if (!written || rename(temporary, path) != 0) {
        unlink(temporary);
        return TESSERA_ERROR_IO;
    }
    return TESSERA_ERROR_OK;
}

int tessera_region_open(const char *path, struct tessera_region **region)
{
    struct tessera_region *opened;
    if (path == NULL || region == NULL) {
        return TESSERA_ERROR_ARGUMENT;
    }
    int code = lim_region_open(path, &opened);
    if (code != TESSERA_ERROR_OK) {
        return code;
    }
    if (!lim_guard(opened)) {
        munmap(opened, sizeof *opened);
        return TESSERA_ERROR_MANY;
    }
    *region = opened;
    return TESSERA_ERROR_OK;
}

void tessera_region_close(struct tessera_region *region)
{
    if (region != NULL) {
        lim_unguard(region);
        munmap(region, sizeof *region);
    }
}

const char *tessera_region_strerror(int code)
{
#define ERROR_CASE(name, value, text)                                                                                \
    case value:                                                                                                      \
        return text;
    switch (code) {
        TESSERA_ERRORS(ERROR_CASE)
    default:
        return code > 0 ? "a count, not an error" : "no such error code";
    }
#undef ERROR_CASE
}

int tessera_region_reap(struct tessera_region *region)
{
    struct process_identity judge = lim_identity();
    return (int)lim_reap_dead(region, &judge, TESSERA_MAX_SLOTS);
}

int tessera_region_used(const struct tessera_region *region, uint32_t device, uint64_t *bytes)
{
    if (device >= lim_device_count(region) || bytes == NULL) {
        return TESSERA_ERROR_ARGUMENT;
    }
    *bytes = lim_gauge_used(word_load(&region->usage.device[device].gauge)) * TESSERA_GRANULE;
    return TESSERA_ERROR_OK;
}

static void describe_process(const struct tessera_region *region, uint32_t index, struct tessera_process *process)
{
    const struct tessera_slot *slot = &region->slot[index];
    process->pid = slot->pid;
    process->slot = index;
    process->start_ticks = slot->start_ticks;
    process->pid_namespace = slot->pid_namespace;
    memcpy(process->command, slot->command, sizeof process->command);
    process->command[sizeof process->command - 1u] = '\0';
    for (uint32_t device = 0; device < TESSERA_MAX_DEVICES; device++) {
        process->used_bytes[device] = word_load(&slot->device[device].used_granules) * TESSERA_GRANULE;
    }
}

int tessera_region_processes(const struct tessera_region *region, struct tessera_process *list, size_t capacity)
{
    int count = 0;
    for (uint32_t index = 0; index < TESSERA_MAX_SLOTS; index++) {
        uint64_t state = word_load(&region->slot[index].state);
        struct tessera_process process;
        if ((state & 3u) != TESSERA_LIVE) {
            continue;
        }
        describe_process(region, index, &process);
        if (word_load(&region->slot[index].state) != state) {
            continue; /* reaped while we read it */
        }
        if ((size_t)count < capacity) {
            list[count] = process;
        }
        count++;
    }
    return count;
}

void lim_begin_change(struct tessera_control *control)
{
    uint64_t generation = word_load(&control->generation);
    word_store(&control->generation, generation + 1u + (generation & 1u)); /* odd, also after a writer that died */
}

void lim_end_change(struct tessera_control *control)
{
    word_store(&control->generation, (word_load(&control->generation) + 2u) & ~UINT64_C(1)); /* even, beside another writer too */
}

int tessera_region_set_memory_limit(struct tessera_region *region, uint32_t device, uint64_t bytes)
{
    if (device >= lim_device_count(region)) {
        return TESSERA_ERROR_ARGUMENT;
    }
    lim_begin_change(&region->control);
    word_store(&region->control.device[device].memory_limit, bytes);
    lim_end_change(&region->control);
    return TESSERA_ERROR_OK;
}

int tessera_region_set_requests(struct tessera_region *region, uint32_t device, uint64_t bytes, uint32_t milli)
{
    if (device >= lim_device_count(region)) {
        return TESSERA_ERROR_ARGUMENT;
    }
    struct tessera_device_control *row = &region->control.device[device];
    lim_begin_change(&region->control);
    word_store(&row->memory_request, bytes);
    __atomic_store_n(&row->compute_request_milli, milli, __ATOMIC_RELEASE);
    lim_end_change(&region->control);
    return TESSERA_ERROR_OK;
}

int tessera_region_set_unseen(struct tessera_region *region, uint32_t device, uint64_t bytes)
{
    if (device >= lim_device_count(region)) {
        return TESSERA_ERROR_ARGUMENT;
    }
    lim_begin_change(&region->control);
    word_store(&region->control.device[device].unseen_bytes, bytes);
    word_store(&region->control.device[device].unseen_ns, lim_now_ns());
    lim_end_change(&region->control);
    return TESSERA_ERROR_OK;
}

int tessera_region_set_context_bytes(struct tessera_region *region, uint32_t device, uint64_t bytes)
{
    if (device >= lim_device_count(region)) {
        return TESSERA_ERROR_ARGUMENT;
    }
    lim_begin_change(&region->control);
    word_store(&region->control.device[device].context_bytes, bytes);
    lim_end_change(&region->control);
    return TESSERA_ERROR_OK;
}

int tessera_region_set_policy(struct tessera_region *region, uint32_t policy)
{
    if ((policy & ~(TESSERA_REFUSE_UNKNOWN | TESSERA_CHARGE_IMPORTS | TESSERA_RECLAIM)) != 0) {
        return TESSERA_ERROR_ARGUMENT;
    }
    lim_begin_change(&region->control);
    __atomic_store_n(&region->control.policy, policy, __ATOMIC_RELEASE);
    lim_end_change(&region->control);
    return TESSERA_ERROR_OK;
}

#define LAYOUT_FIELD(type, field, offset, size) {#type "." #field, offset, size},
#define LAYOUT_SIZE(type, size) {#type, -1, size},

static const struct {
    const char *name;
    long offset; /* -1 for a whole struct */
    long size;
} layout[] = {TESSERA_LAYOUT(LAYOUT_FIELD) TESSERA_LAYOUT_SIZES(LAYOUT_SIZE)};

size_t tessera_region_layout(char *text, size_t size)
{
    size_t length = 0;
    for (size_t i = 0; i < sizeof layout / sizeof *layout; i++) {
        char line[96];
        int wrote = layout[i].offset < 0
                        ? snprintf(line, sizeof line, "%s %ld\n", layout[i].name, layout[i].size)
                        : snprintf(line, sizeof line, "%s %ld %ld\n", layout[i].name, layout[i].offset, layout[i].size);
        for (int c = 0; c < wrote; c++, length++) {
            if (length + 1u < size) {
                text[length] = line[c];
            }
        }
    }
    if (size > 0) {
        text[length < size ? length : size - 1u] = '\0';
    }
    return length;
}
