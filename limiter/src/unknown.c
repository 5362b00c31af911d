/* DESIGN
 *
 * A driver may be newer than this library and offer ways to take memory that no hook stands before. Nothing can be
 * known about such a function but its name, so the name decides: one that reads like the families that take memory
 * or run work and that abi/cuda_surface.def does not list is unknown. The driver's own symbol table is looked
 * through once per process, after cuInit, so that the agent sees what is on offer before anyone asks for it. A share
 * whose policy says so is told that these functions do not exist: cuGetProcAddress answers as for any name that the
 * driver does not have.
 *
 * A word too many only means a report; a word too few would be a hole. Names of later ABIs (cuMemAlloc_v3) are unknown
 * too, as their structures may differ.
 */
#include "unknown.h"

#include <string.h>

#include "atomics.h"
#include "driver.h"
#include "elf.h"

/* Parts of names. Some say little: the table lists what they hit and is harmless. */
static const char *const words[] = {"Alloc", "Create", "Import", "Instantiate", "Load", "Launch", "Open", "MemMap"};

static const char *const known[] = {
#define CU_SURFACE(name, class, answer) #name,
#include "cuda_surface.def"
#undef CU_SURFACE
};

static bool reads_like_taking(const char *name)
{
    if (name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z') {
        return false;
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strstr(name, words[i]) != NULL) {
            return true;
        }
    }
    return false;
}

/* True if `base` is `name` without the mark of its ABI or stream variant. */
static bool is_base_of(const char *base, const char *name)
{
    size_t length = strlen(base);
    return strncmp(base, name, length) == 0 &&
           (strncmp(name + length, "_v", 2) == 0 || strncmp(name + length, "_pt", 3) == 0);
}

bool lim_is_unknown(const char *name)
{
    if (!reads_like_taking(name)) {
        return false;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i], name) == 0 || is_base_of(name, known[i])) {
            return false;
        }
    }
    return true;
}

bool lim_refuses_unknown(void)
{
    const struct tessera_region *region = lim_region();
    return region != NULL && (__atomic_load_n(&region->control.policy, __ATOMIC_RELAXED) & TESSERA_REFUSE_UNKNOWN) != 0;
}

struct found {
    uint64_t count;
    char first[TESSERA_SYMBOL_SIZE];
};

static void visit(const char *name, void *with)
{
    struct found *found = with;
    if (!lim_is_unknown(name)) {
        return;
    }
    if (found->count++ == 0) {
        strncpy(found->first, name, sizeof found->first - 1u);
    }
}

void lim_report_unknown(struct tessera_region *region)
{
    static uint32_t done;
    struct found found = {.count = 0};
    if (__atomic_exchange_n(&done, 1u, __ATOMIC_RELAXED) != 0) {
        return;
    }
    lim_elf_each(CUDA_LIBRARY, visit, &found);
    /* Processes of a container share one driver, so who is first speaks for all. */
    if (found.count > 0 && word_swap(&region->usage.unknown_count, 0, found.count)) {
        memcpy(region->usage.unknown_symbol, found.first, sizeof found.first);
    }
}
