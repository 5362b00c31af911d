/* DESIGN
 *
 * The governor's arithmetic (src/governor.c) against figures worked out by hand, and what its calls write into a region.
 */
#include <stdlib.h>

#include "../src/account.h"
#include "../src/controller.h"
#include "../src/order.h"
#include "../src/slots.h"
#include "check.h"
#include "tessera_region_api.h"

#define GIB (UINT64_C(1) << 30)
#define MS LIM_MS

enum { LOW = TESSERA_PRIORITY_LOW, MEDIUM, HIGH, CRITICAL, OFF = TESSERA_MODE_OFF, HARD = TESSERA_MODE_HARD,
       BURST = TESSERA_MODE_BURST };

static struct tessera_region *a_region(uint32_t devices)
{
    struct tessera_share_spec spec = {.share_id = "test", .device_count = devices};
    struct tessera_region *region;
    char path[] = "/tmp/tessera-govern-XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0 && close(file) == 0);
    for (uint32_t i = 0; i < devices; i++) snprintf(spec.device[i].uuid, sizeof spec.device[i].uuid, "GPU-%u", i);
    CHECK_EQ_U64(tessera_region_create(path, &spec), TESSERA_ERROR_OK);
    CHECK_EQ_U64(tessera_region_open(path, &region), TESSERA_ERROR_OK);
    CHECK(unlink(path) == 0);
    return region;
}

/* -- device time ---------------------------------------------------------------------------------------------------- */

static struct tessera_contender busy(uint32_t limit, uint32_t request, uint32_t mode, uint32_t used, uint32_t priority)
{
    return (struct tessera_contender){.limit_milli = limit, .request_milli = request, .mode = mode, .used_milli = used,
                                      .priority = priority, .is_active = 1};
}

static void check_caps(const struct tessera_contender *shares, uint32_t count, const uint32_t *caps)
{
    struct tessera_grant grants[4];
    tessera_govern_compute(shares, count, grants);
    for (uint32_t i = 0; i < count; i++) CHECK_EQ_U64(grants[i].cap_milli, caps[i]);
}

static void a_busy_high_share_leaves_the_floor(void)
{
    /* Without a limit, and with all of the device in use: 1000 - 1000 is less than the floor of 50. */
    struct tessera_contender shares[] = {busy(1000, 0, OFF, 950, HIGH), busy(1000, 0, OFF, 50, LOW)};
    check_caps(shares, 2, (const uint32_t[]){0, 50});
    shares[1].request_milli = 300; /* what it was promised is its floor */
    check_caps(shares, 2, (const uint32_t[]){0, 300});
    shares[1] = busy(40, 30, HARD, 40, LOW); /* a limit below the floor is no cap */
    check_caps(shares, 2, (const uint32_t[]){0, 0});
}

static void a_high_share_keeps_twice_its_use(void)
{
    /* 2 x 150 + 20 = 320, which leaves 680. */
    struct tessera_contender shares[] = {busy(1000, 0, OFF, 150, HIGH), busy(1000, 0, OFF, 850, LOW)};
    check_caps(shares, 2, (const uint32_t[]){0, 680});
    shares[0] = busy(400, 400, HARD, 150, HIGH);
    check_caps(shares, 2, (const uint32_t[]){0, 680});
    shares[0].waits = 1; /* it wants more: all of its limit */
    check_caps(shares, 2, (const uint32_t[]){0, 600});
    shares[0].mode = BURST; /* and may have more than that */
    check_caps(shares, 2, (const uint32_t[]){0, 50});
    shares[0].waits = 0; /* 2 x 360 + 20 is more than its limit, which is all that it can want */
    shares[0].mode = HARD;
    shares[0].used_milli = 300;
    check_caps(shares, 2, (const uint32_t[]){0, 600});
}

static void an_idle_high_share_costs_nobody_anything(void)
{
    struct tessera_contender shares[] = {busy(1000, 0, OFF, 0, CRITICAL), busy(1000, 0, OFF, 900, LOW)};
    shares[0].is_active = 0;
    check_caps(shares, 2, (const uint32_t[]){0, 1000}); /* it only takes turns */
}

