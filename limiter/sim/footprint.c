/* DESIGN
 *
 * Device memory that no call asks for by size, with sizes that a test can choose:
 *
 *     code     a module whose image is text that begins with "code_mib=N" takes N MiB when it is loaded into a context,
 *              a library when a kernel of it is first asked for there (lazy loading); any other image takes nothing
 *     limits   heap and printf buffer take what they are set to above their defaults; the stack takes as much per
 *              thread that the card can hold at once (2,048 on each multiprocessor)
 *
 * All of it ends with the context, code also when it is unloaded. It is part of what NVML says that the process uses.
 *
 * Source: CUDA driver API, cuCtxSetLimit; sizes are this simulation's.
 */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

enum { THREADS_PER_SM = 2048 };

struct footprint {
    const void *what; /* module or library; NULL for a context's limits */
    CUcontext context;
    uint32_t charge;
    struct footprint *next;
};

static struct footprint *footprints;

void sim_footprints_forget(void)
{
    for (struct footprint *at = footprints, *next; at != NULL; at = next) {
        next = at->next;
        free(at); /* the charge is the parent's */
    }
    footprints = NULL;
}

static struct footprint *find(const void *what, CUcontext context)
{
    struct footprint *at = footprints;
    while (at != NULL && (at->what != what || at->context != context)) at = at->next;
    return at;
}

/* Sets what is charged for (what, context) to `bytes`; false when memory is short. Called with the lock held. */
static bool set(const void *what, CUcontext context, uint64_t bytes)
{
    struct footprint *known = find(what, context);
    if (known == NULL && bytes == 0) return true;
    if (known != NULL) return sim_resize(known->charge, bytes);
    struct footprint *made = calloc(1, sizeof *made);
    if (made == NULL) return false;
    *made = (struct footprint){what, context, sim_take(context->row, bytes, SIM_CONTEXT), footprints};
    if (made->charge == 0) {
        free(made);
        return false;
    }
    footprints = made;
    return true;
}

static void drop_if(const void *what, CUcontext context)
{
    for (struct footprint **link = &footprints, *at; (at = *link) != NULL;) {
        if ((what == NULL || at->what != what) && (context == NULL || at->context != context)) {
            link = &at->next;
            continue;
        }
        *link = at->next;
        sim_give(at->charge);
        free(at);
    }
}

void sim_footprints_of_context_free(CUcontext context)
{
    drop_if(NULL, context);
}

uint64_t sim_code_bytes(const char *image)
{
    static const char mark[] = "code_mib=";
    if (strncmp(image, mark, sizeof mark - 1) != 0) return 0;
    return strtoull(image + sizeof mark - 1, NULL, 10) * SIM_MIB;
}

bool sim_code_load(const void *what, CUcontext context, uint64_t bytes)
{
    sim_lock();
    bool loaded = find(what, context) != NULL || set(what, context, bytes);
    sim_unlock();
    return loaded;
}

void sim_code_unload(const void *what)
{
    sim_lock();
    drop_if(what, NULL);
    sim_unlock();
}

static uint64_t above(const CUcontext context, CUlimit limit, size_t least)
{
    return context->limit[limit] > least ? context->limit[limit] - least : 0;
}

bool sim_limits_charge(CUcontext context)
{
    uint64_t threads = (uint64_t)sim_description.device[context->row].sms * THREADS_PER_SM;
    uint64_t bytes = above(context, CU_LIMIT_STACK_SIZE, 1024) * threads +
                     above(context, CU_LIMIT_PRINTF_FIFO_SIZE, 1048576) +
                     above(context, CU_LIMIT_MALLOC_HEAP_SIZE, 8388608);
    sim_lock();
    bool charged = set(NULL, context, bytes);
    sim_unlock();
    return charged;
}
