/* DESIGN
 *
 * Memory that belongs to somebody else. cuIpcOpenMemHandle maps what another process allocated: within the share
 * that one is charged, and exports.c sees to it that somebody is when it dies first. A handle that the share does
 * not know comes from outside; so does external memory (Vulkan and others), which is imported whole. That is charged
 * to who imports it only if the share's policy says so (TESSERA_CHARGE_IMPORTS): the owner's share has it on its
 * books already, if there is one.
 *
 * An address that was opened is not ours to give back in cuMemFree: it has a record of another class.
 *
 * Source: CUDA driver API, cuIpcOpenMemHandle: opening the same handle again gives the same address, and each
 * opening has to be closed.
 */
#include "hook_ipc.h"

#include "account.h"
#include "claim.h"
#include "exports.h"

static bool charges_imports(const struct lim_process *process)
{
    return (__atomic_load_n(&process->region->control.policy, __ATOMIC_RELAXED) & TESSERA_CHARGE_IMPORTS) != 0;
}

/* -- handing out ------------------------------------------------------------------------------------------------ */

LIM_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
    struct lim_process *process = lim_attached();
    CUdeviceptr base = 0;
    CUresult result = CALL(cuIpcGetMemHandle, handle, pointer);
    if (process == NULL || result != CUDA_SUCCESS ||
        CALL(cuMemGetAddressRange_v2, &base, NULL, pointer) != CUDA_SUCCESS) {
        return result;
    }
    uint64_t tag = lim_export_tag(handle, sizeof *handle);
    struct record given = {.key = base, .link = tag, .class = RECORD_EXPORT};
    lim_lock(process);
    struct record *held = lim_ledger_find(&process->ledger, base, RECORD_LINEAR);
    if (held != NULL && lim_ledger_reserve(&process->ledger, 1)) {
        held = lim_ledger_find(&process->ledger, base, RECORD_LINEAR); /* the table may have moved */
        held->mark = 1;
        given.granules = held->granules;
        given.device = held->device;
        lim_ledger_insert(&process->ledger, &given, NULL);
    }
    lim_unlock(process);
    if (given.granules > 0) {
        lim_export_note(process, tag, given.device, given.granules);
    }
    return result;
}

void lim_export_freed(struct lim_process *process, uint64_t pointer)
{
    struct record given = lim_withdraw(process, pointer, RECORD_EXPORT);
    if (given.class != RECORD_NONE) {
        lim_lock(process);
        lim_ledger_unreserve(&process->ledger, 1);
        lim_unlock(process);
        lim_export_forget(process, given.link);
    }
}

/* -- opening ---------------------------------------------------------------------------------------------------- */

/* What opening costs the caller, worked out before it is written down. */
struct cost {
    uint64_t granules;
    uint32_t device;
    bool is_mine; /* the caller pays */
};

/* Pays for memory that is there already. False: the policy makes the caller pay, and it is past the limit. */
static bool pay(struct lim_process *process, uint64_t tag, CUdeviceptr pointer, struct cost *cost)
{
    struct lim_holder holder;
    size_t bytes = 0;
    if (lim_export_find(process->region, tag, &holder)) {
        *cost = (struct cost){holder.granules, holder.device, lim_export_adopt(process, tag)};
        if (cost->is_mine) {
            lim_lock(process);
            lim_force_locked(process, cost->device, cost->granules);
            lim_unlock(process);
        }
        return true;
    }
    int device = lim_current_site(process).device;
    *cost = (struct cost){0, (uint32_t)(device < 0 ? 0 : device), false};
    if (!charges_imports(process) || CALL(cuMemGetAddressRange_v2, NULL, &bytes, pointer) != CUDA_SUCCESS) {
        return true;
    }
    cost->granules = lim_granules(bytes);
    cost->is_mine = device >= 0 && lim_take_or_refuse(process, cost->device, cost->granules, 0);
    return cost->is_mine;
}

/* One more opening of an address that is known; false if it is not. */
static bool open_again(struct lim_process *process, CUdeviceptr pointer)
{
    lim_lock(process);
    struct record *known = lim_ledger_find(&process->ledger, pointer, RECORD_IMPORT);
    if (known != NULL) {
        known->openings++;
    }
    lim_unlock(process);
    return known != NULL;
}

static CUresult opened(CUresult result, CUdeviceptr *out, CUdeviceptr pointer, const CUipcMemHandle *handle)
{
    struct lim_process *process = lim_process();
    struct cost cost;
    if (result != CUDA_SUCCESS || out == NULL) {
        return result;
    }
    uint64_t tag = lim_export_tag(handle, sizeof *handle);
    if (!open_again(process, pointer)) {
        lim_lock(process);
        bool has_room = lim_ledger_reserve(&process->ledger, 1);
        lim_unlock(process);
        if (!has_room || !pay(process, tag, pointer, &cost)) {
            CALL(cuIpcCloseMemHandle, pointer);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        struct record record = {.key = pointer,
                                .link = tag,
                                .granules = cost.granules,
                                .class = RECORD_IMPORT,
                                .device = (uint8_t)cost.device,
                                .mark = cost.is_mine};
        lim_lock(process);
        lim_ledger_insert(&process->ledger, &record, NULL)->openings = 1;
        process->imports++;
        lim_unlock(process);
    }
    *out = pointer;
    return CUDA_SUCCESS;
}

LIM_EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags)
{
    CUdeviceptr pointer = 0;
    if (lim_process() == NULL) {
        return LIM_DENIED;
    }
    CUresult result = CALL(cuIpcOpenMemHandle, out == NULL ? NULL : &pointer, handle, flags);
    return opened(result, out, pointer, &handle);
}

