/* DESIGN
 *
 * Memory by cgroup, as drivers from 615 on account for it: which cgroup pays for a charge, and whether its limits leave
 * room. A cgroup is known by the inode of its directory, which is the same number wherever it is looked at: a process in
 * a container sees its own cgroup as the root, and the one who sets its limit sees all of them.
 *
 * Two backends, as the driver has them:
 * - dmem: limits nest. A charge must fit below every limit from the cgroup up.
 * - misc: one limit counts, that of the nearest limited cgroup from the own one up; its children that have none are
 *   counted with it, those that have one are not.
 *
 * A charge is paid by the cgroup that the calling task is in at that moment, and stays there wherever the task goes.
 * Managed memory is paid by nobody. A cgroup that is removed takes its own limits with it; what its soft limit added to
 * those above it stays there.
 *
 * Source: NVIDIA, "MPS v3 Memory Partitioning" (CUDA 13.4): backends, hierarchy, what queries show; Linux,
 * kernel/cgroup/dmem.c and the cgroup-v2 document: who pays.
 */
#ifndef TESSERA_SIM_CGROUP_H
#define TESSERA_SIM_CGROUP_H

#include "machine.h"

#define SIM_UNLIMITED (~0ULL)

/* All of these are called with the machine's lock held. A group is a slot + 1 of machine.group[]; 0 is none. */

/* The group of the calling process, found or made; 0 where the table is full. */
uint32_t sim_group_self(void);
/* The group of a cgroup's directory, with all those above it; 0 where it is no cgroup or the table is full. */
uint32_t sim_group_at(const char *directory);
/* Whether the limits leave room for `more` bytes on a device. */
bool sim_group_fits(uint32_t group, int device, uint64_t more);
/* The group whose limit counts in the misc backend; 0 where there is none. */
uint32_t sim_group_limited(uint32_t group, int device);
/* Bytes held by a group and by all those below it. */
uint64_t sim_group_used(uint32_t group, int device);
/* What a process of the group is shown of a device: the capacity and what is free of it, capped to the own limit. */
void sim_group_view(uint32_t group, int device, uint64_t *capacity, uint64_t *free_bytes);
/* Forgets the limits of cgroups that were removed: whoever sees the host's tree calls it. */
void sim_group_sweep(void);

#endif
