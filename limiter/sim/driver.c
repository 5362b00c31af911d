/* DESIGN
 *
 * cuInit, versions, errors, and which devices the process sees.
 *
 * CUDA_VISIBLE_DEVICES: a comma list of ordinals, UUIDs (GPU-...) or UUID prefixes. The list ends
 * at the first entry that names no device or more than one; a device named twice leaves nothing.
 * Unset means all; the empty string means none. No visible device: cuInit answers NO_DEVICE.
 *
 * After fork the child has no CUDA: its calls answer NOT_INITIALIZED until it calls cuInit itself
 * and becomes an owner of its own. (The real driver refuses the child for good; a test that forks
 * wants the weaker rule, and no program relies on the stronger one.)
 *
 * Source: CUDA C++ Programming Guide, environment variables; cuda.h for result codes.
 */
#include "sim.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

bool sim_ready;
int sim_visible[SIM_MAX_DEVICES];
int sim_visible_count;

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static bool fork_watched;

/* -- visible devices ---------------------------------------------------------------------- */

/* The row that an entry of the list names, -1 for none or for more than one. */
static int row_named(const char *entry)
{
    char *end = NULL;
    if (strncmp(entry, "GPU-", 4) == 0) {
        int found = -1;
        for (int row = 0; row < sim_description.count; row++) {
            if (strncmp(sim_description.device[row].uuid, entry, strlen(entry)) != 0) continue;
            if (found >= 0) return -1;
            found = row;
        }
        return found;
    }
    long ordinal = strtol(entry, &end, 10);
    bool whole = end != entry && *end == '\0';
    return whole && ordinal >= 0 && ordinal < sim_description.count ? (int)ordinal : -1;
}

static bool is_listed(int row)
{
    for (int i = 0; i < sim_visible_count; i++)
        if (sim_visible[i] == row) return true;
    return false;
}

static void list_visible(const char *list)
{
    char copy[2048], *rest = NULL;
    sim_visible_count = 0;
    if (list == NULL) {
        for (int row = 0; row < sim_description.count; row++) sim_visible[sim_visible_count++] = row;
        return;
    }
    if (strlen(list) >= sizeof copy) return;
    strcpy(copy, list);
    for (char *at = strtok_r(copy, ",", &rest); at != NULL; at = strtok_r(NULL, ",", &rest)) {
        while (*at == ' ') at++;
        int row = row_named(at);
        if (row < 0) return;
        if (is_listed(row)) {
            sim_visible_count = 0;
            return;
        }
        sim_visible[sim_visible_count++] = row;
    }
}

/* -- initialisation ----------------------------------------------------------------------- */

static void after_fork(void)
{
    pthread_mutex_init(&init_lock, NULL);
    sim_ready = false;
    sim_forget();
}

/* A child that initialises starts with empty tables: what it inherited is its parent's. */
static void forget_parent(void)
{
    sim_handles_forget();
    sim_pools_forget();
    sim_graphs_forget();
    sim_footprints_forget();
    sim_ipc_forget();
    sim_multicasts_forget();
    sim_arrays_forget();
    sim_blocks_forget();
    sim_streams_forget();
    sim_contexts_forget();
}

static CUresult initialise(void)
{
    if (!sim_machine_open()) return CUDA_ERROR_NO_DEVICE;
    list_visible(getenv("CUDA_VISIBLE_DEVICES"));
    if (sim_visible_count == 0) return CUDA_ERROR_NO_DEVICE;
    if (!fork_watched && pthread_atfork(NULL, NULL, after_fork) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
    fork_watched = true;
    sim_lock();
    forget_parent();
    bool registered = sim_register();
    sim_unlock();
    if (!registered) return CUDA_ERROR_OPERATING_SYSTEM;
    sim_ready = true;
    return CUDA_SUCCESS;
}

SIM_API cuInit(unsigned int flags)
{
    sim_trace_load();
    SIM_TRACE(CUresult, "%u", flags);
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&init_lock);
    CUresult result = sim_ready ? CUDA_SUCCESS : initialise();
    pthread_mutex_unlock(&init_lock);
    return result;
}

int sim_driver_version(void)
{
    pthread_mutex_lock(&init_lock);
    if (sim_machine == NULL && sim_description.version == 0) sim_describe(&sim_description);
    int version = sim_description.version;
    pthread_mutex_unlock(&init_lock);
    return version;
}

SIM_API cuDriverGetVersion(int *version)
{
    SIM_TRACE(CUresult, "%s", "");
    if (version == NULL) return CUDA_ERROR_INVALID_VALUE;
    *version = sim_driver_version();
    return CUDA_SUCCESS;
}

/* -- errors ------------------------------------------------------------------------------- */

static const struct {
    int code;
    const char *name, *words;
} results[] = {
#define CU_RESULT(name, code, words) {code, #name, words},
#include "../abi/cuda_results.def"
#undef CU_RESULT
};

SIM_API cuGetErrorName(CUresult error, const char **text)
{
    if (text == NULL) return CUDA_ERROR_INVALID_VALUE;
    *text = NULL;
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        if (results[i].code == (int)error) *text = results[i].name;
    return *text == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIM_API cuGetErrorString(CUresult error, const char **text)
{
    if (text == NULL) return CUDA_ERROR_INVALID_VALUE;
    *text = NULL;
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        if (results[i].code == (int)error) *text = results[i].words;
    return *text == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
