/* DESIGN
 *
 * The region as a file: what is created, what is refused when opened, what the helpers read and change. Expected
 * offsets and sizes are written out here, not taken from the header.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "../src/region.h"
#include "check.h"
#include "tessera_region_api.h"

static const char path[] = "region";

static struct tessera_share_spec a_spec(void)
{
    struct tessera_share_spec spec = {.share_id = "pod-1/main", .device_count = 2};
    strcpy(spec.device[0].uuid, "GPU-5e1a0000-0000-4000-8000-000000000000");
    strcpy(spec.device[1].uuid, "GPU-5e1a0000-0000-4000-8000-000000000001");
    spec.device[0].memory_limit = 1 << 30;
    spec.device[0].memory_request = 1 << 29;
    spec.device[0].compute_limit_milli = 500;
    spec.device[0].compute_request_milli = 250;
    spec.device[1].memory_limit = TESSERA_UNLIMITED;
    return spec;
}

static void create(void)
{
    struct tessera_share_spec spec = a_spec();
    CHECK_EQ_U64(tessera_region_create(path, &spec), TESSERA_ERROR_OK);
}

static int opened(void)
{
    struct tessera_region *region = NULL;
    int code = tessera_region_open(path, &region);
    CHECK((code == TESSERA_ERROR_OK) == (region != NULL));
    tessera_region_close(region);
    return code;
}

static void write_at(off_t offset, const void *bytes, size_t size)
{
    int file = open(path, O_WRONLY);
    CHECK(file >= 0 && pwrite(file, bytes, size, offset) == (ssize_t)size);
    close(file);
}

static uint64_t read_u64(off_t offset)
{
    uint64_t value = 0;
    int file = open(path, O_RDONLY);
    CHECK(file >= 0 && pread(file, &value, sizeof value, offset) == sizeof value);
    close(file);
    return value;
}

static void test_a_created_region_is_valid_empty_and_sparse(void)
{
    struct stat status;
    create();
    CHECK_EQ_U64(opened(), TESSERA_ERROR_OK);
    CHECK(stat(path, &status) == 0);
    CHECK_EQ_U64(status.st_size, 1196032);
    CHECK(status.st_blocks * 512 <= 65536);
    CHECK_EQ_U64(read_u64(8192), 0);
}

static void test_fields_lie_where_the_layout_says(void)
{
    char text[TESSERA_UUID_SIZE] = "";
    create();
    CHECK_EQ_U64(read_u64(0), UINT64_C(0x0041524553534554)); /* TESSERA\0, little-endian */
    CHECK_EQ_U64(read_u64(8), 1 | UINT64_C(2) << 32);        /* major 1, minor 2 */
    CHECK_EQ_U64(read_u64(16), 1196032);
    CHECK_EQ_U64(read_u64(32), 1024 | UINT64_C(512) << 32);
    CHECK_EQ_U64(read_u64(4096 + 128), 1 << 30);
    CHECK_EQ_U64(read_u64(4096 + 128 + 16), 500 | UINT64_C(250) << 32);
    CHECK_EQ_U64(read_u64(4096 + 128 + 128), UINT64_MAX);
    int file = open(path, O_RDONLY);
    CHECK(file >= 0 && pread(file, text, sizeof text, 144 + 48) == sizeof text);
    close(file);
    CHECK_EQ_STR(text, "GPU-5e1a0000-0000-4000-8000-000000000001");
}

static void test_the_checksum_is_crc32_with_its_own_field_as_zero(void)
{
    /* Bit by bit, from the polynomial's definition: x^32 + ... reflected. */
    unsigned char page[4096];
    uint32_t crc = UINT32_MAX;
    create();
    int file = open(path, O_RDONLY);
    CHECK(file >= 0 && pread(file, page, sizeof page, 0) == sizeof page);
    close(file);
    uint32_t stored;
    memcpy(&stored, page + 24, 4);
    memset(page + 24, 0, 4);
    for (size_t i = 0; i < sizeof page * 8; i++) {
        uint32_t bit = (uint32_t)(page[i / 8] >> i % 8) & 1u;
        crc = ((crc ^ bit) & 1u) != 0 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
    }
    CHECK_EQ_U64(stored, (uint32_t)~crc);
}

