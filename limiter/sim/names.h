/* DESIGN
 *
 * The exported names of the driver as data; see names.def.
 */
#ifndef TESSERA_SIM_NAMES_H
#define TESSERA_SIM_NAMES_H

#include <stddef.h>

struct sim_name {
    const char *name; /* ELF name */
    int version;      /* first CUDA version with it; 0: never resolved */
    int (*function)(void);
};

extern const struct sim_name sim_names[];
extern const size_t sim_name_count;

#endif
