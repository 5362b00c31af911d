/* DESIGN
 *
 * The gate as the runtime starts it, over a scripted agent: this program is the runtime and the agent at once, and the
 * gate is its child. Usage: test_gate_program GATE. VALGRIND=1 puts memcheck before it. Short timeouts stand only where
 * the timeout itself is the matter; everywhere else it is far longer than the case.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "check.h"

#define MIB (1024u * 1024u)
#define PATIENT "50"
#define SOON_MS (getenv("VALGRIND") == NULL ? 10000 : 40000) /* of what happens at once, on a busy machine */
#define BRIEF "0.3"
#define A_STATE "{\"ociVersion\":\"1.0.2\",\"id\":\"c1\",\"status\":\"created\",\"pid\":42}"

static const char *gate_program;
static char directory[80];
static char socket_path[100];

struct gate {
    pid_t pid;
    int in;
    int err;
    size_t said;
    char text[4096];
};

/* -- the runtime -------------------------------------------------------------------------------- */

static void become_gate(const int in[2], const int err[2], char *const arguments[])
{
    char *command[12] = {NULL};
    size_t at = 0;
    dup2(in[0], STDIN_FILENO);
    dup2(err[1], STDERR_FILENO);
    if (getenv("VALGRIND") != NULL) {
        static char *const memcheck[] = {"valgrind", "--quiet", "--error-exitcode=99"};
        memcpy(command, memcheck, sizeof memcheck);
        at = sizeof memcheck / sizeof *memcheck;
    }
    command[at++] = (char *)gate_program;
    for (; *arguments != NULL; arguments++) {
        command[at++] = *arguments;
    }
    execvp(command[0], command);
    _exit(127);
}

static struct gate start(char *const arguments[])
{
    struct gate gate = {0};
    int in[2];
    int err[2];
    CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0);
    gate.pid = fork();
    CHECK(gate.pid >= 0);
    if (gate.pid == 0) {
        become_gate(in, err, arguments);
    }
    close(in[0]);
    close(err[1]);
    gate.in = in[1];
    gate.err = err[0];
    return gate;
}

static struct gate start_for(const char *timeout)
{
    return start((char *[]){"--socket", socket_path, "--timeout", (char *)timeout, NULL});
}

/* The state goes in by a child: a large one would block us while the gate waits for its agent. */
static void give_state(struct gate *gate, const char *state, size_t length)
{
    pid_t writer = fork();
    CHECK(writer >= 0);
    if (writer == 0) {
        for (size_t done = 0; done < length;) {
            ssize_t wrote = write(gate->in, state + done, length - done);
            if (wrote < 0) {
                _exit(0); /* the gate has ended */
            }
            done += (size_t)wrote;
        }
        _exit(0);
    }
    close(gate->in);
}

static void give(struct gate *gate)
{
    give_state(gate, A_STATE, strlen(A_STATE));
}

/* The exit status; what it said is in gate->text without its last newline. */
static int finish(struct gate *gate)
{
    int status;
    ssize_t got;
    while ((got = read(gate->err, gate->text + gate->said, sizeof gate->text - 1 - gate->said)) > 0) {
        gate->said += (size_t)got;
    }
    close(gate->err);
    CHECK(waitpid(gate->pid, &status, 0) == gate->pid);
    while (waitpid(-1, NULL, 0) > 0) {
    }
    if (gate->said > 0) {
        if (gate->text[--gate->said] != '\n') CHECK_FAIL("no end of line: %s", gate->text);
        gate->text[gate->said] = '\0';
    }
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void expect(struct gate *gate, int status, const char *text)
{
    int have = finish(gate);
    if (have != status) {
        CHECK_FAIL("expected status %d, have %d: %s", status, have, gate->text);
    }
    CHECK_EQ_STR(gate->text, text);
}

static void expect_silence(struct gate *gate, const char *why, const char *milliseconds)
{
    char text[512];
    snprintf(text, sizeof text,
             "tessera: the node agent does not answer on %s (%s; waited at most %s ms): the container is not started; "
             "check the tessera agent on this node",
             socket_path, why, milliseconds);
    expect(gate, 1, text);
}

/* -- the agent ---------------------------------------------------------------------------------- */

static int listen_for(int backlog)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    strcpy(address.sun_path, socket_path);
    unlink(socket_path);
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, backlog) == 0);
    return listener;
}

