/* DESIGN
 *
 * A limit is not kept by swinging between all of the card and nothing: the seconds of a share lie close to their mean. On
 * the library's own hooks, over a simulated card in virtual time (compute_world.h).
 */
#include "compute_world.h"

#define MOST_VARIATION 0.3 /* standard deviation over mean */

/* From the second one on: the first kernels run before their time is known. */
static void seconds_are_alike(void)
{
    double sum = 0;
    double squares = 0;
    double count = 0;
    for (double at = 1; at + 1 <= world.seconds; at += 1) {
        double had = percent_between(0, at, at + 1);
        sum += had;
        squares += had * had;
        count++;
    }
    double mean = sum / count;
    double variance = squares / count - mean * mean;
    if (variance > MOST_VARIATION * MOST_VARIATION * mean * mean) {
        CHECK_FAIL("seconds of %.2f %% on average vary by %.2f squared", mean, variance);
    }
}

static void seconds_of_a_limit_are_alike(void)
{
    static const char *const kernels[] = {"k_us_50", "k_ms_2", "k_ms_30"};
    for (int i = 0; i < 3; i++) {
        for (uint32_t milli = 100; milli <= 700; milli += 200) {
            struct world plan = {.seconds = 30, .shares = 1, .tenants = 1, .share = {{milli, TESSERA_MODE_HARD, 1}},
                                 .tenant = {{.kernels = {kernels[i]}}}};
            in_a_world(kernels[i], &plan, seconds_are_alike);
        }
    }
}

int main(void)
{
    seconds_of_a_limit_are_alike();
    return 0;
}
