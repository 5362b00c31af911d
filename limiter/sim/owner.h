/* DESIGN
 *
 * What /proc tells about a process: is it there, when did it start, which image is it.
 */
#ifndef TESSERA_SIM_OWNER_H
#define TESSERA_SIM_OWNER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct sim_life {
    uint64_t start; /* clock ticks after boot */
    uint64_t stack; /* start of the stack, 0 when the kernel does not tell */
};

/* False when there is no such process, or only its zombie. */
bool sim_life_of(pid_t pid, struct sim_life *out);

/* 64 of the random bits that the kernel gives each exec. */
uint64_t sim_image(void);

uint64_t sim_pid_namespace(void);

#endif
