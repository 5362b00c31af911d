/* Atomic access to words of the shared region.
 *
 * DESIGN
 *
 * The region's structs hold plain integers, so that the header stays usable from anywhere; every access to a word
 * that another process may touch goes through these four. Loads acquire, stores release, exchanges do both: what
 * was written before a word was published is seen by whoever read the word. 64-bit exchanges are lock-free on every
 * target (asserted), which is what makes them valid between processes.
 *
 * A test that defines LIM_STEP, LIM_SEEN and LIM_SWAPPED gets control before every access and is told its outcome:
 * the model checker (test/test_region_model.c) compiles the real accounting this way and explores all interleavings.
 */
#ifndef LIM_ATOMICS_H
#define LIM_ATOMICS_H

#include <stdbool.h>
#include <stdint.h>

#ifndef LIM_STEP
#define LIM_STEP(word) ((void)0)
#define LIM_SEEN(value) (value)
#define LIM_SWAPPED(word, success) (success)
#endif

_Static_assert(__atomic_always_lock_free(sizeof(uint64_t), 0), "the region needs lock-free 64-bit words");

static inline uint64_t word_load(const uint64_t *word)
{
    LIM_STEP(word);
    return LIM_SEEN(__atomic_load_n(word, __ATOMIC_ACQUIRE));
}

static inline void word_store(uint64_t *word, uint64_t value)
{
    LIM_STEP(word);
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

/* True if the word was `expected` and now is `value`. */
static inline bool word_swap(uint64_t *word, uint64_t expected, uint64_t value)
{
    LIM_STEP(word);
    bool swapped = __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return LIM_SWAPPED(word, swapped);
}

/* Counters that nobody decides by. */
static inline void word_add(uint64_t *word, uint64_t amount)
{
    LIM_STEP(word);
    __atomic_fetch_add(word, amount, __ATOMIC_RELAXED);
}

/* Raises the word to `value`; returns at once when it is there already. */
static inline void word_raise(uint64_t *word, uint64_t value)
{
    for (uint64_t seen = word_load(word); seen < value; seen = word_load(word)) {
        if (word_swap(word, seen, value)) {
            return;
        }
    }
}

#endif
