/* DESIGN
 *
 * What every exported function does first: refuse before cuInit, write the audit log, inject the
 * fault asked for. With neither asked for, the cost is one load and one branch.
 *
 *     TESSERA_SIM_AUDIT=path           one line per call: pid, name, arguments
 *     TESSERA_SIM_FAIL=name:n:code,... the n-th call of name (1 is the first) answers code;
 *                                      n+ means: from the n-th on
 */
#ifndef TESSERA_SIM_TRACE_H
#define TESSERA_SIM_TRACE_H

#include <stdbool.h>

extern bool sim_traced; /* either variable is set */

/* Reads both variables; called when the library is loaded and again by cuInit and nvmlInit. */
void sim_trace_load(void);

/* Logs the call; returns the injected code, 0 for none. */
int sim_trace(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* First statement of a function: its arguments, as a printf format and values. */
#define SIM_TRACE(type, ...)                                                   \
    do {                                                                       \
        if (__builtin_expect(sim_traced, 0)) {                                 \
            int sim_fault_ = sim_trace(__func__, __VA_ARGS__);                 \
            if (sim_fault_ != 0) return (type)sim_fault_;                      \
        }                                                                      \
    } while (0)

#endif
