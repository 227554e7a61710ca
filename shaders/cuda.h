// What the shaders use of Metal's language and library, in CUDA C++ for NVRTC. CUDASource puts it before
// a family of kernels. NVRTC's options have to be those of package gpu/cuda:
//
//   -default-device            a function without a word for it is a device function
//   -std=c++20                 uint2(a, b) initialises CUDA's vectors, which are aggregates
//   -fmad=false -prec-div=true -prec-sqrt=true
//                              +, -, *, / and sqrt are one rounding each

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
static_assert(sizeof(long) == 8 && sizeof(void*) == 8, "long and pointers have 64 bits");
static_assert(char(-1) < 0, "char is signed");

#define INFINITY __int_as_float(0x7f800000)

namespace metal {

template <class To, class From>
__device__ __forceinline__ To as_type(From x) {
    static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
    return __builtin_bit_cast(To, x);
}

// A binary16 that converts, and has no arithmetic.
struct half {
    ushort bits;

    __device__ __forceinline__ explicit half(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }

    __device__ __forceinline__ operator float() const {
        float x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
        return x;
    }
};

#if __CUDA_ARCH__ >= 800
// Two roundings at once, the first in the lower half.
#define PAIRS
__device__ __forceinline__ uint f16_pair(float lo, float hi) {
    uint pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
    return pair;
}
__device__ __forceinline__ uint bf16_pair(float lo, float hi) {
    uint pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
    return pair;
}
#endif

// The sum of the bytes of x, and base.
#define BYTE_SUM
__device__ __forceinline__ uint byte_sum(uint x, uint base) { return __dp4a(x, 0x01010101u, base); }

namespace precise {
__device__ __forceinline__ float sqrt(float x) { return __fsqrt_rn(x); }
}

// SIMD-groups are warps; all 32 lanes take part in every exchange.
template <class T>
__device__ __forceinline__ T simd_shuffle_xor(T x, ushort mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
template <class T>
__device__ __forceinline__ T simd_shuffle(T x, ushort lane) { return __shfl_sync(0xffffffffu, x, lane); }

// __syncthreads orders all memory among the threads of a block, whatever the flags.
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
__device__ __forceinline__ void threadgroup_barrier(mem_flags) { __syncthreads(); }

__device__ __forceinline__ void simdgroup_barrier(mem_flags) { __syncwarp(); }

// 8 × 8 matrices for mma.m16n8k8, whose upper half is zero. Number k of its sum is column 2k of the left matrix
// for k < 4, otherwise 2(k − 4) + 1. A lane holds two neighbours of a row of a left matrix or a sum, and of a
// column of a right one. Factors are tf32: 10 bits behind the leading one; sums are f32.
struct simdgroup_float8x8 {
    float e[2];

    simdgroup_float8x8() = default;
    __device__ __forceinline__ explicit simdgroup_float8x8(float diagonal) {
        const uint row = threadIdx.x % 32u / 4u, column = threadIdx.x % 4u * 2u;
        e[0] = row == column ? diagonal : 0.0f;
        e[1] = row == column + 1u ? diagonal : 0.0f;
    }
};
struct simdgroup_right8x8 { float e[2]; };
#define SIMDGROUP_RIGHT simdgroup_right8x8

__device__ __forceinline__ void simdgroup_load(simdgroup_float8x8& d, const float* from, ulong stride) {
    const float2 v = *(const float2*)(from + threadIdx.x % 32u / 4u * stride + threadIdx.x % 4u * 2u);
    d.e[0] = v.x;
    d.e[1] = v.y;
}
// Of the transposed matrix alone: a column of it lies in a row.
__device__ __forceinline__ void simdgroup_load(simdgroup_right8x8& d, const float* from, ulong stride, ulong2, bool) {
    const float2 v = *(const float2*)(from + threadIdx.x % 32u / 4u * stride + threadIdx.x % 4u * 2u);
    d.e[0] = v.x;
    d.e[1] = v.y;
}
__device__ __forceinline__ void simdgroup_store(simdgroup_float8x8 a, float* to, ulong stride) {
    *(float2*)(to + threadIdx.x % 32u / 4u * stride + threadIdx.x % 4u * 2u) = float2{a.e[0], a.e[1]};
}
__device__ __forceinline__ void simdgroup_multiply_accumulate(simdgroup_float8x8& d, simdgroup_float8x8 a, simdgroup_right8x8 b, simdgroup_float8x8 c) {
    asm("{\n.reg .f32 upper<2>;\n"
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, upper0, upper1}, {%2, %3, %4, %3}, {%5, %6}, {%7, %8, %9, %9};\n}"
        : "=f"(d.e[0]), "=f"(d.e[1])
        : "r"(__float_as_uint(a.e[0])), "r"(0), "r"(__float_as_uint(a.e[1])), "r"(__float_as_uint(b.e[0])), "r"(__float_as_uint(b.e[1])),
          "f"(c.e[0]), "f"(c.e[1]), "f"(0.0f)); // mma.sync
}

enum memory_order { memory_order_relaxed };
struct atomic_uint { uint value; };
__device__ __forceinline__ uint atomic_fetch_add_explicit(atomic_uint* p, uint x, memory_order) {
    return atomicAdd(&p->value, x);
}
__device__ __forceinline__ uint atomic_fetch_min_explicit(atomic_uint* p, uint x, memory_order) {
    return atomicMin(&p->value, x);
}

}  // namespace metal
using metal::as_type;

// The last parameter of every kernel. A grid that is larger than CUDA allows is launched in parts: origin
// is where a part begins, groups the size of the whole.
struct Launch {
    uint origin[3], groups[3];

    __device__ __forceinline__ uint group() const { return origin[0] + blockIdx.x; }
    __device__ __forceinline__ uint2 tile() const { return {origin[0] + blockIdx.x, origin[1] + blockIdx.y}; }
    __device__ __forceinline__ uint2 position() const {
        return {(origin[0] + blockIdx.x) * blockDim.x + threadIdx.x, (origin[1] + blockIdx.y) * blockDim.y + threadIdx.y};
    }
};

// Of threadgroups of one dimension.
__device__ __forceinline__ uint thread_index() { return threadIdx.x; }
__device__ __forceinline__ uint threads() { return blockDim.x; }
__device__ __forceinline__ uint lane() { return threadIdx.x % 32u; }
__device__ __forceinline__ uint simd() { return threadIdx.x / 32u; }
__device__ __forceinline__ uint simds() { return blockDim.x / 32u; }

extern __shared__ __align__(16) uchar threadgroup_memory[];

// Metal's words, last: __device__ and its like are macros that hold some of them.
#define device
#define thread
#define threadgroup
#define constant const
