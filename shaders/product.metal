// Products with packed weights (numerics §7). A lane is a chain: of every 128 columns it takes the
// four from 4·lane on. A SIMD-group multiplies a tile of M rows of x, which decodes the weights once, by N outputs,
// which load x once; their M·N chains are in registers.

// Number i of the columns of row m of a tile of `height` rows: tiles follow each other, and in one of them so do
// the 128 columns of each of its rows, then the next 128.
static inline ulong product_place(uint tile, uint height, uint m, uint i, uint cols) {
    const uint parts = (cols + 127u) / 128u;
    return ((ulong(tile) * parts + i / 128u) * height + m) * 128u + i % 128u;
}

// x as the products read it: canonical f32 in tiles, the last of which is filled up with zeros. One thread per element.
static inline void product_factor(const device uchar* x, device float* out, constant ProductInputArgs& a, uint2 at) {
    const uint tile = at.y / a.tile;
    if (at.x >= a.dim || tile * a.tile >= a.rows) {
        return;
    }
    float v = 0.0f;
    if (at.y < a.rows) {
        const uint3 row = split_row(a.row0 + at.y, a.n1, a.n2);
        v = canon_factor(load_float(x, a.x_type, row_offset(a.x, row) + long(at.x) * a.x.s3));
    }
    out[product_place(tile, a.tile, at.y - tile * a.tile, at.x, a.dim)] = v;
}

// What a SIMD-group computes: rows first to first+rows−1 of y, which are a tile, from column `output` on.
struct ProductTile {
    bool active;
    uint number;
    uint first;
    uint rows;
    uint output;
};

// Number nth of the dispatch, in which every tile of rows has ⌈outputs/each⌉ SIMD-groups of `each` outputs.
static inline void product_tile(constant ProductArgs& a, uint nth, uint each, uint height, thread ProductTile& p) {
    const uint groups = (a.outputs + each - 1u) / each;
    const uint tile = nth / groups;
    p.active = tile < a.tiles;
    p.number = p.active ? a.tile0 + tile : 0u;
    p.first = p.number * height;
    p.rows = min(height, a.rows - p.first);
    p.output = p.active ? (nth - tile * groups) * each : 0u;
}

// Keeps the SIMD-groups of a threadgroup at the same columns where a tile of x is larger than a cache: then
// one of them brings what all of them read. Every thread calls it as often.
template <uint M>
static inline void product_together() {
    if (M >= 8) {
        threadgroup_barrier(mem_flags::mem_none);
    }
}

// Four columns of M rows by the weights of N outputs: one product and one sum after the other in each chain.
template <uint M, uint N>
static inline void product_columns(const device float* x, const thread float* w, thread float* chain) {
#pragma clang loop unroll(full)
    for (uint m = 0; m < M; m++) {
        const float4 v = *(const device float4*)(x + m * 128u);
#pragma clang loop unroll(full)
        for (uint n = 0; n < N; n++) {
            const float p0 = v.x * w[4 * n];
            const float p1 = v.y * w[4 * n + 1];
            const float p2 = v.z * w[4 * n + 2];
            const float p3 = v.w * w[4 * n + 3];
            float sum = chain[m * N + n];
            sum = sum + p0;
            sum = sum + p1;
            sum = sum + p2;
            chain[m * N + n] = sum + p3;
        }
    }
}

// tree_sum of C chains, a power of two up to 32, each of which needs no more lanes at a step than its sums have: v[0] of lane l
// becomes that of chain l·C / 32.
template <uint C>
static inline void product_sums(thread float* v, uint lane) {
#pragma clang loop unroll(full)
    for (uint step = 1; step < C; step <<= 1) {
        const uint left = C / 2u / step;
        const uint mask = 16u / step;
        const bool upper = (lane & mask) != 0;
#pragma clang loop unroll(full)
        for (uint i = 0; i < left; i++) {
            const float low = v[i];
            const float high = v[i + left];
            const float own = upper ? high : low;
            const float other = simd_shuffle_xor(upper ? low : high, ushort(mask));
            v[i] = own + other;
        }
    }
#pragma clang loop unroll(full)
    for (uint mask = 16u / C; mask > 0; mask >>= 1) {
        const float other = simd_shuffle_xor(v[0], ushort(mask));
        v[0] = v[0] + other;
    }
}

