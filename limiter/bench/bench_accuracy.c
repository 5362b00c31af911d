/* DESIGN
 *
 * How well a compute limit holds: a minute of virtual time for every card, limit, mode and kind of work, on the library's
 * own hooks over the simulated driver. Prints one line a run, tab-separated: mode, work, SMs, limit in percent, what the
 * mode promises in percent, mean device time in percent, part of the seconds within 15 points of the promise in percent.
 * With the argument "windows" the seconds too; with "floor" instead how long an owner waits for its own.
 *
 * The promise of `hard` is the limit. Under `burst` and `best-effort` it is the limit beside a share that wants the rest,
 * and the whole device while nobody else wants it.
 */
#include "../test/compute_world.h"

static const uint32_t cards[] = {20, 48, 84, 108, 132, 160, 188, 200};
static const uint32_t limits[] = {100, 250, 500, 750};

enum neighbour { NOBODY, WITHOUT_LIMIT, WITH_THE_REST };

struct work {
    const char *name;
    struct tenant tenant;
    enum neighbour beside; /* one that never stops */
    uint32_t mode;
};

static const struct work works[] = {
    {"short kernels", {.kernels = {"k_block_us_50"}, .blocks = 2048}, NOBODY, TESSERA_MODE_HARD},
    {"long kernels", {.kernels = {"k_block_ms_10"}, .blocks = 2048}, NOBODY, TESSERA_MODE_HARD},
    {"mixed", {.kernels = {"a_us_30", "b_block_us_400", "c_us_700", "d_us_5", "e_ms_20"}, .blocks = 1024}, NOBODY, TESSERA_MODE_HARD},
    {"one at a time", {.kernels = {"k_block_us_80", "l_ms_2"}, .blocks = 1500, .style = SYNC}, NOBODY, TESSERA_MODE_HARD},
    {"4 streams", {.kernels = {"k_block_us_80", "l_ms_2", "m_ms_5"}, .blocks = 1500, .streams = 4}, NOBODY, TESSERA_MODE_HARD},
    {"graphs", {.kernels = {"k_us_200", "l_ms_3"}, .style = GRAPH}, NOBODY, TESSERA_MODE_HARD},
    {"cooperative", {.kernels = {"k_block_us_300"}, .blocks = 160, .style = COOPERATIVE}, NOBODY, TESSERA_MODE_HARD},
    {"beside a neighbour", {.kernels = {"k_block_us_200", "l_ms_4"}, .blocks = 2048}, WITHOUT_LIMIT, TESSERA_MODE_HARD},
    {"alone", {.kernels = {"k_block_us_200", "l_ms_4"}, .blocks = 2048}, NOBODY, TESSERA_MODE_BURST},
    {"beside a busy share", {.kernels = {"k_block_us_200", "l_ms_4"}, .blocks = 2048}, WITH_THE_REST, TESSERA_MODE_BURST},
    {"alone", {.kernels = {"k_block_us_200", "l_ms_4"}, .blocks = 2048}, NOBODY, TESSERA_MODE_BEST_EFFORT},
    {"beside a busy share", {.kernels = {"k_block_us_200", "l_ms_4"}, .blocks = 2048}, WITH_THE_REST, TESSERA_MODE_BEST_EFFORT},
};

static const char *const modes[] = {"off", "hard", "burst", "best-effort"};
static const struct work *running;
static bool with_windows;

static double promise(void)
{
    bool is_lent = running->mode != TESSERA_MODE_HARD && running->beside == NOBODY;
    return is_lent ? 100 : world.share[0].milli / 10.0;
}

static void print_run(void)
{
    printf("%s\t%s\t%u\t%.0f\t%.0f\t%.2f\t%.1f", modes[running->mode], running->name, world.sms, world.share[0].milli / 10.0,
           promise(), percent_between(0, 0, world.seconds), windows_within(0, promise(), 0, world.seconds));
    for (double at = 0; with_windows && at + 1 <= world.seconds; at += 1) {
        printf("\t%.1f", percent_between(0, at, at + 1));
    }
    printf("\n");
}

static void run(const struct work *work, uint32_t sms, uint32_t milli)
{
    struct world plan = {.sms = sms, .seconds = 60, .shares = 1, .tenants = 1, .share = {{milli, work->mode, 1}},
                         .tenant = {work->tenant}};
    if (work->beside != NOBODY) {
        bool rest = work->beside == WITH_THE_REST;
        plan.shares = plan.tenants = 2;
        plan.share[1] = (struct share_plan){rest ? 1000 - milli : 1000, rest ? TESSERA_MODE_BURST : TESSERA_MODE_OFF, 1};
        plan.tenant[1] = (struct tenant){.share = 1, .kernels = {"k_ms_2"}};
    }
    running = work;
    in_a_world(work->name, &plan, print_run);
}

/* -- an owner that comes back --------------------------------------------------------------------------------------- */

enum { AWAY_SECONDS = 5 };

static const char *borrowers_kernel;

/* When the first half-second begins in which the owner has nine tenths of its limit, from its first launch on; and what it
 * has in the half-second that begins at the promise. */
static void print_floor(void)
{
    double percent = world.share[0].milli / 10.0;
    const double slack = 1e-6; /* sums of tenths fall short of a tick */
    uint32_t late = 0;
    for (; late < 4000 / TICK_MS; late++) {
        double from = AWAY_SECONDS + late * TICK_MS / 1000.0 + slack;
        if (percent_between(0, from, from + 0.5) >= 0.9 * percent) break;
    }
    printf("floor\t%s\t%u\t%.0f\t%u\t%.2f\n", borrowers_kernel, world.sms, percent, late * TICK_MS,
           percent_between(0, AWAY_SECONDS + 0.5 + slack, AWAY_SECONDS + 1 + slack));
}

static void run_floor(uint32_t sms, uint32_t milli, const char *kernel)
{
    struct world plan = {.sms = sms, .seconds = 10, .shares = 2, .tenants = 2,
                         .share = {{milli, TESSERA_MODE_HARD, 1}, {1000 - milli, TESSERA_MODE_BURST, 1}},
                         .tenant = {{.kernels = {"k_ms_2"}, .starts = AWAY_SECONDS}, {.share = 1, .kernels = {kernel}}}};
    borrowers_kernel = kernel;
    in_a_world("floor", &plan, print_floor);
}

static void run_floors(void)
{
    static const char *const kernels[] = {"k_us_200", "k_ms_2", "k_ms_30"};
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        for (size_t c = 0; c < sizeof cards / sizeof *cards; c++) {
            for (size_t l = 0; l < sizeof limits / sizeof *limits; l++) run_floor(cards[c], limits[l], kernels[k]);
        }
    }
}

int main(int argc, char **argv)
{
    with_windows = argc > 1 && strcmp(argv[1], "windows") == 0;
    if (argc > 1 && strcmp(argv[1], "floor") == 0) {
        run_floors();
        return 0;
    }
    for (size_t w = 0; w < sizeof works / sizeof *works; w++) {
        for (size_t c = 0; c < sizeof cards / sizeof *cards; c++) {
            for (size_t l = 0; l < sizeof limits / sizeof *limits; l++) {
                /* A neighbour's slices are half of the card: more than that is not to be had beside it. */
                run(&works[w], cards[c], works[w].beside == WITHOUT_LIMIT && limits[l] > 500 ? 500 : limits[l]);
            }
        }
    }
    return 0;
}
