/* Symbols of loaded objects, found without the dynamic linker's own lookup (which this library replaces). */
#ifndef LIM_ELF_H
#define LIM_ELF_H

#include <stdbool.h>

/* The address of a symbol defined in the first loaded object whose SONAME or file name begins with `library`, this
 * library excepted; NULL if there is none. */
void *lim_elf_symbol(const char *library, const char *symbol);

/* True if the address lies in a loaded object whose SONAME or file name begins with `library`. */
bool lim_elf_owns(const char *library, const void *address);

/* True if the address lies in this library. */
bool lim_elf_is_ours(const void *address);

/* Calls visit(name, with) for every function that the first loaded object of that name defines and exports. */
void lim_elf_each(const char *library, void (*visit)(const char *name, void *with), void *with);

#endif
