/* DESIGN
 *
 * The runtime starts this program (an OCI createRuntime hook) when a container has its final cgroup and before its
 * first instruction. It hands the container's state to the node agent and passes the agent's word on: exit 0 lets the
 * container start, anything else stops it, and standard error is what `kubectl describe pod` shows. README.md fixes
 * both sides.
 *
 * There is one way to exit 0: an "ok" for a state that was sent whole. Everything else is a refusal.
 *
 * One deadline covers all of it, reading the state included. Until then, what a restarting agent looks like (no
 * socket, nobody listening, a full queue, a connection that ends without a word) is tried again: the question has no
 * effect, so asking twice is safe, and a pod that may not restart survives an agent's upgrade. An alarm ends the
 * program should anything block all the same (a standard error that nobody reads).
 *
 * Static, and no stdio: it runs from the node's disk under whatever libc the node has, and starts in well under a
 * millisecond.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "answer.h"

#define STATE_SIZE (1024u * 1024u)
#define DEFAULT_SOCKET "/run/tessera/gate.sock"
#define DEFAULT_TIMEOUT_MS 5000
#define LONGEST_TIMEOUT_S 60
#define RETRY_MS 20
#define GREETING "tessera-gate 1 "

struct settings {
    const char *socket;
    int timeout_ms;
};

/* One question and what came of it. `why` is set wherever there is no verdict. */
struct exchange {
    enum gate_verdict verdict;
    bool again; /* the agent may be about to come back */
    const char *why;
    size_t length;
    char answer[GATE_ANSWER_SIZE];
};

static char state[STATE_SIZE + 1]; /* one more tells a state that is too large */
static int64_t deadline_ms;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* -- what people read --------------------------------------------------------------------------- */

struct text {
    size_t length;
    char bytes[GATE_SHOWN_SIZE + 512];
};

static void add(struct text *text, const char *more)
{
    size_t length = strlen(more);
    size_t room = sizeof text->bytes - text->length;
    memcpy(text->bytes + text->length, more, length < room ? length : room);
    text->length += length < room ? length : room;
}

static void add_number(struct text *text, uint64_t number)
{
    char digits[24];
    char *at = digits + sizeof digits - 1;
    *at = '\0';
    do {
        *--at = (char)('0' + number % 10u);
        number /= 10u;
    } while (number != 0);
    add(text, at);
}

/* Writes the text and its newline to standard error; a reader that is gone changes nothing. */
static void show(struct text *text)
{
    size_t done = 0;
    add(text, "\n");
    while (done < text->length) {
        ssize_t wrote = write(STDERR_FILENO, text->bytes + done, text->length - done);
        if (wrote <= 0 && errno != EINTR) {
            return;
        }
        done += wrote > 0 ? (size_t)wrote : 0;
    }
}

static int complain(const char *what)
{
    struct text text = {0};
    add(&text, "tessera-gate: ");
    add(&text, what);
    add(&text, ": the container is not started");
    show(&text);
    return 1;
}

static int complain_of_silence(const struct settings *settings, const char *why)
{
    struct text text = {0};
    add(&text, "tessera: the node agent does not answer on ");
    add(&text, settings->socket);
    add(&text, " (");
    add(&text, why);
    add(&text, "; waited at most ");
    add_number(&text, (uint64_t)settings->timeout_ms);
    add(&text, " ms): the container is not started; check the tessera agent on this node");
    show(&text);
    return 1;
}

static const char *reason_of(int error)
{
    switch (error) {
    case ENOENT: return "there is no socket";
    case ECONNREFUSED: return "nobody listens";
    case EAGAIN: return "its queue is full";
    case EACCES:
    case EPERM: return "permission denied";
    case EPROTOTYPE: return "not a stream socket";
    default: return "the connection failed";
    }
}

/* -- waiting ------------------------------------------------------------------------------------ */

/* The events that have come by the deadline; 0 if none. */
static short wait_for(int file, short events)
{
    for (;;) {
        int64_t left = deadline_ms - now_ms();
        struct pollfd wanted = {.fd = file, .events = events};
        int ready = poll(&wanted, 1, left > 0 ? (int)left : 0);
        if (ready > 0) {
            return wanted.revents;
        }
        if (ready == 0 || errno != EINTR) {
            return 0;
        }
    }
}

/* Reads the container's state; NULL when it is there, else what is wrong. */
static const char *read_state(size_t *length)
{
    *length = 0;
    while (*length <= STATE_SIZE) {
        if (wait_for(STDIN_FILENO, POLLIN) == 0) {
            return "the runtime did not finish the container's state on standard input in time";
        }
        ssize_t got = read(STDIN_FILENO, state + *length, sizeof state - *length);
        if (got == 0) {
            return *length > 0 ? NULL : "the runtime gave no container state on standard input";
        }
        if (got < 0 && errno != EINTR && errno != EAGAIN) {
            return "the container's state on standard input cannot be read";
        }
        *length += got > 0 ? (size_t)got : 0;
    }
    return "the container's state on standard input is larger than 1 MiB";
}

/* -- the exchange ------------------------------------------------------------------------------- */

/* Sends the bytes; false when the peer spoke or went away before it had them all, or the deadline passed. */
static bool send_all(int peer, const char *bytes, size_t length)
{
    size_t done = 0;
    while (done < length) {
        short events = wait_for(peer, POLLOUT | POLLIN);
        if (events == 0 || (events & POLLIN) != 0) {
            return false;
        }
        ssize_t sent = send(peer, bytes + done, length - done, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR && errno != EAGAIN) {
            return false;
        }
        done += sent > 0 ? (size_t)sent : 0;
    }
    return true;
}

