/* DESIGN
 *
 * Device address space of one process. An address says by itself which block it belongs to:
 * sizes are rounded up to a power of two (of address space, not of memory), each power has an
 * arena of its own, and a block is slot number (address - arena) >> power of that arena. So find,
 * new and drop take constant time and blocks never move.
 *
 * Host addresses (managed and pinned memory) come from the host and are kept in a list: such
 * blocks are few.
 */
#include "sim.h"

#include <stdlib.h>

enum {
    SMALLEST = 9,   /* 512 B */
    BIG = 36,       /* from 64 GiB on, arenas are larger */
    LARGEST = 41,   /* 2 TiB */
    CHUNK = 1024,   /* blocks per chunk of the table */
    MAX_CHUNKS = 4096,
};

/* Above every address that a host process can have, below the 49 bits that a card has. */
static const CUdeviceptr FIRST = 1ULL << 48, ARENA = 1ULL << 40, BIG_ARENA = 1ULL << 43;

static struct arena {
    struct sim_block *chunk[MAX_CHUNKS];
    uint32_t used;      /* slots ever used */
    uint32_t free_head; /* slot + 1 of a free one, 0 for none */
} arenas[LARGEST + 1];

static struct sim_block *host_blocks;

static CUdeviceptr arena_base(unsigned klass)
{
    if (klass < BIG) return FIRST + (klass - SMALLEST) * ARENA;
    return FIRST + (BIG - SMALLEST) * ARENA + (klass - BIG) * BIG_ARENA;
}

static uint64_t arena_slots(unsigned klass)
{
    uint64_t slots = (klass < BIG ? ARENA : BIG_ARENA) >> klass;
    return slots < (uint64_t)CHUNK * MAX_CHUNKS ? slots : (uint64_t)CHUNK * MAX_CHUNKS;
}

/* The arena an address lies in, 0 for none. */
static unsigned klass_of(CUdeviceptr address)
{
    CUdeviceptr big = arena_base(BIG);
    if (address < FIRST || address >= arena_base(LARGEST) + BIG_ARENA) return 0;
    if (address < big) return SMALLEST + (unsigned)((address - FIRST) / ARENA);
    return BIG + (unsigned)((address - big) / BIG_ARENA);
}

static struct sim_block *slot_at(unsigned klass, uint64_t slot)
{
    return &arenas[klass].chunk[slot / CHUNK][slot % CHUNK];
}

static struct sim_block *fresh_slot(struct arena *arena, unsigned klass)
{
    uint32_t slot = arena->used;
    if (slot >= arena_slots(klass)) return NULL;
    struct sim_block **chunk = &arena->chunk[slot / CHUNK];
    if (*chunk == NULL) *chunk = calloc(CHUNK, sizeof **chunk);
    if (*chunk == NULL) return NULL;
    arena->used++;
    struct sim_block *block = slot_at(klass, slot);
    block->base = arena_base(klass) + ((CUdeviceptr)slot << klass);
    block->klass = (uint8_t)klass;
    return block;
}

static unsigned log2_up(uint64_t bytes)
{
    return bytes <= 1 ? 0 : 64 - (unsigned)__builtin_clzll(bytes - 1);
}

struct sim_block *sim_block_new(uint64_t bytes, uint64_t align, enum sim_block_kind kind)
{
    unsigned klass = log2_up(bytes > align ? bytes : align);
    if (klass < SMALLEST) klass = SMALLEST;
    if (klass > LARGEST) return NULL;
    struct arena *arena = &arenas[klass];
    struct sim_block *block;
    if (arena->free_head != 0) {
        block = slot_at(klass, arena->free_head - 1);
        arena->free_head = block->next_free;
    } else if ((block = fresh_slot(arena, klass)) == NULL) {
        return NULL;
    }
    block->bytes = bytes;
    block->kind = (uint8_t)kind;
    block->charge = 0;
    block->context = NULL;
    block->pool = NULL;
    block->flags = 0;
    return block;
}

struct sim_block *sim_block_host(void *base, uint64_t bytes, enum sim_block_kind kind)
{
    struct sim_block *block = calloc(1, sizeof *block);
    if (block == NULL) return NULL;
    block->base = (CUdeviceptr)(uintptr_t)base;
    block->bytes = bytes;
    block->kind = (uint8_t)kind;
    block->next_host = host_blocks;
    host_blocks = block;
    return block;
}

struct sim_block *sim_block_find(CUdeviceptr address)
{
    unsigned klass = klass_of(address);
    if (klass != 0) {
        uint64_t slot = (address - arena_base(klass)) >> klass;
        if (slot >= arenas[klass].used) return NULL;
        struct sim_block *block = slot_at(klass, slot);
        return block->kind != SIM_BLOCK_NONE && address - block->base < block->bytes ? block : NULL;
    }
    for (struct sim_block *block = host_blocks; block != NULL; block = block->next_host)
        if (address - block->base < block->bytes) return block;
    return NULL;
}

static void drop_host(struct sim_block *block)
{
    struct sim_block **link = &host_blocks;
    while (*link != block) link = &(*link)->next_host;
    *link = block->next_host;
    free(block);
}

void sim_block_drop(struct sim_block *block)
{
    if (block->klass == 0) {
        drop_host(block);
        return;
    }
    struct arena *arena = &arenas[block->klass];
    block->kind = SIM_BLOCK_NONE;
    block->next_free = arena->free_head;
    arena->free_head = (uint32_t)((block->base - arena_base(block->klass)) >> block->klass) + 1;
}

void sim_block_each(void (*fn)(struct sim_block *block, void *with), void *with)
{
    for (unsigned klass = SMALLEST; klass <= LARGEST; klass++)
        for (uint32_t slot = 0; slot < arenas[klass].used; slot++) {
            struct sim_block *block = slot_at(klass, slot);
            if (block->kind != SIM_BLOCK_NONE) fn(block, with);
        }
    for (struct sim_block *block = host_blocks, *next; block != NULL; block = next) {
        next = block->next_host;
        fn(block, with);
    }
}

static void forget_one(struct sim_block *block, void *with)
{
    (void)with;
    if (block->kind == SIM_BLOCK_RANGE) free(block->granules);
    sim_block_drop(block); /* the charge is the parent's */
}

void sim_blocks_forget(void)
{
    sim_block_each(forget_one, NULL);
}

bool sim_is_device_address(CUdeviceptr address)
{
    return klass_of(address) != 0;
}

bool sim_is_memory(CUdeviceptr address, uint64_t bytes)
{
    const struct sim_block *block = sim_block_find(address);
    if (block == NULL || bytes > block->bytes - (address - block->base)) return false;
    return block->kind != SIM_BLOCK_RANGE || sim_range_is_mapped(block, address, bytes);
}
