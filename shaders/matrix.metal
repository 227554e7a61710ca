// Products with matrix units, in an order that the caller has to allow (numerics §7, codec.Fast). A
// threadgroup of eight SIMD-groups computes 32 outputs of a tile of 8·T rows of x. Of every 256 columns
// each SIMD-group takes 32: its lanes decode the weights of one output each, and eight by eight
// matrices of them are multiplied with those of x. At the end the eight sums of an output are added.
//
// On CUDA the factors lose all but 10 bits behind the leading one, so both have to be binary16 or
// bfloat16 numbers. There the right-hand matrix has a type of its own (cuda.h).
#ifndef SIMDGROUP_RIGHT
#define SIMDGROUP_RIGHT simdgroup_float8x8
#endif

// Rows of x to canonical f32, and rows of zeros up to a multiple of 64: blocks of eight rows, and in them the
// eight columns of each, then the next eight.
static inline void matrix_factor(const device uchar* x, device float* out, constant ProductInputArgs& a, uint2 at) {
    if (at.x >= a.dim || at.y >= (a.rows + 63u) / 64u * 64u) {
        return;
    }
    float v = 0.0f;
    if (at.y < a.rows) {
        const uint3 row = split_row(a.row0 + at.y, a.n1, a.n2);
        v = canon_factor(load_float(x, a.x_type, row_offset(a.x, row) + long(at.x) * a.x.s3));
    }
    out[ulong(at.y / 8u) * 8u * a.dim + (at.x / 8u) * 64u + (at.y % 8u) * 8u + at.x % 8u] = v;
}

// 32 trellis weights of a row, coded along the columns, from a column that is a multiple of 32. K = 0 serves any k;
// the others need blocks that are multiples of 32, whose windows of four weights have L + 3K ≤ 28 bits.
template <uint K>
struct MatrixTrellis {
    const device uint* codes;
    const device ushort* scales;
    const device float* table;
    float scale;
    long in;      // the row's first word
    uint column;  // of the 32
    uint words[K + 1];

    inline void row(constant ProductArgs& a, uint row) thread {
        scale = from_f16(scales[a.scales.base + long(row) * a.scales.s2]);
        in = a.codes.base + long(row) * a.codes.s2;
    }

    inline long block(constant ProductArgs& a, uint number, uint words) const thread {
        if (a.interleaved != 0) {
            return in + long(number / 2u) * a.codes.s1 + long((number & 1u) * words) * a.codes.s3;
        }
        return in + long(number * words) * a.codes.s3;
    }

    inline void load(constant ProductArgs& a, uint first) thread {
        column = first;
        if (K != 0) {
            const uint number = first / a.block;
            const uint length = a.block / 32u * K;
            const long from = block(a, number, length);
            const uint low = (a.block - 32u - (first - number * a.block)) / 32u * K;
#pragma clang loop unroll(full)
            for (uint i = 0; i + 1u <= K; i++) {
                words[i] = codes[from + long(low + i) * a.codes.s3];
            }
            words[K] = codes[from + long(low + K == length ? 0u : low + K) * a.codes.s3];
        }
    }

    // Number `part` of four times eight.
    inline void eight(constant ProductArgs& a, uint part, thread float* w) const thread {
        const uint mask = (1u << a.state_bits) - 1u;
#pragma clang loop unroll(full)
        for (uint n = 0; n < 2; n++) {
            uint state[4];
            if (K != 0) {
                const uint bit = (28u - 8u * part - 4u * n) * K;
                const ulong both = ulong(words[bit / 32u]) | (ulong(words[bit / 32u + 1u]) << 32);
                const uint window = uint(both >> (bit % 32u));
#pragma clang loop unroll(full)
                for (uint i = 0; i < 4; i++) {
                    state[i] = (window >> ((3u - i) * K)) & mask;
                }
            } else {
                const uint length = a.block * a.bits / 32u;
                const uint at = column + 8u * part + 4u * n;
                const uint number = at / a.block;
                const long from = block(a, number, length);
#pragma clang loop unroll(full)
                for (uint i = 0; i < 4; i++) {
                    state[i] = uint(trellis_window(codes, from, a.codes.s3, length, (a.block - 1u - i - (at - number * a.block)) * a.bits)) & mask;
                }
            }
#pragma clang loop unroll(full)
            for (uint i = 0; i < 4; i++) {
                const float value = code_value(state[i], a.code, table);
                const float weight = value * scale;
                w[4u * n + i] = canon_factor(stored(weight, a.weight_type));
            }
        }
    }
};

