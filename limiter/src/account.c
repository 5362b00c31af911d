/* DESIGN: accounting that survives SIGKILL at any instruction
 *
 * The question: how much device memory does a share use, and may a process take more? Answered for processes that
 * can be killed or stopped anywhere, without a lock between them and without ever waiting for another process.
 *
 * Words. Per device there is one gauge: {used granules, slot, seq}, changed by compare-and-swap (CAS) only, so that
 * testing the limit and taking the memory are one step. slot and seq name the operation that wrote it. Per process
 * slot and device there is a record: `used`, `intent` = {seq, phase} with `intent_used`, and `acked`. Only the owner
 * writes used and intent while it lives; `acked` only grows, by anyone. A process serialises its own threads.
 *
 * An operation S = (last completed) + 1 of slot A, by its owner:
 *     1  intent_used = used + n;  intent = PENDING S
 *     2  W = gauge; over the limit -> intent = IDLE S-1, refused
 *     3  help(W): if W was written by another slot B, operation b, and B's intent is PENDING or REAP with the same low
 *        bits, and the gauge still is W: raise B.acked to that full number
 *     4  CAS gauge W -> {used + n, A, S}; failed -> 2
 *     5  used = intent_used;  intent = IDLE S
 *
 * Claim 1 (evidence). Operation S took effect if and only if the gauge names (A, S), or A.acked >= S, or A completed
 * step 5. Whoever replaces a word naming (A, S) acknowledged S before, unless A's intent had moved on, and that
 * happens only in step 5. So the owner's death anywhere leaves its contribution exact:
 *     intent PENDING S and (gauge names (A, S) or acked >= S) ? intent_used : used.
 * The reader looks at the gauge before acked, as replacers write acked before the gauge.
 *
 * Claim 2 (no false acknowledgement). Numbers advance only when an operation took effect, so while A's intent is
 * PENDING S the last word that A wrote into the gauge is S-1 or S. Step 3 reads the intent and then finds the gauge
 * unchanged: a word that names A with the low bits of S at that moment is S itself. The 21 bits may wrap as often
 * as they like; two would do.
 *
 * Reaping a dead slot A (state word already in phase REAPING, agreed by CAS) is one more operation R on its behalf:
 *     1  intent = IDLE S or PENDING S: decide by claim 1 and CAS it to REAP_USED R or REAP_NEW R, R = S + 1. All
 *        reapers decide alike, since evidence about a dead owner never changes before R; the CAS makes it one word.
 *     2  gauge names (A, R) or acked >= R -> done
 *     3  CAS gauge W -> {used - contribution, A, R} after help(W); failed -> 2
 *     4  all devices done: CAS state REAPING -> FREE of the next epoch.
 * Step 3 succeeds once: after it the gauge names (A, R), and nobody replaces that without raising acked to R. A reaper
 * may die or stall anywhere; the next one continues. A reaper that stalls past step 4 does no harm: its CAS on the
 * intent expects a number that a later owner never uses again (numbers continue across owners), it rechecks the
 * state after reading the intent, and its CAS on the gauge fails because step 3 changed it. A contribution read
 * late may be another owner's, but then that CAS fails too. An owner that claims the slot finds REAP R, acknowledges R
 * (its own next word may replace (A, R), and a stalled reaper must still find R done), sets used = 0 and then IDLE R;
 * dying in between, it contributes nothing, because R is done.
 *
 * What is left. The CAS on the gauge has the classic ABA: a process stopped between step 2 and 4 goes on after
 * another slot wrote exactly k * 2^21 operations and the used value is the same again. The charge itself is then
 * still right (the word is a value, not a pointer); what is lost is one acknowledgement, which matters only if that
 * other process is killed between its steps 4 and 5 of that very operation; a stalled reaper would have to stall
 * so between its steps 2 and 3. Odds are below 2^-21 per kill at the worst instruction.
 *
 * The tenant can write this page; a tenant that forges words fools the share it belongs to, not the agent, which
 * compares with the device. Arithmetic clamps, so that forged words never wrap a figure.
 */
#include "account.h"

#include "atomics.h"

#define SEQ_MASK ((UINT64_C(1) << TESSERA_GAUGE_SEQ_BITS) - 1u)
#define SLOT_MASK ((UINT64_C(1) << TESSERA_GAUGE_SLOT_BITS) - 1u)
#define USED_SHIFT (TESSERA_GAUGE_SEQ_BITS + TESSERA_GAUGE_SLOT_BITS)
#define INTENT_SHIFT 2u
#define INTENT_MASK UINT64_C(3)
#define PHASE_MASK UINT64_C(3)
#define EPOCH_MASK ((UINT64_C(1) << TESSERA_STATE_EPOCH_BITS) - 1u)