static void equals_do_not_yield_to_each_other(void)
{
    struct tessera_contender shares[] = {busy(1000, 0, OFF, 500, HIGH), busy(1000, 0, OFF, 500, HIGH)};
    check_caps(shares, 2, (const uint32_t[]){0, 0});
    shares[0].priority = TESSERA_PRIORITY_DEFAULT;
    shares[1].priority = MEDIUM;
    check_caps(shares, 2, (const uint32_t[]){0, 0});
}

static void each_level_has_what_those_above_leave(void)
{
    /* CRITICAL keeps 2 x 100 + 20 = 220; of the 780 left HIGH keeps its limit of 400, as it waits; LOW has 380. */
    struct tessera_contender shares[] = {busy(1000, 0, OFF, 380, LOW), busy(400, 200, HARD, 400, HIGH),
                                         busy(1000, 0, OFF, 100, CRITICAL)};
    shares[1].waits = 1;
    check_caps(shares, 3, (const uint32_t[]){380, 0, 0});
}

static void what_is_idle_is_lent_to_who_does_not_yield(void)
{
    /* HIGH may burst and waits, LOW is capped at its floor of 50: 1000 - 300 - 50 is lent to HIGH. */
    struct tessera_contender shares[] = {busy(300, 300, BURST, 300, HIGH), busy(600, 0, BURST, 50, LOW)};
    struct tessera_grant grants[2];
    shares[0].waits = shares[1].waits = 1;
    tessera_govern_compute(shares, 2, grants);
    CHECK_EQ_U64(grants[0].granted_milli, 950);
    CHECK_EQ_U64(grants[0].cap_milli, 0);
    CHECK_EQ_U64(grants[1].granted_milli, 50);
    CHECK_EQ_U64(grants[1].cap_milli, 50);
}

static void without_priorities_lending_is_as_it_was(void)
{
    struct tessera_contender shares[] = {busy(300, 300, BURST, 300, MEDIUM), busy(600, 600, BURST, 100, MEDIUM)};
    struct tessera_grant grants[2];
    shares[0].waits = 1;
    tessera_govern_compute(shares, 2, grants); /* the second keeps 200 of its 600: 500 are idle */
    CHECK_EQ_U64(grants[0].granted_milli, 800);
    CHECK_EQ_U64(grants[1].granted_milli, 600);
}

/* -- memory --------------------------------------------------------------------------------------------------------- */

static void check_ceilings(const struct tessera_holding *shares, uint32_t count, uint64_t physical, const uint64_t *gib)
{
    uint64_t ceilings[4];
    tessera_govern_memory(shares, count, physical, ceilings);
    for (uint32_t i = 0; i < count; i++) CHECK_EQ_U64(ceilings[i], gib[i] * GIB);
}

static void unfilled_requests_are_not_lent(void)
{
    /* 80 - 40 - 20 = 20 are spare; only the second may have more, and that up to its limit. */
    struct tessera_holding shares[] = {{40 * GIB, 40 * GIB, 0, MEDIUM, 0}, {20 * GIB, 60 * GIB, 4 * GIB, MEDIUM, 0}};
    check_ceilings(shares, 2, 80 * GIB, (const uint64_t[]){40, 40});
    shares[1].limit = 30 * GIB;
    check_ceilings(shares, 2, 80 * GIB, (const uint64_t[]){40, 30});
}

static void what_is_spare_is_divided_by_request_and_priority(void)
{
    struct tessera_holding shares[] = {{10 * GIB, 80 * GIB, 0, MEDIUM, 0}, {20 * GIB, 80 * GIB, 0, MEDIUM, 0}};
    check_ceilings(shares, 2, 60 * GIB, (const uint64_t[]){20, 40}); /* 30 spare: 10 and 20 */
    shares[0].priority = HIGH;                                        /* 20 : 20 */
    check_ceilings(shares, 2, 60 * GIB, (const uint64_t[]){25, 35});
}

static void growth_is_refused_where_nothing_is_spare(void)
{
    /* The first took 10 beyond its request while it could; a third arrived since. */
    struct tessera_holding shares[] = {
        {20 * GIB, 60 * GIB, 30 * GIB, MEDIUM, 0}, {30 * GIB, 30 * GIB, 5 * GIB, MEDIUM, 0}, {30 * GIB, 30 * GIB, 0, LOW, 0}};
    check_ceilings(shares, 3, 80 * GIB, (const uint64_t[]){30, 30, 30});
}

