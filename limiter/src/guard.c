/* DESIGN
 *
 * A tenant may write to the file of its region, so it can also cut it off. Who touches a mapped page that lies behind
 * the end of its file gets SIGBUS: a tenant could end the agent, and with it the limits of everybody else. Looking at
 * the length before every use leaves a moment between look and use.
 *
 * So a supervisor answers the signal: the page that was touched is replaced by one of zeros of its own, and the access
 * is repeated. What is read then is an empty region, which harms only the share that it belongs to, and the length
 * of the file tells afterwards that it is not whole. Any other SIGBUS, a memory error of the hardware among them, goes
 * to who was asked before.
 *
 * The handler makes one system call and reads a table of addresses, both allowed in a signal handler. It is installed
 * when a region is opened, also over the handler of somebody who came in between: nothing is guarded by a table alone.
 *
 * Only libtessera_region.so has it: a tenant that cuts off its own region ends itself.
 */
#include "guard.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_REGIONS 4096u

static struct tessera_region *guarded[MOST_REGIONS];
static struct sigaction former;
static uintptr_t page_size;

static bool is_guarded(uintptr_t address)
{
    for (uint32_t i = 0; i < MOST_REGIONS; i++) {
        uintptr_t region = (uintptr_t)__atomic_load_n(&guarded[i], __ATOMIC_ACQUIRE);
        if (region != 0 && address - region < sizeof(struct tessera_region)) {
            return true;
        }
    }
    return false;
}

/* True if the touched page is one of ours, and is there again. */
static bool is_mended(const siginfo_t *about)
{
    uintptr_t address = (uintptr_t)about->si_addr;
    if (about->si_code != BUS_ADRERR || !is_guarded(address)) {
        return false;
    }
    int saved = errno;
    void *page = mmap((void *)(address & ~(page_size - 1u)), page_size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    errno = saved;
    return page != MAP_FAILED;
}

static void on_bus_error(int number, siginfo_t *about, void *context)
{
    if (is_mended(about)) {
        return;
    }
    if ((former.sa_flags & SA_SIGINFO) != 0) {
        former.sa_sigaction(number, about, context);
    } else if (former.sa_handler != SIG_DFL && former.sa_handler != SIG_IGN) {
        former.sa_handler(number);
    } else {
        signal(number, SIG_DFL); /* the access is repeated, and ends the process as it would have */
    }
}

static bool is_installed(void)
{
    struct sigaction present;
    return sigaction(SIGBUS, NULL, &present) == 0 && (present.sa_flags & SA_SIGINFO) != 0 &&
           present.sa_sigaction == on_bus_error;
}

/* Threads that open their first regions at once may both come here: the second one finds ours in place, or puts the
 * same over it, and `former` is never ours. */
static void install(void)
{
    struct sigaction ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    struct sigaction before;
    sigemptyset(&ours.sa_mask);
    page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (!is_installed() && sigaction(SIGBUS, &ours, &before) == 0 && before.sa_sigaction != on_bus_error) {
        former = before;
    }
}

bool lim_guard(struct tessera_region *region)
{
    install();
    for (uint32_t i = 0; i < MOST_REGIONS; i++) {
        struct tessera_region *nobody = NULL;
        if (__atomic_compare_exchange_n(&guarded[i], &nobody, region, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            return true;
        }
    }
    return false;
}

void lim_unguard(struct tessera_region *region)
{
    for (uint32_t i = 0; i < MOST_REGIONS; i++) {
        struct tessera_region *it = region;
        if (__atomic_compare_exchange_n(&guarded[i], &it, NULL, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            return;
        }
    }
}
