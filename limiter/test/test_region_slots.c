/* DESIGN
 *
 * Slots with real processes: registering, dying in every way, exec, zombies, a full table, another PID namespace. A
 * child tells its parent that it is ready through a pipe; nobody sleeps.
 */
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "../src/account.h"
#include "../src/slots.h"
#include "check.h"
#include "tessera_region_api.h"

#define LIMIT_GRANULES 1000

static struct tessera_region *region;
static int ready[2];

static void a_new_region(void)
{
    memset(region, 0, sizeof *region);
    region->header.device_count = 1;
}

static uint64_t used(void)
{
    return lim_gauge_used(region->usage.device[0].gauge);
}

static int registered(void)
{
    struct process_identity self = lim_identity();
    return lim_register(region, &self);
}

static unsigned reaped(void)
{
    struct process_identity self = lim_identity();
    return lim_reap_dead(region, &self, TESSERA_MAX_SLOTS);
}

static void say_ready(void)
{
    CHECK(write(ready[1], "r", 1) == 1);
}

static void wait_ready(void)
{
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1);
}

static void hold(uint64_t granules)
{
    int slot = registered();
    CHECK(slot >= 0 && lim_charge(region, (uint32_t)slot, 0, granules, LIMIT_GRANULES));
}

/* A child that holds memory and then waits to be killed. */
static pid_t a_holder(uint64_t granules)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        hold(granules);
        say_ready();
        for (;;) {
            pause();
        }
    }
    wait_ready();
    return child;
}

static void kill_child(pid_t child)
{
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

static void test_living_processes_count_together(void)
{
    a_new_region();
    pid_t one = a_holder(10);
    pid_t two = a_holder(20);
    CHECK_EQ_U64(reaped(), 0);
    CHECK_EQ_U64(used(), 30);
    kill_child(one);
    kill_child(two);
}

static void test_a_killed_process_gives_back_its_memory_once(void)
{
    a_new_region();
    pid_t one = a_holder(10);
    pid_t two = a_holder(20);
    kill_child(one);
    CHECK_EQ_U64(reaped(), 1);
    CHECK_EQ_U64(used(), 20);
    CHECK_EQ_U64(reaped(), 0);
    CHECK_EQ_U64(used(), 20);
    kill_child(two);
    CHECK_EQ_U64(reaped(), 1);
    CHECK_EQ_U64(used(), 0);
}

static void test_a_zombie_counts_as_dead(void)
{
    siginfo_t info;
    a_new_region();
    pid_t child = a_holder(10);
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT) == 0); /* dead, not collected */
    CHECK_EQ_U64(reaped(), 1);
    CHECK_EQ_U64(used(), 0);
    CHECK(waitpid(child, NULL, 0) == child);
}

static void test_a_stopped_process_keeps_its_memory(void)
{
    int status;
    a_new_region();
    pid_t child = a_holder(10);
    CHECK(kill(child, SIGSTOP) == 0 && waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
    CHECK_EQ_U64(reaped(), 0);
    CHECK_EQ_U64(used(), 10);
    kill_child(child);
}

static void test_exec_gives_back_what_the_old_image_held(void)
{
    a_new_region();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        hold(10);
        dup2(ready[1], 1);
        execl("/bin/sh", "sh", "-c", "printf r; exec sleep 1000", (char *)NULL);
        _exit(1);
    }
    wait_ready();
    /* The shell goes on to another exec, and in the middle of one the kernel tells nothing about a process. */
    uint64_t given_up = lim_now_ns() + UINT64_C(5000000000);
    uint64_t found = reaped();
    while (found == 0 && lim_now_ns() < given_up) {
        found = reaped();
    }
    CHECK_EQ_U64(found, 1);
    CHECK_EQ_U64(used(), 0);
    kill_child(child);
}

static void test_a_process_is_not_taken_for_its_own_dead_image(void)
{
    a_new_region();
    hold(5);
    hold(6); /* a second copy of the library in one image */
    CHECK_EQ_U64(reaped(), 0);
    CHECK_EQ_U64(used(), 11);
}

static void test_a_reused_pid_is_another_process(void)
{
    a_new_region();
    pid_t child = a_holder(10);
    struct process_identity judge = lim_identity();
    struct tessera_slot *slot = &region->slot[0];
    CHECK(!lim_is_gone(slot, slot->state, &judge));
    slot->start_ticks++; /* what the slot would say had the PID been given to somebody else */
    CHECK(lim_is_gone(slot, slot->state, &judge));
    slot->start_ticks--;
    kill_child(child);
}

