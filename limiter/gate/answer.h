/* What the agent said, read from bytes alone: no I/O, so that every input can be tried. */
#ifndef TESSERA_GATE_ANSWER_H
#define TESSERA_GATE_ANSWER_H

#include <stdbool.h>
#include <stddef.h>

#define GATE_ANSWER_SIZE 8192u /* an answer is judged by what fits */
#define GATE_SHOWN_SIZE 2048u  /* of a refusal; the rest is cut */

enum gate_verdict {
    GATE_UNFINISHED, /* may still become an answer */
    GATE_PASS,
    GATE_REFUSE,
    GATE_GARBAGE,
};

/* The verdict on what has arrived so far; `ended`: nothing more will come. Only the first line counts. */
enum gate_verdict gate_judge(const char *bytes, size_t length, bool ended);

/* Writes the refusal's text for people into `text`: printable ASCII, at most GATE_SHOWN_SIZE - 1 characters and
 * the terminating zero. Call it for GATE_REFUSE only. Returns the length. */
size_t gate_refusal(const char *bytes, size_t length, char text[GATE_SHOWN_SIZE]);

#endif
