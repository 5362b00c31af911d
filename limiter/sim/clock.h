/* DESIGN
 *
 * Device time: owners that have work share a device evenly (a fluid model of time slices), and
 * the work of one owner on one device runs in the order of submission, one piece at a time.
 * A ticket is a point in an owner's work; it is reached when the owner's finished work passes it.
 */
#ifndef TESSERA_SIM_CLOCK_H
#define TESSERA_SIM_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "machine.h"

/* All but sim_clock_wait are called with the lock held. */

/* Brings the device's queues up to now. */
void sim_clock_advance(int device, uint64_t now);

/* Appends ns of work of this process; returns its ticket. */
uint64_t sim_clock_submit(int device, uint64_t ns);

/* Has this process's work passed the ticket? Advances the device first if it must. */
bool sim_clock_reached(int device, uint64_t ticket);

/* The newest ticket of this process on the device. */
uint64_t sim_clock_tail(int device);

/* When the ticket was reached, monotonic ns: as far back as the marks go. */
uint64_t sim_clock_time(int device, uint64_t ticket);

/* Sleeps until the ticket is reached. Called without the lock. */
void sim_clock_wait(int device, uint64_t ticket);

#endif