// Stores the sums of the chains of M rows and N outputs, 32 at most of them from number FIRST on.
template <uint M, uint N, uint FIRST>
static inline void product_store_some(device uchar* y, constant ProductArgs& a, const thread ProductTile& p, thread float* chain, uint lane) {
    const uint C = M * N < 32u ? M * N : 32u;
    product_sums<C>(chain + FIRST, lane);
    const uint i = FIRST + lane * C / 32u;
    const uint m = i / N;
    const uint output = p.output + i % N;
    if (p.active && m < p.rows && output < a.outputs && lane % (32u / C) == 0) {
        const uint3 row = split_row(a.row0 + p.first + m, a.n1, a.n2);
        store_float(y, a.y_type, row_offset(a.y, row) + long(output) * a.y.s3, chain[FIRST]);
    }
}

template <uint M, uint N>
static inline void product_store(device uchar* y, constant ProductArgs& a, const thread ProductTile& p, thread float* chain, uint lane) {
    product_store_some<M, N, 0>(y, a, p, chain, lane);
    if (M * N > 32u) {
        product_store_some<M, N, (M * N > 32u ? 32u : 0u)>(y, a, p, chain, lane);
    }
}

// The values that four take when stored as type, widened again.
static inline void product_stored(uint type, thread float* w) {
    if (type == TYPE_BF16) {
        const uint lo = bf16_pair(w[0], w[1]);
        const uint hi = bf16_pair(w[2], w[3]);
        w[0] = as_type<float>(lo << 16);
        w[1] = as_type<float>(lo & 0xffff0000u);
        w[2] = as_type<float>(hi << 16);
        w[3] = as_type<float>(hi & 0xffff0000u);
    } else if (type == TYPE_F16) {
        const uint lo = f16_pair(w[0], w[1]);
        const uint hi = f16_pair(w[2], w[3]);
        w[0] = from_f16(ushort(lo & 0xffffu));
        w[1] = from_f16(ushort(lo >> 16));
        w[2] = from_f16(ushort(hi & 0xffffu));
        w[3] = from_f16(ushort(hi >> 16));
    }
}

// ---- trellis weights ----
//
// They are canonical as they are: no code has values between 0 and 2^-26, and no scale is between 0 and 2^-24. The
// sign of a zero decides nothing, for no chain is ever −0.

// Four values from states that lie in the lowest 32 bits of a window, the last of which begins it.
template <uint K>
static inline void product_values(uint window, uint mask, const device float* table, constant ProductArgs& a, float scale, thread float* w) {
    if (a.code == CODE_1MAD) {
#pragma clang loop unroll(full)
        for (uint i = 0; i < 4; i++) {
            w[i] = code_1mad((window >> ((3u - i) * K)) & mask) * scale;
        }
    } else {
#pragma clang loop unroll(full)
        for (uint i = 0; i < 4; i++) {
            w[i] = code_value((window >> ((3u - i) * K)) & mask, a.code, table) * scale;
        }
    }
    product_stored(a.weight_type, w);
}

// The same for any k: from one window of L + 3k ≤ 33 bits, or one each.
static inline void product_weights(const device uint* block, const device float* table, constant ProductArgs& a, uint words, uint t, float scale, thread float* w) {
    const uint mask = (1u << a.state_bits) - 1u;
    const bool one = a.state_bits + 3u * a.bits <= 33u;
    const ulong window = trellis_window(block, 0, 1, words, (a.block - 4u - t) * a.bits);
#pragma clang loop unroll(full)
    for (uint i = 0; i < 4; i++) {
        uint state = uint(window >> ((3u - i) * a.bits)) & mask;
        if (!one) {
            state = uint(trellis_window(block, 0, 1, words, (a.block - 1u - t - i) * a.bits)) & mask;
        }
        w[i] = code_value(state, a.code, table) * scale;
    }
    product_stored(a.weight_type, w);
}

// How far behind a coded row's first word a block of it begins.
static inline long product_block(constant ProductArgs& a, uint block, uint words) {
    if (a.interleaved != 0) {
        return long(block / 2u) * a.codes.s1 + long((block & 1u) * words);
    }
    return long(block * words);
}

// Where a lane is in a coded row: weight t of a block, or beyond it.
struct ProductPlace {
    uint block;
    uint t;
};

