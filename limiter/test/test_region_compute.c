/* DESIGN
 *
 * The arithmetic of compute limits (src/controller.c) against figures worked out by hand, what the agent's calls write,
 * and what comes back from the dead. The last part is a model of two ranks that need each other, which is where a limit
 * on launches usually hurts most.
 */
#include <stdlib.h>

#include "../src/books.h"
#include "../src/controller.h"
#include "check.h"
#include "tessera_region_api.h"

#define MS LIM_MS
#define SECOND (1000 * LIM_MS)

static struct tessera_region *a_region(uint32_t milli_0, uint32_t milli_1)
{
    struct tessera_share_spec spec = {.share_id = "test", .device_count = 2};
    struct tessera_region *region;
    char path[] = "/tmp/tessera-compute-XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0 && close(file) == 0);
    strcpy(spec.device[0].uuid, "GPU-0");
    strcpy(spec.device[1].uuid, "GPU-1");
    spec.device[0].compute_limit_milli = milli_0;
    spec.device[1].compute_limit_milli = milli_1;
    CHECK_EQ_U64(tessera_region_create(path, &spec), TESSERA_ERROR_OK);
    CHECK_EQ_U64(tessera_region_open(path, &region), TESSERA_ERROR_OK);
    CHECK(unlink(path) == 0);
    return region;
}

/* -- formulas ------------------------------------------------------------------------------------------------------ */

static void a_rate_is_limit_times_dilation(void)
{
    CHECK_EQ_U64(lim_rate(500, 0), LIM_ONE_Q32 / 2);
    CHECK_EQ_U64(lim_rate(250, LIM_ONE_Q32), LIM_ONE_Q32 / 4);
    CHECK_EQ_U64(lim_rate(250, 2 * LIM_ONE_Q32), LIM_ONE_Q32 / 2);
    CHECK_EQ_U64(lim_rate(UINT64_MAX, UINT64_MAX), UINT64_MAX);
}

static void grants_and_waits_are_inverse(void)
{
    CHECK_EQ_U64(lim_grant(LIM_ONE_Q32 / 4, 400 * MS), 100 * MS);
    CHECK_EQ_U64(lim_grant(UINT64_MAX, UINT64_MAX), INT64_MAX / 4);
    CHECK_EQ_U64(lim_wait_ns(100 * (int64_t)MS, LIM_ONE_Q32 / 4), 400 * MS + 1);
    CHECK_EQ_U64(lim_wait_ns(0, 1), 0);
    CHECK_EQ_U64(lim_wait_ns(-5, 1), 0);
    CHECK_EQ_U64(lim_wait_ns(1, 0), UINT64_MAX / 4);
    for (uint64_t rate = 3; rate < UINT64_MAX / 7; rate *= 7) {
        for (int64_t missing = 1; missing < (int64_t)(100 * SECOND); missing = missing * 11 + 1) {
            uint64_t wait = lim_wait_ns(missing, rate);
            if (wait < UINT64_MAX / 4) CHECK(lim_grant(rate, wait) >= missing);
        }
    }
}

static void three_tenths_of_a_grant_pay_what_is_owed(void)
{
    CHECK_EQ_U64(lim_instalment(100, 1000), 100);
    CHECK_EQ_U64(lim_instalment(500, 1000), 300);
    CHECK_EQ_U64(lim_instalment(0, 1000), 0);
    CHECK_EQ_U64(lim_instalment(-7, 1000), 0);
}

static void a_charge_follows_its_measurements(void)
{
    CHECK_EQ_U64(lim_learn(0, 700), 700);
    CHECK_EQ_U64(lim_learn(0, 0), 1); /* measured, if nothing: never unknown again */
    CHECK_EQ_U64(lim_learn(1000, 2000), 1200);
    CHECK_EQ_U64(lim_learn(1000, 500), 900);
    CHECK_EQ_U64(lim_believed(1000, 1999, false), 1999);
    CHECK_EQ_U64(lim_believed(1000, 50000, false), 2000);
    CHECK_EQ_U64(lim_believed(1000, 50000, true), 50000);
    CHECK_EQ_U64(lim_believed(1000, 10, false), 10);
    uint64_t cost = 10 * MS;
    for (int i = 0; i < 40; i++) cost = lim_learn(cost, 40 * MS);
    CHECK(cost > 39 * MS && cost <= 40 * MS);
}