static bool send_question(int peer, size_t length)
{
    struct text greeting = {0};
    add(&greeting, GREETING);
    add_number(&greeting, length);
    add(&greeting, "\n");
    return send_all(peer, greeting.bytes, greeting.length) && send_all(peer, state, length);
}

static void receive_answer(int peer, struct exchange *exchange)
{
    bool ended = false;
    while (exchange->verdict == GATE_UNFINISHED) {
        if (wait_for(peer, POLLIN) == 0) {
            exchange->why = exchange->length == 0 ? "connected, but no answer" : "its answer stopped half-way";
            return;
        }
        ssize_t got = recv(peer, exchange->answer + exchange->length, GATE_ANSWER_SIZE - exchange->length, 0);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
            continue;
        }
        exchange->length += got > 0 ? (size_t)got : 0;
        ended = got <= 0 || exchange->length == GATE_ANSWER_SIZE;
        if (ended && exchange->length == 0) {
            exchange->again = true;
            exchange->why = "it closed the connection without an answer";
            return;
        }
        exchange->verdict = gate_judge(exchange->answer, exchange->length, ended);
    }
}

static int connect_to(const char *path, struct exchange *exchange)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path) + 1);
    int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (peer >= 0 && connect(peer, (const struct sockaddr *)&address, sizeof address) == 0) {
        return peer;
    }
    int error = errno;
    exchange->again = error == ENOENT || error == ECONNREFUSED || error == EAGAIN || error == EINTR;
    exchange->why = reason_of(error);
    if (peer >= 0) {
        close(peer);
    }
    return -1;
}

static void ask(const struct settings *settings, size_t length, struct exchange *exchange)
{
    exchange->verdict = GATE_UNFINISHED;
    exchange->again = false;
    exchange->length = 0;
    int peer = connect_to(settings->socket, exchange);
    if (peer < 0) {
        return;
    }
    bool sent = send_question(peer, length);
    receive_answer(peer, exchange);
    if (exchange->verdict == GATE_PASS && !sent) {
        exchange->verdict = GATE_GARBAGE; /* about a question that it has not read */
    }
    if (exchange->verdict == GATE_GARBAGE) {
        exchange->why = "its answer makes no sense";
    }
    close(peer);
}

static void ask_until_answered(const struct settings *settings, size_t length, struct exchange *exchange)
{
    ask(settings, length, exchange);
    while (exchange->again && now_ms() + RETRY_MS < deadline_ms) {
        poll(NULL, 0, RETRY_MS);
        ask(settings, length, exchange);
    }
}

/* -- the command line --------------------------------------------------------------------------- */

/* Seconds with at most three decimals as milliseconds; 0 where the text is not that, or is out of range. */
static int parse_seconds(const char *text)
{
    int value = 0;
    int decimals = -1;
    for (; *text != '\0'; text++) {
        if (*text == '.' && decimals < 0) {
            decimals = 0;
            continue;
        }
        if (*text < '0' || *text > '9' || decimals == 3 || value > LONGEST_TIMEOUT_S * 1000) {
            return 0;
        }
        value = value * 10 + (*text - '0');
        decimals += decimals >= 0 ? 1 : 0;
    }
    for (int missing = decimals < 0 ? 0 : decimals; missing < 3; missing++) {
        value = value > LONGEST_TIMEOUT_S * 1000 ? value : value * 10;
    }
    return value <= LONGEST_TIMEOUT_S * 1000 ? value : 0;
}

/* NULL when the arguments are understood, else what is wrong. */
static const char *parse_arguments(int count, char **arguments, struct settings *settings)
{
    for (int at = 1; at < count; at += 2) {
        const char *value = at + 1 < count ? arguments[at + 1] : "";
        if (strcmp(arguments[at], "--socket") == 0) {
            settings->socket = value;
        } else if (strcmp(arguments[at], "--timeout") == 0) {
            settings->timeout_ms = parse_seconds(value);
        } else {
            return "unknown argument; usage: tessera-gate [--socket PATH] [--timeout SECONDS]";
        }
    }
    if (settings->timeout_ms == 0) {
        return "--timeout takes seconds, above 0 and at most 60";
    }
    size_t length = strlen(settings->socket);
    return length > 0 && length < sizeof((struct sockaddr_un *)NULL)->sun_path ? NULL
                                                                               : "--socket takes a path of 1 to 107 bytes";
}

/* The last resort against anything that blocks. The runtime's own mask and dispositions are inherited: undone. */
static void arm_alarm(int timeout_ms)
{
    sigset_t none;
    sigemptyset(&none);
    signal(SIGALRM, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_SETMASK, &none, NULL);
    alarm((unsigned)timeout_ms / 1000u + 2u);
}

int main(int count, char **arguments)
{
    static struct exchange exchange;
    struct settings settings = {.socket = DEFAULT_SOCKET, .timeout_ms = DEFAULT_TIMEOUT_MS};
    size_t length;
    const char *wrong = parse_arguments(count, arguments, &settings);
    if (wrong != NULL) {
        return complain(wrong);
    }
    arm_alarm(settings.timeout_ms);
    deadline_ms = now_ms() + settings.timeout_ms;
    wrong = read_state(&length);
    if (wrong != NULL) {
        return complain(wrong);
    }
    ask_until_answered(&settings, length, &exchange);
    if (exchange.verdict == GATE_PASS) {
        return 0;
    }
    if (exchange.verdict != GATE_REFUSE) {
        return complain_of_silence(&settings, exchange.why);
    }
    struct text text = {0};
    char refusal[GATE_SHOWN_SIZE];
    size_t said = gate_refusal(exchange.answer, exchange.length, refusal);
    add(&text, said > 0 ? refusal : "tessera: the node agent refuses the container and gives no reason");
    show(&text);
    return 1;
}
