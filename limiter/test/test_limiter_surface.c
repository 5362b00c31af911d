/* DESIGN
 *
 * Nothing that takes memory or runs work is missing in abi/cuda_surface.def, and the table says what src/hooks.def
 * does. A list of a newer CUDA's symbols (tab-separated: library, symbol, class letter; a allocates, b frees, d
 * launches) is checked where TESSERA_SYMBOLS names one; without it a short list here shows that a gap would be
 * found.
 */
#include "limiter_world.h"

enum class { ALLOCATE, FREE, LAUNCH, LOOKS };
enum answer { HOOK, LATER, HOST, PASS };

static const struct {
    const char *name;
    enum class class;
    enum answer answer;
} surface[] = {
#define CU_SURFACE(name, class, answer) {#name, class, answer},
#include "../abi/cuda_surface.def"
#undef CU_SURFACE
};
#define SURFACE_ROWS (sizeof surface / sizeof *surface)

static const char *const hooks[] = {
#define CUDA_HOOK(name, base, since, variant) #name,
#define CUDA_PASS(name, base, since, variant)
#define NVML_HOOK(name)
#define CUDA_NEED(name)
#define NVML_NEED(name)
#include "../src/hooks.def"
};
#define HOOK_ROWS (sizeof hooks / sizeof *hooks)

static bool is_hooked(const char *name)
{
    for (size_t i = 0; i < HOOK_ROWS; i++) {
        if (strcmp(hooks[i], name) == 0) return true;
    }
    return false;
}

/* The row of a name, -1 if there is none. */
static int row_of(const char *name)
{
    for (size_t i = 0; i < SURFACE_ROWS; i++) {
        if (strcmp(surface[i].name, name) == 0) return (int)i;
    }
    return -1;
}

static void every_row_says_what_the_hooks_do(void)
{
    for (size_t i = 0; i < SURFACE_ROWS; i++) {
        if (row_of(surface[i].name) != (int)i) CHECK_FAIL("%s is there twice", surface[i].name);
        if (is_hooked(surface[i].name) != (surface[i].answer == HOOK)) {
            CHECK_FAIL("%s: the table and src/hooks.def disagree", surface[i].name);
        }
    }
}

static void what_allocates_is_never_left_to_the_driver(void)
{
    for (size_t i = 0; i < SURFACE_ROWS; i++) {
        if (surface[i].class == ALLOCATE && surface[i].answer == PASS) CHECK_FAIL("%s passes", surface[i].name);
    }
}

/* True if the table has a name of that class letter as what it is. */
static bool is_covered(const char *name, char letter)
{
    int row = row_of(name);
    if (row < 0) return false;
    switch (letter) {
    case 'a': return surface[row].class == ALLOCATE;
    case 'b': return surface[row].class == FREE;
    case 'd': return surface[row].class == LAUNCH;
    default: return true;
    }
}

static void a_gap_would_be_found(void)
{
    CHECK(is_covered("cuMemAlloc_v2", 'a'));
    CHECK(is_covered("cuMemFree_v2", 'b'));
    CHECK(is_covered("cuLaunchKernel", 'd'));
    CHECK(!is_covered("cuMemAllocTomorrow", 'a'));
    CHECK(!is_covered("cuLaunchTomorrow", 'd'));
    CHECK(!is_covered("cuMemFree_v2", 'a'));
}

/* Symbols of a list that are missing in the table, each told; `checked` counts those that were looked for. */
static unsigned gaps_in(FILE *list, unsigned *checked)
{
    char line[4096];
    unsigned gaps = 0;
    for (*checked = 0; fgets(line, sizeof line, list) != NULL;) {
        char library[16], name[128], letter;
        if (sscanf(line, "%15s %127s %c", library, name, &letter) != 3 || strcmp(library, "cuda") != 0) continue;
        if (letter != 'a' && letter != 'b' && letter != 'd') continue;
        ++*checked;
        if (!is_covered(name, letter)) {
            printf("%s (class %c) is missing in abi/cuda_surface.def\n", name, letter);
            gaps++;
        }
    }
    fclose(list);
    return gaps;
}

/* A made-up newer CUDA: five symbols that matter, of which the table has two. */
static void a_list_with_a_gap_is_refused(void)
{
    static char newer[] = "#lib\tsymbol\tclass\n"
                          "cuda\tcuMemAlloc_v2\ta\n"
                          "cuda\tcuMemAlloc_v9\ta\n"
                          "cuda\tcuMemFree_v2\tb\n"
                          "cuda\tcuMemReturn\tb\n"
                          "cuda\tcuLaunchTomorrow_ptsz\td\n"
                          "cuda\tcuDeviceGetWeather\te\n"
                          "nvml\tnvmlDeviceAllocate\ta\n";
    unsigned checked;
    unsigned gaps = gaps_in(fmemopen(newer, sizeof newer - 1, "r"), &checked);
    CHECK_EQ_U64(checked, 5);
    CHECK_EQ_U64(gaps, 3);
}

static void a_newer_cuda_brings_nothing_that_the_table_lacks(void)
{
    unsigned checked;
    const char *path = getenv("TESSERA_SYMBOLS");
    FILE *list = path == NULL || path[0] == '\0' ? NULL : fopen(path, "r");
    if (list == NULL) {
        printf("no list of a newer CUDA's symbols: make test-limiter SYMBOLS=FILE checks one\n");
        return;
    }
    unsigned gaps = gaps_in(list, &checked);
    if (gaps > 0) CHECK_FAIL("%u of %u symbols of %s are missing", gaps, checked, path);
    CHECK(checked > 0);
    printf("%u allocating, freeing and launching symbols of %s: all in the table\n", checked, path);
}

int main(void)
{
    every_row_says_what_the_hooks_do();
    what_allocates_is_never_left_to_the_driver();
    a_gap_would_be_found();
    a_list_with_a_gap_is_refused();
    a_newer_cuda_brings_nothing_that_the_table_lacks();
    return 0;
}
