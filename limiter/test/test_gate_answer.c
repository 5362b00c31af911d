/* DESIGN
 *
 * What counts as a yes, a no, neither, or not yet. The table is the protocol of gate/README.md, worked out by hand.
 */
#include "../gate/answer.h"
#include "check.h"

struct row {
    const char *bytes;
    size_t length;
    bool ended;
    enum gate_verdict verdict;
};

#define ROW(text, ended, verdict) {text, sizeof text - 1, ended, verdict}

static const struct row rows[] = {
    ROW("ok\n", false, GATE_PASS),
    ROW("ok\n", true, GATE_PASS),
    ROW("ok\nno but\n", false, GATE_PASS),
    ROW("", false, GATE_UNFINISHED),
    ROW("o", false, GATE_UNFINISHED),
    ROW("ok", false, GATE_UNFINISHED),
    ROW("n", false, GATE_UNFINISHED),
    ROW("no", false, GATE_UNFINISHED),
    ROW("no ", false, GATE_UNFINISHED),
    ROW("no reas", false, GATE_UNFINISHED),
    ROW("no reason\n", false, GATE_REFUSE),
    ROW("no reas", true, GATE_REFUSE),
    ROW("no \n", false, GATE_REFUSE),
    ROW("no ok\n", false, GATE_REFUSE),
    ROW("no reason\nok\n", false, GATE_REFUSE),
    ROW("", true, GATE_GARBAGE),
    ROW("o", true, GATE_GARBAGE),
    ROW("ok", true, GATE_GARBAGE),
    ROW("no", true, GATE_GARBAGE),
    ROW("no\n", false, GATE_GARBAGE),
    ROW("\n", false, GATE_GARBAGE),
    ROW("\nok\n", false, GATE_GARBAGE),
    ROW(" ok\n", false, GATE_GARBAGE),
    ROW("ok \n", false, GATE_GARBAGE),
    ROW("ok\r\n", false, GATE_GARBAGE),
    ROW("ok\0\n", false, GATE_GARBAGE),
    ROW("okay", false, GATE_GARBAGE),
    ROW("OK\n", false, GATE_GARBAGE),
    ROW("o\n", false, GATE_GARBAGE),
    ROW("x", false, GATE_GARBAGE),
    ROW("nope", false, GATE_GARBAGE),
    ROW("HTTP/1.1 200 OK\r\n", false, GATE_GARBAGE),
};

static void every_answer_has_its_verdict(void)
{
    for (size_t at = 0; at < sizeof rows / sizeof *rows; at++) {
        enum gate_verdict verdict = gate_judge(rows[at].bytes, rows[at].length, rows[at].ended);
        if (verdict != rows[at].verdict) {
            CHECK_FAIL("row %zu: %d, expected %d", at, (int)verdict, (int)rows[at].verdict);
        }
    }
}

static void a_message_is_made_harmless(void)
{
    static const char answer[] = "no a\x1b[31mb\0c\x7f\xff\td~\nrest";
    char text[GATE_SHOWN_SIZE];
    CHECK_EQ_U64(gate_refusal(answer, sizeof answer - 1, text), 14);
    CHECK_EQ_STR(text, "a?[31mb?c?? d~");
}

static void a_message_is_cut_where_it_must_be(void)
{
    static char answer[GATE_ANSWER_SIZE];
    char text[GATE_SHOWN_SIZE];
    memset(answer, 'x', sizeof answer);
    memcpy(answer, "no ", 3);
    CHECK_EQ_U64(gate_refusal(answer, 3 + 2047, text), 2047);
    CHECK_EQ_STR(text + 2041, "xxxxxx");
    CHECK_EQ_U64(gate_refusal(answer, 3 + 2048, text), 2047);
    CHECK_EQ_STR(text + 2040, "x (cut)");
    CHECK_EQ_U64(gate_refusal(answer, sizeof answer, text), 2047);
    CHECK_EQ_U64(gate_refusal(answer, 3, text), 0);
}

int main(void)
{
    every_answer_has_its_verdict();
    a_message_is_made_harmless();
    a_message_is_cut_where_it_must_be();
    return 0;
}
