/* DESIGN
 *
 * Legacy IPC: a handle names a linear allocation of another process; opening it maps the same memory, which stays the
 * exporter's. When the exporter dies while somebody has it open, it becomes the (last) importer's: what NVML lists it
 * under on a real card is not known. Opening twice gives the same address and has to be closed twice.
 *
 * Handles of external memory (descriptors of Vulkan and others) are objects without memory of ours behind them.
 *
 * Source: CUDA driver API, cuIpcGetMemHandle and cuIpcOpenMemHandle: not for managed, pool or VMM memory, not in the
 * process that exported.
 */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

enum { EXTERNAL_MAGIC = 0x65787465 };

struct content { /* of a handle's 64 bytes */
    uint64_t magic;
    uint64_t bytes;
    uint32_t charge;
    uint32_t owner;
    uint64_t salt; /* two exports of one slot in different lives differ */
};

static const uint64_t CONTENT_MAGIC = 0x7465737369706331ULL;

static struct opened {
    struct content content;
    struct sim_block *block;
    unsigned uses;
    struct opened *next;
} *opened;

void sim_ipc_forget(void)
{
    for (struct opened *at = opened, *next; at != NULL; at = next) {
        next = at->next;
        free(at);
    }
    opened = NULL;
}

SIM_API cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    SIM_CALL("%llx", address);
    if (handle == NULL) return CUDA_ERROR_INVALID_VALUE;
    memset(handle, 0, sizeof *handle);
    sim_lock();
    const struct sim_block *block = sim_block_find(address);
    bool capable = block != NULL && block->kind == SIM_BLOCK_LINEAR;
    if (capable) {
        struct content content = {CONTENT_MAGIC, block->bytes, block->charge, sim_self,
                                  sim_machine->owner[sim_self].start ^ block->base};
        memcpy(handle, &content, sizeof content);
    }
    sim_unlock();
    return capable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Called with the lock held. */
static struct opened *open_first(const struct content *content)
{
    struct opened *made = calloc(1, sizeof *made);
    struct sim_block *block = made == NULL ? NULL : sim_block_new(content->bytes, 0, SIM_BLOCK_IMPORT);
    if (block == NULL) {
        free(made);
        return NULL;
    }
    *made = (struct opened){*content, block, 0, opened};
    opened = made;
    sim_machine->charge[content->charge].importer = sim_self + 1;
    return made;
}

/* Called with the lock held. */
static CUresult open_handle(CUdeviceptr *out, const struct content *content)
{
    struct opened *at = opened;
    while (at != NULL && memcmp(&at->content, content, sizeof *content) != 0) at = at->next;
    if (at == NULL) {
        const struct sim_charge *charge = &sim_machine->charge[content->charge];
        if (charge->kind != SIM_LINEAR || charge->bytes != content->bytes) return CUDA_ERROR_INVALID_VALUE;
        at = open_first(content);
    }
    if (at == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    at->uses++;
    *out = at->block->base;
    return CUDA_SUCCESS;
}

static CUresult open_checked(CUdeviceptr *out, const CUipcMemHandle *handle)
{
    CUcontext context;
    struct content content;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    memcpy(&content, handle, sizeof content);
    if (out == NULL || content.magic != CONTENT_MAGIC || content.charge == 0 || content.charge >= SIM_MAX_CHARGES)
        return CUDA_ERROR_INVALID_VALUE;
    if (content.owner == sim_self) return CUDA_ERROR_INVALID_CONTEXT;
    sim_lock();
    result = open_handle(out, &content);
    sim_unlock();
    return result;
}

SIM_API cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags)
{
    SIM_CALL("%u", flags);
    return open_checked(out, &handle);
}

SIM_API cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags)
{
    SIM_CALL("%u", flags);
    return open_checked(out, &handle);
}

/* Called with the lock held: the last use of an import ends. */
static void close_last(struct opened **link)
{
    struct opened *at = *link;
    sim_reap(); /* an exporter that died meanwhile leaves the memory to us */
    struct sim_charge *charge = &sim_machine->charge[at->content.charge];
    if (charge->kind == SIM_LINEAR && charge->owner == sim_self) sim_give(at->content.charge); /* it was left to us */
    else charge->importer = 0;
    sim_block_drop(at->block);
    *link = at->next;
    free(at);
}

SIM_API cuIpcCloseMemHandle(CUdeviceptr address)
{
    SIM_CALL("%llx", address);
    sim_lock();
    struct opened **link = &opened;
    while (*link != NULL && (*link)->block->base != address) link = &(*link)->next;
    bool known = *link != NULL;
    if (known && --(*link)->uses == 0) close_last(link);
    sim_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* -- external memory ---------------------------------------------------------------------- */

struct CUextMemory_st {
    uint32_t magic;
    uint64_t bytes;
};

SIM_API cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
    SIM_CALL("%llu", desc == NULL ? 0 : desc->size);
    CUcontext context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (out == NULL || desc == NULL || desc->size == 0 || desc->type < 1) return CUDA_ERROR_INVALID_VALUE;
    CUexternalMemory memory = calloc(1, sizeof *memory);
    if (memory == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *memory = (struct CUextMemory_st){EXTERNAL_MAGIC, desc->size};
    *out = memory;
    return CUDA_SUCCESS;
}

SIM_API cuDestroyExternalMemory(CUexternalMemory memory)
{
    SIM_CALL("%p", (void *)memory);
    if (memory == NULL || memory->magic != EXTERNAL_MAGIC) return CUDA_ERROR_INVALID_VALUE;
    memory->magic = SIM_DEAD;
    free(memory);
    return CUDA_SUCCESS;
}
