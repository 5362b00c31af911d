/* DESIGN
 *
 * Virtual time for test programs: clock_gettime and nanosleep of the whole program (the limiter and the simulated driver
 * included, however they are loaded) run on a clock that stands still while anybody computes and jumps to the next
 * moment at which somebody wakes when all sleep. A minute of device time takes as long as the computing in it, and no
 * figure depends on the machine.
 *
 * Who takes part has a seat: a process or a thread, given by time_seat() before it is made, so that time cannot run on
 * without it. A seat that waits for anything but time (a pipe, a child) leaves first. A participant that is killed
 * keeps its seat until time_vacate().
 *
 * Without time_begin() everything here passes through.
 */
#ifndef TESSERA_VIRTUAL_TIME_H
#define TESSERA_VIRTUAL_TIME_H

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { TIME_SEATS = 64, TIME_NOWHERE = -1 };

#define TIME_AWAKE UINT64_MAX
#define TIME_EXPORT __attribute__((visibility("default")))

struct time_seat {
    uint64_t wakes_ns; /* TIME_AWAKE while it computes */
    uint32_t taken;
    uint32_t woken; /* futex */
};

struct virtual_time {
    uint32_t lock;
    uint32_t seats;
    uint64_t now_ns;
    struct time_seat seat[TIME_SEATS];
};

static struct virtual_time *virtual_time; /* shared with children; NULL: real time */
static _Thread_local int time_self = TIME_NOWHERE;

/* What the lock holds while this seat has it. */
static inline uint32_t time_mark(int seat)
{
    return (uint32_t)(seat + 2);
}

static inline void time_lock(void)
{
    uint32_t expected = 0;
    while (!__atomic_compare_exchange_n(&virtual_time->lock, &expected, time_mark(time_self), 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        expected = 0;
        sched_yield();
    }
}

static inline void time_unlock(void)
{
    __atomic_store_n(&virtual_time->lock, 0u, __ATOMIC_RELEASE);
}

/* With the lock held: if everybody sleeps, jumps to the first waking. */
static inline void time_run_on(void)
{
    uint64_t first_ns = TIME_AWAKE;
    for (uint32_t i = 0; i < virtual_time->seats; i++) {
        const struct time_seat *seat = &virtual_time->seat[i];
        if (seat->taken != 0 && seat->wakes_ns == TIME_AWAKE) return;
        if (seat->taken != 0 && seat->wakes_ns < first_ns) first_ns = seat->wakes_ns;
    }
    if (first_ns == TIME_AWAKE) return;
    __atomic_store_n(&virtual_time->now_ns, first_ns, __ATOMIC_RELEASE);
    for (uint32_t i = 0; i < virtual_time->seats; i++) {
        struct time_seat *seat = &virtual_time->seat[i];
        if (seat->taken == 0 || seat->wakes_ns > first_ns) continue;
        seat->wakes_ns = TIME_AWAKE;
        __atomic_store_n(&seat->woken, 1u, __ATOMIC_RELEASE);
        if ((int)i != time_self) syscall(SYS_futex, &seat->woken, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

static inline uint64_t time_now(void)
{
    return __atomic_load_n(&virtual_time->now_ns, __ATOMIC_ACQUIRE);
}

/* Starts the clock at `now_ns`, with the caller in the first seat. A simulated machine that exists already must not have
 * seen a later time. */
static inline void time_begin(uint64_t now_ns)
{
    void *map = mmap(NULL, sizeof *virtual_time, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(map != MAP_FAILED);
    virtual_time = map;
    virtual_time->now_ns = now_ns;
    virtual_time->seats = 1;
    virtual_time->seat[0] = (struct time_seat){TIME_AWAKE, 1, 0};
    time_self = 0;
}

/* A seat for somebody who is about to be made and calls time_sit with it. */
static inline int time_seat(void)
{
    time_lock();
    CHECK(virtual_time->seats < TIME_SEATS);
    int seat = (int)virtual_time->seats++;
    virtual_time->seat[seat] = (struct time_seat){TIME_AWAKE, 1, 0};
    time_unlock();
    return seat;
}

static inline void time_sit(int seat)
{
    time_self = seat;
}

/* Frees a seat: one's own before waiting for anything but time, or that of somebody who is gone and may have been killed
 * with the lock in his hand. */
static inline void time_vacate(int seat)
{
    uint32_t theirs = time_mark(seat);
    if (seat != time_self) {
        __atomic_compare_exchange_n(&virtual_time->lock, &theirs, 0u, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }
    time_lock();
    virtual_time->seat[seat].taken = 0;
    time_run_on();
    time_unlock();
}

/* Takes one's own seat again. */
static inline void time_return(int seat)
{
    time_lock();
    virtual_time->seat[seat] = (struct time_seat){TIME_AWAKE, 1, 0};
    time_unlock();
}

static inline void time_sleep(uint64_t ns)
{
    struct time_seat *seat = &virtual_time->seat[time_self];
    time_lock();
    __atomic_store_n(&seat->woken, 0u, __ATOMIC_RELAXED);
    seat->wakes_ns = virtual_time->now_ns + ns;
    time_run_on();
    time_unlock();
    while (__atomic_load_n(&seat->woken, __ATOMIC_ACQUIRE) == 0) {
        syscall(SYS_futex, &seat->woken, FUTEX_WAIT, 0u, NULL, NULL, 0);
    }
}

static inline void time_sleep_until(uint64_t ns)
{
    if (ns > time_now()) time_sleep(ns - time_now());
}

/* -- what the program's libraries call ----------------------------------------------------------------------------- */

TIME_EXPORT int clock_gettime(clockid_t clock, struct timespec *out)
{
    static const uint64_t epoch_ns = UINT64_C(1700000000000000000);
    bool is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    if (virtual_time == NULL || clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID) {
        return (int)syscall(SYS_clock_gettime, clock, out);
    }
    uint64_t now_ns = time_now() + (is_wall ? epoch_ns : 0);
    *out = (struct timespec){(time_t)(now_ns / 1000000000u), (long)(now_ns % 1000000000u)};
    return 0;
}

TIME_EXPORT int nanosleep(const struct timespec *time, struct timespec *left)
{
    if (virtual_time == NULL || time_self == TIME_NOWHERE) return (int)syscall(SYS_nanosleep, time, left);
    time_sleep((uint64_t)time->tv_sec * 1000000000u + (uint64_t)time->tv_nsec);
    return 0;
}

#endif
