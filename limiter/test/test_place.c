/* The placement kernel on two nodes of two devices, worked out by hand, and on shapes at its limits (for the sanitizers).
 *
 * The expected workload is one kind: 500 milli of one device and any CPU, with probability one. So a device with less
 * than 500 milli left is wasted whole, and F of a node is the sum of such rests.
 */
#include "check.h"
#include "place.h"

#include <string.h>

enum { NODES = 2, DEVICES = 4 };
static const int64_t one = (int64_t)1 << 32, fine = (int64_t)1 << 20;

static int64_t first[] = {0, 2, 4}, model[NODES], cpu[NODES] = {64000, 64000}, memory[NODES], most_pods[] = {9, 9};
static int64_t compute[DEVICES], slots[DEVICES], zero[DEVICES], left[DEVICES], fill[NODES];
static int64_t used_cpu[NODES], pods[NODES];
static uint8_t is_open[] = {1, 1};

static int64_t value[] = {500}, group_value[] = {0}, group_count[] = {1}, weight[] = {(int64_t)1 << 32};
static int64_t kind_cpu[] = {0}, kind_group[] = {0};
static uint8_t kind_may[] = {1};
static double thresholds[99], chance[] = {1.0};
static int64_t worth[1001], softplus[4097], price[1], kept[] = {-1, -1};

static int64_t takes[DEVICES], room[DEVICES];
static uint8_t ruled_out[DEVICES], fits[DEVICES];
static int64_t scores[NODES];

static struct place_fleet fleet = {
    .nodes = NODES, .first = first, .node_model = model, .cpu = cpu, .host_memory = memory, .max_pods = most_pods,
    .compute = compute, .slots = slots, .open = is_open, .used_memory = zero, .used_compute = zero, .used_slots = zero,
    .exclusive = zero, .left = left, .node_fill = fill, .used_cpu = used_cpu, .used_host_memory = zero, .pods = pods,
};
static struct place_outlook outlook = {
    .values = 1, .groups = 1, .value = value, .group_value = group_value, .group_count = group_count, .weight = weight,
    .thresholds = thresholds, .worth = worth, .softplus = softplus, .price = price, .kept = kept, .reach = 2048,
    .cpu_per_device = 12000, .kinds = 1, .models = 1, .kind_cpu = kind_cpu, .kind_group = kind_group,
    .kind_may = kind_may, .kind_chance = chance,
};
static struct place_ask ask = {
    .takes = takes, .memory_room = room, .compute_room = room, .ruled_out = ruled_out, .fits = fits, .scores = scores,
};

static void set_up(int64_t ranking, int64_t count, int64_t milli)
{
    outlook.total = one;
    for (int d = 0; d < DEVICES; d++) {
        compute[d] = left[d] = 1000;
        slots[d] = 100;
        takes[d] = milli;
        room[d] = 1000 - milli;
        ruled_out[d] = 0;
    }
    for (int k = 0; k < 99; k++) {
        thresholds[k] = (k - 49) * 100.0; /* not FGD's: a point each 100 milli, 50 where nothing changes */
    }
    memset(worth, 0, sizeof worth);
    kept[0] = kept[1] = -1;
    price[0] = 0;
    ask.ranking = ranking;
    ask.count = count;
    ask.cpu = 0;
}

static void test_a_rest_that_nobody_can_use_costs_points(void)
{
    set_up(PLACE_FGD, 1, 700);
    left[2] = 700; /* fits exactly, and wastes nothing; elsewhere 300 milli are left over */
    tessera_place_look(&fleet, &outlook, &ask, NULL, NODES);
    CHECK_EQ_U64(scores[0], 47);
    CHECK_EQ_U64(scores[1], 50);
    int64_t devices[PLACE_MOST_DEVICES];
    tessera_place_devices(&fleet, &outlook, &ask, 1, devices);
    CHECK_EQ_U64(devices[0], 50);
    CHECK_EQ_U64(devices[1], 47);
}

static void test_what_cannot_be_used_for_want_of_cores_or_model_is_lost_whole(void)
{
    set_up(PLACE_FGD, 1, 500);
    kind_may[0] = 0;
    tessera_place_look(&fleet, &outlook, &ask, NULL, 1);
    CHECK_EQ_U64(scores[0], 55); /* F is all that is idle, and falls by what is taken */
    kind_may[0] = 1;
    kind_cpu[0] = 64000;
    ask.cpu = 1;
    tessera_place_look(&fleet, &outlook, &ask, NULL, 1);
    CHECK_EQ_U64(scores[0], 35); /* the pod takes a core that the kind needs: F grows from 0 to 1500 */
    kind_cpu[0] = 0;
}

