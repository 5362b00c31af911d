/* DESIGN
 *
 * cuGetProcAddress: the newest ABI of the base name not newer than the version asked for, in the
 * per-thread-stream form if asked for and there is one. A name or ABI newer than the driver does
 * not exist; a version newer than the driver's is an error. Legal before cuInit.
 *
 * Source: CUDA driver API, Driver Entry Point Access.
 */
#include "names.h"
#include "sim.h"

#include <string.h>

/* The parts of an ELF name: cuMemcpyHtoD | _v2 | _ptds. */
static size_t base_length(const char *name, bool *per_thread)
{
    size_t length = strlen(name);
    *per_thread = length > 5 && (strcmp(name + length - 5, "_ptsz") == 0 || strcmp(name + length - 5, "_ptds") == 0);
    if (*per_thread) length -= 5;
    if (length > 3 && name[length - 3] == '_' && name[length - 2] == 'v' && name[length - 1] >= '0' &&
        name[length - 1] <= '9')
        length -= 3;
    return length;
}

struct query {
    const char *symbol;
    int version; /* asked for */
    int driver;  /* what this driver has */
    bool per_thread;
};

/* The best entry for the query in the given stream form; *known: the name exists at all. */
static const struct sim_name *best(const struct query *query, bool per_thread, bool *known)
{
    const struct sim_name *found = NULL;
    size_t length = strlen(query->symbol);
    for (size_t i = 0; i < sim_name_count; i++) {
        bool twin;
        if (strncmp(sim_names[i].name, query->symbol, length) != 0 || sim_names[i].version == 0) continue;
        if (base_length(sim_names[i].name, &twin) != length || twin != per_thread) continue;
        if (sim_names[i].version > query->driver) continue;
        *known = true;
        if (sim_names[i].version > query->version) continue;
        if (found == NULL || sim_names[i].version > found->version) found = &sim_names[i];
    }
    return found;
}

static CUdriverProcAddressQueryResult resolve(const struct query *query, void **function)
{
    bool known = false;
    const struct sim_name *found = query->per_thread ? best(query, true, &known) : NULL;
    if (found == NULL) found = best(query, false, &known);
    *function = found == NULL ? NULL : (void *)(uintptr_t)found->function;
    if (found != NULL) return CU_GET_PROC_ADDRESS_SUCCESS;
    return known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
}

static CUresult get_address(const char *symbol, void **function, int version, cuuint64_t flags,
                            CUdriverProcAddressQueryResult *status)
{
    struct query query = {symbol, version, 0, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM};
    if (symbol == NULL || function == NULL || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    query.driver = sim_driver_version();
    if (version > query.driver) return CUDA_ERROR_INVALID_VALUE;
    CUdriverProcAddressQueryResult outcome = resolve(&query, function);
    if (status != NULL) *status = outcome;
    return CUDA_SUCCESS;
}

SIM_API cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                            CUdriverProcAddressQueryResult *status)
{
    SIM_TRACE(CUresult, "%s %d %d", symbol == NULL ? "" : symbol, version, (int)flags);
    return get_address(symbol, function, version, flags, status);
}

SIM_API cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
    SIM_TRACE(CUresult, "%s %d %d", symbol == NULL ? "" : symbol, version, (int)flags);
    return get_address(symbol, function, version, flags, NULL);
}

SIM_API cuGetExportTable(const void **table, const CUuuid *id)
{
    SIM_TRACE(CUresult, "%p", (const void *)id);
    (void)table;
    return CUDA_ERROR_NOT_FOUND; /* private tables are not modelled: a real libcudart stops here */
}
