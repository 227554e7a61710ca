// The bitshift trellis (numerics §6): row scales, Viterbi encode, states and values of
// packed blocks.

// ---- row scales: one row per SIMD-group ----

static inline void trellis_scales_row(const device uchar* w, device ushort* scales, device atomic_uint* status, constant TrellisScalesArgs& a, uint nth, uint lane) {
    const bool active = nth < a.rows;
    const uint row = a.row0 + (active ? nth : 0u);
    const long in = a.w.base + long(row) * a.w.s2;
    float sum = 0.0f;
    uint any = 0;
    for (uint c = lane; c < a.cols; c += 32) {
        const float v = load_float(w, a.w_type, in + long(c) * a.w.s3);
        if (active && !is_finite(v)) {
            report(status, STATUS_NON_FINITE, nth * a.cols + c);
        }
        const float x = canon(v);
        const float square = x * x;
        sum = sum + square;
        any |= as_type<uint>(x);
    }
    sum = tree_sum(sum);
    for (ushort mask = 16; mask > 0; mask >>= 1) {
        any |= simd_shuffle_xor(any, mask);
    }
    const float mean = sum / float(a.cols);
    const float rms = precise::sqrt(mean);
    const float matched = rms * a.inverse_code_rms;
    ushort scale = to_f16(matched * a.factor);
    if (any == 0 && a.policy == POLICY_COMPAT) {
        scale = 0x3c00;
    }
    if (active && lane == 0) {
        scales[a.scales.base + long(row) * a.scales.s2] = scale;
        if (!is_finite(from_f16(scale))) {
            report(status, STATUS_SCALE_OVERFLOW, nth);
        }
    }
}

// The refitted scale of a row from the states found with the scale already stored.
static inline void trellis_refit_row(const device uchar* w, const device ushort* states, const device float* table, device ushort* scales, constant TrellisScalesArgs& a, uint nth, uint lane) {
    const bool active = nth < a.rows;
    const uint row = a.row0 + (active ? nth : 0u);
    const long in = a.w.base + long(row) * a.w.s2;
    const long state_in = a.states.base + long(row) * a.states.s2;
    float numerator = 0.0f;
    float denominator = 0.0f;
    for (uint c = lane; c < a.cols; c += 32) {
        const float x = canon(load_float(w, a.w_type, in + long(c) * a.w.s3));
        const float f = table[states[state_in + long(c) * a.states.s3]];
        const float cross = x * f;
        const float square = f * f;
        numerator = numerator + cross;
        denominator = denominator + square;
    }
    numerator = tree_sum(numerator);
    denominator = tree_sum(denominator);
    const float ratio = numerator / denominator;
    const ushort scale = to_f16(ratio);
    const long at = a.scales.base + long(row) * a.scales.s2;
    const bool positive = scale > 0 && scale < 0x7c00;
    if (active && lane == 0 && positive && scales[at] != 0) {
        scales[at] = scale;
    }
}

// ---- Viterbi: one threadgroup per block ----
//
// A step takes metrics g over all 2^L states to the next ones. States n that share
// n >> k share their predecessors n >> k + m·2^(L−k), so the work of a step is 2^(L−k)
// groups: the best of 2^k metrics, then 2^k sums.

constant float pinned_metric = -1e30f;
constant float sample_limit = 1152921504606846976.0f; // 2^60

static inline bool better(float g, uint n, float other, uint other_n) {
    return other > g || (other == g && other_n > n);
}

// Where the specialised kernels keep the metric of state n in threadgroup memory. A step stores runs of Q and
// loads one of every 2^(L−k): without a change of order, as many lanes as that would meet in one of 32
// banks. The upper bits of n, XORed into its lowest five, send them to different ones.
static inline uint metric_at(uint n) {
    return n ^ ((n >> 5) & 31u);
}

