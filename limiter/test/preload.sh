#!/bin/sh
# Runs a test program over the simulated driver. Usage: preload.sh LIBRARY SIM_DIR PROGRAM [ARGUMENT...]; an empty LIBRARY
# preloads nothing (the program has the limiter linked in). The program's working directory is a new one that is
# removed afterwards. VALGRIND=1 runs it under memcheck.
set -eu
library=$1 sim=$2 program=$(realpath "$3")
shift 3
dir=$(mktemp -d "${TMPDIR:-/tmp}/tessera-test.XXXXXX")
trap 'rm -rf "$dir"' EXIT
cd "$dir"
export TESSERA_TEST_SIM="$sim" TESSERA_TEST_HELPERS="$(dirname "$program")"
if [ "${VALGRIND:-}" = 1 ]; then
    LD_PRELOAD="$library" timeout -k 5 600 valgrind --quiet --error-exitcode=99 --trace-children=no "$program" "$@"
else
    LD_PRELOAD="$library" timeout -k 5 "${TEST_TIMEOUT:-120}" "$program" "$@"
fi
