/* DESIGN
 *
 * SIGKILL at any instruction of a launch under a limit: processes launch as fast as they may, one is killed at a random
 * moment, again and again, in real time. Afterwards nothing is booked, the share is not in debt by more than what really
 * was under way, and who comes next launches without waiting for the dead. Arguments: rounds (default 40), seed.
 */
#include <time.h>

#include "limiter_world.h"

enum { PROCESSES = 4, ROUNDS = 40 };

#define MS INT64_C(1000000)

static uint64_t random_state;

static uint64_t next_random(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return random_state >> 33;
}

static CUfunction a_kernel(CUstream *stream, const char *name)
{
    CUmodule module;
    CUfunction function;
    world_context(0);
    OK(cuModuleLoadData(&module, "image"));
    OK(cuModuleGetFunction(&function, module, name));
    OK(cuStreamCreate(stream, 1));
    return function;
}

static void launch_for_ever(int in, int out)
{
    CUstream stream;
    CUfunction function = a_kernel(&stream, "k_us_200");
    (void)in;
    tell(out, 1);
    for (;;) {
        OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    }
}

static void pause_a_moment(uint64_t ns)
{
    struct timespec time = {0, (long)ns};
    nanosleep(&time, NULL);
}

/* Until only the living have slots, whoever reaped the others (the next one to die may have, and died before it counted
 * them). /proc tells of a death a moment later. */
static void reap_all(int living)
{
    for (int i = 0; tessera_region_processes(the_region(), NULL, 0) > living && i < 10000; i++) {
        CHECK(tessera_region_reap(the_region()) >= 0);
        pause_a_moment(100000);
    }
    CHECK_EQ_U64(tessera_region_processes(the_region(), NULL, 0), living);
}

static void nothing_is_booked(void)
{
    const struct tessera_device_usage *usage = &the_region()->usage.device[0];
    for (uint32_t slot = 0; slot < TESSERA_MAX_SLOTS; slot++) CHECK_EQ_U64(the_region()->slot[slot].booked[0], 0);
    /* What was under way at a death comes back whole, so the debt is at most a launch of each and what is owed. */
    CHECK(usage->spent_ns - usage->granted_ns <= (PROCESSES + 1) * 10 * MS);
    CHECK(usage->owed_ns >= 0 && usage->owed_ns <= 200 * MS);
}

static void check_survivor(int in, int out)
{
    CUstream stream;
    CUfunction function = a_kernel(&stream, "k_us_50");
    (void)in;
    for (int i = 0; i < 20; i++) OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    OK(cuStreamSynchronize(stream));
    tell(out, 1);
    hear(in);
}

int main(int argc, char **argv)
{
    struct tessera_share_spec spec = a_share(TESSERA_UNLIMITED, TESSERA_UNLIMITED);
    struct child children[PROCESSES];
    int rounds = argc > 1 ? atoi(argv[1]) : ROUNDS;
    random_state = argc > 2 ? (uint64_t)atoi(argv[2]) : 1;
    spec.device[0].compute_limit_milli = 400;
    grant(&spec);
    for (int i = 0; i < PROCESSES; i++) children[i] = child_start(launch_for_ever);
    for (int i = 0; i < PROCESSES; i++) hear(children[i].from);
    for (int round = 0; round < rounds; round++) {
        struct child *victim = &children[next_random() % PROCESSES];
        pause_a_moment(next_random() % 3000000);
        child_end(victim, SIGKILL);
        reap_all(PROCESSES - 1);
        *victim = child_start(launch_for_ever);
        hear(victim->from);
    }
    for (int i = 0; i < PROCESSES; i++) child_end(&children[i], SIGKILL);
    reap_all(0);
    nothing_is_booked();
    struct child survivor = child_start(check_survivor);
    hear(survivor.from);
    child_end(&survivor, 0);
    return 0;
}
