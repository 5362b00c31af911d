/* DESIGN
 *
 * NVML's memory limits of cgroups, in both backends, over a made-up cgroup tree: directories that have
 * `cgroup.controllers`, and `dmem.max` where the controller is enabled. A child is put into a cgroup by
 * TESSERA_SIM_CGROUP; one case uses the machine's own tree where it may be written.
 */
#include <errno.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "sim_world.h"

#define MISC "driver driver=615.71.09\ndevice memory_mib=1024 reserved_mib=24\ndevice memory_mib=512\n"
#define DMEM "driver driver=615.71.09 memacct=dmem\ndevice memory_mib=1024\n"
#define NONE NVML_DEVICE_MEMORY_LIMIT_MAX

static char root[300]; /* of the made-up tree */

static const char *in(const char *path)
{
    static char text[4][400];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(text[turn], sizeof text[turn], "%s%s", root, path);
    return text[turn];
}

static void touch(const char *directory, const char *name)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    fclose(file);
}

static void make_group(const char *path, bool dmem)
{
    CHECK(mkdir(in(path), 0755) == 0 || errno == EEXIST);
    touch(in(path), "cgroup.controllers");
    if (dmem) touch(in(path), "dmem.max");
}

static void remove_group(const char *path)
{
    char file[600];
    snprintf(file, sizeof file, "%s/cgroup.controllers", in(path));
    CHECK(unlink(file) == 0);
    snprintf(file, sizeof file, "%s/dmem.max", in(path));
    CHECK(unlink(file) == 0 || errno == ENOENT);
    CHECK(rmdir(in(path)) == 0);
}

/* A fresh machine and a fresh tree: kubepods/pod/{a,b}. */
static void begin(const char *description)
{
    char path[400];
    world_write(description);
    snprintf(path, sizeof path, "%.*s", (int)(strrchr(world_path, '/') - world_path), world_path);
    CHECK(chmod(path, 0755) == 0); /* those who may only look look there too */
    snprintf(path, sizeof path, "%s.state", world_path);
    CHECK(unlink(path) == 0 || errno == ENOENT);
    snprintf(root, sizeof root, "%s.tree", world_path);
    bool dmem = strstr(description, "memacct=dmem") != NULL;
    make_group("", false); /* the root has no dmem files */
    make_group("/kubepods", dmem);
    make_group("/kubepods/pod", dmem);
    make_group("/kubepods/pod/a", dmem);
    make_group("/kubepods/pod/b", dmem);
}

static nvmlDevice_t device_of(unsigned index)
{
    nvmlDevice_t device;
    CHECK_EQ_U64(nvmlDeviceGetHandleByIndex_v2(index, &device), NVML_SUCCESS);
    return device;
}

static nvmlReturn_t limit(const char *path, uint64_t soft, uint64_t hard)
{
    nvmlSetMemoryLimits_v1_t limits = {in(path), soft, hard};
    return nvmlDeviceSetMemoryLimits_v1(device_of(0), &limits);
}

static nvmlReturn_t shown(const char *path, nvmlGetMemoryLimits_v1_t *out)
{
    *out = (nvmlGetMemoryLimits_v1_t){.nameSpace = in(path)};
    return nvmlDeviceGetMemoryLimits_v1(device_of(0), out);
}

static uint64_t hard_of(const char *path)
{
    nvmlGetMemoryLimits_v1_t got;
    CHECK_EQ_U64(shown(path, &got), NVML_SUCCESS);
    return got.hardLimit;
}

static uint64_t soft_of(const char *path)
{
    nvmlGetMemoryLimits_v1_t got;
    CHECK_EQ_U64(shown(path, &got), NVML_SUCCESS);
    return got.softLimit;
}

static uint64_t used_of(const char *path)
{
    nvmlGetMemoryLimits_v1_t got;
    CHECK_EQ_U64(shown(path, &got), NVML_SUCCESS);
    return got.currentUsed;
}

/* -- tenants: children in a cgroup that allocate what they are told ------------------------ */

static const char *tenant_group;

enum { TAKE = 1, TOTAL, FREE, MOVE_TO_B, MANAGED, NVML_TOTAL, HIDE_TREE };

static uint64_t nvml_total(void)
{
    nvmlMemory_v2_t memory = {.version = NVML_MEMORY_V2};
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(nvmlDeviceGetMemoryInfo_v2(device_of(0), &memory), NVML_SUCCESS);
    CHECK_EQ_U64(nvmlShutdown(), NVML_SUCCESS);
    return memory.total / MIB;
}

