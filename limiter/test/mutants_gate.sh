#!/bin/sh
# Breaks the gate in ways that would let a container start, hang, or hide why it did not; one of the two tests must
# notice each. Usage: mutants_gate.sh CC BUILD_DIR, from limiter/.
#
# A gate that hangs is noticed by waiting for it, so all mutants run side by side, each in a folder of its own, and are
# told in their order. The gate as it is runs among them: on a machine too busy for the deadlines it fails too, and then
# nothing that was caught counts.
set -eu
cc=$1
build=$(realpath "$2")
dir=$build/mutants-gate
flags='-std=c11 -O1 -w -D_GNU_SOURCE'
count=0

# compile FOLDER: the program and the test of the parser from the sources in it.
compile() {
    $cc $flags "$1/gate/gate.c" "$1/gate/answer.c" -o "$1/gate-program"
    $cc $flags "$1/test/test_gate_answer.c" "$1/gate/answer.c" -o "$1/answer"
}

# judge FOLDER: what became of it, in FOLDER/verdict: "survived", or "caught" and by what. Both tests end each case by a
# deadline of their own; the one here is for a case that has none.
judge() {
    if "$1/answer" >"$1/out" 2>&1 && TMPDIR=$1 timeout 40 "$build/test_gate_program" "$1/gate-program" >"$1/out" 2>&1; then
        echo "survived: $(cat "$1/name")" >"$1/verdict"
    else
        why=$(grep -m 1 -o '[a-z_]*: .*' "$1/out" | sed 's/^: //' | cut -c 1-90)
        echo "caught: $(cat "$1/name") (${why:-it hung})" >"$1/verdict"
    fi
}

# mutant NAME SED-EXPRESSION FILE; without an expression nothing is broken.
mutant() {
    count=$((count + 1))
    one=$dir/$count
    mkdir -p "$one/gate" "$one/test"
    cp gate/*.c gate/*.h "$one/gate/" && cp test/test_gate_answer.c test/check.h "$one/test/"
    echo "$1" >"$one/name"
    if [ $# -gt 1 ]; then
        sed -i -E "$2" "$one/gate/$3"
        if cmp -s "$one/gate/$3" "gate/$3"; then
            echo "mutant '$1' changes nothing: adapt its expression to $3"
            exit 1
        fi
    fi
    compile "$one"
    judge "$one" &
}

rm -rf "$dir"
mutant "a yes needs no newline" 's/newline != NULL && line == PASS_LENGTH/line == PASS_LENGTH/' answer.c
mutant "a yes may go on" 's/line == PASS_LENGTH && memcmp\(bytes, pass_line, line\)/line >= PASS_LENGTH \&\& memcmp(bytes, pass_line, PASS_LENGTH)/' answer.c
mutant "a torn refusal waits for ever" 's/newline != NULL \|\| ended \? GATE_REFUSE/newline != NULL ? GATE_REFUSE/' answer.c
mutant "garbage is waited for" 's/newline == NULL && !ended && hopeful/newline == NULL \&\& !ended/' answer.c
mutant "what has ended is waited for" 's/newline == NULL && !ended && hopeful/newline == NULL \&\& hopeful/' answer.c
mutant "control characters pass" "s/byte >= ' ' && byte <= '~' \? byte/true ? byte/" answer.c
mutant "delete passes" "s/byte <= '~'/byte <= 127/" answer.c
mutant "a message of just the size is not cut" 's/whole < GATE_SHOWN_SIZE/whole <= GATE_SHOWN_SIZE - 2/' answer.c
mutant "a refusal exits with 0" '$!N; $!P; $!D; s/return 1;/return 0;/' gate.c
mutant "no verdict exits with 0" 's/exchange.verdict != GATE_REFUSE\) \{/exchange.verdict == GATE_UNFINISHED) { return 0; } if (exchange.verdict != GATE_REFUSE) {/' gate.c
mutant "garbage exits with 0" 's/exchange.verdict == GATE_PASS\) \{/exchange.verdict == GATE_PASS || exchange.verdict == GATE_GARBAGE) {/' gate.c
mutant "a yes before the whole state" 's/GATE_PASS && !sent/GATE_PASS \&\& false/' gate.c
mutant "a no during the state is not seen" 's/POLLOUT \| POLLIN/POLLOUT/' gate.c
mutant "a short write is taken as whole" 's/done \+= sent > 0 \? \(size_t\)sent : 0;/done = length;/' gate.c
mutant "a broken pipe kills" 's/signal\(SIGPIPE, SIG_IGN\);//' gate.c
mutant "no alarm" 's/^    alarm\(.*$//' gate.c
mutant "the alarm is ignored" 's/signal\(SIGALRM, SIG_DFL\);//' gate.c
mutant "the alarm is blocked" 's/^    sigprocmask\(.*$//' gate.c
mutant "asked once only" 's/while \(exchange->again &&/while (false \&\&/' gate.c
mutant "a dead agent is given up" 's/ \|\| error == ECONNREFUSED//' gate.c
mutant "a missing socket is given up" 's/error == ENOENT \|\| //' gate.c
mutant "a lost connection is given up" 's/exchange->again = true;//' gate.c
mutant "one byte more than a mebibyte" 's/^    while \(\*length <= STATE_SIZE\)/    while (*length < STATE_SIZE)/' gate.c
mutant "no state is a state" 's/\*length > 0 \? NULL : "the runtime gave/true ? NULL : "the runtime gave/' gate.c
mutant "no deadline" 's/left > 0 \? \(int\)left : 0/-1/' gate.c
mutant "seconds taken as they come" 's/value <= LONGEST_TIMEOUT_S \* 1000 \? value : 0/value/' gate.c
mutants=$count
mutant "the gate as it is"

wait
survivors=0
for number in $(seq "$mutants"); do
    cat "$dir/$number/verdict"
    ! grep -q '^survived: ' "$dir/$number/verdict" || survivors=$((survivors + 1))
done
unbroken=$(cat "$dir/$count/verdict")
rm -rf "$dir"
if [ "$unbroken" != "survived: the gate as it is" ]; then
    echo "the gate as it is fails beside its mutants, so that none of them counts: $unbroken"
    exit 1
fi
[ "$survivors" -eq 0 ]
