/* DESIGN
 *
 * What the files of the simulated NVML share. The library maps the machine but never registers:
 * a process that only watches is no GPU process.
 */
#ifndef TESSERA_SIM_NVML_H
#define TESSERA_SIM_NVML_H

#include "../abi/nvml_abi.h"
#include "clock.h"
#include "machine.h"
#include "trace.h"

#define NVML_API __attribute__((visibility("default"))) nvmlReturn_t

struct nvmlDevice_st {
    int row; /* of the description */
};

extern int sim_nvml_users; /* nvmlInit minus nvmlShutdown */

/* -1 for a handle that is none of ours. */
int sim_nvml_row(nvmlDevice_t device);

/* First statements of a function on a device; `row` is then in scope. */
#define NVML_CALL(device, ...)                                      \
    SIM_TRACE(nvmlReturn_t, __VA_ARGS__);                           \
    if (sim_nvml_users == 0) return NVML_ERROR_UNINITIALIZED;       \
    const int row = sim_nvml_row(device);                           \
    if (row < 0) return NVML_ERROR_INVALID_ARGUMENT

nvmlReturn_t sim_nvml_text(char *out, unsigned int length, const char *text);

#endif
