/* DESIGN
 *
 * What the files of the simulated driver share inside one process: contexts, blocks of address
 * space, streams, pools. All of it is guarded by the machine's lock (sim_lock): one lock, no
 * order to get wrong, and a thread never sleeps while it holds it.
 *
 * Handles are pointers to objects with a magic word. Objects of destroyed handles are kept with
 * another magic, so a stale handle is told apart from a live one instead of crashing.
 */
#ifndef TESSERA_SIM_H
#define TESSERA_SIM_H

#include "../abi/cuda_abi.h"
#include "clock.h"
#include "machine.h"
#include "trace.h"

#define SIM_API __attribute__((visibility("default"))) CUresult

/* First statement of every function that needs cuInit. */
#define SIM_CALL(...)                                                  \
    do {                                                               \
        SIM_TRACE(CUresult, __VA_ARGS__);                              \
        if (__builtin_expect(!sim_ready, 0)) return CUDA_ERROR_NOT_INITIALIZED; \
    } while (0)

/* Two exports of one body: the plain name and its per-thread-default-stream twin. The twins
 * differ in nothing here, since all streams of a process run in order of submission. */
#define SIM_TWINS(name, twin, params, args, ...)                                \
    SIM_API name params { SIM_CALL(__VA_ARGS__); return do_##name args; }       \
    SIM_API twin params { SIM_CALL(__VA_ARGS__); return do_##name args; }

extern bool sim_ready;    /* cuInit has succeeded in this process */
extern int sim_visible[]; /* CUDA ordinal -> row of the description */
extern int sim_visible_count;

/* 1000 * major + 10 * minor; legal before cuInit. */
int sim_driver_version(void);

static inline bool sim_is_device(CUdevice device)
{
    return device >= 0 && device < sim_visible_count;
}

/* -- contexts ----------------------------------------------------------------------------- */

enum { SIM_DEAD = 0x64656164, SIM_CONTEXT_MAGIC = 0x63747874, SIM_STREAM_MAGIC = 0x7374726d,
       SIM_EVENT_MAGIC = 0x65766e74, SIM_POOL_MAGIC = 0x706f6f6c, SIM_MODULE_MAGIC = 0x6d6f6475,
       SIM_FUNCTION_MAGIC = 0x66756e63, SIM_ARRAY_MAGIC = 0x61727279, SIM_GRAPH_MAGIC = 0x67726168,
       SIM_NODE_MAGIC = 0x6e6f6465, SIM_EXEC_MAGIC = 0x65786563 };

struct CUstream_st {
    uint32_t magic;
    unsigned flags;
    CUcontext context;
    uint64_t tail;      /* ticket of the last work put here */
    unsigned long long id;
    int priority;
    CUgraph capture;    /* where work goes while capturing */
    bool broken;        /* the capture was invalidated */
    int mode;           /* CUstreamCaptureMode of the capture */
    int thread;         /* that began it */
    struct CUstream_st *next_capture;
    struct CUstream_st *next;
};

enum { SIM_LIMITS = 16 };

struct CUctx_st {
    uint32_t magic;
    CUdevice device; /* CUDA ordinal */
    int row;         /* of the description */
    int references;  /* primary: retains; else 1 while it exists */
    bool primary;
    bool live;
    unsigned flags;
    unsigned long long id;
    size_t limit[SIM_LIMITS];
    struct CUstream_st stream[2]; /* legacy and per-thread default streams */
    struct CUstream_st *streams;  /* created ones, destroyed ones included */
    struct CUctx_st *next;
};

/* The calling thread's context: INVALID_CONTEXT when none, CONTEXT_IS_DESTROYED when gone. */
CUresult sim_current(CUcontext *out);

/* The stream meant by a handle, default streams resolved; INVALID_HANDLE when it is none. */
CUresult sim_stream_of(CUstream handle, CUstream *out);

/* Every live context of this process gives its memory back (used at context destruction). */
void sim_blocks_of_context_free(CUcontext context);

/* -- blocks: device address space --------------------------------------------------------- */

enum sim_block_kind { SIM_BLOCK_NONE = 0, SIM_BLOCK_LINEAR, SIM_BLOCK_MANAGED, SIM_BLOCK_HOST,
                      SIM_BLOCK_POOL, SIM_BLOCK_RANGE, SIM_BLOCK_GRAPH, SIM_BLOCK_IMPORT };

struct sim_block {
    CUdeviceptr base;
    uint64_t bytes; /* charged or reserved size */
    CUcontext context;
    union {
        CUmemoryPool pool;            /* SIM_BLOCK_POOL */
        struct sim_granule *granules; /* SIM_BLOCK_RANGE */
        struct sim_block *next_host;  /* SIM_BLOCK_MANAGED, SIM_BLOCK_HOST */
    };
    uint32_t charge;
    uint32_t next_free;
    uint8_t kind;  /* enum sim_block_kind */
    uint8_t klass; /* log2 of the slot size; 0: address of the host's */
    unsigned flags;
};

/* A block of address space that covers `bytes`, aligned to `align` (0: 512); NULL when out. */
struct sim_block *sim_block_new(uint64_t bytes, uint64_t align, enum sim_block_kind kind);
/* A block for host memory at `base`; its address comes from the host. */
struct sim_block *sim_block_host(void *base, uint64_t bytes, enum sim_block_kind kind);
struct sim_block *sim_block_find(CUdeviceptr address); /* the block that covers the address */
void sim_block_drop(struct sim_block *block);
/* Calls fn for every block of this process; fn may drop the one it is given. */
void sim_block_each(void (*fn)(struct sim_block *block, void *with), void *with);
void sim_blocks_forget(void); /* after fork */

/* May cuMemFree have the block at this address? */
bool sim_is_freeable(const struct sim_block *block, CUdeviceptr address);
/* Frees whatever the block holds, then the block. */
void sim_block_free(struct sim_block *block);

/* True for an address that no host memory can have. */
bool sim_is_device_address(CUdeviceptr address);
/* True when [address, address + bytes) lies inside one block (and is mapped, for a range). */
bool sim_is_memory(CUdeviceptr address, uint64_t bytes);

/* -- pools -------------------------------------------------------------------------------- */

struct sim_pending { /* freed, but the stream has not got there yet, or nobody has looked */
    CUstream stream;
    uint64_t ticket;
    uint64_t bytes;
};

struct CUmemPoolHandle_st {
    uint32_t magic;
    int row;         /* -1: host memory */
    CUdevice device; /* CUDA ordinal, -1 for host */
    bool is_default;
    CUmemPoolProps props;
    uint32_t charge;     /* the reserve, one charge; 0 while it is empty */
    uint64_t reserved;
    uint64_t live;       /* bytes allocated and not yet freed by a call */
    uint64_t pending_bytes;
    uint64_t reserved_high, used_high;
    uint64_t threshold;
    int reuse[4];        /* the three reuse switches, by attribute number */
    struct sim_pending *pending;
    uint32_t pendings, room;
    struct CUmemPoolHandle_st *next;
};

/* The free half of cuMemFree for a pool block: its bytes wait for the stream. */
void sim_pool_free_block(struct sim_block *block, CUstream stream);
/* The host has seen this process's work on the device up to ticket: settle and release. */
void sim_pools_synced(int row, uint64_t ticket);
void sim_pools_forget(void);

/* -- VMM, arrays, graphs ------------------------------------------------------------------ */

bool sim_range_is_mapped(const struct sim_block *range, CUdeviceptr address, uint64_t bytes);
void sim_handles_forget(void);
/* One reference more or less (by 1 or -1) to the memory behind a handle value, which need not be valid any more. */
void sim_vmm_hold(CUmemGenericAllocationHandle value, int by);
/* The device of a valid handle; the handle of what is mapped at an address, 0 for nothing. */
bool sim_vmm_device(CUmemGenericAllocationHandle value, CUdevice *device);
CUmemGenericAllocationHandle sim_vmm_at(CUdeviceptr address);

bool sim_is_multicast(CUmemGenericAllocationHandle value);
void sim_multicast_release(CUmemGenericAllocationHandle value);
void sim_multicasts_forget(void);

void sim_arrays_of_context_free(CUcontext context);
void sim_arrays_forget(void);
void sim_graphs_forget(void);
/* The memory of a graph's allocation goes back to the graph reserve; the address stays. */
void sim_graph_free_block(struct sim_block *block);

CUgraph sim_graph_new(void);
void sim_graph_drop(CUgraph graph); /* with the lock held */
/* A kernel node of ns, as a launch on a capturing stream makes it. */
void sim_graph_kernel(CUgraph graph, uint64_t ns);
/* Allocation and free nodes, as the calls make them on a capturing stream. */
CUresult sim_graph_alloc(CUgraph graph, CUdevice device, uint64_t bytes, CUdeviceptr *out);
CUresult sim_graph_free(CUgraph graph, CUdeviceptr address);

/* -- memory that no call asks for by size (footprint.c) ------------------------------------- */

/* What the code of an image takes, by its text. */
uint64_t sim_code_bytes(const char *image);
/* Loads code into a context, once; false when memory is short. */
bool sim_code_load(const void *what, CUcontext context, uint64_t bytes);
void sim_code_unload(const void *what);
/* Charges what the context's limits take; false when memory is short. */
bool sim_limits_charge(CUcontext context);
void sim_footprints_of_context_free(CUcontext context);
void sim_footprints_forget(void);
void sim_ipc_forget(void);

/* -- time --------------------------------------------------------------------------------- */

/* Puts ns of work on the stream (blocking while too much is in flight). */
CUresult sim_enqueue(CUstream stream, uint64_t ns);
/* Waits for everything this process gave to the context's device. */
void sim_drain(CUcontext context);
/* The time of a kernel on the device of this row, from the duration its name carries. */
uint64_t sim_kernel_ns(CUfunction function, int row, uint64_t blocks, uint64_t threads);

/* The calling thread is about to do what a capture of the process may forbid; such captures are over then. */
CUresult sim_refuse_unsafe(void);

void sim_contexts_forget(void);
void sim_streams_forget(void);

#endif
