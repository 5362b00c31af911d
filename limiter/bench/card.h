/* DESIGN
 *
 * The device that a bench runs on: a simulated one, or, where TESSERA_BENCH_UUID names it, the one that the driver of this
 * machine has under that UUID (a simulated driver that was described elsewhere serves as well). Kernels are in PTX, under
 * names that tell the simulated driver how long they take and that do take as long on a device.
 *
 * Source: %globaltimer, PTX ISA 7.0, special registers: nanoseconds, updated about every microsecond. Assembled by ptxas of
 * CUDA 13.5 for sm_75 to sm_100; never run.
 */
#ifndef TESSERA_BENCH_CARD_H
#define TESSERA_BENCH_CARD_H

#include "../test/limiter_world.h"

static const char kernels[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry spin_ns_20()\n{\n    ret;\n}\n"
    ".visible .entry spin_us_200()\n{\n"
    "    .reg .u64 %rd<3>;\n    .reg .pred %p<2>;\n"
    "    mov.u64 %rd1, %globaltimer;\n    add.u64 %rd1, %rd1, 200000;\n"
    "again:\n    mov.u64 %rd2, %globaltimer;\n    setp.lt.u64 %p1, %rd2, %rd1;\n    @%p1 bra again;\n    ret;\n}\n";

static inline const char *card_uuid(void)
{
    const char *named = getenv("TESSERA_BENCH_UUID");
    return named != NULL && named[0] != '\0' ? named : CARD_0;
}

static inline bool is_simulated(void)
{
    const char *named = getenv("TESSERA_BENCH_UUID");
    return named == NULL || named[0] == '\0';
}

/* A share of the card with so much memory and time; `machine` describes the simulated one, NULL: the usual. */
static inline void grant_card(const char *machine, uint64_t memory, uint32_t milli)
{
    struct tessera_share_spec spec = {.share_id = "bench", .device_count = 1};
    strncpy(spec.device[0].uuid, card_uuid(), sizeof spec.device[0].uuid - 1);
    spec.device[0].memory_limit = memory;
    spec.device[0].compute_limit_milli = milli;
    if (is_simulated()) {
        grant(&spec);
        if (machine != NULL) world_write(machine);
        return;
    }
    if (region_path[0] == '\0') {
        char directory[] = "/tmp/tessera-bench-XXXXXX";
        CHECK(mkdtemp(directory) != NULL);
        snprintf(world_path, sizeof world_path, "%s/machine", directory);
        snprintf(region_path, sizeof region_path, "%s/region", directory);
        world_owner = getpid();
        atexit(world_end);
        CHECK(setenv("TESSERA_REGION", region_path, 1) == 0);
    }
    CHECK_EQ_U64(tessera_region_create(region_path, &spec), TESSERA_ERROR_OK);
}

static CUdevice card_ordinal;

/* A context on the card, wherever it stands among those that the driver lists. */
static inline void card_context(void)
{
    char text[TESSERA_UUID_SIZE];
    CUuuid uuid;
    int count = 0;
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    for (CUdevice device = 0; device < count; device++) {
        OK(cuDeviceGetUuid_v2(&uuid, device));
        const unsigned char *b = (const unsigned char *)uuid.bytes;
        snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
                 b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
        if (strcmp(text, card_uuid()) == 0) {
            card_ordinal = device;
            world_context(device);
            return;
        }
    }
    CHECK_FAIL("the driver has no device %s", card_uuid());
}

#endif