static void dead_work_comes_back_but_for_what_time_explains(void)
{
    CHECK_EQ_U64(lim_refund_ns(0, 0), 0);
    CHECK_EQ_U64(lim_refund_ns(30 * MS, 0), 30 * MS);
    CHECK_EQ_U64(lim_refund_ns(30 * MS, 10 * SECOND), 30 * MS);
    CHECK_EQ_U64(lim_refund_ns(3000 * MS, 400 * MS), 2600 * MS);
    CHECK_EQ_U64(lim_refund_ns(3000 * MS, 2990 * MS), 50 * MS);
}

/* -- dilation ------------------------------------------------------------------------------------------------------ */

/* Ticks of 100 ms in which `charged` was finished and the device was busy for `busy`, seen `late` ticks later. */
static uint64_t dilation_after(int count, uint64_t charged, uint64_t busy, int late)
{
    struct tessera_calibration calibration = {0};
    uint64_t dilation = 0;
    for (int tick = 0; tick < count; tick++) {
        uint64_t seen = tick > late ? (uint64_t)(tick - late) : 0;
        const struct tessera_reading reading = {seen * busy, SECOND + seen * 100 * MS};
        lim_calibrate(&calibration, &reading, SECOND + (uint64_t)tick * 100 * MS, (uint64_t)tick * charged, 5 * MS);
        dilation = lim_dilation(&calibration, dilation);
    }
    return dilation;
}

static void check_near(uint64_t dilation, double expected)
{
    double found = (double)dilation / (double)LIM_ONE_Q32;
    if (found < expected * 0.98 || found > expected * 1.02) CHECK_FAIL("dilation is %.3f, not %.3f", found, expected);
}

static void dilation_is_charged_by_busy_time(void)
{
    check_near(dilation_after(100, 50 * MS, 50 * MS, 0), 1.0);
    check_near(dilation_after(100, 50 * MS, 25 * MS, 0), 2.0); /* one busy neighbour */
    check_near(dilation_after(100, 20 * MS, 5 * MS, 0), 4.0);
    check_near(dilation_after(100, 10 * MS, 20 * MS, 0), 0.5); /* charged too little */
    check_near(dilation_after(100, 0, 0, 0), 1.0);             /* nothing happened */
    check_near(dilation_after(400, 90 * MS, 1 * MS, 0), 16.0); /* bounded */
    check_near(dilation_after(100, 1 * MS, 90 * MS, 0), 0.25);
}

/* A sensor that is half a second late must not look like a dilation, at no time. */
static void a_late_sensor_does_not_dilate(void)
{
    for (int count = 1; count < 60; count++) {
        uint64_t dilation = dilation_after(count, 50 * MS, 50 * MS, 5);
        CHECK(dilation <= LIM_ONE_Q32 + LIM_ONE_Q32 / 50);
    }
}

static void dilation_rises_by_a_tenth_in_100_ms_at_most(void)
{
    uint64_t before = LIM_ONE_Q32;
    for (int count = 2; count < 30; count++) {
        uint64_t dilation = dilation_after(count, 80 * MS, 10 * MS, 0);
        CHECK(dilation <= before + before / 10 + 1);
        before = dilation;
    }
}

/* -- lending ------------------------------------------------------------------------------------------------------- */

struct lending {
    struct tessera_borrower share[3];
    uint32_t expected[3];
};

