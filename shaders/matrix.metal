// Products with matrix units, in an order that the caller has to allow (numerics §7, codec.Fast). A
// threadgroup of eight SIMD-groups computes 32 outputs of a tile of 8·T rows of x. Of every 64 columns
// each SIMD-group takes eight: its lanes decode the weights of one output each, and eight by eight
// matrices of them are multiplied with those of x. At the end the eight sums of an output are added.
//
// On CUDA the factors lose all but 10 bits behind the leading one, so both have to be binary16 or
// bfloat16 numbers. There the right-hand matrix has a type of its own (cuda.h).
#ifndef SIMDGROUP_RIGHT
#define SIMDGROUP_RIGHT simdgroup_float8x8
#endif

// Rows of x to canonical f32 without gaps, and rows of zeros up to a multiple of 64.
static inline void matrix_factor(const device uchar* x, device float* out, constant ProductInputArgs& a, uint2 at) {
    if (at.x >= a.dim || at.y >= (a.rows + 63u) / 64u * 64u) {
        return;
    }
    float v = 0.0f;
    if (at.y < a.rows) {
        const uint3 row = split_row(a.row0 + at.y, a.n1, a.n2);
        v = canon_factor(load_float(x, a.x_type, row_offset(a.x, row) + long(at.x) * a.x.s3));
    }
    out[ulong(at.y) * a.dim + at.x] = v;
}

// Eight trellis weights of a row, coded along the columns, from a column that is a multiple of 8. K = 0
// serves any k.
template <uint K>
struct MatrixTrellis {
    const device uint* codes;
    const device ushort* scales;
    const device float* table;

    inline void eight(constant ProductArgs& a, uint row, uint column, thread float* w) const thread {
        const uint bits = K == 0 ? a.bits : K;
        const uint words = a.block * bits / 32u;
        const uint mask = (1u << a.state_bits) - 1u;
        const bool one = K != 0 || a.state_bits + 3u * bits <= 33u; // L is 16 at most
        const float scale = from_f16(scales[a.scales.base + long(row) * a.scales.s2]);
#pragma clang loop unroll(full)
        for (uint n = 0; n < 2; n++) {
            const uint block = (column + 4u * n) / a.block;
            const uint t = column + 4u * n - block * a.block;
            long in = a.codes.base + long(row) * a.codes.s2 + long(block * words) * a.codes.s3;
            if (a.interleaved != 0) {
                in = a.codes.base + long(block / 2u) * a.codes.s1 + long(row) * a.codes.s2 + long((block & 1u) * words) * a.codes.s3;
            }
            const ulong window = trellis_window(codes, in, a.codes.s3, words, (a.block - 4u - t) * bits);
#pragma clang loop unroll(full)
            for (uint i = 0; i < 4; i++) {
                uint state = uint(window >> ((3u - i) * bits)) & mask;
                if (!one) {
                    state = uint(trellis_window(codes, in, a.codes.s3, words, (a.block - 1u - t - i) * bits)) & mask;
                }
                const float value = code_value(state, a.code, table);
                const float weight = value * scale;
                w[4u * n + i] = canon_factor(stored(weight, a.weight_type));
            }
        }
    }
};

// Eight affine weights: a unit of `bits` bytes, in at most three words.
struct MatrixAffine {
    const device uint* codes;
    const device uchar* scales;
    const device uchar* biases;

