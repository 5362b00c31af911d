/* DESIGN
 *
 * Virtual memory management: physical handles, reserved address ranges, and maps between them.
 * Physical memory lives while a handle reference or a map lives, whichever ends last; it is
 * charged once, at cuMemCreate, to the device that the properties name (host locations: nothing).
 *
 * A handle value is (generation << 32 | index + 1), so any integer can be checked safely. A range
 * keeps one entry per 2 MiB; the first entry of a map holds its length, so that unmap can insist
 * on whole maps.
 *
 * Source: CUDA driver API, Virtual Memory Management (offset must be zero; retain returns the
 * handle value used to map; granularity 2 MiB as on current cards).
 */
#include "sim.h"

#include <stdlib.h>

static const uint64_t GRANULE = 2 * SIM_MIB;

struct sim_granule {
    uint32_t handle; /* index + 1; 0: not mapped */
    uint32_t length; /* granules in the map; first one only */
    uint32_t access; /* CUmemAccess_flags for the card of the handle or the last one named */
};

static struct handle {
    uint32_t generation;
    uint32_t references;
    uint32_t maps;
    uint32_t charge; /* 0 for host memory */
    uint32_t next_free;
    bool used;
    uint64_t bytes;
    CUmemAllocationProp prop;
} *handles;

static uint32_t handle_count, handle_room, free_head;

void sim_handles_forget(void)
{
    free(handles);
    handles = NULL;
    handle_count = handle_room = free_head = 0;
}

static bool is_granular(uint64_t bytes)
{
    return bytes % GRANULE == 0;
}

/* -- handles ------------------------------------------------------------------------------ */

static struct handle *find(CUmemGenericAllocationHandle value)
{
    uint32_t index = (uint32_t)value - 1;
    if (index >= handle_count) return NULL;
    struct handle *handle = &handles[index];
    return handle->used && handle->references != 0 && handle->generation == value >> 32 ? handle : NULL;
}

static CUmemGenericAllocationHandle value_of(const struct handle *handle)
{
    return (uint64_t)handle->generation << 32 | (uint64_t)(handle - handles + 1);
}

static struct handle *new_handle(void)
{
    if (free_head != 0) {
        struct handle *handle = &handles[free_head - 1];
        free_head = handle->next_free;
        return handle;
    }
    if (handle_count == handle_room) {
        uint32_t room = handle_room == 0 ? 256 : handle_room * 2;
        struct handle *more = realloc(handles, room * sizeof *more);
        if (more == NULL) return NULL;
        handles = more;
        handle_room = room;
    }
    handles[handle_count].generation = 0;
    return &handles[handle_count++];
}

static void recycle(struct handle *handle)
{
    handle->used = false;
    handle->next_free = free_head;
    free_head = (uint32_t)(handle - handles) + 1;
}

static void let_go(struct handle *handle)
{
    if (handle->references != 0 || handle->maps != 0) return;
    if (handle->charge != 0) sim_give(handle->charge);
    recycle(handle);
}

