/* DESIGN
 *
 * What a compute limit promises, on the library's own hooks, over a simulated card in virtual time: a share's mean device
 * time lies within two points of its limit, and 95 of 100 seconds within fifteen, whatever the card, the kernels, how they
 * are launched, and who else is there. Truth is the simulated driver's account of what it ran. Half a minute each, from the
 * first launch on; the minutes of the promise, at every limit on every card, are bench/bench_accuracy.c's.
 *
 * TEST_VERBOSE=1 prints the figures.
 */
#include "compute_world.h"

enum { POINTS = 2 };

static const char *title;
static const uint32_t limits[] = {100, 250, 500, 750};

#define EACH_LIMIT(milli) (const uint32_t *milli = limits; milli < limits + sizeof limits / sizeof *limits; milli++)

static void share_0_is_held(void)
{
    check_held(title, 0, world.share[0].milli / 10.0, POINTS, 0);
}

/* Under every limit. */
static void hold_at_every_limit(const char *name, struct world plan)
{
    for EACH_LIMIT (milli) {
        plan.share[0].milli = *milli;
        title = name;
        in_a_world(name, &plan, share_0_is_held);
    }
}

static struct world alone(struct tenant tenant)
{
    return (struct world){.seconds = 30, .shares = 1, .tenants = 1, .share = {{0, TESSERA_MODE_HARD, 1}}, .tenant = {tenant}};
}

/* The same grid is 13 waves of blocks on 20 SMs and 2 on 200. */
static void the_size_of_the_card_does_not_matter(void)
{
    static const uint32_t cards[] = {20, 84, 200};
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        char name[40];
        struct world plan = alone((struct tenant){.kernels = {"k_block_us_100"}, .blocks = 2048});
        plan.sms = cards[i];
        snprintf(name, sizeof name, "%u SMs", cards[i]);
        hold_at_every_limit(name, plan);
    }
}

static void the_length_of_kernels_does_not_matter(void)
{
    hold_at_every_limit("20 us", alone((struct tenant){.kernels = {"k_us_20"}}));
    hold_at_every_limit("1 ms", alone((struct tenant){.kernels = {"k_ms_1"}}));
    hold_at_every_limit("50 ms", alone((struct tenant){.kernels = {"k_ms_50"}}));
    hold_at_every_limit("mixed", alone((struct tenant){.kernels = {"a_us_30", "b_ms_4", "c_us_700", "d_us_5", "e_ms_20"}}));
}

/* How they are launched. */
static void the_way_of_launching_does_not_matter(void)
{
    hold_at_every_limit("one at a time", alone((struct tenant){.kernels = {"k_us_200", "l_ms_2"}, .style = SYNC}));
    hold_at_every_limit("4 streams", alone((struct tenant){.kernels = {"k_us_200", "l_ms_2", "m_ms_5"}, .streams = 4}));
    hold_at_every_limit("graphs", alone((struct tenant){.kernels = {"k_us_200", "l_ms_3"}, .style = GRAPH}));
    hold_at_every_limit("cooperative", alone((struct tenant){.kernels = {"k_block_us_300"}, .blocks = 800,
                                                             .style = COOPERATIVE}));
}

static void several_processes_share_one_limit(void)
{
    struct world plan = alone((struct tenant){.kernels = {"k_ms_1", "l_us_300"}});
    plan.tenants = 3;
    plan.tenant[1] = (struct tenant){.kernels = {"k_ms_7"}, .starts = 1};
    plan.tenant[2] = (struct tenant){.kernels = {"k_us_50"}, .style = SYNC, .starts = 2};
    hold_at_every_limit("3 processes", plan);
}

/* A neighbour without a limit takes half of every slice of time: no more than half is to be had. */
static void a_busy_neighbour_takes_nothing_from_a_limit(void)
{
    static const char *const kernels[] = {"k_us_100", "k_ms_5", "k_ms_40"};
    for (int length = 0; length < 3; length++) {
        for (uint32_t milli = 100; milli <= 500; milli += 200) {
            struct world plan = alone((struct tenant){.kernels = {kernels[length]}});
            plan.shares = plan.tenants = 2;
            plan.share[0].milli = milli;
            plan.share[1] = (struct share_plan){1000, TESSERA_MODE_OFF, 1};
            plan.tenant[1] = (struct tenant){.share = 1, .kernels = {"k_ms_2"}};
            title = kernels[length];
            in_a_world(title, &plan, share_0_is_held);
        }
    }
}

static void both_are_held(void)
{
    check_held(title, 0, world.share[0].milli / 10.0, POINTS, 0);
    check_held(title, 1, world.share[1].milli / 10.0, POINTS, 0);
}

static void two_limits_hold_beside_each_other(void)
{
    static const uint32_t pairs[][2] = {{250, 750}, {100, 500}, {300, 300}, {100, 900}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct world plan = alone((struct tenant){.kernels = {"k_ms_10", "l_us_500"}});
        plan.shares = plan.tenants = 2;
        plan.share[0].milli = pairs[i][0];
        plan.share[1] = (struct share_plan){pairs[i][1], TESSERA_MODE_HARD, 1};
        plan.tenant[1] = (struct tenant){.share = 1, .kernels = {"k_us_200", "m_ms_30"}};
        title = "two limits";
        in_a_world(title, &plan, both_are_held);
    }
}

/* One kernel of half a second is five seconds of a tenth: single seconds mean nothing, and the first kernels run before
 * anybody knows how long they are. From 10 s on, over whole periods. */
static void the_mean_of_long_kernels_holds(void)
{
    double percent = world.share[0].milli / 10.0;
    double mean = percent_between(0, 10, 110);
    if (getenv("TEST_VERBOSE") != NULL) fprintf(stderr, "%-40s limit %5.1f mean %6.2f\n", title, percent, mean);
    if (mean < percent - POINTS || mean > percent + POINTS) CHECK_FAIL("%s: %.2f of %.1f", title, mean, percent);
}

static void kernels_of_half_a_second_are_held_too(void)
{
    for (int neighbours = 0; neighbours < 2; neighbours++) {
        for EACH_LIMIT (milli) {
            struct world plan = alone((struct tenant){.kernels = {"k_ms_500"}});
            plan.seconds = 110;
            plan.share[0].milli = *milli == 750 && neighbours > 0 ? 450 : *milli;
            plan.shares = plan.tenants = 1 + (uint32_t)neighbours;
            plan.share[1] = (struct share_plan){1000, TESSERA_MODE_OFF, 1};
            plan.tenant[1] = (struct tenant){.share = 1, .kernels = {"k_ms_2"}};
            title = neighbours > 0 ? "500 ms beside a neighbour" : "500 ms";
            in_a_world(title, &plan, the_mean_of_long_kernels_holds);
        }
    }
}

static void without_an_agent_nothing_exceeds_its_limit(void)
{
    for EACH_LIMIT (milli) {
        struct world plan = alone((struct tenant){.kernels = {"k_ms_1", "l_us_300", "m_ms_12"}});
        plan.blind = true;
        plan.share[0].milli = *milli;
        title = "no agent";
        in_a_world(title, &plan, share_0_is_held);
    }
}

int main(void)
{
    the_size_of_the_card_does_not_matter();
    the_length_of_kernels_does_not_matter();
    the_way_of_launching_does_not_matter();
    several_processes_share_one_limit();
    a_busy_neighbour_takes_nothing_from_a_limit();
    two_limits_hold_beside_each_other();
    kernels_of_half_a_second_are_held_too();
    without_an_agent_nothing_exceeds_its_limit();
    return 0;
}
