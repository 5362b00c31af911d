/* DESIGN
 *
 * Several processes of one share: they count together, and a dead one gives its memory back and blocks nobody. Fork,
 * exec, raw clone, threads.
 */
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>

#include "limiter_world.h"

static const char *program; /* for exec; not /proc/self/exe, which is valgrind when that runs us */

enum { ALLOCATE, FREE_BYTES, FREE_LAST, QUIT };

/* Does what it is told: an operation and a size, answers a result or a figure. */
static void obedient(int in, int out)
{
    uint64_t operation;
    CUdeviceptr last = 0;
    size_t free_bytes;
    size_t total;
    world_context(0);
    while (read(in, &operation, sizeof operation) == sizeof operation) {
        uint64_t bytes = hear(in);
        switch (operation) {
        case ALLOCATE: tell(out, cuMemAlloc_v2(&last, bytes)); break;
        case FREE_LAST: tell(out, cuMemFree_v2(last)); break;
        case QUIT: _exit(0);
        default:
            OK(cuMemGetInfo_v2(&free_bytes, &total));
            tell(out, free_bytes);
        }
    }
}

static uint64_t ask(struct child *child, uint64_t operation, uint64_t bytes)
{
    tell(child->to, operation);
    tell(child->to, bytes);
    return hear(child->from);
}

