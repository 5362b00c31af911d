/* DESIGN
 *
 * Enumeration and attributes. Identity comes from the description; figures that no test varies
 * are one table of constants (an Ampere-class card); an attribute in neither is 0.
 */
#include "sim.h"

#include <stdio.h>
#include <string.h>

static const struct sim_device_row *row_of(CUdevice device)
{
    return &sim_description.device[sim_visible[device]];
}

SIM_API cuDeviceGetCount(int *count)
{
    SIM_CALL("%s", "");
    if (count == NULL) return CUDA_ERROR_INVALID_VALUE;
    *count = sim_visible_count;
    return CUDA_SUCCESS;
}

SIM_API cuDeviceGet(CUdevice *device, int ordinal)
{
    SIM_CALL("%d", ordinal);
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

SIM_API cuDeviceGetName(char *name, int length, CUdevice device)
{
    SIM_CALL("%d", device);
    if (name == NULL || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)length, "%s", row_of(device)->name);
    return CUDA_SUCCESS;
}

static CUresult uuid(CUuuid *out, CUdevice device)
{
    if (out == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    memcpy(out->bytes, row_of(device)->uuid_bytes, sizeof out->bytes);
    return CUDA_SUCCESS;
}

SIM_API cuDeviceGetUuid(CUuuid *out, CUdevice device)
{
    SIM_CALL("%d", device);
    return uuid(out, device);
}

SIM_API cuDeviceGetUuid_v2(CUuuid *out, CUdevice device)
{
    SIM_CALL("%d", device);
    return uuid(out, device);
}

SIM_API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    SIM_CALL("%d", device);
    if (bytes == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = sim_machine->device[sim_visible[device]].capacity;
    return CUDA_SUCCESS;
}

SIM_API cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    SIM_CALL("%d", device);
    if (major == NULL || minor == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *major = row_of(device)->major;
    *minor = row_of(device)->minor;
    return CUDA_SUCCESS;
}

SIM_API cuDeviceGetPCIBusId(char *id, int length, CUdevice device)
{
    SIM_CALL("%d", device);
    if (id == NULL || length < 13) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    const struct sim_device_row *row = row_of(device);
    snprintf(id, (size_t)length, "%04x:%02x:%02x.0", row->pci_domain, row->pci_bus, row->pci_device);
    return CUDA_SUCCESS;
}

SIM_API cuDeviceGetByPCIBusId(CUdevice *device, const char *id)
{
    unsigned domain, bus, slot;
    SIM_CALL("%s", id == NULL ? "" : id);
    if (device == NULL || id == NULL || sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < sim_visible_count; i++) {
        const struct sim_device_row *row = row_of(i);
        if (row->pci_domain != domain || row->pci_bus != bus || row->pci_device != slot) continue;
        *device = i;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

SIM_API cuDeviceGetLuid(char *luid, unsigned int *mask, CUdevice device)
{
    SIM_CALL("%d", device);
    (void)luid;
    (void)mask;
    return CUDA_ERROR_NOT_SUPPORTED; /* Windows only */
}

/* -- attributes --------------------------------------------------------------------------- */

static const struct {
    CUdevice_attribute attribute;
    int value;
} constants[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1410000},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1593000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 41943040},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 167936},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 166912},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
};

static int described(const struct sim_device_row *row, CUdevice_attribute attribute, int otherwise)
{
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return row->sms;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return row->major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return row->minor;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: return (int)row->pci_domain;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return (int)row->pci_bus;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: return (int)row->pci_device;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED: return row->integrated;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID: return row->numa;
    default: return otherwise;
    }
}

SIM_API cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    SIM_CALL("%d %d", (int)attribute, device);
    if (value == NULL || (int)attribute <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    int constant = 0;
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++)
        if (constants[i].attribute == attribute) constant = constants[i].value;
    *value = described(row_of(device), attribute, constant);
    return CUDA_SUCCESS;
}

SIM_API cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    SIM_CALL("%d %d", device, peer);
    if (can == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device) || !sim_is_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer;
    return CUDA_SUCCESS;
}
