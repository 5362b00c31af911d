/* DESIGN
 *
 * What the library adds to a launch, in nanoseconds, over the simulated driver: without a compute limit, and under one
 * that the launches stay below. The same process launches through the driver's own function and through the hook in turns
 * of one batch each, so that both see the same machine; the figure is the median of the differences of neighbouring
 * batches. Under a limit some launches are measured (one of 32 here): the mean has them in it, the median of batches of
 * eight does not. Arguments: milli of the limit (0: none), batches.
 */
#include "card.h"
#include "timing.h"

enum { BATCH = 8, BATCHES_MAX = 200000, WARM_UP = 2000 };

typedef __typeof__(&cuLaunchKernel) launch_function;

static double run_batch(launch_function launch, CUfunction function, CUstream stream)
{
    double start = now_ns();
    for (int i = 0; i < BATCH; i++) {
        OK(launch(function, 64, 1, 1, 256, 1, 1, 0, stream, NULL, NULL));
    }
    return (now_ns() - start) / BATCH;
}

static double mean(const double *values, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++) sum += values[i];
    return sum / count;
}

static void compare(int batches, CUfunction function, CUstream stream)
{
    static double with[BATCHES_MAX];
    static double without[BATCHES_MAX];
    static double difference[BATCHES_MAX];
    launch_function driver = REAL(cuLaunchKernel);
    for (int i = 0; i < WARM_UP; i++) run_batch(cuLaunchKernel, function, stream);
    for (int i = 0; i < batches; i++) {
        without[i] = run_batch(driver, function, stream);
        with[i] = run_batch(cuLaunchKernel, function, stream);
        difference[i] = with[i] - without[i];
    }
    double added = mean(with, batches) - mean(without, batches);
    printf("launch: driver %.1f ns, with the library %.1f ns, overhead %.1f ns median, %.1f ns mean\n",
           median(without, batches), median(with, batches), median(difference, batches), added);
}

int main(int argc, char **argv)
{
    CUmodule module;
    CUfunction function;
    CUstream stream;
    int batches = argc > 2 ? atoi(argv[2]) : 20000;
    CHECK(batches > 0 && batches <= BATCHES_MAX);
    grant_card(NULL, 8 * GIB, argc > 1 ? (uint32_t)atoi(argv[1]) : 0);
    card_context();
    CHECK((void *)REAL(cuLaunchKernel) != (void *)&cuLaunchKernel); /* the library is preloaded */
    OK(cuModuleLoadData(&module, kernels));
    OK(cuModuleGetFunction(&function, module, "spin_ns_20"));
    OK(cuStreamCreate(&stream, 1));
    compare(batches, function, stream);
    const struct tessera_device_usage *usage = &the_region()->usage.device[0];
    printf("launches that waited: %llu\n", (unsigned long long)usage->throttled_count);
    return 0;
}
