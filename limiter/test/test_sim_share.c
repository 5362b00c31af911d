/* DESIGN
 *
 * The card is one, the processes are many: capacity, death at any moment, exec, and what NVML
 * says about it. The parent here watches through NVML and, where needed, allocates itself.
 */
#include "sim_world.h"

#include <sched.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <time.h>

static const uint64_t CARD = 1024 * MIB;
static nvmlDevice_t card;

static uint64_t used(void)
{
    nvmlMemory_v2_t memory = {.version = NVML_MEMORY_V2};
    CHECK_EQ_U64(nvmlDeviceGetMemoryInfo_v2(card, &memory), NVML_SUCCESS);
    CHECK_EQ_U64(memory.total, memory.used + memory.free + memory.reserved);
    return memory.used;
}

/* Bytes that NVML attributes to the pid; *listed tells whether it is there at all. */
static uint64_t used_by(pid_t pid, bool *listed)
{
    nvmlProcessInfo_v2_t infos[64];
    unsigned count = 64;
    *listed = false;
    CHECK_EQ_U64(nvmlDeviceGetComputeRunningProcesses_v3(card, &count, infos), NVML_SUCCESS);
    for (unsigned i = 0; i < count; i++) {
        if (infos[i].pid != (unsigned)pid) continue;
        *listed = true;
        return infos[i].usedGpuMemory;
    }
    return 0;
}

/* Allocates what it is told and answers the result code, until it is told 0. */
static void obedient(int in, int out)
{
    uint64_t bytes;
    world_context(0);
    while ((bytes = hear(in)) != 0) {
        CUdeviceptr address;
        tell(out, cuMemAlloc_v2(&address, bytes));
    }
}

static uint64_t ask(struct child *child, uint64_t bytes)
{
    tell(child->to, bytes);
    return hear(child->from);
}

