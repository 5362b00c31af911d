/* DESIGN
 *
 * A device that is full below the limit: who is refused, who goes to host memory, who gets memory back. Cards of 80 GiB, and
 * somebody outside of the share who has most of one. Shares of their own live in children that name another region before
 * they begin; the test is their governor.
 */
#include <time.h>

#include "limiter_world.h"

enum { END = 0, ALLOCATE, LIVES };

#define LIMIT (20 * GIB)
#define UNIT (16 * MIB) /* host memory is mapped for real, which memcheck takes its time for */
#define FEW (20 * UNIT)

static struct tessera_device_usage *usage(void)
{
    return &the_region()->usage.device[0];
}

static uint64_t spilled(void)
{
    uint64_t bytes;
    IS(tessera_region_spilled(the_region(), 0, &bytes), TESSERA_ERROR_OK);
    return bytes;
}

static void may_spill(uint64_t bytes)
{
    IS(tessera_region_set_spill(the_region(), 0, bytes), TESSERA_ERROR_OK);
}

/* Somebody outside of the share takes all of the card but so much. */
static void leave_free(uint64_t bytes)
{
    CUdeviceptr others;
    size_t free_bytes;
    size_t total;
    OK(REAL(cuMemGetInfo_v2)(&free_bytes, &total));
    OK(REAL(cuMemAlloc_v2)(&others, free_bytes - bytes));
}

static CUdeviceptr allocated(uint64_t bytes)
{
    CUdeviceptr pointer = 0;
    OK(cuMemAlloc_v2(&pointer, bytes));
    return pointer;
}

static unsigned is_managed(CUdeviceptr pointer)
{
    unsigned managed = 7;
    OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer));
    return managed;
}

/* -- without the share's consent ------------------------------------------------------------------------------------ */

