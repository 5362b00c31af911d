/* From names to hooks. */
#ifndef LIM_RESOLVE_H
#define LIM_RESOLVE_H

#include <stdbool.h>

/* Our function for an ELF name of a driver library, or NULL. `library` receives the library's name. */
void *lim_hook_by_name(const char *name, const char **library);

/* Makes `target` the real function behind a hooked ELF name, unless one is known. */
void lim_adopt_target(const char *name, void *target);

/* Calls visit(name) for every hooked symbol; for the coverage test. */
void lim_each_hook(void (*visit)(const char *name, void *hook));

#endif
