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

// ---- Viterbi ----
//
// A step takes metrics g over all 2^L states to the next ones. States n that share
// n >> k share their predecessors n >> k + m·2^(L−k), so the work of a step is 2^(L−k)
// groups: the best of 2^k metrics, then 2^k sums.

constant float pinned_metric = -1e30f;
constant float sample_limit = 1152921504606846976.0f; // 2^60

// numerics §6.3: of doubled sample x and a state of value f.
static inline float emission(float x, float f, float square) {
    const float product = x * f;
    return product - square;
}

static inline bool better(float g, uint n, float other, uint other_n) {
    return other > g || (other == g && other_n > n);
}

// A slot of scratch: doubled samples and states of the blocks that a threadgroup has at a time, then device metrics
// (if any), then the back-pointers.
struct TrellisSlot {
    device float* samples;
    device uint* states;
    device float* metrics;
    device uchar* back;
};

static inline void trellis_slot(device uchar* scratch, constant TrellisEncodeArgs& a, uint group, uint held, uint device_metrics, thread TrellisSlot& s) {
    device uchar* p = scratch + ulong(group) * a.slot_bytes;
    s.samples = (device float*)p;
    s.states = (device uint*)(p + held * a.block * 4u);
    s.metrics = (device float*)(p + held * a.block * 8u);
    s.back = p + held * a.block * 8u + device_metrics * 4u;
}

// Doubled samples of `held` blocks from number b on: 2·(canon(w) / scale), or twice what is there, which must then be
// within ±2^60. Beyond the last block they are the last block's. Ends with a barrier.
static inline void trellis_load(const device uchar* w, const device ushort* scales, device atomic_uint* status, const thread TrellisSlot& s, constant TrellisEncodeArgs& a, uint b, uint held, uint thread_index, uint threads) {
    for (uint i = thread_index; i < held * a.block; i += threads) {
        const uint nth = min(b + i / a.block, a.blocks - 1u);
        const uint t = i % a.block;
        const uint block = a.block0 + nth;
        const uint row = block / a.row_blocks;
        const uint column = (block - row * a.row_blocks) * a.block;
        const float v = load_float(w, a.w_type, a.w.base + long(row) * a.w.s2 + long(column + t) * a.w.s3);
        if (!is_finite(v)) {
            report(status, STATUS_NON_FINITE, nth * a.block + t);
        }
        float x = v;
        if (a.scaled != 0) {
            const float scale = from_f16(scales[a.scales.base + long(row) * a.scales.s2]);
            const float divisor = scale == 0.0f ? 1.0f : scale;
            x = canon(v) / divisor;
        } else if (is_finite(v) && fabs(v) > sample_limit) {
            report(status, STATUS_SCALE_OVERFLOW, nth * a.block + t);
        }
        s.samples[i] = 2.0f * x;
    }
    threadgroup_barrier(mem_flags::mem_device);
}

// Writes the packed words of `held` blocks from number b on (symbol t at bit (T−1−t)·k) and, if asked, their states.
static inline void trellis_write(device uint* codes, device ushort* states, const thread TrellisSlot& s, constant TrellisEncodeArgs& a, uint b, uint held, uint thread_index, uint threads) {
    const uint count = min(held, a.blocks - b);
    const uint words = a.block * a.bits / 32u;
    const uint mask = (1u << a.bits) - 1u;
    if (a.write_codes != 0) {
        for (uint i = thread_index; i < count * words; i += threads) {
            const uint nth = i / words;
            const uint w = i - nth * words;
            const uint row = (a.block0 + b + nth) / a.row_blocks;
            const uint in_row = a.block0 + b + nth - row * a.row_blocks;
            const uint begin = w * 32u;
            uint word = 0;
            for (uint r = begin / a.bits; r * a.bits < begin + 32u; r++) {
                const uint symbol = s.states[nth * a.block + a.block - 1u - r] & mask;
                const uint bit = r * a.bits;
                word |= bit >= begin ? symbol << (bit - begin) : symbol >> (begin - bit);
            }
            codes[a.codes.base + long(row) * a.codes.s2 + long(in_row * words + w) * a.codes.s3] = word;
        }
    }
    if (a.write_states != 0) {
        for (uint i = thread_index; i < count * a.block; i += threads) {
            const uint block = a.block0 + b + i / a.block;
            const uint row = block / a.row_blocks;
            const uint t = (block - row * a.row_blocks) * a.block + i % a.block;
            states[a.states.base + long(row) * a.states.s2 + long(t) * a.states.s3] = ushort(s.states[i]);
        }
    }
}

