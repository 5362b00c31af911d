/* DESIGN
 *
 * Compute limits that change while processes run: by the agent (limits, pause, loans), by neighbours that come and go, and
 * by processes that are killed. On the library's own hooks, over a simulated card in virtual time (compute_world.h).
 */
#include "compute_world.h"

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

/* True in the first tick at or after a moment. */
static bool is_at(double seconds)
{
    return seconds_now() >= seconds && seconds_now() < seconds + TICK_MS / 1000.0;
}

/* -- the agent changes its mind ------------------------------------------------------------------------------------ */

static void change_limits(void)
{
    if (is_at(5)) OK(tessera_region_set_compute_limit(region_of[0], 0, 750));
    if (is_at(10)) OK(tessera_region_set_compute_limit(region_of[0], 0, 100));
    if (is_at(15)) OK(tessera_region_set_compute(region_of[0], 0, 100, TESSERA_MODE_OFF));
    if (is_at(20)) OK(tessera_region_set_compute(region_of[0], 0, 400, TESSERA_MODE_HARD));
}

static void limits_changed(void)
{
    between(0, 0.5, 5, 23, 27);
    between(0, 5.5, 10, 73, 77);
    between(0, 10.5, 15, 8, 12);
    between(0, 15.5, 20, 98, 100.1);
    between(0, 20.5, 25, 38, 42);
}

static void a_changed_limit_is_in_force_within_half_a_second(void)
{
    struct world plan = {.seconds = 25, .shares = 1, .tenants = 2, .share = {{250, TESSERA_MODE_HARD, 1}},
                         .tenant = {{.kernels = {"k_ms_3"}, .style = SYNC}, {.kernels = {"k_us_400"}, .style = SYNC}},
                         .at_tick = change_limits};
    in_a_world("live change", &plan, limits_changed);
    plan.blind = true; /* the limit alone, as `tessera run` sets it */
    in_a_world("live change without ticks", &plan, limits_changed);
}

static void pause_and_resume(void)
{
    if (is_at(3)) OK(tessera_region_pause(region_of[0], 1));
    if (is_at(6)) OK(tessera_region_pause(region_of[0], 0));
}

static void paused_and_resumed(void)
{
    between(0, 1, 3, 48, 52);
    between(0, 3.2, 6, 0, 0);
    between(0, 6.1, 10, 48, 52);
    between(1, 1, 3, 48, 52);
    between(1, 3.2, 6, 99, 100.1);
    CHECK(region_of[0]->usage.device[0].throttled_ns >= 2900 * MS);
}

static void a_paused_share_launches_nothing_and_goes_on_where_it_was(void)
{
    struct world plan = {.seconds = 10, .shares = 2, .tenants = 2,
                         .share = {{500, TESSERA_MODE_HARD, 1}, {1000, TESSERA_MODE_OFF, 1}},
                         .tenant = {{.kernels = {"k_ms_2"}}, {.share = 1, .kernels = {"k_ms_2"}}},
                         .at_tick = pause_and_resume};
    in_a_world("pause", &plan, paused_and_resumed);
    /* A share without a limit can be paused as well; what it has put into the driver's queue by then still runs. */
    plan.share[0] = (struct share_plan){1000, TESSERA_MODE_OFF, 1};
    plan.tenant[0].style = SYNC;
    in_a_world("pause without a limit", &plan, paused_and_resumed);
}

/* -- lending ------------------------------------------------------------------------------------------------------- */

/* Share 0 may borrow; share 1 keeps 60 % for itself, and is away until 6 s and from 12 s on. */
static struct world lending(uint32_t mode, uint32_t milli, const char *kernel)
{
    return (struct world){.seconds = 18, .shares = 2, .tenants = 2,
                          .share = {{milli, mode, 1}, {600, TESSERA_MODE_HARD, 1}},
                          .tenant = {{.kernels = {kernel}}, {.share = 1, .kernels = {"k_ms_2"}, .starts = 6, .ends = 12}}};
}

static void floor_came_back(void)
{
    between(0, 1, 6, 97, 100.1);
    between(1, 6, 6.5, 45, 63);
    between(1, 6.5, 7, 56, 66); /* half a second after it woke up */
    between(1, 7, 12, 58, 62);
    between(0, 7, 12, 36, 44);
    between(0, 13, 18, 97, 100.1);
}