static uint64_t gauge_word(uint64_t used, uint32_t slot, uint64_t seq)
{
    return used << USED_SHIFT | (uint64_t)slot << TESSERA_GAUGE_SEQ_BITS | (seq & SEQ_MASK);
}

static uint32_t gauge_slot(uint64_t gauge)
{
    return (uint32_t)(gauge >> TESSERA_GAUGE_SEQ_BITS & SLOT_MASK);
}

static bool gauge_names(uint64_t gauge, uint32_t slot, uint64_t seq)
{
    return gauge_slot(gauge) == slot && ((gauge ^ seq) & SEQ_MASK) == 0;
}

static uint64_t intent_word(uint64_t seq, enum tessera_intent phase)
{
    return seq << INTENT_SHIFT | (uint64_t)phase;
}

static uint64_t intent_seq(uint64_t intent)
{
    return intent >> INTENT_SHIFT;
}

static enum tessera_intent intent_phase(uint64_t intent)
{
    return (enum tessera_intent)(intent & INTENT_MASK);
}

static uint64_t less(uint64_t from, uint64_t amount)
{
    return from > amount ? from - amount : 0;
}

uint64_t lim_gauge_used(uint64_t gauge)
{
    return gauge >> USED_SHIFT;
}

uint64_t lim_granules(uint64_t bytes)
{
    return bytes / TESSERA_GRANULE + (bytes % TESSERA_GRANULE != 0);
}

uint64_t lim_state_with_phase(uint64_t state, enum tessera_phase phase)
{
    return (state & ~PHASE_MASK) | (uint64_t)phase;
}

uint64_t lim_state_freed(uint64_t state)
{
    uint64_t epoch = (state >> TESSERA_STATE_EPOCH_SHIFT) + 1u;
    return (epoch & EPOCH_MASK) << TESSERA_STATE_EPOCH_SHIFT | TESSERA_FREE;
}

/* Step 3 of an operation by `actor`: leaves evidence of the gauge's last writer before its word is replaced. Not
 * needed for the actor's own words: an owner completed them, and a reaper recorded its verdict in the intent. */
static void acknowledge_writer(struct tessera_region *region, uint32_t actor, uint32_t device, uint64_t gauge)
{
    uint32_t writer = gauge_slot(gauge);
    if (writer == actor) {
        return;
    }
    struct tessera_slot_device *record = &region->slot[writer].device[device];
    uint64_t intent = word_load(&record->intent);
    if (intent_phase(intent) == TESSERA_IDLE || !gauge_names(gauge, writer, intent_seq(intent))) {
        return;
    }
    /* Without this second look a word from 2^21 operations ago could vouch for today's intent (claim 2). */
    if (word_load(&region->usage.device[device].gauge) == gauge) {
        word_raise(&record->acked, intent_seq(intent));
    }
}

static bool try_replace_gauge(struct tessera_region *region, uint32_t actor, uint32_t device, uint64_t gauge,
                              uint64_t replacement)
{
    acknowledge_writer(region, actor, device, gauge);
    return word_swap(&region->usage.device[device].gauge, gauge, replacement);
}

bool lim_charge(struct tessera_region *region, uint32_t slot, uint32_t device, uint64_t granules,
                uint64_t limit_granules)
{
    struct tessera_slot_device *record = &region->slot[slot].device[device];
    struct tessera_device_usage *usage = &region->usage.device[device];
    uint64_t seq = intent_seq(record->intent) + 1u; /* the owner reads its own words plainly */
    uint64_t target = record->used_granules + granules;
    if (granules > TESSERA_MAX_GRANULES) {
        return false;
    }
    limit_granules = limit_granules < TESSERA_MAX_GRANULES ? limit_granules : TESSERA_MAX_GRANULES;
    word_store(&record->intent_used_granules, target);
    word_store(&record->intent, intent_word(seq, TESSERA_PENDING));
    for (;;) {
        uint64_t gauge = word_load(&usage->gauge);
        uint64_t used = lim_gauge_used(gauge) + granules; /* two 33-bit values: no overflow */
        if (used > limit_granules) {
            word_store(&record->intent, intent_word(seq - 1u, TESSERA_IDLE));
            return false;
        }
        if (try_replace_gauge(region, slot, device, gauge, gauge_word(used, slot, seq))) {
            word_store(&record->used_granules, target);
            word_store(&record->intent, intent_word(seq, TESSERA_IDLE));
            word_raise(&usage->peak_granules, used);
            return true;
        }
    }
}

