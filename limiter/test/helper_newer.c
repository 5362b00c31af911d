/* A driver from the future, as far as it matters: a way to allocate that nobody knows yet, a later ABI of one that all
 * know, and a new name that has nothing to do with memory. */
#include <string.h>

#define DRIVER __attribute__((visibility("default"))) int

DRIVER cuInit(unsigned int flags);
DRIVER cuMemAlloc_v2(unsigned long long *pointer, unsigned long size);
DRIVER cuMemAlloc_v9(unsigned long long *pointer, unsigned long size, int colour);
DRIVER cuMemAllocTomorrow(unsigned long long *pointer, unsigned long size);
DRIVER cuDeviceGetMood(int *mood);
DRIVER cuGetProcAddress_v2(const char *symbol, void **pfn, int version, unsigned long flags, int *status);
DRIVER cuGetProcAddress(const char *symbol, void **pfn, int version, unsigned long flags);

int cuInit(unsigned int flags)
{
    return (int)flags;
}

int cuMemAlloc_v2(unsigned long long *pointer, unsigned long size)
{
    *pointer = size;
    return 0;
}

int cuMemAlloc_v9(unsigned long long *pointer, unsigned long size, int colour)
{
    *pointer = size + (unsigned)colour;
    return 0;
}

int cuMemAllocTomorrow(unsigned long long *pointer, unsigned long size)
{
    *pointer = size;
    return 0;
}

int cuDeviceGetMood(int *mood)
{
    *mood = 1;
    return 0;
}

int cuGetProcAddress_v2(const char *symbol, void **pfn, int version, unsigned long flags, int *status)
{
    (void)flags;
    *pfn = NULL;
    if (strcmp(symbol, "cuMemAlloc") == 0) {
        *pfn = version >= 90000 ? (void *)&cuMemAlloc_v9 : (void *)&cuMemAlloc_v2;
    } else if (strcmp(symbol, "cuMemAllocTomorrow") == 0) {
        *pfn = (void *)&cuMemAllocTomorrow;
    } else if (strcmp(symbol, "cuDeviceGetMood") == 0) {
        *pfn = (void *)&cuDeviceGetMood;
    }
    if (status != NULL) {
        *status = *pfn == NULL;
    }
    return 0;
}

int cuGetProcAddress(const char *symbol, void **pfn, int version, unsigned long flags)
{
    return cuGetProcAddress_v2(symbol, pfn, version, flags, NULL);
}
