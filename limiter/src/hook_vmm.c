/* DESIGN
 *
 * Virtual memory management: cuMemCreate makes physical memory, cuMemMap puts it at an address. The memory lives while
 * a handle or a mapping refers to it, and the usual pattern is create, map, release at once; so the charge belongs to
 * the allocation and ends when both counts are zero.
 *
 * Three kinds of record: the allocation (our own number, charge, counts), each handle value (how often it was given),
 * each mapping (address, size). Handle and allocation are apart because cuMemRetainAllocationHandle may answer
 * another value for the same memory.
 *
 * The device is the one in the properties, not the current one. Locations that are not a device we could charge (host
 * memory, numbers that the driver does not know) go to the driver unclaimed: host memory is none of ours, and errors
 * are the driver's. Imported memory is charged to the process that exported it.
 *
 * Handle values are the driver's choice, so a released one is taken out of the ledger before the call (another thread
 * may get the same value at once). Addresses are the program's choice; mappings are taken out after.
 *
 * A multicast object costs nothing and is followed like an allocation without memory. What is bound to it stays alive as
 * if it were mapped, until it is unbound or the object ends.
 *
 * Not covered: memory that only an exported descriptor keeps alive after our counts are zero is not charged any more.
 */
#include "account.h"
#include "atomics.h"
#include "driver.h"
#include "hook_pool.h"
#include "physical.h"

/* The figure for the agent: how much of the slot's memory cuMemCreate took. Lock held. */
static void show_vmm_memory(struct lim_process *process, uint32_t device, uint64_t change)
{
    uint64_t *shown = &process->region->slot[process->slot].device[device].vmm_granules;
    word_store(shown, word_load(shown) + change);
}

/* One more reference by `handle` to an allocation. Lock held; one record reserved, used or given back. */
static void refer(struct lim_process *process, uint64_t handle, struct record *allocation)
{
    struct record *known = lim_ledger_find(&process->ledger, handle, RECORD_HANDLE);
    allocation->refs++;
    /* The driver may answer a known value for one more reference: it then has to be released as often. */
    if (known != NULL && known->link == allocation->key) {
        known->uses++;
        lim_ledger_unreserve(&process->ledger, 1);
        return;
    }
    struct record record = {.key = handle, .link = allocation->key, .uses = 1, .class = RECORD_HANDLE};
    lim_ledger_insert(&process->ledger, &record, NULL); /* may move records: `allocation` is not used after this */
}

static void unbind_all(struct lim_process *process, uint64_t object);

/* Ends an allocation that nothing refers to. Lock held. */
static void collect(struct lim_process *process, uint64_t number)
{
    struct record *allocation = lim_ledger_find(&process->ledger, number, RECORD_ALLOCATION);
    if (allocation == NULL || allocation->refs > 0 || allocation->maps > 0) {
        return;
    }
    struct record ended = *allocation; /* a copy: removal moves other records into its place */
    lim_ledger_remove(&process->ledger, allocation);
    if (ended.granules > 0) {
        lim_give_locked(process, ended.device, ended.granules);
        show_vmm_memory(process, ended.device, 0 - ended.granules);
    } else if (process->bindings > 0) {
        unbind_all(process, number);
    }
}

/* One reference less to an allocation that was mapped or bound. Lock held. */
static void let_go(struct lim_process *process, uint64_t number)
{
    struct record *allocation = lim_ledger_find(&process->ledger, number, RECORD_ALLOCATION);
    if (allocation != NULL && allocation->maps > 0) {
        allocation->maps--;
        collect(process, number);
    }
}

/* The end of a multicast object unbinds what is bound to it. Lock held. */
static void unbind_all(struct lim_process *process, uint64_t object)
{
    struct record *record;
    for (size_t at = 0; (record = lim_ledger_from(&process->ledger, at)) != NULL;) {
        at = (size_t)(record - process->ledger.records);
        if (record->class != RECORD_BINDING || record->owner != object) {
            at++;
            continue;
        }
        uint64_t number = record->link;
        lim_ledger_remove(&process->ledger, record);
        process->bindings--;
        let_go(process, number);
        at = 0; /* records moved: look through all again, as this is rare */
    }
}

/* Writes down a new allocation with its first handle. Two records reserved. */
static void record_allocation(struct lim_process *process, uint64_t handle, int device, uint64_t granules)
{
    lim_lock(process);
    struct record record = {.key = ++process->next_allocation,
                            .granules = granules,
                            .class = RECORD_ALLOCATION,
                            .device = (uint8_t)(device < 0 ? 0 : device)};
    if (granules > 0) {
        show_vmm_memory(process, record.device, granules);
    }
    refer(process, handle, lim_ledger_insert(&process->ledger, &record, NULL));
    lim_unlock(process);
}