// The best final state, the largest of equals; the same on every thread. One barrier. SWIZZLED: g is in the order
// of metric_at.
template <bool SWIZZLED, typename Metrics>
static inline uint trellis_best_state(Metrics g, uint states, uint low_mask, uint overlap, bool pinned, threadgroup uint* room, uint thread_index, uint threads, uint lane) {
    float top = -INFINITY;
    uint at = 0;
    for (uint n = thread_index; n < states; n += threads) {
        const float value = pinned && (n & low_mask) != overlap ? pinned_metric : g[SWIZZLED ? metric_at(n) : n];
        if (value >= top) {
            top = value;
            at = n;
        }
    }
    for (ushort mask = 16; mask > 0; mask >>= 1) {
        const float other = simd_shuffle_xor(top, mask);
        const uint other_at = simd_shuffle_xor(at, mask);
        if (better(top, at, other, other_at)) {
            top = other;
            at = other_at;
        }
    }
    const uint simd = thread_index / 32u;
    if (lane == 0) {
        room[2u * simd] = as_type<uint>(top);
        room[2u * simd + 1u] = at;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint s = 0; s < threads / 32u; s++) {
        const float other = as_type<float>(room[2u * s]);
        const uint other_at = room[2u * s + 1u];
        if (better(top, at, other, other_at)) {
            top = other;
            at = other_at;
        }
    }
    return at;
}

// Follows the back-pointers from the last position to `to`. The lanes of one SIMD-group all do it and
// the first of them stores: Apple compilers have been seen to drop what follows a barrier behind
// a long branch of a single thread.
static inline void trellis_trace(const device uchar* back, device uint* states, uint groups, uint k, uint steps, uint to, uint state, bool store) {
    uint t = steps - 1u;
    if (store) {
        states[t] = state;
    }
    while (t > to) {
        const uint j = state >> k;
        state = j + uint(back[ulong(t) * groups + j]) * groups;
        t -= 1u;
        if (store) {
            states[t] = state;
        }
    }
}