void lim_discharge(struct tessera_region *region, uint32_t slot, uint32_t device, uint64_t granules)
{
    struct tessera_slot_device *record = &region->slot[slot].device[device];
    uint64_t *gauge_at = &region->usage.device[device].gauge;
    uint64_t seq = intent_seq(record->intent) + 1u;
    uint64_t amount = granules < record->used_granules ? granules : record->used_granules;
    uint64_t target = record->used_granules - amount;
    uint64_t gauge;
    uint64_t used;
    word_store(&record->intent_used_granules, target);
    word_store(&record->intent, intent_word(seq, TESSERA_PENDING));
    do {
        gauge = word_load(gauge_at);
        used = less(lim_gauge_used(gauge), amount);
    } while (!try_replace_gauge(region, slot, device, gauge, gauge_word(used, slot, seq)));
    word_store(&record->used_granules, target);
    word_store(&record->intent, intent_word(seq, TESSERA_IDLE));
}

/* Reaping, step 1: turns the dead owner's intent into the verdict that all reapers share. The state is looked at
 * after the intent was read: still REAPING means that the intent belonged to the dead owner. */
static void settle_intent(struct tessera_region *region, uint32_t slot, uint32_t device, uint64_t intent)
{
    struct tessera_slot_device *record = &region->slot[slot].device[device];
    uint64_t seq = intent_seq(intent);
    bool effective = false;
    if (intent_phase(intent) == TESSERA_PENDING) {
        effective = gauge_names(word_load(&region->usage.device[device].gauge), slot, seq) ||
                    word_load(&record->acked) >= seq;
    }
    word_swap(&record->intent, intent, intent_word(seq + 1u, effective ? TESSERA_REAP_NEW : TESSERA_REAP_USED));
}

/* Reaping, steps 2 and 3: the operation in `intent` is on the gauge when this returns true. */
static bool give_back(struct tessera_region *region, uint32_t slot, uint32_t device, uint64_t intent)
{
    struct tessera_slot_device *record = &region->slot[slot].device[device];
    uint64_t seq = intent_seq(intent);
    uint64_t gauge = word_load(&region->usage.device[device].gauge);
    if (gauge_names(gauge, slot, seq) || word_load(&record->acked) >= seq) {
        return true;
    }
    bool effective = intent_phase(intent) == TESSERA_REAP_NEW;
    uint64_t held = word_load(effective ? &record->intent_used_granules : &record->used_granules);
    uint64_t used = less(lim_gauge_used(gauge), held);
    return try_replace_gauge(region, slot, device, gauge, gauge_word(used, slot, seq));
}

static bool reap_device(struct tessera_region *region, uint32_t slot, uint32_t device, uint64_t state)
{
    struct tessera_slot *dead = &region->slot[slot];
    for (;;) {
        uint64_t intent = word_load(&dead->device[device].intent);
        if (word_load(&dead->state) != state) {
            return false; /* another reaper finished the whole slot */
        }
        bool decided = intent_phase(intent) == TESSERA_REAP_USED || intent_phase(intent) == TESSERA_REAP_NEW;
        if (!decided) {
            settle_intent(region, slot, device, intent);
        } else if (give_back(region, slot, device, intent)) {
            return true;
        }
    }
}

uint32_t lim_device_count(const struct tessera_region *region)
{
    uint32_t count = region->header.device_count;
    return count < TESSERA_MAX_DEVICES ? count : TESSERA_MAX_DEVICES;
}

bool lim_has_spill(const struct tessera_region *region)
{
    return region->header.minor >= 2 && lim_device_count(region) <= TESSERA_SPILL_DEVICES;
}

uint64_t lim_spilled_granules(const struct tessera_region *region, uint32_t device)
{
    return lim_has_spill(region)
               ? lim_gauge_used(word_load(&region->usage.device[device + TESSERA_SPILL_ACCOUNT].gauge))
               : 0;
}

bool lim_finish_reap(struct tessera_region *region, uint32_t slot, uint64_t state)
{
    for (uint32_t device = 0; device < lim_device_count(region); device++) {
        if (!reap_device(region, slot, device, state) ||
            (lim_has_spill(region) && !reap_device(region, slot, device + TESSERA_SPILL_ACCOUNT, state))) {
            return false;
        }
    }
    return word_swap(&region->slot[slot].state, state, lim_state_freed(state));
}

void lim_reset_slot(struct tessera_slot *slot)
{
    for (uint32_t device = 0; device < TESSERA_MAX_DEVICES; device++) {
        struct tessera_slot_device *record = &slot->device[device];
        uint64_t seq = intent_seq(word_load(&record->intent));
        word_raise(&record->acked, seq);       /* for reapers of the last owner that are still on their way */
        word_store(&record->used_granules, 0); /* before IDLE: dying here must still count as nothing */
        word_store(&record->host_pinned_bytes, 0);
        word_store(&record->pool_granules, 0);
        word_store(&record->vmm_granules, 0);
        word_store(&record->hidden_granules, 0);
        word_store(&record->intent, intent_word(seq, TESSERA_IDLE));
    }
}