/* Ends a child in its own time; child_end sends the second word. */
static void dismiss(struct child *child)
{
    tell(child->to, QUIT);
    child_end(child, 0);
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

/* The promise is one second; asking again is all the waiting there is. */
static void free_becomes(struct child *child, uint64_t bytes)
{
    uint64_t start = now_ms();
    while (ask(child, FREE_BYTES, 0) != bytes) {
        CHECK(now_ms() - start < 1000);
    }
}

static void processes_of_a_share_count_together(void)
{
    struct child one = child_start(obedient);
    struct child two = child_start(obedient);
    IS(ask(&one, ALLOCATE, 600 * MIB), CUDA_SUCCESS);
    IS(ask(&two, ALLOCATE, 600 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    IS(ask(&two, ALLOCATE, 424 * MIB), CUDA_SUCCESS);
    IS(ask(&one, ALLOCATE, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(ask(&one, FREE_BYTES, 0), 0);
    CHECK_EQ_U64(charged(0), GIB);
    IS(ask(&two, FREE_LAST, 0), CUDA_SUCCESS);
    CHECK_EQ_U64(ask(&one, FREE_BYTES, 0), 424 * MIB);
    dismiss(&one);
    dismiss(&two);
}

static void a_killed_process_gives_back_before_anyone_is_refused(void)
{
    struct child one = child_start(obedient);
    struct child two = child_start(obedient);
    IS(ask(&one, ALLOCATE, GIB), CUDA_SUCCESS);
    IS(ask(&two, ALLOCATE, 1), CUDA_ERROR_OUT_OF_MEMORY);
    child_end(&one, SIGKILL);
    IS(ask(&two, ALLOCATE, GIB), CUDA_SUCCESS);
    CHECK_EQ_U64(charged(0), GIB);
    dismiss(&two);
}

static void a_killed_process_disappears_from_what_others_see(void)
{
    struct child one = child_start(obedient);
    struct child two = child_start(obedient);
    IS(ask(&one, ALLOCATE, 600 * MIB), CUDA_SUCCESS);
    CHECK_EQ_U64(ask(&two, FREE_BYTES, 0), 424 * MIB);
    child_end(&one, SIGKILL);
    free_becomes(&two, GIB);
    dismiss(&two);
}

static void a_stopped_process_blocks_nobody_and_keeps_what_it_holds(void)
{
    int status;
    struct child one = child_start(obedient);
    struct child two = child_start(obedient);
    IS(ask(&one, ALLOCATE, 600 * MIB), CUDA_SUCCESS);
    CHECK(kill(one.pid, SIGSTOP) == 0 && waitpid(one.pid, &status, WUNTRACED) == one.pid);
    IS(ask(&two, ALLOCATE, 600 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    IS(ask(&two, ALLOCATE, 424 * MIB), CUDA_SUCCESS);
    child_end(&one, SIGKILL);
    dismiss(&two);
}

static void the_second_process_sees_its_memory_after_the_first_exits(void)
{
    struct child one = child_start(obedient);
    struct child two = child_start(obedient);
    IS(ask(&one, ALLOCATE, GIB), CUDA_SUCCESS);
    CHECK_EQ_U64(ask(&two, FREE_BYTES, 0), 3 * GIB);
    dismiss(&one);
    free_becomes(&two, 4 * GIB);
    IS(ask(&two, ALLOCATE, GIB), CUDA_SUCCESS);
    CHECK_EQ_U64(ask(&two, FREE_BYTES, 0), 3 * GIB);
    dismiss(&two);
}

static void a_survivor_counts_on_after_others_came_and_went(void)
{
    struct child survivor = child_start(obedient);
    IS(ask(&survivor, ALLOCATE, 256 * MIB), CUDA_SUCCESS);
    for (int i = 0; i < 10; i++) {
        struct child other = child_start(obedient);
        struct child another = child_start(obedient);
        IS(ask(&other, ALLOCATE, 128 * MIB), CUDA_SUCCESS);
        IS(ask(&another, ALLOCATE, 128 * MIB), CUDA_SUCCESS);
        child_end(&other, SIGKILL);
        dismiss(&another);
    }
    IS(ask(&survivor, ALLOCATE, 512 * MIB), CUDA_SUCCESS);
    tessera_region_reap(the_region());
    CHECK_EQ_U64(charged(0), 768 * MIB);
    IS(ask(&survivor, ALLOCATE, 256 * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
    dismiss(&survivor);
}

static void the_helper_lists_and_reaps_processes(void)
{
    struct tessera_process list[4];
    struct child one = child_start(obedient);
    struct child two = child_start(obedient);
    IS(ask(&one, ALLOCATE, 1), CUDA_SUCCESS);
    IS(ask(&two, ALLOCATE, 1024), CUDA_SUCCESS);
    CHECK_EQ_U64(tessera_region_processes(the_region(), list, 4), 2);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_U64(list[i].used_bytes[0], list[i].pid == (uint32_t)one.pid ? 512 : 1024);
        CHECK(list[i].pid == (uint32_t)one.pid || list[i].pid == (uint32_t)two.pid);
    }
    child_end(&one, SIGKILL);
    CHECK_EQ_U64(tessera_region_reap(the_region()), 1);
    CHECK_EQ_U64(tessera_region_processes(the_region(), list, 4), 1);
    CHECK_EQ_U64(list[0].pid, two.pid);
    CHECK_EQ_U64(charged(0), 1024);
    dismiss(&two);
}

enum { CHUNK = 16, GREEDY = 8 };

/* Takes 16 MiB at a time until refused; tells how many it got, and keeps them. */
static void greedy(int in, int out)
{
    CUdeviceptr pointer;
    uint64_t count = 0;
    world_context(0);
    hear(in);
    while (cuMemAlloc_v2(&pointer, CHUNK * MIB) == CUDA_SUCCESS) {
        count++;
    }
    tell(out, count);
    hear(in);
}

static void greedy_processes_get_the_whole_share_and_no_more(void)
{
    struct child children[GREEDY];
    uint64_t count = 0;
    for (int i = 0; i < GREEDY; i++) {
        children[i] = child_start(greedy);
    }
    for (int i = 0; i < GREEDY; i++) {
        tell(children[i].to, 0);
    }
    for (int i = 0; i < GREEDY; i++) {
        count += hear(children[i].from);
    }
    CHECK_EQ_U64(count, GIB / (CHUNK * MIB));
    CHECK_EQ_U64(charged(0), GIB);
    OK(REAL(cuInit)(0));
    CUcontext context;
    OK(REAL(cuDevicePrimaryCtxRetain)(&context, 0));
    OK(REAL(cuCtxSetCurrent)(context));
    CHECK_EQ_U64(taken(), GIB);
    for (int i = 0; i < GREEDY; i++) {
        child_end(&children[i], 0);
    }
}

/* After fork the simulated driver, like the real one, starts again in the child. */
static void hold_in_child(int in, int out)
{
    CUdeviceptr pointer;
    world_context(0);
    tell(out, cuMemAlloc_v2(&pointer, 256 * MIB));
    hear(in);
}

static void a_forked_child_counts_for_itself(void)
{
    CUdeviceptr pointer;
    struct tessera_process list[4];
    world_context(0);
    OK(cuMemAlloc_v2(&pointer, 512 * MIB));
    struct child child = child_start(hold_in_child);
    IS(hear(child.from), CUDA_SUCCESS);
    CHECK_EQ_U64(tessera_region_processes(the_region(), list, 4), 2);
    CHECK_EQ_U64(charged(0), 768 * MIB);
    child_end(&child, SIGKILL);
    CHECK_EQ_U64(tessera_region_reap(the_region()), 1);
    CHECK_EQ_U64(charged(0), 512 * MIB);
    OK(cuMemFree_v2(pointer));
    CHECK_EQ_U64(charged(0), 0);
}

/* The child's context gets the address of its parent's. */
static void hold_on_the_second_card(int in, int out)
{
    CUcontext context;
    CUdeviceptr pointer;
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 1));
    tell(out, (uint64_t)(uintptr_t)context);
    tell(out, cuMemAlloc_v2(&pointer, 256 * MIB));
    hear(in);
}

static void a_forked_child_remembers_no_context_of_its_parent(void)
{
    CUcontext context;
    CUdeviceptr pointer;
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuMemAlloc_v2(&pointer, 512 * MIB));
    struct child child = child_start(hold_on_the_second_card);
    CHECK_EQ_U64(hear(child.from), (uintptr_t)context);
    IS(hear(child.from), CUDA_SUCCESS);
    CHECK_EQ_U64(charged(0), 512 * MIB);
    CHECK_EQ_U64(charged(1), 256 * MIB);
    child_end(&child, 0);
}

static void a_raw_clone_is_noticed_like_a_fork(void)
{
    CUdeviceptr pointer;
    int status;
    world_context(0);
    OK(cuMemAlloc_v2(&pointer, 512 * MIB));
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    CHECK(child >= 0);
    if (child == 0) {
        struct tessera_process list[4];
        world_context(0);
        OK(cuMemAlloc_v2(&pointer, 256 * MIB));
        CHECK_EQ_U64(tessera_region_processes(the_region(), list, 4), 2);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_EQ_U64(tessera_region_reap(the_region()), 1);
    CHECK_EQ_U64(charged(0), 512 * MIB);
}

static void exec_into_self(int in, int out)
{
    CUdeviceptr pointer;
    char from[16];
    char to[16];
    world_context(0);
    tell(out, cuMemAlloc_v2(&pointer, GIB));
    snprintf(from, sizeof from, "%d", in);
    snprintf(to, sizeof to, "%d", out);
    execl(program, program, "obey", from, to, (char *)NULL);
    _exit(1);
}

static void exec_gives_back_and_the_new_image_counts(void)
{
    struct child child = child_start(exec_into_self);
    struct tessera_process list[4];
    IS(hear(child.from), CUDA_SUCCESS);
    IS(ask(&child, ALLOCATE, GIB), CUDA_SUCCESS); /* the new image, in the same process */
    CHECK_EQ_U64(charged(0), GIB);
    CHECK_EQ_U64(tessera_region_processes(the_region(), list, 4), 1);
    dismiss(&child);
}

enum { THREADS = 8, PAIRS = 2000 };

static void *churn(void *context)
{
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < PAIRS; i++) {
        CUdeviceptr pointer;
        CUresult result = cuMemAlloc_v2(&pointer, 100 * MIB);
        if (result == CUDA_SUCCESS) {
            OK(cuMemFree_v2(pointer));
        } else {
            IS(result, CUDA_ERROR_OUT_OF_MEMORY);
        }
        CHECK(charged(0) <= 500 * MIB);
    }
    return NULL;
}

static void threads_share_the_books_of_their_process(void)
{
    pthread_t threads[THREADS];
    CUcontext context = world_context(0);
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, churn, context) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(taken(), 0);
}

struct second_thread {
    int to[2];
    int from[2];
};

/* Allocates in each context that it is told, and answers the result. */
static void *allocate_in_each(void *self)
{
    struct second_thread *thread = self;
    for (uint64_t context = hear(thread->to[0]); context != 0; context = hear(thread->to[0])) {
        CUdeviceptr pointer;
        OK(cuCtxSetCurrent((CUcontext)(uintptr_t)context));
        tell(thread->from[1], cuMemAlloc_v2(&pointer, 4096));
    }
    return NULL;
}

static void a_thread_does_not_remember_a_context_that_another_one_destroyed(void)
{
    struct second_thread thread;
    pthread_t id;
    CUcontext context;
    OK(cuInit(0));
    CHECK(pipe(thread.to) == 0 && pipe(thread.from) == 0);
    CHECK(pthread_create(&id, NULL, allocate_in_each, &thread) == 0);
    for (int turn = 0; turn < 6; turn++) { /* the same address each time, the devices in turns */
        OK(cuCtxCreate_v2(&context, 0, turn % 2));
        tell(thread.to[1], (uint64_t)(uintptr_t)context);
        IS(hear(thread.from[0]), CUDA_SUCCESS);
        CHECK_EQ_U64(charged((uint32_t)turn % 2), 4096);
        OK(cuCtxDestroy_v2(context));
        CHECK_EQ_U64(charged((uint32_t)turn % 2), 0);
    }
    tell(thread.to[1], 0);
    pthread_join(id, NULL);
}

static void a_full_table_of_living_processes_refuses_the_next(void)
{
    struct tessera_region *region = the_region();
    struct child child = child_start(obedient);
    IS(ask(&child, ALLOCATE, 1), CUDA_SUCCESS);
    /* 1,023 more processes would only copy this slot's word; a living owner in each is what counts. */
    for (uint32_t i = 1; i < TESSERA_MAX_SLOTS; i++) {
        region->slot[i] = region->slot[0];
        memset(region->slot[i].device, 0, sizeof region->slot[i].device);
    }
    region->usage.slot_high_water = TESSERA_MAX_SLOTS;
    IS(cuInit(0), CUDA_ERROR_NOT_PERMITTED);
    IS(cuMemAlloc_v2(&(CUdeviceptr){0}, 512), CUDA_ERROR_NOT_PERMITTED);
    child_end(&child, SIGKILL);
    world_context(0);
    OK(cuMemAlloc_v2(&(CUdeviceptr){0}, 512));
}

int main(int argc, char **argv)
{
    program = argv[0];
    if (argc == 4 && strcmp(argv[1], "obey") == 0) {
        obedient(atoi(argv[2]), atoi(argv[3]));
        return 0;
    }
    CASE(processes_of_a_share_count_together, GIB, GIB);
    CASE(greedy_processes_get_the_whole_share_and_no_more, GIB, GIB);
    CASE(a_killed_process_gives_back_before_anyone_is_refused, GIB, GIB);
    CASE(a_killed_process_disappears_from_what_others_see, GIB, GIB);
    CASE(a_stopped_process_blocks_nobody_and_keeps_what_it_holds, GIB, GIB);
    CASE(the_second_process_sees_its_memory_after_the_first_exits, 4 * GIB, GIB);
    CASE(a_survivor_counts_on_after_others_came_and_went, GIB, GIB);
    CASE(the_helper_lists_and_reaps_processes, GIB, GIB);
    CASE(a_forked_child_counts_for_itself, GIB, GIB);
    CASE(a_forked_child_remembers_no_context_of_its_parent, GIB, GIB);
    CASE(a_raw_clone_is_noticed_like_a_fork, GIB, GIB);
    CASE(exec_gives_back_and_the_new_image_counts, GIB, GIB);
    CASE(a_thread_does_not_remember_a_context_that_another_one_destroyed, GIB, GIB);
    CASE(threads_share_the_books_of_their_process, 500 * MIB, GIB);
    CASE(a_full_table_of_living_processes_refuses_the_next, GIB, GIB);
    return 0;
}