// A pass of Algorithm 4: rotated and free (its state at the original t = 0 gives the
// overlap) or straight and pinned.
struct TrellisPass {
    uint first;
    uint to;
    bool pinned;
};

static inline void trellis_pass(constant TrellisEncodeArgs& a, uint pass, thread TrellisPass& p) {
    p.first = 0;
    p.to = 0;
    p.pinned = false;
    if (a.tail_biting != 0 && pass == 0) {
        p.first = a.block / 2u;
        p.to = a.block - p.first;
    } else if (a.tail_biting != 0) {
        p.pinned = true;
    }
}

// The overlap that a pinned pass takes from the pass before it.
static inline uint trellis_overlap(const device uint* states, constant TrellisEncodeArgs& a) {
    return states[a.block - a.block / 2u] >> a.bits;
}

// ---- L from 8 to 12 ----
//
// Thread u of the 2^(L−4) that a block has holds the sixteen states u + r·2^(L−4): all the predecessors of
// 16 / 2^K groups, or with K > 4 an equal share of one group's, which 2^(K−4) neighbouring lanes have together.
// So a transition stays in registers, and S of them do if S·K ≤ 4. Then only the best of each group passes
// through threadgroup memory, to the threads that hold the group's states and add their emissions.
//
// After s bits have been shifted in, number x of a thread's sixteen states has the high 4 − s bits of x
// on top, then u, then the low s bits of x.
static inline uint trellis_state(uint L, uint u, uint x, uint s) {
    return ((x >> s) << (L - 4u + s)) | (u << s) | (x & ((1u << s) - 1u));
}

// Where the best of group j is: a column of 16 for the threads u that share u >> K, number r of which is for
// their state r. Columns lie in quads of four, spread by XOR so that neither the stores of a SIMD-group
// nor its loads meet in few banks, and in an order in which a thread's stores are as wide as can be.
template <uint K>
static inline uint trellis_slot_of(uint r) {
    return K == 1 ? (r & 3u) * 4u + (r >> 2) : K == 3 ? (r & 7u) * 2u + (r >> 3) : r;
}

template <uint K>
static inline uint trellis_place(uint column, uint slot) {
    const uint spread = (column >> (K == 2 ? 2u : 1u)) & 7u;
    return (((column * 4u + (slot >> 2)) ^ spread) << 4) | ((slot & 3u) << 2); // in bytes
}

// What a thread knows of its place. The best metrics of a round take `room` bytes, twice.
struct TrellisThread {
    uint L;
    uint rounds;
    uint each;  // threads of a block
    uint subs;  // blocks of a round
    uint sub;   // this thread's
    uint u;
    uint share; // K > 4: which share of its group
    uint group; // K > 4: its group
    uint room;
    uint base;  // first column of the block
};

template <uint K>
static inline void trellis_thread(constant TrellisEncodeArgs& a, uint thread_index, uint threads, thread TrellisThread& h) {
    h.L = a.state_bits;
    h.rounds = a.rounds;
    h.each = 1u << (h.L - 4u);
    h.subs = threads >> (h.L - 4u);
    h.sub = thread_index >> (h.L - 4u);
    const uint own = thread_index & (h.each - 1u);
    h.u = own;
    h.share = 0;
    h.group = 0;
    if (K > 4) {
        const uint shares = K > 4 ? K - 4u : 0u; // log2
        h.share = own & ((1u << shares) - 1u);
        h.group = own >> shares;
        h.u = h.group | (h.share << (h.L - K));
    }
    const uint columns = h.L - 4u > K ? 1u << (h.L - 4u - K) : 1u;
    h.room = h.subs * columns * 64u;
    h.base = h.sub * columns;
}

