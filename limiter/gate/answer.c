/* DESIGN
 *
 * The answer is one line, "ok" or "no MESSAGE". Everything that is not exactly the former keeps the container from
 * starting, so the order of the questions matters little; what matters is that "ok" is compared whole and that it
 * needs its newline: a torn answer is no answer. A torn refusal still says something worth showing.
 *
 * The message goes into a status that other programs carry as UTF-8 and people read on a terminal: whatever is not
 * printable ASCII becomes a question mark.
 */
#include "answer.h"

#include <string.h>

static const char pass_line[] = "ok";
static const char refuse_prefix[] = "no ";
static const char cut_mark[] = " (cut)";

enum { PREFIX_LENGTH = sizeof refuse_prefix - 1, PASS_LENGTH = sizeof pass_line - 1 };

/* True if the bytes are the beginning of the text, whole or not. */
static bool begins(const char *text, size_t text_length, const char *bytes, size_t length)
{
    return length <= text_length && memcmp(bytes, text, length) == 0;
}

enum gate_verdict gate_judge(const char *bytes, size_t length, bool ended)
{
    const char *newline = length == 0 ? NULL : memchr(bytes, '\n', length);
    size_t line = newline == NULL ? length : (size_t)(newline - bytes);
    if (newline != NULL && line == PASS_LENGTH && memcmp(bytes, pass_line, line) == 0) {
        return GATE_PASS;
    }
    if (line >= PREFIX_LENGTH && memcmp(bytes, refuse_prefix, PREFIX_LENGTH) == 0) {
        return newline != NULL || ended ? GATE_REFUSE : GATE_UNFINISHED;
    }
    bool hopeful = begins(pass_line, PASS_LENGTH, bytes, line) || begins(refuse_prefix, PREFIX_LENGTH, bytes, line);
    return newline == NULL && !ended && hopeful ? GATE_UNFINISHED : GATE_GARBAGE;
}

static char harmless(char byte)
{
    return byte >= ' ' && byte <= '~' ? byte : (byte == '\t' ? ' ' : '?');
}

size_t gate_refusal(const char *bytes, size_t length, char text[GATE_SHOWN_SIZE])
{
    const char *message = bytes + PREFIX_LENGTH;
    const char *newline = memchr(message, '\n', length - PREFIX_LENGTH);
    size_t whole = newline == NULL ? length - PREFIX_LENGTH : (size_t)(newline - message);
    size_t shown = whole < GATE_SHOWN_SIZE ? whole : GATE_SHOWN_SIZE - sizeof cut_mark;
    for (size_t at = 0; at < shown; at++) {
        text[at] = harmless(message[at]);
    }
    if (shown < whole) {
        memcpy(text + shown, cut_mark, sizeof cut_mark - 1);
        shown += sizeof cut_mark - 1;
    }
    text[shown] = '\0';
    return shown;
}
