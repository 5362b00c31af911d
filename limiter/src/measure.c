/* DESIGN
 *
 * NVML's process list is the only figure that counts everything: contexts, code, heaps, and what other libraries
 * took past us. It is looked up by our own PID, as our PID namespace numbers it. Drivers differ in what a container
 * is shown: its own numbers, the host's, or nothing. A host number may be somebody else's, so a figure below what
 * our own books say (hidden.c) is not believed. Where there is no figure the agent, which sees the host's numbers,
 * has the last word (unseen_bytes in the region).
 *
 * NVML is taken as the program loaded it, else loaded here, on the first context of the process: a program with a
 * context has waited for the driver by then. dlopen is found like dlsym in interpose.c, so that this library needs no
 * symbol newer than glibc 2.17. Without NVML on the machine nothing is measured and nothing fails.
 *
 * Source: NVML API reference, nvmlDeviceGetComputeRunningProcesses: usedGpuMemory is the process's whole footprint;
 * NVML_VALUE_NOT_AVAILABLE (all ones) where the driver does not tell.
 */
#include "measure.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>

#include "elf.h"

#define NVML_FILE "libnvidia-ml.so.1"
#define NOT_TOLD UINT64_MAX
#define NEWCOMERS 16u /* processes that may appear between asking how many there are and listing them */
#define MOST_PROCESSES 65536u
#define LAG_NS UINT64_C(500000000) /* after which a context that is not listed is listed by another number */

enum { NOT_TRIED = 0, READY, ABSENT };

static void *loader_function(const char *name)
{
    void *function = lim_elf_symbol("libc.so.6", name);
    return function != NULL ? function : lim_elf_symbol("libdl.so.2", name);
}

/* Loads NVML unless the program did. A failure leaves no message for the program's next dlerror(). */
static void load(void)
{
    typedef void *(*opener)(const char *, int);
    typedef char *(*messenger)(void);
    opener open_library = (opener)loader_function("dlopen");
    messenger message = (messenger)loader_function("dlerror");
    if (open_library != NULL && open_library(NVML_FILE, RTLD_NOW | RTLD_LOCAL) == NULL && message != NULL) {
        message();
    }
}

/* True once NVML is loaded and initialised; what fails once is not tried again. Threads may both try: initialising
 * counts, so twice is harmless. */
static bool is_ready(void)
{
    static uint32_t state;
    if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) == NOT_TRIED) {
        if (lim_elf_symbol(NVML_LIBRARY, "nvmlInit_v2") == NULL) {
            load();
        }
        bool ready = CALL_OR(NVML_ERROR_FUNCTION_NOT_FOUND, nvmlInit_v2) == NVML_SUCCESS;
        __atomic_store_n(&state, ready ? READY : ABSENT, __ATOMIC_RELEASE);
    }
    return __atomic_load_n(&state, __ATOMIC_ACQUIRE) == READY;
}

static nvmlReturn_t ask(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *list)
{
    if (HAS(nvmlDeviceGetComputeRunningProcesses_v3)) {
        return lim_driver.nvmlDeviceGetComputeRunningProcesses_v3(device, count, list);
    }
    return CALL_OR(NVML_ERROR_FUNCTION_NOT_FOUND, nvmlDeviceGetComputeRunningProcesses_v2, device, count, list);
}

/* What a list says of one PID. */
struct sighting {
    bool is_listed;
    bool is_told; /* with a figure: `bytes` */
    uint64_t bytes;
};

/* The sum of the lines of one PID (a process may have several instances). */
static struct sighting sum_of(const nvmlProcessInfo_v2_t *list, unsigned int count, uint32_t pid)
{
    struct sighting seen = {false, false, 0};
    for (unsigned int i = 0; i < count; i++) {
        if (list[i].pid != pid) {
            continue;
        }
        seen.is_listed = true;
        if (list[i].usedGpuMemory != NOT_TOLD) {
            seen.is_told = true;
            seen.bytes += list[i].usedGpuMemory;
        }
    }
    return seen;
}

/* False where there is no list. */
static bool find_pid(nvmlDevice_t device, uint32_t pid, struct sighting *seen)
{
    unsigned int count = 0;
    nvmlReturn_t result = ask(device, &count, NULL);
    if ((result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE) || count > MOST_PROCESSES) {
        return false;
    }
    *seen = sum_of(NULL, 0, pid);
    if (count == 0) {
        return true;
    }
    count += NEWCOMERS;
    size_t size = count * sizeof(nvmlProcessInfo_v2_t);
    nvmlProcessInfo_v2_t *list = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (list == MAP_FAILED) {
        return false;
    }
    bool is_list = ask(device, &count, list) == NVML_SUCCESS;
    if (is_list) {
        *seen = sum_of(list, count, pid);
    }
    munmap(list, size);
    return is_list;
}

/* Our own number on a device of the region. */
static bool find_self(const struct lim_process *process, uint32_t device, struct sighting *seen)
{
    char uuid[TESSERA_UUID_SIZE + 1] = "";
    nvmlDevice_t handle;
    memcpy(uuid, process->region->header.device_uuid[device], TESSERA_UUID_SIZE);
    return is_ready() &&
           CALL_OR(NVML_ERROR_FUNCTION_NOT_FOUND, nvmlDeviceGetHandleByUUID, uuid, &handle) == NVML_SUCCESS &&
           find_pid(handle, process->identity.pid, seen);
}

/* -- whose number it is ------------------------------------------------------------------------------------------- */

/* lim_process.numbering. A thread that sees EXPECTED may find its number on the device because of another's context:
 * only from UNKNOWN, which it was before any context, can a number that is there be somebody else's. */
enum { UNKNOWN = 0, EXPECTED, OURS, FOREIGN };

static void learn(struct lim_process *process, uint32_t from, uint32_t to)
{
    __atomic_compare_exchange_n(&process->numbering, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static uint32_t numbering(const struct lim_process *process)
{
    return __atomic_load_n(&process->numbering, __ATOMIC_ACQUIRE);
}

static bool has_context(struct lim_process *process, uint32_t device)
{
    struct record *record;
    bool found = false;
    lim_lock(process);
    for (size_t at = 0; !found && (record = lim_ledger_from(&process->ledger, at)) != NULL;) {
        at = (size_t)(record - process->ledger.records) + 1u;
        found = record->device == device && record->class == RECORD_CONTEXT;
    }
    lim_unlock(process);
    return found;
}

void lim_expect_context(struct lim_process *process, int device)
{
    struct sighting seen;
    if (device < 0 || numbering(process) > EXPECTED) {
        return;
    }
    if (numbering(process) == UNKNOWN && find_self(process, (uint32_t)device, &seen)) {
        learn(process, UNKNOWN, seen.is_listed ? FOREIGN : EXPECTED);
    }
    __atomic_store_n(&process->expected_ns, lim_coarse_ns(), __ATOMIC_RELAXED);
}

bool lim_measure(struct lim_process *process, uint32_t device, uint64_t *bytes)
{
    struct sighting seen;
    if (numbering(process) == FOREIGN || !find_self(process, device, &seen)) {
        return false;
    }
    if (seen.is_listed) {
        learn(process, EXPECTED, OURS);
    } else if (lim_coarse_ns() - __atomic_load_n(&process->expected_ns, __ATOMIC_RELAXED) > LAG_NS &&
               has_context(process, device)) {
        learn(process, EXPECTED, FOREIGN);
    }
    *bytes = seen.bytes;
    return seen.is_told && numbering(process) != FOREIGN;
}