static inline void product_reach(constant ProductArgs& a, thread ProductPlace& at) {
    while (at.t >= a.block) {
        at.t -= a.block;
        at.block += 1u;
    }
}

// Loads the two words of each output that four weights lie in, where there are any; they begin at the bit that is
// returned.
template <uint K, uint N>
static inline uint product_load(const device uint* const thread* row, uint words, constant ProductArgs& a, thread ProductPlace& at, bool some, thread uint* lo, thread uint* hi) {
    if (!some) {
        return 0;
    }
    product_reach(a, at);
    const uint bit = (a.block - 4u - at.t) * K;
    const uint first = bit / 32u;
    const uint following = first + 1u == words ? 0u : first + 1u;
    const long begin = product_block(a, at.block, words);
#pragma clang loop unroll(full)
    for (uint n = 0; n < N; n++) {
        lo[n] = row[n][begin + first];
        hi[n] = row[n][begin + following];
    }
    return bit % 32u;
}

// Coded along the columns: N outputs per SIMD-group. K = 0 serves any k; the others have L + 3K ≤ 32.
template <uint K, uint M, uint N>
static inline void product_output(const device float* x, const device uint* codes, const device ushort* scales, const device float* table, device uchar* y, constant ProductArgs& a, uint nth, uint lane) {
    ProductTile p;
    product_tile(a, nth, N, M, p);
    const uint words = a.block * (K == 0 ? a.bits : K) / 32u;
    const uint mask = (1u << a.state_bits) - 1u;
    const device uint* row[N];
    float scale[N];
#pragma clang loop unroll(full)
    for (uint n = 0; n < N; n++) {
        const uint output = min(p.output + n, a.outputs - 1u);
        row[n] = codes + (a.codes.base + long(output) * a.codes.s2);
        scale[n] = from_f16(scales[a.scales.base + long(output) * a.scales.s2]);
    }
    float chain[M * N];
#pragma clang loop unroll(full)
    for (uint i = 0; i < M * N; i++) {
        chain[i] = 0.0f;
    }
    const device float* in = x + product_place(p.number, M, 0, lane * 4u, a.cols);
    ProductPlace at;
    at.block = 0;
    at.t = lane * 4u;
    uint lo[N];
    uint hi[N];
#pragma clang loop unroll(full)
    for (uint n = 0; n < N; n++) {
        lo[n] = 0;
        hi[n] = 0;
    }
    uint shift = 0;
    if (K != 0) {
        shift = product_load<K, N>(row, words, a, at, lane * 4u < a.cols, lo, hi);
    }
    for (uint part = 0; part < a.cols; part += 128u) {
        product_together<M>();
        const bool some = part + lane * 4u < a.cols;
        float w[4 * N];
        if (K == 0) {
            if (some) {
                product_reach(a, at);
#pragma clang loop unroll(full)
                for (uint n = 0; n < N; n++) {
                    product_weights(row[n] + product_block(a, at.block, words), table, a, words, at.t, scale[n], w + 4 * n);
                }
                at.t += 128u;
            }
        } else { // the next codes are on their way while these are multiplied
            uint window[N];
#pragma clang loop unroll(full)
            for (uint n = 0; n < N; n++) {
                window[n] = uint(((ulong(hi[n]) << 32) | lo[n]) >> shift);
            }
            at.t += 128u;
            shift = product_load<K, N>(row, words, a, at, part + 128u + lane * 4u < a.cols, lo, hi);
#pragma clang loop unroll(full)
            for (uint n = 0; n < N; n++) {
                product_values<K == 0 ? 1u : K>(window[n], mask, table, a, scale[n], w + 4 * n);
            }
        }
        if (some) {
            product_columns<M, N>(in, w, chain);
        }
        in += M * 128u;
    }
    product_store<M, N>(y, a, p, chain, lane);
}

