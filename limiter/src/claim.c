/* DESIGN
 *
 * The road of every allocation that is charged by itself: claim (charge the share, reserve a record) - driver - finish
 * (record, or give back). A claim that goes past the limit answers CUDA_ERROR_OUT_OF_MEMORY without calling the driver,
 * and the caller's variables stay as they were. A call without a context, or one that its hook holds for unsound, is
 * not claimed: the driver states the error. Should the driver accept it, it is charged after the fact or undone, so
 * nothing stays uncounted.
 *
 * A driver that has no memory though the limit has is asked again where there may be room soon (physical.c), and where the
 * share may spill and the caller will do with it, the claim becomes one of host memory: is_spilled, and the hook allocates
 * that.
 *
 * Frees go the other way round: the record is taken out before the driver is asked, as the driver may hand the same
 * pointer to another thread before we are back, and the charge is given back after it.
 */
#include "claim.h"

#include "hidden.h"
#include "hints.h"
#include "hook_ipc.h"
#include "hook_pool.h"
#include "physical.h"

/* What pools hold without need and what the dead held comes back before anyone is refused; host memory, where that will
 * do, before the last try is a refusal. */
LIM_COLD static bool take_at_the_limit(struct lim_claim *claim, uint32_t device, uint64_t granules)
{
    lim_relieve_pools(claim->process);
    if (claim->may_spill && lim_spill_limit(claim->process->region, device) > 0) {
        lim_reap_now(claim->process);
        if (lim_take(claim->process, device, granules, 1)) {
            return true;
        }
        claim->is_spilled = lim_take_spilled(claim->process, device, granules, 1);
        if (claim->is_spilled) {
            return true;
        }
    }
    return lim_take_or_refuse(claim->process, device, granules, 1);
}

static CUresult charge(struct lim_claim *claim, uint64_t granules)
{
    uint32_t device = (uint32_t)claim->site.device;
    if (claim->site.device == LIM_UNLISTED_DEVICE) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!lim_take(claim->process, device, granules, 1) && !take_at_the_limit(claim, device, granules)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    claim->granules = granules;
    claim->charged = true;
    return CUDA_SUCCESS;
}

static CUresult begin(struct lim_claim *claim, bool is_sound, uint64_t granules, bool may_spill)
{
    *claim = (struct lim_claim){.process = lim_process(), .may_spill = may_spill};
    if (claim->process == NULL) {
        return LIM_DENIED;
    }
    if (!is_sound) {
        return CUDA_SUCCESS;
    }
    if (!LIM_USUAL(!lim_is_dirty(claim->process, LIM_HIDDEN_DIRTY))) {
        lim_hidden_catch_up(claim->process);
    }
    claim->site = lim_current_site(claim->process);
    return claim->site.device == LIM_NO_DEVICE ? CUDA_SUCCESS : charge(claim, granules);
}

CUresult lim_claim_begin(struct lim_claim *claim, bool is_sound, uint64_t granules)
{
    return begin(claim, is_sound, granules, false);
}

CUresult lim_claim_begin_spillable(struct lim_claim *claim, bool is_sound, uint64_t granules)
{
    return begin(claim, is_sound, granules, true);
}

bool lim_claim_again(struct lim_claim *claim, struct lim_patience *patience)
{
    uint32_t device = (uint32_t)claim->site.device;
    if (!claim->charged || claim->is_spilled) {
        return false; /* the driver refuses by itself: so does host memory */
    }
    if (lim_room_again(claim->process, device, claim->granules, patience)) {
        return true;
    }
    claim->is_spilled = claim->may_spill && lim_note_spilled(claim->process, device, claim->granules);
    if (!claim->is_spilled) {
        lim_note_full(claim->process, device);
    }
    return claim->is_spilled;
}

LIM_COLD static void drop_claim(struct lim_claim *claim)
{
    if (claim->charged) {
        lim_lock(claim->process);
        lim_ledger_unreserve(&claim->process->ledger, 1);
        if (claim->is_spilled) {
            lim_unspill_locked(claim->process, (uint32_t)claim->site.device, claim->granules);
        }
        lim_give_locked(claim->process, (uint32_t)claim->site.device, claim->granules);
        lim_unlock(claim->process);
    }
}

