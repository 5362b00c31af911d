/* DESIGN
 *
 * Contexts: one primary per device, counted by retains, and any number of created ones. The
 * first live context of a process on a device is charged the description's context bytes, the
 * last one gives them back. Destroying a context frees the memory allocated in it, not VMM
 * handles, which belong to the process.
 *
 * Each thread has a stack of current contexts. Objects are never freed: a stale handle must
 * answer CONTEXT_IS_DESTROYED, not crash. But the next created context gets the address of one
 * that was destroyed, whatever their devices: drivers do that, and what keeps books by address
 * must stand it.
 *
 * Source: CUDA driver API, Context Management and Primary Context Management.
 */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

enum { STACK = 32 };

static CUcontext contexts; /* every context object of this process */
static CUcontext primaries[SIM_MAX_DEVICES]; /* by row */
static uint32_t charges[SIM_MAX_DEVICES];    /* the context bytes, by row */
static unsigned long long next_id = 1;

/* Small and in the static TLS block: reading it costs one load, on every call there is. */
static _Thread_local struct {
    int depth;
    CUcontext context[STACK];
} here __attribute__((tls_model("initial-exec")));

static const size_t default_limits[SIM_LIMITS] = {
    [CU_LIMIT_STACK_SIZE] = 1024,
    [CU_LIMIT_PRINTF_FIFO_SIZE] = 1048576,
    [CU_LIMIT_MALLOC_HEAP_SIZE] = 8388608,
    [CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2,
    [CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
    [CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64,
};

static bool is_context(CUcontext context)
{
    return context != NULL && context->magic == SIM_CONTEXT_MAGIC;
}

static CUresult check(CUcontext context)
{
    if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    return context->live ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult sim_current(CUcontext *out)
{
    if (__builtin_expect(here.depth == 0, 0)) return CUDA_ERROR_INVALID_CONTEXT;
    *out = here.context[here.depth - 1];
    return (*out)->live ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void sim_contexts_forget(void)
{
    for (CUcontext context = contexts; context != NULL; context = context->next) {
        context->live = false;
        context->references = 0;
    }
    memset(charges, 0, sizeof charges);
    here.depth = 0;
}

/* -- life --------------------------------------------------------------------------------- */

/* Called with the lock held. */
static CUresult come_alive(CUcontext context)
{
    uint32_t *live = &sim_machine->owner[sim_self].contexts[context->row];
    uint64_t bytes = sim_description.device[context->row].context;
    if (*live == 0 && bytes != 0) {
        charges[context->row] = sim_take(context->row, bytes, SIM_CONTEXT);
        if (charges[context->row] == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*live)++;
    context->live = true;
    context->flags = 0;
    context->id = next_id++;
    memcpy(context->limit, default_limits, sizeof context->limit);
    return CUDA_SUCCESS;
}

static void die(CUcontext context)
{
    uint32_t *live = &sim_machine->owner[sim_self].contexts[context->row];
    sim_blocks_of_context_free(context);
    sim_arrays_of_context_free(context);
    sim_footprints_of_context_free(context);
    context->live = false;
    context->references = 0;
    for (CUstream stream = context->streams; stream != NULL; stream = stream->next)
        stream->magic = SIM_DEAD;
    if (--*live != 0 || charges[context->row] == 0) return;
    sim_give(charges[context->row]);
    charges[context->row] = 0;
}

/* A destroyed context's object, or a new one, in the list; NULL when the host has no memory. */
static CUcontext created_object(void)
{
    for (CUcontext context = contexts; context != NULL; context = context->next)
        if (!context->live && !context->primary) return context;
    CUcontext context = calloc(1, sizeof *context);
    if (context == NULL) return NULL;
    context->next = contexts;
    contexts = context;
    return context;
}

static CUcontext object(CUdevice device, bool primary)
{
    CUcontext context = created_object();
    if (context == NULL) return NULL;
    context->magic = SIM_CONTEXT_MAGIC;
    context->device = device;
    context->row = sim_visible[device];
    context->primary = primary;
    for (int i = 0; i < 2; i++)
        context->stream[i] = (struct CUstream_st){.magic = SIM_STREAM_MAGIC, .context = context};
    return context;
}

/* -- primary contexts --------------------------------------------------------------------- */

SIM_API cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    SIM_CALL("%d", device);
    if (out == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    sim_lock();
    CUcontext *primary = &primaries[sim_visible[device]];
    if (*primary == NULL) *primary = object(device, true);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (*primary != NULL) result = (*primary)->live ? CUDA_SUCCESS : come_alive(*primary);
    if (result == CUDA_SUCCESS) {
        (*primary)->references++;
        *out = *primary;
    }
    sim_unlock();
    return result;
}

static CUresult release_primary(CUdevice device, bool wholly)
{
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    sim_lock();
    CUcontext primary = primaries[sim_visible[device]];
    bool live = primary != NULL && primary->live;
    if (live && (wholly || --primary->references == 0)) die(primary);
    sim_unlock();
    return live || wholly ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

SIM_API cuDevicePrimaryCtxRelease(CUdevice device)
{
    SIM_CALL("%d", device);
    return release_primary(device, false);
}

SIM_API cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    SIM_CALL("%d", device);
    return release_primary(device, false);
}

SIM_API cuDevicePrimaryCtxReset(CUdevice device)
{
    SIM_CALL("%d", device);
    return release_primary(device, true);
}

SIM_API cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    SIM_CALL("%d", device);
    return release_primary(device, true);
}

SIM_API cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    SIM_CALL("%d", device);
    if (flags == NULL || active == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    CUcontext primary = primaries[sim_visible[device]];
    *flags = primary == NULL ? 0 : primary->flags;
    *active = primary != NULL && primary->live;
    return CUDA_SUCCESS;
}

static CUresult set_primary_flags(CUdevice device, unsigned int flags)
{
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    CUcontext primary = primaries[sim_visible[device]];
    if (primary != NULL) primary->flags = flags;
    return CUDA_SUCCESS;
}

SIM_API cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags)
{
    SIM_CALL("%d %u", device, flags);
    return set_primary_flags(device, flags);
}

SIM_API cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
    SIM_CALL("%d %u", device, flags);
    return set_primary_flags(device, flags);
}

/* -- created contexts --------------------------------------------------------------------- */

static CUresult push(CUcontext context)
{
    if (here.depth == STACK) return CUDA_ERROR_INVALID_VALUE;
    here.context[here.depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *out, unsigned int flags, CUdevice device)
{
    if (out == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    sim_lock();
    CUcontext context = object(device, false);
    CUresult result = context == NULL ? CUDA_ERROR_OUT_OF_MEMORY : come_alive(context);
    sim_unlock();
    if (result != CUDA_SUCCESS) return result;
    context->flags = flags;
    context->references = 1;
    *out = context;
    return push(context);
}

SIM_API cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice device)
{
    SIM_CALL("%u %d", flags, device);
    return create(out, flags, device);
}

SIM_API cuCtxCreate_v3(CUcontext *out, CUexecAffinityParam *affinity, int affinities, unsigned int flags,
                       CUdevice device)
{
    SIM_CALL("%d %u %d", affinities, flags, device);
    /* Execution affinity needs MPS, which the machine does not have. */
    if (affinities != 0 || affinity != NULL) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return create(out, flags, device);
}

SIM_API cuCtxCreate_v4(CUcontext *out, CUctxCreateParams *params, unsigned int flags, CUdevice device)
{
    SIM_CALL("%u %d", flags, device);
    if (params != NULL && params->numExecAffinityParams != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return create(out, flags, device);
}

static CUresult destroy(CUcontext context)
{
    CUresult result = check(context);
    if (result != CUDA_SUCCESS) return result;
    if (context->primary) return CUDA_ERROR_INVALID_CONTEXT; /* it is released, not destroyed */
    sim_drain(context);
    sim_lock();
    die(context);
    sim_unlock();
    if (here.depth > 0 && here.context[here.depth - 1] == context) here.depth--;
    return CUDA_SUCCESS;
}

SIM_API cuCtxDestroy(CUcontext context)
{
    SIM_CALL("%p", (void *)context);
    return destroy(context);
}

SIM_API cuCtxDestroy_v2(CUcontext context)
{
    SIM_CALL("%p", (void *)context);
    return destroy(context);
}

/* -- the current context ------------------------------------------------------------------ */

SIM_API cuCtxSetCurrent(CUcontext context)
{
    SIM_CALL("%p", (void *)context);
    if (context == NULL) {
        if (here.depth > 0) here.depth--;
        return CUDA_SUCCESS;
    }
    CUresult result = check(context);
    if (result != CUDA_SUCCESS) return result;
    if (here.depth == 0) return push(context);
    here.context[here.depth - 1] = context;
    return CUDA_SUCCESS;
}

SIM_API cuCtxGetCurrent(CUcontext *out)
{
    SIM_CALL("%s", "");
    if (out == NULL) return CUDA_ERROR_INVALID_VALUE;
    *out = here.depth == 0 ? NULL : here.context[here.depth - 1];
    return CUDA_SUCCESS;
}

static CUresult push_checked(CUcontext context)
{
    CUresult result = check(context);
    return result == CUDA_SUCCESS ? push(context) : result;
}

SIM_API cuCtxPushCurrent(CUcontext context)
{
    SIM_CALL("%p", (void *)context);
    return push_checked(context);
}

SIM_API cuCtxPushCurrent_v2(CUcontext context)
{
    SIM_CALL("%p", (void *)context);
    return push_checked(context);
}

static CUresult pop(CUcontext *out)
{
    if (here.depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
    here.depth--;
    if (out != NULL) *out = here.context[here.depth];
    return CUDA_SUCCESS;
}

SIM_API cuCtxPopCurrent(CUcontext *out)
{
    SIM_CALL("%s", "");
    return pop(out);
}

SIM_API cuCtxPopCurrent_v2(CUcontext *out)
{
    SIM_CALL("%s", "");
    return pop(out);
}

/* -- questions about a context ------------------------------------------------------------ */

SIM_API cuCtxGetDevice(CUdevice *device)
{
    SIM_CALL("%s", "");
    CUcontext context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
}

SIM_API cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    SIM_CALL("%p", (void *)context);
    CUresult result = context == NULL ? sim_current(&context) : check(context);
    if (result != CUDA_SUCCESS) return result;
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
}

SIM_API cuCtxGetId(CUcontext context, unsigned long long *id)
{
    SIM_CALL("%p", (void *)context);
    CUresult result = context == NULL ? sim_current(&context) : check(context);
    if (result != CUDA_SUCCESS) return result;
    if (id == NULL) return CUDA_ERROR_INVALID_VALUE;
    *id = context->id;
    return CUDA_SUCCESS;
}

SIM_API cuCtxGetApiVersion(CUcontext context, unsigned int *version)
{
    SIM_CALL("%p", (void *)context);
    CUresult result = context == NULL ? sim_current(&context) : check(context);
    if (result != CUDA_SUCCESS) return result;
    if (version == NULL) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

SIM_API cuCtxGetFlags(unsigned int *flags)
{
    SIM_CALL("%s", "");
    CUcontext context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (flags == NULL) return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags;
    return CUDA_SUCCESS;
}

SIM_API cuCtxGetLimit(size_t *value, CUlimit limit)
{
    SIM_CALL("%d", (int)limit);
    CUcontext context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (value == NULL) return CUDA_ERROR_INVALID_VALUE;
    if ((unsigned)limit > CU_LIMIT_PERSISTING_L2_CACHE_SIZE) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = context->limit[limit];
    return CUDA_SUCCESS;
}

SIM_API cuCtxSetLimit(CUlimit limit, size_t value)
{
    SIM_CALL("%d %zu", (int)limit, value);
    CUcontext context;
    CUresult result = sim_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if ((unsigned)limit > CU_LIMIT_PERSISTING_L2_CACHE_SIZE) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    size_t before = context->limit[limit];
    context->limit[limit] = value;
    if (sim_limits_charge(context)) return CUDA_SUCCESS;
    context->limit[limit] = before;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    SIM_CALL("%s", "");
    if (least != NULL) *least = 0;
    if (greatest != NULL) *greatest = -5;
    return CUDA_SUCCESS;
}

SIM_API cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    SIM_CALL("%p %u", (void *)peer, flags);
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : check(peer);
}

SIM_API cuCtxDisablePeerAccess(CUcontext peer)
{
    SIM_CALL("%p", (void *)peer);
    return check(peer);
}

static CUresult synchronise(CUcontext context, CUresult result)
{
    if (result == CUDA_SUCCESS) sim_drain(context);
    return result;
}

SIM_API cuCtxSynchronize(void)
{
    SIM_CALL("%s", "");
    CUcontext context = NULL;
    CUresult result = sim_current(&context);
    return synchronise(context, result);
}

SIM_API cuCtxSynchronize_v2(CUcontext context)
{
    SIM_CALL("%p", (void *)context);
    CUresult result = context == NULL ? sim_current(&context) : check(context);
    return synchronise(context, result);
}
