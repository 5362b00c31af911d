/* DESIGN
 *
 * dl_iterate_phdr gives base address and program headers of every object of our link-map namespace; the dynamic
 * section there leads to symbol, string and hash tables. That is all that is needed to find libc's dlsym and the
 * driver's functions, on any glibc and whatever was interposed. Only the default version of a versioned symbol counts
 * (bit 15 of the version index hides the others).
 *
 * glibc has relocated the pointers in the dynamic section on the architectures that matter; a value below the base is
 * taken as an offset, which covers the others.
 */
#include "elf.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HIDDEN_VERSION 0x8000u

struct object {
    uintptr_t base;
    const ElfW(Sym) *symbols;
    const char *strings;
    const uint16_t *versions;
    const uint32_t *sysv_hash;
    const uint32_t *gnu_hash;
    const char *soname;
};

struct search {
    const char *library; /* NULL: any */
    const char *symbol;
    const void *address;
    void *found;
    bool owned;
};

static const void *table_at(uintptr_t base, ElfW(Addr) value)
{
    return (const void *)(value < base ? base + value : value);
}

static void read_entry(struct object *object, const ElfW(Dyn) *entry, ElfW(Xword) *soname)
{
    const void *at = table_at(object->base, entry->d_un.d_ptr);
    switch (entry->d_tag) {
    case DT_SYMTAB: object->symbols = at; break;
    case DT_STRTAB: object->strings = at; break;
    case DT_VERSYM: object->versions = at; break;
    case DT_HASH: object->sysv_hash = at; break;
    case DT_GNU_HASH: object->gnu_hash = at; break;
    case DT_SONAME: *soname = entry->d_un.d_val; break;
    default: break;
    }
}

static struct object read_object(const struct dl_phdr_info *info)
{
    struct object object = {.base = info->dlpi_addr};
    ElfW(Xword) soname = 0;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) {
            continue;
        }
        const ElfW(Dyn) *entry = (const void *)(object.base + info->dlpi_phdr[i].p_vaddr);
        for (; entry->d_tag != DT_NULL; entry++) {
            read_entry(&object, entry, &soname);
        }
    }
    object.soname = object.strings != NULL && soname != 0 ? object.strings + soname : "";
    return object;
}

static bool is_match(const struct object *object, uint32_t index, const char *name)
{
    const ElfW(Sym) *symbol = &object->symbols[index];
    bool hidden = object->versions != NULL && (object->versions[index] & HIDDEN_VERSION) != 0;
    return symbol->st_shndx != SHN_UNDEF && symbol->st_value != 0 && !hidden &&
           strcmp(object->strings + symbol->st_name, name) == 0;
}

static uint32_t gnu_hash_of(const char *name)
{
    uint32_t hash = 5381;
    for (; *name != '\0'; name++) {
        hash = hash * 33u + (unsigned char)*name;
    }
    return hash;
}

/* Index of the symbol, 0 if absent. Source: the layout of DT_GNU_HASH, binutils bfd/elflink.c. */
static uint32_t find_gnu(const struct object *object, const char *name)
{
    const uint32_t buckets = object->gnu_hash[0];
    const uint32_t first = object->gnu_hash[1];
    const uint32_t bloom_words = object->gnu_hash[2];
    const uint32_t *bucket = object->gnu_hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    const uint32_t hash = gnu_hash_of(name);
    uint32_t index = buckets == 0 ? 0 : bucket[hash % buckets];
    if (index < first) {
        return 0;
    }
    for (;; index++) {
        uint32_t entry = chain[index - first]; /* the lowest bit ends the chain */
        if ((entry | 1u) == (hash | 1u) && is_match(object, index, name)) {
            return index;
        }
        if ((entry & 1u) != 0) {
            return 0;
        }
    }
}

/* The same through the older table: every symbol is in it, so the chains need not be followed. */
static uint32_t find_sysv(const struct object *object, const char *name)
{
    const uint32_t count = object->sysv_hash[1];
    for (uint32_t index = 1; index < count; index++) {
        if (is_match(object, index, name)) {
            return index;
        }
    }
    return 0;
}