static void processes_share_one_capacity(void)
{
    bool listed;
    struct child a = child_start(obedient), b = child_start(obedient);
    CHECK_EQ_U64(ask(&a, 600 * MIB), CUDA_SUCCESS);
    CHECK_EQ_U64(ask(&b, 600 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(ask(&b, 424 * MIB), CUDA_SUCCESS);
    CHECK_EQ_U64(used(), CARD);
    CHECK_EQ_U64(used_by(a.pid, &listed), 600 * MIB);
    CHECK_EQ_U64(used_by(b.pid, &listed), 424 * MIB);
    CHECK_EQ_U64(ask(&a, 1), CUDA_ERROR_OUT_OF_MEMORY);
    child_end(&a, 0);
    CHECK_EQ_U64(ask(&b, 600 * MIB), CUDA_SUCCESS); /* an ended process has given its memory back */
    child_end(&b, 0);
    CHECK_EQ_U64(used(), 0);
}

static void a_killed_process_gives_its_memory_to_the_next_who_is_short(void)
{
    struct child a = child_start(obedient), b = child_start(obedient);
    CHECK_EQ_U64(ask(&a, 1000 * MIB), CUDA_SUCCESS);
    CHECK_EQ_U64(ask(&b, 1000 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    child_end(&a, SIGKILL);
    CHECK_EQ_U64(ask(&b, 1000 * MIB), CUDA_SUCCESS);
    child_end(&b, SIGKILL);
    CHECK_EQ_U64(used(), 0);
}

/* Answers every word but 0 with the free bytes that cuMemGetInfo tells. */
static void watchful(int in, int out)
{
    world_context(0);
    while (hear(in) != 0) tell(out, world_free());
}

static uint64_t seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec;
}

static void memory_of_the_dead_is_soon_seen_as_free(void)
{
    struct child watcher = child_start(watchful), a = child_start(obedient);
    CHECK_EQ_U64(ask(&a, 100 * MIB), CUDA_SUCCESS);
    CHECK_EQ_U64(ask(&watcher, 1), CARD - 100 * MIB);
    child_end(&a, SIGKILL);
    uint64_t start = seconds();
    while (ask(&watcher, 1) != CARD) CHECK(seconds() - start < 10); /* looked for every 2 ms */
    child_end(&watcher, 0);
}

static void a_zombie_holds_nothing(void)
{
    bool listed;
    struct child a = child_start(obedient);
    siginfo_t info;
    CHECK_EQ_U64(ask(&a, 100 * MIB), CUDA_SUCCESS);
    CHECK(kill(a.pid, SIGKILL) == 0);
    CHECK(waitid(P_PID, (id_t)a.pid, &info, WEXITED | WNOWAIT) == 0); /* dead, not yet collected */
    CHECK_EQ_U64(used(), 0);
    used_by(a.pid, &listed);
    CHECK(!listed);
    child_end(&a, SIGKILL);
}

/* As obedient, but as process 1 of a PID namespace, as in a container; it ends with the process that the test knows. */
static void obedient_in_a_container(int in, int out)
{
    CHECK(unshare(CLONE_NEWPID) == 0);
    pid_t inside = fork();
    CHECK(inside >= 0);
    if (inside == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        CHECK_EQ_U64(getpid(), 1);
        obedient(in, out);
        _exit(0);
    }
    CHECK(waitpid(inside, NULL, 0) == inside);
}

static bool may_make_a_pid_namespace(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) _exit(unshare(CLONE_NEWPID) == 0 ? 0 : 1);
    return waitpid(child, &status, 0) == child && status == 0;
}

static void containers_see_each_others_memory_and_deaths(void)
{
    if (!may_make_a_pid_namespace()) {
        printf("skipped: containers (this user may not make a PID namespace)\n");
        return;
    }
    struct child a = child_start(obedient_in_a_container), b = child_start(obedient_in_a_container);
    CHECK_EQ_U64(ask(&a, 600 * MIB), CUDA_SUCCESS);
    CHECK_EQ_U64(ask(&b, 600 * MIB), CUDA_ERROR_OUT_OF_MEMORY); /* the living are not taken for dead */
    CHECK_EQ_U64(used(), 600 * MIB);
    child_end(&a, SIGKILL);
    uint64_t start = seconds();
    while (ask(&b, 600 * MIB) != CUDA_SUCCESS) CHECK(seconds() - start < 10); /* its process 1 ends a moment later */
    CHECK_EQ_U64(used(), 600 * MIB);
    child_end(&b, 0);
    CHECK_EQ_U64(used(), 0); /* seen from the host */
}

/* Allocates and frees blocks of many sizes as fast as it can. */
static void restless(int in, int out)
{
    CUdeviceptr held[64] = {0};
    uint32_t seed = (uint32_t)getpid();
    (void)in;
    world_context(0);
    tell(out, 1);
    for (;;) {
        seed = seed * 1664525u + 1013904223u;
        unsigned at = seed >> 26;
        if (held[at] != 0) OK(cuMemFree_v2(held[at]));
        held[at] = 0;
        if (cuMemAlloc_v2(&held[at], 512 + (seed >> 8) % 65536) != CUDA_SUCCESS) held[at] = 0;
    }
}

/* Kills land wherever the child happens to be, inside the lock included. */
static void totals_survive_kills_at_random_points(void)
{
    enum { ROUNDS = 60 };
    struct child witness = child_start(obedient);
    CHECK_EQ_U64(ask(&witness, 3 * MIB), CUDA_SUCCESS);
    for (int round = 0; round < ROUNDS; round++) {
        struct child a = child_start(restless), b = child_start(restless);
        hear(a.from);
        hear(b.from);
        struct timespec pause = {0, 50000 + round * 7919 % 900000}; /* a random point, not a wait */
        nanosleep(&pause, NULL);
        child_end(&a, SIGKILL);
        child_end(&b, SIGKILL);
        CHECK_EQ_U64(used(), 3 * MIB);
    }
    CHECK_EQ_U64(ask(&witness, CARD - 3 * MIB), CUDA_SUCCESS);
    child_end(&witness, 0);
    CHECK_EQ_U64(used(), 0);
}

/* Allocates, then becomes another image in the same pid. */
static void changeling(int in, int out)
{
    CUdeviceptr address;
    char fd_in[16], fd_out[16];
    snprintf(fd_in, sizeof fd_in, "%d", in);
    snprintf(fd_out, sizeof fd_out, "%d", out);
    world_context(0);
    OK(cuMemAlloc_v2(&address, 200 * MIB));
    tell(out, hear(in));
    execl("/proc/self/exe", "test_sim_share", "--reborn", fd_in, fd_out, (char *)NULL);
    _exit(3);
}

static int reborn(char **argv)
{
    int in = atoi(argv[2]), out = atoi(argv[3]);
    tell(out, 2);
    tell(out, hear(in) + (uint64_t)cuInit(0));
    hear(in);
    return 0;
}

static void exec_gives_the_memory_of_the_old_image_back(void)
{
    struct child child = child_start(changeling);
    tell(child.to, 1);
    CHECK_EQ_U64(hear(child.from), 1);
    CHECK_EQ_U64(hear(child.from), 2); /* the new image runs; it has not called cuInit */
    tell(child.to, 3);
    CHECK_EQ_U64(hear(child.from), 3); /* now it has */
    CHECK_EQ_U64(used(), 0);
    child_end(&child, 0);
}

/* The same image again and again, at the same addresses: only the kernel's random bytes differ. */
static void fixed(int in, int out)
{
    char fd_in[16], fd_out[16];
    snprintf(fd_in, sizeof fd_in, "%d", in);
    snprintf(fd_out, sizeof fd_out, "%d", out);
    CHECK(personality(ADDR_NO_RANDOMIZE) >= 0);
    execl("/proc/self/exe", "test_sim_share", "--fixed", fd_in, fd_out, (char *)NULL);
    _exit(3);
}

/* Word 1: allocate and become the next image. Word 0: end. */
static int fixed_image(char **argv)
{
    CUdeviceptr address;
    int in = atoi(argv[2]), out = atoi(argv[3]);
    world_context(0);
    tell(out, 1);
    if (hear(in) == 0) return 0;
    OK(cuMemAlloc_v2(&address, 200 * MIB));
    execl("/proc/self/exe", argv[0], argv[1], argv[2], argv[3], (char *)NULL);
    return 3;
}

static void an_image_that_looks_the_same_is_another_after_cuInit(void)
{
    struct child child = child_start(fixed);
    for (int image = 0; image < 3; image++) {
        CHECK_EQ_U64(hear(child.from), 1);
        CHECK_EQ_U64(used(), 0);
        if (image < 2) tell(child.to, 1);
    }
    child_end(&child, 0);
}

static void cuInit_alone_does_not_put_a_process_on_a_card(void)
{
    bool listed;
    OK(cuInit(0));
    used_by(getpid(), &listed);
    CHECK(!listed);
}

static void a_forked_child_is_nobody_until_it_initialises(void)
{
    bool listed;
    struct child child;
    CUdeviceptr address;
    world_context(0);
    OK(cuMemAlloc_v2(&address, 10 * MIB));
    fflush(NULL);
    child.pid = fork();
    if (child.pid == 0) {
        IS(cuMemFree_v2(address), CUDA_ERROR_NOT_INITIALIZED);
        world_context(0);
        IS(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE); /* its parent's, not its own */
        _exit(0);
    }
    int status;
    CHECK(waitpid(child.pid, &status, 0) == child.pid && status == 0);
    CHECK_EQ_U64(used(), 10 * MIB);
    CHECK_EQ_U64(used_by(getpid(), &listed), 10 * MIB);
    OK(cuMemFree_v2(address));
}

static void the_process_list_tells_the_size_it_needs(void)
{
    unsigned count = 0;
    nvmlProcessInfo_v1_t info;
    CHECK_EQ_U64(nvmlDeviceGetComputeRunningProcesses(card, &count, NULL), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_EQ_U64(count, 1);
    CHECK_EQ_U64(nvmlDeviceGetComputeRunningProcesses(card, &count, &info), NVML_SUCCESS);
    CHECK_EQ_U64(info.pid, getpid());
}

static void a_process_that_only_watches_is_not_listed(void)
{
    unsigned count = 64;
    nvmlProcessInfo_v2_t infos[64];
    CHECK_EQ_U64(nvmlDeviceGetComputeRunningProcesses_v3(card, &count, infos), NVML_SUCCESS);
    CHECK_EQ_U64(count, 0);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--fixed") == 0) return fixed_image(argv);
    if (argc == 4 && strcmp(argv[1], "--reborn") == 0) return reborn(argv);
    world_write("device memory_mib=1024\n");
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(nvmlDeviceGetHandleByIndex_v2(0, &card), NVML_SUCCESS);
    a_process_that_only_watches_is_not_listed();
    processes_share_one_capacity();
    a_killed_process_gives_its_memory_to_the_next_who_is_short();
    memory_of_the_dead_is_soon_seen_as_free();
    a_zombie_holds_nothing();
    containers_see_each_others_memory_and_deaths();
    totals_survive_kills_at_random_points();
    exec_gives_the_memory_of_the_old_image_back();
    an_image_that_looks_the_same_is_another_after_cuInit();
    cuInit_alone_does_not_put_a_process_on_a_card();
    a_forked_child_is_nobody_until_it_initialises(); /* from here on this process is on the card */
    the_process_list_tells_the_size_it_needs();
    CHECK_EQ_U64(nvmlShutdown(), NVML_SUCCESS);
    return 0;
}
