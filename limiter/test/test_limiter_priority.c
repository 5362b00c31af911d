/* DESIGN
 *
 * Priorities between shares and between the processes of one, and freezing: on the library's own hooks, over a simulated card
 * in virtual time (compute_world.h). The test program is the governor, and has its faults too. The cases of HAMi's monitor,
 * whose limits and priorities latch off, are here under what they promise.
 */
#include "compute_world.h"

enum { LOW = TESSERA_PRIORITY_LOW, MEDIUM, HIGH, OFF = TESSERA_MODE_OFF, HARD = TESSERA_MODE_HARD };

static void between(uint32_t share, double from, double until, double least, double most)
{
    double had = percent_between(share, from, until);
    if (getenv("TEST_VERBOSE") != NULL) {
        fprintf(stderr, "share %u, %5.1f s to %5.1f s: %6.2f %%, to be %5.1f to %5.1f\n", share, from, until, had, least, most);
    }
    if (had < least || had > most) {
        CHECK_FAIL("share %u had %.2f %% of the device from %.1f s to %.1f s, not %.1f to %.1f", share, had, from, until, least,
                   most);
    }
}

/* Share 0 is high and there from `starts` to `ends`, share 1 is low and always there; neither has a limit. */
static struct world high_and_low(const char *high_kernel, const char *low_kernel, double starts, double ends)
{
    return (struct world){
        .seconds = 16, .shares = 2, .tenants = 2, .governed = true,
        .share = {{1000, OFF, 0}, {1000, OFF, 0}}, .priority = {HIGH, LOW},
        .tenant = {{.kernels = {high_kernel}, .style = SYNC, .starts = starts, .ends = ends},
                   {.share = 1, .kernels = {low_kernel}}}};
}

/* -- between shares ------------------------------------------------------------------------------------------------- */

static void low_yielded(void)
{
    between(1, 1, 5, 97, 100.1); /* alone */
    between(0, 5.5, 6.5, 80, 97); /* half a second after it came */
    between(0, 6, 10, 88, 96.5);
    between(1, 6, 10, 3, 9);     /* the floor */
    between(1, 11.5, 16, 95, 100.1);
}

static void the_high_runs_and_the_low_has_its_floor(void)
{
    struct world plan = high_and_low("k_ms_2", "k_ms_2", 5, 10);
    in_a_world("high and low, 2 ms", &plan, low_yielded);
    plan = high_and_low("k_us_400", "k_us_200", 5, 10);
    in_a_world("high and low, 0.2 ms", &plan, low_yielded);
}

static void high_has_its_way(void)
{
    between(0, 6, 10, 66, 73); /* what is not promised to the low */
    between(1, 6, 10, 28, 35);
}

static void what_the_low_was_promised_is_its_floor(void)
{
    struct world plan = high_and_low("k_ms_2", "k_ms_2", 5, 10);
    plan.share[1].weight = 300;
    plan.seconds = 10;
    in_a_world("promised", &plan, high_has_its_way);
}

static void each_limit_holds(void)
{
    between(0, 6, 10, 48, 52);
    between(1, 6, 10, 44, 52); /* the high one keeps its limit, no more */
}

static void a_high_share_with_a_limit_leaves_the_rest(void)
{
    struct world plan = high_and_low("k_ms_2", "k_ms_2", 5, 10);
    plan.share[0] = (struct share_plan){500, HARD, 500};
    plan.seconds = 10;
    in_a_world("high with a limit", &plan, each_limit_holds);
}

static void low_was_held_all_along(void)
{
    between(0, 1, 10, 97, 100.1);
    between(0, 11, 16, 88, 97);
    between(1, 11, 16, 3, 9);
}

/* HAMi never blocks who comes 20 s after the high one, as nobody tells any more that the high one is active. */
static void the_low_is_held_also_when_it_comes_later(void)
{
    struct world plan = high_and_low("k_ms_2", "k_ms_2", 0, 0);
    plan.tenant[1].starts = 10;
    in_a_world("low later", &plan, low_was_held_all_along);
}

static void limits_held(void)
{
    between(0, 1, 4, 48, 52);
    between(1, 1, 4, 38, 42);
    between(0, 5, 14, 48, 52);
    between(1, 15, 18, 38, 42);
    between(0, 15, 18, 48, 52);
}

/* HAMi's limits are off for ever once one of two equals was idle for ten seconds. */
static void limits_of_equals_hold_after_one_was_idle(void)
{
    struct world plan = {.seconds = 18, .shares = 2, .tenants = 3, .governed = true,
                         .share = {{500, HARD, 500}, {400, HARD, 400}},
                         .priority = {MEDIUM, MEDIUM},
                         .tenant = {{.kernels = {"k_ms_2"}}, {.share = 1, .kernels = {"k_ms_2"}, .ends = 4},
                                    {.share = 1, .kernels = {"k_ms_2"}, .starts = 14.5}}};
    in_a_world("idle equal", &plan, limits_held);
}

