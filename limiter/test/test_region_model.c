/* DESIGN
 *
 * A model checker for the accounting in src/account.c and src/slots.c: the real source, compiled so that every access
 * to a shared word first gives control to a scheduler. Processes are coroutines. The scheduler explores every
 * interleaving of their accesses, with a SIGKILL possible before each of them, by depth-first search over snapshots.
 *
 * Checked in every state reached: the gauge equals the sum of what each slot contributes by the rule in account.c, dead
 * and half-dead slots included, and is within the limit. Checked at the end of every run, after one last reaping: the
 * gauge equals what the living processes know they hold, and every dead slot is free.
 *
 * Two states are the same if the shared words are the same and every process stands at the same place with the same
 * local values. Code between accesses is deterministic, so what a process saw since the operation began is where it
 * stands; an attempt whose exchange failed leaves nothing behind but the fact that it begins again.
 *
 * Memory order is not modelled (sequential consistency); the order annotations are argued in atomics.h.
 */
#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <ucontext.h>

static void step(const void *word);
static uint64_t see(uint64_t value);
static bool see_swap(const void *word, bool success);
#define LIM_STEP(word) step(word)
#define LIM_SEEN(value) see(value)
#define LIM_SWAPPED(word, success) see_swap(word, success)

#include "../src/account.c"
#include "../src/slots.c"
#include "check.h"

#define PROCESSES_MAX 4
#define SLOTS 3 /* tracked; scenarios never need more */
#define STACK_SIZE 16384
#define SEEN_CAPACITY (UINT64_C(1) << 24)
#define STEPS_MAX 600
#define RED_ZONE 512 /* below the frame that yields: what setjmp and the ABI may use */

enum { WORDS = 1 + SLOTS * 5 };

typedef void body(int self);

struct process {
    jmp_buf context;
    size_t low;       /* offset of the lowest live byte of its stack */
    uint64_t history; /* what it saw since the operation began */
    uint64_t base;    /* the same when the current attempt began */
    uint32_t steps;
    bool done;
    bool dead;
    uint64_t held; /* granules it knows it holds */
    int slot;      /* its slot, -1 for none */
    uint64_t what; /* number of its operations so far */
};

struct scenario {
    const char *name;
    uint64_t limit;
    int count;
    int kills;
    body *bodies[PROCESSES_MAX];
    int slots[PROCESSES_MAX]; /* taken before the start; -1 for none */
};

static struct tessera_region *region;
static uint64_t *tracked[WORDS];
static struct process processes[PROCESSES_MAX];
static char stacks[PROCESSES_MAX][STACK_SIZE] __attribute__((aligned(64)));
static jmp_buf scheduler;
static ucontext_t starter;
static int running = -1; /* -1: not stepping, accesses go straight through */
static const struct scenario *scene;
static uint64_t *seen_states;
static uint64_t state_count;

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

static bool is_tracked(const void *word)
{
    for (int i = 0; i < WORDS; i++) {
        if (tracked[i] == word) {
            return true;
        }
    }
    return false;
}

/* Back to the scheduler until this process is chosen again. */
static void yield_step(void)
{
    struct process *self = &processes[running];
    char here;
    self->history = mix(self->history, 0x51ed);
    CHECK(++self->steps < STEPS_MAX); /* nobody waits for anybody */
    self->low = (size_t)(&here - stacks[running]) - RED_ZONE;
    if (_setjmp(self->context) == 0) {
        _longjmp(scheduler, 1);
    }
}

static void step(const void *word)
{
    if (running >= 0 && is_tracked(word)) {
        yield_step();
    }
}

static uint64_t see(uint64_t value)
{
    if (running >= 0) {
        processes[running].history = mix(processes[running].history, value);
    }
    return value;
}

/* All that came before is forgotten but the operation, which `what` tells apart from others. */
static void begin_operation(int self, uint64_t what)
{
    processes[self].history = mix(what, processes[self].held);
    processes[self].base = processes[self].history;
}

