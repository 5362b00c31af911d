/* DESIGN: cgroup.h. Reads directories by hand: called with the machine's lock held, so it never allocates. */
#include "cgroup.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MARK "/cgroup.controllers" /* every directory of a cgroup v2 tree has it, and none above does */

enum { TEXT = 4096 };

/* -- the table ---------------------------------------------------------------------------- */

static struct sim_group *slot_of(uint32_t group)
{
    return &sim_machine->group[group - 1];
}

static uint32_t find(uint64_t id)
{
    for (uint32_t slot = 0; slot < sim_machine->groups; slot++)
        if (sim_machine->group[slot].id == id) return slot + 1;
    return 0;
}

static bool is_parent(uint32_t group)
{
    for (uint32_t slot = 0; slot < sim_machine->groups; slot++)
        if (sim_machine->group[slot].id != 0 && sim_machine->group[slot].parent == group) return true;
    return false;
}

/* A slot that nothing hangs on: no memory, no limit, no child. */
static bool is_idle(uint32_t group)
{
    const struct sim_group *g = slot_of(group);
    for (uint32_t d = 0; d < sim_machine->device_count; d++)
        if (g->used[d] != 0 || g->hard[d] != SIM_UNLIMITED || g->soft[d] != 0) return false;
    return !is_parent(group);
}

static uint32_t free_slot(void)
{
    struct sim_machine *m = sim_machine;
    if (m->groups < SIM_MAX_GROUPS) return ++m->groups;
    for (uint32_t slot = 0; slot < m->groups; slot++)
        if (m->group[slot].id == 0 || is_idle(slot + 1)) return slot + 1;
    return 0;
}

static uint32_t find_or_make(uint64_t id)
{
    uint32_t group = find(id);
    if (group != 0 || (group = free_slot()) == 0) return group;
    struct sim_group *g = slot_of(group);
    memset(g, 0, sizeof *g);
    for (int d = 0; d < SIM_MAX_DEVICES; d++) g->hard[d] = SIM_UNLIMITED;
    g->id = id;
    return group;
}

/* -- directories -------------------------------------------------------------------------- */

static uint64_t id_of(const char *directory)
{
    struct stat status;
    return stat(directory, &status) == 0 && S_ISDIR(status.st_mode) ? (uint64_t)status.st_ino : 0;
}

static bool is_cgroup(const char *directory)
{
    char path[TEXT + sizeof MARK];
    snprintf(path, sizeof path, "%s" MARK, directory);
    return access(path, F_OK) == 0;
}

/* The group of `directory` and those of the directories above it that are cgroups, each linked to the next. `directory`
 * is cut while going up. */
static uint32_t chain(char *directory)
{
    uint32_t first = 0, below = 0;
    for (;;) {
        uint64_t id = is_cgroup(directory) ? id_of(directory) : 0;
        if (id == 0) return first;
        uint32_t group = find_or_make(id);
        if (group == 0) return 0;
        if (below != 0) slot_of(below)->parent = group;
        if (first == 0) first = group;
        below = group;
        char *slash = strrchr(directory, '/');
        if (slash == NULL || slash == directory) return first;
        *slash = '\0';
    }
}

uint32_t sim_group_at(const char *directory)
{
    char text[TEXT];
    size_t length = strlen(directory);
    while (length > 1 && directory[length - 1] == '/') length--;
    if (length >= sizeof text || length >= sizeof slot_of(1)->path) return 0;
    memcpy(text, directory, length);
    text[length] = '\0';
    uint32_t group = chain(text);
    if (group == 0) return 0;
    memcpy(slot_of(group)->path, directory, length);
    slot_of(group)->path[length] = '\0';
    return group;
}

/* The path of the own cgroup below the root of cgroup v2, as /proc has it: the line "0::PATH"; empty for the root. */
static bool own_path(char *out, size_t room)
{
    char text[TEXT];
    int fd = open("/proc/self/cgroup", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0) return false;
    text[got] = '\0';
    const char *line = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
    if (line == NULL) return false;
    line += *line == '\n' ? 4 : 3;
    int length = (int)strcspn(line, "\n");
    return (size_t)snprintf(out, room, "%.*s", length == 1 ? 0 : length, line) < room;
}

static bool ends_with(const char *path, const char *end)
{
    size_t length = strlen(path), of_end = strlen(end);
    return of_end != 0 && length >= of_end && strcmp(path + length - of_end, end) == 0;
}