static void the_lowest_gives_back_first_and_then_who_has_most(void)
{
    struct tessera_holding shares[] = {{20 * GIB, 60 * GIB, 30 * GIB, HIGH, 0},
                                       {20 * GIB, 60 * GIB, 22 * GIB, LOW, 0},
                                       {20 * GIB, 60 * GIB, 23 * GIB, LOW, 0},
                                       {20 * GIB, 20 * GIB, 20 * GIB, LOW, 0}};
    CHECK_EQ_U64(tessera_govern_victim(shares, 4), 2);
    shares[2].used = 20 * GIB;
    CHECK_EQ_U64(tessera_govern_victim(shares, 4), 1);
    shares[1].used = 5 * GIB;
    CHECK_EQ_U64(tessera_govern_victim(shares, 4), 0);
    shares[0].used = 20 * GIB;
    CHECK_EQ_U64(tessera_govern_victim(shares, 4), 4); /* nobody */
}

/* -- what is told to a region --------------------------------------------------------------------------------------- */

static void a_cap_holds_while_its_governor_is_heard_of(void)
{
    struct tessera_region *region = a_region(1);
    const struct tessera_rule rule = {.cap_milli = 250};
    uint64_t now = 1000 * MS;
    CHECK_EQ_U64(tessera_region_govern(region, 0, &rule, now), TESSERA_ERROR_OK);
    CHECK_EQ_U64(region->control.gated, 1);
    CHECK_EQ_U64(lim_rate_now(&region->control, 0, now), LIM_ONE_Q32 / 4);
    CHECK_EQ_U64(lim_rate_now(&region->control, 0, now + TESSERA_LEASE_NS), LIM_ONE_Q32 / 4);
    CHECK(lim_rate_now(&region->control, 0, now + TESSERA_LEASE_NS + 1) != LIM_ONE_Q32 / 4);
    /* A limit below the cap is what counts. */
    CHECK_EQ_U64(tessera_region_set_compute(region, 0, 125, HARD), TESSERA_ERROR_OK);
    CHECK_EQ_U64(lim_rate_now(&region->control, 0, now), LIM_ONE_Q32 / 8);
    CHECK_EQ_U64(tessera_region_set_compute(region, 0, 0, OFF), TESSERA_ERROR_OK);
    CHECK_EQ_U64(region->control.gated, 1); /* the cap is still there */
    CHECK_EQ_U64(tessera_region_govern(region, 0, &(struct tessera_rule){0}, now), TESSERA_ERROR_OK);
    CHECK_EQ_U64(region->control.gated, 0);
    tessera_region_close(region);
}

static void orders_follow_idleness_and_requests(void)
{
    struct tessera_region *region = a_region(1);
    uint64_t *order = &region->control.device[0].order;
    const struct tessera_rule idle = {.is_idle = 1};
    CHECK_EQ_U64(tessera_region_govern(region, 0, &idle, MS), TESSERA_ERROR_OK);
    CHECK(lim_order_freezes(*order) && lim_order_number(*order) == 1);
    CHECK_EQ_U64(region->control.gated, 1);
    CHECK_EQ_U64(tessera_region_govern(region, 0, &idle, MS), TESSERA_ERROR_OK);
    CHECK(lim_order_freezes(*order) && lim_order_number(*order) == 1); /* nobody asked */
    region->usage.device[0].asked = 1;
    CHECK_EQ_U64(tessera_region_govern(region, 0, &idle, MS), TESSERA_ERROR_OK);
    CHECK(!lim_order_freezes(*order) && lim_order_number(*order) == 2);
    CHECK_EQ_U64(region->control.gated, 0);
    tessera_region_close(region);
}

