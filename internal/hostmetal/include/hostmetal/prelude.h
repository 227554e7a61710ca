// What a Metal source sees without including anything: the built-in types.
// This file is included before every source; address space words (device, constant,
// threadgroup, thread), kernel and [[attributes]] are handled by src/msl.cc.
#pragma once

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef unsigned long size_t;
typedef long ptrdiff_t;
typedef signed char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;
typedef ulong uintptr_t;
typedef long intptr_t;

#define HM_VECTORS(T)                                      \
  typedef T T##2 __attribute__((ext_vector_type(2)));      \
  typedef T T##3 __attribute__((ext_vector_type(3)));      \
  typedef T T##4 __attribute__((ext_vector_type(4)));      \
  struct packed_##T##2 { T x, y; };                        \
  struct packed_##T##3 { T x, y, z; };                     \
  struct packed_##T##4 { T x, y, z, w; };
HM_VECTORS(char)
HM_VECTORS(uchar)
HM_VECTORS(short)
HM_VECTORS(ushort)
HM_VECTORS(int)
HM_VECTORS(uint)
HM_VECTORS(long)
HM_VECTORS(ulong)
HM_VECTORS(half)
HM_VECTORS(float)
#undef HM_VECTORS
typedef bool bool2 __attribute__((ext_vector_type(2)));
typedef bool bool3 __attribute__((ext_vector_type(3)));
typedef bool bool4 __attribute__((ext_vector_type(4)));

constexpr half operator""h(long double x) { return half(x); }
constexpr half operator""h(unsigned long long x) { return half(x); }

namespace hm {

template <class T> struct vector_of {
  typedef T element;
  static constexpr int size = 1;
};
template <class T, int N> using vec = T __attribute__((ext_vector_type(N)));
template <class T, int N> struct vector_of<vec<T, N>> {
  typedef T element;
  static constexpr int size = N;
};

constexpr int sum() { return 0; }
template <class... A> constexpr int sum(int a, A... rest) { return a + sum(rest...); }

template <class V, class A> inline void append(V &v, int &at, A a) {
  typedef typename vector_of<V>::element E;
  if constexpr (vector_of<A>::size == 1) {
    v[at++] = E(a);
  } else {
    for (int i = 0; i < vector_of<A>::size; i++) v[at++] = E(a[i]);
  }
}

// make is uint4(...), float2(...): splat, conversion, or one value per element.
template <class V> constexpr V make() { return V{}; }
template <class V, class A> constexpr V make(A a) {
  typedef typename vector_of<V>::element E;
  if constexpr (vector_of<A>::size == 1) {
    return V(E(a));
  } else {
    static_assert(vector_of<A>::size == vector_of<V>::size, "vector conversion needs equal sizes");
    return __builtin_convertvector(a, V);
  }
}
template <class V, class A, class B, class... C> constexpr V make(A a, B b, C... c) {
  typedef typename vector_of<V>::element E;
  static_assert(sum(vector_of<A>::size, vector_of<B>::size, vector_of<C>::size...) == vector_of<V>::size,
                "vector constructor needs as many values as elements");
  if constexpr (2 + sizeof...(C) == vector_of<V>::size) {
    return V{E(a), E(b), E(c)...};
  } else {
    V v{};
    int at = 0;
    append(v, at, a);
    append(v, at, b);
    (append(v, at, c), ...);
    return v;
  }
}

}  // namespace hm

#include <hostmetal/kernel.h>
