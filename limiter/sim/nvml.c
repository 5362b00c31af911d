/* DESIGN
 *
 * NVML of the simulated machine: library, identity, memory, sensors. NVML does not know
 * CUDA_VISIBLE_DEVICES: it lists every device of the description, in its order.
 *
 * Sensors answer constants within the range of a card of this kind: nothing here models heat.
 *
 * Source: NVML API reference; nvmlInit is counted, nvmlShutdown undoes one.
 */
#include "nvml.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cgroup.h"

int sim_nvml_users;
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

static struct nvmlDevice_st devices[SIM_MAX_DEVICES];

int sim_nvml_row(nvmlDevice_t device)
{
    uintptr_t offset = (uintptr_t)device - (uintptr_t)devices;
    uintptr_t row = offset / sizeof devices[0];
    return offset % sizeof devices[0] == 0 && row < (uintptr_t)sim_description.count ? (int)row : -1;
}

nvmlReturn_t sim_nvml_text(char *out, unsigned int length, const char *text)
{
    if (out == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

/* -- library ------------------------------------------------------------------------------ */

static nvmlReturn_t init(void)
{
    pthread_mutex_lock(&init_lock);
    bool open = sim_machine_open();
    if (open) sim_nvml_users++;
    for (int row = 0; row < SIM_MAX_DEVICES; row++) devices[row].row = row;
    pthread_mutex_unlock(&init_lock);
    return open ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
}

NVML_API nvmlInit(void)
{
    sim_trace_load();
    SIM_TRACE(nvmlReturn_t, "%s", "");
    return init();
}

NVML_API nvmlInit_v2(void)
{
    sim_trace_load();
    SIM_TRACE(nvmlReturn_t, "%s", "");
    return init();
}

NVML_API nvmlInitWithFlags(unsigned int flags)
{
    sim_trace_load();
    SIM_TRACE(nvmlReturn_t, "%u", flags);
    return init();
}

NVML_API nvmlShutdown(void)
{
    SIM_TRACE(nvmlReturn_t, "%s", "");
    pthread_mutex_lock(&init_lock);
    bool was = sim_nvml_users > 0;
    if (was && --sim_nvml_users == 0) sim_machine_close();
    pthread_mutex_unlock(&init_lock);
    return was ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

static const struct {
    nvmlReturn_t code;
    const char *words;
} errors[] = {
    {NVML_SUCCESS, "Success"},
    {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
    {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
    {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
    {NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
    {NVML_ERROR_NOT_FOUND, "Not Found"},
    {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
    {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
    {NVML_ERROR_TIMEOUT, "Timeout"},
    {NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
    {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
    {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
};

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t result)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].code == result) return errors[i].words;
    return "Unknown Error";
}

#define SYSTEM_CALL(...)                                \
    SIM_TRACE(nvmlReturn_t, __VA_ARGS__);               \
    if (sim_nvml_users == 0) return NVML_ERROR_UNINITIALIZED

NVML_API nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    SYSTEM_CALL("%u", length);
    return sim_nvml_text(version, length, sim_description.driver);
}

NVML_API nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    char text[96];
    SYSTEM_CALL("%u", length);
    snprintf(text, sizeof text, "%d.%s", sim_description.version / 1000, sim_description.driver);
    return sim_nvml_text(version, length, text);
}

static nvmlReturn_t cuda_version(int *version)
{
    if (version == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *version = sim_description.version;
    return NVML_SUCCESS;
}

NVML_API nvmlSystemGetCudaDriverVersion(int *version)
{
    SYSTEM_CALL("%s", "");
    return cuda_version(version);
}

NVML_API nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    SYSTEM_CALL("%s", "");
    return cuda_version(version);
}

/* The first word of the command line, as /proc has it. */
NVML_API nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    char path[64], text[1024];
    SYSTEM_CALL("%u", pid);
    if (name == NULL || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NVML_ERROR_NOT_FOUND;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0) return NVML_ERROR_NOT_FOUND;
    text[got] = '\0';
    snprintf(name, length, "%s", text);
    return NVML_SUCCESS;
}

/* -- enumeration -------------------------------------------------------------------------- */

static nvmlReturn_t device_count(unsigned int *count)
{
    if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *count = (unsigned)sim_description.count;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetCount(unsigned int *count)
{
    SYSTEM_CALL("%s", "");
    return device_count(count);
}

NVML_API nvmlDeviceGetCount_v2(unsigned int *count)
{
    SYSTEM_CALL("%s", "");
    return device_count(count);
}

static nvmlReturn_t by_index(unsigned int index, nvmlDevice_t *device)
{
    if (device == NULL || index >= (unsigned)sim_description.count) return NVML_ERROR_INVALID_ARGUMENT;
    *device = &devices[index];
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    SYSTEM_CALL("%u", index);
    return by_index(index, device);
}

NVML_API nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    SYSTEM_CALL("%u", index);
    return by_index(index, device);
}

NVML_API nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    SYSTEM_CALL("%s", uuid == NULL ? "" : uuid);
    if (uuid == NULL || device == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    for (int row = 0; row < sim_description.count; row++)
        if (strcasecmp(sim_description.device[row].uuid, uuid) == 0) return by_index((unsigned)row, device);
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t by_bus(const char *bus, nvmlDevice_t *device)
{
    unsigned domain, number, slot;
    if (bus == NULL || device == NULL || sscanf(bus, "%x:%x:%x", &domain, &number, &slot) != 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int row = 0; row < sim_description.count; row++) {
        const struct sim_device_row *d = &sim_description.device[row];
        if (d->pci_domain == domain && d->pci_bus == number && d->pci_device == slot)
            return by_index((unsigned)row, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlDeviceGetHandleByPciBusId(const char *bus, nvmlDevice_t *device)
{
    SYSTEM_CALL("%s", bus == NULL ? "" : bus);
    return by_bus(bus, device);
}

NVML_API nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device)
{
    SYSTEM_CALL("%s", bus == NULL ? "" : bus);
    return by_bus(bus, device);
}

/* -- identity ----------------------------------------------------------------------------- */

NVML_API nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    NVML_CALL(device, "%p", (void *)device);
    return sim_nvml_text(name, length, sim_description.device[row].name);
}

NVML_API nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    NVML_CALL(device, "%p", (void *)device);
    return sim_nvml_text(uuid, length, sim_description.device[row].uuid);
}

NVML_API nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    NVML_CALL(device, "%p", (void *)device);
    if (index == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *index = (unsigned)row;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    NVML_CALL(device, "%p", (void *)device);
    if (minor == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *minor = (unsigned)row;
    return NVML_SUCCESS;
}

enum { PCI_IDS = 0x20b210de }; /* device and vendor, of the default card */

static nvmlReturn_t pci_short(int row, nvmlPciInfo_v2_t *pci)
{
    const struct sim_device_row *d = &sim_description.device[row];
    if (pci == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->busId, sizeof pci->busId, "%04x:%02x:%02x.0", d->pci_domain & 0xffff, d->pci_bus & 0xff,
             d->pci_device & 0xff);
    pci->domain = d->pci_domain;
    pci->bus = d->pci_bus;
    pci->device = d->pci_device;
    pci->pciDeviceId = PCI_IDS;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v2_t *pci)
{
    NVML_CALL(device, "%p", (void *)device);
    return pci_short(row, pci);
}

NVML_API nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *pci)
{
    NVML_CALL(device, "%p", (void *)device);
    return pci_short(row, pci);
}

NVML_API nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    nvmlPciInfo_v2_t old;
    NVML_CALL(device, "%p", (void *)device);
    if (pci == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    pci_short(row, &old);
    memset(pci, 0, sizeof *pci);
    memcpy(pci->busIdLegacy, old.busId, sizeof pci->busIdLegacy);
    pci->domain = old.domain;
    pci->bus = old.bus;
    pci->device = old.device;
    pci->pciDeviceId = old.pciDeviceId;
    snprintf(pci->busId, sizeof pci->busId, "%08x:%02x:%02x.0", old.domain, old.bus, old.device);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    NVML_CALL(device, "%p", (void *)device);
    if (major == NULL || minor == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *major = sim_description.device[row].major;
    *minor = sim_description.device[row].minor;
    return NVML_SUCCESS;
}

/* The host's NUMA node near the card, as a bit set. */
NVML_API nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int size, unsigned long *nodes,
                                     unsigned int scope)
{
    NVML_CALL(device, "%p %u", (void *)device, scope);
    unsigned node = (unsigned)sim_description.device[row].numa, bits = 8 * sizeof *nodes;
    if (nodes == NULL || size == 0 || scope > 1) return NVML_ERROR_INVALID_ARGUMENT;
    if (node / bits >= size) return NVML_ERROR_INSUFFICIENT_SIZE;
    memset(nodes, 0, size * sizeof *nodes);
    nodes[node / bits] = 1UL << node % bits;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
    NVML_CALL(device, "%p", (void *)device);
    if (node == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *node = (unsigned)sim_description.device[row].numa;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    NVML_CALL(device, "%p", (void *)device);
    if (attributes == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    return NVML_ERROR_NOT_SUPPORTED; /* MIG devices only */
}

/* -- memory ------------------------------------------------------------------------------- */

/* The whole card, and what is free of it, as the caller is shown them: capped to its cgroup's limit. */
static void view_now(int row, uint64_t *total, uint64_t *left)
{
    const struct sim_device_row *d = &sim_description.device[row];
    sim_lock();
    sim_reap();
    uint64_t capacity = sim_machine->device[row].capacity;
    *left = capacity - sim_machine->device[row].used;
    if (sim_description.accounting != SIM_ACCOUNT_OFF) sim_group_view(sim_group_self(), row, &capacity, left);
    *total = capacity < d->memory - d->reserved ? capacity : d->memory;
    sim_unlock();
}

static uint64_t used_now(int row)
{
    sim_lock();
    sim_reap();
    uint64_t used = sim_machine->device[row].used;
    sim_unlock();
    return used;
}

/* Version 1 has no reserved field: what the driver keeps counts as used. */
NVML_API nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    NVML_CALL(device, "%p", (void *)device);
    if (memory == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    memory->total = sim_description.device[row].memory;
    memory->used = used_now(row) + sim_description.device[row].reserved;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    NVML_CALL(device, "%p", (void *)device);
    if (memory == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (memory->version != NVML_MEMORY_V2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    uint64_t total, left;
    view_now(row, &total, &left);
    memory->total = total;
    memory->reserved = total == sim_description.device[row].memory ? sim_description.device[row].reserved : 0;
    memory->free = left;
    memory->used = total - memory->reserved - left;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    NVML_CALL(device, "%p", (void *)device);
    if (memory == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    memory->bar1Total = sim_description.device[row].memory;
    memory->bar1Used = SIM_MIB;
    memory->bar1Free = memory->bar1Total - memory->bar1Used;
    return NVML_SUCCESS;
}

/* -- sensors ------------------------------------------------------------------------------ */

NVML_API nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *celsius)
{
    NVML_CALL(device, "%p %d", (void *)device, sensor);
    if (sensor != 0 || celsius == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *celsius = 40;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
    NVML_CALL(device, "%p", (void *)device);
    if (milliwatts == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *milliwatts = 70 * 1000;
    return NVML_SUCCESS;
}

static nvmlReturn_t clock_of(int type, unsigned int *mhz)
{
    static const unsigned clocks[] = {1410, 1410, 1593, 1290}; /* graphics, SM, memory, video */
    if (type < 0 || type > 3 || mhz == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *mhz = clocks[type];
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned int *mhz)
{
    NVML_CALL(device, "%p %d", (void *)device, type);
    return clock_of(type, mhz);
}

NVML_API nvmlDeviceGetClock(nvmlDevice_t device, int type, int id, unsigned int *mhz)
{
    NVML_CALL(device, "%p %d %d", (void *)device, type, id);
    return clock_of(type, mhz);
}

NVML_API nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int type, unsigned int *mhz)
{
    NVML_CALL(device, "%p %d", (void *)device, type);
    return clock_of(type, mhz);
}
