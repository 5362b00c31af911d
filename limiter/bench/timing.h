/* DESIGN
 *
 * What the benches share: a clock, and what is told of many times. All in double, nanoseconds.
 */
#ifndef TESSERA_BENCH_TIMING_H
#define TESSERA_BENCH_TIMING_H

#include <stdlib.h>
#include <time.h>

static inline double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static inline int by_value(const void *one, const void *other)
{
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

/* The value below which `part` of them lie; sorts them. */
static inline double quantile(double *values, long count, double part)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    long at = (long)(part * (double)count);
    return values[at < count ? at : count - 1];
}

static inline double median(double *values, long count)
{
    return quantile(values, count, 0.5);
}

#endif
