/* DESIGN
 *
 * A slot's life is its state word, changed by CAS only:
 *
 *     FREE e --claim--> CLAIMED e,pid --publish--> LIVE e,pid --dead--> REAPING e,pid --given back--> FREE e+1
 *                           \------------------dead---------------------/
 *
 * The word names its owner from the first moment, so a claimant that dies half-way is found like any other. Epoch,
 * PID and tags make the word unique, so a late CAS of a stalled reaper or claimant fails. Slots never move and are
 * never freed by their owner: the driver gives memory back when the process is gone, and so do we.
 *
 * slot_high_water bounds every scan. It is raised before the claim, so that no claimed slot lies above it.
 *
 * To judge a process for certain takes four system calls, and with hundreds of neighbours that is milliseconds: who starts
 * looks at a bounded number of slots, from a place that moves, and only for processes that are not there any more, which
 * takes one call each; and at those that bear its own PID. The rest is found by whoever is about to be refused, by whoever
 * finds no free slot, and by the supervisor.
 */
#include "slots.h"

#include <string.h>

#include "account.h"
#include "atomics.h"
#include "books.h"
#include "tessera_region_api.h"

static enum tessera_phase phase_of(uint64_t state)
{
    return (enum tessera_phase)(state & 3u);
}

static uint32_t high_water(const struct tessera_region *region)
{
    uint64_t mark = word_load(&region->usage.slot_high_water);
    return mark < TESSERA_MAX_SLOTS ? (uint32_t)mark : TESSERA_MAX_SLOTS;
}

#define JUDGED_AT_START 64u

typedef bool (*judgement)(const struct tessera_slot *slot, uint64_t state, const struct process_identity *judge);

/* True if this call freed the slot. Another one may have, or its owner may live. */
static bool reap_slot(struct tessera_region *region, uint32_t index, judgement is_dead, const struct process_identity *judge)
{
    struct tessera_slot *slot = &region->slot[index];
    uint64_t state = word_load(&slot->state);
    if (phase_of(state) == TESSERA_FREE) {
        return false;
    }
    if (phase_of(state) != TESSERA_REAPING) {
        /* The fields that a judgement reads belong to `state` only if the word is still the same; the CAS checks that. */
        uint64_t reaping = lim_state_with_phase(state, TESSERA_REAPING);
        if (!is_dead(slot, state, judge)) {
            return false;
        }
        if (!word_swap(&slot->state, state, reaping)) {
            return false; /* claimed, published or reaped meanwhile; the next scan sees */
        }
        state = reaping;
    }
    lim_refund(region, index, state, lim_now_ns());
    return lim_finish_reap(region, index, state);
}

static void note_reaped(struct tessera_region *region, unsigned freed)
{
    if (freed > 0) {
        word_add(&region->usage.reaped_count, freed);
    }
}

unsigned lim_reap_dead(struct tessera_region *region, const struct process_identity *judge, uint32_t own)
{
    unsigned freed = 0;
    uint32_t end = high_water(region);
    for (uint32_t index = 0; index < end; index++) {
        if (index != own && reap_slot(region, index, lim_is_gone, judge)) {
            freed++;
        }
    }
    note_reaped(region, freed);
    return freed;
}

static void reap_some(struct tessera_region *region, const struct process_identity *self)
{
    unsigned freed = 0;
    uint32_t end = high_water(region);
    uint32_t first = end <= JUDGED_AT_START ? 0 : (uint32_t)(lim_now_ns() / 1000u % end);
    for (uint32_t index = 0; index < end; index++) {
        bool in_turn = (index >= first ? index - first : index + end - first) < JUDGED_AT_START;
        if ((in_turn || lim_bears_pid(word_load(&region->slot[index].state), self)) &&
            reap_slot(region, index, lim_is_absent, self)) {
            freed++;
        }
    }
    note_reaped(region, freed);
}

static void describe_owner(struct tessera_slot *slot, const struct process_identity *self)
{
    slot->pid = self->pid;
    slot->start_ticks = self->start_ticks;
    slot->image_stack = self->image_stack;
    slot->image_random = self->image_random;
    slot->pid_namespace = self->pid_namespace;
    slot->registered_ns = lim_now_ns();
    slot->heartbeat_ns = slot->registered_ns;
    memcpy(slot->command, self->command, sizeof slot->command);
    memset(slot->booked, 0, sizeof slot->booked);
    slot->progress_ns = TESSERA_NO_PROGRESS;
}

static bool claim_slot(struct tessera_region *region, uint32_t index, const struct process_identity *self)
{
    struct tessera_slot *slot = &region->slot[index];
    uint64_t state = word_load(&slot->state);
    if (phase_of(state) != TESSERA_FREE) {
        return false;
    }
    word_raise(&region->usage.slot_high_water, index + 1u);
    uint64_t claimed = lim_claimed_state(state, self);
    if (!word_swap(&slot->state, state, claimed)) {
        return false;
    }
    lim_reset_slot(slot);
    describe_owner(slot, self);
    /* Fails only for a process that somebody took for dead; it then has no slot, and looks for another. */
    return word_swap(&slot->state, claimed, lim_state_with_phase(claimed, TESSERA_LIVE));
}

static int claim_any(struct tessera_region *region, const struct process_identity *self)
{
    for (uint32_t index = 0; index < TESSERA_MAX_SLOTS; index++) {
        if (claim_slot(region, index, self)) {
            return (int)index;
        }
    }
    return TESSERA_ERROR_FULL;
}

int lim_register(struct tessera_region *region, const struct process_identity *self)
{
    reap_some(region, self);
    int slot = claim_any(region, self);
    if (slot == TESSERA_ERROR_FULL) {
        lim_reap_dead(region, self, TESSERA_MAX_SLOTS);
        slot = claim_any(region, self);
    }
    if (slot == TESSERA_ERROR_FULL) {
        word_add(&region->usage.full_count, 1);
    }
    return slot;
}