/* {limit, mode, used, weight, waits} */
static const struct lending lendings[] = {
    /* nobody wants more */
    {{{300, TESSERA_MODE_BURST, 100, 1, 0, 0}, {300, TESSERA_MODE_HARD, 0, 1, 0, 0}}, {300, 300}},
    /* an idle owner lends all of its own, a hard share borrows nothing */
    {{{300, TESSERA_MODE_BURST, 300, 1, 1, 0}, {700, TESSERA_MODE_HARD, 0, 1, 0, 0}}, {1000, 700}},
    {{{300, TESSERA_MODE_HARD, 300, 1, 1, 0}, {700, TESSERA_MODE_BURST, 0, 1, 0, 0}}, {300, 700}},
    /* an owner at a third of its limit keeps twice that; one at half keeps everything */
    {{{300, TESSERA_MODE_BURST, 300, 1, 1, 0}, {600, TESSERA_MODE_HARD, 200, 1, 0, 0}}, {600, 600}},
    {{{300, TESSERA_MODE_BURST, 300, 1, 1, 0}, {600, TESSERA_MODE_HARD, 300, 1, 0, 0}}, {400, 600}},
    /* an owner that waits keeps everything */
    {{{300, TESSERA_MODE_BURST, 300, 1, 1, 0}, {700, TESSERA_MODE_HARD, 10, 1, 1, 0}}, {300, 700}},
    /* by weight */
    {{{100, TESSERA_MODE_BURST, 100, 3, 1, 0}, {100, TESSERA_MODE_BEST_EFFORT, 100, 1, 1, 0}, {800, 1, 0, 0, 0, 0}},
     {700, 300, 800}},
    /* a loan so generous that nobody waits is kept */
    {{{300, TESSERA_MODE_BURST, 950, 1, 0, 0}, {700, TESSERA_MODE_HARD, 0, 1, 0, 0}}, {1000, 700}},
    /* limits beyond the device leave nothing to lend */
    {{{700, TESSERA_MODE_BURST, 700, 1, 1, 0}, {700, TESSERA_MODE_HARD, 690, 1, 1, 0}}, {700, 700}},
    {{{20, TESSERA_MODE_BEST_EFFORT, UINT32_MAX, 0, 1, 0}, {0, TESSERA_MODE_HARD, 0, 0, 0, 0}}, {1000, 0}},
};

static void what_owners_leave_is_lent_to_who_waits(void)
{
    for (size_t i = 0; i < sizeof lendings / sizeof *lendings; i++) {
        uint32_t granted[3];
        tessera_compute_lend(lendings[i].share, 3, granted);
        for (int s = 0; s < 3; s++) {
            if (granted[s] != lendings[i].expected[s]) {
                CHECK_FAIL("lending %zu: share %d is granted %u, not %u", i, s, granted[s], lendings[i].expected[s]);
            }
        }
    }
}

/* Any shares: never less than the limit, and loans together never more than what limits and use leave. */
static void floors_always_hold(void)
{
    uint64_t seed = 7;
    for (int round = 0; round < 100000; round++) {
        struct tessera_borrower shares[4];
        uint32_t granted[4];
        uint64_t lent = 0;
        for (int s = 0; s < 4; s++) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
            shares[s] = (struct tessera_borrower){(uint32_t)(seed >> 33) % 1001, (uint32_t)(seed >> 20) % 4,
                                                  (uint32_t)(seed >> 40) % 1001, (uint32_t)(seed >> 50) % 5,
                                                  (uint32_t)(seed >> 60) % 2, 0};
        }
        tessera_compute_lend(shares, 4, granted);
        for (int s = 0; s < 4; s++) {
            CHECK(granted[s] >= shares[s].limit_milli && granted[s] <= 1000);
            lent += granted[s] - shares[s].limit_milli;
            if (shares[s].mode < TESSERA_MODE_BURST) CHECK_EQ_U64(granted[s], shares[s].limit_milli);
        }
        CHECK(lent <= 1000);
    }
}

/* -- the region ---------------------------------------------------------------------------------------------------- */

