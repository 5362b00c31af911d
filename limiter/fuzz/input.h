/* DESIGN
 *
 * What the fuzz targets share. Built with clang a target is libFuzzer's; otherwise main() here runs it over kept inputs or
 * over random ones:
 *
 *     TARGET replay FILE        every input of a kept corpus, once
 *     TARGET random COUNT SEED  inputs that the target makes of random numbers
 *     TARGET unpack FILE DIR    a kept corpus as files, for libFuzzer
 *     TARGET pack DIR           the files of DIR as a corpus, on stdout
 *
 * A corpus is one text file, an input a line in hexadecimal, so that a change of it can be read; `#` begins a comment.
 */
#ifndef TESSERA_FUZZ_INPUT_H
#define TESSERA_FUZZ_INPUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A size that nobody has is refused, as without the sanitizer. */
const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static inline void require(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "fuzz: %s\n", what);
        abort();
    }
}

#ifndef LIBFUZZER
#include <dirent.h>

enum { INPUT_BYTES = 4096 };

static uint64_t random_state;

static inline uint32_t draw(uint32_t below)
{
    random_state = random_state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(random_state >> 33) % below;
}

/* The target's own: fills `input` (INPUT_BYTES) from draw(); returns its size. */
static size_t make_input(uint8_t *input);

/* An input of its own block, so that a byte read past it is seen. */
static inline void try_input(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size + (size == 0));
    require(exact != NULL, "no memory");
    memcpy(exact, data, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static inline size_t from_hex(const char *line, uint8_t *input)
{
    size_t size = 0;
    unsigned byte;
    for (; size < INPUT_BYTES && sscanf(line + 2 * size, "%2x", &byte) == 1; size++) input[size] = (uint8_t)byte;
    return size;
}

static inline long each_kept(const char *path, void (*use)(const uint8_t *data, size_t size, long number, const char *where),
                             const char *where)
{
    static char line[2 * INPUT_BYTES + 2];
    static uint8_t input[INPUT_BYTES];
    long count = 0;
    FILE *file = fopen(path, "r");
    require(file != NULL, "the corpus cannot be read");
    while (fgets(line, sizeof line, file) != NULL) {
        if (line[0] != '#') use(input, from_hex(line, input), count++, where);
    }
    fclose(file);
    return count;
}

static inline void replay_one(const uint8_t *data, size_t size, long number, const char *where)
{
    (void)number;
    (void)where;
    try_input(data, size);
}

static inline void unpack_one(const uint8_t *data, size_t size, long number, const char *where)
{
    char path[512];
    snprintf(path, sizeof path, "%s/kept-%04ld", where, number);
    FILE *file = fopen(path, "w");
    require(file != NULL && fwrite(data, 1, size, file) == size && fclose(file) == 0, "the folder cannot be written");
}

static inline void pack(const char *folder)
{
    static uint8_t input[INPUT_BYTES];
    char path[512];
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        FILE *file = entries[i]->d_name[0] == '.' ? NULL : fopen(path, "r");
        free(entries[i]);
        if (file == NULL) continue;
        size_t size = fread(input, 1, sizeof input, file);
        for (size_t at = 0; at < size; at++) printf("%02x", input[at]);
        printf("\n");
        fclose(file);
    }
    if (count > 0) free(entries);
}

static inline int usage(void)
{
    fprintf(stderr, "replay FILE | random COUNT SEED | unpack FILE DIR | pack DIR\n");
    return 2;
}

int main(int argc, char **argv)
{
    static uint8_t input[INPUT_BYTES];
    long count = 0;
    if (argc == 3 && strcmp(argv[1], "replay") == 0) {
        count = each_kept(argv[2], replay_one, "");
        require(count > 0, "the corpus is empty");
    } else if (argc == 4 && strcmp(argv[1], "random") == 0) {
        random_state = strtoull(argv[3], NULL, 10);
        for (; count < atol(argv[2]); count++) try_input(input, make_input(input));
    } else if (argc == 4 && strcmp(argv[1], "unpack") == 0) {
        count = each_kept(argv[2], unpack_one, argv[3]);
    } else if (argc == 3 && strcmp(argv[1], "pack") == 0) {
        pack(argv[2]);
        return 0;
    } else {
        return usage();
    }
    printf("%s: %ld inputs\n", argv[0], count);
    return 0;
}
#endif

#endif
