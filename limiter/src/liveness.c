/* DESIGN
 *
 * A slot's owner is dead when nothing of it can run again: no process has its PID, or another process has it (start
 * time differs), or it is a zombie without threads, or the same process runs another image (exec releases what the
 * old image held). All of that is in /proc/PID/stat; kill(pid, 0) decides where /proc is hidden or absent.
 *
 * When in doubt a process lives: wrongly alive costs its bytes until it ends, wrongly dead breaks the limit. Hence
 * a judge in another PID namespace, where the number means somebody else, never says "gone".
 *
 * exec: field 28 of stat (start of the stack, randomised at exec) tells others; it reads 0 for processes that the
 * judge may not inspect and is equal without address randomisation, so the image itself also compares 64 of the
 * random bits that the kernel gives every image (AT_RANDOM), when it registers.
 *
 * A word in phase CLAIMED comes before the slot's fields are written. It carries the PID and short tags of start time
 * and namespace, enough to tell a dead claimant.
 *
 * Only system calls that are as old as glibc 2.17, no heap, no stdio: this runs inside any process.
 */
#include "liveness.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/auxv.h>
#include <time.h>
#include <unistd.h>

#define STAT_SIZE 1024
#define EPOCH_FIELD ((UINT64_C(1) << TESSERA_STATE_PID_SHIFT) - (UINT64_C(1) << TESSERA_STATE_EPOCH_SHIFT))
#define PID_MASK ((UINT64_C(1) << TESSERA_STATE_PID_BITS) - 1u)
#define START_MASK ((UINT64_C(1) << TESSERA_STATE_START_BITS) - 1u)
#define SPACE_MASK ((UINT64_C(1) << TESSERA_STATE_SPACE_BITS) - 1u)

/* The fields of /proc/PID/stat that identify a process, by their number in proc(5). */
enum { FIELD_STATE = 3, FIELD_THREADS = 20, FIELD_START = 22, FIELD_STACK = 28 };

struct process_stat {
    char state;
    uint64_t threads;
    uint64_t start_ticks;
    uint64_t image_stack;
};

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now = {0, 0};
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t lim_now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

uint64_t lim_coarse_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC_COARSE);
}

/* Decimal into `end`, which must have room before it; returns the first character. */
static char *write_number(char *end, uint32_t number)
{
    do {
        *--end = (char)('0' + number % 10u);
        number /= 10u;
    } while (number != 0);
    return end;
}

static void stat_path(char path[32], uint32_t pid)
{
    char digits[16];
    char *first = write_number(digits + sizeof digits, pid);
    size_t length = (size_t)(digits + sizeof digits - first);
    memcpy(path, "/proc/", 6);
    memcpy(path + 6, first, length);
    memcpy(path + 6 + length, "/stat", 6);
}

/* The whole of a small file as text; empty when it cannot be read. */
static size_t read_text(const char *path, char *text, size_t size)
{
    int saved = errno;
    size_t length = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t got = read(file, text, size - 1u);
        length = got > 0 ? (size_t)got : 0;
        close(file);
    }
    text[length] = '\0';
    errno = saved;
    return length;
}

static uint64_t parse_number(const char *text)
{
    uint64_t number = 0;
    for (; *text >= '0' && *text <= '9'; text++) {
        number = number * 10u + (uint64_t)(*text - '0');
    }
    return number;
}

/* The start of field `number`, counted from the state letter, which follows the last parenthesis: a command may
 * contain spaces and parentheses. NULL when the text ends before. */
static const char *stat_field(const char *text, int number)
{
    const char *at = strrchr(text, ')');
    for (int field = FIELD_STATE - 1; at != NULL && field < number; field++) {
        at = strchr(at + 1, ' ');
    }
    return at == NULL ? NULL : at + 1;
}

static bool parse_stat(const char *text, struct process_stat *stat)
{
    const char *stack = stat_field(text, FIELD_STACK);
    if (stack == NULL) {
        return false;
    }
    stat->state = *stat_field(text, FIELD_STATE);
    stat->threads = parse_number(stat_field(text, FIELD_THREADS));
    stat->start_ticks = parse_number(stat_field(text, FIELD_START));
    stat->image_stack = parse_number(stack);
    return true;
}

static void copy_command(const char *text, char command[16])
{
    const char *open = strchr(text, '(');
    const char *close = strrchr(text, ')');
    size_t length = open != NULL && close > open ? (size_t)(close - open - 1) : 0;
    length = length < 15u ? length : 15u;
    memset(command, 0, 16);
    if (length > 0) {
        memcpy(command, open + 1, length);
    }
}

uint64_t lim_pid_namespace(void)
{
    char link[64]; /* "pid:[4026531836]" */
    int saved = errno;
    ssize_t length = readlink("/proc/self/ns/pid", link, sizeof link - 1u);
    errno = saved;
    if (length < 6) {
        return 0;
    }
    link[length] = '\0';
    return parse_number(link + 5);
}

