/* DESIGN
 *
 * How long others wait for what a killed process held. The victim holds half of the share and allocates and frees; it is
 * killed with SIGKILL at a random point, and 16 waiters ask for what only fits when its memory is back, all at once. The
 * figure is the time from the kill until the last has its allocation; beside it, for the longest, how long the system took
 * to let that waiter run at all, which on a busy machine is most of it. After each kill the books must hold exactly what the
 * waiters hold, and nothing when they gave it back.
 *
 * The points: in three of four rounds the victim is led one machine instruction at a time (PTRACE_SINGLESTEP) and
 * killed after a drawn number of them, so that every boundary inside allocate and free is hit; in the fourth at a drawn
 * moment of its start (loading the region, taking a slot, making a context). Where the system forbids tracing all are
 * timed, and the line says so.
 *
 * Usage: bench_kill KILLS [SEED], under the library.
 */
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#include "../test/limiter_world.h"
#include "timing.h"

enum { WAITERS = 16, KILLS_MAX = 1000000, OVER = -1 };

#define UNIT (2 * MIB)

struct board {
    int round;    /* futex: the waiters' turn; OVER ends them */
    int release;  /* futex: they give back */
    int finished; /* futex: how many are done with their part */
    double killed_ns;
    double woken_ns[WAITERS]; /* when the system let a waiter run */
    double acquired_ns[WAITERS];
};

static struct board *board;
static pid_t waiters[WAITERS];
static uint64_t state;
static long pair_steps; /* instructions of an allocation and its free */
static double start_us; /* of a victim, until it holds its memory */
static struct {
    double took_us;
    double asleep_us; /* of it, until the waiter ran */
} longest;

static uint64_t draw(uint64_t below)
{
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return below == 0 ? 0 : (state >> 33) % below;
}

static void wait_word(int *word, int while_it_is)
{
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == while_it_is) {
        syscall(SYS_futex, word, FUTEX_WAIT, while_it_is, NULL, NULL, 0);
    }
}