static void a_region_of_an_older_library_is_left_alone(void)
{
    struct tessera_region *region = a_region(1);
    const struct tessera_rule rule = {.cap_milli = 250, .is_idle = 1, .memory_ceiling = GIB};
    region->header.minor = 1;
    CHECK_EQ_U64(tessera_region_govern(region, 0, &rule, MS), TESSERA_ERROR_OK);
    CHECK_EQ_U64(region->control.device[0].cap_milli, 0);
    CHECK_EQ_U64(region->control.device[0].order, 0);
    CHECK_EQ_U64(region->control.device[0].memory_ceiling, 0);
    CHECK_EQ_U64(region->control.gated, 0);
    CHECK_EQ_U64(tessera_region_set_spill(region, 0, GIB), TESSERA_ERROR_ARGUMENT);
    CHECK_EQ_U64(tessera_region_set_spill(region, 0, 0), TESSERA_ERROR_OK);
    tessera_region_close(region);
}

static void odd_arguments_are_refused(void)
{
    struct tessera_region *region = a_region(9);
    CHECK_EQ_U64(tessera_region_govern(region, 9, &(struct tessera_rule){0}, MS), TESSERA_ERROR_ARGUMENT);
    CHECK_EQ_U64(tessera_region_govern(region, 0, NULL, MS), TESSERA_ERROR_ARGUMENT);
    CHECK_EQ_U64(tessera_region_govern(region, 0, &(struct tessera_rule){.cap_milli = 1001}, MS), TESSERA_ERROR_ARGUMENT);
    CHECK_EQ_U64(tessera_region_set_priority(region, 0, 5), TESSERA_ERROR_ARGUMENT);
    CHECK_EQ_U64(tessera_region_set_priority(region, 8, CRITICAL), TESSERA_ERROR_OK);
    CHECK_EQ_U64(region->control.device[8].priority, CRITICAL);
    CHECK_EQ_U64(tessera_region_set_spill(region, 0, GIB), TESSERA_ERROR_ARGUMENT); /* nine devices: no accounts */
    CHECK_EQ_U64(tessera_region_launches(region, NULL), TESSERA_ERROR_ARGUMENT);
    tessera_region_close(region);
}

static void what_a_dead_process_spilled_comes_back(void)
{
    struct tessera_region *region = a_region(2);
    struct process_identity self = lim_identity();
    struct process_identity gone = self;
    uint64_t bytes = 1;
    gone.start_ticks = self.start_ticks + 1; /* our number, another life */
    CHECK_EQ_U64(tessera_region_set_spill(region, 1, 100 * TESSERA_GRANULE), TESSERA_ERROR_OK);
    int slot = lim_register(region, &gone);
    CHECK(slot >= 0);
    CHECK(lim_charge(region, (uint32_t)slot, 1, 70, 200));
    CHECK(lim_charge(region, (uint32_t)slot, 1 + TESSERA_SPILL_ACCOUNT, 60, 100));
    CHECK(!lim_charge(region, (uint32_t)slot, 1 + TESSERA_SPILL_ACCOUNT, 41, 100));
    CHECK_EQ_U64(tessera_region_spilled(region, 1, &bytes), TESSERA_ERROR_OK);
    CHECK_EQ_U64(bytes, 60 * TESSERA_GRANULE);
    CHECK_EQ_U64(tessera_region_reap(region), 1);
    CHECK_EQ_U64(tessera_region_spilled(region, 1, &bytes), TESSERA_ERROR_OK);
    CHECK_EQ_U64(bytes, 0);
    CHECK_EQ_U64(tessera_region_used(region, 1, &bytes), TESSERA_ERROR_OK);
    CHECK_EQ_U64(bytes, 0);
    tessera_region_close(region);
}

int main(void)
{
    a_busy_high_share_leaves_the_floor();
    a_high_share_keeps_twice_its_use();
    an_idle_high_share_costs_nobody_anything();
    equals_do_not_yield_to_each_other();
    each_level_has_what_those_above_leave();
    what_is_idle_is_lent_to_who_does_not_yield();
    without_priorities_lending_is_as_it_was();
    unfilled_requests_are_not_lent();
    what_is_spare_is_divided_by_request_and_priority();
    growth_is_refused_where_nothing_is_spare();
    the_lowest_gives_back_first_and_then_who_has_most();
    a_cap_holds_while_its_governor_is_heard_of();
    orders_follow_idleness_and_requests();
    a_region_of_an_older_library_is_left_alone();
    odd_arguments_are_refused();
    what_a_dead_process_spilled_comes_back();
    return 0;
}
