/* DESIGN: when the device is full
 *
 * Limits may add up to more than the device has; requests never do. So a device can be full below a share's limit, and then
 * this is the order:
 *     1  Growth beyond a request is refused first: the ceiling in the region (governor.c) admits only what nobody
 *        requested. That is part of the test against the limit, so nothing is here for it.
 *     2  The driver is out of memory all the same: what our own pools and the dead hold without need is given back, and it is
 *        asked once more.
 *     3  A share that is within its request is owed the memory. If its governor says that it gets memory back
 *        (TESSERA_RECLAIM), the allocation says what it lacks and asks again: for up to LIM_CONTACT_NS, and for
 *        LIM_RECLAIM_NS in all while the governor is heard of.
 *     4  Where the share may spill, memory of cuMemAlloc comes from the host: managed memory that prefers the host and is
 *        mapped for the device. It does not migrate: pages that did would push out the neighbours', who are no part of this.
 *        It is slow, and it is exact: counted like device memory, and in the spill account besides.
 *     5  Else it is refused, and counted as found full.
 * Other families (pitched, arrays, pools, VMM) know steps 2, 3 and 5 only: nothing in host memory can stand in for them. What
 * was spilled cannot be exported by IPC: the driver refuses managed memory there.
 *
 * No step waits for another process of the share, and the wait has an end whoever is dead.
 *
 * Source: CUDA driver API, cuMemAdvise: with the host as preferred location and SET_ACCESSED_BY the device maps the pages and
 * causes no faults; it needs CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, or fails.
 */
#include "physical.h"

#include "account.h"
#include "atomics.h"
#include "compute.h"
#include "controller.h"
#include "hook_pool.h"
#include "order.h"

#define LIM_RECLAIM_NS (2000 * LIM_MS)
#define LIM_CONTACT_NS (1000 * LIM_MS)
#define ASK_EVERY_NS (10 * LIM_MS)
#define HOST (-1) /* CU_DEVICE_CPU */

enum { PREFERRED_LOCATION = 3, ACCESSED_BY = 5 }; /* CUmem_advise */

uint64_t lim_spill_limit(const struct tessera_region *region, uint32_t device)
{
    return lim_has_spill(region) ? word_load(&region->control.device[device + TESSERA_SPILL_ACCOUNT].memory_limit) : 0;
}

void lim_note_full(struct lim_process *process, uint32_t device)
{
    word_add(&process->region->usage.device[device].full_count, 1);
}

/* True while the share, with what it asks for now, has no more of the device than it requested. */
static bool is_within_request(struct lim_process *process, uint32_t device)
{
    const struct tessera_device_control *row = &process->region->control.device[device];
    uint64_t spilled = lim_spilled_granules(process->region, device);
    uint64_t used = lim_gauge_used(word_load(&process->region->usage.device[device].gauge));
    uint64_t held = used > spilled ? (used - spilled) * TESSERA_GRANULE : 0;
    uint64_t unseen = word_load(&row->unseen_bytes);
    uint64_t request = word_load(&row->memory_request);
    return held <= request && unseen <= request - held;
}

/* A governor may not know of a process that has only just begun: it has LIM_CONTACT_NS to notice the request. */
static bool is_owed(struct lim_process *process, uint32_t device, uint64_t now_ns, uint64_t waited_ns)
{
    const struct tessera_control *control = &process->region->control;
    return (__atomic_load_n(&control->policy, __ATOMIC_RELAXED) & TESSERA_RECLAIM) != 0 &&
           (waited_ns < LIM_CONTACT_NS || lim_is_governed(word_load(&control->governor_ns), now_ns)) &&
           waited_ns < LIM_RECLAIM_NS && is_within_request(process, device);
}

bool lim_room_again(struct lim_process *process, uint32_t device, uint64_t granules, struct lim_patience *patience)
{
    struct tessera_device_usage *usage = &process->region->usage.device[device];
    if (patience->tries++ == 0) {
        lim_relieve_pools(process);
        lim_reap_now(process);
        return true;
    }
    uint64_t now_ns = lim_now_ns();
    patience->from_ns = patience->from_ns == 0 ? now_ns : patience->from_ns;
    if (!is_owed(process, device, now_ns, now_ns - patience->from_ns)) {
        return false;
    }
    word_store(&usage->short_granules, granules);
    word_store(&usage->short_ns, now_ns);
    lim_nap(ASK_EVERY_NS);
    return true;
}

/* Keeps the pages where they are, and lets the device reach them. */
static bool settle_on_host(CUdeviceptr pointer, size_t bytes, CUdevice device)
{
    return CALL(cuMemAdvise, pointer, bytes, PREFERRED_LOCATION, HOST) == CUDA_SUCCESS &&
           CALL(cuMemAdvise, pointer, bytes, ACCESSED_BY, device) == CUDA_SUCCESS;
}

CUresult lim_spill(const struct lim_claim *claim, CUdeviceptr *out, size_t bytes)
{
    uint32_t device = (uint32_t)claim->site.device;
    CUdeviceptr pointer = 0;
    CUresult result = CALL(cuMemAllocManaged, &pointer, bytes, CU_MEM_ATTACH_GLOBAL);
    if (result == CUDA_SUCCESS && !settle_on_host(pointer, bytes, claim->site.ordinal)) {
        CALL(cuMemFree_v2, pointer);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) {
        lim_note_full(claim->process, device);
        return result;
    }
    word_add(&claim->process->region->usage.device[device].spill_count, 1);
    *out = pointer;
    return CUDA_SUCCESS;
}
