// Products with packed weights (numerics §7). A lane is a chain: of every 128 columns it takes the
// four from 4·lane on. Weights are decoded once for a tile of M rows of x, whose chains are in registers.

// x as the products read it: canonical f32 without gaps. One thread per element.
static inline void product_factor(const device uchar* x, device float* out, constant ProductInputArgs& a, uint2 at) {
    if (at.x >= a.dim || at.y >= a.rows) {
        return;
    }
    const uint3 row = split_row(a.row0 + at.y, a.n1, a.n2);
    out[ulong(at.y) * a.dim + at.x] = canon_factor(load_float(x, a.x_type, row_offset(a.x, row) + long(at.x) * a.x.s3));
}

// What a SIMD-group computes: rows first to first+rows−1 of y, from column `output` on.
struct ProductTile {
    bool active;
    uint first;
    uint rows;
    uint output;
};

// Number nth of the dispatch, in which every tile of rows has `outputs` SIMD-groups of `each` outputs.
static inline void product_tile(constant ProductArgs& a, uint nth, uint outputs, uint each, uint height, thread ProductTile& p) {
    const uint tile = nth / outputs;
    p.active = tile < a.tiles;
    p.first = p.active ? (a.tile0 + tile) * height : 0u;
    p.rows = min(height, a.rows - p.first);
    p.output = p.active ? (nth - tile * outputs) * each : 0u;
}

static inline void product_store(device uchar* y, constant ProductArgs& a, const thread ProductTile& p, uint m, uint output, float chain, uint lane) {
    const float sum = tree_sum(chain);
    if (p.active && m < p.rows && lane == 0) {
        const uint3 row = split_row(a.row0 + p.first + m, a.n1, a.n2);
        store_float(y, a.y_type, row_offset(a.y, row) + long(output) * a.y.s3, sum);
    }
}

// Four columns of M rows: one product and one sum after the other in each chain.
template <uint M>
static inline void product_columns(const device float* x, constant ProductArgs& a, const thread ProductTile& p, uint column, const thread float* w, thread float* chain) {
#pragma clang loop unroll(full)
    for (uint m = 0; m < M; m++) {
        const uint row = p.first + min(m, p.rows - 1u);
        const float4 v = *(const device float4*)(x + ulong(row) * a.cols + column);
        const float p0 = v.x * w[0];
        const float p1 = v.y * w[1];
        const float p2 = v.z * w[2];
        const float p3 = v.w * w[3];
        chain[m] = chain[m] + p0;
        chain[m] = chain[m] + p1;
        chain[m] = chain[m] + p2;
        chain[m] = chain[m] + p3;
    }
}

// ---- trellis weights ----

// Word 0 of a block, as trellis_block.
static inline long product_block(constant ProductArgs& a, uint row, uint block, uint words) {
    if (a.interleaved != 0) {
        return a.codes.base + long(block / 2u) * a.codes.s1 + long(row) * a.codes.s2 + long((block & 1u) * words) * a.codes.s3;
    }
    return a.codes.base + long(row) * a.codes.s2 + long(block * words) * a.codes.s3;
}

// Four consecutive weights of a block from number t on: from one window of L + 3k ≤ 33 bits, or one each.
static inline void product_weights(const device uint* codes, const device float* table, constant ProductArgs& a, long in, uint words, uint t, uint bits, float scale, thread float* w) {
    const uint mask = (1u << a.state_bits) - 1u;
    const bool one = a.state_bits + 3u * bits <= 33u;
    const ulong window = trellis_window(codes, in, a.codes.s3, words, (a.block - 4u - t) * bits);
#pragma clang loop unroll(full)
    for (uint i = 0; i < 4; i++) {
        uint state = uint(window >> ((3u - i) * bits)) & mask;
        if (!one) {
            state = uint(trellis_window(codes, in, a.codes.s3, words, (a.block - 1u - t - i) * bits)) & mask;
        }
        const float value = code_value(state, a.code, table);
        const float weight = value * scale;
        w[i] = canon_factor(stored(weight, a.weight_type));
    }
}

