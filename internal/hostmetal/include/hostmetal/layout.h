// What the library and the kernels it compiles both know. Plain C++ types only.
#pragma once

namespace hm {

// What one threadgroup of a dispatch sees.
struct Group {
  void *buffer[31];
  void *shared[31];  // threadgroup memory
  unsigned position[3];   // of this threadgroup in the grid of threadgroups
  unsigned size[3];       // in threads; smaller than full_size at an edge
  unsigned full_size[3];  // as dispatched
  unsigned groups[3];     // threadgroups in the dispatch
  unsigned grid[3];       // threads in the dispatch
  unsigned width;         // of a SIMD-group
  unsigned threads;       // in this threadgroup
};

enum Kind { kBuffer, kThreadgroup, kValue };

struct Argument {
  int kind, index;
  unsigned size, align;  // of what is pointed at
  int reference, writable;
};

struct Kernel {
  const char *name;
  const char *id;  // names the thunks in the object file
  const Argument *arguments;
  unsigned argument_count;
  unsigned max_threads;                                    // max_total_threads_per_threadgroup, or 0
  void (*one)(const Group *, unsigned linear);          // a fiber's body
  void (*every)(const Group *, const unsigned *order);      // every thread in turn; order may be null
};

// What a SIMD-group function gets back: 16 bytes for each lane.
struct Lanes {
  const char *slots;
  unsigned lane, width;
};

}  // namespace hm
