/* DESIGN
 *
 * NVML's memory limits of a cgroup on a device, from driver 615 on. Setting needs root, asking does not. Nothing is
 * written into the cgroup's directory: the simulated kernel half lies in the machine's state.
 *
 * dmem: a cgroup without `dmem.max` cannot be limited (NOT_FOUND), and shows the nearest limit above it that could be
 * (NOT_SUPPORTED where nobody's could). A soft limit is added to every ancestor up to the first without that file.
 * misc: any cgroup can be limited; one without a limit shows the nearest limited one above it, and NOT_SUPPORTED where
 * there is none, which says the same as a driver whose accounting is off.
 *
 * Source: NVML API reference of CUDA 13.4; NVIDIA, "MPS v3 Memory Partitioning" (errors, propagation, the rounding of
 * its example); NOT_SUPPORTED from the misc backend as users of 615.71.09 report it.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cgroup.h"
#include "nvml.h"

static bool has_dmem(const char *directory)
{
    char path[4352];
    snprintf(path, sizeof path, "%s/dmem.max", directory);
    return access(path, F_OK) == 0;
}

static bool is_directory(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/* What every call asks first. */
static nvmlReturn_t check(const char *directory)
{
    if (sim_description.driver_major < SIM_LIMITS_SINCE) return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (sim_description.accounting == SIM_ACCOUNT_OFF) return NVML_ERROR_NOT_SUPPORTED;
    if (directory == NULL || directory[0] != '/') return NVML_ERROR_INVALID_ARGUMENT;
    return is_directory(directory) ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

static uint64_t rounded(uint64_t bytes)
{
    uint64_t step = sim_description.limit_step;
    return bytes == SIM_UNLIMITED || step == 0 ? bytes : (bytes + step - 1) / step * step;
}

/* The dmem backend adds what the soft limit changed by to those above, while they have the files for it. */
static void propagate(const char *directory, uint32_t group, int row, uint64_t delta)
{
    char path[4096];
    snprintf(path, sizeof path, "%s", directory);
    for (uint32_t above = sim_machine->group[group - 1].parent; above != 0;) {
        char *slash = strrchr(path, '/');
        if (slash == NULL) return;
        *slash = '\0';
        if (!has_dmem(path)) return;
        sim_machine->group[above - 1].soft[row] += delta;
        above = sim_machine->group[above - 1].parent;
    }
}

static nvmlReturn_t set_locked(int row, const char *directory, uint64_t soft, uint64_t hard)
{
    sim_group_sweep();
    uint32_t group = sim_group_at(directory);
    if (group == 0) return NVML_ERROR_NOT_FOUND;
    struct sim_group *g = &sim_machine->group[group - 1];
    if (sim_description.accounting == SIM_ACCOUNT_DMEM) propagate(directory, group, row, soft - g->soft[row]);
    g->soft[row] = soft;
    g->hard[row] = hard;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
    NVML_CALL(device, "%p", (void *)device);
    if (limits == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = check(limits->nameSpace);
    if (result != NVML_SUCCESS) return result;
    if (geteuid() != 0) return NVML_ERROR_NO_PERMISSION;
    if (limits->softLimit > limits->hardLimit) return NVML_ERROR_INVALID_ARGUMENT;
    if (sim_description.accounting == SIM_ACCOUNT_DMEM && !has_dmem(limits->nameSpace)) return NVML_ERROR_NOT_FOUND;
    sim_lock();
    result = set_locked(row, limits->nameSpace, rounded(limits->softLimit), rounded(limits->hardLimit));
    sim_unlock();
    return result;
}

/* The group whose limits are shown for a directory; 0 where there is none. */
static uint32_t shown_group(int row, const char *directory)
{
    char path[4096];
    if (sim_description.accounting == SIM_ACCOUNT_MISC) return sim_group_limited(sim_group_at(directory), row);
    if ((size_t)snprintf(path, sizeof path, "%s", directory) >= sizeof path) return 0;
    while (!has_dmem(path)) {
        char *slash = strrchr(path, '/');
        if (slash == NULL || slash == path) return 0;
        *slash = '\0';
    }
    return sim_group_at(path);
}

NVML_API nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
    NVML_CALL(device, "%p", (void *)device);
    if (limits == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = check(limits->nameSpace);
    if (result != NVML_SUCCESS) return result;
    sim_lock();
    sim_reap();
    sim_group_sweep();
    uint32_t group = shown_group(row, limits->nameSpace);
    if (group == 0) {
        result = NVML_ERROR_NOT_SUPPORTED;
    } else {
        limits->softLimit = sim_machine->group[group - 1].soft[row];
        limits->hardLimit = sim_machine->group[group - 1].hard[row];
        limits->currentUsed = sim_group_used(group, row);
    }
    sim_unlock();
    return result;
}
