/* DESIGN
 *
 * Open addressing with linear probing, at most half full, two records per cache line. Removal shifts the rest
 * of the run back instead of leaving tombstones, so speed depends on what is held now, not on history: 4,096 held
 * allocations cost what one does. Room is reserved before the driver is asked, as an allocation that we could not
 * write down would be one that nobody counts.
 */
#include "ledger.h"

#include <sys/mman.h>

#include "hints.h"

#define FIRST_CAPACITY 1024u

_Static_assert(sizeof(struct record) == 32, "a record is half a cache line");

static size_t home(const struct ledger *ledger, uint64_t key, uint8_t class)
{
    uint64_t mixed = (key + class) * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(mixed ^ mixed >> 32) & (ledger->capacity - 1u);
}

/* The slot that holds (key, class), or the empty one where it belongs. */
static struct record *probe(const struct ledger *ledger, uint64_t key, uint8_t class)
{
    size_t at = home(ledger, key, class);
    while (ledger->records[at].class != RECORD_NONE &&
           (ledger->records[at].key != key || ledger->records[at].class != class)) {
        at = (at + 1u) & (ledger->capacity - 1u);
    }
    return &ledger->records[at];
}

LIM_COLD static bool grow(struct ledger *ledger)
{
    struct ledger larger = *ledger;
    larger.capacity = ledger->capacity == 0 ? FIRST_CAPACITY : ledger->capacity * 2u;
    size_t bytes = larger.capacity * sizeof(struct record);
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        return false;
    }
    madvise(map, bytes, MADV_DONTFORK); /* a child starts with an empty ledger */
    larger.records = map;
    for (size_t i = 0; i < ledger->capacity; i++) {
        if (ledger->records[i].class != RECORD_NONE) {
            *probe(&larger, ledger->records[i].key, ledger->records[i].class) = ledger->records[i];
        }
    }
    if (ledger->capacity > 0) {
        munmap(ledger->records, ledger->capacity * sizeof(struct record));
    }
    *ledger = larger;
    return true;
}

bool lim_ledger_reserve(struct ledger *ledger, size_t count)
{
    while ((ledger->count + ledger->reserved + count) * 2u > ledger->capacity) {
        if (!grow(ledger)) {
            return false;
        }
    }
    ledger->reserved += count;
    return true;
}

void lim_ledger_unreserve(struct ledger *ledger, size_t count)
{
    ledger->reserved -= count;
}

struct record *lim_ledger_insert(struct ledger *ledger, const struct record *record, struct record *old)
{
    struct record *at = probe(ledger, record->key, record->class);
    ledger->reserved--;
    if (LIM_USUAL(at->class == RECORD_NONE)) {
        ledger->count++;
    } else if (old != NULL) {
        *old = *at;
    }
    /* Member by member: a wide copy would have to wait for the narrow stores that just built the record. */
    at->key = record->key;
    at->context = record->context;
    at->granules = record->granules;
    at->class = record->class;
    at->device = record->device;
    at->uncounted = record->uncounted;
    at->mark = record->mark;
    at->openings = record->openings;
    return at;
}

struct record *lim_ledger_find(struct ledger *ledger, uint64_t key, enum record_class class)
{
    if (ledger->capacity == 0) {
        return NULL;
    }
    struct record *at = probe(ledger, key, (uint8_t)class);
    return at->class == RECORD_NONE ? NULL : at;
}

void lim_ledger_remove(struct ledger *ledger, struct record *record)
{
    size_t mask = ledger->capacity - 1u;
    size_t hole = (size_t)(record - ledger->records);
    for (size_t at = (hole + 1u) & mask; ledger->records[at].class != RECORD_NONE; at = (at + 1u) & mask) {
        size_t wanted = home(ledger, ledger->records[at].key, ledger->records[at].class);
        /* Move it back unless its home lies in (hole, at], walking round the end of the table. A walk by index misses
         * nothing: what moves across the end was seen already. */
        if (((at - wanted) & mask) >= ((at - hole) & mask)) {
            ledger->records[hole] = ledger->records[at];
            hole = at;
        }
    }
    ledger->records[hole] = (struct record){.class = RECORD_NONE};
    ledger->count--;
}

struct record *lim_ledger_from(struct ledger *ledger, size_t index)
{
    for (; index < ledger->capacity; index++) {
        if (ledger->records[index].class != RECORD_NONE) {
            return &ledger->records[index];
        }
    }
    return NULL;
}
