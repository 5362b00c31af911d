/* First of two libraries that define the same symbol: asks for the next definition after itself. */
#define API __attribute__((visibility("default")))
#include <dlfcn.h>

API const char *tessera_probe(void);
API const char *(*tessera_next_probe(void))(void);
API void *cuMemAlloc_v2(void); /* a wrapper of the driver, as profilers have them */

API const char *tessera_probe(void)
{
    return "a";
}

API const char *(*tessera_next_probe(void))(void)
{
    /* volatile: a sibling call would make this function's caller the caller of dlsym */
    void *volatile next = dlsym(RTLD_NEXT, "tessera_probe");
    return (const char *(*)(void))next;
}

API void *cuMemAlloc_v2(void)
{
    return 0;
}
