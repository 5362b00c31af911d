/* DESIGN
 *
 * Memory opened by several processes is charged once, to the one that allocated it. If that one dies first the
 * memory lives on with those who opened it, and one of them has to be charged instead. The region has a table for
 * that: {tag, holder}, where the tag is a hash of the handle's bytes and the holder word names the slot that pays,
 * its epoch, device and size. A holder whose slot is in another epoch, or not living, is dead.
 *
 * An entry is taken by CAS of its tag from 0, and its holder is written then; a reader that comes between sees
 * holder 0, which is a dead slot with nothing to pay, and looks again later. The charge moves by CAS of the holder
 * word from the dead one to the caller: exactly one of those who opened the memory wins and charges itself, past the
 * limit if need be, as the memory is there. They look whenever they reap the dead; until then the share has that
 * much too little on its books, which the agent's own measurement shows.
 *
 * An entry of a dead holder that nobody adopted is reused only when the table is full: somebody may have it open
 * still.
 */
#include "exports.h"

#include "account.h"
#include "atomics.h"

#define GRANULES_SHIFT 31u
#define SLOT_SHIFT 21u
#define DEVICE_SHIFT 17u
#define EPOCH_SHIFT 3u
#define SLOT_BITS UINT64_C(1023)
#define DEVICE_BITS UINT64_C(15)
#define EPOCH_BITS ((UINT64_C(1) << TESSERA_STATE_EPOCH_BITS) - 1u)

static uint64_t epoch_of(const struct tessera_region *region, uint32_t slot)
{
    return word_load(&region->slot[slot].state) >> TESSERA_STATE_EPOCH_SHIFT & EPOCH_BITS;
}

static uint64_t holder_word(const struct lim_process *process, uint32_t device, uint64_t granules)
{
    return granules << GRANULES_SHIFT | (uint64_t)process->slot << SLOT_SHIFT | (uint64_t)device << DEVICE_SHIFT |
           epoch_of(process->region, process->slot) << EPOCH_SHIFT;
}

static bool is_living(const struct tessera_region *region, uint64_t holder)
{
    uint32_t slot = (uint32_t)(holder >> SLOT_SHIFT & SLOT_BITS);
    uint64_t state = word_load(&region->slot[slot].state);
    return (state & 3u) == TESSERA_LIVE &&
           (state >> TESSERA_STATE_EPOCH_SHIFT & EPOCH_BITS) == (holder >> EPOCH_SHIFT & EPOCH_BITS);
}

uint64_t lim_export_tag(const void *handle, size_t size)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (const unsigned char *at = handle; size > 0; at++, size--) {
        hash = (hash ^ *at) * UINT64_C(0x100000001b3);
    }
    return hash == 0 ? 1 : hash;
}

static struct tessera_export *entry_of(struct tessera_region *region, uint64_t tag)
{
    for (uint32_t i = 0; i < TESSERA_MAX_EXPORTS; i++) {
        if (word_load(&region->usage.export[i].tag) == tag) {
            return &region->usage.export[i];
        }
    }
    return NULL;
}

/* A free entry, or one whose holder is dead, under the tag; NULL if the living have them all. */
static struct tessera_export *take_entry(struct tessera_region *region, uint64_t tag)
{
    for (uint32_t i = 0; i < TESSERA_MAX_EXPORTS; i++) {
        if (word_swap(&region->usage.export[i].tag, 0, tag)) {
            return &region->usage.export[i];
        }
    }
    for (uint32_t i = 0; i < TESSERA_MAX_EXPORTS; i++) {
        struct tessera_export *entry = &region->usage.export[i];
        uint64_t old = word_load(&entry->tag);
        if (!is_living(region, word_load(&entry->holder)) && word_swap(&entry->tag, old, tag)) {
            return entry;
        }
    }
    return NULL;
}

void lim_export_note(struct lim_process *process, uint64_t tag, uint32_t device, uint64_t granules)
{
    struct tessera_export *entry = entry_of(process->region, tag);
    entry = entry == NULL ? take_entry(process->region, tag) : entry;
    if (entry != NULL) {
        word_store(&entry->holder, holder_word(process, device, granules));
    }
}

void lim_export_forget(struct lim_process *process, uint64_t tag)
{
    struct tessera_export *entry = entry_of(process->region, tag);
    if (entry != NULL) {
        word_store(&entry->holder, 0); /* first: a newcomer's holder must not be wiped */
        word_swap(&entry->tag, tag, 0);
    }
}

bool lim_export_find(const struct tessera_region *region, uint64_t tag, struct lim_holder *holder)
{
    const struct tessera_export *entry = entry_of((struct tessera_region *)region, tag);
    uint64_t word = entry == NULL ? 0 : word_load(&entry->holder);
    if (word == 0) {
        return false;
    }
    uint32_t device = (uint32_t)(word >> DEVICE_SHIFT & DEVICE_BITS);
    *holder = (struct lim_holder){word >> GRANULES_SHIFT, device, is_living(region, word)};
    return true;
}

bool lim_export_adopt(struct lim_process *process, uint64_t tag)
{
    struct tessera_export *entry = entry_of(process->region, tag);
    uint64_t word = entry == NULL ? 0 : word_load(&entry->holder);
    if (word == 0 || is_living(process->region, word)) {
        return false;
    }
    uint32_t device = (uint32_t)(word >> DEVICE_SHIFT & DEVICE_BITS);
    return word_swap(&entry->holder, word, holder_word(process, device, word >> GRANULES_SHIFT));
}

void lim_export_abandon(struct lim_process *process, uint64_t tag)
{
    struct tessera_export *entry = entry_of(process->region, tag);
    uint64_t word = entry == NULL ? 0 : word_load(&entry->holder);
    uint64_t mine = holder_word(process, (uint32_t)(word >> DEVICE_SHIFT & DEVICE_BITS), word >> GRANULES_SHIFT);
    if (word != 0 && word == mine) {
        uint64_t other_epoch = (word >> EPOCH_SHIFT & EPOCH_BITS) ^ EPOCH_BITS; /* no living slot is in it */
        word_swap(&entry->holder, word, (word & ~(EPOCH_BITS << EPOCH_SHIFT)) | other_epoch << EPOCH_SHIFT);
    }
}