static void set_word(int *word, int value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void finish_part(void)
{
    __atomic_add_fetch(&board->finished, 1, __ATOMIC_ACQ_REL);
    syscall(SYS_futex, &board->finished, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void await_all(void)
{
    for (int done = 0; done < WAITERS; done = __atomic_load_n(&board->finished, __ATOMIC_ACQUIRE)) {
        wait_word(&board->finished, done);
    }
    set_word(&board->finished, 0);
}

/* -- the waiters ---------------------------------------------------------------------------------------------------- */

static void wait_and_acquire(int self)
{
    CUdeviceptr pointer;
    world_context(0);
    finish_part();
    for (int round = 0;; round++) {
        wait_word(&board->round, round);
        if (__atomic_load_n(&board->round, __ATOMIC_ACQUIRE) == OVER) return;
        board->woken_ns[self] = now_ns();
        CUresult result;
        while ((result = cuMemAlloc_v2(&pointer, UNIT)) == CUDA_ERROR_OUT_OF_MEMORY) sched_yield();
        OK(result);
        board->acquired_ns[self] = now_ns();
        finish_part();
        wait_word(&board->release, round);
        OK(cuMemFree_v2(pointer));
        finish_part();
    }
}

static void start_waiters(void)
{
    fflush(NULL);
    for (int i = 0; i < WAITERS; i++) {
        waiters[i] = fork();
        CHECK(waiters[i] >= 0);
        if (waiters[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            wait_and_acquire(i);
            _exit(0);
        }
    }
    await_all();
}

static void end_waiters(void)
{
    set_word(&board->round, OVER);
    for (int i = 0; i < WAITERS; i++) {
        int status;
        CHECK(waitpid(waiters[i], &status, 0) == waiters[i] && status == 0);
    }
}

/* -- the victim ----------------------------------------------------------------------------------------------------- */

static pid_t start_victim(bool is_traced)
{
    CUdeviceptr pointer;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child != 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (is_traced) CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
    world_context(0);
    OK(cuMemAlloc_v2(&pointer, WAITERS / 2 * UNIT));
    raise(SIGSTOP);
    for (;;) {
        OK(cuMemAlloc_v2(&pointer, UNIT));
        OK(cuMemFree_v2(pointer));
        if (pair_steps == 0) raise(SIGSTOP); /* the first ones are counted */
    }
}

/* Leads a stopped victim so many instructions on; false when it stopped by itself before. */
static bool lead(pid_t victim, long steps, long *made)
{
    for (long i = 0; i < steps; i++) {
        int status;
        CHECK(ptrace(PTRACE_SINGLESTEP, victim, NULL, NULL) == 0);
        CHECK(waitpid(victim, &status, 0) == victim && WIFSTOPPED(status));
        *made = i;
        if (WSTOPSIG(status) == SIGSTOP) return false;
    }
    return true;
}

static void bury(pid_t victim)
{
    CHECK(kill(victim, SIGKILL) == 0);
    while (waitpid(victim, NULL, 0) == victim && kill(victim, 0) == 0) continue;
}

/* The shortest of some starts: points drawn below it lie within a start also while the machine is busy. */
static double measure_start(void)
{
    double shortest = 1e9;
    for (int i = 0; i < 5; i++) {
        int status;
        double begin = now_ns();
        pid_t victim = start_victim(false);
        CHECK(waitpid(victim, &status, WUNTRACED) == victim && WIFSTOPPED(status));
        double took = (now_ns() - begin) / 1000;
        shortest = took < shortest ? took : shortest;
        bury(victim);
    }
    return shortest;
}

/* Instructions of an allocation and its free: the second pair's, which is a usual one. */
static long measure_pair(void)
{
    int status;
    long steps = 0;
    pid_t victim = start_victim(true);
    CHECK(waitpid(victim, &status, WUNTRACED) == victim && WIFSTOPPED(status));
    CHECK(!lead(victim, 1000000, &steps));
    CHECK(!lead(victim, 1000000, &steps));
    bury(victim);
    return steps;
}

static bool can_trace(void)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        _exit(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0 ? 0 : 1);
    }
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void sleep_us(uint64_t us)
{
    const struct timespec moment = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    nanosleep(&moment, NULL);
}

/* A victim at its point; it is alive. */
static pid_t victim_at_its_point(bool is_traced, bool in_start)
{
    int status;
    long made = 0;
    pid_t victim = start_victim(is_traced && !in_start);
    if (in_start) {
        sleep_us(draw((uint64_t)start_us));
        return victim;
    }
    CHECK(waitpid(victim, &status, WUNTRACED) == victim && WIFSTOPPED(status));
    if (is_traced) {
        lead(victim, (long)draw((uint64_t)(3 * pair_steps)), &made);
    } else {
        kill(victim, SIGCONT);
        sleep_us(draw(200));
    }
    return victim;
}

/* -- a round -------------------------------------------------------------------------------------------------------- */

static void run_round(int round, bool is_traced, bool in_start, double *worst_us)
{
    pid_t victim = victim_at_its_point(is_traced, in_start);
    board->killed_ns = now_ns();
    CHECK(kill(victim, SIGKILL) == 0);
    set_word(&board->round, round + 1);
    while (waitpid(victim, NULL, 0) == victim && kill(victim, 0) == 0) continue;
    await_all();
    CHECK_EQ_U64(charged(0), WAITERS * UNIT);
    *worst_us = 0;
    for (int i = 0; i < WAITERS; i++) {
        double took = (board->acquired_ns[i] - board->killed_ns) / 1000;
        *worst_us = took > *worst_us ? took : *worst_us;
        if (took > longest.took_us) {
            longest.took_us = took;
            longest.asleep_us = (board->woken_ns[i] - board->killed_ns) / 1000;
        }
    }
    set_word(&board->release, round + 1);
    await_all();
    CHECK_EQ_U64(charged(0), 0);
}

int main(int argc, char **argv)
{
    static double worst_us[KILLS_MAX];
    struct tessera_share_spec spec = a_share(WAITERS * UNIT, 0);
    int kills = argc > 1 ? atoi(argv[1]) : 0;
    int in_start = 0;
    CHECK(kills > 0 && kills <= KILLS_MAX);
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    state = seed;
    grant(&spec);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED);
    bool is_traced = can_trace();
    start_us = measure_start();
    pair_steps = is_traced ? measure_pair() : 1;
    start_waiters();
    for (int round = 0; round < kills; round++) {
        bool early = draw(4) == 0;
        in_start += early;
        run_round(round, is_traced, early, &worst_us[round]);
    }
    end_waiters();
    double p99 = quantile(worst_us, kills, 0.99);
    printf("%d kills, seed %" PRIu64 ": %d at %s of allocate and free (%ld instructions), %d during the start (%.0f us); the last "
           "of %d waiters has its memory after p50 %.0f us, p99 %.0f us, worst %.0f us, of which the system let it wait %.0f us; the books were exact every time\n",
           kills, seed, kills - in_start, is_traced ? "an instruction" : "a moment (no tracing here)", pair_steps, in_start, start_us,
           WAITERS, median(worst_us, kills), p99, quantile(worst_us, kills, 1), longest.asleep_us);
    return 0;
}
