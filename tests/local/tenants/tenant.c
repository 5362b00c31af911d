/* A program that uses a device as it is told on standard input, one command a line, one answer a line:
 *
 *     alloc MIB        cuMemAlloc of so many MiB on device 0 of those visible: the result code
 *     bytes N          cuMemAlloc of so many bytes: the result code
 *     free             free the last allocation: the result code
 *     async MIB        cuMemAllocAsync: the result code
 *     async-free       cuMemFreeAsync of the last one and a synchronisation: the result code
 *     info             "FREE TOTAL" in bytes, of cuMemGetInfo
 *     work N           N kernels of 10 ms each, and the end of all of them: the result code
 *     count            how many devices are visible
 *     fork             start another tenant that reads the rest of the input while this one ends
 *     pid              its own PID
 *
 * Ends with the input. The driver is initialised by the first command that needs it, so a tenant that is told
 * nothing never touches a device. Linked against libcuda.so.1, or statically against the simulated driver: then it
 * is what no preload library can reach.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef void *CUcontext;

CUresult cuInit(unsigned flags);
CUresult cuDeviceGet(int *device, int ordinal);
CUresult cuDeviceGetCount(int *count);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, int device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr pointer);
CUresult cuMemGetInfo_v2(size_t *available, size_t *total);
CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, void *stream);
CUresult cuMemFreeAsync(CUdeviceptr pointer, void *stream);
CUresult cuStreamSynchronize(void *stream);
CUresult cuModuleLoadData(void **module, const void *image);
CUresult cuModuleGetFunction(void **function, void *module, const char *name);
CUresult cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **parameters,
                        void **extra);

#define MIB ((size_t)1 << 20)
#define MOST 4096

static CUdeviceptr held[MOST];
static int count;
static CUresult ready = -1;

static CUresult begin(void)
{
    int device;
    CUcontext context;
    if (ready != -1) {
        return ready;
    }
    if ((ready = cuInit(0)) == 0 && (ready = cuDeviceGet(&device, 0)) == 0 &&
        (ready = cuDevicePrimaryCtxRetain(&context, device)) == 0) {
        ready = cuCtxSetCurrent(context);
    }
    return ready;
}

static CUresult take(size_t bytes, int async)
{
    CUresult result = begin();
    if (result != 0) {
        return result;
    }
    if (count == MOST) {
        return -2;
    }
    result = async ? cuMemAllocAsync(&held[count], bytes, NULL) : cuMemAlloc_v2(&held[count], bytes);
    count += result == 0;
    return result;
}

static CUresult give(int async)
{
    if (count == 0) {
        return -3;
    }
    count--;
    if (!async) {
        return cuMemFree_v2(held[count]);
    }
    CUresult result = cuMemFreeAsync(held[count], NULL);
    return result != 0 ? result : cuStreamSynchronize(NULL);
}

static CUresult work(size_t kernels)
{
    static void *module, *function;
    CUresult result = begin();
    if (result == 0 && function == NULL && (result = cuModuleLoadData(&module, "image")) == 0) {
        result = cuModuleGetFunction(&function, module, "work_ms_10");
    }
    for (; result == 0 && kernels > 0; kernels--) {
        result = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    }
    return result != 0 ? result : cuStreamSynchronize(NULL);
}

static void inform(void)
{
    size_t available = 0, total = 0;
    CUresult result = begin();
    if (result == 0) {
        result = cuMemGetInfo_v2(&available, &total);
    }
    if (result == 0) {
        printf("%zu %zu\n", available, total);
    } else {
        printf("error %d\n", result);
    }
}

static void obey(const char *word, size_t amount)
{
    int devices = 0;
    if (strcmp(word, "alloc") == 0) {
        printf("%d\n", take(amount * MIB, 0));
    } else if (strcmp(word, "bytes") == 0) {
        printf("%d\n", take(amount, 0));
    } else if (strcmp(word, "free") == 0) {
        printf("%d\n", give(0));
    } else if (strcmp(word, "async") == 0) {
        printf("%d\n", take(amount * MIB, 1));
    } else if (strcmp(word, "async-free") == 0) {
        printf("%d\n", give(1));
    } else if (strcmp(word, "info") == 0) {
        inform();
    } else if (strcmp(word, "work") == 0) {
        printf("%d\n", work(amount));
    } else if (strcmp(word, "count") == 0) {
        printf("%d\n", begin() == 0 && cuDeviceGetCount(&devices) == 0 ? devices : -1);
    } else if (strcmp(word, "pid") == 0) {
        printf("%d\n", (int)getpid());
    } else if (strcmp(word, "fork") == 0) {
        if (fork() > 0) {
            _exit(0);
        }
        printf("%d\n", (int)getpid());
    } else {
        printf("unknown\n");
    }
}

int main(void)
{
    char line[128], word[32];
    setvbuf(stdin, NULL, _IONBF, 0); /* after fork, the other process reads on where this one stopped */
    while (fgets(line, sizeof line, stdin) != NULL) {
        size_t amount = 0;
        if (sscanf(line, "%31s %zu", word, &amount) >= 1) {
            obey(word, amount);
            fflush(stdout);
        }
    }
    return 0;
}
