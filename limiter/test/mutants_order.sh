#!/bin/sh
# Breaks the protocol of orders and the governor's arithmetic one way at a time and expects a test to notice each. Usage:
# mutants_order.sh CC BUILD_DIR REGION_SOURCES, from limiter/.
set -eu
cc=$1
dir=$2/mutants_order
sources=$3
survivors=0

noticed_by() { # TEST
    files=''
    if [ "$1" != test_region_order ]; then
        files=$(for name in $sources; do printf '%s ' "$dir/src/$name.c"; done)
    fi
    # shellcheck disable=SC2086 # a list of files
    $cc -std=c11 -O1 -w -D_GNU_SOURCE -Iinclude "$dir/test/$1.c" $files -o "$dir/$1" -pthread
    ! timeout 60 "$dir/$1" >"$dir/out" 2>&1
}

# mutant NAME SED-EXPRESSION FILE TEST
mutant() {
    rm -rf "$dir" && mkdir -p "$dir"
    cp -r src test "$dir/"
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
cp -r src test "$dir/"
for test in test_region_order test_region_govern; do
    if noticed_by "$test"; then
        echo "$test fails without any mutant:"
        cat "$dir/out"
        exit 1
    fi
done

order() { mutant "$1" "$2" order.h test_region_order; }
order "a request must be later than the order" 's/asked >= lim_order_number\(order\) \|\|/asked > lim_order_number(order) ||/'
order "any request ends any order" 's/asked >= lim_order_number\(order\) \|\|/asked > 0 ||/'
order "requests are not heard" 's/return asked >= lim_order_number\(order\) \|\| !is_idle \?/return !is_idle ?/'
order "a freeze outlives its governor" 's/ && lim_is_governed\(governor_ns, now_ns\)//'
order "a governor counts for longer than its lease" 's/governor_ns \+ TESSERA_LEASE_NS/governor_ns + 2 * TESSERA_LEASE_NS/'
order "a freeze has no end of its own" 's/ && waited_ns < TESSERA_THAW_NS//'
order "orders have one number" 's/\(lim_order_number\(order\) \+ 1u\) << /(lim_order_number(order)) << /'
order "who is busy is frozen" 's/return is_idle \? following/return following ? following/'

govern() { mutant "$1" "$2" governor.c test_region_govern; }
govern "the idle keep what they could use" 's/if \(share->is_active == 0\)/if (false)/'
govern "who wants more keeps its use" 's/if \(wants_more\(share, left\)\)/if (false)/'
govern "nobody has a floor" 's/most\(floor_of\(&shares\[i\]\), left\)/left/'
govern "equals yield to each other" 's/level >= TESSERA_PRIORITY_LOW; level--\) \{/level >= TESSERA_PRIORITY_LOW; level--) { left = left > 500 ? 500 : left;/'
govern "who may have everything takes no turns" 's/is_below_any\(shares, count, level\) \? WHOLE_MILLI : 0/0/'
govern "the capped borrow" 's/ && !is_capped;/;/'
govern "unfilled requests are lent" 's/return most\(share->request, share->used\);/return share->used;/'
govern "what is beyond a request is taken off at once" 's/return most\(share->request, share->used\);/return share->request;/'
govern "ceilings reach beyond limits" 's/least\(\(uint64_t\)part, room_of\(&shares\[i\]\)\)/(uint64_t)part/'
govern "the high give back first" 's/level < other_level :/level > other_level :/'
govern "who has least beyond its request gives back" 's/excess_of\(one\) > excess_of\(other\)/excess_of(one) < excess_of(other)/'
govern "who is within its request gives back" 's/return share->used > share->request \?/return share->used > 0 ?/'

rm -rf "$dir"
[ "$survivors" -eq 0 ]
