/* DESIGN
 *
 * A tenant that cuts off the file of its region, at any moment, does not end who watches it. A child cuts and restores
 * the file as fast as it can while the parent calls everything that a supervisor calls.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "check.h"
#include "tessera_region_api.h"

#define ROUNDS 2000
#define SIZE sizeof(struct tessera_region)

static const char *path = "region";
static volatile sig_atomic_t answered;
static sigjmp_buf elsewhere;

static struct tessera_region *made(void)
{
    struct tessera_region *region;
    struct tessera_share_spec spec = {.share_id = "cut", .device_count = 2};
    strcpy(spec.device[0].uuid, "GPU-0");
    strcpy(spec.device[1].uuid, "GPU-1");
    spec.device[0].memory_limit = spec.device[1].memory_limit = 1 << 30;
    spec.device[0].compute_limit_milli = 300;
    CHECK_EQ_U64(tessera_region_create(path, &spec), TESSERA_ERROR_OK);
    CHECK_EQ_U64(tessera_region_open(path, &region), TESSERA_ERROR_OK);
    return region;
}

/* Everything that a supervisor does to a region. What it answers is of no interest: it comes back. */
static void use(struct tessera_region *region, uint64_t now_ns)
{
    static struct tessera_process list[TESSERA_MAX_SLOTS];
    struct tessera_calibration calibration = {0};
    struct tessera_reading reading = {now_ns, now_ns};
    uint64_t bytes;
    for (uint32_t device = 0; device < 2; device++) {
        tessera_region_used(region, device, &bytes);
        tessera_region_set_memory_limit(region, device, now_ns);
        tessera_region_set_requests(region, device, now_ns, 5);
        tessera_region_set_unseen(region, device, now_ns);
        tessera_region_set_compute(region, device, 300, TESSERA_MODE_HARD);
        tessera_region_tick(region, device, &calibration, &reading, 500, now_ns);
    }
    tessera_region_pause(region, 1);
    tessera_region_set_policy(region, 0);
    tessera_region_processes(region, list, TESSERA_MAX_SLOTS);
    tessera_region_reap(region);
}

static void a_region_that_is_cut_off_reads_as_nothing(void)
{
    struct tessera_region *region = made();
    uint64_t bytes = 7;
    CHECK(truncate(path, 0) == 0);
    CHECK_EQ_U64(region->header.device_count, 0);
    CHECK_EQ_U64(tessera_region_used(region, 0, &bytes), TESSERA_ERROR_ARGUMENT); /* it has no devices any more */
    CHECK_EQ_U64(tessera_region_processes(region, NULL, 0), 0);
    use(region, 1);
    tessera_region_close(region);
}

static void pages_that_the_file_still_has_go_on(void)
{
    struct tessera_region *region = made();
    CHECK(truncate(path, 8192) == 0); /* what the processes write is gone, header and control are there */
    uint64_t bytes = 7;
    CHECK_EQ_U64(tessera_region_used(region, 1, &bytes), TESSERA_ERROR_OK);
    CHECK_EQ_U64(bytes, 0);
    CHECK_EQ_U64(region->control.device[1].memory_limit, 1 << 30);
    tessera_region_close(region);
}

static void cutting_in_a_loop_ends_nobody(void)
{
    struct tessera_region *region = made();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (;;) {
            if (truncate(path, 0) != 0 || truncate(path, SIZE) != 0) _exit(1);
        }
    }
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        use(region, round);
        if (round % 16 == 0) { /* map the file anew: pages that were replaced do not fault again */
            struct tessera_region *again;
            tessera_region_close(region);
            while (tessera_region_open(path, &again) != TESSERA_ERROR_OK) {
                struct tessera_share_spec spec = {.share_id = "cut", .device_count = 1};
                strcpy(spec.device[0].uuid, "GPU-0");
                tessera_region_create(path, &spec);
            }
            region = again;
        }
    }
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    tessera_region_close(region);
}

static void note(int number)
{
    CHECK_EQ_U64(number, SIGBUS);
    answered++;
    siglongjmp(elsewhere, 1);
}

static void a_bus_error_elsewhere_goes_to_who_was_asked_before(void)
{
    struct sigaction before, ours = {.sa_handler = note};
    CHECK(sigaction(SIGBUS, &ours, &before) == 0);
    struct tessera_region *region = made();
    int file = open("other", O_RDWR | O_CREAT, 0600);
    CHECK(file >= 0);
    volatile char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0); /* of an empty file */
    CHECK(page != MAP_FAILED);
    if (sigsetjmp(elsewhere, 1) == 0) {
        *page = 1;
    }
    CHECK_EQ_U64(answered, 1);
    CHECK(truncate(path, 0) == 0);
    CHECK_EQ_U64(region->header.device_count, 0);
    CHECK_EQ_U64(answered, 1);
    tessera_region_close(region);
    close(file);
    unlink("other");
}

static void a_closed_region_is_nobodys(void)
{
    struct tessera_region *regions[3];
    for (unsigned round = 0; round < 5000; round++) { /* more than are guarded at once */
        CHECK_EQ_U64(tessera_region_open(path, &regions[round % 3]), TESSERA_ERROR_OK);
        tessera_region_close(regions[round % 3]);
    }
}

static void one_region_too_many_is_refused(void)
{
    static struct tessera_region *regions[4096];
    struct tessera_region *more = NULL;
    for (unsigned i = 0; i < 4096; i++) {
        CHECK_EQ_U64(tessera_region_open(path, &regions[i]), TESSERA_ERROR_OK);
    }
    CHECK_EQ_U64(tessera_region_open(path, &more), TESSERA_ERROR_MANY);
    CHECK(more == NULL);
    for (unsigned i = 0; i < 4096; i++) {
        tessera_region_close(regions[i]);
    }
    CHECK_EQ_U64(tessera_region_open(path, &more), TESSERA_ERROR_OK);
    tessera_region_close(more);
}

int main(void)
{
    char directory[] = "/tmp/tessera-region.XXXXXX";
    CHECK(mkdtemp(directory) != NULL && chdir(directory) == 0);
    a_region_that_is_cut_off_reads_as_nothing();
    pages_that_the_file_still_has_go_on();
    cutting_in_a_loop_ends_nobody();
    a_bus_error_elsewhere_goes_to_who_was_asked_before();
    tessera_region_close(made());
    a_closed_region_is_nobodys();
    one_region_too_many_is_refused();
    return system("rm -rf region* && rmdir \"$PWD\"") == 0 ? 0 : 1;
}
