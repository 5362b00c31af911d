/* DESIGN
 *
 * What the library adds to the start of a process, in microseconds from spawn to exit, when 512 slots of its share are taken
 * by the living. Two kinds of process: one that never touches a device (/bin/true), and one that joins the share (cuInit, a
 * context, an allocation, an answer of cuMemGetInfo). Each three times in turns: over the bare simulated driver, under
 * the library in a share that is empty, and under it in the full one; the figure is the median of the differences of
 * neighbouring turns. Beside it the same of the processor time, which other work on the machine does not change. The 512
 * are processes that sit in the region and do nothing, one slot each.
 *
 * Usage: bench_start LIBRARY SIM_DIR ROUNDS, itself without the library.
 */
#include <fcntl.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "../src/liveness.h"
#include "../src/slots.h"
#include "../test/limiter_world.h"
#include "timing.h"

enum { TAKEN = 512, ROUNDS_MAX = 10000 };
enum place { BARE, EMPTY, FULL, PLACES };

static const char *library;
static const char *driver;
static char empty_region[320];
static pid_t holders[TAKEN];

/* What a program of the share does at least. */
static int join(void)
{
    CUdeviceptr pointer;
    size_t free_bytes;
    size_t total;
    world_context(0);
    OK(cuMemAlloc_v2(&pointer, MIB));
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    return 0;
}

static void take_slots(void)
{
    int ready[2];
    uint64_t word;
    CHECK(pipe(ready) == 0);
    for (int i = 0; i < TAKEN; i++) {
        holders[i] = fork();
        CHECK(holders[i] >= 0);
        if (holders[i] != 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct process_identity self = lim_identity();
        CHECK(lim_register(the_region(), &self) >= 0);
        tell(ready[1], 1);
        for (;;) pause();
    }
    for (int i = 0; i < TAKEN; i++) CHECK(read(ready[0], &word, sizeof word) == sizeof word);
}

static void give_slots(void)
{
    for (int i = 0; i < TAKEN; i++) {
        kill(holders[i], SIGKILL);
        waitpid(holders[i], NULL, 0);
    }
}

struct taken {
    double wall_us;
    double processor_us;
};

static double seconds_of(const struct timeval *time)
{
    return (double)time->tv_sec + (double)time->tv_usec / 1e6;
}

static struct taken start_once(enum place place, char *const arguments[])
{
    char preload[512] = "";
    char path[512];
    struct rusage usage;
    char region[400];
    char machine[400];
    int status;
    pid_t pid;
    if (place != BARE) snprintf(preload, sizeof preload, "LD_PRELOAD=%s", library);
    snprintf(region, sizeof region, "TESSERA_REGION=%s", place == FULL ? region_path : empty_region);
    snprintf(machine, sizeof machine, "TESSERA_SIM_MACHINE=%s", world_path);
    snprintf(path, sizeof path, "LD_LIBRARY_PATH=%s", driver);
    char *const environment[] = {region, machine, path, preload[0] == '\0' ? NULL : preload, NULL};
    double begin = now_ns();
    CHECK(posix_spawn(&pid, arguments[0], NULL, NULL, arguments, environment) == 0);
    CHECK(wait4(pid, &status, 0, &usage) == pid && status == 0);
    return (struct taken){(now_ns() - begin) / 1000, (seconds_of(&usage.ru_utime) + seconds_of(&usage.ru_stime)) * 1e6};
}

static void compare(const char *name, char *const arguments[], long rounds)
{
    static double bare[ROUNDS_MAX];
    static double added[2][PLACES][ROUNDS_MAX]; /* wall, processor */
    for (long i = 0; i < rounds; i++) {
        struct taken without = start_once(BARE, arguments);
        bare[i] = without.wall_us;
        for (int place = EMPTY; place < PLACES; place++) {
            struct taken with = start_once((enum place)place, arguments);
            added[0][place][i] = with.wall_us - without.wall_us;
            added[1][place][i] = with.processor_us - without.processor_us;
        }
    }
    printf("start of %s: bare %.0f us, added in an empty share %.0f us (processor %.0f), with %d slots taken %.0f us "
           "(processor %.0f), median of %ld\n",
           name, median(bare, rounds), median(added[0][EMPTY], rounds), median(added[1][EMPTY], rounds), TAKEN,
           median(added[0][FULL], rounds), median(added[1][FULL], rounds), rounds);
}

int main(int argc, char **argv)
{
    struct tessera_share_spec spec = a_share(8 * GIB, GIB);
    if (argc == 2 && strcmp(argv[1], "join") == 0) {
        return join();
    }
    long rounds = argc == 4 ? atol(argv[3]) : 0;
    CHECK(rounds > 0 && rounds <= ROUNDS_MAX);
    library = argv[1];
    driver = argv[2];
    grant(&spec);
    snprintf(empty_region, sizeof empty_region, "%s.empty", world_path);
    CHECK_EQ_U64(tessera_region_create(empty_region, &spec), TESSERA_ERROR_OK);
    take_slots();
    compare("/bin/true", (char *[]){"/bin/true", NULL}, rounds);
    compare("a program of the share", (char *[]){"/proc/self/exe", "join", NULL}, rounds);
    give_slots();
    return 0;
}
