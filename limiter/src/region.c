/* DESIGN
 *
 * A region is used only when everything about it is as this version wrote it: length, magic, major version,
 * checksum, and then every number that code here indexes by. The header is copied before it is checked and the map
 * is made with the size of the struct, so that nothing in the file decides how far anything reaches.
 *
 * Not covered: a file that is truncated while it is mapped raises SIGBUS, as for every mapped file. The agent
 * replaces regions by rename and never shortens one.
 */
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static uint32_t crc_bytes(uint32_t crc, const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    for (size_t i = 0; i < size; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (UINT32_C(0xedb88320) & (0u - (crc & 1u)));
        }
    }
    return crc;
}

uint32_t lim_header_checksum(const struct tessera_header *header)
{
    const uint32_t zero = 0;
    const size_t at = offsetof(struct tessera_header, checksum);
    const uint8_t *bytes = (const uint8_t *)header;
    uint32_t crc = crc_bytes(UINT32_MAX, bytes, at);
    crc = crc_bytes(crc, &zero, sizeof zero);
    crc = crc_bytes(crc, bytes + at + sizeof zero, sizeof *header - at - sizeof zero);
    return ~crc;
}

static bool has_our_layout(const struct tessera_header *header)
{
    return header->total_size == sizeof(struct tessera_region) && header->granule == TESSERA_GRANULE &&
           header->slot_count == TESSERA_MAX_SLOTS && header->slot_stride == sizeof(struct tessera_slot) &&
           header->control_offset == offsetof(struct tessera_region, control) &&
           header->usage_offset == offsetof(struct tessera_region, usage) &&
           header->slots_offset == offsetof(struct tessera_region, slot) && header->device_count >= 1 &&
           header->device_count <= TESSERA_MAX_DEVICES;
}

int lim_check_header(const struct tessera_header *header, uint64_t size)
{
    if (memcmp(header->magic, TESSERA_REGION_MAGIC, sizeof header->magic) != 0) {
        return TESSERA_ERROR_MAGIC;
    }
    if (header->major != TESSERA_REGION_MAJOR) {
        return TESSERA_ERROR_VERSION;
    }
    if (header->checksum != lim_header_checksum(header)) {
        return TESSERA_ERROR_CHECKSUM;
    }
    if (size != header->total_size) {
        return TESSERA_ERROR_TRUNCATED;
    }
    return has_our_layout(header) ? TESSERA_ERROR_OK : TESSERA_ERROR_LAYOUT;
}

static int map_file(int file, struct tessera_region **region)
{
    struct tessera_header header;
    off_t size = lseek(file, 0, SEEK_END); /* not fstat: its symbol is newer than glibc 2.17 */
    if (size < 0) {
        return TESSERA_ERROR_IO;
    }
    if (pread(file, &header, sizeof header, 0) != (ssize_t)sizeof header) {
        return TESSERA_ERROR_TRUNCATED;
    }
    int code = lim_check_header(&header, (uint64_t)size);
    if (code != TESSERA_ERROR_OK) {
        return code;
    }
    void *map = mmap(NULL, sizeof **region, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) {
        return TESSERA_ERROR_IO;
    }
    *region = map;
    return TESSERA_ERROR_OK;
}

int lim_region_open(const char *path, struct tessera_region **region)
{
    int saved = errno;
    int code = TESSERA_ERROR_IO;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file >= 0) {
        code = map_file(file, region);
        close(file);
    }
    errno = saved;
    return code;
}
