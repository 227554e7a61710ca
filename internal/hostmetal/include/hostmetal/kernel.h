// How a kernel's arguments are fetched and how the library learns of a kernel.
// src/msl.cc writes the thunks after each kernel function and instantiation.
#pragma once

#include <hostmetal/layout.h>

namespace hm {

struct Thread {
  const Group *g;
  uint linear, x, y, z;
};

template <class P> struct from3 {
  static P get(uint x, uint, uint) { return P(x); }
};
#define HM_FROM3(T)                                                                \
  template <> struct from3<T##2> { static T##2 get(uint x, uint y, uint) { return T##2{T(x), T(y)}; } }; \
  template <> struct from3<T##3> { static T##3 get(uint x, uint y, uint z) { return T##3{T(x), T(y), T(z)}; } };
HM_FROM3(uint)
HM_FROM3(ushort)
#undef HM_FROM3

template <class P> struct pointee;
template <class T> struct pointee<T *> {
  typedef T type;
  static constexpr bool reference = false;
  static T *get(void *p) { return static_cast<T *>(p); }
};
template <class T> struct pointee<T &> {
  typedef T type;
  static constexpr bool reference = true;
  static T &get(void *p) { return *static_cast<T *>(p); }
};

template <int N> struct buffer {
  static_assert(N >= 0 && N < 31, "buffer index must be 0 to 30");
  static constexpr Kind kind = kBuffer;
  static constexpr int index = N;
  template <class P> static P get(const Thread &t) { return pointee<P>::get(t.g->buffer[N]); }
};
template <int N> struct threadgroup_memory {
  static_assert(N >= 0 && N < 31, "threadgroup index must be 0 to 30");
  static constexpr Kind kind = kThreadgroup;
  static constexpr int index = N;
  template <class P> static P get(const Thread &t) { return pointee<P>::get(t.g->shared[N]); }
};

#define HM_VALUE(NAME, X, Y, Z)                                              \
  struct NAME {                                                              \
    static constexpr Kind kind = kValue;                                     \
    static constexpr int index = 0;                                          \
    template <class P> static P get(const Thread &t) { return from3<P>::get(X, Y, Z); } \
  };
#define HM_VALUE3(NAME, V) HM_VALUE(NAME, V[0], V[1], V[2])
#define HM_VALUE1(NAME, V) HM_VALUE(NAME, V, 0, 0)
HM_VALUE1(thread_index_in_threadgroup, t.linear)
HM_VALUE1(thread_index_in_simdgroup, t.linear % t.g->width)
HM_VALUE1(simdgroup_index_in_threadgroup, t.linear / t.g->width)
HM_VALUE1(simdgroups_per_threadgroup, (t.g->threads + t.g->width - 1) / t.g->width)
HM_VALUE1(dispatch_simdgroups_per_threadgroup,
          (t.g->full_size[0] * t.g->full_size[1] * t.g->full_size[2] + t.g->width - 1) / t.g->width)
HM_VALUE1(threads_per_simdgroup, t.g->width)
HM_VALUE1(thread_execution_width, t.g->width)
HM_VALUE(thread_position_in_threadgroup, t.x, t.y, t.z)
HM_VALUE(thread_position_in_grid, t.g->position[0] * t.g->full_size[0] + t.x,
         t.g->position[1] * t.g->full_size[1] + t.y, t.g->position[2] * t.g->full_size[2] + t.z)
HM_VALUE3(threadgroup_position_in_grid, t.g->position)
HM_VALUE3(threadgroups_per_grid, t.g->groups)
HM_VALUE3(threads_per_grid, t.g->grid)
HM_VALUE3(grid_size, t.g->grid)
HM_VALUE3(threads_per_threadgroup, t.g->size)
HM_VALUE3(dispatch_threads_per_threadgroup, t.g->full_size)
HM_VALUE(grid_origin, 0, 0, 0)
#undef HM_VALUE1
#undef HM_VALUE3
#undef HM_VALUE

template <class P, Kind K> struct describe {
  typedef typename pointee<P>::type T;
  static constexpr uint size = sizeof(T), align = alignof(T);
  static constexpr int reference = pointee<P>::reference;
  static constexpr int writable = !__is_const(T);
};
template <class P> struct describe<P, kValue> {
  static_assert(__is_integral(typename vector_of<P>::element), "a built-in argument is an unsigned integer or a vector of them");
  static constexpr uint size = sizeof(P), align = alignof(P);
  static constexpr int reference = 0, writable = 0;
};

extern "C" void hostmetal_register(const Kernel *);
extern "C" void hostmetal_threadgroup_variable(void *, size_t);

template <class... D> struct Binding {
  template <class... A> static constexpr uint check(void (*)(A...)) {
    static_assert(sizeof...(A) == sizeof...(D), "kernel argument without an attribute");
    return sizeof...(A);
  }
  template <class... A> static const Argument *arguments(void (*)(A...)) {
    static const Argument list[] = {
        {D::kind, D::index, describe<A, D::kind>::size, describe<A, D::kind>::align,
         describe<A, D::kind>::reference, describe<A, D::kind>::writable}...,
        {}};
    return list;
  }
  template <class... A>
  static inline __attribute__((always_inline)) void call(void (*f)(A...), const Thread &t) {
    f(D::template get<A>(t)...);
  }
};

inline __attribute__((always_inline)) Thread thread_at(const Group *g, uint linear) {
  if (g->size[1] == 1 && g->size[2] == 1) return Thread{g, linear, linear, 0, 0};
  uint row = linear / g->size[0];
  return Thread{g, linear, linear % g->size[0], row % g->size[1], row / g->size[1]};
}

}  // namespace hm