// Stores the best of this thread's groups.
template <uint K>
static inline void trellis_pass_on(threadgroup uchar* next, const thread TrellisThread& h, const thread float* best) {
    const uint left = h.L - 4u > K ? h.L - 4u - K : 0u; // log2 of the columns
    const uint last = (1u << left) - 1u;
    if (K == 1) { // S = 2: group h'·2^(L−3) + 2u + l of rest 2h' + l
#pragma clang loop unroll(full)
        for (uint l = 0; l < 2; l++) {
            const uint place = trellis_place<K>(h.base + ((2u * h.u + l) & last), (h.u >> (left - 1u)) * 4u);
            *(threadgroup float4*)(next + place) = float4(best[l], best[2 + l], best[4 + l], best[6 + l]);
        }
    } else if (K == 2) { // S = 2: group 4u + rest
#pragma clang loop unroll(full)
        for (uint rest = 0; rest < 4; rest++) {
            *(threadgroup float*)(next + trellis_place<K>(h.base + ((4u * h.u + rest) & last), (4u * h.u) >> left)) = best[rest];
        }
    } else if (K == 3) { // group rest·2^(L−4) + u
        *(threadgroup float2*)(next + trellis_place<K>(h.base + (h.u & last), (h.u >> left) * 2u)) = float2(best[0], best[1]);
    } else if (K == 4) {
        *(threadgroup float*)(next + trellis_place<K>(h.base + (h.u & last), h.u >> left)) = best[0];
    } else {
        const uint copies = h.L - 4u > K ? 1u : 1u << (K + 4u - h.L);
        if (h.share < copies) {
            const uint slot = h.L - 4u > K ? h.group >> left : h.group * copies + h.share;
            *(threadgroup float*)(next + trellis_place<K>(h.base + (h.group & last), slot)) = best[0];
        }
    }
}

// One transition in registers: the best of each group and, from bit `bit` of word on, which of them it was.
template <uint K>
static inline void trellis_transition(const thread float* v, const thread TrellisThread& h, uint bit, thread float* best, thread uint& word) {
    const uint rests = K < 4 ? 16u >> K : 1u;
    const uint held = K < 4 ? 1u << K : 16u;
#pragma clang loop unroll(full)
    for (uint rest = 0; rest < rests; rest++) {
        float top = v[rest];
        uint m = 0;
#pragma clang loop unroll(full)
        for (uint q = 1; q < held; q++) {
            const float g = v[q * rests + rest];
            m = g >= top ? q << (K < 4 ? bit + K * rest : 0u) : m;
            top = fmax(top, g);
        }
        if (K > 4) {
            const uint lanes = 1u << (K > 4 ? K - 4u : 0u);
            const float own = top;
#pragma clang loop unroll(full)
            for (uint mask = 1; mask < lanes; mask <<= 1) {
                top = fmax(top, simd_shuffle_xor(top, ushort(mask)));
            }
            m = own == top ? m * lanes + h.share : 0u;
#pragma clang loop unroll(full)
            for (uint mask = 1; mask < lanes; mask <<= 1) {
                m = max(m, simd_shuffle_xor(m, ushort(mask)));
            }
        }
        best[rest] = top;
        word |= m;
    }
}

// The back-pointers of S transitions of a round: a row of 2 bytes (S = 2) or 1 for each thread, with K > 4 for each group.
template <uint K, uint S>
static inline uint trellis_row(uint threads) {
    return S == 2 ? threads * 2u : K <= 4 ? threads : threads >> (K > 4 ? K - 4u : 0u);
}