static uint64_t take_managed(uint64_t mib)
{
    CUdeviceptr at;
    OK(cuMemAllocManaged(&at, mib * MIB, CU_MEM_ATTACH_GLOBAL));
    return cuMemPrefetchAsync(at, mib * MIB, 0, NULL);
}

/* As in a container beside cgroup v1: its path is told, its directory is not there. */
static uint64_t hide_tree(void)
{
    if (unshare(CLONE_NEWNS) != 0) return 1;
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return 1;
    return mount("none", "/sys/fs/cgroup", "tmpfs", 0, NULL) != 0;
}

static uint64_t obey(uint64_t word)
{
    CUdeviceptr at;
    size_t free_bytes, total;
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    switch (word >> 32) {
    case TAKE: return cuMemAlloc_v2(&at, (word & 0xffffffff) * MIB);
    case TOTAL: return total / MIB;
    case FREE: return free_bytes / MIB;
    case MANAGED: return take_managed(word & 0xffffffff);
    case NVML_TOTAL: return nvml_total();
    case HIDE_TREE: return hide_tree();
    default: CHECK(setenv("TESSERA_SIM_CGROUP", in("/kubepods/pod/b"), 1) == 0); return 0;
    }
}

static void tenant_body(int from, int to)
{
    if (tenant_group != NULL) CHECK(setenv("TESSERA_SIM_CGROUP", in(tenant_group), 1) == 0);
    world_context(0);
    tell(to, 0);
    for (uint64_t word; (word = hear(from)) != 0;) tell(to, obey(word));
}

static struct child tenant_in(const char *path)
{
    tenant_group = path;
    struct child child = child_start(tenant_body);
    hear(child.from);
    return child;
}

static uint64_t ask(struct child *child, uint64_t what, uint64_t mib)
{
    tell(child->to, what << 32 | mib);
    return hear(child->from);
}

/* -- the cases ------------------------------------------------------------------------------ */

static void older_drivers_have_no_limits(void)
{
    nvmlGetMemoryLimits_v1_t got;
    begin("driver driver=580.65.06\ndevice memory_mib=100\n");
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(limit("/kubepods/pod/a", 0, MIB), NVML_ERROR_FUNCTION_NOT_FOUND);
    CHECK_EQ_U64(shown("/kubepods/pod/a", &got), NVML_ERROR_FUNCTION_NOT_FOUND);
}

