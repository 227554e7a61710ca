#include <metal_stdlib>
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#pragma clang fp contract(off)
using namespace metal;
#if defined(__FAST_MATH__)
#error "fast math"
#endif

struct Args { uint n; float scale; };
constant float kTable[4] = {0.5f, 1.5f, 2.5f, 3.5f};

static inline float pick(constant float *t, uint i) { return t[i & 3]; }

kernel void scale(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                  constant Args &a [[buffer(2)]], uint gid [[thread_position_in_grid]]) {
  if (gid < a.n) y[gid] = x[gid] * a.scale + pick(kTable, gid);
}

template <uint D>
[[kernel]] void reverse(device const uint *x [[buffer(0)]], device uint *y [[buffer(1)]],
                        threadgroup uint *tg [[threadgroup(0)]],
                        uint3 group [[threadgroup_position_in_grid]],
                        uint t [[thread_index_in_threadgroup]]) {
  tg[t] = x[group.x * D + t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[group.x * D + t] = tg[D - 1 - t];
}
#define INSTANTIATE(NAME, ...) template [[host_name(NAME)]] [[kernel]] decltype(__VA_ARGS__) __VA_ARGS__;
INSTANTIATE("reverse_64", reverse<64>)
template [[host_name("reverse_128")]] [[kernel]] decltype(reverse<128>) reverse<128>;

#define TREE(NAME, T)                                                                     \
  kernel void NAME(device T *x [[buffer(0)]], uint t [[thread_position_in_grid]]) {       \
    T v = x[t];                                                                           \
    for (ushort m = 16; m > 0; m >>= 1) { T o = simd_shuffle_xor(v, m); v = v + o; }      \
    x[t] = v;                                                                             \
  }
TREE(tree_float, float)
TREE(tree_uint, uint)

kernel void halves(device half4 *x [[buffer(0)]], device float4 *y [[buffer(1)]], uint t [[thread_position_in_grid]]) {
  half4 v = x[t] * 0.5h;
  y[t] = float4(v) + float4(float2(1.0, 2.0), float(t), 1);
  x[t] = half4(y[t]);
}