template <uint K, uint S>
static inline void trellis_store_back(device uchar* back, const thread TrellisThread& h, uint word, uint thread_index) {
    if (S == 2) {
        ((device ushort*)back)[thread_index] = ushort(word);
    } else if (K <= 4) {
        back[thread_index] = uchar(word);
    } else if (h.share == 0) {
        back[thread_index >> (K > 4 ? K - 4u : 0u)] = uchar(word);
    }
}

// Takes one round through S emissions and the S − 1 transitions between them: v becomes the metrics after number S − 1.
template <uint K, uint S>
static inline void trellis_steps(const device float* samples, const threadgroup uchar* now, const thread uint* from, const thread TrellisThread& h, const thread float* f, const thread float* squares, thread float* v, thread uint& word) {
    float x[S];
    if (S == 2) { // a block is a multiple of 16 long, and so is half of it of 8
        const float2 both = *(const device float2*)samples;
        x[0] = both.x;
        x[S - 1] = both.y;
    } else {
        x[0] = samples[0];
    }
    float before[16];
#pragma clang loop unroll(full)
    for (uint i = 0; i < 4; i++) {
        const float4 quad = *(const threadgroup float4*)(now + from[i]);
        before[4 * i] = quad.x;
        before[4 * i + 1] = quad.y;
        before[4 * i + 2] = quad.z;
        before[4 * i + 3] = quad.w;
    }
#pragma clang loop unroll(full)
    for (uint r = 0; r < 16; r++) {
        const float e = emission(x[0], f[r], squares[r]);
        v[r] = e + before[trellis_slot_of<K>(r)];
    }
    word = 0;
    if (S == 2) {
        float best[K < 4 ? 16u >> K : 1u];
        trellis_transition<K>(v, h, 0, best, word);
#pragma clang loop unroll(full)
        for (uint y = 0; y < 16; y++) {
            const float e = emission(x[S - 1], f[16 * (S - 1) + y], squares[16 * (S - 1) + y]);
            v[y] = e + best[y >> K];
        }
    }
}

// The best of the final states of each of a block's SIMD-groups, the largest of equals: a metric and a state in
// threadgroup memory.
template <uint K>
static inline void trellis_last(const thread float* v, const thread TrellisThread& h, uint shifted, bool pinned, uint overlap, threadgroup uint* ends, uint thread_index) {
    float top = -INFINITY;
    uint last = 0;
#pragma clang loop unroll(full)
    for (uint y = 0; y < 16; y++) {
        const uint n = trellis_state(h.L, h.u, y, shifted);
        const float g = pinned && (n & ((1u << (h.L - K)) - 1u)) != overlap ? pinned_metric : v[y];
        if (g >= top) {
            top = g;
            last = n;
        }
    }
    const uint lanes = min(h.each, 32u);
    for (uint mask = 1; mask < lanes; mask <<= 1) {
        const float other = simd_shuffle_xor(top, ushort(mask));
        const uint other_last = simd_shuffle_xor(last, ushort(mask));
        if (better(top, last, other, other_last)) {
            top = other;
            last = other_last;
        }
    }
    if ((thread_index & (lanes - 1u)) == 0) {
        ends[2u * (thread_index / lanes)] = as_type<uint>(top);
        ends[2u * (thread_index / lanes) + 1u] = last;
    }
}

