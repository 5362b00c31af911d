/* DESIGN
 *
 * Start to exit of the gate, as a runtime sees it: spawn, hand in a state of 2 KiB, wait. The agent is a child that
 * reads the question and says yes. Beside it the same for /bin/true, which is what starting any program costs here.
 * Usage: bench_gate GATE ROUNDS.
 */
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STATE_SIZE = 2048 };

static char path[] = "/tmp/tessera-bench-gate.XXXXXX";
static char state[STATE_SIZE];

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void serve(int listener)
{
    char bytes[4096];
    const size_t question = strlen("tessera-gate 1 2048\n") + STATE_SIZE;
    for (;;) {
        int peer = accept(listener, NULL, NULL);
        size_t heard = 0;
        while (heard < question) {
            ssize_t got = read(peer, bytes, sizeof bytes);
            if (got <= 0) {
                break;
            }
            heard += (size_t)got;
        }
        if (write(peer, "ok\n", 3) != 3) {
            _exit(1);
        }
        close(peer);
    }
}

static int64_t run_once(const char *program, char *const arguments[])
{
    int in[2];
    int status;
    pid_t pid;
    posix_spawn_file_actions_t actions;
    if (pipe2(in, O_CLOEXEC) != 0) {
        fail("pipe");
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    int64_t begin = now_us();
    if (posix_spawn(&pid, program, &actions, NULL, arguments, (char *[]){NULL}) != 0) {
        fail(program);
    }
    if (write(in[1], state, sizeof state) != (ssize_t)sizeof state) {
        fail("write");
    }
    close(in[1]);
    if (waitpid(pid, &status, 0) != pid || status != 0) {
        fail("the program did not exit with 0");
    }
    int64_t taken = now_us() - begin;
    close(in[0]);
    posix_spawn_file_actions_destroy(&actions);
    return taken;
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void report(const char *what, int64_t *taken, long rounds)
{
    qsort(taken, (size_t)rounds, sizeof *taken, ascending);
    printf("%-34s p50 %5ld us, p99 %5ld us, most %5ld us (%ld starts)\n", what, (long)taken[rounds / 2],
           (long)taken[rounds * 99 / 100], (long)taken[rounds - 1], rounds);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        return 2;
    }
    long rounds = atol(argv[2]);
    int64_t *gate = calloc((size_t)rounds, sizeof *gate);
    int64_t *plain = calloc((size_t)rounds, sizeof *plain);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    close(mkstemp(path));
    unlink(path);
    strcpy(address.sun_path, path);
    if (gate == NULL || plain == NULL || rounds < 1 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, 64) != 0) {
        fail(path);
    }
    pid_t agent = fork();
    if (agent == 0) {
        serve(listener);
    }
    memset(state, 's', sizeof state);
    for (long round = 0; round < rounds; round++) {
        plain[round] = run_once("/bin/true", (char *[]){"true", NULL});
        gate[round] = run_once(argv[1], (char *[]){"tessera-gate", "--socket", path, NULL});
    }
    kill(agent, SIGKILL);
    unlink(path);
    report("/bin/true, for scale", plain, rounds);
    report("the gate, start to exit, a yes", gate, rounds);
    return 0;
}
