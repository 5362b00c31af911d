/* DESIGN
 *
 * Nothing runs in the background: whoever looks brings the queues up to date. Between two events
 * (a piece of work submitted, an owner running out of work, the end of a sample period) every
 * busy owner gains the same share of the elapsed time, in whole nanoseconds; what does not divide
 * evenly stays on the clock for the next step, so no time is lost or made.
 *
 * Each change of the set of busy owners leaves a mark (time, done) in the queue of every owner
 * concerned; the time at which a ticket was reached is read off the line between two marks.
 *
 * Utilisation of an owner over a period is the work it got done in it: two busy neighbours show
 * half each, which is what time slicing does and NVML reports.
 */
#include "clock.h"

#include <time.h>

enum { REAP_EVERY_NS = 50 * 1000 * 1000, SHORTEST_SLEEP_NS = 20 * 1000, LONGEST_SLEEP_NS = 5 * 1000 * 1000 };

static struct sim_queue *queue_of(uint32_t owner, int device)
{
    return &sim_machine->owner[owner].queue[device];
}

static bool is_busy(uint32_t owner, int device)
{
    const struct sim_queue *queue = queue_of(owner, device);
    return sim_machine->owner[owner].pid != 0 && queue->done < queue->submitted;
}

static void mark(struct sim_queue *queue, uint64_t at)
{
    queue->mark[queue->marks++ % SIM_BREAKS] = (struct sim_mark){at, queue->done};
}

static void mark_busy(int device, uint64_t at)
{
    for (uint32_t o = 0; o < sim_machine->owners; o++)
        if (is_busy(o, device)) mark(queue_of(o, device), at);
}

/* -- samples ------------------------------------------------------------------------------ */

static uint64_t percent(uint64_t part, uint64_t whole)
{
    uint64_t rounded = (part * 100 + whole / 2) / whole;
    return rounded > 100 ? 100 : rounded;
}

/* Closes the sample period that ends at device->sample_at. */
static void sample(int device)
{
    struct sim_device *d = &sim_machine->device[device];
    uint64_t all = 0;
    for (uint32_t o = 0; o < sim_machine->owners; o++) {
        struct sim_queue *queue = queue_of(o, device);
        uint64_t work = queue->done - queue->sampled;
        queue->sampled = queue->done;
        all += work;
        if (work == 0 || sim_machine->owner[o].pid == 0) continue;
        queue->sample[queue->samples++ % SIM_SAMPLES] =
            (struct sim_sample){d->sample_at, percent(work, sim_description.sample_ns)};
    }
    d->percent = percent(all, sim_description.sample_ns);
    d->sample_at += sim_description.sample_ns;
}

/* A long idle stretch is one step: its periods are all zero and need no loop. */
static void skip_idle(int device, uint64_t now)
{
    struct sim_device *d = &sim_machine->device[device];
    uint64_t period = sim_description.sample_ns;
    if (now < d->sample_at + 2 * period) return;
    sample(device); /* the period in which work ended */
    d->percent = 0;
    d->sample_at += (now - d->sample_at) / period * period;
    d->clock = d->sample_at - period;
}

/* -- advancing ---------------------------------------------------------------------------- */

/* Gives every busy owner `share` ns; returns how many ran out of work. */
static uint32_t gain(int device, uint64_t share, uint64_t end)
{
    uint32_t ended = 0;
    for (uint32_t o = 0; o < sim_machine->owners; o++) {
        if (!is_busy(o, device)) continue;
        struct sim_queue *queue = queue_of(o, device);
        queue->done += share;
        if (queue->done < queue->submitted) continue;
        mark(queue, end);
        ended++;
    }
    return ended;
}

static uint32_t busy_owners(int device, uint64_t *least)
{
    uint32_t busy = 0;
    *least = UINT64_MAX;
    for (uint32_t o = 0; o < sim_machine->owners; o++) {
        if (!is_busy(o, device)) continue;
        const struct sim_queue *queue = queue_of(o, device);
        uint64_t left = queue->submitted - queue->done;
        if (left < *least) *least = left;
        busy++;
    }
    return busy;
}

/* One step towards `now`; false when less than a nanosecond per owner is left to hand out. */
static bool step(int device, uint64_t now)
{
    struct sim_device *d = &sim_machine->device[device];
    uint64_t least, stop = now < d->sample_at ? now : d->sample_at;
    uint32_t busy = busy_owners(device, &least);
    if (busy == 0) {
        d->clock = stop;
        if (stop == d->sample_at) {
            skip_idle(device, now);
            if (d->clock >= d->sample_at) sample(device);
        }
        return true;
    }
    uint64_t share = (stop - d->clock) / busy;
    if (share > least) share = least;
    if (share == 0 && stop == now) return false;
    uint64_t end = d->clock + share * busy;
    if (gain(device, share, end) != 0) mark_busy(device, end);
    d->clock = end;
    if (d->sample_at - d->clock < busy) sample(device); /* the rest of the period is not divisible */
    return true;
}

void sim_clock_advance(int device, uint64_t now)
{
    while (sim_machine->device[device].clock < now && step(device, now)) continue;
}

/* -- this process's queue ----------------------------------------------------------------- */

uint64_t sim_clock_submit(int device, uint64_t ns)
{
    struct sim_queue *queue = queue_of(sim_self, device);
    sim_clock_advance(device, sim_now());
    if (ns == 0) return queue->submitted;
    bool was_idle = queue->done == queue->submitted;
    queue->submitted += ns;
    if (was_idle) mark_busy(device, sim_machine->device[device].clock); /* the shares change */
    return queue->submitted;
}

bool sim_clock_reached(int device, uint64_t ticket)
{
    if (queue_of(sim_self, device)->done >= ticket) return true;
    sim_clock_advance(device, sim_now());
    return queue_of(sim_self, device)->done >= ticket;
}

uint64_t sim_clock_tail(int device)
{
    return queue_of(sim_self, device)->submitted;
}

uint64_t sim_clock_time(int device, uint64_t ticket)
{
    const struct sim_queue *queue = queue_of(sim_self, device);
    struct sim_mark later = {sim_machine->device[device].clock, queue->done};
    uint32_t kept = queue->marks < SIM_BREAKS ? queue->marks : SIM_BREAKS;
    for (uint32_t i = 1; i <= kept; i++) {
        struct sim_mark earlier = queue->mark[(queue->marks - i) % SIM_BREAKS];
        if (earlier.done < ticket && ticket <= later.done)
            return earlier.at + (uint64_t)((double)(ticket - earlier.done) * (double)(later.at - earlier.at) /
                                           (double)(later.done - earlier.done));
        later = earlier;
    }
    return later.at;
}

/* Time until the ticket at the earliest: every neighbour may stop at any moment. */
static uint64_t left(int device, uint64_t ticket)
{
    uint64_t ns = 0;
    sim_lock();
    if (!sim_clock_reached(device, ticket)) ns = ticket - queue_of(sim_self, device)->done;
    /* A killed neighbour must not keep its share of the device for ever. */
    if (ns != 0 && sim_now() - sim_machine->reaped_at > REAP_EVERY_NS) sim_reap();
    sim_unlock();
    return ns;
}

void sim_clock_wait(int device, uint64_t ticket)
{
    uint64_t ns;
    while ((ns = left(device, ticket)) != 0) {
        if (ns < SHORTEST_SLEEP_NS) ns = SHORTEST_SLEEP_NS;
        if (ns > LONGEST_SLEEP_NS) ns = LONGEST_SLEEP_NS;
        struct timespec pause = {0, (long)ns};
        nanosleep(&pause, NULL);
    }
}
