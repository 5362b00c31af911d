/* DESIGN
 *
 * Eight processes allocate and free as fast as they can under one limit, one of them is killed at a random moment.
 * Promises: the share never passes its limit, the survivors finish all their work, what is accounted in the end is
 * what the living hold, and the victim's memory is back within a second, measured and printed. Argument: rounds
 * (default 2), seed.
 */
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include "limiter_world.h"

enum { PROCESSES = 8, PAIRS = 10000, HELD = 8, ROUNDS = 2 };

#define LIMIT (256 * MIB)
#define LARGEST (16 * MIB)

struct worker {
    uint64_t steps; /* pairs done; the parent picks its moment by it */
    uint64_t held;  /* bytes, rounded as they are charged; exact once `steps` is PAIRS */
    uint64_t refused;
};

static struct worker *workers;

static uint64_t next(uint64_t *random)
{
    *random = *random * 6364136223846793005ULL + 1442695040888963407ULL;
    return *random >> 33;
}

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

/* Works through its pairs, holding up to HELD blocks at a time, then stays alive with what it holds. */
static void work(struct worker *self, uint64_t random, int release)
{
    CUdeviceptr pointer[HELD] = {0};
    uint64_t size[HELD] = {0};
    uint64_t held = 0;
    world_context(0);
    for (uint64_t step = 0; step < PAIRS; step++) {
        size_t at = next(&random) % HELD;
        if (pointer[at] != 0) {
            OK(cuMemFree_v2(pointer[at]));
            held -= size[at];
            pointer[at] = 0;
        }
        uint64_t bytes = 1 + next(&random) % LARGEST;
        CUresult result = cuMemAlloc_v2(&pointer[at], bytes);
        size[at] = (bytes + 511) / 512 * 512;
        if (result == CUDA_SUCCESS) {
            held += size[at];
        } else {
            IS(result, CUDA_ERROR_OUT_OF_MEMORY);
            pointer[at] = 0;
            self->refused++;
        }
        __atomic_store_n(&self->held, held, __ATOMIC_RELAXED);
        __atomic_store_n(&self->steps, step + 1, __ATOMIC_RELEASE);
    }
    hear(release);
}

static bool is_listed(pid_t pid)
{
    struct tessera_process list[PROCESSES * 2];
    int count = tessera_region_processes(the_region(), list, PROCESSES * 2);
    for (int i = 0; i < count && i < PROCESSES * 2; i++) {
        if (list[i].pid == (uint32_t)pid) {
            return true;
        }
    }
    return false;
}

static uint64_t steps_of(const struct worker *worker)
{
    return __atomic_load_n(&worker->steps, __ATOMIC_ACQUIRE);
}

/* Microseconds from the kill until the victim's memory is back. */
static uint64_t kill_victim(pid_t pid, const struct worker *worker, uint64_t at)
{
    while (steps_of(worker) < at) {
        CHECK(charged(0) <= LIMIT);
        sched_yield();
    }
    uint64_t start = now_us();
    CHECK(kill(pid, SIGKILL) == 0);
    CHECK(waitpid(pid, NULL, 0) == pid);
    do {
        tessera_region_reap(the_region());
    } while (is_listed(pid));
    return now_us() - start;
}

static uint64_t run_round(uint64_t *random)
{
    pid_t pids[PROCESSES];
    int release[2];
    uint64_t held = 0;
    memset(workers, 0, PROCESSES * sizeof *workers);
    CHECK(pipe(release) == 0);
    for (int i = 0; i < PROCESSES; i++) {
        uint64_t seed = next(random);
        pids[i] = fork();
        CHECK(pids[i] >= 0);
        if (pids[i] == 0) {
            work(&workers[i], seed, release[0]);
            _exit(0);
        }
    }
    int victim = (int)(next(random) % PROCESSES);
    uint64_t took = kill_victim(pids[victim], &workers[victim], next(random) % (PAIRS - 1));
    for (int i = 0; i < PROCESSES; i++) {
        while (i != victim && steps_of(&workers[i]) < PAIRS) {
            CHECK(charged(0) <= LIMIT);
            CHECK(waitpid(pids[i], NULL, WNOHANG) == 0); /* a survivor must not fail */
            sched_yield();
        }
        held += i == victim ? 0 : workers[i].held;
    }
    CHECK_EQ_U64(charged(0), held);
    for (int i = 1; i < PROCESSES; i++) {
        tell(release[1], 0); /* one word for each survivor */
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        if (i == victim) continue;
        CHECK(waitpid(pids[i], &status, 0) == pids[i] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    close(release[0]);
    close(release[1]);
    tessera_region_reap(the_region());
    CHECK_EQ_U64(charged(0), 0);
    return took;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : ROUNDS;
    uint64_t random = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint64_t worst = 0;
    uint64_t sum = 0;
    struct tessera_share_spec spec = a_share(LIMIT, 0);
    grant(&spec);
    workers = mmap(NULL, PROCESSES * sizeof *workers, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(workers != MAP_FAILED);
    for (int round = 0; round < rounds; round++) {
        uint64_t took = run_round(&random);
        CHECK(took <= 1000000);
        worst = took > worst ? took : worst;
        sum += took;
    }
    uint64_t refused = 0;
    for (int i = 0; i < PROCESSES; i++) {
        refused += workers[i].refused;
    }
    printf("%d rounds of %d x %d pairs, one killed each: accounted == held by the living in all; recovery mean %" PRIu64
           " us, worst %" PRIu64 " us; last round refused %" PRIu64 "\n",
           rounds, PROCESSES, PAIRS, rounds > 0 ? sum / (uint64_t)rounds : 0, worst, refused);
    return 0;
}
