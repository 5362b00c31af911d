/* DESIGN
 *
 * A driver that offers more than the library knows: what reads like taking memory is reported to the agent, and is not
 * there for a share whose policy says so. The driver of the other tests has nothing unknown.
 */
#include "limiter_world.h"

static void helper(const char *mode)
{
    char path[512];
    snprintf(path, sizeof path, "%s/newer", getenv("TESSERA_TEST_HELPERS"));
    CHECK(setenv("LD_LIBRARY_PATH", path, 1) == 0);
    snprintf(path, sizeof path, "%s/helper_newer_program", getenv("TESSERA_TEST_HELPERS"));
    execl(path, path, mode, (char *)NULL);
    _exit(127);
}

static void unknown_functions_are_the_programs_to_use_without_a_policy(void)
{
    helper("given");
}

static void unknown_functions_are_not_there_by_policy(void)
{
    CHECK_EQ_U64(tessera_region_set_policy(the_region(), TESSERA_REFUSE_UNKNOWN), TESSERA_ERROR_OK);
    helper("refused");
}

static void a_policy_that_does_not_exist_is_an_error(void)
{
    IS(tessera_region_set_policy(the_region(), 8), TESSERA_ERROR_ARGUMENT);
    CHECK_EQ_U64(the_region()->control.policy, 0);
}

static void the_known_driver_has_nothing_unknown(void)
{
    OK(cuInit(0));
    CHECK_EQ_U64(the_region()->usage.unknown_count, 0);
    CHECK_EQ_STR(the_region()->usage.unknown_symbol, "");
}

/* After a case: what its process reported. */
static void expect_report(void)
{
    struct tessera_region *region;
    CHECK_EQ_U64(tessera_region_open(region_path, &region), TESSERA_ERROR_OK);
    CHECK_EQ_U64(region->usage.unknown_count, 2); /* cuMemAllocTomorrow and cuMemAlloc_v9, in the order of the table */
    CHECK(strcmp(region->usage.unknown_symbol, "cuMemAllocTomorrow") == 0 ||
          strcmp(region->usage.unknown_symbol, "cuMemAlloc_v9") == 0);
    tessera_region_close(region);
}

int main(void)
{
    CASE(unknown_functions_are_the_programs_to_use_without_a_policy, GIB, GIB);
    expect_report();
    CASE(unknown_functions_are_not_there_by_policy, GIB, GIB);
    expect_report();
    CASE(a_policy_that_does_not_exist_is_an_error, GIB, GIB);
    CASE(the_known_driver_has_nothing_unknown, GIB, GIB);
    return 0;
}
