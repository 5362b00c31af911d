/* DESIGN
 *
 * cudart resolves everything through cuGetProcAddress with base names and versions ("cuMemAlloc", 3020), never by
 * symbol. The driver is asked first, and its refusals, NULLs and status pass unchanged. Only a pointer that
 * it handed out is replaced: the version picks the newest ABI of that name that is not newer, the flags pick the stream
 * variant where one exists, and if that ABI is hooked the caller gets the hook; the driver's pointer becomes the hook's
 * target. Names not in the table are the driver's business.
 *
 * A version above the table's newest (a toolkit newer than this library) may mean an ABI that the table does not know.
 * Handing out our hook for it would be wrong, and handing out the driver's would open a way round the limit for every
 * program that asks with its own CUDA_VERSION. So the pointer decides: if it is the address of the driver's symbol
 * of a later ABI (base_v2, base_v3, ...) it is passed on, else it is ours to replace.
 */
#include "resolve.h"

#include <string.h>

#include "driver.h"
#include "elf.h"
#include "unknown.h"

enum stream_variant { PLAIN, PTSZ };

struct row {
    const char *name;
    const char *base;    /* NULL for NVML */
    void *hook;          /* NULL: forwarded */
    void **target;
    int since;
    enum stream_variant variant;
};

#define CUDA_PASS(name, base, since, variant) {#name, #base, NULL, NULL, since, variant},
#define CUDA_HOOK(name, base, since, variant)                                                                         \
    {#name, #base, (void *)&name, (void **)&lim_driver.name, since, variant},
#define NVML_HOOK(name) {#name, NULL, (void *)&name, (void **)&lim_driver.name, 0, PLAIN},
#define CUDA_NEED(name)
#define NVML_NEED(name)
static const struct row rows[] = {
#include "hooks.def"
};
#undef CUDA_PASS
#undef CUDA_HOOK
#undef NVML_HOOK
#undef CUDA_NEED
#undef NVML_NEED

#define ROW_COUNT (sizeof rows / sizeof *rows)

/* The newest version that hooks.def was checked against. */
#define NEWEST_KNOWN 13050

static const struct row *row_by_name(const char *name)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

static const struct row *newest_row(const char *base, int version, enum stream_variant variant)
{
    const struct row *newest = NULL;
    for (size_t i = 0; i < ROW_COUNT; i++) {
        const struct row *row = &rows[i];
        if (row->base != NULL && row->variant == variant && row->since <= version && strcmp(row->base, base) == 0 &&
            (newest == NULL || row->since > newest->since)) {
            newest = row;
        }
    }
    return newest;
}

static void adopt(const struct row *row, void *target)
{
    void *expected = NULL;
    __atomic_compare_exchange_n(row->target, &expected, target, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

void *lim_hook_by_name(const char *name, const char **library)
{
    const struct row *row = row_by_name(name);
    if (row == NULL) {
        return NULL;
    }
    *library = row->base == NULL ? NVML_LIBRARY : CUDA_LIBRARY;
    return row->hook;
}

void lim_adopt_target(const char *name, void *target)
{
    const struct row *row = row_by_name(name);
    if (row != NULL && row->hook != NULL) {
        adopt(row, target);
    }
}

void lim_each_hook(void (*visit)(const char *name, void *hook))
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (rows[i].hook != NULL) {
            visit(rows[i].name, rows[i].hook);
        }
    }
}

/* True if the driver exports `address` as a later ABI of the base name than any in the table. */
static bool is_later_abi(const char *base, const void *address)
{
    char name[64];
    size_t length = strlen(base);
    if (length + 4u > sizeof name) {
        return false;
    }
    memcpy(name, base, length);
    for (char digit = '2'; digit <= '9'; digit++) {
        memcpy(name + length, (const char[]){'_', 'v', digit, '\0'}, 4);
        if (row_by_name(name) == NULL && lim_elf_symbol(CUDA_LIBRARY, name) == address) {
            return true;
        }
    }
    return false;
}

/* What the caller gets instead of the driver's non-NULL `address` of a function without a hook. NULL: refused. */
static void *forwarded(const char *name, void *address, bool is_unknown)
{
    return (is_unknown || lim_is_unknown(name)) && lim_refuses_unknown() ? NULL : address;
}

/* What the caller gets instead of the driver's non-NULL `address`; NULL if it is not to have it. */
static void *replacement(const char *symbol, void *address, int version, cuuint64_t flags)
{
    const struct row *row = NULL;
    if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0) {
        row = newest_row(symbol, version, PTSZ);
    }
    if (row == NULL) {
        row = newest_row(symbol, version, PLAIN);
    }
    if (row == NULL) {
        row = row_by_name(symbol); /* an ELF name: drivers answer some */
    }
    bool is_later = row != NULL && version > NEWEST_KNOWN && is_later_abi(symbol, address);
    if (row == NULL || row->hook == NULL || is_later) {
        return forwarded(symbol, address, is_later && row->hook != NULL);
    }
    adopt(row, address);
    return row->hook;
}

LIM_EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    CUresult result = CALL(cuGetProcAddress, symbol, pfn, version, flags);
    if (result == CUDA_SUCCESS && symbol != NULL && pfn != NULL && *pfn != NULL) {
        *pfn = replacement(symbol, *pfn, version, flags);
    }
    return result;
}

LIM_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                                        CUdriverProcAddressQueryResult *status)
{
    CUresult result = CALL(cuGetProcAddress_v2, symbol, pfn, version, flags, status);
    if (result == CUDA_SUCCESS && symbol != NULL && pfn != NULL && *pfn != NULL) {
        *pfn = replacement(symbol, *pfn, version, flags);
        if (*pfn == NULL && status != NULL) {
            *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        }
    }
    return result;
}
