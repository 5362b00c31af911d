/* DESIGN
 *
 * Every name of nvml_names.def that no other file implements, as a weak function that answers
 * NVML_ERROR_NOT_SUPPORTED. The header with the signatures is left out on purpose.
 */
#include "trace.h"

enum { NOT_SUPPORTED = 3 };

#define NVML_NAME(name)                                                            \
    __attribute__((weak, visibility("default"))) int name(void);                   \
    __attribute__((weak, visibility("default"))) int name(void)                    \
    {                                                                              \
        SIM_TRACE(int, "%s", "stub");                                              \
        return NOT_SUPPORTED;                                                      \
    }
#include "nvml_names.def"
#undef NVML_NAME