static int meet(int listener)
{
    CHECK(poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, SOON_MS) == 1);
    int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(peer >= 0);
    return peer;
}

static void hear(int peer, char *bytes, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t got = read(peer, bytes + done, length - done);
        CHECK(got > 0);
        done += (size_t)got;
    }
}

static void hear_question(int peer)
{
    static const char question[] = "tessera-gate 1 60\n" A_STATE;
    char bytes[sizeof question] = {0};
    hear(peer, bytes, sizeof question - 1);
    CHECK_EQ_STR(bytes, question);
}

static void say(int peer, const char *bytes, size_t length)
{
    CHECK(write(peer, bytes, length) == (ssize_t)length);
}

/* One whole exchange with an answer. */
static struct gate answered(const char *answer, size_t length)
{
    int listener = listen_for(8);
    struct gate gate = start_for(PATIENT);
    give(&gate);
    int peer = meet(listener);
    hear_question(peer);
    say(peer, answer, length);
    close(peer);
    close(listener);
    return gate;
}

/* -- cases -------------------------------------------------------------------------------------- */

static void a_yes_lets_the_container_start(void)
{
    struct gate gate = answered("ok\n", 3);
    expect(&gate, 0, "");
}

static void a_no_stops_it_and_says_why(void)
{
    static const char answer[] = "no tessera: pod default/a: the share is another pod's\n";
    struct gate gate = answered(answer, sizeof answer - 1);
    expect(&gate, 1, "tessera: pod default/a: the share is another pod's");
}

static void a_no_without_a_reason_is_a_no(void)
{
    struct gate gate = answered("no \n", 4);
    expect(&gate, 1, "tessera: the node agent refuses the container and gives no reason");
}

static void anything_else_stops_it(void)
{
    static const char *const answers[] = {"ok", "OK\n", "ok \n", "okay\n", "ok\r\n", " ok\n", "no\n", "\n", "yes\n", "\xff\xfe"};
    for (size_t at = 0; at < sizeof answers / sizeof *answers; at++) {
        struct gate gate = answered(answers[at], strlen(answers[at]));
        expect_silence(&gate, "its answer makes no sense", "50000");
    }
}

static void an_answer_may_come_in_pieces(void)
{
    int listener = listen_for(8);
    struct gate gate = start_for(PATIENT);
    give(&gate);
    int peer = meet(listener);
    hear_question(peer);
    say(peer, "o", 1);
    kill(gate.pid, SIGSTOP); /* and a wait may be interrupted */
    kill(gate.pid, SIGCONT);
    say(peer, "k\n", 2);
    expect(&gate, 0, "");
    close(peer);
    close(listener);
}

static void no_socket_stops_it(void)
{
    unlink(socket_path);
    struct gate gate = start_for(BRIEF);
    give(&gate);
    expect_silence(&gate, "there is no socket", "300");
}

static void a_dead_agent_stops_it(void)
{
    close(listen_for(8));
    struct gate gate = start_for(BRIEF);
    give(&gate);
    expect_silence(&gate, "nobody listens", "300");
}

static void a_stalled_agent_stops_it(void)
{
    int listener = listen_for(8); /* takes connections and never looks at them */
    struct gate gate = start_for(BRIEF);
    give(&gate);
    expect_silence(&gate, "connected, but no answer", "300");
    close(listener);
}

static void half_an_answer_stops_it(void)
{
    int listener = listen_for(8);
    struct gate gate = start_for("1");
    give(&gate);
    int peer = meet(listener);
    hear_question(peer);
    say(peer, "ok", 2);
    expect_silence(&gate, "its answer stopped half-way", "1000");
    close(peer);
    close(listener);
}

