/* DESIGN
 *
 * Any bytes as an agent's answer. Judged against a second reading of gate/README.md written the other way round: by the
 * whole first line, with string functions. And as it arrives, byte by byte: a verdict once given stays.
 *
 * The first byte of an input is taken as "nothing more will come".
 */
#include "../gate/answer.h"
#include "input.h"

enum { INPUT_MAX = 4096 };

static enum gate_verdict expected(const char *bytes, size_t length, bool ended)
{
    char text[INPUT_MAX + 1];
    size_t line = 0;
    while (line < length && bytes[line] != '\n') {
        line++;
    }
    bool whole = line < length;
    memcpy(text, bytes, line);
    text[line] = '\0';
    if (strncmp(text, "no ", 3) == 0) {
        return whole || ended ? GATE_REFUSE : GATE_UNFINISHED;
    }
    if (whole) {
        return strlen(text) == line && strcmp(text, "ok") == 0 ? GATE_PASS : GATE_GARBAGE;
    }
    bool possible = line == strlen(text) && (strcmp(text, "") == 0 || strcmp(text, "o") == 0 || strcmp(text, "ok") == 0 ||
                                             strcmp(text, "n") == 0 || strcmp(text, "no") == 0);
    return possible && !ended ? GATE_UNFINISHED : GATE_GARBAGE;
}

static void check_refusal(const char *bytes, size_t length)
{
    char text[GATE_SHOWN_SIZE];
    memset(text, 1, sizeof text);
    size_t shown = gate_refusal(bytes, length, text);
    require(shown < GATE_SHOWN_SIZE && text[shown] == '\0', "the message has no end");
    for (size_t at = 0; at < shown; at++) {
        require(text[at] >= 0x20 && text[at] <= 0x7e, "a message that is not harmless");
    }
}

static void try_answer(const char *bytes, size_t length, bool ended)
{
    enum gate_verdict before = GATE_UNFINISHED;
    for (size_t arrived = 0; arrived <= length; arrived++) {
        bool last = ended && arrived == length;
        enum gate_verdict verdict = gate_judge(bytes, arrived, last);
        require(verdict == expected(bytes, arrived, last), "another verdict than the protocol's");
        require(before == GATE_UNFINISHED || before == verdict, "a verdict changed");
        before = verdict;
        if (verdict == GATE_REFUSE) {
            check_refusal(bytes, arrived);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && size <= INPUT_MAX) {
        char *exact = malloc(size); /* its own block: a byte read past it is seen */
        require(exact != NULL, "no memory");
        memcpy(exact, data + 1, size - 1);
        try_answer(exact, size - 1, (data[0] & 1u) != 0);
        free(exact);
    }
    return 0;
}

#ifndef LIBFUZZER
/* An answer of the protocol's own pieces. */
static size_t make_input(uint8_t *input)
{
    static const char *const pieces[] = {"ok", "no ", "\n", "o", "k", "n", " ", "ok\n", "no reason\n", "\x1b[2J", "\xff", "\t"};
    size_t size = 1;
    input[0] = (uint8_t)draw(2);
    for (uint32_t left = draw(6); left > 0; left--) {
        const char *piece = pieces[draw(sizeof pieces / sizeof *pieces)];
        memcpy(input + size, piece, strlen(piece));
        size += strlen(piece);
        if (draw(8) == 0) {
            input[size++] = (uint8_t)draw(256);
        }
    }
    return size;
}
#endif
