// What darwinkit names of Grand Central Dispatch, and nothing here calls.
#include <stdint.h>
#include <stdlib.h>

typedef void *dispatch_queue_t;
typedef void *dispatch_object_t;

static inline void *dispatch_get_main_queue(void) { abort(); }
static inline void *dispatch_get_global_queue(intptr_t identifier, uintptr_t flags) { abort(); }
static inline void dispatch_retain(void *object) { abort(); }
static inline void dispatch_release(void *object) { abort(); }
static inline void dispatch_async(void *queue, void (^block)(void)) { abort(); }
static inline void dispatch_sync(void *queue, void (^block)(void)) { abort(); }
