/* What this process holds: one record per pointer, pool, allocation handle and mapping. Private to the process.
 *
 * A record is found by (key, class). Addresses of records are valid only until the next insertion or removal, so
 * callers look one up and use it under one lock. The table is mapped memory of its own: nothing here calls malloc. */
#ifndef LIM_LEDGER_H
#define LIM_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum record_class {
    RECORD_NONE = 0,
    RECORD_LINEAR,     /* key: pointer; charged by itself */
    RECORD_ARRAY,      /* key: array or mipmapped array; charged by itself */
    RECORD_ASYNC,      /* key: pointer; paid for by its pool; link: pool */
    RECORD_POOL,       /* key: pool handle; granules: charged */
    RECORD_ALLOCATION, /* key: our number; granules: charged; refs, maps */
    RECORD_HANDLE,     /* key: generic allocation handle; refs; link: allocation */
    RECORD_MAPPING,    /* key: address; size: bytes; link: allocation */
    RECORD_CONTEXT,    /* key: device ordinal, context: its primary context; or key: a created context */
    RECORD_GRAPHS,     /* key: device ordinal; granules: charged for what its graphs have reserved */
    RECORD_EXEC,       /* key: executable graph + device; link: device ordinal; granules: its allocation nodes' sum */
    RECORD_MANAGED,    /* key: pointer; charged by itself, though its pages may be elsewhere */
    RECORD_BINDING,    /* key: place in a multicast object; link: allocation; owner: the object's number */
    RECORD_EXPORT,     /* key: pointer that others may open; link: tag; granules: its size */
    RECORD_IMPORT,     /* key: pointer of another process's memory; link: tag; granules: its size, paid for if marked */
    RECORD_EXTERNAL,   /* key: external memory; charged by itself, if it is charged at all */
    RECORD_SPILLED,    /* key: pointer; managed memory in place of device memory: charged to the spill account as well */
    RECORD_HOST        /* key: host address; link: bytes; granules: charged, where host and device memory are one */
};

struct record {
    uint64_t key;
    union {
        uint64_t context; /* LINEAR, MANAGED, SPILLED, ARRAY: what it is freed with; CONTEXT: the primary context */
        uint64_t link;    /* EXPORT, IMPORT: tag; ASYNC: pool; HANDLE, MAPPING: allocation; EXEC: ordinal */
        struct {          /* ALLOCATION */
            uint32_t refs; /* by all its handles */
            uint32_t maps;
        };
        struct {               /* POOL, GRAPHS */
            uint32_t readings; /* of its gauge, begun */
            uint32_t applied;  /* number of the last one applied */
        };
    };
    union {
        uint64_t granules; /* LINEAR, ARRAY, ASYNC, EXEC: its size; POOL, GRAPHS, ALLOCATION: charged */
        uint64_t size;     /* MAPPING: bytes */
        uint64_t uses;     /* HANDLE: how often this value was given */
        uint64_t owner;    /* BINDING: number of the multicast object */
    };
    uint8_t class;
    uint8_t device;    /* index in the region */
    uint8_t uncounted; /* POOL, GRAPHS: backs no device memory of ours */
    uint8_t mark;      /* LINEAR: was handed out to others; IMPORT: paid for by this process; POOL: destroyed, but for its blocks */
    uint32_t openings; /* IMPORT: how often it was opened and not closed */
};

struct ledger {
    struct record *records;
    size_t capacity; /* a power of two, or 0 */
    size_t count;
    size_t reserved;
};

/* Makes room for `count` insertions that then cannot fail. False when the kernel has no memory. */
bool lim_ledger_reserve(struct ledger *ledger, size_t count);

/* Gives back room that is not going to be used. */
void lim_ledger_unreserve(struct ledger *ledger, size_t count);

/* Inserts into reserved room. A record with the same key and class is replaced: its memory is gone, or the driver
 * would not have given the key again. `old`, unless NULL, receives what was replaced, and is left alone if nothing
 * was. */
struct record *lim_ledger_insert(struct ledger *ledger, const struct record *record, struct record *old);

/* The record, or NULL. */
struct record *lim_ledger_find(struct ledger *ledger, uint64_t key, enum record_class class);

/* Removes a record that find or from returned; records behind it may move into its place. */
void lim_ledger_remove(struct ledger *ledger, struct record *record);

/* The first record at `index` or behind it, NULL at the end: a walk in no order that sees every record. Go on at the
 * record's own index after removing it, else at the next. */
struct record *lim_ledger_from(struct ledger *ledger, size_t index);

#endif