/* Loops of the code under test begin again after a failed exchange of the gauge and after any exchange of an intent. */
static bool see_swap(const void *word, bool success)
{
    bool on_gauge = word == &region->usage.device[0].gauge;
    bool on_intent = false;
    for (int i = 0; i < SLOTS; i++) {
        on_intent = on_intent || word == &region->slot[i].device[0].intent;
    }
    if (running >= 0 && ((on_gauge && !success) || on_intent)) {
        processes[running].history = processes[running].base;
    }
    see(success && !on_intent);
    for (int i = 0; i < SLOTS && running >= 0; i++) {
        if (word == &region->slot[i].state) {
            processes[running].base = processes[running].history;
        }
    }
    return success;
}

/* Process p's PID is p + 1. The world's answer about a process is an access like any other. */
bool lim_is_gone(const struct tessera_slot *slot, uint64_t state, const struct process_identity *judge)
{
    (void)slot;
    (void)judge;
    if (running >= 0) {
        yield_step();
        begin_operation(running, mix(processes[running].what, state));
    }
    uint64_t pid = state >> TESSERA_STATE_PID_SHIFT & ((1u << TESSERA_STATE_PID_BITS) - 1u);
    bool gone = see(processes[pid - 1].dead) != 0;
    if (running >= 0) {
        processes[running].base = processes[running].history;
    }
    return gone;
}

bool lim_is_absent(const struct tessera_slot *slot, uint64_t state, const struct process_identity *judge)
{
    return lim_is_gone(slot, state, judge);
}

bool lim_bears_pid(uint64_t state, const struct process_identity *identity)
{
    uint64_t pid = state >> TESSERA_STATE_PID_SHIFT & ((1u << TESSERA_STATE_PID_BITS) - 1u);
    return (state & 3u) != TESSERA_FREE && pid == identity->pid;
}

uint64_t lim_claimed_state(uint64_t state, const struct process_identity *identity)
{
    uint64_t epoch = state & ((UINT64_C(1) << TESSERA_STATE_PID_SHIFT) - 4u);
    return epoch | (uint64_t)identity->pid << TESSERA_STATE_PID_SHIFT | TESSERA_CLAIMED;
}

uint64_t lim_now_ns(void)
{
    return 0;
}

/* -- what processes do --------------------------------------------------------------------- */

static void take(int self, uint64_t granules)
{
    struct process *process = &processes[self];
    begin_operation(self, ++process->what);
    if (lim_charge(region, (uint32_t)process->slot, 0, granules, scene->limit)) {
        process->held += granules;
    }
}

static void give(int self, uint64_t granules)
{
    begin_operation(self, ++processes[self].what);
    lim_discharge(region, (uint32_t)processes[self].slot, 0, granules);
    processes[self].held -= granules < processes[self].held ? granules : processes[self].held;
}

static void take_give_take(int self)
{
    take(self, 2);
    give(self, 2);
    take(self, 3);
}

static void take_give(int self)
{
    take(self, 3);
    give(self, 1);
}

static void take_two(int self)
{
    take(self, 2);
}

static void reaper(int self)
{
    struct process_identity judge = {.pid = (uint32_t)self + 1u};
    lim_reap_dead(region, &judge, TESSERA_MAX_SLOTS);
}

static void newcomer(int self)
{
    struct process_identity me = {.pid = (uint32_t)self + 1u};
    processes[self].slot = lim_register(region, &me);
    CHECK(processes[self].slot >= 0);
    take(self, 2);
}

/* -- laws ---------------------------------------------------------------------------------- */