// The forward pass with everything in registers and threadgroup memory: K is fixed, a
// thread owns I items of Q states, 2^K / Q lanes of a SIMD-group share a group. One barrier
// per step. Returns the final state.
template <uint K, uint Q, uint I>
static inline uint trellis_forward(const device float* samples, uint first, const device float* table, device uchar* back, constant TrellisEncodeArgs& a, bool pinned, uint overlap, threadgroup float* metrics, uint thread_index, uint threads, uint lane) {
    const uint lanes = (1u << K) / Q;
    const uint states = 1u << a.state_bits;
    const uint groups = states >> K;
    const uint steps = a.block;
    float f[I * Q];
    float squares[I * Q];
    const float x0 = samples[first];
    threadgroup float* now = metrics;
    threadgroup float* next = metrics + states;
#pragma clang loop unroll(full)
    for (uint i = 0; i < I; i++) {
        const uint item = thread_index + i * threads;
#pragma clang loop unroll(full)
        for (uint q = 0; q < Q; q++) {
            const uint n = item * Q + q;
            const float value = table[n];
            f[i * Q + q] = value;
            squares[i * Q + q] = value * value;
            const float product = x0 * value;
            const float g = product - squares[i * Q + q];
            now[metric_at(n)] = pinned && (n >> K) != overlap ? pinned_metric : g;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint at = first;
    for (uint t = 1; t < steps; t++) {
        at = at + 1u == steps ? 0u : at + 1u;
        const float x = samples[at];
#pragma clang loop unroll(full)
        for (uint i = 0; i < I; i++) {
            const uint item = thread_index + i * threads;
            const uint j = item / lanes;
            const uint p = item % lanes;
            float best = now[metric_at(j + p * groups)];
            uint m = p;
#pragma clang loop unroll(full)
            for (uint q = 1; q < Q; q++) {
                const uint candidate = p + q * lanes;
                const float g = now[metric_at(j + candidate * groups)];
                if (g >= best) {
                    best = g;
                    m = candidate;
                }
            }
            for (uint mask = 1; mask < lanes; mask <<= 1) {
                const float other = simd_shuffle_xor(best, ushort(mask));
                const uint other_m = simd_shuffle_xor(m, ushort(mask));
                if (better(best, m, other, other_m)) {
                    best = other;
                    m = other_m;
                }
            }
            if (p == 0) {
                back[ulong(t) * groups + j] = uchar(m);
            }
#pragma clang loop unroll(full)
            for (uint q = 0; q < Q; q++) {
                const float product = x * f[i * Q + q];
                const float e = product - squares[i * Q + q];
                next[metric_at(item * Q + q)] = e + best;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        threadgroup float* swap = now;
        now = next;
        next = swap;
    }
    return trellis_best_state<true>(now, states, groups - 1u, overlap, pinned, (threadgroup uint*)next, thread_index, threads, lane);
}

// The same for any k, L and number of threads, metrics in threadgroup or device memory.
template <typename Metrics>
static inline uint trellis_forward_any(const device float* samples, uint first, const device float* table, device uchar* back, constant TrellisEncodeArgs& a, bool pinned, uint overlap, Metrics now, Metrics next, threadgroup uint* room, uint thread_index, uint threads, uint lane) {
    const uint states = 1u << a.state_bits;
    const uint branches = 1u << a.bits;
    const uint groups = states >> a.bits;
    const uint steps = a.block;
    const float x0 = samples[first];
    for (uint n = thread_index; n < states; n += threads) {
        const float f = table[n];
        const float square = f * f;
        const float product = x0 * f;
        const float g = product - square;
        now[n] = pinned && (n >> a.bits) != overlap ? pinned_metric : g;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
    uint at = first;
    for (uint t = 1; t < steps; t++) {
        at = at + 1u == steps ? 0u : at + 1u;
        const float x = samples[at];
        for (uint j = thread_index; j < groups; j += threads) {
            float best = now[j];
            uint m = 0;
            for (uint candidate = 1; candidate < branches; candidate++) {
                const float g = now[j + candidate * groups];
                if (g >= best) {
                    best = g;
                    m = candidate;
                }
            }
            back[ulong(t) * groups + j] = uchar(m);
            for (uint b = 0; b < branches; b++) {
                const uint n = j * branches + b;
                const float f = table[n];
                const float square = f * f;
                const float product = x * f;
                const float e = product - square;
                next[n] = e + best;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
        Metrics swap = now;
        now = next;
        next = swap;
    }
    return trellis_best_state<false>(now, states, groups - 1u, overlap, pinned, room, thread_index, threads, lane);
}

// A slot of scratch: doubled samples and states of the block, then device metrics
// (if any), then the back-pointers.
struct TrellisSlot {
    device float* samples;
    device uint* states;
    device float* metrics;
    device uchar* back;
};

static inline void trellis_slot(device uchar* scratch, constant TrellisEncodeArgs& a, uint group, uint device_metrics, thread TrellisSlot& s) {
    device uchar* p = scratch + ulong(group) * a.slot_bytes;
    s.samples = (device float*)p;
    s.states = (device uint*)(p + a.block * 4u);
    s.metrics = (device float*)(p + a.block * 8u);
    s.back = p + a.block * 8u + device_metrics * 4u;
}

// Doubled samples of a block: 2·(canon(w) / scale), or twice what is there, which must then be
// within ±2^60. Ends with a barrier.
static inline void trellis_load(const device uchar* w, const device ushort* scales, device atomic_uint* status, const thread TrellisSlot& s, constant TrellisEncodeArgs& a, uint b, uint thread_index, uint threads) {
    const uint block = a.block0 + b;
    const uint row = block / a.row_blocks;
    const uint column = (block - row * a.row_blocks) * a.block;
    float divisor = 1.0f;
    if (a.scaled != 0) {
        const float scale = from_f16(scales[a.scales.base + long(row) * a.scales.s2]);
        divisor = scale == 0.0f ? 1.0f : scale;
    }
    const long in = a.w.base + long(row) * a.w.s2;
    for (uint t = thread_index; t < a.block; t += threads) {
        const float v = load_float(w, a.w_type, in + long(column + t) * a.w.s3);
        if (!is_finite(v)) {
            report(status, STATUS_NON_FINITE, b * a.block + t);
        }
        float x = v;
        if (a.scaled != 0) {
            x = canon(v) / divisor;
        } else if (is_finite(v) && fabs(v) > sample_limit) {
            report(status, STATUS_SCALE_OVERFLOW, b * a.block + t);
        }
        s.samples[t] = 2.0f * x;
    }
    threadgroup_barrier(mem_flags::mem_device);
}

// Writes the packed words (symbol t at bit (T−1−t)·k) and, if asked, the states.
static inline void trellis_write(device uint* codes, device ushort* states, const thread TrellisSlot& s, constant TrellisEncodeArgs& a, uint block, uint thread_index, uint threads) {
    const uint row = block / a.row_blocks;
    const uint in_row = block - row * a.row_blocks;
    const uint words = a.block * a.bits / 32u;
    const uint mask = (1u << a.bits) - 1u;
    if (a.write_codes != 0) {
        const long out = a.codes.base + long(row) * a.codes.s2 + long(in_row * words) * a.codes.s3;
        for (uint w = thread_index; w < words; w += threads) {
            const uint begin = w * 32u;
            uint word = 0;
            for (uint r = begin / a.bits; r * a.bits < begin + 32u; r++) {
                const uint symbol = s.states[a.block - 1u - r] & mask;
                const uint bit = r * a.bits;
                word |= bit >= begin ? symbol << (bit - begin) : symbol >> (begin - bit);
            }
            codes[out + long(w) * a.codes.s3] = word;
        }
    }
    if (a.write_states != 0) {
        const long out = a.states.base + long(row) * a.states.s2 + long(in_row * a.block) * a.states.s3;
        for (uint t = thread_index; t < a.block; t += threads) {
            states[out + long(t) * a.states.s3] = ushort(s.states[t]);
        }
    }
}

// A pass of Algorithm 4: rotated and free (its state at the original t = 0 gives the
// overlap) or straight and pinned.
struct TrellisPass {
    uint first;
    uint to;
    bool pinned;
    uint overlap;
};

static inline void trellis_pass(const device uint* states, constant TrellisEncodeArgs& a, uint pass, thread TrellisPass& p) {
    p.first = 0;
    p.to = 0;
    p.pinned = false;
    p.overlap = 0;
    if (a.tail_biting != 0 && pass == 0) {
        p.first = a.block / 2u;
        p.to = a.block - p.first;
    } else if (a.tail_biting != 0) {
        p.pinned = true;
        p.overlap = states[a.block - a.block / 2u] >> a.bits;
    }
}

// L ≤ 12 with threads = 2^L / (Q·I) exactly.
template <uint K, uint Q, uint I>
static inline void trellis_encode_block(const device uchar* w, const device ushort* scales, const device float* table, device uint* codes, device ushort* states, device uchar* scratch, device atomic_uint* status, constant TrellisEncodeArgs& a, threadgroup float* metrics, uint group, uint groups, uint thread_index, uint threads, uint lane) {
    TrellisSlot s;
    trellis_slot(scratch, a, group, 0, s);
    for (uint b = group; b < a.blocks; b += groups) {
        trellis_load(w, scales, status, s, a, b, thread_index, threads);
        for (uint pass = a.tail_biting != 0 ? 0 : 1; pass < 2; pass++) {
            TrellisPass p;
            trellis_pass(s.states, a, pass, p);
            const uint last = trellis_forward<K, Q, I>(s.samples, p.first, table, s.back, a, p.pinned, p.overlap, metrics, thread_index, threads, lane);
            threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
            if (thread_index < 32) {
                trellis_trace(s.back, s.states, (1u << a.state_bits) >> K, K, a.block, p.to, last, thread_index == 0);
            }
            threadgroup_barrier(mem_flags::mem_device);
        }
        trellis_write(codes, states, s, a, a.block0 + b, thread_index, threads);
        threadgroup_barrier(mem_flags::mem_device);
    }
}

// Any k and L, any number of threads; metrics in threadgroup memory (L ≤ 12) or, DEVICE, in scratch.
template <bool DEVICE>
static inline void trellis_encode_general(const device uchar* w, const device ushort* scales, const device float* table, device uint* codes, device ushort* states, device uchar* scratch, device atomic_uint* status, constant TrellisEncodeArgs& a, threadgroup float* memory, uint group, uint groups, uint thread_index, uint threads, uint lane) {
    const uint count = 1u << a.state_bits;
    TrellisSlot s;
    trellis_slot(scratch, a, group, DEVICE ? 2u * count : 0u, s);
    for (uint b = group; b < a.blocks; b += groups) {
        trellis_load(w, scales, status, s, a, b, thread_index, threads);
        for (uint pass = a.tail_biting != 0 ? 0 : 1; pass < 2; pass++) {
            TrellisPass p;
            trellis_pass(s.states, a, pass, p);
            uint last;
            if (DEVICE) {
                last = trellis_forward_any(s.samples, p.first, table, s.back, a, p.pinned, p.overlap, s.metrics, s.metrics + count, (threadgroup uint*)memory, thread_index, threads, lane);
            } else {
                last = trellis_forward_any(s.samples, p.first, table, s.back, a, p.pinned, p.overlap, memory + 64, memory + 64 + count, (threadgroup uint*)memory, thread_index, threads, lane);
            }
            threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
            if (thread_index < 32) {
                trellis_trace(s.back, s.states, count >> a.bits, a.bits, a.block, p.to, last, thread_index == 0);
            }
            threadgroup_barrier(mem_flags::mem_device);
        }
        trellis_write(codes, states, s, a, a.block0 + b, thread_index, threads);
        threadgroup_barrier(mem_flags::mem_device);
    }
}

// ---- packed blocks to states and values ----

// Word w of a block. Interleaved codes are [two-block groups, rows, 2·words].
static inline long trellis_block(constant TrellisExpandArgs& a, uint row, uint block, uint words) {
    if (a.interleaved != 0) {
        return a.codes.base + long(block / 2u) * a.codes.s1 + long(row) * a.codes.s2 + long((block & 1u) * words) * a.codes.s3;
    }
    return a.codes.base + long(row) * a.codes.s2 + long(block * words) * a.codes.s3;
}

// One thread per element.
template <uint K>
static inline void trellis_expand_element(const device uint* codes, const device ushort* scales, const device float* table, device uchar* out, constant TrellisExpandArgs& a, uint2 at) {
    if (at.x >= a.cols || at.y >= a.rows) {
        return;
    }
    const uint row = a.row0 + at.y;
    const uint words = a.block * K / 32u;
    const uint block = (a.col0 + at.x) / a.block;
    const uint t = a.col0 + at.x - block * a.block;
    const float scale = from_f16(scales[a.scales.base + long(row) * a.scales.s2]);
    const ulong window = trellis_window(codes, trellis_block(a, row, block, words), a.codes.s3, words, (a.block - 1u - t) * K);
    const uint state = uint(window) & ((1u << a.state_bits) - 1u);
    const float value = code_value(state, a.code, table);
    store_float(out, a.out_type, a.out.base + long(row) * a.out.s2 + long(at.x) * a.out.s3, value * scale);
}

// Four consecutive weights from one window of L + 3k ≤ 33 bits; the last starts it.
template <uint K>
static inline void trellis_expand_four(const device uint* codes, const device ushort* scales, const device float* table, device uchar* out, constant TrellisExpandArgs& a, uint row, uint column) {
    const uint words = a.block * K / 32u;
    const uint block = (a.col0 + column) / a.block;
    const uint t = a.col0 + column - block * a.block;
    const float scale = from_f16(scales[a.scales.base + long(row) * a.scales.s2]);
    const ulong window = trellis_window(codes, trellis_block(a, row, block, words), a.codes.s3, words, (a.block - 4u - t) * K);
    const uint mask = (1u << a.state_bits) - 1u;
    const long to = a.out.base + long(row) * a.out.s2 + long(column) * a.out.s3;
    float v[4];
#pragma clang loop unroll(full)
    for (uint i = 0; i < 4; i++) {
        const uint state = uint(window >> ((3u - i) * K)) & mask;
        const float value = code_value(state, a.code, table);
        v[i] = value * scale;
    }
    store_four(out, a.out_type, to, a.out.s3, a.wide != 0, v);
}

template <uint K>
static inline void trellis_expand_window(const device uint* codes, const device ushort* scales, const device float* table, device uchar* out, constant TrellisExpandArgs& a, uint2 at) {
    const uint column = at.x * 4u;
    if (column < a.cols && at.y < a.rows) {
        trellis_expand_four<K>(codes, scales, table, out, a, a.row0 + at.y, column);
    }
}

// Interleaved codes in the order they lie: a tile of rows of one two-block group, then the next group.
template <uint K>
static inline void trellis_expand_tile(const device uint* codes, const device ushort* scales, const device float* table, device uchar* out, constant TrellisExpandArgs& a, uint index) {
    const uint span = a.block / 2u;
    const uint groups = a.cols / (2u * a.block);
    const uint line = index / span;
    const uint band = line / a.row_tile;
    const uint tile = band / groups;
    const uint nth = tile * a.row_tile + (line - band * a.row_tile);
    const uint column = (band - tile * groups) * 2u * a.block + (index - line * span) * 4u;
    if (nth < a.rows) {
        trellis_expand_four<K>(codes, scales, table, out, a, a.row0 + nth, column);
    }
}
