/* DESIGN
 *
 * A compute limit in real time on the device that is there: kernels of 200 us one after the other, without a limit and under
 * 10, 25, 50 and 75 %, alone. A share's device time is the kernels that it got done times what one takes without a
 * limit. Nobody ticks, as when the agent is away: the limit must hold all the same.
 *
 * Prints a line a limit: limit and mean in percent, and the part of the seconds that lie within 15 points.
 * Usage: bench_device SECONDS, under the library.
 */
#include "card.h"
#include "timing.h"

enum { BATCH = 8, SECONDS_MAX = 600 };

static CUfunction kernel;
static uint32_t counted[SECONDS_MAX + 1]; /* kernels done in each second */

static void run_batch(void)
{
    for (int i = 0; i < BATCH; i++) OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

/* Nanoseconds of a kernel on the device, launched back to back without a limit. */
static double unlimited_ns(void)
{
    enum { TIMES = 100 };
    double batches[TIMES];
    CUevent begin;
    CUevent end;
    float ms;
    OK(cuEventCreate(&begin, 0));
    OK(cuEventCreate(&end, 0));
    for (int i = 0; i < TIMES; i++) {
        OK(cuEventRecord(begin, NULL));
        run_batch();
        OK(cuEventRecord(end, NULL));
        OK(cuStreamSynchronize(NULL));
        OK(cuEventElapsedTime(&ms, begin, end));
        batches[i] = (double)ms * 1e6 / BATCH;
    }
    return median(batches, TIMES);
}

static void run_limit(uint32_t milli, int seconds, double kernel_ns)
{
    double done = 0;
    int near = 0;
    OK(tessera_region_set_compute(the_region(), 0, milli, TESSERA_MODE_HARD));
    memset(counted, 0, sizeof counted);
    double begin = now_ns();
    for (double now = begin; now < begin + seconds * 1e9; now = now_ns()) {
        run_batch();
        OK(cuStreamSynchronize(NULL));
        counted[(int)((now - begin) / 1e9)] += BATCH;
    }
    double took = now_ns() - begin;
    for (int i = 0; i < seconds; i++) {
        double percent = counted[i] * kernel_ns / 1e7;
        done += counted[i];
        near += percent > milli / 10.0 - 15 && percent < milli / 10.0 + 15;
    }
    printf("%.0f\t%.2f\t%.1f\n", milli / 10.0, done * kernel_ns / took * 100, 100.0 * near / seconds);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const uint32_t limits[] = {100, 250, 500, 750};
    CUmodule module;
    int seconds = argc > 1 ? atoi(argv[1]) : 0;
    CHECK(seconds > 0 && seconds <= SECONDS_MAX);
    grant_card(NULL, GIB, 0);
    card_context();
    OK(cuModuleLoadData(&module, kernels));
    OK(cuModuleGetFunction(&kernel, module, "spin_us_200"));
    double kernel_ns = unlimited_ns();
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) run_limit(limits[i], seconds, kernel_ns);
    return 0;
}
