// Control of libhostmetal.so beyond Metal's API: for tests.
#ifndef HOSTMETAL_H
#define HOSTMETAL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The order of fibers, of threadgroups and of concurrent dispatches is drawn from the
// seed; 0 (the default, or HOSTMETAL_SEED) is the natural order.
void hostmetal_set_seed(uint64_t seed);

// Flush f32 subnormals in and out, as Apple's GPUs do: 1 is the default (HOSTMETAL_FTZ).
void hostmetal_set_ftz(int on);

// Threads that share a dispatch's threadgroups: 1 is the default (HOSTMETAL_THREADS).
void hostmetal_set_threads(int n);

// What a kernel's fault (divergence, a guard word overwritten) or a misuse of the API does:
// 1, the default (HOSTMETAL_ABORT), prints it and aborts. With 0 a kernel's fault becomes
// the command buffer's error, and a misuse is recorded and the call ignored.
void hostmetal_set_abort(int on);

// The number of recorded misuses, and the last one's text.
unsigned long hostmetal_misuses(void);
const char *hostmetal_last_misuse(void);

// A fault by name (README.md lists them). For an event n > 0 means the nth from now, once;
// n < 0 every one; 0 none. For a trait of the device anything but 0 switches it on, and it
// holds for objects made afterwards. Returns 0, or -1 for an unknown name.
// HOSTMETAL_FAULT=name,name=n sets faults before the first call.
int hostmetal_set_fault(const char *name, long n);
void hostmetal_clear_faults(void);

// Live objects by protocol or class name ("MTLBuffer"); all of them for NULL; -1 for an unknown name.
long hostmetal_live_count(const char *name);

// Counters by name: compiles, cache-hits, dispatches, threadgroups, switches. 0 for an unknown name.
uint64_t hostmetal_counter(const char *name);

#ifdef __cplusplus
}
#endif

#endif
