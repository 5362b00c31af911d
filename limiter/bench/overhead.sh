#!/bin/sh
# Prints the library's overhead per call, its system calls per call, and its cost to a shell that it is preloaded into.
# Usage: overhead.sh LIBRARY SIM_DIR BENCH_PROGRAM, from limiter/.
set -eu
library=$1 sim=$2 program=$3
TEST_TIMEOUT=300 sh test/preload.sh "$library" "$sim" "$program"

# The same work ten times over must take no more system calls.
if command -v strace >/dev/null; then
    count() {
        strace -f -qq -o /dev/fd/3 -E LD_PRELOAD="$library" "$program" calls "$1" 3>&1 >/dev/null | wc -l
    }
    few=$(count 6400) many=$(count 64000)
    echo "system calls: $few for 6,400 pairs of cuMemAlloc and cuMemFree, $many for 64,000"
else
    echo "system calls: not counted, no strace"
fi

# A process that never touches a GPU, in turns of 50.
run_50() {
    i=0
    while [ $i -lt 50 ]; do LD_PRELOAD="$1" /bin/true; i=$((i + 1)); done
}
without=0 with=0 turn=0
while [ $turn -lt 20 ]; do
    a=$(date +%s%N); run_50 ''; b=$(date +%s%N); run_50 "$library"; c=$(date +%s%N)
    without=$((without + b - a)) with=$((with + c - b)) turn=$((turn + 1))
done
echo "start of /bin/true: $((without / 1000000)) us without, $((with / 1000000)) us with the library (mean of 1,000)"