static bool reserve_records(struct lim_process *process, size_t count)
{
    lim_lock(process);
    bool reserved = lim_ledger_reserve(&process->ledger, count);
    lim_unlock(process);
    return reserved;
}

static void drop_records(struct lim_process *process, size_t count)
{
    lim_lock(process);
    lim_ledger_unreserve(&process->ledger, count);
    lim_unlock(process);
}

/* True if the driver would refuse the size, so that its error comes before our refusal. */
static bool is_odd_size(size_t size, const CUmemAllocationProp *prop)
{
    size_t granularity = 0;
    CUresult result = CALL(cuMemGetAllocationGranularity, &granularity, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    return result != CUDA_SUCCESS || size == 0 || (granularity != 0 && size % granularity != 0);
}

/* Lets the driver state what is wrong with a call that we could not afford anyway. */
static CUresult ask_for_error(size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
    CUmemGenericAllocationHandle made = 0;
    CUresult result = CALL(cuMemCreate, &made, size, prop, flags);
    if (result == CUDA_SUCCESS) {
        CALL(cuMemRelease, made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

static bool claim(struct lim_process *process, int device, uint64_t granules)
{
    if (device == LIM_UNLISTED_DEVICE) {
        return false;
    }
    if (lim_take(process, (uint32_t)device, granules, 2)) {
        return true;
    }
    lim_relieve_pools(process);
    return lim_take_or_refuse(process, (uint32_t)device, granules, 2);
}

/* Host memory and calls that the driver is about to refuse: no charge, but handles are followed all the same. */
static CUresult create_uncharged(struct lim_process *process, CUmemGenericAllocationHandle *handle, size_t size,
                                 const CUmemAllocationProp *prop, unsigned long long flags)
{
    if (!reserve_records(process, 2)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = CALL(cuMemCreate, handle, size, prop, flags);
    if (result == CUDA_SUCCESS) {
        record_allocation(process, *handle, LIM_NO_DEVICE, 0);
    } else {
        drop_records(process, 2);
    }
    return result;
}

LIM_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                                unsigned long long flags)
{
    struct lim_process *process = lim_process();
    if (process == NULL) {
        return LIM_DENIED;
    }
    int device = prop == NULL ? LIM_NO_DEVICE : lim_location_device(process, &prop->location);
    if (handle == NULL || device == LIM_NO_DEVICE) {
        return create_uncharged(process, handle, size, prop, flags);
    }
    uint64_t granules = lim_granules(size);
    if (!claim(process, device, granules)) {
        /* A size that the driver refuses anyway gets its own error, limit or not. */
        return is_odd_size(size, prop) ? ask_for_error(size, prop, flags) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUmemGenericAllocationHandle made = 0;
    struct lim_patience patience = {0, 0};
    CUresult result = CALL(cuMemCreate, &made, size, prop, flags);
    while (result == CUDA_ERROR_OUT_OF_MEMORY && lim_room_again(process, (uint32_t)device, granules, &patience)) {
        result = CALL(cuMemCreate, &made, size, prop, flags);
    }
    if (result != CUDA_SUCCESS) {
        if (result == CUDA_ERROR_OUT_OF_MEMORY) {
            lim_note_full(process, (uint32_t)device);
        }
        drop_records(process, 2);
        lim_give(process, (uint32_t)device, granules);
        return result;
    }
    record_allocation(process, made, device, granules);
    *handle = made;
    return CUDA_SUCCESS;
}

/* One reference of a handle value less, before the driver is asked. The allocation's number, 0 if unknown. */
static uint64_t withdraw_handle(struct lim_process *process, uint64_t handle)
{
    uint64_t number = 0;
    lim_lock(process);
    struct record *record = lim_ledger_find(&process->ledger, handle, RECORD_HANDLE);
    if (record != NULL) {
        number = record->link;
        if (--record->uses == 0) {
            lim_ledger_remove(&process->ledger, record);
        }
        lim_ledger_reserve(&process->ledger, 1); /* for its return; the table has this much room even if it must grow */
    }
    lim_unlock(process);
    return number;
}

LIM_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct lim_process *process = lim_attached();
    if (process == NULL) {
        return CALL(cuMemRelease, handle);
    }
    uint64_t number = withdraw_handle(process, handle);
    CUresult result = CALL(cuMemRelease, handle);
    if (number == 0) {
        return result;
    }
    lim_lock(process);
    struct record *allocation = lim_ledger_find(&process->ledger, number, RECORD_ALLOCATION);
    if (allocation != NULL) {
        allocation->refs--;
        if (result != CUDA_SUCCESS) {
            refer(process, handle, allocation);
        } else {
            lim_ledger_unreserve(&process->ledger, 1);
            collect(process, number);
        }
    }
    lim_unlock(process);
    return result;
}

/* The mapping that holds an address: by its start, or by looking through all. Lock held. */
static struct record *mapping_at(struct lim_process *process, uint64_t address)
{
    struct record *record = lim_ledger_find(&process->ledger, address, RECORD_MAPPING);
    for (size_t at = 0; record == NULL && (record = lim_ledger_from(&process->ledger, at)) != NULL;) {
        at = (size_t)(record - process->ledger.records) + 1u;
        if (record->class != RECORD_MAPPING || address < record->key || address - record->key >= record->size) {
            record = NULL;
        }
    }
    return record;
}

LIM_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    struct lim_process *process = lim_attached();
    if (process == NULL || !reserve_records(process, 1)) {
        return process == NULL ? CALL(cuMemRetainAllocationHandle, handle, addr) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = CALL(cuMemRetainAllocationHandle, handle, addr);
    lim_lock(process);
    struct record *mapping = result == CUDA_SUCCESS ? mapping_at(process, (uint64_t)(uintptr_t)addr) : NULL;
    struct record *allocation =
        mapping == NULL ? NULL : lim_ledger_find(&process->ledger, mapping->link, RECORD_ALLOCATION);
    if (allocation != NULL) {
        refer(process, *handle, allocation);
    } else {
        lim_ledger_unreserve(&process->ledger, 1);
    }
    lim_unlock(process);
    return result;
}

LIM_EXPORT CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                             unsigned long long flags)
{
    struct lim_process *process = lim_attached();
    if (process == NULL || !reserve_records(process, 1)) {
        return process == NULL ? CALL(cuMemMap, ptr, size, offset, handle, flags) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = CALL(cuMemMap, ptr, size, offset, handle, flags);
    lim_lock(process);
    struct record *known = result == CUDA_SUCCESS ? lim_ledger_find(&process->ledger, handle, RECORD_HANDLE) : NULL;
    struct record *allocation =
        known == NULL ? NULL : lim_ledger_find(&process->ledger, known->link, RECORD_ALLOCATION);
    if (allocation != NULL) {
        allocation->maps++;
        struct record mapping = {.key = ptr, .size = size, .link = allocation->key, .class = RECORD_MAPPING};
        lim_ledger_insert(&process->ledger, &mapping, NULL);
    } else {
        lim_ledger_unreserve(&process->ledger, 1);
    }
    lim_unlock(process);
    return result;
}

/* Takes one mapping out and ends its allocation if it was the last reference. Lock held. */
static void unmap(struct lim_process *process, struct record *mapping)
{
    uint64_t number = mapping->link;
    lim_ledger_remove(&process->ledger, mapping);
    let_go(process, number);
}

/* All mappings wholly inside the range. The driver accepts only ranges made of whole mappings, which follow each other:
 * the walk from start to start finds them without looking through the table. Lock held. */
static void unmap_range(struct lim_process *process, uint64_t from, uint64_t size)
{
    for (uint64_t at = from; at - from < size;) {
        struct record *mapping = lim_ledger_find(&process->ledger, at, RECORD_MAPPING);
        if (mapping == NULL || mapping->size == 0 || mapping->size > size - (at - from)) {
            return;
        }
        at += mapping->size;
        unmap(process, mapping);
    }
}

LIM_EXPORT CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    struct lim_process *process = lim_attached();
    /* After the driver: until it agrees the mappings stand, and nobody else is given the program's own address. */
    CUresult result = CALL(cuMemUnmap, ptr, size);
    if (process != NULL && result == CUDA_SUCCESS) {
        lim_lock(process);
        unmap_range(process, ptr, size);
        lim_unlock(process);
    }
    return result;
}

LIM_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                                   CUmemAllocationHandleType type)
{
    struct lim_process *process = lim_process();
    if (process == NULL) {
        return LIM_DENIED;
    }
    if (!reserve_records(process, 2)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = CALL(cuMemImportFromShareableHandle, handle, osHandle, type);
    if (result == CUDA_SUCCESS) {
        record_allocation(process, *handle, LIM_NO_DEVICE, 0);
    } else {
        drop_records(process, 2);
    }
    return result;
}

/* -- multicast -------------------------------------------------------------------------------------------------- */

LIM_EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop)
{
    struct lim_process *process = lim_attached();
    if (process == NULL || !reserve_records(process, 2)) {
        return process == NULL ? CALL(cuMulticastCreate, handle, prop) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = CALL(cuMulticastCreate, handle, prop);
    if (result == CUDA_SUCCESS) {
        record_allocation(process, *handle, LIM_NO_DEVICE, 0);
    } else {
        drop_records(process, 2);
    }
    return result;
}

/* A place in a multicast object: the devices' parts lie side by side, each with offsets of its own. */
static uint64_t place_of(uint64_t object, uint32_t device, uint64_t offset)
{
    return (object << 8 | device) * UINT64_C(0x9e3779b97f4a7c15) ^ offset;
}

/* The number behind a handle, 0 for none. Lock held. */
static uint64_t number_of(struct lim_process *process, uint64_t handle)
{
    struct record *known = lim_ledger_find(&process->ledger, handle, RECORD_HANDLE);
    return known == NULL ? 0 : known->link;
}

/* After the driver bound memory to an object: one more reference to it. One record reserved. */
static CUresult bound(struct lim_process *process, CUresult result, uint64_t object_handle, uint64_t offset,
                      uint64_t number)
{
    lim_lock(process);
    uint64_t object = number_of(process, object_handle);
    struct record *allocation = lim_ledger_find(&process->ledger, number, RECORD_ALLOCATION);
    if (result == CUDA_SUCCESS && object != 0 && allocation != NULL) {
        struct record record = {.key = place_of(object, allocation->device, offset),
                                .link = number,
                                .owner = object,
                                .class = RECORD_BINDING};
        allocation->maps++;
        process->bindings++;
        lim_ledger_insert(&process->ledger, &record, NULL);
    } else {
        lim_ledger_unreserve(&process->ledger, 1);
    }
    lim_unlock(process);
    return result;
}

static uint64_t number_of_handle(struct lim_process *process, uint64_t handle)
{
    lim_lock(process);
    uint64_t number = number_of(process, handle);
    lim_unlock(process);
    return number;
}

static uint64_t number_at(struct lim_process *process, uint64_t address)
{
    lim_lock(process);
    struct record *mapping = mapping_at(process, address);
    uint64_t number = mapping == NULL ? 0 : mapping->link;
    lim_unlock(process);
    return number;
}

#define BIND(name, object, offset, number, ...)                                                                       \
    do {                                                                                                              \
        struct lim_process *process = lim_attached();                                                                 \
        if (process == NULL || !reserve_records(process, 1)) {                                                        \
            return process == NULL ? CALL(name, __VA_ARGS__) : CUDA_ERROR_OUT_OF_MEMORY;                              \
        }                                                                                                             \
        CUresult result = CALL(name, __VA_ARGS__);                                                                    \
        return bound(process, result, object, offset, number);                                                        \
    } while (0)

LIM_EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t offset,
                                       CUmemGenericAllocationHandle memory, size_t from, size_t size,
                                       unsigned long long flags)
{
    BIND(cuMulticastBindMem, object, offset, number_of_handle(process, memory), object, offset, memory, from, size,
         flags);
}

LIM_EXPORT CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                                          CUmemGenericAllocationHandle memory, size_t from, size_t size,
                                          unsigned long long flags)
{
    BIND(cuMulticastBindMem_v2, object, offset, number_of_handle(process, memory), object, device, offset, memory, from,
         size, flags);
}

LIM_EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr address,
                                        size_t size, unsigned long long flags)
{
    BIND(cuMulticastBindAddr, object, offset, number_at(process, address), object, offset, address, size, flags);
}

LIM_EXPORT CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                                           CUdeviceptr address, size_t size, unsigned long long flags)
{
    BIND(cuMulticastBindAddr_v2, object, offset, number_at(process, address), object, device, offset, address, size,
         flags);
}

LIM_EXPORT CUresult cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice ordinal, size_t offset, size_t size)
{
    struct lim_process *process = lim_attached();
    CUresult result = CALL(cuMulticastUnbind, object, ordinal, offset, size);
    int device = process == NULL ? LIM_NO_DEVICE : lim_device_of(process, ordinal);
    if (result != CUDA_SUCCESS || device < 0) {
        return result;
    }
    lim_lock(process);
    uint64_t key = place_of(number_of(process, object), (uint32_t)device, offset);
    struct record *binding = lim_ledger_find(&process->ledger, key, RECORD_BINDING);
    if (binding != NULL) {
        uint64_t number = binding->link;
        lim_ledger_remove(&process->ledger, binding);
        process->bindings--;
        let_go(process, number);
    }
    lim_unlock(process);
    return result;
}