static void test_a_missing_file_is_an_io_error(void)
{
    unlink(path);
    CHECK_EQ_U64(opened(), TESSERA_ERROR_IO);
}

static void test_a_short_or_long_file_is_truncated(void)
{
    static const off_t lengths[] = {0, 1, 4095, 4096, 1196031, 1196033};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        create();
        CHECK(truncate(path, lengths[i]) == 0);
        CHECK_EQ_U64(opened(), TESSERA_ERROR_TRUNCATED);
    }
}

static void test_a_foreign_file_or_version_is_refused(void)
{
    const uint32_t two = 2;
    create();
    write_at(0, "ELF", 3);
    CHECK_EQ_U64(opened(), TESSERA_ERROR_MAGIC);
    create();
    write_at(8, &two, sizeof two);
    CHECK_EQ_U64(opened(), TESSERA_ERROR_VERSION);
}

static void test_every_flipped_header_bit_is_noticed(void)
{
    for (off_t at = 12; at < 4096; at += 61) {
        unsigned char byte;
        create();
        int file = open(path, O_RDONLY);
        CHECK(file >= 0 && pread(file, &byte, 1, at) == 1);
        close(file);
        byte ^= 1u << at % 8;
        write_at(at, &byte, 1);
        CHECK(opened() != TESSERA_ERROR_OK);
    }
}

static void test_limits_may_change_without_breaking_the_checksum(void)
{
    struct tessera_region *region;
    create();
    CHECK_EQ_U64(tessera_region_open(path, &region), TESSERA_ERROR_OK);
    CHECK_EQ_U64(tessera_region_set_memory_limit(region, 0, 4096), TESSERA_ERROR_OK);
    CHECK_EQ_U64(tessera_region_set_compute_limit(region, 1, 125), TESSERA_ERROR_OK);
    CHECK_EQ_U64(tessera_region_set_memory_limit(region, 2, 4096), TESSERA_ERROR_ARGUMENT);
    CHECK_EQ_U64(read_u64(4096), 4); /* two changes, each from even to even */
    CHECK_EQ_U64(read_u64(4096 + 128), 4096);
    CHECK_EQ_U64(read_u64(4096 + 128 + 128 + 16), 125);
    tessera_region_close(region);
    CHECK_EQ_U64(opened(), TESSERA_ERROR_OK);
}

static void test_the_generation_becomes_even_after_a_writer_that_died(void)
{
    const uint64_t odd = 7;
    struct tessera_region *region;
    create();
    write_at(4096, &odd, sizeof odd);
    CHECK_EQ_U64(tessera_region_open(path, &region), TESSERA_ERROR_OK);
    tessera_region_set_memory_limit(region, 0, 1);
    CHECK_EQ_U64(read_u64(4096), 10);
    tessera_region_close(region);
}

static void test_the_generation_becomes_even_after_two_writers_at_once(void)
{
    const uint64_t both_began = 3; /* the one from 0 to 1, the other from there to the next odd number */
    struct tessera_region *region;
    create();
    CHECK_EQ_U64(tessera_region_open(path, &region), TESSERA_ERROR_OK);
    write_at(4096, &both_began, sizeof both_began);
    lim_end_change(&region->control);
    CHECK_EQ_U64(read_u64(4096), 4);
    lim_end_change(&region->control);
    CHECK_EQ_U64(read_u64(4096), 6);
    tessera_region_close(region);
}

static void test_requests_are_shown_and_enforce_nothing(void)
{
    struct tessera_region *region;
    create();
    uint64_t limit = read_u64(4096 + 128 + 128);
    CHECK_EQ_U64(tessera_region_open(path, &region), TESSERA_ERROR_OK);
    CHECK_EQ_U64(tessera_region_set_requests(region, 1, 12345678, 77), TESSERA_ERROR_OK);
    CHECK_EQ_U64(tessera_region_set_requests(region, 2, 1, 1), TESSERA_ERROR_ARGUMENT);
    CHECK_EQ_U64(read_u64(4096 + 128 + 128 + 8), 12345678);
    CHECK_EQ_U64(read_u64(4096 + 128 + 128 + 16) >> 32, 77);
    CHECK_EQ_U64(read_u64(4096 + 128 + 128), limit);
    tessera_region_close(region);
}

