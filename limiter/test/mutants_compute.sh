#!/bin/sh
# Breaks the compute controller, priorities and spilling one way at a time and expects a test to notice each. The library is linked into the tests,
# over the simulated driver. Usage: mutants_compute.sh CC BUILD_DIR SIM_DIR REGION_SOURCES HOOK_SOURCES, from limiter/.
set -eu
cc=$1
dir=$2/mutants_compute
sim=$3
region_sources=$4
hook_sources=$5
survivors=0

link() { # TEST SOURCES LIBRARIES
    files=$(for name in $2; do printf '%s ' "$dir/src/$name.c"; done)
    # shellcheck disable=SC2086 # lists of files and options
    $cc -std=c11 -O1 -w -D_GNU_SOURCE -fvisibility=hidden -Iinclude -Iabi -rdynamic "$dir/test/$1.c" $files -o "$dir/$1" \
        -pthread $3 -ldl
}

noticed_by() { # TEST
    if [ "$1" = test_region_compute ]; then
        link "$1" "$region_sources" ''
        ! "$dir/$1" >"$dir/out" 2>&1
    else
        link "$1" "$region_sources $hook_sources" \
            "-Wl,--no-as-needed -L$sim -l:libcuda.so.1 -l:libnvidia-ml.so.1 -Wl,-rpath,$sim"
        ! TEST_TIMEOUT=60 sh test/preload.sh '' "$sim" "$dir/$1" >"$dir/out" 2>&1
    fi
}

# mutant NAME SED-EXPRESSION FILE TEST
mutant() {
    rm -rf "$dir" && mkdir -p "$dir"
    cp -r src test sim "$dir/"
    sed -i -E "$2" "$dir/src/$3"
    if cmp -s "$dir/src/$3" "src/$3"; then
        echo "mutant '$1' changes nothing: adapt its expression to $3"
        exit 1
    fi
    if noticed_by "$4"; then
        echo "caught: $1"
    else
        echo "survived: $1"
        survivors=$((survivors + 1))
    fi
}

# Tests that fail without a mutant would notice nothing.
mkdir -p "$dir"
cp -r src test sim "$dir/"
for test in test_region_compute test_limiter_compute_calls test_limiter_compute_live test_limiter_spill test_limiter_priority; do
    if noticed_by "$test"; then
        echo "$test fails without any mutant:"
        cat "$dir/out"
        exit 1
    fi
done

mutant "every measurement is believed" 's/return was_guess \|\| .*;/return measured_ns;/' controller.c test_region_compute
mutant "what is owed is paid by the whole grant" 's/^    int64_t most_of_it = .*/    int64_t most_of_it = grant_ns;/' \
    controller.c test_region_compute
mutant "dilation rises as it likes" 's/dilation = dilation > highest \? highest : dilation;//' controller.c \
    test_region_compute
mutant "a late sensor is compared with the present" 's/finished_at\(calibration, reading->busy_at_ns\)/(double)finished_ns/' \
    controller.c test_region_compute
mutant "an owner that waits lends" 's/return wants_more\(share\) \? share->limit_milli :/return/' controller.c \
    test_region_compute
mutant "loans outlive the agent" 's/&& now_ns <= heard_ns \+ LIM_LEASE_NS//' controller.c test_region_compute
mutant "a dead process's books come back twice" 's/__atomic_exchange_n\(&slot->booked\[device\], 0, /__atomic_load_n(\&slot->booked[device], /; s/load_n\((.*)__ATOMIC_ACQ_REL/load_n(\1__ATOMIC_ACQUIRE/' \
    books.h test_region_compute
mutant "launches are not charged" 's/fetch_add\(&usage_of\(launch\)->spent_ns, launch->charge_ns/fetch_add(\&usage_of(launch)->spent_ns, 0/' \
    compute.c test_limiter_compute_calls
mutant "a refused launch is not given back" 's/^    __atomic_fetch_add\(&usage_of\(launch\)->granted_ns, launch->charge_ns.*//' \
    compute.c test_limiter_compute_calls
mutant "launches into a capture are held" 's/ \|\| lim_is_capturing\(order->stream, order->per_thread\)//' compute.c \
    test_limiter_compute_calls
mutant "events are read in the program's capture mode" 's/bool relaxed = .*/bool relaxed = false;/' samples.c \
    test_limiter_compute_calls
mutant "nobody gives up waiting for a measurement" 's/try_enter\(launch, now_ns < end_ns\)/try_enter(launch, true)/' \
    compute.c test_limiter_compute_calls
mutant "a pause is not looked at" 's/if \(LIM_USUAL\(__atomic_load_n\(&control->pause.*/if (true) {/' compute.c \
    test_limiter_compute_live
mutant "anything can be saved up" 's/^    cap\(usage, burst_ns\);//' compute.c test_limiter_compute_live
mutant "who waits does not look for the dead" 's/^        lim_reap_now\(process\);//' compute.c test_limiter_compute_live

mutant "what was spilled stays booked" 's/^        lim_unspill_locked\(process, record->device, record->granules\);//' claim.c \
    test_limiter_spill
mutant "spilling has no limit of its own" 's/account, granules, limit\);/account, granules, TESSERA_MAX_GRANULES);/' process.c \
    test_limiter_spill
mutant "a ceiling is not looked at" 's/ceiling < limit \? ceiling : limit\);/limit);/' process.c test_limiter_spill
mutant "a ceiling refuses as the limit does" 's/is_ceiling\(process->region, device, granules\) \?/false ?/' process.c \
    test_limiter_spill
mutant "who is beyond its request is owed memory" 's/ && is_within_request\(process, device\);/;/' physical.c test_limiter_spill
mutant "a driver without memory is not asked again" 's/patience->tries\+\+ == 0/false/' physical.c test_limiter_spill
mutant "caps and freezes outlive their governor" 's/return governor_ns != 0 && .*/return governor_ns != 0;/' order.h \
    test_limiter_priority
mutant "nobody lets others go first" 's/^        let_others_go_first\(launch\);//' compute.c test_limiter_priority

rm -rf "$dir"
[ "$survivors" -eq 0 ]
