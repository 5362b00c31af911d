/* DESIGN
 *
 * A simulated card in virtual time, shared by several shares, each with its tenants: processes that launch kernels under
 * the limiter. The test program is the agent: every tick it reads NVML's utilisation samples, as an agent would (whole
 * percents, of the last sample period), and ticks every share. The truth is what the simulated driver says that each
 * process got done, to the nanosecond.
 */
#ifndef TESSERA_COMPUTE_WORLD_H
#define TESSERA_COMPUTE_WORLD_H

#include <fcntl.h>
#include <sys/stat.h>

#include "virtual_time.h"

#include "../sim/machine.h"
#include "limiter_world.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

enum { SHARES_MAX = 4, TENANTS_MAX = 16, TICKS_MAX = 4000, TICK_MS = 100, NAMES_MAX = 8 };

/* How a tenant launches. */
enum style { ASYNC, SYNC, STREAMS, GRAPH, COOPERATIVE };

struct tenant {
    uint32_t share;
    enum style style;
    const char *kernels[NAMES_MAX]; /* launched in turns; ended by NULL */
    uint32_t streams;               /* for STREAMS */
    uint32_t blocks;                /* of each launch; 0: one */
    double starts;                  /* seconds */
    double ends;                    /* 0: never */
    const char *priority;           /* the process's own; NULL: none */
};

struct share_plan {
    uint32_t milli;
    uint32_t mode;
    uint32_t weight;
};

struct world {
    uint32_t sms;
    bool blind; /* nobody ticks: the processes are on their own */
    bool governed; /* the agent tells shares who goes first */
    double seconds;
    uint32_t shares;
    uint32_t tenants;
    struct share_plan share[SHARES_MAX];
    uint32_t priority[SHARES_MAX];     /* of shares; 0: none */
    uint32_t idle_seconds[SHARES_MAX]; /* after which a share may be frozen; 0: never */
    struct tenant tenant[TENANTS_MAX];
    void (*at_tick)(void); /* the test's own doings */
};

static struct world world;
static struct tessera_region *region_of[SHARES_MAX];
static pid_t pid_of[TENANTS_MAX];
static int seat_of[TENANTS_MAX];
static uint64_t busy_at[SHARES_MAX][TICKS_MAX]; /* device time of a share until each tick */
static uint64_t last_done[TENANTS_MAX];         /* of each tenant, kept when it is gone */
static uint32_t ticks;
static uint64_t began_ns;

/* -- tenants ------------------------------------------------------------------------------------------------------ */

struct tools {
    CUfunction function[NAMES_MAX];
    CUstream stream[TENANTS_MAX];
    CUgraphExec exec[NAMES_MAX];
    uint32_t count;
};