/* A container beside cgroup v1 does not have the tree of version 2, but is told the node's paths: the group that was
 * limited by such a path, or by that of a cgroup above. `path` is cut while going up. */
static uint32_t find_by_path(char *path)
{
    for (char *slash; (slash = strrchr(path, '/')) != NULL; *slash = '\0')
        for (uint32_t group = 1; group <= sim_machine->groups; group++)
            if (slot_of(group)->id != 0 && ends_with(slot_of(group)->path, path)) return group;
    return 0;
}

/* 1 is the number of no directory: the cgroup of all whose own cannot be seen, which nobody can limit. */
static uint32_t group_of_path(char *path)
{
    char text[TEXT];
    const char *root = access("/sys/fs/cgroup" MARK, F_OK) == 0 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/unified";
    bool fits = (size_t)snprintf(text, sizeof text, "%s%s", root, path) < sizeof text;
    uint32_t group = fits ? chain(text) : 0;
    if (group == 0) group = find_by_path(path);
    return group != 0 ? group : find_or_make(1);
}

uint32_t sim_group_self(void)
{
    char text[TEXT];
    const char *said = getenv("TESSERA_SIM_CGROUP");
    if (said != NULL && said[0] != '\0') return strlen(said) < sizeof text ? chain(strcpy(text, said)) : 0;
    return own_path(text, sizeof text) ? group_of_path(text) : find_or_make(1);
}

void sim_group_sweep(void)
{
    for (uint32_t group = 1; group <= sim_machine->groups; group++) {
        struct sim_group *g = slot_of(group);
        if (g->path[0] == '\0' || id_of(g->path) == g->id) continue;
        for (int d = 0; d < SIM_MAX_DEVICES; d++) {
            g->hard[d] = SIM_UNLIMITED;
            g->soft[d] = 0; /* the kernel's part; those above keep what the driver added for it */
        }
        g->path[0] = '\0';
    }
}

/* -- limits ------------------------------------------------------------------------------- */

static bool is_limited(uint32_t group, int device)
{
    const struct sim_group *g = slot_of(group);
    return g->hard[device] != SIM_UNLIMITED || g->soft[device] != 0;
}

uint32_t sim_group_limited(uint32_t group, int device)
{
    while (group != 0 && !is_limited(group, device)) group = slot_of(group)->parent;
    return group;
}

static bool is_below(uint32_t group, uint32_t top)
{
    while (group != 0 && group != top) group = slot_of(group)->parent;
    return group == top;
}

uint64_t sim_group_used(uint32_t top, int device)
{
    uint64_t sum = 0;
    for (uint32_t group = 1; group <= sim_machine->groups; group++)
        if (slot_of(group)->id != 0 && is_below(group, top)) sum += slot_of(group)->used[device];
    return sum;
}

/* What counts against a limit of the misc backend. */
static uint64_t used_under(uint32_t limited, int device)
{
    uint64_t sum = 0;
    for (uint32_t group = 1; group <= sim_machine->groups; group++)
        if (slot_of(group)->id != 0 && sim_group_limited(group, device) == limited) sum += slot_of(group)->used[device];
    return sum;
}

static bool leaves(uint64_t hard, uint64_t used, uint64_t more)
{
    return hard == SIM_UNLIMITED || (used <= hard && more <= hard - used);
}

bool sim_group_fits(uint32_t group, int device, uint64_t more)
{
    if (sim_description.accounting == SIM_ACCOUNT_MISC) {
        uint32_t limited = sim_group_limited(group, device);
        return limited == 0 || leaves(slot_of(limited)->hard[device], used_under(limited, device), more);
    }
    for (; group != 0; group = slot_of(group)->parent)
        if (!leaves(slot_of(group)->hard[device], sim_group_used(group, device), more)) return false;
    return true;
}

void sim_group_view(uint32_t group, int device, uint64_t *capacity, uint64_t *free_bytes)
{
    uint64_t hard = group == 0 ? SIM_UNLIMITED : slot_of(group)->hard[device];
    if (hard == SIM_UNLIMITED) return;
    uint64_t used = sim_group_used(group, device), left = used < hard ? hard - used : 0;
    if (hard < *capacity) *capacity = hard;
    if (left < *free_bytes) *free_bytes = left;
}
