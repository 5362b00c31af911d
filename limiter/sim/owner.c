/* DESIGN
 *
 * Reads /proc/PID/stat by hand with one open, read, close: called with the machine's lock held,
 * so it must neither allocate nor buffer.
 *
 * A zombie holds no device memory, so it counts as gone; but a process whose first thread has
 * ended while others run also shows Z, with more than one thread, and is alive.
 *
 * Source: proc_pid_stat(5): fields 3 state, 20 num_threads, 22 starttime, 28 startstack.
 */
#include "owner.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FIELD_STATE = 3, FIELD_THREADS = 20, FIELD_START = 22, FIELD_STACK = 28 };

static bool read_stat(pid_t pid, char *text, size_t room)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t got = read(fd, text, room - 1);
    close(fd);
    if (got <= 0) return false;
    text[got] = '\0';
    return true;
}

bool sim_life_of(pid_t pid, struct sim_life *out)
{
    char text[1024];
    if (!read_stat(pid, text, sizeof text)) return false;
    char *at = strrchr(text, ')'); /* the name may hold blanks and brackets; the last one ends it */
    if (at == NULL || at[1] != ' ') return false;
    char state = at[2];
    uint64_t threads = 0;
    out->start = out->stack = 0;
    at += 3;
    for (int field = FIELD_STATE + 1; field <= FIELD_STACK && *at != '\0'; field++) {
        uint64_t value = strtoull(at, &at, 10);
        if (field == FIELD_THREADS) threads = value;
        if (field == FIELD_START) out->start = value;
        if (field == FIELD_STACK) out->stack = value;
    }
    return !((state == 'Z' || state == 'X' || state == 'x') && threads <= 1);
}

uint64_t sim_image(void)
{
    uint64_t bits = 0;
    const void *random = (const void *)getauxval(AT_RANDOM);
    if (random != NULL) memcpy(&bits, random, sizeof bits);
    return bits;
}

uint64_t sim_pid_namespace(void)
{
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
}