static void *find_symbol(const struct object *object, const char *name)
{
    uint32_t index = 0;
    if (object->symbols == NULL || object->strings == NULL) {
        return NULL;
    }
    if (object->gnu_hash != NULL) {
        index = find_gnu(object, name);
    } else if (object->sysv_hash != NULL) {
        index = find_sysv(object, name);
    }
    if (index == 0) {
        return NULL;
    }
    const ElfW(Sym) *symbol = &object->symbols[index];
    uintptr_t address = object->base + symbol->st_value;
    if (ELF64_ST_TYPE(symbol->st_info) == STT_GNU_IFUNC) {
        return ((void *(*)(void))address)();
    }
    return (void *)address;
}

static bool begins_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static bool is_named(const struct dl_phdr_info *info, const struct object *object, const char *library)
{
    const char *path = info->dlpi_name == NULL ? "" : info->dlpi_name;
    const char *slash = strrchr(path, '/');
    return begins_with(object->soname, library) || begins_with(slash == NULL ? path : slash + 1, library);
}

static bool holds(const struct dl_phdr_info *info, const void *address)
{
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        if (info->dlpi_phdr[i].p_type == PT_LOAD && (uintptr_t)address >= from &&
            (uintptr_t)address - from < info->dlpi_phdr[i].p_memsz) {
            return true;
        }
    }
    return false;
}

static bool is_self(const struct dl_phdr_info *info)
{
    return holds(info, (const void *)(uintptr_t)&lim_elf_symbol);
}

static int visit_symbol(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct search *search = argument;
    struct object object = read_object(info);
    (void)size;
    if (!is_named(info, &object, search->library) || is_self(info)) {
        return 0;
    }
    search->found = find_symbol(&object, search->symbol);
    return search->found != NULL;
}

static int visit_owner(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct search *search = argument;
    (void)size;
    if (!holds(info, search->address)) {
        return 0;
    }
    struct object object = read_object(info);
    search->owned = search->library == NULL ? is_self(info) : is_named(info, &object, search->library);
    return 1;
}

/* Symbols in the table of an object: the older hash table has the count, the newer one ends with its last chain. */
static uint32_t symbol_count(const struct object *object)
{
    if (object->sysv_hash != NULL) {
        return object->sysv_hash[1];
    }
    if (object->gnu_hash == NULL) {
        return 0;
    }
    const uint32_t buckets = object->gnu_hash[0];
    const uint32_t first = object->gnu_hash[1];
    const uint32_t *bucket = object->gnu_hash + 4 + object->gnu_hash[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    uint32_t last = 0;
    for (uint32_t i = 0; i < buckets; i++) {
        last = bucket[i] > last ? bucket[i] : last;
    }
    while (last >= first && last != 0 && (chain[last - first] & 1u) == 0) {
        last++;
    }
    return last < first || last == 0 ? first : last + 1u;
}

struct walk {
    const char *library;
    void (*visit)(const char *name, void *with);
    void *with;
};

static int visit_exports(struct dl_phdr_info *info, size_t size, void *argument)
{
    const struct walk *walk = argument;
    struct object object = read_object(info);
    (void)size;
    if (!is_named(info, &object, walk->library) || is_self(info) || object.symbols == NULL || object.strings == NULL) {
        return 0;
    }
    uint32_t count = symbol_count(&object);
    for (uint32_t index = 1; index < count; index++) {
        const ElfW(Sym) *symbol = &object.symbols[index];
        if (symbol->st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC) {
            walk->visit(object.strings + symbol->st_name, walk->with);
        }
    }
    return 1;
}

void lim_elf_each(const char *library, void (*visit)(const char *name, void *with), void *with)
{
    struct walk walk = {library, visit, with};
    dl_iterate_phdr(visit_exports, &walk);
}

void *lim_elf_symbol(const char *library, const char *symbol)
{
    struct search search = {.library = library, .symbol = symbol};
    dl_iterate_phdr(visit_symbol, &search);
    return search.found;
}

bool lim_elf_owns(const char *library, const void *address)
{
    struct search search = {.library = library, .address = address};
    dl_iterate_phdr(visit_owner, &search);
    return search.owned;
}

bool lim_elf_is_ours(const void *address)
{
    return lim_elf_owns(NULL, address);
}
