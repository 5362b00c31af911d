/* DESIGN
 *
 * Who uses a device, and how much. A process is on a device when it has a context there or holds
 * memory there; its usedGpuMemory is all it holds, context included. Two copies of the driver in
 * one process are two owners and one line. Processes of other PID namespaces are listed by their own numbers, but for
 * one that has the caller's: a driver does not take one for the other. With pid_shift in the description every number
 * is another one, as where a driver tells the host's: then it may well be the caller's, and somebody else.
 *
 * Utilisation comes from the sample periods of clock.c. Timestamps are microseconds of wall time.
 *
 * Source: NVML API reference: two-call size protocol, NOT_FOUND when there is no sample.
 */
#include "nvml.h"

#include <string.h>
#include <unistd.h>

#include "owner.h"

enum { MOST = SIM_MAX_OWNERS };

struct user {
    unsigned pid;
    uint64_t held;
};

static unsigned shown(unsigned pid)
{
    return pid + (unsigned)sim_description.pid_shift;
}

/* The processes on a device; returns how many. Only reads after reaping, under the lock. */
static unsigned users_of(int row, struct user *users)
{
    unsigned count = 0, self = (unsigned)getpid();
    uint64_t namespace = sim_pid_namespace();
    sim_lock();
    sim_reap();
    for (uint32_t slot = 0; slot < sim_machine->owners; slot++) {
        const struct sim_owner *owner = &sim_machine->owner[slot];
        unsigned pid = owner->pid;
        if (pid == 0 || (owner->contexts[row] == 0 && owner->held[row] == 0)) continue;
        if (pid == self && owner->namespace != namespace) continue; /* the caller's number, and not the caller */
        unsigned at = 0;
        while (at < count && users[at].pid != shown(pid)) at++;
        if (at == count) users[count++] = (struct user){.pid = shown(pid)};
        users[at].held += owner->held[row];
    }
    sim_unlock();
    return count;
}

/* -- process lists ------------------------------------------------------------------------ */

typedef void writer(void *infos, unsigned at, const struct user *user);

static void write_v1(void *infos, unsigned at, const struct user *user)
{
    ((nvmlProcessInfo_v1_t *)infos)[at] = (nvmlProcessInfo_v1_t){user->pid, user->held};
}

static void write_v2(void *infos, unsigned at, const struct user *user)
{
    ((nvmlProcessInfo_v2_t *)infos)[at] =
        (nvmlProcessInfo_v2_t){user->pid, user->held, NVML_NO_INSTANCE, NVML_NO_INSTANCE};
}

static nvmlReturn_t list(int row, unsigned int *count, void *infos, writer *write)
{
    struct user users[MOST];
    if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned room = *count;
    *count = users_of(row, users);
    if (*count > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    if (*count != 0 && infos == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < *count; i++) write(infos, i, &users[i]);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos)
{
    NVML_CALL(device, "%p", (void *)device);
    return list(row, count, infos, write_v1);
}

NVML_API nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                 nvmlProcessInfo_v2_t *infos)
{
    NVML_CALL(device, "%p", (void *)device);
    return list(row, count, infos, write_v2);
}

NVML_API nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                 nvmlProcessInfo_v2_t *infos)
{
    NVML_CALL(device, "%p", (void *)device);
    return list(row, count, infos, write_v2);
}

/* No graphics and no MPS: these lists are empty. */
#define EMPTY_LIST(name, type)                                                   \
    NVML_API name(nvmlDevice_t device, unsigned int *count, type *infos)         \
    {                                                                            \
        NVML_CALL(device, "%p", (void *)device);                                 \
        (void)row;                                                               \
        (void)infos;                                                             \
        if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;                   \
        *count = 0;                                                              \
        return NVML_SUCCESS;                                                     \
    }

EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t)

/* -- utilisation -------------------------------------------------------------------------- */

static uint64_t wall_us(uint64_t at)
{
    return ((uint64_t)((int64_t)at + sim_machine->wall_offset)) / 1000;
}

NVML_API nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    NVML_CALL(device, "%p", (void *)device);
    if (rates == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    sim_lock();
    sim_clock_advance(row, sim_now());
    rates->gpu = (unsigned)sim_machine->device[row].percent;
    sim_unlock();
    rates->memory = 0;
    return NVML_SUCCESS;
}

/* The newest sample of an owner, if newer than `after` microseconds. */
static bool newest(const struct sim_owner *owner, int row, uint64_t after, struct sim_sample *out)
{
    const struct sim_queue *queue = &owner->queue[row];
    if (owner->pid == 0 || queue->samples == 0) return false;
    *out = queue->sample[(queue->samples - 1) % SIM_SAMPLES];
    return wall_us(out->at) > after;
}

static unsigned samples_after(int row, uint64_t after, nvmlProcessUtilizationInfo_v1_t *out)
{
    unsigned count = 0;
    sim_lock();
    sim_reap();
    sim_clock_advance(row, sim_now());
    for (uint32_t slot = 0; slot < sim_machine->owners; slot++) {
        struct sim_sample sample;
        const struct sim_owner *owner = &sim_machine->owner[slot];
        if (!newest(owner, row, after, &sample)) continue;
        out[count++] = (nvmlProcessUtilizationInfo_v1_t){
            .timeStamp = wall_us(sample.at), .pid = shown(owner->pid), .smUtil = (unsigned)sample.percent};
    }
    sim_unlock();
    return count;
}

NVML_API nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                         unsigned int *count, unsigned long long after)
{
    nvmlProcessUtilizationInfo_v1_t found[MOST];
    NVML_CALL(device, "%p %llu", (void *)device, after);
    if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned room = samples == NULL ? 0 : *count;
    *count = samples_after(row, after, found);
    if (*count == 0) return NVML_ERROR_NOT_FOUND;
    if (*count > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++)
        samples[i] = (nvmlProcessUtilizationSample_t){
            .pid = found[i].pid, .timeStamp = found[i].timeStamp, .smUtil = found[i].smUtil};
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info)
{
    nvmlProcessUtilizationInfo_v1_t found[MOST];
    NVML_CALL(device, "%p", (void *)device);
    if (info == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != NVML_PROCESSES_UTILIZATION_INFO_V1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    unsigned room = info->procUtilArray == NULL ? 0 : info->processSamplesCount;
    info->processSamplesCount = samples_after(row, info->lastSeenTimeStamp, found);
    if (info->processSamplesCount == 0) return NVML_ERROR_NOT_FOUND;
    if (info->processSamplesCount > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(info->procUtilArray, found, info->processSamplesCount * sizeof found[0]);
    return NVML_SUCCESS;
}
