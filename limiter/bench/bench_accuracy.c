/* DESIGN
 *
 * How well a compute limit holds: a minute of virtual time for every card, limit and kind of work, on the library's own
 * hooks over the simulated driver. Prints one line a run, tab-separated: work, SMs, limit in percent, mean device time in
 * percent, part of the seconds within 15 points of the limit in percent. With the argument "windows" the seconds too.
 */
#include "../test/compute_world.h"

static const uint32_t cards[] = {20, 48, 84, 108, 132, 160, 188, 200};
static const uint32_t limits[] = {100, 250, 500, 750};

struct work {
    const char *name;
    struct tenant tenant;
    bool beside; /* a neighbour that never stops */
};

static const struct work works[] = {
    {"short kernels", {.kernels = {"k_block_us_50"}, .blocks = 2048}, false},
    {"long kernels", {.kernels = {"k_block_ms_10"}, .blocks = 2048}, false},
    {"mixed", {.kernels = {"a_us_30", "b_block_us_400", "c_us_700", "d_us_5", "e_ms_20"}, .blocks = 1024}, false},
    {"one at a time", {.kernels = {"k_block_us_80", "l_ms_2"}, .blocks = 1500, .style = SYNC}, false},
    {"4 streams", {.kernels = {"k_block_us_80", "l_ms_2", "m_ms_5"}, .blocks = 1500, .streams = 4}, false},
    {"graphs", {.kernels = {"k_us_200", "l_ms_3"}, .style = GRAPH}, false},
    {"cooperative", {.kernels = {"k_block_us_300"}, .blocks = 160, .style = COOPERATIVE}, false},
    {"beside a neighbour", {.kernels = {"k_block_us_200", "l_ms_4"}, .blocks = 2048}, true},
};

static const struct work *running;
static bool with_windows;

static void print_run(void)
{
    double percent = world.share[0].milli / 10.0;
    printf("%s\t%u\t%.0f\t%.2f\t%.1f", running->name, world.sms, percent, percent_between(0, 0, world.seconds),
           windows_within(0, percent, 0, world.seconds));
    for (double at = 0; with_windows && at + 1 <= world.seconds; at += 1) {
        printf("\t%.1f", percent_between(0, at, at + 1));
    }
    printf("\n");
}

static void run(const struct work *work, uint32_t sms, uint32_t milli)
{
    struct world plan = {.sms = sms, .seconds = 60, .shares = 1, .tenants = 1, .share = {{milli, TESSERA_MODE_HARD, 1}},
                         .tenant = {work->tenant}};
    if (work->beside) {
        plan.shares = plan.tenants = 2;
        plan.share[1] = (struct share_plan){1000, TESSERA_MODE_OFF, 1};
        plan.tenant[1] = (struct tenant){.share = 1, .kernels = {"k_ms_2"}};
    }
    running = work;
    in_a_world(work->name, &plan, print_run);
}

int main(int argc, char **argv)
{
    with_windows = argc > 1 && strcmp(argv[1], "windows") == 0;
    for (size_t w = 0; w < sizeof works / sizeof *works; w++) {
        for (size_t c = 0; c < sizeof cards / sizeof *cards; c++) {
            for (size_t l = 0; l < sizeof limits / sizeof *limits; l++) {
                /* A neighbour's slices are half of the card: more than that is not to be had beside it. */
                run(&works[w], cards[c], works[w].beside && limits[l] > 500 ? 500 : limits[l]);
            }
        }
    }
    return 0;
}