static void test_a_judge_of_another_pid_namespace_buries_nobody(void)
{
    a_new_region();
    pid_t child = a_holder(10);
    kill_child(child);
    struct process_identity stranger = lim_identity();
    stranger.pid_namespace++;
    CHECK_EQ_U64(lim_reap_dead(region, &stranger, TESSERA_MAX_SLOTS), 0);
    stranger.pid_namespace = 0; /* a judge without /proc */
    CHECK_EQ_U64(lim_reap_dead(region, &stranger, TESSERA_MAX_SLOTS), 0);
    CHECK_EQ_U64(used(), 10);
}

static void test_a_full_table_refuses_and_a_death_makes_room(void)
{
    a_new_region();
    pid_t child = a_holder(10);
    for (uint32_t i = 1; i < TESSERA_MAX_SLOTS; i++) {
        CHECK_EQ_U64(registered(), i);
    }
    CHECK_EQ_U64(registered(), TESSERA_ERROR_FULL);
    CHECK_EQ_U64(region->usage.full_count, 1);
    kill_child(child);
    CHECK_EQ_U64(registered(), 0);
    CHECK_EQ_U64(used(), 0);
}

/* Hundreds of neighbours cost a start no judging of each: it looks at some of them, and at those of its own PID. */
static void test_a_start_among_many_finds_what_it_was_before_exec(void)
{
    a_new_region();
    struct process_identity self = lim_identity();
    for (uint32_t i = 0; i < 500; i++) {
        CHECK_EQ_U64(registered(), i);
    }
    struct process_identity before = self;
    before.image_random++;
    CHECK_EQ_U64(lim_register(region, &before), 0); /* all that bear its PID are of another image: given back, and taken anew */
    CHECK_EQ_U64(region->usage.reaped_count, 500);
    for (uint32_t i = 1; i < 500; i++) {
        CHECK_EQ_U64(region->slot[i].state & 3u, TESSERA_FREE);
    }
}

static void test_the_dead_among_many_are_found_by_starts_in_turn(void)
{
    a_new_region();
    pid_t dead = a_holder(10);
    for (uint32_t i = 1; i < 200; i++) {
        CHECK_EQ_U64(registered(), i);
    }
    kill_child(dead);
    for (int start = 0; used() != 0; start++) { /* each looks at a third of them, from a place that moves */
        CHECK(start < 800 && registered() >= 0);
    }
}

static void test_a_claimant_that_died_half_way_is_found(void)
{
    a_new_region();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct process_identity self = lim_identity();
        region->usage.slot_high_water = 1;
        region->slot[0].state = lim_claimed_state(region->slot[0].state, &self); /* and not a step further */
        _exit(0);
    }
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK_EQ_U64(reaped(), 1);
    CHECK_EQ_U64(registered(), 0);
}

static void test_a_reaper_that_died_half_way_is_continued(void)
{
    a_new_region();
    pid_t child = a_holder(10);
    kill_child(child);
    region->slot[0].state = lim_state_with_phase(region->slot[0].state, TESSERA_REAPING);
    CHECK_EQ_U64(reaped(), 1);
    CHECK_EQ_U64(used(), 0);
}

static void test_commands_with_blanks_and_parentheses_are_read(void)
{
    a_new_region();
    CHECK(prctl(PR_SET_NAME, "a) b (c) 1 2") == 0);
    struct process_identity self = lim_identity();
    CHECK_EQ_STR(self.command, "a) b (c) 1 2");
    CHECK(self.start_ticks > 0 && self.pid == (uint32_t)getpid());
    hold(1);
    CHECK_EQ_U64(reaped(), 0);
}

int main(void)
{
    region = mmap(NULL, sizeof *region, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(region != MAP_FAILED && pipe(ready) == 0);
    test_living_processes_count_together();
    test_a_killed_process_gives_back_its_memory_once();
    test_a_zombie_counts_as_dead();
    test_a_stopped_process_keeps_its_memory();
    test_exec_gives_back_what_the_old_image_held();
    test_a_process_is_not_taken_for_its_own_dead_image();
    test_a_reused_pid_is_another_process();
    test_a_judge_of_another_pid_namespace_buries_nobody();
    test_a_full_table_refuses_and_a_death_makes_room();
    test_a_start_among_many_finds_what_it_was_before_exec();
    test_the_dead_among_many_are_found_by_starts_in_turn();
    test_a_claimant_that_died_half_way_is_found();
    test_a_reaper_that_died_half_way_is_continued();
    test_commands_with_blanks_and_parentheses_are_read();
    return 0;
}