// Coded along the outputs: four outputs per SIMD-group, all in one window of each column.
template <uint M>
static inline void product_quad(const device float* x, const device uint* codes, const device ushort* scales, const device float* table, device uchar* y, constant ProductArgs& a, uint nth, uint lane) {
    ProductTile p;
    product_tile(a, nth, 4, M, p);
    const uint words = a.block * a.bits / 32u;
    const uint block = p.output / a.block;
    const uint t = p.output - block * a.block;
    const device uint* from = codes + (a.codes.base + product_block(a, block, words));
    float chain[M * 4];
#pragma clang loop unroll(full)
    for (uint i = 0; i < M * 4; i++) {
        chain[i] = 0.0f;
    }
    const device float* in = x + product_place(p.number, M, 0, lane * 4u, a.cols);
    for (uint first = lane * 4u; first < a.cols; first += 128u) {
        for (uint c = 0; c < min(4u, a.cols - first); c++) {
            const uint column = first + c;
            const float scale = from_f16(scales[a.scales.base + long(column) * a.scales.s2]);
            float w[4];
            product_weights(from + long(column) * a.codes.s2, table, a, words, t, scale, w);
#pragma clang loop unroll(full)
            for (uint m = 0; m < M; m++) {
                const float v = in[m * 128u + c];
#pragma clang loop unroll(full)
                for (uint i = 0; i < 4; i++) {
                    const float product = v * w[i];
                    chain[m * 4 + i] = chain[m * 4 + i] + product;
                }
            }
        }
        in += M * 128u;
    }
    product_store<M, 4>(y, a, p, chain, lane);
}

// ---- affine weights: N outputs per SIMD-group, four indices from one or two words ----

template <uint M, uint N>
static inline void product_affine_output(const device float* x, const device uint* codes, const device uchar* scales, const device uchar* biases, device uchar* y, constant ProductArgs& a, uint nth, uint lane) {
    ProductTile p;
    product_tile(a, nth, N, M, p);
    const uint mask = (1u << a.bits) - 1u;
    const uint group_shift = a.group == 32u ? 5u : a.group == 64u ? 6u : 7u;
    const device uint* row[N];
    long scale_in[N];
    long bias_in[N];
#pragma clang loop unroll(full)
    for (uint n = 0; n < N; n++) {
        const uint output = min(p.output + n, a.outputs - 1u);
        row[n] = codes + (a.codes.base + long(output) * a.codes.s2);
        scale_in[n] = a.scales.base + long(output) * a.scales.s2;
        bias_in[n] = a.biases.base + long(output) * a.biases.s2;
    }
    float chain[M * N];
#pragma clang loop unroll(full)
    for (uint i = 0; i < M * N; i++) {
        chain[i] = 0.0f;
    }
    const device float* in = x + product_place(p.number, M, 0, lane * 4u, a.cols);
    for (uint part = 0; part < a.cols; part += 128u) {
        product_together<M>();
        const uint column = part + lane * 4u;
        if (column >= a.cols) {
            continue;
        }
        const uint bit = column * a.bits;
        const uint word = bit / 32u;
        const uint shift = bit % 32u;
        const bool two = shift + 4u * a.bits > 32u;
        const uint group = column >> group_shift;
        ulong window[N];
        float scale[N];
        float bias[N];
#pragma clang loop unroll(full)
        for (uint n = 0; n < N; n++) { // all loads first
            window[n] = ulong(row[n][word]);
            if (two) {
                window[n] |= ulong(row[n][word + 1u]) << 32;
            }
            scale[n] = load_float(scales, a.weight_type, scale_in[n] + group);
            bias[n] = load_float(biases, a.weight_type, bias_in[n] + group);
        }
        float w[4 * N];
#pragma clang loop unroll(full)
        for (uint n = 0; n < N; n++) {
            const uint indices = uint(window[n] >> shift);
#pragma clang loop unroll(full)
            for (uint i = 0; i < 4; i++) {
                const uint index = (indices >> (i * a.bits)) & mask;
                const float number = as_type<float>(index | 0x4b000000u) - 8388608.0f; // 2^23 under it
                w[4 * n + i] = number * scale[n];
            }
            product_stored(a.weight_type, w + 4 * n);
#pragma clang loop unroll(full)
            for (uint i = 0; i < 4; i++) {
                w[4 * n + i] = w[4 * n + i] + bias[n];
            }
            product_stored(a.weight_type, w + 4 * n);
#pragma clang loop unroll(full)
            for (uint i = 0; i < 4; i++) {
                w[4 * n + i] = canon_factor(w[4 * n + i]);
            }
        }
        product_columns<M, N>(in, w, chain);
        in += M * 128u;
    }
    product_store<M, N>(y, a, p, chain, lane);
}