static void a_full_queue_stops_it(void)
{
    int listener = listen_for(0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int waiting[8];
    size_t count = 0;
    strcpy(address.sun_path, socket_path);
    do {
        CHECK(count < 8);
        waiting[count] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    } while (connect(waiting[count++], (struct sockaddr *)&address, sizeof address) == 0);
    struct gate gate = start_for(BRIEF);
    give(&gate);
    expect_silence(&gate, "its queue is full", "300");
    while (count > 0) {
        close(waiting[--count]);
    }
    close(listener);
}

static void what_is_no_socket_stops_it_at_once(void)
{
    int file = (unlink(socket_path), open(socket_path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    close(file);
    struct gate gate = start_for(BRIEF);
    give(&gate);
    expect_silence(&gate, "nobody listens", "300");
    CHECK(unlink(socket_path) == 0 && mkdir(socket_path, 0700) == 0);
    gate = start_for(BRIEF);
    give(&gate);
    expect_silence(&gate, "nobody listens", "300");
    CHECK(rmdir(socket_path) == 0);
}

/* Times that the process gave its processor away: it has tried again when that grows. */
static long switches(pid_t pid)
{
    char path[64];
    char line[256];
    long count = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        sscanf(line, "voluntary_ctxt_switches: %ld", &count);
    }
    fclose(file);
    return count;
}

/* Returns once the gate has tried again, and again. */
static void wait_for_tries(pid_t pid)
{
    long before = switches(pid);
    for (int waited = 0; switches(pid) < before + 3; waited++) {
        CHECK(waited < SOON_MS);
        poll(NULL, 0, 1);
    }
}

static void an_agent_that_restarts_costs_a_delay_only(void)
{
    int listener = listen_for(8);
    struct gate gate = start_for(PATIENT);
    give(&gate);
    int peer = meet(listener);
    hear_question(peer);
    close(listener); /* killed while it was thinking */
    close(peer);
    wait_for_tries(gate.pid);
    unlink(socket_path);
    wait_for_tries(gate.pid);
    listener = listen_for(8);
    peer = meet(listener);
    hear_question(peer);
    say(peer, "ok\n", 3);
    expect(&gate, 0, "");
    close(peer);
    close(listener);
}

static char large[MIB + 1];

static void the_largest_state_arrives_whole(void)
{
    static char heard[MIB];
    char greeting[24] = {0};
    int listener = listen_for(8);
    struct gate gate = start_for(PATIENT);
    give_state(&gate, large, MIB);
    int peer = meet(listener);
    hear(peer, greeting, strlen("tessera-gate 1 1048576\n"));
    CHECK_EQ_STR(greeting, "tessera-gate 1 1048576\n");
    hear(peer, heard, MIB);
    CHECK(memcmp(heard, large, MIB) == 0);
    say(peer, "ok\n", 3);
    expect(&gate, 0, "");
    close(peer);
    close(listener);
}

static void a_larger_state_is_not_asked_about(void)
{
    int listener = listen_for(8);
    struct gate gate = start_for(PATIENT);
    give_state(&gate, large, MIB + 1);
    expect(&gate, 1,
           "tessera-gate: the container's state on standard input is larger than 1 MiB: the container is not started");
    CHECK(poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, 0) == 0);
    close(listener);
}

static void a_no_may_come_before_the_whole_state(void)
{
    int listener = listen_for(8);
    struct gate gate = start_for(PATIENT);
    give_state(&gate, large, MIB);
    int peer = meet(listener);
    say(peer, "no too much\n", 12);
    CHECK(poll(&(struct pollfd){.fd = gate.err, .events = POLLIN}, 1, SOON_MS) == 1); /* not at the deadline only */
    expect(&gate, 1, "too much");
    close(peer);
    close(listener);
}

static void a_yes_may_not(void)
{
    int listener = listen_for(8);
    struct gate gate = start_for(PATIENT);
    give_state(&gate, large, MIB);
    int peer = meet(listener);
    say(peer, "ok\n", 3);
    expect_silence(&gate, "its answer makes no sense", "50000");
    close(peer);
    close(listener);
}

static void no_state_stops_it(void)
{
    int listener = listen_for(8);
    struct gate gate = start_for(PATIENT);
    close(gate.in);
    expect(&gate, 1,
           "tessera-gate: the runtime gave no container state on standard input: the container is not started");
    gate = start_for(BRIEF);
    CHECK(write(gate.in, "{", 1) == 1);
    expect(&gate, 1, "tessera-gate: the runtime did not finish the container's state on standard input in time: "
                     "the container is not started");
    close(gate.in);
    CHECK(poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, 0) == 0);
    close(listener);
}

static void an_endless_message_is_cut(void)
{
    static char answer[100000];
    char text[2048];
    memset(answer, 'x', sizeof answer);
    memcpy(answer, "no ", 3);
    int listener = listen_for(8);
    struct gate gate = start_for(PATIENT);
    give(&gate);
    int peer = meet(listener);
    hear_question(peer);
    say(peer, answer, sizeof answer);
    memset(text, 'x', sizeof text);
    strcpy(text + 2041, " (cut)");
    expect(&gate, 1, text);
    close(peer);
    close(listener);
}

