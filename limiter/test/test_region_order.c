/* DESIGN
 *
 * A model checker for orders: the governor's and the launches' sides of src/order.h, the very functions, in every
 * interleaving of their accesses to the region, with the governor killed and started again at any step, processes killed at
 * any step, and time passing whenever it may.
 *
 * A governor's look is: read what was launched, read what was asked, write cap and order, write the gate, be heard of. A
 * launch is: count itself, read the gate, and where that is shut read the order, ask, sleep, look again. Processes are in a
 * collective: nobody begins its next launch before everybody made this one. A tick of time is a quarter of a second. It
 * passes only when everybody who sleeps has looked since the last one, and a living governor has had a whole look: that
 * is all that is assumed of schedulers.
 *
 * Laws, checked in every state:
 *     bounded     a launch never waits longer than TESSERA_THAW_NS, and not TESSERA_LEASE_NS beyond the governor's last word
 *     resumed     while the governor lives, a launch waits for two of its looks at most
 *     not lost    an order that froze does not stand after a look that saw it asked for
 *     not stolen  a request for an old order ends no later one
 *     no deadlock when time is up, everybody has made its launches, or waits for a partner that was killed
 *     yields      a launch that reads the cap after a whole look that began while a higher share was active reads one
 *     released    nobody is capped by a governor that has not been heard of for TESSERA_LEASE_NS
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "../src/order.h"
#include "check.h"

#define TICK_NS UINT64_C(250000000)
#define LEASE_TICKS (TESSERA_LEASE_NS / TICK_NS)
#define THAW_TICKS (TESSERA_THAW_NS / TICK_NS)
#define IDLE_TICKS 2u /* the shortest time after which governors may call a share idle */
#define SEEN_CAPACITY (UINT64_C(1) << 25)

enum { PROCESSES = 3, LAUNCHES = 2, FIRST_TICK = 1 };
enum governor_at { ASLEEP, SAW_LAUNCHES, SAW_ASKED, WROTE_ORDER, WROTE_GATE };
enum launch_at { BETWEEN, COUNTED, AT_ORDER, ASKING, SLEEPING, AT_CAP };

struct governor {
    uint8_t at; /* enum governor_at */
    uint8_t alive;
    uint8_t lives; /* that are left */
    uint8_t looked; /* had a whole look since the last tick */
    uint8_t knows;  /* has looked before, so it can tell idle from busy */
    uint8_t seen_launches; /* and requests */
    uint8_t busy;          /* tick of the last look that saw more of them */
    uint8_t is_idle;
    uint8_t sees_high;
    uint8_t seen_asked;
};

struct process {
    uint8_t at; /* enum launch_at */
    uint8_t dead;
    uint8_t made;     /* launches */
    uint8_t polled;   /* looked since the last tick */
    uint8_t waited;   /* ticks of this wait */
    uint8_t waits;
    uint8_t governed; /* the governor lived through all of this wait */
    uint8_t order;    /* as read last */
};

struct state {
    uint8_t now; /* ticks */
    uint8_t order;
    uint8_t asked;
    uint8_t gate;
    uint8_t cap;
    uint8_t heard; /* ticks; 0: never */
    uint8_t launches;
    uint8_t high;         /* a higher share is active */
    uint8_t high_is_told; /* a whole look began since */
    uint8_t kills;        /* of processes, that are left */
    struct governor governor;
    struct process process[PROCESSES];
};

struct scenario {
    const char *name;
    uint8_t order; /* to begin with */
    uint8_t lives; /* of the governor */
    uint8_t kills;
    uint8_t ticks;
    bool deaf; /* a governor that is broken: it lives, and hears no request */
};

static struct state now;
static const struct scenario *scene;
static uint64_t *seen_states;
static uint64_t state_count;

static uint64_t ns(uint8_t ticks)
{
    return ticks * TICK_NS;
}