// The forward pass of all rounds. What trellis_last leaves lies where the next metrics of the round would. Ends with a
// barrier.
template <uint K, uint S>
static inline void trellis_forward(const thread TrellisSlot& s, constant TrellisEncodeArgs& a, const thread TrellisPass& p, const thread TrellisThread& h, const thread float* f, const thread float* squares, threadgroup uchar* memory, uint thread_index, uint threads) {
    const uint rests = K < 4 ? 16u >> K : 1u;
    const uint chunks = a.block / S;
    const uint row = trellis_row<K, S>(threads);
    const uint column = h.base + (h.u >> K);
    uint from[4];
#pragma clang loop unroll(full)
    for (uint i = 0; i < 4; i++) {
        from[i] = trellis_place<K>(column, i * 4u);
    }
    // What excludes a state also serves as the best before it: beside it no emission counts, which is below 2^64.
    for (uint nth = 0; nth < h.rounds; nth++) {
        const uint overlap = p.pinned ? trellis_overlap(s.states + (nth * h.subs + h.sub) * a.block, a) : 0u;
        float best[rests];
#pragma clang loop unroll(full)
        for (uint rest = 0; rest < rests; rest++) {
            const uint j = K > 4 ? h.group : trellis_state(h.L, h.u, rest << (K < 4 ? K : 0u), S * K) >> K;
            best[rest] = p.pinned && j != overlap ? pinned_metric : 0.0f;
        }
        trellis_pass_on<K>(memory + nth * h.room, h, best);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const device float* samples = s.samples + h.sub * a.block + p.first;
    device uchar* back = s.back;
    const uint stride = h.subs * a.block;
    uint now = 0;
    uint next = h.rounds * h.room;
    for (uint c = 1; c < chunks; c++) {
        const device float* x = samples;
        device uchar* line = back;
        for (uint end = now + h.rounds * h.room; now < end; now += h.room) {
            float v[16];
            float best[rests];
            uint word;
            trellis_steps<K, S>(x, memory + now, from, h, f, squares, v, word);
            trellis_transition<K>(v, h, 8u * (S - 1u), best, word);
            trellis_pass_on<K>(memory + next, h, best);
            trellis_store_back<K, S>(line, h, word, thread_index);
            x += stride;
            line += chunks * row;
            next += h.room;
        }
        samples = p.first + c * S == a.block ? samples + S - a.block : samples + S;
        back += row;
        const uint swap = now - h.rounds * h.room;
        now = next - h.rounds * h.room;
        next = swap;
        threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
    }
    for (uint nth = 0; nth < h.rounds; nth++) {
        const uint overlap = p.pinned ? trellis_overlap(s.states + (nth * h.subs + h.sub) * a.block, a) : 0u;
        float v[16];
        uint word;
        trellis_steps<K, S>(samples + nth * stride, memory + now + nth * h.room, from, h, f, squares, v, word);
        trellis_last<K>(v, h, (S - 1u) * K, p.pinned, overlap, (threadgroup uint*)(memory + next + nth * h.room), thread_index);
        if (S > 1) {
            trellis_store_back<K, S>(back + nth * chunks * row, h, word, thread_index);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
}

// Follows the back-pointers of each block from the best final state to the position `to`, all of it by whole SIMD-groups: Apple
// compilers have been seen to drop what follows a barrier behind a long branch of a single thread. As many lanes as
// a row has words (K > 4: bytes), 32 at most, trace a block. Rows do not depend on the path, so that several are
// loaded ahead of it.
template <uint K, uint S>
static inline void trellis_trace(const thread TrellisSlot& s, constant TrellisEncodeArgs& a, uint to, const thread TrellisThread& h, const threadgroup uchar* memory, uint thread_index, uint threads, uint lane) {
    const uint parts = K <= 2 || K == 5 ? 4u : K <= 4 || K == 6 ? 2u : 1u; // words or bytes a lane holds of a row, at most
    const uint ahead = parts == 4 ? 4u : 8u;                               // rows
    const uint chunks = a.block / S;
    const uint row = trellis_row<K, S>(threads);
    const uint units = K <= 4 ? h.each * S / 4u : 1u << (h.L - (K > 4 ? K : 0u));
    const uint width = min(units, 32u);
    const uint own = lane & (width - 1u);
    const uint count = h.rounds * h.subs;
    const uint simds = threads / 32u;
    const uint ends = h.each > 32u ? h.each / 32u : 1u; // of a block
    const uint mask = (1u << K) - 1u;
    for (uint first = thread_index / 32u * (32u / width); first < count; first += simds * (32u / width)) {
        const uint block = min(first + lane / width, count - 1u);
        const uint nth = block / h.subs;
        const uint sub = block - nth * h.subs;
        const threadgroup uint* end = (const threadgroup uint*)(memory + ((chunks & 1u) * h.rounds + nth) * h.room) + sub * ends * 2u;
        float top = as_type<float>(end[0]);
        uint last = end[1];
        for (uint i = 1; i < ends; i++) {
            const float other = as_type<float>(end[2u * i]);
            const uint other_last = end[2u * i + 1u];
            if (better(top, last, other, other_last)) {
                top = other;
                last = other_last;
            }
        }
        const device uchar* rows = s.back + ulong(nth * chunks) * row + sub * (K <= 4 ? h.each * S : units);
        device uint* states = s.states + block * a.block;
        // As if a symbol 0 followed: the first predecessor found is the final state.
        uint state = (last << K) & ((1u << h.L) - 1u);
        uint c = chunks;
        while (c * S > to) {
            uint held[ahead * parts];
#pragma clang loop unroll(full)
            for (uint r = 0; r < ahead; r++) {
                const device uchar* line = rows + ulong(c > r ? c - 1u - r : 0u) * row;
#pragma clang loop unroll(full)
                for (uint i = 0; i < parts; i++) {
                    const uint unit = min(i * 32u + own, units - 1u);
                    held[r * parts + i] = K <= 4 ? ((const device uint*)line)[unit] : uint(line[unit]);
                }
            }
#pragma clang loop unroll(full)
            for (uint r = 0; r < ahead; r++) {
                if (c * S > to) {
                    const uint u = (state >> (S * K)) & (h.each - 1u);
                    uint x = ((state >> (h.L - 4u + (K < 4 ? S * K : 4u))) << (K < 4 ? S * K : 4u)) | (state & ((1u << (S * K)) - 1u));
                    const uint j = state >> K;
                    const uint unit = K <= 4 ? u * S / 4u : j;
                    uint word = 0;
#pragma clang loop unroll(full)
                    for (uint i = 0; i < parts; i++) { // a choice among them would be an array in memory
                        word |= held[r * parts + i] & (0u - uint(unit >> 5 == i));
                    }
                    word = simd_shuffle(word, ushort((lane - own) | (unit & (width - 1u))));
                    uint mine = 0;
                    if (K > 4) {
                        const uint m = c == chunks ? last >> (h.L - K) : word;
                        state = j | (m << (h.L - K));
                        mine = state;
                    } else {
                        word >>= 8u * ((u * S) & 3u);
#pragma clang loop unroll(full)
                        for (uint i = S; i > 0; i--) {
                            const uint rest = x >> K;
                            const uint m = c == chunks && i == S ? last >> (h.L - K) : (word >> (8u * (i - 1u) + K * rest)) & mask;
                            x = (m << (4u - (K < 4 ? K : 4u))) | rest;
                            state = trellis_state(h.L, u, x, (i - 1u) * K);
                            mine = own == i - 1u ? state : mine;
                        }
                    }
                    c -= 1u;
                    if (own < S) {
                        states[c * S + own] = mine;
                    }
                }
            }
        }
    }
}

template <uint K, uint S>
static inline void trellis_encode_blocks(const device uchar* w, const device ushort* scales, const device float* table, device uint* codes, device ushort* states, device uchar* scratch, device atomic_uint* status, constant TrellisEncodeArgs& a, threadgroup float* memory, uint group, uint groups, uint thread_index, uint threads, uint lane) {
    TrellisThread h;
    trellis_thread<K>(a, thread_index, threads, h);
    float f[S * 16];
    float squares[S * 16];
#pragma clang loop unroll(full)
    for (uint i = 0; i < S * 16; i++) {
        const float value = table[trellis_state(h.L, h.u, i & 15u, (i >> 4) * K)];
        f[i] = value;
        squares[i] = value * value;
    }
    const uint held = h.rounds * h.subs;
    TrellisSlot s;
    trellis_slot(scratch, a, group, held, 0, s);
    for (uint b = group * held; b < a.blocks; b += groups * held) {
        trellis_load(w, scales, status, s, a, b, held, thread_index, threads);
        for (uint pass = a.tail_biting != 0 ? 0 : 1; pass < 2; pass++) {
            TrellisPass p;
            trellis_pass(a, pass, p);
            trellis_forward<K, S>(s, a, p, h, f, squares, (threadgroup uchar*)memory, thread_index, threads);
            trellis_trace<K, S>(s, a, p.to, h, (const threadgroup uchar*)memory, thread_index, threads, lane);
            threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
        }
        trellis_write(codes, states, s, a, b, held, thread_index, threads);
    }
}

// ---- any k, L and number of threads, metrics in threadgroup or device memory: one block ----

// The best final state, the largest of equals; the same on every thread. One barrier.
template <typename Metrics>
static inline uint trellis_best_state(Metrics g, uint states, uint low_mask, uint overlap, bool pinned, threadgroup uint* room, uint thread_index, uint threads, uint lane) {
    float top = -INFINITY;
    uint at = 0;
    for (uint n = thread_index; n < states; n += threads) {
        const float value = pinned && (n & low_mask) != overlap ? pinned_metric : g[n];
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

// As trellis_trace, by one SIMD-group; the first lane stores.
static inline void trellis_trace_any(const device uchar* back, device uint* states, uint groups, uint k, uint steps, uint to, uint state, bool store) {
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
        const float g = emission(x0, f, square);
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
                const float e = emission(x, f, square);
                next[n] = e + best;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
        Metrics swap = now;
        now = next;
        next = swap;
    }
    return trellis_best_state(now, states, groups - 1u, overlap, pinned, room, thread_index, threads, lane);
}

// Any k and L, any number of threads; metrics in threadgroup memory (L ≤ 12) or, DEVICE, in scratch.
template <bool DEVICE>
static inline void trellis_encode_general(const device uchar* w, const device ushort* scales, const device float* table, device uint* codes, device ushort* states, device uchar* scratch, device atomic_uint* status, constant TrellisEncodeArgs& a, threadgroup float* memory, uint group, uint groups, uint thread_index, uint threads, uint lane) {
    const uint count = 1u << a.state_bits;
    TrellisSlot s;
    trellis_slot(scratch, a, group, 1, DEVICE ? 2u * count : 0u, s);
    for (uint b = group; b < a.blocks; b += groups) {
        trellis_load(w, scales, status, s, a, b, 1, thread_index, threads);
        for (uint pass = a.tail_biting != 0 ? 0 : 1; pass < 2; pass++) {
            TrellisPass p;
            trellis_pass(a, pass, p);
            const uint overlap = p.pinned ? trellis_overlap(s.states, a) : 0u;
            uint last;
            if (DEVICE) {
                last = trellis_forward_any(s.samples, p.first, table, s.back, a, p.pinned, overlap, s.metrics, s.metrics + count, (threadgroup uint*)memory, thread_index, threads, lane);
            } else {
                last = trellis_forward_any(s.samples, p.first, table, s.back, a, p.pinned, overlap, memory + 64, memory + 64 + count, (threadgroup uint*)memory, thread_index, threads, lane);
            }
            threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
            if (thread_index < 32) {
                trellis_trace_any(s.back, s.states, count >> a.bits, a.bits, a.block, p.to, last, thread_index == 0);
            }
            threadgroup_barrier(mem_flags::mem_device);
        }
        trellis_write(codes, states, s, a, b, 1, thread_index, threads);
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

// One thread per element: any block and column.
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

// Eight results; wide says that stride is 1 and their address a multiple of 16 bytes.
static inline void store_run(device uchar* p, uint type, long i, long stride, bool wide, thread const float* x) {
    if (!wide) {
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            store_float(p, type, i + long(e) * stride, x[e]);
        }
    } else if (type == TYPE_F32) {
        device float4* to = (device float4*)((device float*)p + i);
        to[0] = float4(x[0], x[1], x[2], x[3]);
        to[1] = float4(x[4], x[5], x[6], x[7]);
    } else if (type == TYPE_F16) {
        *(device uint4*)((device ushort*)p + i) = uint4(f16_pair(x[0], x[1]), f16_pair(x[2], x[3]), f16_pair(x[4], x[5]), f16_pair(x[6], x[7]));
    } else {
        *(device uint4*)((device ushort*)p + i) = uint4(bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]), bf16_pair(x[4], x[5]), bf16_pair(x[6], x[7]));
    }
}

// Runs of eight consecutive weights, RUNS of them a thread, 32 runs apart. Blocks are 2^shift long, 8 at least, so that the
// states of a run lie in two words of the block, or with K > 4 in three.
#define RUNS 4

// State i of a run, whose first bit is that of lo, which mid and hi follow.
template <uint K>
static inline uint trellis_run_state(uint lo, uint mid, uint hi, uint i) {
    const uint bit = (7u - i) * K;
    const uint shift = bit & 31u;
    const uint low = bit < 32u ? lo : mid;
    const uint high = bit < 32u ? mid : hi;
    return shift <= 16u ? low >> shift : (low >> shift) | (high << ((32u - shift) & 31u)); // a state has 16 bits at most
}

template <uint K>
static inline void trellis_expand_runs(const device uint* codes, const device ushort* scales, const device float* table, device uchar* out, constant TrellisExpandArgs& a, uint2 at) {
    if (at.y >= a.rows) {
        return;
    }
    const uint row = a.row0 + at.y;
    const uint words = a.block * K / 32u;
    const uint mask = (1u << a.state_bits) - 1u;
    const uint runs = a.cols / 8u;
    const uint first = at.x / 32u * (32u * RUNS) + at.x % 32u;
    const float scale = from_f16(scales[a.scales.base + long(row) * a.scales.s2]);
    const device uint* from = codes + (a.codes.base + long(row) * a.codes.s2);
    const uint loads = K > 4 ? 3u : 2u;
    uint window[RUNS * loads];
    uint shift[RUNS];
#pragma clang loop unroll(full)
    for (uint r = 0; r < RUNS; r++) { // all loads first
        const uint column = a.col0 + min(first + r * 32u, runs - 1u) * 8u;
        const uint block = column >> a.shift;
        const uint bit = (a.block - 8u - (column & (a.block - 1u))) * K;
        const device uint* in = from + block * words;
        if (a.interleaved != 0) {
            in = from + (long(block / 2u) * a.codes.s1 + long((block & 1u) * words));
        }
        uint w = bit / 32u;
        shift[r] = bit % 32u;
#pragma clang loop unroll(full)
        for (uint i = 0; i < loads; i++) {
            window[r * loads + i] = in[w];
            w = w + 1u == words ? 0u : w + 1u;
        }
    }
    const long to = a.out.base + long(row) * a.out.s2;
#pragma clang loop unroll(full)
    for (uint r = 0; r < RUNS; r++) {
        const uint run = first + r * 32u;
        if (run >= runs) {
            return;
        }
        uint lo = window[r * loads];
        uint mid = window[r * loads + 1];
        uint hi = window[r * loads + loads - 1];
        if (K % 4 != 0) {
            lo = uint(((ulong(mid) << 32) | lo) >> shift[r]);
            mid = K > 4 ? uint(((ulong(hi) << 32) | mid) >> shift[r]) : mid >> shift[r];
            hi = hi >> shift[r];
        }
        float v[8];
        if (a.code == CODE_1MAD) { // asked once for all eight
#pragma clang loop unroll(full)
            for (uint i = 0; i < 8; i++) {
                v[i] = code_1mad(trellis_run_state<K>(lo, mid, hi, i) & mask) * scale;
            }
        } else {
#pragma clang loop unroll(full)
            for (uint i = 0; i < 8; i++) {
                v[i] = code_value(trellis_run_state<K>(lo, mid, hi, i) & mask, a.code, table) * scale;
            }
        }
        store_run(out, a.out_type, to + long(run * 8u) * a.out.s3, a.out.s3, a.wide != 0, v);
    }
}
