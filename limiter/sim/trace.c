/* DESIGN
 *
 * Audit lines go out in one write each, to a file opened for appending, so lines of several
 * processes never mix. A fault counts the calls of this process only.
 */
#include "trace.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FAULTS = 16, MAX_NAME = 80, MAX_AUDIT_LINE = 512 };

struct fault {
    char name[MAX_NAME];
    uint32_t at;
    int code;
    bool onwards;
    _Atomic uint32_t calls;
};

bool sim_traced;
static struct fault faults[MAX_FAULTS];
static int fault_count;
static char loaded[1024]; /* the value the faults were read from: their counts survive a reload */
static char audit_path[4096];
static int audit_fd = -1;

/* "name:n:code" or "name:n+:code"; what does not parse is ignored. */
static void add_fault(const char *text)
{
    struct fault *fault = &faults[fault_count];
    char plus = '\0';
    if (fault_count == MAX_FAULTS) return;
    if (sscanf(text, "%79[^:]:%u:%d", fault->name, &fault->at, &fault->code) != 3 &&
        (sscanf(text, "%79[^:]:%u%c:%d", fault->name, &fault->at, &plus, &fault->code) != 4 || plus != '+'))
        return;
    fault->onwards = plus == '+';
    atomic_store(&fault->calls, 0);
    fault_count++;
}

static void load_faults(const char *text)
{
    char copy[sizeof loaded], *rest = NULL;
    if (strcmp(text, loaded) == 0 || strlen(text) >= sizeof loaded) return;
    strcpy(loaded, text);
    strcpy(copy, text);
    fault_count = 0;
    for (char *at = strtok_r(copy, ",", &rest); at != NULL; at = strtok_r(NULL, ",", &rest)) add_fault(at);
}

static void load_audit(const char *path)
{
    if (strcmp(path, audit_path) == 0 || strlen(path) >= sizeof audit_path) return;
    strcpy(audit_path, path);
    if (audit_fd >= 0) close(audit_fd);
    audit_fd = path[0] == '\0' ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

void sim_trace_load(void)
{
    const char *fail = getenv("TESSERA_SIM_FAIL"), *audit = getenv("TESSERA_SIM_AUDIT");
    load_faults(fail == NULL ? "" : fail);
    load_audit(audit == NULL ? "" : audit);
    sim_traced = fault_count != 0 || audit_fd >= 0;
}

__attribute__((constructor)) static void load_at_start(void)
{
    sim_trace_load();
}

static int injected(const char *name)
{
    for (int i = 0; i < fault_count; i++) {
        struct fault *fault = &faults[i];
        if (strcmp(fault->name, name) != 0) continue;
        uint32_t call = atomic_fetch_add(&fault->calls, 1) + 1;
        if (call == fault->at || (fault->onwards && call > fault->at)) return fault->code;
    }
    return 0;
}

int sim_trace(const char *name, const char *format, ...)
{
    char line[MAX_AUDIT_LINE];
    if (audit_fd >= 0) {
        int length = snprintf(line, sizeof line, "%d %s ", (int)getpid(), name);
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(line + length, sizeof line - (size_t)length - 1, format, arguments);
        va_end(arguments);
        strcat(line, "\n");
        if (write(audit_fd, line, strlen(line)) < 0) audit_fd = -1; /* a log never fails a call */
    }
    return injected(name);
}