/* The rule of account.c, applied to a slot whatever happened to its owner. */
static uint64_t contribution(uint32_t slot)
{
    const struct tessera_slot_device *record = &region->slot[slot].device[0];
    uint64_t gauge = region->usage.device[0].gauge;
    uint64_t seq = record->intent >> 2;
    bool named = (gauge >> TESSERA_GAUGE_SEQ_BITS & 1023u) == slot &&
                 ((gauge ^ seq) & ((1u << TESSERA_GAUGE_SEQ_BITS) - 1u)) == 0;
    bool effective = named || record->acked >= seq;
    switch (record->intent & 3u) {
    case TESSERA_PENDING: return effective ? record->intent_used_granules : record->used_granules;
    case TESSERA_REAP_USED: return effective ? 0 : record->used_granules;
    case TESSERA_REAP_NEW: return effective ? 0 : record->intent_used_granules;
    default: return record->used_granules;
    }
}

static void check_state(void)
{
    uint64_t sum = 0;
    uint64_t used = lim_gauge_used(region->usage.device[0].gauge);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        sum += contribution(slot);
    }
    CHECK_EQ_U64(used, sum);
    CHECK(used <= scene->limit);
}

/* -- search -------------------------------------------------------------------------------- */

struct snapshot {
    uint64_t words[WORDS];
    struct process processes[PROCESSES_MAX];
    char *stack; /* the live part of one process's: the one about to run */
};

static void entry(unsigned self)
{
    yield_step();
    scene->bodies[self]((int)self);
    processes[self].done = true;
    _longjmp(scheduler, 1);
}

static void run_one_step(int self)
{
    running = self;
    if (_setjmp(scheduler) == 0) {
        _longjmp(processes[self].context, 1);
    }
    running = -1;
}

static void start_process(int self)
{
    static ucontext_t begin;
    processes[self] = (struct process){.slot = scene->slots[self]};
    getcontext(&begin);
    begin.uc_stack.ss_sp = stacks[self];
    begin.uc_stack.ss_size = STACK_SIZE;
    makecontext(&begin, (void (*)(void))entry, 1, (unsigned)self);
    running = self;
    if (_setjmp(scheduler) == 0) {
        swapcontext(&starter, &begin);
    }
    run_one_step(self); /* to its first access */
}

static void save(struct snapshot *snapshot, int self)
{
    for (int i = 0; i < WORDS; i++) {
        snapshot->words[i] = *tracked[i];
    }
    memcpy(snapshot->processes, processes, sizeof processes);
    snapshot->stack = NULL;
    if (self >= 0) {
        size_t live = STACK_SIZE - processes[self].low;
        snapshot->stack = malloc(live);
        CHECK(snapshot->stack != NULL);
        memcpy(snapshot->stack, stacks[self] + processes[self].low, live);
    }
}

static void restore(struct snapshot *snapshot, int self)
{
    for (int i = 0; i < WORDS; i++) {
        *tracked[i] = snapshot->words[i];
    }
    memcpy(processes, snapshot->processes, sizeof processes);
    if (self >= 0) {
        memcpy(stacks[self] + processes[self].low, snapshot->stack, STACK_SIZE - processes[self].low);
        free(snapshot->stack);
    }
}

static bool is_new_state(int kills)
{
    uint64_t hash = mix(7, (uint64_t)kills);
    for (int i = 0; i < WORDS; i++) {
        hash = mix(hash, *tracked[i]);
    }
    for (int i = 0; i < scene->count; i++) {
        const struct process *process = &processes[i];
        uint64_t place = process->dead ? 1 : process->done ? mix(2, process->held) : process->history;
        hash = mix(hash, mix(place, (uint64_t)(process->slot + 1)));
    }
    hash |= 1u; /* zero marks an empty place */
    uint64_t at = hash >> 20 & (SEEN_CAPACITY - 1u);
    while (seen_states[at] != 0 && seen_states[at] != hash) {
        at = (at + 1u) & (SEEN_CAPACITY - 1u);
    }
    bool is_new = seen_states[at] == 0;
    seen_states[at] = hash;
    state_count += is_new;
    CHECK(state_count < SEEN_CAPACITY / 4u * 3u);
    return is_new;
}