static void test_a_node_that_is_too_full_or_closed_is_out(void)
{
    set_up(PLACE_FGD, 2, 700);
    ruled_out[1] = 1;
    tessera_place_look(&fleet, &outlook, &ask, NULL, NODES);
    CHECK(scores[0] == INT64_MIN);
    CHECK(fits[0] == 1 && fits[1] == 0);
    CHECK_EQ_U64(scores[1], 44); /* two rests of 300 milli */
    pods[1] = 9;
    int64_t second = 1;
    tessera_place_look(&fleet, &outlook, &ask, &second, 1);
    CHECK(scores[1] == INT64_MIN);
    pods[1] = 0;
}

static void test_pwr_weighs_what_rests_are_worth_and_steps_by_20_milli(void)
{
    set_up(PLACE_PWR, 1, 700);
    worth[1000] = 800 * fine;
    worth[700] = 500 * fine;
    left[2] = 700;
    tessera_place_look(&fleet, &outlook, &ask, NULL, NODES);
    /* node 0: 0.3 * 300 + 4 * 800 + 0.1 * 2000 * 700 / 8000 = 90 + 3200 + 17.5 = 3307.5, 165 steps */
    CHECK(scores[0] == -165);
    /* node 1: 4 * 500 + 0.1 * 1700 * 700 / 8000 = 2000 + 14.9, 100 steps */
    CHECK(scores[1] == -100);
    kept[1] = 1700;
    tessera_place_look(&fleet, &outlook, &ask, NULL, NODES);
    CHECK(scores[1] == -170); /* 2 * 700 more */
}

static void test_the_limits(void)
{
    static int64_t many_first[] = {0, PLACE_MOST_DEVICES, PLACE_MOST_DEVICES}, many[PLACE_MOST_DEVICES];
    static uint8_t flags[PLACE_MOST_DEVICES];
    static int64_t ones[PLACE_MOST_GROUPS], nothing[PLACE_MOST_GROUPS], weights[PLACE_MOST_GROUPS], devices[PLACE_MOST_DEVICES];
    for (int d = 0; d < PLACE_MOST_DEVICES; d++) {
        many[d] = 1000 - d;
        ones[d] = 1;
    }
    set_up(PLACE_PWR, PLACE_MOST_DEVICES, 0);
    struct place_fleet wide = fleet;
    wide.first = many_first;
    wide.compute = wide.slots = wide.left = many;
    wide.used_memory = wide.used_compute = wide.used_slots = wide.exclusive = nothing;
    struct place_outlook full = outlook;
    full.groups = PLACE_MOST_GROUPS;
    full.group_value = nothing;
    full.group_count = ones;
    full.weight = weights;
    full.stranding = 7000;
    struct place_ask wide_ask = ask;
    wide_ask.takes = wide_ask.memory_room = wide_ask.compute_room = many;
    wide_ask.fits = flags;
    static uint8_t none[PLACE_MOST_DEVICES];
    wide_ask.ruled_out = wide_ask.unknown = wide_ask.free_riding = none;
    tessera_place_look(&wide, &full, &wide_ask, NULL, NODES);
    CHECK(scores[0] != INT64_MIN);
    CHECK(scores[1] == INT64_MIN); /* no devices at all */
    wide_ask.count = 1;
    tessera_place_look(&wide, &full, &wide_ask, NULL, NODES);
    tessera_place_devices(&wide, &full, &wide_ask, 0, devices);
    wide_ask.ranking = PLACE_FGD;
    tessera_place_look(&wide, &full, &wide_ask, NULL, NODES);
    tessera_place_devices(&wide, &full, &wide_ask, 0, devices);
    wide_ask.count = 0;
    tessera_place_look(&wide, &full, &wide_ask, NULL, NODES);
    CHECK(scores[1] != INT64_MIN);
}

int main(void)
{
    test_a_rest_that_nobody_can_use_costs_points();
    test_what_cannot_be_used_for_want_of_cores_or_model_is_lost_whole();
    test_a_node_that_is_too_full_or_closed_is_out();
    test_pwr_weighs_what_rests_are_worth_and_steps_by_20_milli();
    test_the_limits();
    return 0;
}