static void a_full_device_is_counted_apart_from_the_limit(void)
{
    CUdeviceptr pointer = 0;
    world_context(0);
    leave_free(GIB);
    IS(cuMemAlloc_v2(&pointer, 2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(usage()->full_count, 1);
    CHECK_EQ_U64(usage()->refused_count, 0);
    IS(cuMemAlloc_v2(&pointer, LIMIT + 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(usage()->full_count, 1);
    CHECK_EQ_U64(usage()->refused_count, 1);
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(spilled(), 0);
    CHECK_EQ_U64(pointer, 0);
}

static void every_family_counts_a_full_device(void)
{
    CUmemAllocationProp props = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUDA_ARRAY_DESCRIPTOR flat = {.Width = 1 << 16, .Height = 1 << 15, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr pointer;
    CUarray array;
    size_t pitch;
    world_context(0);
    leave_free(GIB);
    may_spill(LIMIT); /* only cuMemAlloc spills */
    IS(cuMemAllocPitch_v2(&pointer, &pitch, 1 << 20, 2048, 4), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(usage()->full_count, 1);
    IS(cuArrayCreate_v2(&array, &flat), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(usage()->full_count, 2);
    IS(cuMemCreate(&handle, 2 * GIB, &props, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(usage()->full_count, 3);
    IS(cuMemAllocAsync(&pointer, 2 * GIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(usage()->full_count, 4);
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(spilled(), 0);
}

static void growth_beyond_the_ceiling_is_refused_first(void)
{
    const struct tessera_rule rule = {.memory_ceiling = 3 * GIB};
    CUdeviceptr pointer = 0;
    world_context(0);
    IS(tessera_region_govern(the_region(), 0, &rule, 1), TESSERA_ERROR_OK);
    CUdeviceptr first = allocated(2 * GIB);
    IS(cuMemAlloc_v2(&pointer, GIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(usage()->full_count, 1);
    CHECK_EQ_U64(usage()->refused_count, 0);
    CHECK_EQ_U64(world_free(), GIB);
    allocated(GIB);
    OK(cuMemFree_v2(first));
    CHECK_EQ_U64(charged(0), GIB);
    IS(tessera_region_govern(the_region(), 0, &(struct tessera_rule){0}, 1), TESSERA_ERROR_OK);
    allocated(LIMIT - GIB);
}

static void a_driver_that_was_out_of_memory_is_asked_once_more(void)
{
    CHECK(setenv("TESSERA_SIM_FAIL", "cuMemAlloc_v2:1:2", 1) == 0);
    world_context(0);
    allocated(GIB);
    CHECK_EQ_U64(charged(0), GIB);
    CHECK_EQ_U64(usage()->full_count, 0);
}

/* -- with it -------------------------------------------------------------------------------------------------------- */

static void what_does_not_fit_goes_to_host_memory_and_comes_back_exactly(void)
{
    world_context(0);
    leave_free(UNIT);
    may_spill(6 * UNIT);
    CUdeviceptr near = allocated(UNIT);
    CHECK_EQ_U64(is_managed(near), 0);
    CUdeviceptr far = allocated(4 * UNIT);
    CHECK_EQ_U64(is_managed(far), 1);
    CHECK_EQ_U64(charged(0), 5 * UNIT);
    CHECK_EQ_U64(spilled(), 4 * UNIT);
    CHECK_EQ_U64(usage()->spill_count, 1);
    CHECK_EQ_U64(usage()->full_count, 0);
    CHECK_EQ_U64(taken(), 80 * GIB);
    OK(cuMemFree_v2(near));
    CHECK_EQ_U64(charged(0), 4 * UNIT);
    OK(cuMemFree_v2(far));
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(spilled(), 0);
    IS(cuMemFree_v2(far), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ_U64(charged(0), 0);
    CHECK_EQ_U64(is_managed(allocated(UNIT)), 0); /* the device first, whenever it has room */
}

static void spilling_ends_at_its_own_limit_and_at_the_share_s(void)
{
    CUdeviceptr pointer = 0;
    world_context(0);
    leave_free(0);
    may_spill(6 * UNIT);
    CHECK_EQ_U64(world_free(), 6 * UNIT);
    allocated(4 * UNIT);
    IS(cuMemAlloc_v2(&pointer, 2 * UNIT + 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(usage()->full_count, 1);
    CHECK_EQ_U64(spilled(), 4 * UNIT);
    CHECK_EQ_U64(charged(0), 4 * UNIT);
    may_spill(100 * UNIT);
    IS(cuMemAlloc_v2(&pointer, FEW - 4 * UNIT + 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(usage()->refused_count, 1);
    CHECK_EQ_U64(world_free(), FEW - 4 * UNIT);
    allocated(FEW - 4 * UNIT);
    CHECK_EQ_U64(charged(0), FEW);
    CHECK_EQ_U64(spilled(), FEW);
    may_spill(0); /* takes nothing back */
    CHECK_EQ_U64(spilled(), FEW);
}

static void growth_beyond_the_ceiling_spills(void)
{
    const struct tessera_rule rule = {.memory_ceiling = 3 * UNIT};
    world_context(0);
    may_spill(FEW);
    IS(tessera_region_govern(the_region(), 0, &rule, 1), TESSERA_ERROR_OK);
    CHECK_EQ_U64(is_managed(allocated(2 * UNIT)), 0);
    CHECK_EQ_U64(is_managed(allocated(2 * UNIT)), 1);
    CHECK_EQ_U64(is_managed(allocated(UNIT)), 0); /* what was spilled leaves the ceiling as it is */
    CHECK_EQ_U64(charged(0), 5 * UNIT);
    CHECK_EQ_U64(spilled(), 2 * UNIT);
    CHECK_EQ_U64(taken(), 3 * UNIT);
}

static void what_was_spilled_is_never_exported(void)
{
    CUipcMemHandle handle;
    world_context(0);
    leave_free(0);
    may_spill(FEW);
    CUdeviceptr far = allocated(UNIT);
    IS(cuIpcGetMemHandle(&handle, far), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ_U64(spilled(), UNIT);
}

static void the_end_of_a_context_frees_what_it_spilled(void)
{
    CUcontext context;
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    leave_free(0);
    may_spill(FEW);
    allocated(UNIT);
    CHECK_EQ_U64(spilled(), UNIT);
    OK(cuCtxDestroy_v2(context));
    CHECK_EQ_U64(spilled(), 0);
    CHECK_EQ_U64(charged(0), 0);
}

static void an_asynchronous_free_gives_back_what_was_spilled(void)
{
    world_context(0);
    leave_free(0);
    may_spill(FEW);
    CUdeviceptr far = allocated(UNIT);
    CUresult result = cuMemFreeAsync(far, NULL);
    CHECK_EQ_U64(spilled(), result == CUDA_SUCCESS ? 0 : UNIT); /* as the driver has it */
    CHECK_EQ_U64(charged(0), spilled());
}

/* A device without concurrent managed access refuses the advice. */
static void a_device_that_cannot_reach_host_memory_does_not_spill(void)
{
    CUdeviceptr pointer = 0;
    CHECK(setenv("TESSERA_SIM_FAIL", "cuMemAdvise:1+:101", 1) == 0);
    world_context(0);
    leave_free(0);
    may_spill(FEW);
    IS(cuMemAlloc_v2(&pointer, UNIT), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(pointer, 0);
    CHECK_EQ_U64(usage()->full_count, 1);
    CHECK_EQ_U64(usage()->spill_count, 0);
    CHECK_EQ_U64(spilled(), 0);
    CHECK_EQ_U64(charged(0), 0);
}

static void a_host_without_memory_is_a_refusal(void)
{
    CUdeviceptr pointer = 0;
    CHECK(setenv("TESSERA_SIM_FAIL", "cuMemAllocManaged:1+:2", 1) == 0);
    world_context(0);
    leave_free(0);
    may_spill(FEW);
    IS(cuMemAlloc_v2(&pointer, UNIT), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(usage()->full_count, 1);
    CHECK_EQ_U64(spilled(), 0);
    CHECK_EQ_U64(charged(0), 0);
}

static void odd_calls_do_not_spill(void)
{
    CUdeviceptr pointer = 0;
    world_context(0);
    leave_free(0);
    may_spill(FEW);
    IS(cuMemAlloc_v2(NULL, UNIT), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemAlloc_v2(&pointer, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ_U64(spilled(), 0);
    CHECK_EQ_U64(charged(0), 0);
}

/* -- between processes ---------------------------------------------------------------------------------------------- */

/* Allocates what it is told to and answers with the driver's code. */
static void obedient(int in, int out)
{
    world_context(0);
    tell(out, LIVES);
    for (uint64_t bytes; (bytes = hear(in)) != END;) {
        CUdeviceptr pointer = 0;
        tell(out, cuMemAlloc_v2(&pointer, bytes));
    }
}

static void a_killed_process_gives_back_what_it_spilled(void)
{
    may_spill(FEW);
    struct child one = child_start(obedient);
    IS(hear(one.from), LIVES);
    hidden_context(0);
    leave_free(0);
    tell(one.to, 3 * UNIT);
    IS(hear(one.from), CUDA_SUCCESS);
    CHECK_EQ_U64(spilled(), 3 * UNIT);
    child_end(&one, SIGKILL);
    CHECK_EQ_U64(tessera_region_reap(the_region()), 1);
    CHECK_EQ_U64(spilled(), 0);
    CHECK_EQ_U64(charged(0), 0);
}

/* A share of its own for the next child: what it requests, and the most it may have. */
static struct tessera_region *another_share(const char *name, uint64_t request, uint64_t limit)
{
    struct tessera_share_spec spec = a_share(limit, 0);
    struct tessera_region *region;
    char path[320];
    spec.device[0].memory_request = request;
    snprintf(path, sizeof path, "%s.%s", world_path, name);
    IS(tessera_region_create(path, &spec), TESSERA_ERROR_OK);
    IS(tessera_region_open(path, &region), TESSERA_ERROR_OK);
    CHECK(setenv("TESSERA_REGION", path, 1) == 0);
    return region;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Somebody has 70 GiB of 80, of which 30 were requested; who requested 40 comes and finds 10. */
struct two_shares {
    struct tessera_region *excess_region;
    struct tessera_region *owner_region;
    struct child excess;
    struct child owner;
};

static struct two_shares two_shares(void)
{
    struct two_shares shares;
    shares.excess_region = another_share("excess", 30 * GIB, 80 * GIB);
    shares.excess = child_start(obedient);
    IS(hear(shares.excess.from), LIVES);
    tell(shares.excess.to, 70 * GIB);
    IS(hear(shares.excess.from), CUDA_SUCCESS);
    shares.owner_region = another_share("owner", 40 * GIB, 40 * GIB);
    shares.owner = child_start(obedient);
    IS(hear(shares.owner.from), LIVES);
    return shares;
}

static void who_is_within_its_request_gets_the_memory_of_who_is_not(void)
{
    struct two_shares shares = two_shares();
    struct tessera_device_usage *owner = &shares.owner_region->usage.device[0];
    IS(tessera_region_set_policy(shares.owner_region, TESSERA_RECLAIM), TESSERA_ERROR_OK);
    IS(tessera_region_govern(shares.owner_region, 0, &(struct tessera_rule){0}, now_ns()), TESSERA_ERROR_OK);
    tell(shares.owner.to, 40 * GIB);
    while (__atomic_load_n(&owner->short_ns, __ATOMIC_ACQUIRE) == 0) { /* it says what it lacks, and waits */
        IS(tessera_region_govern(shares.owner_region, 0, &(struct tessera_rule){0}, now_ns()), TESSERA_ERROR_OK);
    }
    CHECK_EQ_U64(owner->short_granules, 40 * GIB / TESSERA_GRANULE);
    const struct tessera_holding holdings[] = {{30 * GIB, 80 * GIB, 70 * GIB, 0, 0}, {40 * GIB, 40 * GIB, 0, 0, 0}};
    CHECK_EQ_U64(tessera_govern_victim(holdings, 2), 0);
    child_end(&shares.excess, SIGKILL);
    IS(hear(shares.owner.from), CUDA_SUCCESS);
    CHECK_EQ_U64(owner->full_count, 0);
    child_end(&shares.owner, 0);
}

static void nobody_waits_for_ever_for_a_governor_that_is_gone_or_at_all_without_a_promise(void)
{
    struct two_shares shares = two_shares();
    struct tessera_device_usage *owner = &shares.owner_region->usage.device[0];
    /* It lives, and does not get memory back. */
    IS(tessera_region_govern(shares.owner_region, 0, &(struct tessera_rule){0}, now_ns()), TESSERA_ERROR_OK);
    tell(shares.owner.to, 40 * GIB);
    IS(hear(shares.owner.from), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(owner->short_ns, 0);
    /* It did, and was not heard of for longer than its lease. */
    IS(tessera_region_set_policy(shares.owner_region, TESSERA_RECLAIM), TESSERA_ERROR_OK);
    IS(tessera_region_govern(shares.owner_region, 0, &(struct tessera_rule){0}, now_ns() - TESSERA_LEASE_NS - 1),
       TESSERA_ERROR_OK);
    tell(shares.owner.to, 40 * GIB);
    IS(hear(shares.owner.from), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(owner->short_ns != 0);
    CHECK_EQ_U64(owner->full_count, 2);
    /* And who is beyond its request is owed nothing. */
    IS(tessera_region_set_policy(shares.excess_region, TESSERA_RECLAIM), TESSERA_ERROR_OK);
    IS(tessera_region_govern(shares.excess_region, 0, &(struct tessera_rule){0}, now_ns()), TESSERA_ERROR_OK);
    tell(shares.owner.to, 10 * GIB);
    IS(hear(shares.owner.from), CUDA_SUCCESS);
    tell(shares.excess.to, GIB);
    IS(hear(shares.excess.from), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(shares.excess_region->usage.device[0].short_ns, 0);
    child_end(&shares.excess, 0);
    child_end(&shares.owner, 0);
}

static void an_owner_that_may_spill_is_not_refused_either(void)
{
    struct two_shares shares = two_shares();
    IS(tessera_region_set_spill(shares.owner_region, 0, 40 * GIB), TESSERA_ERROR_OK);
    tell(shares.owner.to, 10 * GIB);
    IS(hear(shares.owner.from), CUDA_SUCCESS);
    CHECK_EQ_U64(shares.owner_region->usage.device[0].spill_count, 0);
    tell(shares.owner.to, UNIT);
    IS(hear(shares.owner.from), CUDA_SUCCESS);
    CHECK_EQ_U64(shares.owner_region->usage.device[0].spill_count, 1);
    child_end(&shares.excess, 0);
    child_end(&shares.owner, 0);
}

int main(void)
{
    CASE(a_full_device_is_counted_apart_from_the_limit, LIMIT, 0);
    CASE(every_family_counts_a_full_device, LIMIT, 0);
    CASE(a_driver_that_was_out_of_memory_is_asked_once_more, LIMIT, 0);
    CASE(growth_beyond_the_ceiling_is_refused_first, LIMIT, 0);
    CASE(what_does_not_fit_goes_to_host_memory_and_comes_back_exactly, FEW, 0);
    CASE(spilling_ends_at_its_own_limit_and_at_the_share_s, FEW, 0);
    CASE(growth_beyond_the_ceiling_spills, FEW, 0);
    CASE(what_was_spilled_is_never_exported, FEW, 0);
    CASE(the_end_of_a_context_frees_what_it_spilled, FEW, 0);
    CASE(an_asynchronous_free_gives_back_what_was_spilled, FEW, 0);
    CASE(a_device_that_cannot_reach_host_memory_does_not_spill, FEW, 0);
    CASE(a_host_without_memory_is_a_refusal, FEW, 0);
    CASE(odd_calls_do_not_spill, FEW, 0);
    CASE(a_killed_process_gives_back_what_it_spilled, FEW, 0);
    CASE(who_is_within_its_request_gets_the_memory_of_who_is_not, LIMIT, 0);
    CASE(nobody_waits_for_ever_for_a_governor_that_is_gone_or_at_all_without_a_promise, LIMIT, 0);
    CASE(an_owner_that_may_spill_is_not_refused_either, LIMIT, 0);
    return 0;
}