static bool is_new_state(void)
{
    uint64_t hash = 7;
    const uint8_t *bytes = (const uint8_t *)&now;
    for (size_t i = 0; i < sizeof now; i++) {
        hash = (hash ^ bytes[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    hash |= 1u;
    uint64_t at = hash >> 20 & (SEEN_CAPACITY - 1u);
    while (seen_states[at] != 0 && seen_states[at] != hash) at = (at + 1u) & (SEEN_CAPACITY - 1u);
    if (seen_states[at] == hash) return false;
    seen_states[at] = hash;
    CHECK(++state_count < SEEN_CAPACITY / 4u * 3u);
    return true;
}

/* -- the governor --------------------------------------------------------------------------------------------------- */

/* `wants_freeze`: how long is long enough is the governor's own affair from IDLE_TICKS on, so any such look may be. What it
 * thinks of a frozen share is free: a request must do. */
static void govern(bool wants_freeze)
{
    struct governor *governor = &now.governor;
    switch (governor->at) {
    case ASLEEP:
        if (!governor->knows || governor->seen_launches != now.launches + now.asked) governor->busy = now.now;
        governor->seen_launches = (uint8_t)(now.launches + now.asked);
        governor->knows = 1;
        governor->is_idle = wants_freeze && (lim_order_freezes(now.order) || now.now >= governor->busy + IDLE_TICKS);
        governor->is_idle = governor->is_idle || scene->deaf;
        governor->sees_high = now.high;
        governor->at = SAW_LAUNCHES;
        break;
    case SAW_LAUNCHES:
        governor->seen_asked = scene->deaf ? 0 : now.asked;
        governor->at = SAW_ASKED;
        break;
    case SAW_ASKED: {
        uint8_t before = now.order;
        now.cap = governor->sees_high;
        now.order = (uint8_t)lim_order_next(before, governor->seen_asked, governor->is_idle);
        /* not lost, not stolen */
        CHECK(!lim_order_freezes(now.order) || governor->seen_asked < lim_order_number(now.order));
        CHECK(!lim_order_freezes(before) || lim_order_freezes(now.order) || !governor->is_idle ||
              governor->seen_asked >= lim_order_number(before));
        governor->at = WROTE_ORDER;
        break;
    }
    case WROTE_ORDER:
        now.gate = now.cap != 0 || lim_order_freezes(now.order);
        governor->at = WROTE_GATE;
        break;
    default:
        now.heard = now.now;
        governor->looked = 1;
        governor->at = ASLEEP;
        now.high_is_told = now.high_is_told || governor->sees_high;
    }
}

static void die(void)
{
    now.governor = (struct governor){.lives = now.governor.lives};
    now.high_is_told = 0; /* who comes next has to look first */
    for (int i = 0; i < PROCESSES; i++) now.process[i].governed = 0;
}

/* -- launches ------------------------------------------------------------------------------------------------------- */

static bool partners_made(uint8_t launches)
{
    for (int i = 0; i < PROCESSES; i++) {
        if (now.process[i].made < launches) return false;
    }
    return true;
}

static bool may_step(const struct process *process)
{
    if (process->dead || (process->at == SLEEPING && process->polled)) return false;
    return process->at != BETWEEN || (process->made < LAUNCHES && partners_made(process->made));
}

static void look_at_order(struct process *process)
{
    process->order = now.order;
    process->polled = 1;
    bool holds = lim_order_holds(now.order, ns(now.heard), ns(now.now), ns(process->waited));
    if (!holds) {
        process->at = AT_CAP;
        return;
    }
    /* bounded: whoever goes on has reason to */
    CHECK(process->waited < THAW_TICKS && now.now <= now.heard + LEASE_TICKS);
    process->at = ASKING;
}

static void go(struct process *process)
{
    bool is_capped = now.cap != 0 && lim_is_governed(ns(now.heard), ns(now.now));
    CHECK(!is_capped || now.now <= now.heard + LEASE_TICKS); /* released */
    if (now.high_is_told && now.governor.alive) CHECK(now.cap != 0); /* yields */
    process->made++;
    process->at = BETWEEN;
    process->waited = process->waits = process->polled = process->order = process->governed = 0;
}

static void launch(struct process *process)
{
    switch (process->at) {
    case BETWEEN:
        now.launches++;
        process->at = COUNTED;
        break;
    case COUNTED: process->at = now.gate ? AT_ORDER : AT_CAP; break;
    case AT_ORDER:
    case SLEEPING:
        if (!process->waits) process->governed = now.governor.alive;
        process->waits = 1;
        look_at_order(process);
        break;
    case ASKING: {
        uint8_t number = (uint8_t)lim_order_number(process->order);
        now.asked = now.asked < number ? number : now.asked;
        process->at = SLEEPING;
        break;
    }
    default: go(process);
    }
}

/* -- time ----------------------------------------------------------------------------------------------------------- */

/* A quarter of a second passes when everybody who could do something did. */
static bool may_pass(void)
{
    if (now.now >= scene->ticks + FIRST_TICK || (now.governor.alive && (!now.governor.looked || now.governor.at != ASLEEP))) {
        return false;
    }
    for (int i = 0; i < PROCESSES; i++) {
        if (may_step(&now.process[i])) return false;
    }
    return true;
}

static void pass(void)
{
    now.now++;
    now.governor.looked = 0;
    for (int i = 0; i < PROCESSES; i++) {
        struct process *process = &now.process[i];
        process->polled = 0;
        process->waited += process->at == SLEEPING && !process->dead;
    }
}

/* -- search --------------------------------------------------------------------------------------------------------- */

static void check_state(void)
{
    bool someone_died = false;
    for (int i = 0; i < PROCESSES; i++) someone_died = someone_died || now.process[i].dead;
    for (int i = 0; i < PROCESSES; i++) {
        const struct process *process = &now.process[i];
        if (process->dead) continue;
        CHECK(process->waited <= THAW_TICKS);                                                         /* bounded */
        CHECK(process->at != SLEEPING || now.now <= now.heard + LEASE_TICKS + 1u);                   /* bounded */
        CHECK(process->at != SLEEPING || !process->governed || process->waited <= 2 || scene->deaf); /* resumed */
        CHECK(now.now < scene->ticks + FIRST_TICK || process->made == LAUNCHES || may_step(process) || someone_died);
    }
}

static void explore(void);

static void explore_from(const struct state *before)
{
    explore();
    now = *before;
}

static void explore(void)
{
    check_state();
    if (!is_new_state()) return;
    struct state here = now;
    for (int i = 0; i < PROCESSES; i++) {
        if (may_step(&now.process[i])) {
            launch(&now.process[i]);
            explore_from(&here);
        }
        if (now.kills > 0 && !now.process[i].dead) {
            now.kills--;
            now.process[i] = (struct process){.dead = 1, .made = now.process[i].made};
            explore_from(&here);
        }
    }
    if (now.governor.alive && !(now.governor.looked && now.governor.at == ASLEEP)) {
        for (int wants_freeze = 0; wants_freeze < (now.governor.at == ASLEEP ? 2 : 1); wants_freeze++) {
            govern(wants_freeze != 0);
            explore_from(&here);
        }
    }
    if (now.governor.alive) {
        die();
        explore_from(&here);
    } else if (now.governor.lives > 0) {
        now.governor = (struct governor){.alive = 1, .lives = (uint8_t)(now.governor.lives - 1)};
        explore_from(&here);
    }
    if (!now.high) {
        now.high = 1;
        explore_from(&here);
    }
    if (may_pass()) {
        pass();
        explore_from(&here);
    }
}

static void check_scenario(const struct scenario *scenario)
{
    scene = scenario;
    state_count = 0;
    memset(seen_states, 0, SEEN_CAPACITY * sizeof *seen_states);
    memset(&now, 0, sizeof now);
    now.now = now.heard = FIRST_TICK;
    now.order = scenario->order;
    now.gate = lim_order_freezes(scenario->order);
    now.kills = scenario->kills;
    now.governor = (struct governor){.alive = 1, .lives = scenario->lives};
    explore();
    printf("%s: %" PRIu64 " states\n", scene->name, state_count);
}

#define FROZEN(number) ((number) << LIM_ORDER_SHIFT | TESSERA_ORDER_FREEZE)

static const struct scenario scenarios[] = {
    {"three ranks, running", 0, 0, 0, 12, false},
    {"three ranks, frozen", FROZEN(1), 0, 0, 12, false},
    {"three ranks, frozen, the governor dies and comes back", FROZEN(1), 1, 0, 16, false},
    {"three ranks, frozen, one is killed", FROZEN(1), 0, 1, 12, false},
    {"three ranks, frozen by a governor that hears nobody", FROZEN(1), 0, 1, 24, true},
};

int main(void)
{
    seen_states = malloc(SEEN_CAPACITY * sizeof *seen_states);
    CHECK(seen_states != NULL);
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) check_scenario(&scenarios[i]);
    return 0;
}
