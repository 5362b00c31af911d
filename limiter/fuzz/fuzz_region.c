/* DESIGN
 *
 * A region that somebody else wrote: damaged, truncated or forged. Whatever it holds, opening it either refuses it or
 * gives a region on which every operation stays inside the map, ends, and keeps figures within their fields. A tenant
 * can write the usage pages, so a sound header proves nothing about them.
 *
 * The input is a list of edits (offset, byte) to a sound region.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../src/account.h"
#include "../src/region.h"
#include "../src/slots.h"
#include "input.h"

enum { EDIT_SIZE = 5, EDITS_MAX = 64 };

static struct tessera_region sound;

static void make_sound_region(void)
{
    struct tessera_share_spec spec = {.share_id = "fuzz", .device_count = 2};
    char path[] = "/tmp/tessera-fuzz.XXXXXX";
    int file = mkstemp(path);
    require(file >= 0, "no temporary file");
    close(file);
    strcpy(spec.device[0].uuid, "GPU-5e1a0000-0000-4000-8000-000000000000");
    strcpy(spec.device[1].uuid, "GPU-5e1a0000-0000-4000-8000-000000000001");
    spec.device[0].memory_limit = 1 << 20;
    require(tessera_region_create(path, &spec) == TESSERA_ERROR_OK, "cannot create");
    file = open(path, O_RDONLY);
    require(read(file, &sound, sizeof sound) == sizeof sound, "cannot read");
    close(file);
    unlink(path);
}

/* Offsets are drawn towards the packed words: header, control, usage, the first slots. */
static size_t edit_offset(uint32_t draw)
{
    static const size_t spans[] = {4096, 8192, 8192 + 512, 16384 + 4 * sizeof(struct tessera_slot)};
    return (draw >> 2) % spans[draw & 3u];
}

static void exercise(struct tessera_region *region)
{
    struct process_identity self = lim_identity();
    struct tessera_process list[4];
    uint64_t bytes;
    tessera_region_reap(region);
    tessera_region_processes(region, list, 4);
    for (uint32_t device = 0; device < 20; device++) {
        int code = tessera_region_used(region, device, &bytes);
        require(code != TESSERA_ERROR_OK || bytes <= TESSERA_MAX_GRANULES * TESSERA_GRANULE, "figure out of its field");
    }
    int slot = lim_register(region, &self);
    if (slot < 0) {
        return;
    }
    bool taken = lim_charge(region, (uint32_t)slot, 0, 3, 2048);
    if (taken) {
        lim_discharge(region, (uint32_t)slot, 0, 3);
    }
    lim_discharge(region, (uint32_t)slot, 1, UINT64_MAX);
    tessera_region_set_memory_limit(region, 1, 77);
}

static void try_region(const uint8_t *data, size_t size)
{
    const int anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
    struct tessera_region *region = mmap(NULL, sizeof *region, PROT_READ | PROT_WRITE, anonymous, -1, 0);
    require(region != MAP_FAILED, "no memory");
    memcpy(region, &sound, sizeof sound);
    for (size_t at = 0; at + EDIT_SIZE <= size && at < EDITS_MAX * EDIT_SIZE; at += EDIT_SIZE) {
        uint32_t draw;
        memcpy(&draw, data + at, sizeof draw);
        ((uint8_t *)region)[edit_offset(draw)] ^= data[at + 4];
    }
    bool touched = memcmp(&region->header, &sound.header, sizeof sound.header) != 0;
    int code = lim_check_header(&region->header, sizeof *region);
    require(!touched || code != TESSERA_ERROR_OK, "a damaged header was accepted");
    /* Forged on purpose: right checksum, anything else. */
    region->header.checksum = lim_header_checksum(&region->header);
    if (lim_check_header(&region->header, sizeof *region) == TESSERA_ERROR_OK) {
        exercise(region);
    }
    munmap(region, sizeof *region);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (sound.header.total_size == 0) {
        make_sound_region();
    }
    try_region(data, size);
    return 0;
}

#ifndef LIBFUZZER
static size_t make_input(uint8_t *input)
{
    const size_t size = draw(EDITS_MAX * EDIT_SIZE);
    for (size_t at = 0; at < size; at++) input[at] = (uint8_t)draw(256);
    return size;
}
#endif
