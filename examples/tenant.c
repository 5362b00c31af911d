/* DESIGN
 *
 * A tenant of a device, for tests and demonstrations: a plain CUDA program, dynamically linked with libc alone, that
 * opens the driver (libcuda.so.1, libnvidia-ml.so.1) as cudart and PyTorch do. It says what it sees and what it got, one
 * fact a line, and knows nothing of Tessera.
 *
 *     tenant show                     what CUDA and NVML show of every device
 *     tenant hold MIB [SECONDS]       takes MIB and keeps it (without SECONDS: until it is told to end)
 *     tenant fill STEP [SECONDS]      takes STEP MiB at a time until it is refused, then keeps it (default 0)
 *
 * `--device N` before the command chooses the device (default 0). The exit status: 0 done (for fill: refused, as it
 * should be), 1 wrong usage, 2 no driver or a function missing in it, 3 a call failed (the last line says which), 4 fill
 * was never refused.
 */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB (1024ull * 1024ull)
#define FILL_MOST_MIB (16ull * 1024ull * 1024ull) /* more than any device has */
#define OUT_OF_MEMORY 2
#define FOR_EVER UINT64_MAX

enum { DONE = 0, WRONG_USAGE = 1, NO_DRIVER = 2, CALL_FAILED = 3, NEVER_REFUSED = 4 };

struct nvml_memory {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
};

static struct {
    int (*init)(unsigned);
    int (*device_count)(int *);
    int (*device)(int *, int);
    int (*name)(char *, int, int);
    int (*total)(size_t *, int);
    int (*retain)(void **, int);
    int (*set_current)(void *);
    int (*info)(size_t *, size_t *);
    int (*allocate)(unsigned long long *, size_t);
    int (*error_name)(int, const char **);
} cuda;

static struct {
    int (*init)(void);
    int (*device_count)(unsigned *);
    int (*device)(unsigned, void **);
    int (*uuid)(void *, char *, unsigned);
    int (*memory)(void *, struct nvml_memory *);
} nvml;

static void fact(const char *name, unsigned long long value)
{
    printf("%s %llu\n", name, value);
}

static _Noreturn void end(int status, const char *what, const char *why)
{
    printf("%s %s\n", what, why);
    exit(status);
}

/* Ends the program with the call's name, its code and the driver's word for it. */
static void must(int code, const char *call)
{
    const char *name = NULL;
    char text[128];
    if (code == 0) {
        return;
    }
    if (strncmp(call, "nvml", 4) == 0 || cuda.error_name(code, &name) != 0 || name == NULL) {
        name = "-";
    }
    snprintf(text, sizeof text, "%s %d %s", call, code, name);
    end(CALL_FAILED, "failed", text);
}

static void *driver(const char *library)
{
    void *handle = dlopen(library, RTLD_NOW);
    if (handle == NULL) {
        end(NO_DRIVER, "missing", library);
    }
    return handle;
}

static void bind(void *handle, void *pointer, const char *symbol)
{
    void *found = dlsym(handle, symbol);
    if (found == NULL) {
        end(NO_DRIVER, "missing", symbol);
    }
    memcpy(pointer, &found, sizeof found);
}

static void open_cuda(void)
{
    void *handle = driver("libcuda.so.1");
    bind(handle, &cuda.init, "cuInit");
    bind(handle, &cuda.device_count, "cuDeviceGetCount");
    bind(handle, &cuda.device, "cuDeviceGet");
    bind(handle, &cuda.name, "cuDeviceGetName");
    bind(handle, &cuda.total, "cuDeviceTotalMem_v2");
    bind(handle, &cuda.retain, "cuDevicePrimaryCtxRetain");
    bind(handle, &cuda.set_current, "cuCtxSetCurrent");
    bind(handle, &cuda.info, "cuMemGetInfo_v2");
    bind(handle, &cuda.allocate, "cuMemAlloc_v2");
    bind(handle, &cuda.error_name, "cuGetErrorName");
    must(cuda.init(0), "cuInit");
}

static void open_nvml(void)
{
    void *handle = driver("libnvidia-ml.so.1");
    bind(handle, &nvml.init, "nvmlInit_v2");
    bind(handle, &nvml.device_count, "nvmlDeviceGetCount_v2");
    bind(handle, &nvml.device, "nvmlDeviceGetHandleByIndex_v2");
    bind(handle, &nvml.uuid, "nvmlDeviceGetUUID");
    bind(handle, &nvml.memory, "nvmlDeviceGetMemoryInfo");
    must(nvml.init(), "nvmlInit");
}

static void use_device(int ordinal)
{
    int device;
    void *context;
    must(cuda.device(&device, ordinal), "cuDeviceGet");
    must(cuda.retain(&context, device), "cuDevicePrimaryCtxRetain");
    must(cuda.set_current(context), "cuCtxSetCurrent");
}

/* -- commands ----------------------------------------------------------------------------------- */

