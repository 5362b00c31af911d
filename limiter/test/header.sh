#!/bin/sh
# Fails when a header of CUDA (cuda.h) declares a function that reads like taking memory or running work, by the words of
# src/unknown.c, and that abi/cuda_surface.def does not list. Usage: header.sh HEADER, from limiter/; without an argument it
# tries itself on two made-up headers, one with a gap.
set -eu

# missing HEADER: names that are not in the table, one a line.
missing() {
    words=$(sed -n 's/^static const char \*const words\[\] = {\(.*\)};$/\1/p' src/unknown.c | tr -d '" ' | tr ',' '|')
    [ -n "$words" ]
    grep -oE 'CUDAAPI[[:space:]]+cu[A-Z][A-Za-z0-9_]*[[:space:]]*\(' "$1" | grep -oE 'cu[A-Z][A-Za-z0-9_]*' | sort -u |
        grep -E "$words" | while read -r name; do
            grep -q "^CU_SURFACE($name," abi/cuda_surface.def || echo "$name"
        done
}

if [ $# -eq 0 ]; then
    dir=$(mktemp -d "${TMPDIR:-/tmp}/tessera-header.XXXXXX")
    trap 'rm -rf "$dir"' EXIT
    printf 'CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t size);\nCUresult CUDAAPI cuInit(unsigned int flags);\n' >"$dir/known.h"
    cat "$dir/known.h" >"$dir/newer.h"
    printf 'CUresult CUDAAPI cuMemAllocTomorrow(CUdeviceptr *dptr);\nCUresult CUDAAPI cuLaunchSwarm (CUfunction f);\n' >>"$dir/newer.h"
    [ -z "$(missing "$dir/known.h")" ] || { echo "header.sh: a header without a gap is refused"; exit 1; }
    [ "$(missing "$dir/newer.h" | tr '\n' ' ')" = "cuLaunchSwarm cuMemAllocTomorrow " ] || { echo "header.sh: a gap goes unnoticed"; exit 1; }
    exit 0
fi
grep -q 'CUDAAPI[[:space:]]*cuInit' "$1" || { echo "$1 declares no cuInit: it is no cuda.h"; exit 1; }
gaps=$(missing "$1")
if [ -n "$gaps" ]; then
    printf 'missing in abi/cuda_surface.def:\n%s\n' "$gaps"
    exit 1
fi
echo "$1: every function that reads like taking memory or running work is in abi/cuda_surface.def"