static void idle_time_is_lent_and_the_floor_is_back_in_half_a_second(void)
{
    static const char *const kernels[] = {"k_us_200", "k_ms_2", "k_ms_30"};
    for (int i = 0; i < 3; i++) {
        struct world plan = lending(TESSERA_MODE_BURST, 300, kernels[i]);
        in_a_world(kernels[i], &plan, floor_came_back);
    }
}

static void a_share_of_best_effort_gets_what_others_leave(void)
{
    struct world plan = lending(TESSERA_MODE_BEST_EFFORT, 20, "k_ms_2");
    in_a_world("best effort", &plan, floor_came_back);
}

static void hard_shares_stay(void)
{
    between(0, 1, 18, 28, 32);
    between(1, 7, 12, 58, 62);
}

static void a_hard_limit_borrows_nothing(void)
{
    struct world plan = lending(TESSERA_MODE_HARD, 300, "k_ms_2");
    in_a_world("hard", &plan, hard_shares_stay);
}

static void fall_silent(void)
{
    if (is_at(3)) world.blind = true;
}

static void loans_ended(void)
{
    between(0, 1, 3, 97, 100.1);
    between(0, 4, 6, 28, 32);
}

static void what_is_lent_ends_with_the_agent(void)
{
    struct world plan = lending(TESSERA_MODE_BURST, 300, "k_ms_2");
    plan.seconds = 6;
    plan.at_tick = fall_silent;
    in_a_world("silent agent", &plan, loans_ended);
}

/* -- the dead ------------------------------------------------------------------------------------------------------ */

static void kill_one(void)
{
    if (is_at(4)) end_tenant(1);
}

static void nothing_stays_booked(void)
{
    const struct tessera_device_usage *usage = &region_of[0]->usage.device[0];
    CHECK_EQ_U64(region_of[0]->usage.reaped_count, 1);
    between(0, 1, 4, 23, 27);
    between(0, 4.3, 5.3, 20, 30);
    between(0, 5, 10, 23, 27);
    CHECK(usage->granted_ns - usage->spent_ns > -60 * (int64_t)MS);
}

static void a_killed_process_leaves_nothing_booked(void)
{
    struct world plan = {.seconds = 10, .shares = 1, .tenants = 2, .share = {{250, TESSERA_MODE_HARD, 1}},
                         .tenant = {{.kernels = {"k_ms_2"}}, {.kernels = {"k_ms_45"}}}, .at_tick = kill_one};
    in_a_world("killed", &plan, nothing_stays_booked);
}

static void kill_and_reap(void)
{
    struct tessera_device_usage *usage = &region_of[0]->usage.device[0];
    static int64_t debt_before;
    if (is_at(9)) debt_before = usage->spent_ns - usage->granted_ns;
    if (is_at(9)) {
        CHECK(debt_before > 500 * (int64_t)MS); /* a kernel of 3 s, paid by a quarter of the time */
        end_tenant(0);
        CHECK_EQ_U64(tessera_region_reap(region_of[0]), 1);
        CHECK(usage->spent_ns - usage->granted_ns <= debt_before);
        CHECK_EQ_U64(region_of[0]->slot[0].booked[0], 0);
    }
}

static void nothing(void)
{
}

static void work_that_never_ran_comes_back_with_the_reaper(void)
{
    struct world plan = {.seconds = 10, .shares = 1, .tenants = 1, .share = {{250, TESSERA_MODE_HARD, 1}},
                         .tenant = {{.kernels = {"k_ms_3000"}}}, .at_tick = kill_and_reap};
    in_a_world("killed in a long kernel", &plan, nothing);
}

int main(void)
{
    a_changed_limit_is_in_force_within_half_a_second();
    a_paused_share_launches_nothing_and_goes_on_where_it_was();
    idle_time_is_lent_and_the_floor_is_back_in_half_a_second();
    a_share_of_best_effort_gets_what_others_leave();
    a_hard_limit_borrows_nothing();
    what_is_lent_ends_with_the_agent();
    a_killed_process_leaves_nothing_booked();
    work_that_never_ran_comes_back_with_the_reaper();
    return 0;
}