/* 64 bits that change with every exec. libc makes the stack canary and the pointer guard from the same 16 bytes, and
 * the region is readable by the whole share: publish a fold of both halves, never the bytes. */
static uint64_t image_tag(void)
{
    const void *random = (const void *)getauxval(AT_RANDOM);
    uint64_t half[2] = {0, 0};
    if (random != NULL) {
        memcpy(half, random, sizeof half);
    }
    uint64_t fold = (half[0] ^ (half[1] << 32 | half[1] >> 32)) * UINT64_C(0x9e3779b97f4a7c15);
    return fold ^ fold >> 29;
}

struct process_identity lim_identity(void)
{
    struct process_identity identity = {.pid = (uint32_t)getpid(), .pid_namespace = lim_pid_namespace()};
    struct process_stat stat;
    char text[STAT_SIZE];
    read_text("/proc/self/stat", text, sizeof text);
    if (parse_stat(text, &stat)) {
        identity.start_ticks = stat.start_ticks;
        identity.image_stack = stat.image_stack;
    }
    copy_command(text, identity.command);
    identity.image_random = image_tag();
    return identity;
}

uint64_t lim_claimed_state(uint64_t free_state, const struct process_identity *identity)
{
    uint64_t epoch = free_state & EPOCH_FIELD;
    return epoch | ((uint64_t)identity->pid & PID_MASK) << TESSERA_STATE_PID_SHIFT |
           (identity->start_ticks & START_MASK) << TESSERA_STATE_START_SHIFT |
           (identity->pid_namespace & SPACE_MASK) << TESSERA_STATE_SPACE_SHIFT | TESSERA_CLAIMED;
}

static uint32_t state_pid(uint64_t state)
{
    return (uint32_t)(state >> TESSERA_STATE_PID_SHIFT & PID_MASK);
}

/* True if the text of /proc/PID/stat shows somebody else, or nobody, where the slot's owner was. */
static bool is_other(const struct tessera_slot *slot, uint64_t state, const struct process_stat *stat)
{
    bool claimed = (state & 3u) == TESSERA_CLAIMED;
    bool ended = (stat->state == 'Z' || stat->state == 'X' || stat->state == 'x') && stat->threads <= 1;
    if (ended || (stat->start_ticks & START_MASK) != (state >> TESSERA_STATE_START_SHIFT & START_MASK)) {
        return true;
    }
    if (claimed) {
        return false; /* the fields below are not written yet */
    }
    bool restacked = stat->image_stack != 0 && slot->image_stack != 0 && stat->image_stack != slot->image_stack;
    return stat->start_ticks != slot->start_ticks || restacked;
}

bool lim_bears_pid(uint64_t state, const struct process_identity *identity)
{
    return (state & 3u) != TESSERA_FREE && state_pid(state) == identity->pid;
}

static bool is_of_our_namespace(const struct tessera_slot *slot, uint64_t state, const struct process_identity *judge)
{
    bool live = (state & 3u) == TESSERA_LIVE;
    return judge->pid_namespace != 0 && (judge->pid_namespace & SPACE_MASK) == state >> TESSERA_STATE_SPACE_SHIFT &&
           (!live || slot->pid_namespace == judge->pid_namespace);
}

bool lim_is_absent(const struct tessera_slot *slot, uint64_t state, const struct process_identity *judge)
{
    uint32_t pid = state_pid(state);
    if (!is_of_our_namespace(slot, state, judge)) {
        return false;
    }
    if (pid == judge->pid) {
        return lim_is_gone(slot, state, judge);
    }
    int saved = errno;
    bool absent = kill((pid_t)pid, 0) != 0 && errno == ESRCH;
    errno = saved;
    return absent;
}

bool lim_is_gone(const struct tessera_slot *slot, uint64_t state, const struct process_identity *judge)
{
    bool live = (state & 3u) == TESSERA_LIVE;
    uint32_t pid = state_pid(state);
    if (!is_of_our_namespace(slot, state, judge)) {
        return false;
    }
    if (pid != judge->pid && lim_is_absent(slot, state, judge)) {
        return true;
    }
    if (live && pid == judge->pid && slot->start_ticks == judge->start_ticks) {
        return slot->image_random != judge->image_random; /* ourselves, or what we were before exec */
    }
    char path[32];
    char text[STAT_SIZE];
    struct process_stat stat;
    stat_path(path, pid);
    read_text(path, text, sizeof text);
    bool known = (state >> TESSERA_STATE_START_SHIFT & START_MASK) != 0 || !live || slot->start_ticks != 0;
    return known && parse_stat(text, &stat) && is_other(slot, state, &stat);
}
