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

/* The sum of the lines of one PID (a process may have several instances). */
static bool sum_of(const nvmlProcessInfo_v2_t *list, unsigned int count, uint32_t pid, uint64_t *bytes)
{
    bool found = false;
    *bytes = 0;
    for (unsigned int i = 0; i < count; i++) {
        if (list[i].pid == pid && list[i].usedGpuMemory != NOT_TOLD) {
            *bytes += list[i].usedGpuMemory;
            found = true;
        }
    }
    return found;
}

static bool find_self(nvmlDevice_t device, uint32_t pid, uint64_t *bytes)
{
    unsigned int count = 0;
    nvmlReturn_t result = ask(device, &count, NULL);
    if ((result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE) || count == 0 || count > MOST_PROCESSES) {
        return false;
    }
    count += NEWCOMERS;
    size_t size = count * sizeof(nvmlProcessInfo_v2_t);
    nvmlProcessInfo_v2_t *list = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (list == MAP_FAILED) {
        return false;
    }
    bool found = ask(device, &count, list) == NVML_SUCCESS && sum_of(list, count, pid, bytes);
    munmap(list, size);
    return found;
}

bool lim_measure(struct lim_process *process, uint32_t device, uint64_t *bytes)
{
    char uuid[TESSERA_UUID_SIZE + 1] = "";
    nvmlDevice_t handle;
    memcpy(uuid, process->region->header.device_uuid[device], TESSERA_UUID_SIZE);
    return is_ready() &&
           CALL_OR(NVML_ERROR_FUNCTION_NOT_FOUND, nvmlDeviceGetHandleByUUID, uuid, &handle) == NVML_SUCCESS &&
           find_self(handle, process->identity.pid, bytes);
}
