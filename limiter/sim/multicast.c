/* DESIGN
 *
 * Multicast objects, as far as they keep memory alive: what is bound stays until it is unbound or the object's last
 * reference is released. Devices, addresses of the object and what a store to it does are not modelled.
 *
 * Source: CUDA driver API, Multicast Object Management.
 */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_BINDINGS = 64 };

static const uint64_t TAG = 0x4d43ULL << 48; /* beside every handle of cuMemCreate */

struct binding {
    uint64_t offset, bytes;
    CUdevice device;
    CUmemGenericAllocationHandle memory; /* 0: free */
};

static struct object {
    bool used;
    uint64_t bytes;
    struct binding binding[MOST_BINDINGS];
} objects[64];

void sim_multicasts_forget(void)
{
    memset(objects, 0, sizeof objects);
}

bool sim_is_multicast(CUmemGenericAllocationHandle value)
{
    return value >> 48 == TAG >> 48 && (value & 0xff) < 64 && objects[value & 0xff].used;
}

/* Called with the lock held. */
void sim_multicast_release(CUmemGenericAllocationHandle value)
{
    struct object *object = &objects[value & 0xff];
    for (int i = 0; i < MOST_BINDINGS; i++)
        if (object->binding[i].memory != 0) sim_vmm_hold(object->binding[i].memory, -1);
    memset(object, 0, sizeof *object);
}

SIM_API cuMulticastCreate(CUmemGenericAllocationHandle *out, const CUmulticastObjectProp *prop)
{
    SIM_CALL("%zu", prop == NULL ? 0 : prop->size);
    if (out == NULL || prop == NULL || prop->size == 0 || prop->numDevices == 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    sim_lock();
    for (uint64_t i = 0; i < 64 && result != CUDA_SUCCESS; i++) {
        if (objects[i].used) continue;
        objects[i].used = true;
        objects[i].bytes = prop->size;
        *out = TAG | i;
        result = CUDA_SUCCESS;
    }
    sim_unlock();
    return result;
}

SIM_API cuMulticastAddDevice(CUmemGenericAllocationHandle value, CUdevice device)
{
    SIM_CALL("%llx %d", value, device);
    return !sim_is_multicast(value) ? CUDA_ERROR_INVALID_VALUE
                                    : sim_is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* Called with the lock held. */
static CUresult bind(CUmemGenericAllocationHandle value, uint64_t offset, CUmemGenericAllocationHandle memory,
                     uint64_t bytes)
{
    CUdevice device;
    struct object *object = &objects[value & 0xff];
    if (!sim_is_multicast(value) || bytes == 0 || bytes > object->bytes || offset > object->bytes - bytes ||
        !sim_vmm_device(memory, &device))
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < MOST_BINDINGS; i++) {
        if (object->binding[i].memory != 0) continue;
        sim_vmm_hold(memory, 1);
        object->binding[i] = (struct binding){offset, bytes, device, memory};
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult bind_memory(CUmemGenericAllocationHandle value, uint64_t offset, CUmemGenericAllocationHandle memory,
                            uint64_t bytes)
{
    sim_lock();
    CUresult result = bind(value, offset, memory, bytes);
    sim_unlock();
    return result;
}

static CUresult bind_address(CUmemGenericAllocationHandle value, uint64_t offset, CUdeviceptr address, uint64_t bytes)
{
    sim_lock();
    CUmemGenericAllocationHandle memory = sim_vmm_at(address);
    CUresult result = memory == 0 ? CUDA_ERROR_INVALID_VALUE : bind(value, offset, memory, bytes);
    sim_unlock();
    return result;
}

SIM_API cuMulticastBindMem(CUmemGenericAllocationHandle value, size_t offset, CUmemGenericAllocationHandle memory,
                           size_t from, size_t bytes, unsigned long long flags)
{
    SIM_CALL("%llx %zu %llx %zu", value, offset, memory, bytes);
    return from != 0 || flags != 0 ? CUDA_ERROR_INVALID_VALUE : bind_memory(value, offset, memory, bytes);
}

SIM_API cuMulticastBindMem_v2(CUmemGenericAllocationHandle value, CUdevice device, size_t offset,
                              CUmemGenericAllocationHandle memory, size_t from, size_t bytes, unsigned long long flags)
{
    SIM_CALL("%llx %d %zu %llx %zu", value, device, offset, memory, bytes);
    return from != 0 || flags != 0 ? CUDA_ERROR_INVALID_VALUE : bind_memory(value, offset, memory, bytes);
}

SIM_API cuMulticastBindAddr(CUmemGenericAllocationHandle value, size_t offset, CUdeviceptr address, size_t bytes,
                            unsigned long long flags)
{
    SIM_CALL("%llx %zu %llx %zu", value, offset, address, bytes);
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : bind_address(value, offset, address, bytes);
}

SIM_API cuMulticastBindAddr_v2(CUmemGenericAllocationHandle value, CUdevice device, size_t offset, CUdeviceptr address,
                               size_t bytes, unsigned long long flags)
{
    SIM_CALL("%llx %d %zu %llx %zu", value, device, offset, address, bytes);
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : bind_address(value, offset, address, bytes);
}

SIM_API cuMulticastUnbind(CUmemGenericAllocationHandle value, CUdevice device, size_t offset, size_t bytes)
{
    SIM_CALL("%llx %d %zu %zu", value, device, offset, bytes);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    struct object *object = &objects[value & 0xff & 63];
    for (int i = 0; sim_is_multicast(value) && i < MOST_BINDINGS; i++) {
        struct binding *binding = &object->binding[i];
        if (binding->memory == 0 || binding->device != device || binding->offset != offset || binding->bytes != bytes)
            continue;
        sim_vmm_hold(binding->memory, -1);
        binding->memory = 0;
        result = CUDA_SUCCESS;
    }
    sim_unlock();
    return result;
}