/* The row that properties name, -1 for host memory; an error for nonsense. */
static CUresult place(const CUmemAllocationProp *prop, int *row)
{
    if (prop == NULL || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    CUdevice device = prop->location.id;
    switch (prop->location.type) {
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: *row = -1; return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
        device = prop->location.localized.deviceId;
        break;
    case CU_MEM_LOCATION_TYPE_DEVICE: break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *row = sim_visible[device];
    return CUDA_SUCCESS;
}

/* Called with the lock held. */
static CUresult create(CUmemGenericAllocationHandle *out, uint64_t bytes, const CUmemAllocationProp *prop, int row)
{
    struct handle *handle = new_handle();
    if (handle == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    handle->charge = row < 0 ? 0 : sim_take(row, bytes, SIM_VMM);
    if (row >= 0 && handle->charge == 0) {
        recycle(handle);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    handle->generation++;
    handle->references = 1;
    handle->maps = 0;
    handle->used = true;
    handle->bytes = bytes;
    handle->prop = *prop;
    *out = value_of(handle);
    return CUDA_SUCCESS;
}

SIM_API cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *prop,
                    unsigned long long flags)
{
    SIM_CALL("%zu %d %d", bytes, prop == NULL ? -1 : (int)prop->location.type,
             prop == NULL ? -1 : prop->location.id);
    int row;
    if (out == NULL || bytes == 0 || !is_granular(bytes) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = place(prop, &row);
    if (result != CUDA_SUCCESS) return result;
    sim_lock();
    result = create(out, bytes, prop, row);
    sim_unlock();
    return result;
}

SIM_API cuMemRelease(CUmemGenericAllocationHandle value)
{
    SIM_CALL("%llx", value);
    sim_lock();
    bool multicast = sim_is_multicast(value);
    struct handle *handle = multicast ? NULL : find(value);
    if (multicast) sim_multicast_release(value);
    if (handle != NULL) {
        handle->references--;
        let_go(handle);
    }
    sim_unlock();
    return handle == NULL && !multicast ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIM_API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle value)
{
    SIM_CALL("%llx", value);
    sim_lock();
    struct handle *handle = find(value);
    if (handle != NULL && prop != NULL) *prop = handle->prop;
    sim_unlock();
    return handle == NULL || prop == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIM_API cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                      CUmemAllocationGranularity_flags option)
{
    SIM_CALL("%d", (int)option);
    int row;
    if (granularity == NULL || (unsigned)option > 1) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = place(prop, &row);
    if (result == CUDA_SUCCESS) *granularity = GRANULE;
    return result;
}

/* -- ranges ------------------------------------------------------------------------------- */

SIM_API cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr hint,
                            unsigned long long flags)
{
    SIM_CALL("%zu %zu %llx", bytes, alignment, hint);
    if (out == NULL || bytes == 0 || !is_granular(bytes) || flags != 0 || (alignment & (alignment - 1)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_granule *granules = calloc(bytes / GRANULE, sizeof *granules);
    if (granules == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    sim_lock();
    struct sim_block *block = sim_block_new(bytes, alignment > GRANULE ? alignment : GRANULE, SIM_BLOCK_RANGE);
    if (block != NULL) block->granules = granules;
    sim_unlock();
    if (block == NULL) free(granules);
    if (block != NULL) *out = block->base;
    return block == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* The range that wholly covers [address, address + bytes) on granule borders, else NULL. */
static struct sim_block *range_of(CUdeviceptr address, uint64_t bytes)
{
    struct sim_block *block = sim_block_find(address);
    if (block == NULL || block->kind != SIM_BLOCK_RANGE || bytes == 0) return NULL;
    if (!is_granular(address) || !is_granular(bytes)) return NULL;
    return bytes <= block->bytes - (address - block->base) ? block : NULL;
}

static struct sim_granule *granule_at(const struct sim_block *range, CUdeviceptr address)
{
    return &range->granules[(address - range->base) / GRANULE];
}

/* How many of the next `count` granules are mapped. */
static uint64_t mapped(const struct sim_granule *granule, uint64_t count)
{
    uint64_t found = 0;
    for (uint64_t i = 0; i < count; i++) found += granule[i].handle != 0;
    return found;
}

bool sim_range_is_mapped(const struct sim_block *range, CUdeviceptr address, uint64_t bytes)
{
    uint64_t last = (address + bytes - 1 - range->base) / GRANULE;
    for (uint64_t i = (address - range->base) / GRANULE; i <= last; i++)
        if (range->granules[i].handle == 0 || range->granules[i].access == 0) return false;
    return true;
}

SIM_API cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    SIM_CALL("%llx %zu", address, bytes);
    sim_lock();
    struct sim_block *range = range_of(address, bytes);
    bool whole = range != NULL && range->base == address && range->bytes == bytes &&
                 mapped(range->granules, bytes / GRANULE) == 0;
    if (whole) {
        free(range->granules);
        sim_block_drop(range);
    }
    sim_unlock();
    return whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* -- maps --------------------------------------------------------------------------------- */

/* Called with the lock held. */
static CUresult map(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle value)
{
    struct sim_block *range = range_of(address, bytes);
    struct handle *handle = find(value);
    uint64_t count = bytes / GRANULE;
    if (range == NULL || handle == NULL || bytes > handle->bytes) return CUDA_ERROR_INVALID_VALUE;
    struct sim_granule *granule = granule_at(range, address);
    if (mapped(granule, count) != 0) return CUDA_ERROR_INVALID_VALUE;
    for (uint64_t i = 0; i < count; i++)
        granule[i] = (struct sim_granule){.handle = (uint32_t)(handle - handles) + 1};
    granule[0].length = (uint32_t)count;
    handle->maps++;
    return CUDA_SUCCESS;
}

SIM_API cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle value,
                 unsigned long long flags)
{
    SIM_CALL("%llx %zu %zu %llx", address, bytes, offset, value);
    if (offset != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    CUresult result = map(address, bytes, value);
    sim_unlock();
    return result;
}

/* Do the granules begin and end with whole maps, without holes? */
static bool is_whole(const struct sim_granule *granule, uint64_t count)
{
    uint64_t at = 0;
    while (at < count) {
        if (granule[at].handle == 0 || granule[at].length == 0) return false;
        at += granule[at].length;
    }
    return at == count;
}

static void unmap_one(struct sim_granule *granule)
{
    struct handle *handle = &handles[granule->handle - 1];
    uint32_t length = granule->length;
    for (uint32_t i = 0; i < length; i++) granule[i] = (struct sim_granule){0};
    handle->maps--;
    let_go(handle);
}

SIM_API cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    SIM_CALL("%llx %zu", address, bytes);
    sim_lock();
    struct sim_block *range = range_of(address, bytes);
    bool whole = range != NULL && is_whole(granule_at(range, address), bytes / GRANULE);
    for (uint64_t at = 0; whole && at < bytes / GRANULE;) {
        struct sim_granule *granule = granule_at(range, address) + at;
        at += granule->length;
        unmap_one(granule);
    }
    sim_unlock();
    return whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
    SIM_CALL("%p", address);
    if (out == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)address;
    sim_lock();
    const struct sim_block *block = sim_block_find(at);
    uint32_t index = block != NULL && block->kind == SIM_BLOCK_RANGE ? granule_at(block, at)->handle : 0;
    if (index != 0) {
        handles[index - 1].references++;
        *out = value_of(&handles[index - 1]);
    }
    sim_unlock();
    return index == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* -- for multicast objects ----------------------------------------------------------------- */

void sim_vmm_hold(CUmemGenericAllocationHandle value, int by)
{
    struct handle *handle = &handles[(uint32_t)value - 1];
    handle->maps += (uint32_t)by;
    let_go(handle);
}

bool sim_vmm_device(CUmemGenericAllocationHandle value, CUdevice *device)
{
    const struct handle *handle = find(value);
    if (handle == NULL || handle->prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return false;
    *device = handle->prop.location.id;
    return true;
}

CUmemGenericAllocationHandle sim_vmm_at(CUdeviceptr address)
{
    const struct sim_block *block = sim_block_find(address);
    uint32_t index = block != NULL && block->kind == SIM_BLOCK_RANGE ? granule_at(block, address)->handle : 0;
    return index == 0 ? 0 : value_of(&handles[index - 1]);
}

/* -- access ------------------------------------------------------------------------------- */

static bool is_accessor(const CUmemLocation *location)
{
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) return sim_is_device(location->id);
    return location->type >= CU_MEM_LOCATION_TYPE_HOST && location->type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

SIM_API cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc, size_t count)
{
    SIM_CALL("%llx %zu %zu", address, bytes, count);
    if (desc == NULL || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!is_accessor(&desc[i].location)) return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    struct sim_block *range = range_of(address, bytes);
    bool whole = range != NULL && mapped(granule_at(range, address), bytes / GRANULE) == bytes / GRANULE;
    for (uint64_t i = 0; whole && i < bytes / GRANULE; i++)
        granule_at(range, address)[i].access = (uint32_t)desc[count - 1].flags;
    sim_unlock();
    return whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address)
{
    SIM_CALL("%llx", address);
    if (flags == NULL || location == NULL || !is_accessor(location)) return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    const struct sim_block *block = sim_block_find(address);
    bool known = block != NULL && block->kind == SIM_BLOCK_RANGE && granule_at(block, address)->handle != 0;
    if (known) *flags = granule_at(block, address)->access;
    sim_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
