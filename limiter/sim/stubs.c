/* DESIGN
 *
 * Every name of names.def that no other file implements exists as a weak function answering
 * NOT_SUPPORTED; the table of all names and their functions is what resolution searches.
 * Libraries are linked with -Bsymbolic, so the table holds this library's own functions even
 * when a preloaded library has the same names.
 *
 * cuda_abi.h is left out on purpose: here every name is a function of no known signature.
 */
#include "names.h"

#include "trace.h"

enum { NOT_SUPPORTED = 801 };

#define CU_NAME(name, version)                                                     \
    __attribute__((weak, visibility("default"))) int name(void);                   \
    __attribute__((weak, visibility("default"))) int name(void)                    \
    {                                                                              \
        SIM_TRACE(int, "%s", "stub");                                              \
        return NOT_SUPPORTED;                                                      \
    }
#include "names.def"
#undef CU_NAME

const struct sim_name sim_names[] = {
#define CU_NAME(name, version) {#name, version, name},
#include "names.def"
#undef CU_NAME
};

const size_t sim_name_count = sizeof sim_names / sizeof sim_names[0];