// The same of affine rows, whose groups are multiples of 32: eight weights are `bits` bytes, in at most three words.
struct MatrixAffine {
    const device uint* codes;
    const device uchar* scales;
    const device uchar* biases;
    float scale;
    float bias;
    uint column;
    long in;
    long scale_in;
    long bias_in;

    inline void row(constant ProductArgs& a, uint row) thread {
        in = a.codes.base + long(row) * a.codes.s2;
        scale_in = a.scales.base + long(row) * a.scales.s2;
        bias_in = a.biases.base + long(row) * a.biases.s2;
    }

    inline void load(constant ProductArgs& a, uint first) thread {
        column = first;
        const uint group = first / a.group;
        scale = load_float(scales, a.weight_type, scale_in + long(group) * a.scales.s3);
        bias = load_float(biases, a.weight_type, bias_in + long(group) * a.biases.s3);
    }

    inline void eight(constant ProductArgs& a, uint part, thread float* w) const thread {
        const uint bit = (column + 8u * part) * a.bits;
        const uint shift = bit & 31u;
        const uint held = shift + 8u * a.bits;
        const long from = in + long(bit >> 5) * a.codes.s3;
        ulong unit = ulong(codes[from]) >> shift;
        if (held > 32u) {
            unit |= ulong(codes[from + a.codes.s3]) << (32u - shift);
        }
        if (held > 64u) {
            unit |= ulong(codes[from + 2 * a.codes.s3]) << (64u - shift);
        }
#pragma clang loop unroll(full)
        for (uint i = 0; i < 8; i++) {
            w[i] = canon_factor(affine_weight(uint(unit >> (i * a.bits)) & ((1u << a.bits) - 1u), scale, bias, a.weight_type));
        }
    }
};

// memory holds 256 f32 per SIMD-group: 32 outputs of eight columns, and later of eight rows of x.
template <uint T, class W>
static inline void matrix_tile(thread W& weights, const device float* x, device uchar* y, constant ProductArgs& a, threadgroup float* memory, uint group, uint simd, uint lane) {
    const uint blocks = (a.outputs + 31u) / 32u;
    const uint tile = group / blocks;
    const uint output = (group - tile * blocks) * 32u;
    const uint first = (a.tile0 + tile) * T * 8u;
    weights.row(a, min(output + lane, a.outputs - 1u));
    threadgroup float* own = memory + simd * 256u;
    simdgroup_float8x8 sum[4 * T];
#pragma clang loop unroll(full)
    for (uint i = 0; i < 4 * T; i++) {
        sum[i] = simdgroup_float8x8(0.0f);
    }
    for (uint column = simd * 32u; column < a.cols; column += 256u) {
        weights.load(a, column);
#pragma clang loop unroll(full)
        for (uint part = 0; part < 4; part++) {
            float w[8];
            weights.eight(a, part, w);
            *(threadgroup float4*)(own + lane * 8u) = float4(w[0], w[1], w[2], w[3]);
            *(threadgroup float4*)(own + lane * 8u + 4u) = float4(w[4], w[5], w[6], w[7]);
            SIMDGROUP_RIGHT right[T];
#pragma clang loop unroll(full)
            for (uint t = 0; t < T; t++) {
                simdgroup_load(right[t], x + ulong(first + t * 8u) * a.cols + (column + part * 8u) * 8u, ulong(8), ulong2(0), true);
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
    MatrixTrellis<K> weights;
    weights.codes = codes;
    weights.scales = scales;
    weights.table = table;
    matrix_tile<T>(weights, x, y, a, memory, group, simd, lane);
}

template <uint T>
static inline void matrix_affine(const device float* x, const device uint* codes, const device uchar* scales, const device uchar* biases, device uchar* y, constant ProductArgs& a, threadgroup float* memory, uint group, uint simd, uint lane) {
    MatrixAffine weights;
    weights.codes = codes;
    weights.scales = scales;
    weights.biases = biases;
    matrix_tile<T>(weights, x, y, a, memory, group, simd, lane);
}