static void accounting_can_be_off(void)
{
    nvmlGetMemoryLimits_v1_t got;
    begin("driver driver=615.71.09 memacct=off\ndevice memory_mib=100\n");
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(limit("/kubepods/pod/a", 0, MIB), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQ_U64(shown("/kubepods/pod/a", &got), NVML_ERROR_NOT_SUPPORTED);
}

static void wrong_questions_are_refused(void)
{
    nvmlSetMemoryLimits_v1_t nowhere = {NULL, 0, MIB}, relative = {"kubepods", 0, MIB};
    begin(MISC);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(nvmlDeviceSetMemoryLimits_v1(device_of(0), NULL), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_U64(nvmlDeviceGetMemoryLimits_v1(device_of(0), NULL), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_U64(nvmlDeviceSetMemoryLimits_v1(device_of(0), &nowhere), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_U64(nvmlDeviceSetMemoryLimits_v1(device_of(0), &relative), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_U64(nvmlDeviceSetMemoryLimits_v1((nvmlDevice_t)8, &nowhere), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_U64(limit("/kubepods/gone", 0, MIB), NVML_ERROR_NOT_FOUND);
    CHECK_EQ_U64(limit("/kubepods/pod/a", 2 * MIB, MIB), NVML_ERROR_INVALID_ARGUMENT);
}

static void only_root_sets_and_anybody_looks(void)
{
    int status;
    begin(MISC);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(limit("/kubepods/pod/a", 0, MIB), NVML_SUCCESS);
    pid_t pid = fork(); /* the leak checker does not work in who gave root up */
    if (pid == 0) {
        CHECK(seteuid(65534) == 0);
        CHECK_EQ_U64(limit("/kubepods/pod/a", 0, 2 * MIB), NVML_ERROR_NO_PERMISSION);
        CHECK_EQ_U64(hard_of("/kubepods/pod/a"), MIB);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_EQ_U64(status, 0);
}

static void a_hard_limit_holds_for_all_processes_of_its_cgroup_together(void)
{
    begin(MISC);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    struct child first = tenant_in("/kubepods/pod/a"), second = tenant_in("/kubepods/pod/a");
    struct child neighbour = tenant_in("/kubepods/pod/b");
    CHECK_EQ_U64(limit("/kubepods/pod/a", 0, 64 * MIB), NVML_SUCCESS);
    IS(ask(&first, TAKE, 40), CUDA_SUCCESS);
    IS(ask(&second, TAKE, 25), CUDA_ERROR_OUT_OF_MEMORY);
    IS(ask(&second, TAKE, 24), CUDA_SUCCESS);
    IS(ask(&neighbour, TAKE, 500), CUDA_SUCCESS);
    CHECK_EQ_U64(used_of("/kubepods/pod/a"), 64 * MIB);
    child_end(&first, SIGKILL);
    CHECK_EQ_U64(used_of("/kubepods/pod/a"), 24 * MIB);
    IS(ask(&second, TAKE, 40), CUDA_SUCCESS);
    child_end(&second, 0);
    child_end(&neighbour, 0);
}

static void limits_are_of_one_device(void)
{
    nvmlGetMemoryLimits_v1_t got;
    begin(MISC);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(limit("/kubepods/pod/a", 0, 64 * MIB), NVML_SUCCESS);
    got = (nvmlGetMemoryLimits_v1_t){.nameSpace = in("/kubepods/pod/a")};
    CHECK_EQ_U64(nvmlDeviceGetMemoryLimits_v1(device_of(1), &got), NVML_ERROR_NOT_SUPPORTED);
}

static void a_limit_below_use_takes_nothing_back(void)
{
    begin(MISC);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    struct child tenant = tenant_in("/kubepods/pod/a");
    IS(ask(&tenant, TAKE, 100), CUDA_SUCCESS);
    CHECK_EQ_U64(limit("/kubepods/pod/a", 0, 60 * MIB), NVML_SUCCESS);
    IS(ask(&tenant, TAKE, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(used_of("/kubepods/pod/a"), 100 * MIB);
    CHECK_EQ_U64(ask(&tenant, FREE, 0), 0);
    CHECK_EQ_U64(limit("/kubepods/pod/a", 0, NONE), NVML_SUCCESS);
    IS(ask(&tenant, TAKE, 400), CUDA_SUCCESS);
    child_end(&tenant, 0);
}

static void queries_show_the_limit_of_the_own_cgroup_and_not_that_above(void)
{
    begin(MISC);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    struct child tenant = tenant_in("/kubepods/pod/a");
    CHECK_EQ_U64(limit("/kubepods/pod", 0, 200 * MIB), NVML_SUCCESS);
    CHECK_EQ_U64(ask(&tenant, TOTAL, 0), 1000);
    CHECK_EQ_U64(ask(&tenant, NVML_TOTAL, 0), 1024); /* the whole card, the driver's own part included */
    CHECK_EQ_U64(limit("/kubepods/pod/a", 0, 100 * MIB), NVML_SUCCESS);
    IS(ask(&tenant, TAKE, 30), CUDA_SUCCESS);
    CHECK_EQ_U64(ask(&tenant, TOTAL, 0), 100);
    CHECK_EQ_U64(ask(&tenant, FREE, 0), 70);
    CHECK_EQ_U64(ask(&tenant, NVML_TOTAL, 0), 100);
    child_end(&tenant, 0);
}

static void the_misc_backend_asks_the_nearest_limit_alone(void)
{
    begin(MISC);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    struct child limited = tenant_in("/kubepods/pod/a"), free_one = tenant_in("/kubepods/pod/b");
    CHECK_EQ_U64(limit("/kubepods/pod", 0, 50 * MIB), NVML_SUCCESS);
    CHECK_EQ_U64(limit("/kubepods/pod/a", 0, 80 * MIB), NVML_SUCCESS);
    IS(ask(&limited, TAKE, 80), CUDA_SUCCESS);
    IS(ask(&free_one, TAKE, 50), CUDA_SUCCESS);
    IS(ask(&free_one, TAKE, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(hard_of("/kubepods/pod/b"), 50 * MIB); /* inherited by whoever asks */
    child_end(&limited, 0);
    child_end(&free_one, 0);
}

static void limits_of_the_dmem_backend_nest(void)
{
    begin(DMEM);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    struct child a = tenant_in("/kubepods/pod/a"), b = tenant_in("/kubepods/pod/b");
    CHECK_EQ_U64(limit("/kubepods/pod", 0, 100 * MIB), NVML_SUCCESS);
    CHECK_EQ_U64(limit("/kubepods/pod/a", 0, 80 * MIB), NVML_SUCCESS);
    IS(ask(&b, TAKE, 50), CUDA_SUCCESS);
    IS(ask(&a, TAKE, 51), CUDA_ERROR_OUT_OF_MEMORY);
    IS(ask(&a, TAKE, 50), CUDA_SUCCESS);
    CHECK_EQ_U64(used_of("/kubepods/pod"), 100 * MIB);
    CHECK_EQ_U64(hard_of("/kubepods/pod/b"), NONE); /* a leaf with the files shadows what is above it */
    child_end(&a, 0);
    child_end(&b, 0);
}

static void the_dmem_backend_limits_no_cgroup_without_its_files(void)
{
    nvmlGetMemoryLimits_v1_t got;
    begin(DMEM);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    make_group("/kubepods/pod/bare", false);
    CHECK_EQ_U64(limit("/kubepods/pod/bare", 0, MIB), NVML_ERROR_NOT_FOUND);
    CHECK_EQ_U64(limit("/kubepods/pod", 0, 70 * MIB), NVML_SUCCESS);
    CHECK_EQ_U64(hard_of("/kubepods/pod/bare"), 70 * MIB); /* a read that proves nothing */
    make_group("/aside", false);
    CHECK_EQ_U64(shown("/aside", &got), NVML_ERROR_NOT_SUPPORTED);
}

static void a_soft_limit_stays_with_those_above_unless_it_is_undone(void)
{
    begin(DMEM);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(limit("/kubepods/pod/a", 30 * MIB, 40 * MIB), NVML_SUCCESS);
    CHECK_EQ_U64(limit("/kubepods/pod/b", 20 * MIB, 40 * MIB), NVML_SUCCESS);
    CHECK_EQ_U64(soft_of("/kubepods/pod"), 50 * MIB);
    CHECK_EQ_U64(soft_of("/kubepods"), 50 * MIB);
    CHECK_EQ_U64(limit("/kubepods/pod/b", 0, NONE), NVML_SUCCESS);
    remove_group("/kubepods/pod/b");
    remove_group("/kubepods/pod/a");
    CHECK_EQ_U64(soft_of("/kubepods"), 30 * MIB); /* the leak: nobody undid a's */
}

static void without_soft_limits_nothing_is_left_above(void)
{
    begin(DMEM);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    for (int cycle = 0; cycle < 1000; cycle++) {
        make_group("/kubepods/pod/c", true);
        CHECK_EQ_U64(limit("/kubepods/pod/c", 0, 64 * MIB), NVML_SUCCESS);
        remove_group("/kubepods/pod/c"); /* as a runtime does, whoever is not asked */
    }
    CHECK_EQ_U64(soft_of("/kubepods/pod"), 0);
    CHECK_EQ_U64(soft_of("/kubepods"), 0);
}

static void a_limit_goes_with_its_cgroup(void)
{
    nvmlGetMemoryLimits_v1_t got;
    begin(MISC);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(limit("/kubepods/pod/a", 0, 64 * MIB), NVML_SUCCESS);
    remove_group("/kubepods/pod/a");
    CHECK_EQ_U64(shown("/kubepods/pod/a", &got), NVML_ERROR_NOT_FOUND);
    make_group("/kubepods/pod/a2", false); /* may get the number of the one that went */
    CHECK_EQ_U64(shown("/kubepods/pod/b", &got), NVML_ERROR_NOT_SUPPORTED);
}

static void a_charge_stays_where_it_was_made(void)
{
    begin(MISC);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(limit("/kubepods/pod/a", 0, 100 * MIB), NVML_SUCCESS);
    CHECK_EQ_U64(limit("/kubepods/pod/b", 0, 10 * MIB), NVML_SUCCESS);
    struct child tenant = tenant_in("/kubepods/pod/a");
    IS(ask(&tenant, TAKE, 60), CUDA_SUCCESS);
    ask(&tenant, MOVE_TO_B, 0);
    IS(ask(&tenant, TAKE, 11), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_U64(used_of("/kubepods/pod/a"), 60 * MIB);
    CHECK_EQ_U64(used_of("/kubepods/pod/b"), 0);
    child_end(&tenant, 0);
}

static void managed_memory_is_nobodys(void)
{
    begin(MISC);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(limit("/kubepods/pod/a", 0, 10 * MIB), NVML_SUCCESS);
    struct child tenant = tenant_in("/kubepods/pod/a");
    IS(ask(&tenant, MANAGED, 50), CUDA_SUCCESS);
    CHECK_EQ_U64(used_of("/kubepods/pod/a"), 0);
    child_end(&tenant, 0);
}

static void a_driver_may_round_limits_up(void)
{
    begin("driver driver=615.71.09 limit_step_mib=256\ndevice memory_mib=81920\n");
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(limit("/kubepods/pod/a", 4000 * MIB, 8000 * MIB), NVML_SUCCESS);
    CHECK_EQ_U64(soft_of("/kubepods/pod/a"), 4096 * MIB);
    CHECK_EQ_U64(hard_of("/kubepods/pod/a"), 8192 * MIB);
}

static bool maps_the_machine(void)
{
    char line[600];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL) found = found || strstr(line, world_path) != NULL;
    fclose(maps);
    return found;
}

static void whoever_shuts_down_lets_go_of_the_driver_and_a_new_one_knows_no_limits(void)
{
    nvmlGetMemoryLimits_v1_t got;
    begin(MISC);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(limit("/kubepods/pod/a", 0, 64 * MIB), NVML_SUCCESS);
    CHECK_EQ_U64(nvmlShutdown(), NVML_SUCCESS);
    CHECK(maps_the_machine());
    CHECK_EQ_U64(nvmlShutdown(), NVML_SUCCESS);
    CHECK(!maps_the_machine());
    world_write("driver driver=616.10\ndevice memory_mib=1024\n");
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(shown("/kubepods/pod/a", &got), NVML_ERROR_NOT_SUPPORTED);
    char version[80];
    CHECK_EQ_U64(nvmlSystemGetDriverVersion(version, sizeof version), NVML_SUCCESS);
    CHECK_EQ_STR(version, "616.10");
}

/* The kernel's own tree, where this machine lets us make a cgroup: no variable names the tenant's. */
static void a_process_is_found_in_the_kernels_own_tree(void)
{
    static const char *const trees[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    char path[200], procs[300];
    const char *tree = access("/sys/fs/cgroup/cgroup.controllers", F_OK) == 0 ? trees[0] : trees[1];
    begin(MISC);
    snprintf(path, sizeof path, "%s/tessera-test-%d", tree, (int)getpid());
    if (mkdir(path, 0755) != 0) {
        printf("skipped: no cgroup can be made in %s\n", tree);
        return;
    }
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    struct child tenant = tenant_in(NULL);
    snprintf(procs, sizeof procs, "%s/cgroup.procs", path);
    FILE *file = fopen(procs, "w");
    CHECK(file != NULL && fprintf(file, "%d\n", (int)tenant.pid) > 0 && fclose(file) == 0);
    snprintf(root, sizeof root, "%s", path);
    CHECK_EQ_U64(limit("", 0, 32 * MIB), NVML_SUCCESS);
    IS(ask(&tenant, TAKE, 33), CUDA_ERROR_OUT_OF_MEMORY);
    IS(ask(&tenant, TAKE, 20), CUDA_SUCCESS);
    if (ask(&tenant, HIDE_TREE, 0) != 0) printf("skipped: no mount namespace can be made\n");
    IS(ask(&tenant, TAKE, 13), CUDA_ERROR_OUT_OF_MEMORY);
    IS(ask(&tenant, TAKE, 12), CUDA_SUCCESS);
    child_end(&tenant, 0);
    CHECK(rmdir(path) == 0);
}

static void run(void (*body)(void))
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        body();
        exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK_EQ_U64(status, 0);
}

int main(void)
{
    if (geteuid() != 0) {
        printf("skipped: only root sets limits\n");
        return 0;
    }
    run(older_drivers_have_no_limits);
    run(accounting_can_be_off);
    run(wrong_questions_are_refused);
    run(only_root_sets_and_anybody_looks);
    run(a_hard_limit_holds_for_all_processes_of_its_cgroup_together);
    run(limits_are_of_one_device);
    run(a_limit_below_use_takes_nothing_back);
    run(queries_show_the_limit_of_the_own_cgroup_and_not_that_above);
    run(the_misc_backend_asks_the_nearest_limit_alone);
    run(limits_of_the_dmem_backend_nest);
    run(the_dmem_backend_limits_no_cgroup_without_its_files);
    run(a_soft_limit_stays_with_those_above_unless_it_is_undone);
    run(without_soft_limits_nothing_is_left_above);
    run(a_limit_goes_with_its_cgroup);
    run(a_charge_stays_where_it_was_made);
    run(managed_memory_is_nobodys);
    run(a_driver_may_round_limits_up);
    run(whoever_shuts_down_lets_go_of_the_driver_and_a_new_one_knows_no_limits);
    run(a_process_is_found_in_the_kernels_own_tree);
    return 0;
}
