/* DESIGN
 *
 * A simulated machine with a share of it: two cards of 80 GiB, a region that grants both, and every case in a child
 * process of its own (the library maps its region once per process). The test sees the driver twice: through the
 * library under test by calling it, and past it by REAL(name), which reads the driver's symbol table.
 */
#ifndef TESSERA_LIMITER_WORLD_H
#define TESSERA_LIMITER_WORLD_H

#include "../src/elf.h"
#include "sim_world.h"
#include "tessera_region_api.h"

#define REAL(name) ((__typeof__(&name))lim_elf_symbol("libcuda.so", #name))
#define REAL_NVML(name) ((__typeof__(&name))lim_elf_symbol("libnvidia-ml.so", #name))

#define CARD_0 "GPU-5e1a0000-0000-4000-8000-000000000000"
#define CARD_1 "GPU-5e1a0000-0000-4000-8000-000000000001"
#define GIB (1024ULL * MIB)

static const char machine_text[] = "driver version=13.0\n"
                                   "device uuid=" CARD_0 " memory_mib=81920 pci=0000:07:00.0\n"
                                   "device uuid=" CARD_1 " memory_mib=81920 pci=0000:0b:00.0\n";

static char region_path[300];

static inline struct tessera_share_spec a_share(uint64_t limit_0, uint64_t limit_1)
{
    struct tessera_share_spec spec = {.share_id = "test", .device_count = 2};
    strcpy(spec.device[0].uuid, CARD_0);
    strcpy(spec.device[1].uuid, CARD_1);
    spec.device[0].memory_limit = limit_0;
    spec.device[1].memory_limit = limit_1;
    return spec;
}

static inline void grant(const struct tessera_share_spec *spec)
{
    if (world_owner == 0) {
        world_write(machine_text);
        snprintf(region_path, sizeof region_path, "%s.region", world_path);
        CHECK(setenv("TESSERA_REGION", region_path, 1) == 0);
    }
    CHECK_EQ_U64(tessera_region_create(region_path, spec), TESSERA_ERROR_OK);
}

static inline struct tessera_region *the_region(void)
{
    static struct tessera_region *region;
    if (region == NULL) {
        CHECK_EQ_U64(tessera_region_open(region_path, &region), TESSERA_ERROR_OK);
    }
    return region;
}

/* What the region says that the share uses. */
static inline uint64_t charged(uint32_t device)
{
    uint64_t bytes;
    CHECK_EQ_U64(tessera_region_used(the_region(), device, &bytes), TESSERA_ERROR_OK);
    return bytes;
}

/* What the driver says that everybody uses of the current card. */
static inline uint64_t taken(void)
{
    size_t free_bytes;
    size_t total;
    OK(REAL(cuMemGetInfo_v2)(&free_bytes, &total));
    return total - free_bytes;
}

/* A current context that was made past the library, as by a program that cannot be hooked. */
static inline void hidden_context(CUdevice device)
{
    CUcontext context;
    OK(REAL(cuInit)(0));
    OK(REAL(cuDevicePrimaryCtxRetain)(&context, device));
    OK(cuCtxSetCurrent(context));
}

/* Runs a case in a child, under limits in bytes for the two cards. */
static inline void run_case(const char *name, void (*body)(void), uint64_t limit_0, uint64_t limit_1)
{
    struct tessera_share_spec spec = a_share(limit_0, limit_1);
    int status;
    grant(&spec);
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        body();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) CHECK_FAIL("case %s failed with status %#x", name, status);
}

#define CASE(body, limit_0, limit_1) run_case(#body, body, limit_0, limit_1)

#endif
