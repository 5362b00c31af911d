/* DESIGN
 *
 * The accounting alone, without a driver in between, so that kills land inside it: processes charge and discharge in
 * a tight loop while they are killed at random and replaced, and all of them reap. The model checker proves the
 * algorithm under sequential consistency; this tries the compiled code on the real memory model. Argument: kills
 * (default 400).
 */
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "../src/account.h"
#include "../src/slots.h"
#include "check.h"

enum { PROCESSES = 6, LIMIT = 1000, KILLS = 400, SETTLE_EVERY = 40 };

struct worker {
    uint64_t rounds;
    uint64_t held;
    bool stopped;
};

struct arena {
    struct tessera_region region;
    struct worker worker[PROCESSES];
    bool stop;
};

static struct arena *arena;

static void work(struct worker *self, uint64_t random)
{
    struct process_identity me = lim_identity();
    uint64_t held = 0;
    int slot = lim_register(&arena->region, &me);
    CHECK(slot >= 0);
    while (!__atomic_load_n(&arena->stop, __ATOMIC_ACQUIRE)) {
        random = random * 6364136223846793005ULL + 1442695040888963407ULL;
        uint64_t amount = 1 + (random >> 33) % 200;
        if ((random >> 20 & 1) != 0 && held > 0) {
            amount = amount < held ? amount : held;
            lim_discharge(&arena->region, (uint32_t)slot, 0, amount);
            held -= amount;
        } else if (lim_charge(&arena->region, (uint32_t)slot, 0, amount, LIMIT)) {
            held += amount;
        } else if ((random >> 40) % 64 == 0) {
            lim_reap_dead(&arena->region, &me, (uint32_t)slot);
        }
        __atomic_store_n(&self->rounds, self->rounds + 1, __ATOMIC_RELEASE);
    }
    self->held = held;
    __atomic_store_n(&self->stopped, true, __ATOMIC_RELEASE);
    for (;;) {
        pause();
    }
}

static pid_t a_worker(int i, uint64_t random)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        work(&arena->worker[i], random);
    }
    return child;
}

static uint64_t used(void)
{
    uint64_t granules = lim_gauge_used(__atomic_load_n(&arena->region.usage.device[0].gauge, __ATOMIC_ACQUIRE));
    CHECK(granules <= LIMIT);
    return granules;
}

static void wait_rounds(const struct worker *worker, uint64_t rounds)
{
    uint64_t start = __atomic_load_n(&worker->rounds, __ATOMIC_ACQUIRE);
    while (__atomic_load_n(&worker->rounds, __ATOMIC_ACQUIRE) - start < rounds) {
        used();
        sched_yield();
    }
}

static void bury(pid_t pid)
{
    CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

/* All stop; the books must balance; all are killed; nothing may be left. */
static void settle(pid_t *pids)
{
    struct process_identity me = lim_identity();
    uint64_t held = 0;
    __atomic_store_n(&arena->stop, true, __ATOMIC_RELEASE);
    for (int i = 0; i < PROCESSES; i++) {
        while (!__atomic_load_n(&arena->worker[i].stopped, __ATOMIC_ACQUIRE)) {
            CHECK(waitpid(pids[i], NULL, WNOHANG) == 0);
            sched_yield();
        }
        held += arena->worker[i].held;
    }
    lim_reap_dead(&arena->region, &me, TESSERA_MAX_SLOTS);
    CHECK_EQ_U64(used(), held);
    for (int i = 0; i < PROCESSES; i++) {
        bury(pids[i]);
    }
    lim_reap_dead(&arena->region, &me, TESSERA_MAX_SLOTS);
    CHECK_EQ_U64(used(), 0);
}

static void start_all(pid_t *pids, uint64_t random)
{
    memset(arena->worker, 0, sizeof arena->worker);
    arena->stop = false;
    for (int i = 0; i < PROCESSES; i++) {
        pids[i] = a_worker(i, random + (uint64_t)i);
    }
}

int main(int argc, char **argv)
{
    int kills = argc > 1 ? atoi(argv[1]) : KILLS;
    uint64_t random = 7;
    pid_t pids[PROCESSES];
    arena = mmap(NULL, sizeof *arena, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(arena != MAP_FAILED);
    arena->region.header.device_count = 1;
    start_all(pids, random);
    for (int i = 1; i <= kills; i++) {
        random = random * 6364136223846793005ULL + 1442695040888963407ULL;
        int victim = (int)((random >> 33) % PROCESSES);
        wait_rounds(&arena->worker[victim], 1 + (random >> 40) % 500);
        bury(pids[victim]);
        pids[victim] = a_worker(victim, random);
        if (i % SETTLE_EVERY == 0) {
            settle(pids);
            start_all(pids, random);
        }
    }
    settle(pids);
    printf("%d kills inside the accounting: the books balanced %d times, reaped %" PRIu64 " slots, at most %" PRIu64
           " taken\n",
           kills, kills / SETTLE_EVERY + 1, arena->region.usage.reaped_count,
           arena->region.usage.slot_high_water);
    return 0;
}