LIM_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags)
{
    CUdeviceptr pointer = 0;
    if (lim_process() == NULL) {
        return LIM_DENIED;
    }
    CUresult result = CALL(cuIpcOpenMemHandle_v2, out == NULL ? NULL : &pointer, handle, flags);
    return opened(result, out, pointer, &handle);
}

/* One opening less, before the driver gives the address to somebody else. class NONE unless it was the last. */
static struct record withdraw_last(struct lim_process *process, CUdeviceptr pointer)
{
    struct record none = {.class = RECORD_NONE};
    bool is_last = false;
    lim_lock(process);
    struct record *known = lim_ledger_find(&process->ledger, pointer, RECORD_IMPORT);
    if (known != NULL) {
        is_last = --known->openings == 0;
    }
    lim_unlock(process);
    return is_last ? lim_withdraw(process, pointer, RECORD_IMPORT) : none;
}

static void give_back(struct lim_process *process, const struct record *record)
{
    lim_lock(process);
    lim_ledger_unreserve(&process->ledger, 1);
    process->imports--;
    if (record->mark != 0) {
        lim_give_locked(process, record->device, record->granules);
    }
    lim_unlock(process);
    if (record->mark != 0) {
        lim_export_abandon(process, record->link);
    }
}

LIM_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    struct lim_process *process = lim_attached();
    if (process == NULL) {
        return CALL(cuIpcCloseMemHandle, pointer);
    }
    struct record record = withdraw_last(process, pointer);
    CUresult result = CALL(cuIpcCloseMemHandle, pointer);
    if (record.class != RECORD_NONE && result == CUDA_SUCCESS) {
        give_back(process, &record);
    } else if (record.class != RECORD_NONE) {
        record.openings = 1;
        lim_restore(process, &record);
    }
    return result;
}

/* The next opened memory that the caller does not pay for, behind `at`. Lock held. */
static struct record *next_unpaid(struct lim_process *process, size_t *at)
{
    struct record *record;
    while ((record = lim_ledger_from(&process->ledger, *at)) != NULL) {
        *at = (size_t)(record - process->ledger.records) + 1u;
        if (record->class == RECORD_IMPORT && record->mark == 0) {
            return record;
        }
    }
    return NULL;
}

void lim_adopt_orphans(struct lim_process *process)
{
    struct record *record;
    size_t at = 0;
    if (__atomic_load_n(&process->imports, __ATOMIC_RELAXED) == 0) {
        return;
    }
    lim_lock(process);
    while ((record = next_unpaid(process, &at)) != NULL) {
        if (record->granules > 0 && lim_export_adopt(process, record->link)) {
            record->mark = 1;
            lim_force_locked(process, record->device, record->granules);
        }
    }
    lim_unlock(process);
}

/* -- external memory -------------------------------------------------------------------------------------------- */

LIM_EXPORT CUresult cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
    struct lim_process *process = lim_process();
    CUexternalMemory memory = NULL;
    if (process == NULL) {
        return LIM_DENIED;
    }
    int device = lim_current_site(process).device;
    bool is_charged = out != NULL && desc != NULL && desc->size != 0 && device >= 0 && charges_imports(process);
    uint64_t granules = is_charged ? lim_granules(desc->size) : 0;
    if (is_charged && !lim_take_or_refuse(process, (uint32_t)device, granules, 1)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = CALL(cuImportExternalMemory, out == NULL ? NULL : &memory, desc);
    if (result == CUDA_SUCCESS && is_charged) {
        struct record record = {.key = (uint64_t)(uintptr_t)memory,
                                .granules = granules,
                                .class = RECORD_EXTERNAL,
                                .device = (uint8_t)device};
        lim_record(process, &record);
    } else if (is_charged) {
        lim_lock(process);
        lim_ledger_unreserve(&process->ledger, 1);
        lim_give_locked(process, (uint32_t)device, granules);
        lim_unlock(process);
    }
    if (result == CUDA_SUCCESS && out != NULL) {
        *out = memory;
    }
    return result;
}

LIM_EXPORT CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
    struct lim_process *process = lim_attached();
    struct record record = {.class = RECORD_NONE};
    if (process != NULL) {
        record = lim_withdraw(process, (uint64_t)(uintptr_t)memory, RECORD_EXTERNAL);
    }
    CUresult result = CALL(cuDestroyExternalMemory, memory);
    if (process != NULL && result == CUDA_SUCCESS) {
        lim_release(process, &record);
    } else if (process != NULL) {
        lim_restore(process, &record);
    }
    return result;
}
