/* DESIGN
 *
 * A simulated machine for one test program: a description in a fresh directory, gone at exit,
 * and children that share the machine. Children are forked before cuInit and talk over pipes,
 * so no test waits by the clock.
 */
#ifndef TESSERA_SIM_WORLD_H
#define TESSERA_SIM_WORLD_H

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "../abi/cuda_abi.h"
#include "../abi/nvml_abi.h"
#include "check.h"

#define MIB (1024ULL * 1024ULL)

#define OK(call) CHECK_EQ_U64((call), CUDA_SUCCESS)
#define IS(call, code) CHECK_EQ_U64((call), (code))

static char world_path[256];
static pid_t world_owner;

static void world_end(void)
{
    char command[512];
    if (getpid() != world_owner || world_path[0] == '\0') return;
    *strrchr(world_path, '/') = '\0';
    snprintf(command, sizeof command, "rm -rf '%s'", world_path);
    if (system(command) != 0) fprintf(stderr, "could not remove %s\n", world_path);
}

/* Writes the description and points this process and its children at it. */
static void world_write(const char *text)
{
    if (world_owner == 0) {
        char directory[] = "/tmp/tessera-sim-XXXXXX";
        CHECK(mkdtemp(directory) != NULL);
        snprintf(world_path, sizeof world_path, "%s/machine", directory);
        world_owner = getpid();
        atexit(world_end);
        unsetenv("CUDA_VISIBLE_DEVICES");
        CHECK(setenv("TESSERA_SIM_MACHINE", world_path, 1) == 0);
    }
    FILE *file = fopen(world_path, "w");
    CHECK(file != NULL);
    CHECK(fputs(text, file) >= 0);
    CHECK(fclose(file) == 0);
}

static inline CUcontext world_context(CUdevice device)
{
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    return context;
}

static inline uint64_t world_free(void)
{
    size_t free_bytes, total;
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    return free_bytes;
}

/* -- children: a pid and a pipe each way --------------------------------------------------- */

struct child {
    pid_t pid;
    int to, from;
};

static inline struct child child_start(void (*body)(int in, int out))
{
    int down[2], up[2];
    CHECK(pipe(down) == 0 && pipe(up) == 0);
    fflush(NULL);
    struct child child = {fork(), down[1], up[0]};
    CHECK(child.pid >= 0);
    if (child.pid == 0) {
        close(down[1]);
        close(up[0]);
        body(down[0], up[1]);
        _exit(0);
    }
    close(down[0]);
    close(up[1]);
    return child;
}

static inline void tell(int fd, uint64_t word)
{
    CHECK(write(fd, &word, sizeof word) == sizeof word);
}

static inline uint64_t hear(int fd)
{
    uint64_t word = 0;
    CHECK(read(fd, &word, sizeof word) == sizeof word);
    return word;
}

/* Ends the child with the signal, or asks it to end with the word 0; expects that outcome. (A
 * closed pipe would not do: children forked later hold its ends too.) */
static inline void child_end(struct child *child, int signal_number)
{
    int status;
    if (signal_number != 0) CHECK(kill(child->pid, signal_number) == 0);
    else tell(child->to, 0);
    close(child->to);
    CHECK(waitpid(child->pid, &status, 0) == child->pid);
    close(child->from);
    if (signal_number != 0) CHECK(WIFSIGNALED(status) && WTERMSIG(status) == signal_number);
    else CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#endif