static void fall_silent(void)
{
    if (seconds_now() >= 8) world.blind = true;
}

static void caps_ended(void)
{
    between(1, 6, 8, 3, 9);
    between(1, 9, 10, 40, 60); /* no limit, no governor: the device's own turns */
}

static void a_cap_ends_with_its_governor(void)
{
    struct world plan = high_and_low("k_ms_2", "k_ms_2", 5, 10);
    plan.seconds = 10;
    plan.at_tick = fall_silent;
    in_a_world("silent governor", &plan, caps_ended);
}

/* -- between processes ---------------------------------------------------------------------------------------------- */

static double percent_of(uint32_t tenant)
{
    return (double)last_done[tenant] / (world.seconds * 1e9) * 100;
}

static void processes_yielded(void)
{
    between(0, 1, 10, 38, 42); /* the share's limit is as ever */
    if (getenv("TEST_VERBOSE") != NULL) fprintf(stderr, "processes: %.1f %% and %.1f %%\n", percent_of(0), percent_of(1));
    CHECK(percent_of(0) > 30);
    CHECK(percent_of(1) > 1 && percent_of(1) < 9);
    CHECK(region_of[0]->usage.device[0].yielded_count > 0);
}

static void a_process_of_a_higher_priority_goes_first_within_its_share(void)
{
    struct world plan = {.seconds = 10, .shares = 1, .tenants = 2, .share = {{400, HARD, 400}},
                         .tenant = {{.kernels = {"k_ms_2"}, .style = SYNC, .priority = "high"},
                                    {.kernels = {"k_ms_2"}, .style = SYNC, .priority = "low"}}};
    in_a_world("processes", &plan, processes_yielded);
}

/* -- freezing ------------------------------------------------------------------------------------------------------- */

static uint64_t thawed_at_ms;

static void watch_the_order(void)
{
    uint64_t order = region_of[1]->control.device[0].order;
    if (seconds_now() > 5 && seconds_now() < 8) CHECK_EQ_U64(order, 1u << 2 | TESSERA_ORDER_FREEZE);
    if (thawed_at_ms == 0 && order == 2u << 2) thawed_at_ms = (uint64_t)(seconds_now() * 1000);
}

static void frozen_and_resumed(void)
{
    between(1, 1, 2, 3, 12);
    between(0, 3, 8, 97, 100.1);
    CHECK(thawed_at_ms >= 8000 && thawed_at_ms <= 8300);
    between(0, 8, 9, 85, 100.1); /* who wakes up low does not begin with half of the card */
    between(1, 8.5, 10, 3, 9);
    CHECK(region_of[1]->usage.device[0].yielded_ns <= 300 * MS);
}

static void an_idle_low_share_is_frozen_and_resumed_on_demand(void)
{
    struct world plan = {.seconds = 10, .shares = 2, .tenants = 3, .governed = true,
                         .share = {{1000, OFF, 0}, {1000, OFF, 0}}, .priority = {HIGH, LOW}, .idle_seconds = {0, 2},
                         .tenant = {{.kernels = {"k_ms_2"}, .style = SYNC},
                                    {.share = 1, .kernels = {"k_ms_2"}, .starts = 0.3, .ends = 2},
                                    {.share = 1, .kernels = {"k_ms_2"}, .starts = 8}},
                         .at_tick = watch_the_order};
    in_a_world("frozen", &plan, frozen_and_resumed);
}

static void die_frozen(void)
{
    if (seconds_now() >= 6) world.blind = true;
}

static void went_on_alone(void)
{
    CHECK(region_of[1]->control.device[0].order == (1u << 2 | TESSERA_ORDER_FREEZE));
    between(1, 8, 10, 40, 60);
}

static void a_frozen_share_of_a_dead_governor_runs(void)
{
    struct world plan = {.seconds = 10, .shares = 2, .tenants = 3, .governed = true,
                         .share = {{1000, OFF, 0}, {1000, OFF, 0}}, .priority = {HIGH, LOW}, .idle_seconds = {0, 2},
                         .tenant = {{.kernels = {"k_ms_2"}, .style = SYNC},
                                    {.share = 1, .kernels = {"k_ms_2"}, .starts = 0.3, .ends = 2},
                                    {.share = 1, .kernels = {"k_ms_2"}, .style = SYNC, .starts = 8}},
                         .at_tick = die_frozen};
    in_a_world("dead governor", &plan, went_on_alone);
}

int main(void)
{
    the_high_runs_and_the_low_has_its_floor();
    what_the_low_was_promised_is_its_floor();
    a_high_share_with_a_limit_leaves_the_rest();
    the_low_is_held_also_when_it_comes_later();
    limits_of_equals_hold_after_one_was_idle();
    a_cap_ends_with_its_governor();
    a_process_of_a_higher_priority_goes_first_within_its_share();
    an_idle_low_share_is_frozen_and_resumed_on_demand();
    a_frozen_share_of_a_dead_governor_runs();
    return 0;
}