static void control_characters_do_not_reach_a_terminal(void)
{
    static const char answer[] = "no \x1b]0;owned\a\x9b" "2Jend\n";
    struct gate gate = answered(answer, sizeof answer - 1);
    expect(&gate, 1, "?]0;owned??2Jend");
}

static void wrong_arguments_stop_it(void)
{
    static char long_path[200];
    memset(long_path, 'p', 108);
    char *const wrong[][3] = {
        {"--timeout", "0", NULL},    {"--timeout", "60.001", NULL}, {"--timeout", "-1", NULL},
        {"--timeout", "1s", NULL},   {"--timeout", NULL, NULL},     {"--timeout", "0.0001", NULL},
        {"--timeout", "99999999999999999999", NULL}, {"--timeout", "1..2", NULL},
        {"--socket", long_path, NULL}, {"--socket", NULL, NULL},    {"--socket", "", NULL},
        {"--help", NULL, NULL},      {"ok", NULL, NULL},
    };
    for (size_t at = 0; at < sizeof wrong / sizeof *wrong; at++) {
        struct gate gate = start(wrong[at]);
        close(gate.in);
        CHECK_EQ_U64(finish(&gate), 1);
        CHECK(strncmp(gate.text, "tessera-gate: ", 14) == 0);
        CHECK(strstr(gate.text, "takes") != NULL || strstr(gate.text, "unknown argument") != NULL);
    }
}

static void a_message_that_nobody_reads_is_no_yes(void)
{
    int listener = listen_for(8);
    struct gate gate = start_for(PATIENT);
    int status;
    close(gate.err);
    give(&gate);
    int peer = meet(listener);
    hear_question(peer);
    say(peer, "no thanks\n", 10);
    CHECK(waitpid(gate.pid, &status, 0) == gate.pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    close(peer);
    close(listener);
}

/* Its standard error is a full pipe, and whoever started it ignores and blocks the alarm's signal. */
static void what_blocks_for_good_is_ended(void)
{
    int status;
    int full[2];
    sigset_t alarms;
    char page[4096] = {0};
    unlink(socket_path);
    CHECK(pipe2(full, O_CLOEXEC | O_NONBLOCK) == 0);
    while (write(full[1], page, sizeof page) > 0) {
    }
    CHECK(fcntl(full[1], F_SETFL, 0) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        int empty[2];
        sigemptyset(&alarms);
        sigaddset(&alarms, SIGALRM);
        sigprocmask(SIG_BLOCK, &alarms, NULL);
        signal(SIGALRM, SIG_IGN);
        CHECK(pipe2(empty, O_CLOEXEC) == 0);
        become_gate(empty, full, (char *[]){"--timeout", "0.01", NULL});
    }
    for (int waited = 0; waitpid(pid, &status, WNOHANG) == 0; waited += 10) {
        CHECK(waited < SOON_MS);
        poll(NULL, 0, 10);
    }
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM);
    close(full[0]);
    close(full[1]);
}

int main(int count, char **arguments)
{
    const char *parent = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%s/tessera-gate.XXXXXX", parent != NULL ? parent : "/tmp");
    CHECK(count == 2 && mkdtemp(directory) != NULL);
    gate_program = arguments[1];
    snprintf(socket_path, sizeof socket_path, "%s/gate.sock", directory);
    memset(large, 's', sizeof large);
    alarm(getenv("VALGRIND") == NULL ? 120 : 600);
    a_yes_lets_the_container_start();
    a_no_stops_it_and_says_why();
    a_no_without_a_reason_is_a_no();
    anything_else_stops_it();
    an_answer_may_come_in_pieces();
    no_socket_stops_it();
    a_dead_agent_stops_it();
    a_stalled_agent_stops_it();
    half_an_answer_stops_it();
    a_full_queue_stops_it();
    what_is_no_socket_stops_it_at_once();
    an_agent_that_restarts_costs_a_delay_only();
    the_largest_state_arrives_whole();
    a_larger_state_is_not_asked_about();
    a_no_may_come_before_the_whole_state();
    a_yes_may_not();
    no_state_stops_it();
    an_endless_message_is_cut();
    control_characters_do_not_reach_a_terminal();
    wrong_arguments_stop_it();
    a_message_that_nobody_reads_is_no_yes();
    what_blocks_for_good_is_ended();
    unlink(socket_path);
    CHECK(rmdir(directory) == 0);
    return 0;
}
