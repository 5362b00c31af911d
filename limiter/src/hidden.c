/* DESIGN
 *
 * A context takes hundreds of MiB that no allocation asks for; code comes when a kernel is first used; heaps and
 * stacks grow by limits and launches. No call tells their size. Per process and device
 *
 *     hidden = what the driver says that the process holds (measure.c) - what its slot is charged for otherwise
 *
 * clamped at zero. Managed memory is charged in full, but its pages may be elsewhere: then the difference is a span,
 * and the charge moves only as far as it must to lie in it. It is part of the slot's charge (hidden_granules in the
 * region), so a process that dies gives it back like everything else.
 *
 * The slot is charged before the driver takes memory and given back after, so other threads that are allocating make
 * the difference too small for a moment, never too large. Measuring is slow. It is done at once for the calls whose
 * refusal can be undone (a context is destroyed again, a limit set back); calls that load code only mark it as due,
 * and the next allocation, query or synchronisation measures. What is found then is there already: it is charged
 * past the limit if need be, and the next allocation is refused.
 *
 * Threads may measure at the same time: measurements are numbered as they begin, and one that was overtaken is dropped.
 *
 * Where nothing can be measured, the first context of a process on a device costs what the agent configured
 * (context_bytes in the region) until the last one there ends; the agent's own measurement corrects that
 * (unseen_bytes).
 */
#include "hidden.h"

#include "account.h"
#include "atomics.h"
#include "measure.h"

#define LOOK_PERIOD_NS UINT64_C(100000000)

/* What the ledger says about a device. */
struct holding {
    uint64_t absent;   /* granules charged for memory that need not be on the device */
    uint32_t contexts;
};

/* Lock held. */
static struct holding holding_of(struct lim_process *process, uint32_t device)
{
    struct holding holding = {0, 0};
    struct record *record;
    for (size_t at = 0; (record = lim_ledger_from(&process->ledger, at)) != NULL;) {
        at = (size_t)(record - process->ledger.records) + 1u;
        if (record->device != device) {
            continue;
        }
        holding.contexts += record->class == RECORD_CONTEXT;
        bool is_elsewhere =
            record->class == RECORD_MANAGED || record->class == RECORD_SPILLED || record->class == RECORD_HOST;
        holding.absent += is_elsewhere ? record->granules : 0;
    }
    return holding;
}

static uint64_t less(uint64_t from, uint64_t amount)
{
    return from > amount ? from - amount : 0;
}

static uint64_t larger(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

/* What hidden memory should be charged as; what it is charged as now where nothing is known. Lock held. */
static uint64_t target_of(struct lim_process *process, uint32_t device, bool is_measured, uint64_t bytes)
{
    const struct tessera_slot_device *books = &process->region->slot[process->slot].device[device];
    struct holding holding = holding_of(process, device);
    uint64_t hidden = word_load(&books->hidden_granules);
    uint64_t elsewhere = less(word_load(&books->used_granules), hidden);
    uint64_t measured = lim_granules(bytes);
    if (holding.contexts == 0) {
        return 0;
    }
    if (is_measured && measured >= less(elsewhere, holding.absent)) {
        uint64_t least = less(measured, elsewhere);
        uint64_t most = measured - less(elsewhere, holding.absent);
        return hidden < least ? least : (hidden > most ? most : hidden);
    }
    return larger(hidden, lim_granules(word_load(&process->region->control.device[device].context_bytes)));
}

static bool set(struct lim_process *process, uint32_t device, uint64_t target, bool strict)
{
    uint64_t *hidden_at = &process->region->slot[process->slot].device[device].hidden_granules;
    uint64_t hidden = word_load(hidden_at);
    if (target > hidden && strict && !lim_take_locked(process, device, target - hidden)) {
        return false;
    }
    if (target > hidden && !strict) {
        lim_force_locked(process, device, target - hidden);
    }
    if (target < hidden) {
        lim_give_locked(process, device, hidden - target);
    }
    word_store(hidden_at, target);
    return true;
}

bool lim_hidden_settle(struct lim_process *process, int device, bool strict)
{
    uint64_t bytes = 0;
    if (device < 0) {
        return true;
    }
    lim_lock(process);
    uint32_t number = ++process->measurements[device];
    lim_unlock(process);
    bool is_measured = lim_measure(process, (uint32_t)device, &bytes);
    __atomic_store_n(&process->measured_ns, lim_coarse_ns(), __ATOMIC_RELAXED);
    bool fits = true;
    lim_lock(process);
    /* A measurement that began later has seen at least what this one saw: if it was applied, this one is stale. */
    if ((int32_t)(number - process->applied[device]) > 0) {
        fits = set(process, (uint32_t)device, target_of(process, (uint32_t)device, is_measured, bytes), strict);
        process->applied[device] = fits ? number : process->applied[device];
    }
    lim_unlock(process);
    return fits;
}

void lim_hidden_look_again(struct lim_process *process)
{
    if (lim_coarse_ns() - __atomic_load_n(&process->measured_ns, __ATOMIC_RELAXED) >= LOOK_PERIOD_NS) {
        lim_hidden_catch_up(process);
    }
}

void lim_hidden_catch_up(struct lim_process *process)
{
    lim_mark_clean(process, LIM_HIDDEN_DIRTY); /* first: a call that comes meanwhile marks it again */
    for (uint32_t device = 0; device < lim_device_count(process->region); device++) {
        lim_lock(process);
        bool has_context = holding_of(process, device).contexts > 0;
        lim_unlock(process);
        if (has_context) {
            lim_hidden_settle(process, (int)device, false);
        }
    }
}
