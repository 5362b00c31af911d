/* DESIGN
 *
 * Some memory is taken by the driver in chunks of its own choice and kept after it was freed: pools, and what graphs
 * allocate. Counting blocks drifts away from the truth in both directions, so what is charged is the driver's own
 * figure (RESERVED_MEM_CURRENT), read again whenever it may have changed.
 *
 * Readings race when threads share a gauge. Each gets a number before it is made; one that was overtaken by a later
 * reading is dropped. The last reading to start is at least as fresh as any call that ended before it.
 *
 * Source: cuMemPoolGetAttribute and cuDeviceGetGraphMemAttribute, CUDA driver API.
 */
#include "gauge.h"

#include "account.h"
#include "atomics.h"

static bool ask(enum record_class class, uint64_t key, uint64_t *bytes)
{
    cuuint64_t figure = 0;
    CUresult result = class == RECORD_POOL
                          ? CALL(cuMemPoolGetAttribute, (CUmemoryPool)(uintptr_t)key,
                                 CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &figure)
                          : CALL(cuDeviceGetGraphMemAttribute, (CUdevice)key, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                 &figure);
    *bytes = figure;
    return result == CUDA_SUCCESS;
}

/* The figure for the agent: how much of the slot's memory backs pools and graphs. Lock held; `change` wraps when
 * negative. */
static void show(struct lim_process *process, uint32_t device, uint64_t change)
{
    uint64_t *shown = &process->region->slot[process->slot].device[device].pool_granules;
    word_store(shown, word_load(shown) + change);
}

bool lim_gauge_learn(struct lim_process *process, enum record_class class, uint64_t key, int device)
{
    /* One that costs nothing is written down too: an allocation from it must not be taken for ours. */
    struct record record = {.key = key,
                            .class = (uint8_t)class,
                            .device = (uint8_t)(device < 0 ? 0 : device),
                            .uncounted = device < 0};
    bool known = true;
    lim_lock(process);
    if (lim_ledger_find(&process->ledger, key, class) == NULL) {
        known = lim_ledger_reserve(&process->ledger, 1);
        if (known) {
            lim_ledger_insert(&process->ledger, &record, NULL);
        }
    }
    lim_unlock(process);
    return known;
}

struct record *lim_gauge_find(struct lim_process *process, enum record_class class, uint64_t key)
{
    struct record *gauge = lim_ledger_find(&process->ledger, key, class);
    return gauge == NULL || gauge->uncounted ? NULL : gauge;
}

bool lim_gauge_set(struct lim_process *process, struct record *gauge, uint64_t target, uint64_t reserved, bool strict)
{
    uint64_t charged = gauge->granules + reserved;
    if (target > charged && strict && !lim_take_locked(process, gauge->device, target - charged)) {
        return false;
    }
    if (target > charged && !strict) {
        lim_force_locked(process, gauge->device, target - charged);
    }
    if (target < charged) {
        lim_give_locked(process, gauge->device, charged - target);
    }
    show(process, gauge->device, target - gauge->granules);
    gauge->granules = target;
    return true;
}

void lim_gauge_end(struct lim_process *process, struct record *gauge, uint64_t kept)
{
    lim_gauge_set(process, gauge, kept, 0, false); /* never below what stays: another process could take the gap */
    show(process, gauge->device, 0 - kept);
    lim_ledger_remove(&process->ledger, gauge);
}

bool lim_gauge_read(struct lim_process *process, enum record_class class, uint64_t key, uint64_t reserved, bool strict)
{
    uint64_t bytes;
    uint32_t number = 0;
    lim_lock(process);
    struct record *gauge = lim_gauge_find(process, class, key);
    if (gauge != NULL) {
        number = ++gauge->readings;
    }
    lim_unlock(process);
    if (gauge == NULL) {
        return true;
    }
    bool is_known = ask(class, key, &bytes);
    bool applied = true;
    lim_lock(process);
    gauge = lim_gauge_find(process, class, key);
    if (gauge != NULL) {
        bool is_latest = is_known && (int32_t)(number - gauge->applied) > 0;
        /* What the caller had reserved stays charged when the driver does not tell. */
        uint64_t kept = gauge->granules + (is_known ? 0 : reserved);
        applied = lim_gauge_set(process, gauge, is_latest ? lim_granules(bytes) : kept, reserved, strict);
        if (applied && is_latest) {
            gauge->applied = number;
        }
    }
    lim_unlock(process);
    return applied;
}
