#!/bin/sh
# Reads `nm -D --undefined-only` and fails on a glibc version above 2.17 or a private one.
set -eu
awk '
    match($0, /@GLIBC_[0-9.]+/) {
        split(substr($0, RSTART + 7, RLENGTH - 7), v, ".")
        if (v[1] > 2 || v[2] > 17) { print "too new: " $NF; bad = 1 }
        n++
    }
    /GLIBC_PRIVATE/ { print "private: " $NF; bad = 1 }
    END {
        if (n == 0) { print "no versioned symbol in the input: nothing was checked"; bad = 1 }
        if (!bad) print n " symbols, none newer than GLIBC_2.17"
        exit bad
    }'