static inline void make_graphs(struct tools *tools)
{
    for (uint32_t i = 0; i < tools->count; i++) {
        CUgraph graph;
        OK(cuStreamBeginCapture_v2(tools->stream[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
        for (int node = 0; node < 4; node++) {
            OK(cuLaunchKernel(tools->function[i], 1, 1, 1, 32, 1, 1, 0, tools->stream[0], NULL, NULL));
        }
        OK(cuStreamEndCapture(tools->stream[0], &graph));
        OK(cuGraphInstantiateWithFlags(&tools->exec[i], graph, 0));
        OK(cuGraphDestroy(graph));
    }
}

static inline struct tools make_tools(const struct tenant *tenant)
{
    struct tools tools = {0};
    CUmodule module;
    world_context(0);
    OK(cuModuleLoadData(&module, "image"));
    for (; tenant->kernels[tools.count] != NULL; tools.count++) {
        OK(cuModuleGetFunction(&tools.function[tools.count], module, tenant->kernels[tools.count]));
    }
    for (uint32_t i = 0; i < (tenant->streams > 1 ? tenant->streams : 1); i++) {
        OK(cuStreamCreate(&tools.stream[i], 1));
    }
    if (tenant->style == GRAPH) make_graphs(&tools);
    return tools;
}

static inline void launch_once(const struct tenant *tenant, const struct tools *tools, uint64_t number)
{
    CUfunction function = tools->function[number % tools->count];
    CUstream stream = tools->stream[tenant->streams > 1 ? number % tenant->streams : 0];
    unsigned blocks = tenant->blocks == 0 ? 1 : tenant->blocks;
    if (tenant->style == GRAPH) {
        OK(cuGraphLaunch(tools->exec[number % tools->count], stream));
    } else if (tenant->style == COOPERATIVE) {
        OK(cuLaunchCooperativeKernel(function, blocks, 1, 1, 256, 1, 1, 0, stream, NULL));
    } else {
        OK(cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, stream, NULL, NULL));
    }
    if (tenant->style == SYNC) OK(cuStreamSynchronize(stream));
    time_sleep(2000); /* what the program itself takes for it */
}

static inline void run_tenant(const struct tenant *tenant)
{
    uint64_t end_ns = began_ns + (uint64_t)((tenant->ends > 0 ? tenant->ends : 1e6) * 1e9);
    time_sleep_until(began_ns + (uint64_t)(tenant->starts * 1e9));
    struct tools tools = make_tools(tenant);
    for (uint64_t number = 0; time_now() < end_ns; number++) {
        launch_once(tenant, &tools, number);
    }
}

static inline const char *region_name(uint32_t share)
{
    static char path[320];
    snprintf(path, sizeof path, "%s.region%u", world_path, share);
    return path;
}

static inline void start_tenant(uint32_t index)
{
    seat_of[index] = time_seat();
    fflush(NULL);
    pid_of[index] = fork();
    CHECK(pid_of[index] >= 0);
    if (pid_of[index] != 0) return;
    time_sit(seat_of[index]);
    CHECK(setenv("TESSERA_REGION", region_name(world.tenant[index].share), 1) == 0);
    if (world.tenant[index].priority != NULL) CHECK(setenv("TESSERA_PRIORITY", world.tenant[index].priority, 1) == 0);
    run_tenant(&world.tenant[index]);
    time_vacate(seat_of[index]);
    _exit(0);
}

/* -- the machine's own word ---------------------------------------------------------------------------------------- */

static inline const struct sim_machine *machine(void)
{
    static const struct sim_machine *mapped;
    if (mapped == NULL) {
        char path[320];
        struct stat about;
        snprintf(path, sizeof path, "%s.state", world_path);
        int file = open(path, O_RDONLY);
        CHECK(file >= 0 && fstat(file, &about) == 0);
        void *map = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_SHARED, file, 0);
        CHECK(map != MAP_FAILED);
        close(file);
        mapped = map;
    }
    return mapped;
}

/* Device time that a process has had. A slot that somebody else took over is not its own any more. */
static inline uint64_t done_by(pid_t pid)
{
    uint64_t done = 0;
    for (uint32_t i = 0; i < machine()->owners; i++) {
        if (machine()->owner[i].pid == (uint32_t)pid) done += machine()->owner[i].queue[0].done;
    }
    return done;
}

/* -- the agent ----------------------------------------------------------------------------------------------------- */

struct agent {
    nvmlDevice_t device;
    unsigned long long seen_us;
    struct tessera_calibration calibration[SHARES_MAX];
    struct tessera_reading reading[SHARES_MAX];
    uint64_t history[SHARES_MAX][8]; /* busy_ns of the last ticks */
    uint64_t launches[SHARES_MAX];   /* as seen last */
    uint64_t active_ns[SHARES_MAX];  /* when they changed last */
};

static struct agent agent;

static inline int share_of(unsigned pid)
{
    for (uint32_t i = 0; i < world.tenants; i++) {
        if (pid_of[i] == (pid_t)pid) return (int)world.tenant[i].share;
    }
    return -1;
}

static inline void read_samples(void)
{
    nvmlProcessUtilizationSample_t samples[TENANTS_MAX + 4];
    unsigned count = TENANTS_MAX + 4;
    if (nvmlDeviceGetProcessUtilization(agent.device, samples, &count, agent.seen_us) != NVML_SUCCESS) return;
    for (unsigned i = 0; i < count; i++) {
        int share = share_of(samples[i].pid);
        if (samples[i].timeStamp > agent.seen_us) agent.seen_us = samples[i].timeStamp;
        if (share < 0) continue;
        agent.reading[share].busy_ns += samples[i].smUtil * TICK_MS * MS / 100; /* the sample period is a tick */
    }
    for (uint32_t share = 0; share < world.shares; share++) {
        agent.reading[share].busy_at_ns = agent.seen_us * 1000u - UINT64_C(1700000000000000000);
    }
}

/* What a share had of the card over the last five ticks. */
static inline uint32_t used_milli(uint32_t share)
{
    uint64_t then_ns = agent.history[share][(ticks + 3) % 8];
    agent.history[share][ticks % 8] = agent.reading[share].busy_ns;
    return (uint32_t)((agent.reading[share].busy_ns - then_ns) / (5 * TICK_MS * MS / 1000));
}

static inline void govern_shares(void)
{
    struct tessera_contender contenders[SHARES_MAX] = {0};
    struct tessera_grant grants[SHARES_MAX];
    uint64_t now_ns = time_now();
    for (uint32_t i = 0; i < world.shares; i++) {
        const struct tessera_device_control *row = &region_of[i]->control.device[0];
        uint64_t waited_ns = region_of[i]->usage.device[0].waited_ns;
        uint64_t launches;
        OK(tessera_region_launches(region_of[i], &launches));
        if (launches != agent.launches[i] || ticks == 0) agent.active_ns[i] = now_ns;
        agent.launches[i] = launches;
        contenders[i] = (struct tessera_contender){.limit_milli = row->compute_limit_milli,
                                                   .request_milli = world.share[i].weight,
                                                   .mode = row->mode,
                                                   .used_milli = used_milli(i),
                                                   .priority = world.priority[i],
                                                   .waits = waited_ns != 0 && waited_ns + 250 * MS > now_ns,
                                                   .is_active = agent.active_ns[i] + 500 * MS > now_ns};
    }
    tessera_govern_compute(contenders, world.shares, grants);
    for (uint32_t i = 0; i < world.shares; i++) {
        uint64_t idle_ns = world.idle_seconds[i] * SECOND;
        const struct tessera_rule rule = {.cap_milli = grants[i].cap_milli,
                                          .is_idle = idle_ns > 0 && agent.active_ns[i] + idle_ns < now_ns};
        OK(tessera_region_tick(region_of[i], 0, &agent.calibration[i], &agent.reading[i], grants[i].granted_milli, now_ns));
        OK(tessera_region_govern(region_of[i], 0, &rule, now_ns));
    }
}

static inline void tick_shares(void)
{
    struct tessera_borrower borrowers[SHARES_MAX] = {0};
    uint32_t granted[SHARES_MAX];
    uint64_t now_ns = time_now();
    for (uint32_t i = 0; i < world.shares; i++) {
        uint64_t waited_ns = region_of[i]->usage.device[0].waited_ns;
        borrowers[i] = (struct tessera_borrower){
            .limit_milli = region_of[i]->control.device[0].compute_limit_milli,
            .mode = region_of[i]->control.device[0].mode,
            .weight = world.share[i].weight,
            .used_milli = used_milli(i),
            .waits = waited_ns != 0 && waited_ns + 250 * MS > now_ns};
    }
    tessera_compute_lend(borrowers, world.shares, granted);
    for (uint32_t i = 0; i < world.shares; i++) {
        OK(tessera_region_tick(region_of[i], 0, &agent.calibration[i], &agent.reading[i], granted[i], now_ns));
    }
}

static inline void observe(void)
{
    nvmlUtilization_t rates;
    CHECK_EQ_U64(nvmlDeviceGetUtilizationRates(agent.device, &rates), NVML_SUCCESS); /* brings the card up to now */
    for (uint32_t i = 0; i < world.shares; i++) busy_at[i][ticks] = 0;
    for (uint32_t i = 0; i < world.tenants; i++) {
        uint64_t done = done_by(pid_of[i]);
        last_done[i] = done > last_done[i] ? done : last_done[i];
        busy_at[world.tenant[i].share][ticks] += last_done[i];
    }
}

static inline void make_shares(void)
{
    for (uint32_t i = 0; i < world.shares; i++) {
        struct tessera_share_spec spec = {.share_id = "share", .device_count = 1};
        strcpy(spec.device[0].uuid, CARD_0);
        spec.device[0].memory_limit = TESSERA_UNLIMITED;
        spec.device[0].compute_limit_milli = world.share[i].milli;
        CHECK_EQ_U64(tessera_region_create(region_name(i), &spec), TESSERA_ERROR_OK);
        CHECK_EQ_U64(tessera_region_open(region_name(i), &region_of[i]), TESSERA_ERROR_OK);
        CHECK_EQ_U64(tessera_region_set_compute(region_of[i], 0, world.share[i].milli, world.share[i].mode), 0);
    }
}

static inline void end_tenant(uint32_t index)
{
    int status;
    if (pid_of[index] == 0) return;
    kill(pid_of[index], SIGKILL);
    CHECK(waitpid(pid_of[index], &status, 0) == pid_of[index]);
    CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    time_vacate(seat_of[index]);
    pid_of[index] = 0;
}

/* A tenant that failed a check would leave everybody asleep in a time that stands still. */
static void tenant_ended(int signal_number)
{
    siginfo_t about = {0};
    (void)signal_number;
    if (waitid(P_ALL, 0, &about, WEXITED | WNOHANG | WNOWAIT) == 0 && about.si_pid != 0 &&
        !(about.si_code == CLD_KILLED && about.si_status == SIGKILL) &&
        !(about.si_code == CLD_EXITED && about.si_status == 0)) {
        _exit(1);
    }
}

/* Runs the world to its end. Call in a process of its own: the limiter and virtual time begin once a process. */
static inline void run_world(void)
{
    char text[256];
    snprintf(text, sizeof text, "driver version=13.0 sample_ms=%d\ndevice uuid=" CARD_0 " memory_mib=81920 sms=%u\n",
             TICK_MS, world.sms == 0 ? 108 : world.sms);
    signal(SIGCHLD, tenant_ended);
    time_begin(1000 * SECOND);
    began_ns = time_now();
    world_write(text);
    make_shares();
    for (uint32_t i = 0; i < world.tenants; i++) start_tenant(i);
    CHECK_EQ_U64(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ_U64(nvmlDeviceGetHandleByIndex_v2(0, &agent.device), NVML_SUCCESS);
    for (ticks = 0; ticks * TICK_MS < world.seconds * 1000 && ticks < TICKS_MAX; ticks++) {
        time_sleep_until(began_ns + (ticks + 1) * TICK_MS * MS + 1000);
        observe();
        read_samples();
        if (!world.blind) (world.governed ? govern_shares : tick_shares)();
        if (world.at_tick != NULL) world.at_tick();
    }
    for (uint32_t i = 0; i < world.tenants; i++) end_tenant(i);
}

static inline double seconds_now(void)
{
    return (double)(time_now() - began_ns) / 1e9;
}

/* Runs a world in a child and checks it there. */
static inline void in_a_world(const char *name, const struct world *plan, void (*check)(void))
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        world = *plan;
        run_world();
        check();
        fflush(NULL);
        world_end();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) CHECK_FAIL("world %s failed with status %#x", name, status);
}