/* Nothing runs any more: one reaping by somebody outside, and the books must balance. */
static void check_end(void)
{
    struct snapshot snapshot;
    struct process_identity outsider = {.pid = 1000};
    uint64_t expected = 0;
    save(&snapshot, -1);
    lim_reap_dead(region, &outsider, TESSERA_MAX_SLOTS);
    for (int i = 0; i < scene->count; i++) {
        const struct process *process = &processes[i];
        if (process->slot >= 0 && !process->dead) {
            expected += process->held;
            CHECK_EQ_U64(region->slot[process->slot].device[0].used_granules, process->held);
        }
    }
    CHECK_EQ_U64(lim_gauge_used(region->usage.device[0].gauge), expected);
    for (int i = 0; i < SLOTS; i++) {
        uint64_t pid = region->slot[i].state >> TESSERA_STATE_PID_SHIFT;
        CHECK(pid == 0 || !processes[pid - 1].dead);
    }
    restore(&snapshot, -1);
}

static void explore(int kills)
{
    struct snapshot snapshot;
    bool quiet = true;
    check_state();
    if (!is_new_state(kills)) {
        return;
    }
    for (int i = 0; i < scene->count; i++) {
        if (processes[i].dead || processes[i].done) {
            continue;
        }
        quiet = false;
        save(&snapshot, i);
        run_one_step(i);
        explore(kills);
        restore(&snapshot, i);
    }
    for (int i = 0; i < scene->count && kills > 0; i++) {
        if (!processes[i].dead) {
            processes[i].dead = true;
            explore(kills - 1);
            processes[i].dead = false;
        }
    }
    if (quiet) {
        check_end();
    }
}

static void prepare_region(void)
{
    struct process_identity owner;
    memset(region, 0, sizeof *region);
    region->header.device_count = 1;
    region->usage.slot_high_water = SLOTS;
    for (int i = 0; i < scene->count; i++) {
        if (scene->slots[i] >= 0) {
            owner = (struct process_identity){.pid = (uint32_t)i + 1u};
            CHECK(claim_slot(region, (uint32_t)scene->slots[i], &owner));
        }
    }
}

static void check_scenario(const struct scenario *scenario)
{
    scene = scenario;
    state_count = 0;
    memset(seen_states, 0, SEEN_CAPACITY * sizeof *seen_states);
    prepare_region();
    for (int i = 0; i < scene->count; i++) {
        start_process(i);
    }
    explore(scene->kills);
    printf("%s: %" PRIu64 " states\n", scene->name, state_count);
}

static void track_words(void)
{
    int at = 0;
    tracked[at++] = &region->usage.device[0].gauge;
    for (int i = 0; i < SLOTS; i++) {
        struct tessera_slot_device *record = &region->slot[i].device[0];
        tracked[at++] = &region->slot[i].state;
        tracked[at++] = &record->used_granules;
        tracked[at++] = &record->intent;
        tracked[at++] = &record->intent_used_granules;
        tracked[at++] = &record->acked;
    }
}

static const struct scenario scenarios[] = {
    {"two processes and a reaper, two killed", 4, 3, 2, {take_give_take, take_give_take, reaper}, {0, 1, -1}},
    {"three processes, two killed", 5, 3, 2, {take_give, take_give, take_two}, {0, 1, 2}},
    {"a process and two reapers, all killed", 4, 3, 3, {take_give, reaper, reaper}, {0, -1, -1}},
    {"two processes and two reapers, one killed", 4, 4, 1, {take_two, take_two, reaper, reaper}, {0, 1, -1, -1}},
    {"a newcomer takes over a dead slot, two killed", 4, 3, 2, {take_give, reaper, newcomer}, {0, -1, -1}},
    {"two newcomers race for slots, two killed", 4, 3, 2, {take_two, newcomer, newcomer}, {0, -1, -1}},
};

int main(void)
{
    region = calloc(1, sizeof *region);
    seen_states = malloc(SEEN_CAPACITY * sizeof *seen_states);
    CHECK(region != NULL && seen_states != NULL);
    track_words();
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        check_scenario(&scenarios[i]);
    }
    return 0;
}
