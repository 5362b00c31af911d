#!/bin/sh
# Breaks the accounting in ways that are easy to get wrong, one at a time, and expects the model checker to notice each:
# a check that cannot fail proves nothing. Usage: mutants.sh CC BUILD_DIR, from limiter/.
set -eu
cc=$1
dir=$2/mutants
survivors=0

# mutant NAME SED-EXPRESSION FILE
mutant() {
    rm -rf "$dir" && mkdir -p "$dir/test" "$dir/src"
    cp src/*.c src/*.h "$dir/src/" && cp test/test_region_model.c test/check.h "$dir/test/"
    sed -i -E "$2" "$dir/src/$3"
    if cmp -s "$dir/src/$3" "src/$3"; then
        echo "mutant '$1' changes nothing: adapt its expression to $3"
        exit 1
    fi
    $cc -std=c11 -O2 -w -D_GNU_SOURCE -Iinclude -Iabi "$dir/test/test_region_model.c" -o "$dir/model"
    if "$dir/model" >"$dir/out" 2>&1; then
        echo "survived: $1"
        survivors=$((survivors + 1))
    else
        echo "caught: $1 ($(grep -m 1 -o 'check_.*expected.*\|[a-z_]*: expected.*' "$dir/out" || echo crashed))"
    fi
}

mutant "a writer is replaced without acknowledgement" \
    's/^    acknowledge_writer\(region, actor, device, gauge\);//' account.c
mutant "acknowledgement after the replacement" \
    's/^    acknowledge_writer\(region, actor, device, gauge\);/bool swapped = word_swap(\&region->usage.device[device].gauge, gauge, replacement); acknowledge_writer(region, actor, device, gauge); return swapped;/' account.c
mutant "the limit is off by one" \
    's/if \(used > limit_granules\)/if (used > limit_granules + 1u)/' account.c
mutant "a charge is not one step with its check" \
    's/gauge_word\(used, slot, seq\)\)\) \{/gauge_word(lim_gauge_used(gauge = word_load(\&usage->gauge)) + granules, slot, seq))) {/; s/try_replace_gauge\(region, slot, device, gauge, gauge_word\(lim_gauge_used\(gauge = /try_replace_gauge(region, slot, device, word_load(\&usage->gauge), gauge_word(lim_gauge_used(gauge = /' account.c
mutant "the intent is cleared before the result is stored" \
    '/^            word_store\(&record->used_granules, target\);/{N;s/(.*)\n(.*)/\2\n\1/}' account.c
mutant "the intent's value is written after the gauge" \
    's/^    word_store\(&record->intent_used_granules, target\);//; s/^            word_store\(&record->used_granules, target\);/            word_store(\&record->intent_used_granules, target);\n&/' account.c
mutant "the owner's last operation is ignored by reapers" \
    's/bool effective = false;/bool effective = false; return (void)word_swap(\&record->intent, intent, intent_word(seq + 1u, TESSERA_REAP_USED));/' account.c
mutant "reapers trust the gauge alone" \
    's/(gauge\), slot, seq\)) \|\|$/\1;/; s/^ *word_load\(&record->acked\) >= seq;$//' account.c
mutant "reapers give back without looking whether it was done" \
    's/if \(gauge_names\(gauge, slot, seq\) \|\| word_load\(&record->acked\) >= seq\) \{/if (false) {/' account.c
mutant "a stalled reaper does not look at the state again" \
    's/if \(word_load\(&dead->state\) != state\) \{/if (false) {/' account.c
mutant "a new owner does not acknowledge the reaping before it" \
    's/^        word_raise\(&record->acked, seq\);.*//' account.c
mutant "a new owner starts its numbers again" \
    's/intent_word\(seq, TESSERA_IDLE\)\);$/intent_word(0, TESSERA_IDLE));/; ' account.c
mutant "a new owner is idle before it is empty" \
    '/^        word_store\(&record->used_granules, 0\);/d; s/^(        word_store\(&record->intent, intent_word\(seq, TESSERA_IDLE\)\);)$/\1 word_store(\&record->used_granules, 0);/' account.c
mutant "the slot is freed without a vote" \
    's/return word_swap\(&region->slot\[slot\].state, state, lim_state_freed\(state\)\);/word_store(\&region->slot[slot].state, lim_state_freed(state)); return true;/' account.c
mutant "a dead slot is entered without a vote" \
    's/if \(!word_swap\(&slot->state, state, reaping\)\) \{/word_store(\&slot->state, reaping); if (false) {/' slots.c
mutant "a slot is claimed without a vote" \
    's/if \(!word_swap\(&slot->state, state, claimed\)\) \{/word_store(\&slot->state, claimed); if (false) {/' slots.c

rm -rf "$dir"
[ "$survivors" -eq 0 ]