static void a_new_region_gates_what_has_a_limit(void)
{
    static const struct {
        uint32_t milli_0, milli_1;
        uint64_t gated;
    } cases[] = {{0, 0, 0}, {1000, 1001, 0}, {999, 1000, 1}, {0, 1, 2}, {300, 300, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tessera_region *region = a_region(cases[i].milli_0, cases[i].milli_1);
        CHECK_EQ_U64(region->control.gated, cases[i].gated);
        CHECK_EQ_U64(region->control.device[0].mode, cases[i].gated & 1 ? TESSERA_MODE_HARD : TESSERA_MODE_OFF);
        tessera_region_close(region);
    }
}

static void changes_gate_and_free_at_once(void)
{
    struct tessera_region *region = a_region(0, 300);
    CHECK_EQ_U64(tessera_region_set_compute_limit(region, 0, 250), TESSERA_ERROR_OK);
    CHECK_EQ_U64(region->control.gated, 3);
    CHECK_EQ_U64(region->control.device[0].rate_q32, LIM_ONE_Q32 / 4);
    CHECK_EQ_U64(tessera_region_set_compute(region, 1, 300, TESSERA_MODE_OFF), TESSERA_ERROR_OK);
    CHECK_EQ_U64(region->control.gated, 1);
    CHECK_EQ_U64(tessera_region_pause(region, 7), TESSERA_ERROR_OK);
    CHECK_EQ_U64(region->control.gated, 3);
    CHECK_EQ_U64(region->control.pause, 1);
    CHECK_EQ_U64(tessera_region_pause(region, 0), TESSERA_ERROR_OK);
    CHECK_EQ_U64(region->control.gated, 1);
    CHECK_EQ_U64(region->control.generation, 8); /* four changes, each from even to even */
    CHECK_EQ_U64(tessera_region_set_compute(region, 2, 300, 1), (uint64_t)TESSERA_ERROR_ARGUMENT);
    CHECK_EQ_U64(tessera_region_set_compute(region, 0, 300, 4), (uint64_t)TESSERA_ERROR_ARGUMENT);
    tessera_region_close(region);
}

static void a_loan_is_in_force_while_the_agent_is_heard(void)
{
    struct tessera_region *region = a_region(250, 0);
    struct tessera_calibration calibration = {0};
    const struct tessera_reading reading = {0, 10 * SECOND};
    CHECK_EQ_U64(lim_rate_now(&region->control, 0, 10 * SECOND), LIM_ONE_Q32 / 4);
    CHECK_EQ_U64(tessera_region_tick(region, 0, &calibration, &reading, 750, 10 * SECOND), TESSERA_ERROR_OK);
    CHECK_EQ_U64(lim_rate_now(&region->control, 0, 10 * SECOND), LIM_ONE_Q32 / 4 * 3);
    CHECK_EQ_U64(lim_rate_now(&region->control, 0, 10 * SECOND + 500 * MS), LIM_ONE_Q32 / 4 * 3);
    CHECK_EQ_U64(lim_rate_now(&region->control, 0, 10 * SECOND + 501 * MS), LIM_ONE_Q32 / 4);
    CHECK_EQ_U64(tessera_region_tick(region, 0, &calibration, &reading, 100, 11 * SECOND), TESSERA_ERROR_OK);
    CHECK_EQ_U64(lim_rate_now(&region->control, 0, 11 * SECOND), LIM_ONE_Q32 / 4); /* never below the limit */
    CHECK_EQ_U64(tessera_region_tick(region, 0, NULL, &reading, 0, 0), (uint64_t)TESSERA_ERROR_ARGUMENT);
    tessera_region_close(region);
}

static void a_reaped_slot_gives_back_what_it_booked_once(void)
{
    struct tessera_region *region = a_region(250, 250);
    const uint64_t reaping = 4 << 2 | TESSERA_REAPING;
    struct tessera_slot *slot = &region->slot[3];
    slot->state = reaping;
    slot->progress_ns = TESSERA_NO_PROGRESS; /* it only waited */
    lim_publish_booked(slot, 1, 80 * TESSERA_BOOKED_NS);
    lim_refund(region, 3, reaping + 4, SECOND); /* somebody else's slot by now */
    CHECK_EQ_U64(region->usage.device[1].granted_ns, 0);
    lim_refund(region, 3, reaping, SECOND);
    lim_refund(region, 3, reaping, SECOND);
    CHECK_EQ_U64(region->usage.device[1].granted_ns, 80 * TESSERA_BOOKED_NS);
    CHECK_EQ_U64(region->usage.device[0].granted_ns, 0);
    lim_publish_booked(slot, 0, -5);
    CHECK_EQ_U64(slot->booked[0], 0);
    lim_publish_booked(slot, 0, INT64_MAX);
    CHECK_EQ_U64(slot->booked[0], UINT16_MAX);
    tessera_region_close(region);
}

/* -- two ranks that need each other -------------------------------------------------------------------------------- */

/* A rank with a card of its own under rules 1 to 3: its kernel spins until the other's is there, then takes `work`. */
struct rank {
    int64_t granted, spent, owed;
    uint64_t cost, at, last;
};

static void grant_until(struct rank *rank, uint64_t now, uint64_t rate)
{
    int64_t grant = lim_grant(rate, now - rank->last);
    int64_t paid = lim_instalment(rank->owed, grant);
    rank->owed -= paid;
    rank->granted += grant - paid;
    rank->last = now;
    if (rank->granted > rank->spent + (int64_t)LIM_BURST_NS) rank->granted = rank->spent + (int64_t)LIM_BURST_NS;
}

/* When the rank's next launch goes, if it asks at `now`. */
static uint64_t launch_at(struct rank *rank, uint64_t now, uint64_t rate)
{
    grant_until(rank, now, rate);
    while (rank->granted <= rank->spent) {
        uint64_t wait = lim_wait_ns(rank->spent + 1 - rank->granted, rate);
        now += wait < LIM_NAP_SHORT_NS ? LIM_NAP_SHORT_NS : wait;
        grant_until(rank, now, rate);
    }
    rank->spent += (int64_t)(rank->cost == 0 ? LIM_GUESS_NS : rank->cost);
    return now;
}

static void measure(struct rank *rank, uint64_t charged, uint64_t measured)
{
    int64_t believed = lim_believed((int64_t)charged, (int64_t)measured, rank->cost == 0);
    rank->cost = lim_learn(rank->cost, (uint64_t)believed);
    rank->owed += believed - (int64_t)charged;
    if (rank->owed < 0 || rank->owed > (int64_t)LIM_OWED_NS) {
        int64_t kept = rank->owed < 0 ? 0 : (int64_t)LIM_OWED_NS;
        rank->granted += kept - rank->owed;
        rank->owed = kept;
    }
}

/* Time of `rounds` all-reduces of `work`, over what they take without a limit. */
static double slowdown(uint64_t work, uint64_t rate, int rounds)
{
    struct rank ranks[2] = {{0}};
    uint64_t now = 0;
    ranks[1].at = work / 3; /* not in step to begin with */
    for (int round = 0; round < rounds; round++) {
        uint64_t charged[2];
        uint64_t start[2];
        for (int r = 0; r < 2; r++) {
            uint64_t asked = ranks[r].at > now ? ranks[r].at : now;
            charged[r] = ranks[r].cost == 0 ? LIM_GUESS_NS : ranks[r].cost;
            start[r] = launch_at(&ranks[r], asked, rate);
        }
        uint64_t both = start[0] > start[1] ? start[0] : start[1];
        now = both + work;
        for (int r = 0; r < 2; r++) {
            measure(&ranks[r], charged[r], now - start[r]);
            ranks[r].at = now;
        }
    }
    return (double)now / ((double)work * rounds);
}

static void an_all_reduce_under_40_percent_takes_no_more_than_four_times_as_long(void)
{
    static const uint64_t works[] = {MS / 10, MS / 2, 2 * MS, 10 * MS, 40 * MS};
    for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
        double times = slowdown(works[i], lim_rate(400, 0), 3000);
        if (getenv("TEST_VERBOSE") != NULL) {
            fprintf(stderr, "all-reduce of %.1f ms: %.2f times as long\n", (double)works[i] / 1e6, times);
        }
        if (times > 4.0) CHECK_FAIL("an all-reduce of %.1f ms takes %.2f times as long", (double)works[i] / 1e6, times);
    }
}

int main(void)
{
    a_rate_is_limit_times_dilation();
    grants_and_waits_are_inverse();
    three_tenths_of_a_grant_pay_what_is_owed();
    a_charge_follows_its_measurements();
    dead_work_comes_back_but_for_what_time_explains();
    dilation_is_charged_by_busy_time();
    a_late_sensor_does_not_dilate();
    dilation_rises_by_a_tenth_in_100_ms_at_most();
    what_owners_leave_is_lent_to_who_waits();
    floors_always_hold();
    a_new_region_gates_what_has_a_limit();
    changes_gate_and_free_at_once();
    a_loan_is_in_force_while_the_agent_is_heard();
    a_reaped_slot_gives_back_what_it_booked_once();
    an_all_reduce_under_40_percent_takes_no_more_than_four_times_as_long();
    return 0;
}
