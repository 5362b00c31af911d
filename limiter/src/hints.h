/* For the compiler: what is rare. A function that is inlined into a hook costs every call the registers that it needs,
 * also when it never runs; these stay out of line and off the path. */
#ifndef LIM_HINTS_H
#define LIM_HINTS_H

#define LIM_COLD __attribute__((cold, noinline))
#define LIM_USUAL(condition) __builtin_expect((condition), 1)

#endif
