/* DESIGN
 *
 * The machine as the description file states it: the driver's words and one row per device.
 * Process-local and read-only after parsing; what processes share is in machine.h.
 */
#ifndef TESSERA_SIM_DESCRIPTION_H
#define TESSERA_SIM_DESCRIPTION_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_MAX_DEVICES 16
#define SIM_MIB (1024ULL * 1024ULL)

#define SIM_LIMITS_SINCE 615 /* the driver that has memory limits of cgroups */

/* Who accounts for the memory of a cgroup: nobody, the kernel's dmem controller, the driver itself. */
enum sim_accounting { SIM_ACCOUNT_OFF = 0, SIM_ACCOUNT_MISC, SIM_ACCOUNT_DMEM };

struct sim_device_row {
    char uuid[48]; /* GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx */
    unsigned char uuid_bytes[16];
    char name[96];
    uint64_t memory;   /* bytes, whole card */
    uint64_t reserved; /* bytes the driver keeps for itself */
    uint64_t context;  /* bytes a process pays for its first context here */
    int sms;
    int major, minor; /* compute capability */
    unsigned pci_domain, pci_bus, pci_device;
    int numa;
    int integrated; /* host and device memory are one */
};

struct sim_description {
    char path[4096];
    uint64_t hash;            /* of the file's bytes: a state file belongs to one description */
    int version;              /* 1000 * major + 10 * minor */
    char driver[80];          /* version of the kernel driver, as NVML tells it */
    int driver_major;         /* its first number */
    enum sim_accounting accounting;
    uint64_t limit_step;      /* bytes that a cgroup's limit is rounded up to; 0: not */
    uint64_t kernel_ns;       /* time of a kernel whose name says none */
    uint64_t sample_ns;       /* period of the utilisation samples */
    uint64_t pid_shift;       /* what NVML adds to PIDs: a driver that tells the host's to who is in a namespace */
    uint32_t queue_depth;     /* launches in flight before a launch blocks */
    int count;
    struct sim_device_row device[SIM_MAX_DEVICES];
};

/* True and *out filled when TESSERA_SIM_MACHINE names a readable, well-formed description. */
bool sim_describe(struct sim_description *out);

#endif