static void test_replacing_a_region_leaves_no_temporary_file(void)
{
    create();
    create();
    CHECK(system("test \"$(ls | wc -l)\" = 1") == 0);
}

static void test_unsound_specs_are_refused(void)
{
    struct tessera_share_spec spec = a_spec();
    unlink(path);
    spec.device_count = 0;
    CHECK_EQ_U64(tessera_region_create(path, &spec), TESSERA_ERROR_ARGUMENT);
    spec.device_count = 17;
    CHECK_EQ_U64(tessera_region_create(path, &spec), TESSERA_ERROR_ARGUMENT);
    spec = a_spec();
    memcpy(spec.device[1].uuid, spec.device[0].uuid, sizeof spec.device[0].uuid);
    CHECK_EQ_U64(tessera_region_create(path, &spec), TESSERA_ERROR_ARGUMENT);
    spec = a_spec();
    memset(spec.device[1].uuid, 'x', sizeof spec.device[1].uuid);
    CHECK_EQ_U64(tessera_region_create(path, &spec), TESSERA_ERROR_ARGUMENT);
    spec = a_spec();
    memset(spec.share_id, 'x', sizeof spec.share_id);
    CHECK_EQ_U64(tessera_region_create(path, &spec), TESSERA_ERROR_ARGUMENT);
    CHECK(access(path, F_OK) != 0);
    spec = a_spec();
    CHECK_EQ_U64(tessera_region_create("no/such/directory/region", &spec), TESSERA_ERROR_IO);
}

static void test_every_error_code_has_a_text(void)
{
    for (int code = TESSERA_ERROR_MANY; code <= 0; code++) {
        CHECK(strlen(tessera_region_strerror(code)) > 5);
        CHECK(strcmp(tessera_region_strerror(code), tessera_region_strerror(-1000)) != 0);
    }
}

static void test_the_layout_text_names_every_field_and_fits_any_buffer(void)
{
    char text[8192];
    char small[16];
    size_t length = tessera_region_layout(NULL, 0);
    CHECK(length < sizeof text);
    CHECK_EQ_U64(tessera_region_layout(text, sizeof text), length);
    CHECK_EQ_U64(strlen(text), length);
    CHECK(strstr(text, "\nusage.slot_high_water 4096 8\n") != NULL);
    CHECK(strstr(text, "\nslot_device.acked 24 8\n") != NULL);
    CHECK(strstr(text, "\nregion.slot 16384 1179648\n") != NULL);
    CHECK(strstr(text, "\nslot 1152\n") != NULL);
    CHECK_EQ_U64(tessera_region_layout(small, sizeof small), length);
    CHECK_EQ_U64(strlen(small), sizeof small - 1);
}

int main(void)
{
    char directory[] = "/tmp/tessera-region.XXXXXX";
    CHECK(mkdtemp(directory) != NULL && chdir(directory) == 0);
    test_a_created_region_is_valid_empty_and_sparse();
    test_fields_lie_where_the_layout_says();
    test_the_checksum_is_crc32_with_its_own_field_as_zero();
    test_a_missing_file_is_an_io_error();
    test_a_short_or_long_file_is_truncated();
    test_a_foreign_file_or_version_is_refused();
    test_every_flipped_header_bit_is_noticed();
    test_limits_may_change_without_breaking_the_checksum();
    test_the_generation_becomes_even_after_a_writer_that_died();
    test_the_generation_becomes_even_after_two_writers_at_once();
    test_requests_are_shown_and_enforce_nothing();
    test_replacing_a_region_leaves_no_temporary_file();
    test_unsound_specs_are_refused();
    test_every_error_code_has_a_text();
    test_the_layout_text_names_every_field_and_fits_any_buffer();
    unlink(path);
    return rmdir(directory) == 0 ? 0 : 1;
}
