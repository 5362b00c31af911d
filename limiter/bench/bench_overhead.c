/* DESIGN
 *
 * What the library adds to a call, in nanoseconds, over the simulated driver. The same process calls the driver's own
 * function and the hook in turns of one batch each, so that both see the same machine; the figure is the median of
 * the differences. Arguments: batches (default 400); or "calls" N: N pairs through the hooks and nothing else, for
 * counting system calls (the simulated query reads /proc every 2 ms).
 */
#include "card.h"
#include "timing.h"

enum { BATCH = 64, BATCHES = 400, BATCHES_MAX = 10000, HELD = 4096 };

struct api {
    __typeof__(&cuMemAlloc_v2) allocate;
    __typeof__(&cuMemFree_v2) free;
    __typeof__(&cuMemGetInfo_v2) info;
};

enum measured { ALLOCATE, FREE, INFO, MEASURED };

static const char *const names[] = {"cuMemAlloc", "cuMemFree", "cuMemGetInfo"};

/* A batch of pairs, and below one of queries; apart because the simulated query now and then reads /proc and leaves
 * cold caches. */
static void run_pairs(const struct api *api, double took[MEASURED])
{
    CUdeviceptr pointers[BATCH];
    double start = now_ns();
    for (int i = 0; i < BATCH; i++) {
        OK(api->allocate(&pointers[i], MIB));
    }
    double allocated = now_ns();
    for (int i = 0; i < BATCH; i++) {
        OK(api->free(pointers[i]));
    }
    took[FREE] = (now_ns() - allocated) / BATCH;
    took[ALLOCATE] = (allocated - start) / BATCH;
}

static void run_queries(const struct api *api, double took[MEASURED])
{
    size_t free_bytes;
    size_t total;
    double start = now_ns();
    for (int i = 0; i < BATCH; i++) {
        OK(api->info(&free_bytes, &total));
    }
    took[INFO] = (now_ns() - start) / BATCH;
}

/* Turns of both, then medians: of each, and of the differences of neighbouring turns (the machine's speed drifts). */
static void compare(const char *title, enum measured m, void (*run)(const struct api *, double *), int batches)
{
    static double with[BATCHES_MAX];
    static double without[BATCHES_MAX];
    static double difference[BATCHES_MAX];
    const struct api hooks = {cuMemAlloc_v2, cuMemFree_v2, cuMemGetInfo_v2};
    const struct api driver = {REAL(cuMemAlloc_v2), REAL(cuMemFree_v2), REAL(cuMemGetInfo_v2)};
    double took[MEASURED];
    for (int i = 0; i < batches; i++) {
        run(&driver, took);
        without[i] = took[m];
        run(&hooks, took);
        with[i] = took[m];
        difference[i] = with[i] - without[i];
    }
    printf("%s %-13s driver %6.1f ns, with the library %6.1f ns, overhead %5.1f ns\n", title, names[m],
           median(without, batches), median(with, batches), median(difference, batches));
}

static void compare_all(const char *title, int batches)
{
    compare(title, ALLOCATE, run_pairs, batches);
    compare(title, FREE, run_pairs, batches);
    compare(title, INFO, run_queries, batches);
}

static void hold(int count)
{
    for (int i = 0; i < count; i++) {
        CUdeviceptr pointer;
        OK(cuMemAlloc_v2(&pointer, 512));
    }
}

int main(int argc, char **argv)
{
    double took[MEASURED];
    grant_card(NULL, 8 * GIB, 0);
    card_context();
    CHECK((void *)REAL(cuMemAlloc_v2) != (void *)&cuMemAlloc_v2); /* the library is preloaded */
    if (argc == 3 && strcmp(argv[1], "calls") == 0) {
        const struct api hooks = {cuMemAlloc_v2, cuMemFree_v2, cuMemGetInfo_v2};
        for (int i = 0; i < atoi(argv[2]); i += BATCH) {
            run_pairs(&hooks, took);
        }
        return 0;
    }
    int batches = argc > 1 ? atoi(argv[1]) : BATCHES;
    CHECK(batches > 0 && batches <= BATCHES_MAX);
    compare_all("nothing held:", batches);
    hold(HELD);
    compare_all("4,096 held:  ", batches);
    return 0;
}
