/* DESIGN
 *
 * Device time on a virtual clock: clock.c alone, with a machine of this program's own. All
 * figures are nanoseconds and worked out by hand.
 */
#include "../sim/clock.c"

#include <stdlib.h>

#include "check.h"

struct sim_description sim_description;
struct sim_machine *sim_machine;
uint32_t sim_self;
static uint64_t now;

uint64_t sim_now(void) { return now; }
void sim_lock(void) {}
void sim_unlock(void) {}
void sim_reap(void) {}

enum { OWNERS = 3, PERIOD = 1000 };

static void fresh_machine(void)
{
    free(sim_machine);
    sim_machine = calloc(1, sizeof *sim_machine);
    CHECK(sim_machine != NULL);
    sim_description.sample_ns = PERIOD;
    now = 0;
    sim_machine->owners = OWNERS;
    sim_machine->device[0].sample_at = PERIOD;
    for (uint32_t o = 0; o < OWNERS; o++) sim_machine->owner[o].pid = 100 + o;
}

static uint64_t submit(uint32_t owner, uint64_t ns)
{
    sim_self = owner;
    return sim_clock_submit(0, ns);
}

static uint64_t done_of(uint32_t owner)
{
    return sim_machine->owner[owner].queue[0].done;
}

static void at(uint64_t when)
{
    now = when;
    sim_clock_advance(0, now);
}

static void alone_an_owner_has_the_whole_device(void)
{
    fresh_machine();
    CHECK_EQ_U64(submit(0, 700), 700);
    CHECK_EQ_U64(submit(0, 300), 1000);
    at(400);
    CHECK_EQ_U64(done_of(0), 400);
    CHECK(!sim_clock_reached(0, 700));
    at(5000);
    CHECK_EQ_U64(done_of(0), 1000);
    CHECK_EQ_U64(sim_clock_time(0, 700), 700);
    CHECK_EQ_U64(sim_clock_time(0, 1000), 1000);
}

static void neighbours_share_until_one_has_no_work(void)
{
    fresh_machine();
    submit(0, 1000);
    submit(1, 300);
    at(500);
    CHECK_EQ_U64(done_of(0), 250);
    CHECK_EQ_U64(done_of(1), 250);
    at(5000); /* owner 1 ends at 600 with 300; owner 0 has 700 left then and ends at 1300 */
    sim_self = 1;
    CHECK_EQ_U64(sim_clock_time(0, 300), 600);
    sim_self = 0;
    CHECK_EQ_U64(sim_clock_time(0, 300), 600);
    CHECK_EQ_U64(sim_clock_time(0, 1000), 1300);
}

static void a_late_neighbour_slows_from_then_on(void)
{
    fresh_machine();
    submit(0, 1000);
    now = 400;
    submit(1, 1000); /* owner 0 has 600 left: to 1600 at half speed; owner 1 then 400 alone */
    at(9000);
    sim_self = 0;
    CHECK_EQ_U64(sim_clock_time(0, 400), 400);
    CHECK_EQ_U64(sim_clock_time(0, 1000), 1600);
    sim_self = 1;
    CHECK_EQ_U64(sim_clock_time(0, 1000), 2000);
}

static void the_share_of_a_dead_neighbour_is_free(void)
{
    fresh_machine();
    submit(0, 1000);
    submit(1, 1000000);
    at(200);
    sim_machine->owner[1].pid = 0;
    at(1100);
    CHECK_EQ_U64(done_of(0), 1000);
}

static void work_after_idleness_starts_when_it_is_submitted(void)
{
    fresh_machine();
    submit(0, 100);
    now = 5000;
    CHECK_EQ_U64(submit(0, 50), 150);
    at(5020);
    CHECK_EQ_U64(done_of(0), 120);
    at(6000);
    CHECK_EQ_U64(sim_clock_time(0, 100), 100);
    CHECK_EQ_U64(sim_clock_time(0, 150), 5050);
}

/* No look, however odd its moment, makes or loses time. */
static void time_is_neither_made_nor_lost(void)
{
    uint32_t seed = 7;
    fresh_machine();
    for (uint32_t o = 0; o < OWNERS; o++) submit(o, 1000 * 1000);
    while (now < 900 * 1000) {
        seed = seed * 1664525u + 1013904223u;
        at(now + 1 + (seed >> 24));
        uint64_t clock = sim_machine->device[0].clock;
        CHECK_EQ_U64(done_of(0) + done_of(1) + done_of(2), clock);
        CHECK(clock <= now && now - clock < OWNERS);
        CHECK_EQ_U64(done_of(0), done_of(2));
    }
}

static void nobody_does_more_than_was_asked(void)
{
    uint32_t seed = 11;
    fresh_machine();
    for (int round = 0; round < 20000; round++) {
        seed = seed * 1664525u + 1013904223u;
        now += (seed >> 8) % 300;
        submit((seed >> 4) % OWNERS, (seed >> 20) % 200);
        for (uint32_t o = 0; o < OWNERS; o++)
            CHECK(done_of(o) <= sim_machine->owner[o].queue[0].submitted);
    }
    at(now + 100 * 1000 * 1000);
    for (uint32_t o = 0; o < OWNERS; o++) CHECK_EQ_U64(done_of(o), sim_machine->owner[o].queue[0].submitted);
}

static uint64_t last_percent(uint32_t owner)
{
    const struct sim_queue *queue = &sim_machine->owner[owner].queue[0];
    CHECK(queue->samples != 0);
    return queue->sample[(queue->samples - 1) % SIM_SAMPLES].percent;
}

static void a_sample_is_the_work_of_its_period(void)
{
    fresh_machine();
    submit(0, 300);
    at(999);
    CHECK_EQ_U64(sim_machine->owner[0].queue[0].samples, 0);
    at(1000);
    CHECK_EQ_U64(last_percent(0), 30);
    CHECK_EQ_U64(sim_machine->device[0].percent, 30);
    submit(0, 5000);
    submit(1, 5000);
    at(2000);
    CHECK_EQ_U64(last_percent(0), 50);
    CHECK_EQ_U64(last_percent(1), 50);
    CHECK_EQ_U64(sim_machine->device[0].percent, 100);
}

static void idle_periods_are_zero_however_many(void)
{
    fresh_machine();
    submit(0, 1000);
    at(1000);
    CHECK_EQ_U64(sim_machine->device[0].percent, 100);
    at(1000 * 1000 * 1000 + 500); /* a million periods */
    CHECK_EQ_U64(sim_machine->device[0].percent, 0);
    CHECK_EQ_U64(sim_machine->owner[0].queue[0].samples, 1);
    submit(0, 250); /* from half of a period on */
    at(1000 * 1000 * 1000 + 1000);
    CHECK_EQ_U64(last_percent(0), 25);
}

int main(void)
{
    alone_an_owner_has_the_whole_device();
    neighbours_share_until_one_has_no_work();
    a_late_neighbour_slows_from_then_on();
    the_share_of_a_dead_neighbour_is_free();
    work_after_idleness_starts_when_it_is_submitted();
    time_is_neither_made_nor_lost();
    nobody_does_more_than_was_asked();
    a_sample_is_the_work_of_its_period();
    idle_periods_are_zero_however_many();
    free(sim_machine);
    return 0;
}