    inline void eight(constant ProductArgs& a, uint row, uint column, thread float* w) const thread {
        const uint group = column / a.group;
        const float scale = load_float(scales, a.weight_type, a.scales.base + long(row) * a.scales.s2 + long(group) * a.scales.s3);
        const float bias = load_float(biases, a.weight_type, a.biases.base + long(row) * a.biases.s2 + long(group) * a.biases.s3);
        const uint bit = column * a.bits;
        const uint shift = bit & 31u;
        const uint held = shift + 8u * a.bits;
        const long in = a.codes.base + long(row) * a.codes.s2 + long(bit >> 5) * a.codes.s3;
        ulong unit = ulong(codes[in]) >> shift;
        if (held > 32u) {
            unit |= ulong(codes[in + a.codes.s3]) << (32u - shift);
        }
        if (held > 64u) {
            unit |= ulong(codes[in + 2 * a.codes.s3]) << (64u - shift);
        }
#pragma clang loop unroll(full)
        for (uint i = 0; i < 8; i++) {
            w[i] = canon_factor(affine_weight(uint(unit >> (i * a.bits)) & ((1u << a.bits) - 1u), scale, bias, a.weight_type));
        }
    }
};

// memory holds 256 f32 per SIMD-group: 32 outputs of eight columns, and later of eight rows of x.
template <uint T, class W>
static inline void matrix_tile(const thread W& weights, const device float* x, device uchar* y, constant ProductArgs& a, threadgroup float* memory, uint group, uint simd, uint lane) {
    const uint blocks = (a.outputs + 31u) / 32u;
    const uint tile = group / blocks;
    const uint output = (group - tile * blocks) * 32u;
    const uint first = (a.tile0 + tile) * T * 8u;
    const uint row = min(output + lane, a.outputs - 1u);
    threadgroup float* own = memory + simd * 256u;
    simdgroup_float8x8 sum[4 * T];
#pragma clang loop unroll(full)
    for (uint i = 0; i < 4 * T; i++) {
        sum[i] = simdgroup_float8x8(0.0f);
    }
    for (uint column = simd * 8u; column < a.cols; column += 64u) {
        float w[8];
        weights.eight(a, row, column, w);
#pragma clang loop unroll(full)
        for (uint i = 0; i < 8; i++) {
            own[lane * 8u + i] = w[i];
        }
        SIMDGROUP_RIGHT right[T];
#pragma clang loop unroll(full)
        for (uint t = 0; t < T; t++) {
            simdgroup_load(right[t], x + ulong(first + t * 8u) * a.cols + column, ulong(a.cols), ulong2(0), true);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma clang loop unroll(full)
        for (uint o = 0; o < 4; o++) {
            simdgroup_float8x8 left;
            simdgroup_load(left, own + o * 64u, ulong(8));
#pragma clang loop unroll(full)
            for (uint t = 0; t < T; t++) {
                simdgroup_multiply_accumulate(sum[o * T + t], left, right[t], sum[o * T + t]);
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
#pragma clang loop unroll(full)
    for (uint t = 0; t < T; t++) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma clang loop unroll(full)
        for (uint o = 0; o < 4; o++) {
            simdgroup_store(sum[o * T + t], own + o * 64u, ulong(8));
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint at = simd * 32u + lane;
        const uint out = output + at / 8u;
        const uint in_tile = first + t * 8u + at % 8u;
        float total = memory[at];
        for (uint s = 1; s < 8; s++) {
            total = total + memory[s * 256u + at];
        }
        if (out < a.outputs && in_tile < a.rows) {
            const uint3 to = split_row(a.row0 + in_tile, a.n1, a.n2);
            store_float(y, a.y_type, row_offset(a.y, to) + long(out) * a.y.s3, total);
        }
    }
}

template <uint K, uint T>
static inline void matrix_trellis(const device float* x, const device uint* codes, const device ushort* scales, const device float* table, device uchar* y, constant ProductArgs& a, threadgroup float* memory, uint group, uint simd, uint lane) {
    const MatrixTrellis<K> weights = {codes, scales, table};
    matrix_tile<T>(weights, x, y, a, memory, group, simd, lane);
}

template <uint T>
static inline void matrix_affine(const device float* x, const device uint* codes, const device uchar* scales, const device uchar* biases, device uchar* y, constant ProductArgs& a, threadgroup float* memory, uint group, uint simd, uint lane) {
    const MatrixAffine weights = {codes, scales, biases};
    matrix_tile<T>(weights, x, y, a, memory, group, simd, lane);
}