// Coded along the columns: one output per SIMD-group. K = 0 serves any k.
template <uint K, uint M>
static inline void product_output(const device float* x, const device uint* codes, const device ushort* scales, const device float* table, device uchar* y, constant ProductArgs& a, uint nth, uint lane) {
    ProductTile p;
    product_tile(a, nth, a.outputs, 1, M, p);
    const uint bits = K == 0 ? a.bits : K;
    const uint words = a.block * bits / 32u;
    const float scale = from_f16(scales[a.scales.base + long(p.output) * a.scales.s2]);
    float chain[M];
#pragma clang loop unroll(full)
    for (uint m = 0; m < M; m++) {
        chain[m] = 0.0f;
    }
    uint block = 0;
    uint t = lane * 4u;
    for (uint column = lane * 4u; column < a.cols; column += 128u) {
        while (t >= a.block) {
            t -= a.block;
            block += 1u;
        }
        float w[4];
        product_weights(codes, table, a, product_block(a, p.output, block, words), words, t, bits, scale, w);
        product_columns<M>(x, a, p, column, w, chain);
        t += 128u;
    }
#pragma clang loop unroll(full)
    for (uint m = 0; m < M; m++) {
        product_store(y, a, p, m, p.output, chain[m], lane);
    }
}

// Coded along the outputs: four outputs per SIMD-group, all in one window of each column.
template <uint M>
static inline void product_quad(const device float* x, const device uint* codes, const device ushort* scales, const device float* table, device uchar* y, constant ProductArgs& a, uint nth, uint lane) {
    ProductTile p;
    product_tile(a, nth, a.outputs / 4u, 4, M, p);
    const uint words = a.block * a.bits / 32u;
    const uint block = p.output / a.block;
    const uint t = p.output - block * a.block;
    float chain[M * 4];
#pragma clang loop unroll(full)
    for (uint i = 0; i < M * 4; i++) {
        chain[i] = 0.0f;
    }
    for (uint first = lane * 4u; first < a.cols; first += 128u) {
        for (uint column = first; column < min(first + 4u, a.cols); column++) {
            const float scale = from_f16(scales[a.scales.base + long(column) * a.scales.s2]);
            float w[4];
            product_weights(codes, table, a, product_block(a, column, block, words), words, t, a.bits, scale, w);
#pragma clang loop unroll(full)
            for (uint m = 0; m < M; m++) {
                const uint row = p.first + min(m, p.rows - 1u);
                const float v = x[ulong(row) * a.cols + column];
#pragma clang loop unroll(full)
                for (uint i = 0; i < 4; i++) {
                    const float product = v * w[i];
                    chain[m * 4 + i] = chain[m * 4 + i] + product;
                }
            }
        }
    }
#pragma clang loop unroll(full)
    for (uint i = 0; i < M * 4; i++) {
        product_store(y, a, p, i / 4u, p.output + i % 4u, chain[i], lane);
    }
}

// ---- affine weights: one output per SIMD-group, four indices from one or two words ----

template <uint M>
static inline void product_affine_output(const device float* x, const device uint* codes, const device uchar* scales, const device uchar* biases, device uchar* y, constant ProductArgs& a, uint nth, uint lane) {
    ProductTile p;
    product_tile(a, nth, a.outputs, 1, M, p);
    const long code_in = a.codes.base + long(p.output) * a.codes.s2;
    const long scale_in = a.scales.base + long(p.output) * a.scales.s2;
    const long bias_in = a.biases.base + long(p.output) * a.biases.s2;
    const uint mask = (1u << a.bits) - 1u;
    float chain[M];
#pragma clang loop unroll(full)
    for (uint m = 0; m < M; m++) {
        chain[m] = 0.0f;
    }
    for (uint column = lane * 4u; column < a.cols; column += 128u) {
        const uint bit = column * a.bits;
        const long word = code_in + long(bit >> 5) * a.codes.s3;
        const uint shift = bit & 31u;
        ulong window = ulong(codes[word]) >> shift;
        if (shift + 4u * a.bits > 32u) {
            window |= ulong(codes[word + a.codes.s3]) << (32u - shift);
        }
        const uint group = column / a.group;
        const float scale = load_float(scales, a.weight_type, scale_in + long(group) * a.scales.s3);
        const float bias = load_float(biases, a.weight_type, bias_in + long(group) * a.biases.s3);
        float w[4];
#pragma clang loop unroll(full)
        for (uint i = 0; i < 4; i++) {
            const uint index = uint(window >> (i * a.bits)) & mask;
            w[i] = canon_factor(affine_weight(index, scale, bias, a.weight_type));
        }
        product_columns<M>(x, a, p, column, w, chain);
    }
#pragma clang loop unroll(full)
    for (uint m = 0; m < M; m++) {
        product_store(y, a, p, m, p.output, chain[m], lane);
    }
}