/* -- what is asked of a run ---------------------------------------------------------------------------------------- */

/* Percent of the device that a share had between two moments, in seconds. */
static inline double percent_between(uint32_t share, double from, double until)
{
    uint32_t first = (uint32_t)(from * 1000 / TICK_MS);
    uint32_t last = (uint32_t)(until * 1000 / TICK_MS) - 1;
    uint64_t before = first == 0 ? 0 : busy_at[share][first - 1];
    return (double)(busy_at[share][last] - before) / ((until - from) * 1e9) * 100;
}

/* Part of the windows of a second, in percent, that lie within 15 points of `percent`. */
static inline double windows_within(uint32_t share, double percent, double from, double until)
{
    double inside = 0;
    double all = 0;
    for (double at = from; at + 1 <= until + 0.01; at += 1) {
        double had = percent_between(share, at, at + 1);
        inside += had >= percent - 15 && had <= percent + 15;
        all++;
    }
    return inside / all * 100;
}

/* A share's mean lies within `points` of `percent`, and 95 of 100 of its seconds within 15. */
static inline void check_held(const char *name, uint32_t share, double percent, double points, double from)
{
    double mean = percent_between(share, from, world.seconds);
    double windows = windows_within(share, percent, from, world.seconds);
    if (getenv("TEST_VERBOSE") != NULL) {
        fprintf(stderr, "%-40s share %u: limit %5.1f mean %6.2f, seconds within 15 points: %5.1f%%\n", name, share, percent,
                mean, windows);
    }
    if (mean < percent - points || mean > percent + points || windows < 95) {
        CHECK_FAIL("%s: share %u has %.2f %% of the device at a limit of %.1f %%; %.1f %% of its seconds are near it", name,
                   share, mean, percent, windows);
    }
}

#endif