static void show_cuda_device(int ordinal)
{
    int device;
    char name[256] = "";
    size_t total;
    size_t free_bytes;
    size_t shown;
    must(cuda.device(&device, ordinal), "cuDeviceGet");
    must(cuda.name(name, sizeof name, device), "cuDeviceGetName");
    must(cuda.total(&total, device), "cuDeviceTotalMem");
    use_device(ordinal);
    must(cuda.info(&free_bytes, &shown), "cuMemGetInfo");
    printf("cuda_device %d\ncuda_name %s\n", ordinal, name);
    fact("cuda_device_total_mib", total / MIB);
    fact("cuda_total_mib", shown / MIB);
    fact("cuda_free_mib", free_bytes / MIB);
}

static void show_nvml_device(unsigned index)
{
    void *device;
    char uuid[96] = "";
    struct nvml_memory memory;
    must(nvml.device(index, &device), "nvmlDeviceGetHandleByIndex");
    must(nvml.uuid(device, uuid, sizeof uuid), "nvmlDeviceGetUUID");
    must(nvml.memory(device, &memory), "nvmlDeviceGetMemoryInfo");
    printf("nvml_device %u\nnvml_uuid %s\n", index, uuid);
    fact("nvml_total_mib", memory.total / MIB);
    fact("nvml_used_mib", memory.used / MIB);
    fact("nvml_free_mib", memory.free / MIB);
}

static int show(void)
{
    int count;
    unsigned listed;
    must(cuda.device_count(&count), "cuDeviceGetCount");
    fact("cuda_devices", (unsigned long long)count);
    for (int ordinal = 0; ordinal < count; ordinal++) {
        show_cuda_device(ordinal);
    }
    open_nvml();
    must(nvml.device_count(&listed), "nvmlDeviceGetCount");
    fact("nvml_devices", listed);
    for (unsigned index = 0; index < listed; index++) {
        show_nvml_device(index);
    }
    return DONE;
}

/* Waits that long, or until SIGTERM or SIGINT: as process 1 of a container it would not be ended by them otherwise. */
static void keep(uint64_t seconds)
{
    const struct timespec length = {.tv_sec = (time_t)(seconds == FOR_EVER ? 0 : seconds)};
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    if (seconds == 0) {
        return;
    }
    sigprocmask(SIG_BLOCK, &ends, NULL);
    while (sigtimedwait(&ends, NULL, seconds == FOR_EVER ? NULL : &length) < 0 && errno == EINTR) {
    }
    printf("ended\n");
}

static int hold(uint64_t mib, uint64_t seconds)
{
    unsigned long long pointer;
    must(cuda.allocate(&pointer, mib * MIB), "cuMemAlloc");
    fact("held_mib", mib);
    keep(seconds);
    return DONE;
}

static int fill(uint64_t step, uint64_t seconds)
{
    unsigned long long pointer;
    uint64_t reached = 0;
    int code = 0;
    while (reached <= FILL_MOST_MIB && (code = cuda.allocate(&pointer, step * MIB)) == 0) {
        reached += step;
    }
    fact("reached_mib", reached);
    if (code == 0) {
        return NEVER_REFUSED;
    }
    if (code != OUT_OF_MEMORY) {
        must(code, "cuMemAlloc");
    }
    printf("refused %d CUDA_ERROR_OUT_OF_MEMORY\n", code);
    keep(seconds);
    return DONE;
}

/* -- the command line --------------------------------------------------------------------------- */

static uint64_t number(const char *text, uint64_t least)
{
    char *rest = "";
    errno = 0;
    unsigned long long value = strtoull(text, &rest, 10);
    if (*text < '0' || *text > '9' || *rest != '\0' || errno != 0 || value < least || value > FILL_MOST_MIB) {
        end(WRONG_USAGE, "not a number in range:", text);
    }
    return value;
}

static int run(int count, char **words, int ordinal)
{
    bool wants_number = count >= 2 && (strcmp(words[0], "hold") == 0 || strcmp(words[0], "fill") == 0);
    bool shows = count == 1 && strcmp(words[0], "show") == 0;
    if (!shows && (!wants_number || count > 3)) {
        end(WRONG_USAGE, "usage:", "tenant [--device N] show | hold MIB [SECONDS] | fill STEP [SECONDS]");
    }
    uint64_t mib = wants_number ? number(words[1], 1) : 0;
    uint64_t seconds = count == 3 ? number(words[2], 0) : FOR_EVER;
    open_cuda();
    if (shows) {
        return show();
    }
    use_device(ordinal);
    return words[0][0] == 'h' ? hold(mib, seconds) : fill(mib, count == 3 ? seconds : 0);
}

int main(int count, char **words)
{
    int ordinal = 0;
    setvbuf(stdout, NULL, _IOLBF, 0); /* a log that somebody follows */
    words++, count--;
    if (count >= 2 && strcmp(words[0], "--device") == 0) {
        ordinal = (int)number(words[1], 0);
        words += 2, count -= 2;
    }
    return run(count, words, ordinal);
}