/* Corrects a claim to what the driver really took, if that is another size. False: it is past the limit. */
LIM_COLD static bool correct_claim(struct lim_claim *claim, uint64_t granules)
{
    uint32_t device = (uint32_t)claim->site.device;
    if (granules > claim->granules && !lim_take_or_refuse(claim->process, device, granules - claim->granules, 0)) {
        return false;
    }
    if (granules < claim->granules) {
        lim_give(claim->process, device, claim->granules - granules);
    }
    claim->granules = granules;
    return true;
}

/* The driver accepted a call that was not claimed. */
LIM_COLD static bool claim_late(struct lim_claim *claim, uint64_t granules)
{
    claim->site = lim_current_site(claim->process);
    claim->may_spill = false; /* it is on the device already */
    return claim->site.device >= 0 && charge(claim, granules) == CUDA_SUCCESS;
}

/* Makes the claim fit what the driver made; false if that is past the limit. */
static bool fit_claim(struct lim_claim *claim, uint64_t granules)
{
    if (LIM_USUAL(claim->charged && claim->granules == granules)) {
        return true;
    }
    return claim->charged ? correct_claim(claim, granules) : claim_late(claim, granules);
}

LIM_COLD static CUresult undo(struct lim_claim *claim, const struct lim_made *made)
{
    made->undo(made->key);
    drop_claim(claim);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* After a driver call that succeeded: records what it made, or undoes it and answers out of memory. */
static CUresult keep(struct lim_claim *claim, const struct lim_made *made)
{
    if (!fit_claim(claim, made->granules)) {
        return undo(claim, made);
    }
    struct record record = {.key = made->key,
                            .context = (uint64_t)(uintptr_t)claim->site.context,
                            .granules = made->granules,
                            .class = (uint8_t)made->class,
                            .device = (uint8_t)claim->site.device};
    lim_record(claim->process, &record);
    return CUDA_SUCCESS;
}

CUresult lim_claim_finish(struct lim_claim *claim, CUresult result, const struct lim_made *made)
{
    if (result != CUDA_SUCCESS || made == NULL) {
        drop_claim(claim);
        return result;
    }
    return keep(claim, made);
}

bool lim_pays_itself(const struct record *record)
{
    switch (record->class) {
    case RECORD_LINEAR:
    case RECORD_MANAGED:
    case RECORD_SPILLED:
    case RECORD_EXTERNAL:
    case RECORD_ARRAY: return true;
    case RECORD_ASYNC: return record->link == 0; /* its pool is destroyed */
    default: return false;
    }
}

void lim_repay_locked(struct lim_process *process, const struct record *record)
{
    lim_give_locked(process, record->device, record->granules);
    if (!LIM_USUAL(record->class != RECORD_SPILLED)) {
        lim_unspill_locked(process, record->device, record->granules);
    }
}

struct record lim_withdraw(struct lim_process *process, uint64_t key, enum record_class class)
{
    struct record taken = {.class = RECORD_NONE};
    lim_lock(process);
    struct record *record = lim_ledger_find(&process->ledger, key, class);
    if (record != NULL) {
        taken = *record;
        lim_ledger_remove(&process->ledger, record);
        lim_ledger_reserve(&process->ledger, 1); /* the room just left: cannot fail */
    }
    lim_unlock(process);
    return taken;
}

void lim_record(struct lim_process *process, const struct record *record)
{
    struct record old = {.class = RECORD_NONE};
    lim_lock(process);
    lim_ledger_insert(&process->ledger, record, &old);
    if (lim_pays_itself(&old)) {
        lim_repay_locked(process, &old);
    }
    lim_unlock(process);
}

void lim_restore(struct lim_process *process, const struct record *record)
{
    if (record->class != RECORD_NONE) {
        lim_record(process, record);
    }
}

void lim_release(struct lim_process *process, const struct record *record)
{
    if (record->class == RECORD_NONE) {
        return;
    }
    lim_lock(process);
    lim_ledger_unreserve(&process->ledger, 1);
    bool pays_itself = lim_pays_itself(record);
    if (pays_itself) {
        lim_repay_locked(process, record);
    }
    lim_unlock(process);
    if (!LIM_USUAL(record->mark == 0)) {
        lim_export_freed(process, record->key);
    }
    if (!pays_itself) {
        lim_pool_block_freed(process, record);
    }
}
