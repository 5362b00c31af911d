/* DESIGN
 *
 * The whole test harness: a failed check prints file, line and both values, and the process
 * exits with status 1. No registration, no runner: a test is a program, main calls its cases.
 * _exit is used so that a failing child of fork never runs its parent's exit handlers.
 */
#ifndef TESSERA_CHECK_H
#define TESSERA_CHECK_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHECK_FAIL(...)                                         \
    do {                                                        \
        fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, __func__); \
        fprintf(stderr, __VA_ARGS__);                           \
        fputc('\n', stderr);                                    \
        fflush(NULL);                                           \
        _exit(1);                                               \
    } while (0)

#define CHECK(cond)                                             \
    do {                                                        \
        if (!(cond)) CHECK_FAIL("expected %s", #cond);          \
    } while (0)

#define CHECK_EQ_U64(a, b)                                                                \
    do {                                                                                  \
        uint64_t check_a_ = (uint64_t)(a), check_b_ = (uint64_t)(b);                      \
        if (check_a_ != check_b_)                                                         \
            CHECK_FAIL("expected %s == %s, have %" PRIu64 " and %" PRIu64, #a, #b,        \
                       check_a_, check_b_);                                               \
    } while (0)

#define CHECK_EQ_STR(a, b)                                                                \
    do {                                                                                  \
        const char *check_a_ = (a), *check_b_ = (b);                                      \
        if (strcmp(check_a_, check_b_) != 0)                                              \
            CHECK_FAIL("expected %s == %s, have \"%s\" and \"%s\"", #a, #b, check_a_, check_b_); \
    } while (0)

#endif
