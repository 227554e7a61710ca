// Shared by every kernel file, and the only file that defines helpers.
//
// Bits first: every f32 operation below is one rounding to nearest even, in the
// order docs/numerics.md states. So fast math is refused, contraction is off in
// both spellings (safe math alone leaves it on within an expression), a
// reduction is an explicit xor tree, and one statement holds one operation.

#if defined(__FAST_MATH__)
#error "turbotrellis: the shaders need fast math off (math mode safe, precise functions)"
#endif

#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#pragma clang fp contract(off)

using namespace metal;

// ---- the ±1 matrices of order 12, 20, 28: bit c of word j is set where output j takes −input c ----

constant uint hadamard12[12] = {
    0x0000002u, 0x0000aabu, 0x00003c8u, 0x000096eu,
    0x0000f20u, 0x00005bau, 0x0000c8cu, 0x00006e6u,
    0x000023cu, 0x0000b96u, 0x00008f0u, 0x0000e5au,
};

constant uint hadamard20[20] = {
    0x00933deu, 0x002e3bdu, 0x005477bu, 0x00a0ef7u,
    0x00499efu, 0x00637c1u, 0x00c6ba2u, 0x008d764u,
    0x001aee8u, 0x00359f0u, 0x000fa53u, 0x00174a7u,
    0x0026d4eu, 0x0045e9cu, 0x0083d39u, 0x00f7a6du,
    0x00ef4fau, 0x00dedd5u, 0x00bdf8bu, 0x007bf36u,
};

constant uint hadamard28[28] = {
    0xcd69e7eu, 0x9ad7c7du, 0x37ab8fbu, 0x6d571f7u,
    0xd8ae3efu, 0xb3587dfu, 0x66b4f3fu, 0xb467f43u,
    0x6acbe87u, 0xd593d8eu, 0xab27b9cu, 0x564f7b8u,
    0xac9aff0u, 0x5b31fe1u, 0x87fb325u, 0x0ff66cau,
    0x1decd95u, 0x39ddb2au, 0x71bf654u, 0xe17eca9u,
    0xc2fd9d2u, 0xfcf1299u, 0xfbe2532u, 0xf7c4ae4u,
    0xef8d549u, 0xdf1ea13u, 0xbe3d4a6u, 0x7e7a94cu,
};

// ---- numbers ----

static inline bool is_finite(float x) {
    return (as_type<uint>(x) & 0x7f800000u) != 0x7f800000u;
}

// numerics §1: magnitudes below 2^-64 become +0. By integer compare, so that a device
// that flushes subnormals and one that does not agree.
static inline float canon(float x) {
    const uint magnitude = as_type<uint>(x) & 0x7fffffffu;
    return magnitude < 0x1f800000u ? 0.0f : x;
}

// canon that keeps the sign of a zero (compat keys).
static inline float canon_signed(float x) {
    const uint u = as_type<uint>(x);
    return (u & 0x7fffffffu) < 0x1f800000u ? as_type<float>(u & 0x80000000u) : x;
}

// numerics §1: +0 for what is below the smallest normal f32.
static inline float flush(float x) {
    const uint magnitude = as_type<uint>(x) & 0x7fffffffu;
    return magnitude < 0x00800000u ? 0.0f : x;
}

static inline float negate_if(float x, uint bit) {
    return as_type<float>(as_type<uint>(x) ^ (bit << 31));
}

// The magnitude of x under the sign of s, by bits: a flushed zero has no sign to rely on.
static inline float with_sign(float x, float s) {
    const uint magnitude = as_type<uint>(x) & 0x7fffffffu;
    const uint sign = as_type<uint>(s) & 0x80000000u;
    return as_type<float>(magnitude | sign);
}

// bf16 by integer rounding, half to even, NaN kept quiet.
static inline ushort to_bf16(float x) {
    const uint u = as_type<uint>(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return ushort((u >> 16) | 0x40u);
    }
    return ushort((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float from_bf16(ushort u) {
    return as_type<float>(uint(u) << 16);
}

static inline ushort to_f16(float x) {
    return as_type<ushort>(half(x));
}

static inline float from_f16(ushort u) {
    return float(as_type<half>(u));
}

// Two of them, the first in the lower half. A device whose own conversions give these bits may bring its own.
#if !defined(PAIRS)
static inline uint f16_pair(float lo, float hi) {
    return uint(to_f16(lo)) | (uint(to_f16(hi)) << 16);
}

static inline uint bf16_pair(float lo, float hi) {
    return uint(to_bf16(lo)) | (uint(to_bf16(hi)) << 16);
}
#endif

// The value x takes when stored as type, widened again.
static inline float stored(float x, uint type) {
    if (type == TYPE_F16) {
        return from_f16(to_f16(x));
    }
    if (type == TYPE_BF16) {
        return from_bf16(to_bf16(x));
    }
    return x;
}

static inline float load_float(const device uchar* p, uint type, long i) {
    if (type == TYPE_F32) {
        return ((const device float*)p)[i];
    }
    const ushort u = ((const device ushort*)p)[i];
    return type == TYPE_F16 ? from_f16(u) : from_bf16(u);
}

static inline void store_float(device uchar* p, uint type, long i, float x) {
    if (type == TYPE_F32) {
        ((device float*)p)[i] = x;
    } else {
        ((device ushort*)p)[i] = type == TYPE_F16 ? to_f16(x) : to_bf16(x);
    }
}

// numerics §2: a finite result that would round to an infinity of f16 becomes ±65504, and is
// counted. 65520 is halfway between 65504 and 65536. By integer compare, as in canon.
static inline float limit_f16(float x, thread uint& count) {
    const uint u = as_type<uint>(x);
    const uint magnitude = u & 0x7fffffffu;
    if (magnitude >= 0x477ff000u && magnitude < 0x7f800000u) {
        count += 1u;
        return as_type<float>((u & 0x80000000u) | 0x477fe000u);
    }
    return x;
}

// Whether a KV decoder limits what it stores as type.
static inline bool limits(uint policy, uint type) {
    return policy == POLICY_FINITE && type == TYPE_F16;
}

static inline void count_limited(device atomic_uint* limited, uint count) {
    if (count != 0) {
        atomic_fetch_add_explicit(limited, count, memory_order_relaxed);
    }
}

// Four consecutive results. wide says that stride is 1 and the address of four
// elements is aligned; the host checks it.
static inline void store_four(device uchar* p, uint type, long i, long stride, bool wide, thread const float* x) {
    if (!wide) {
        for (uint e = 0; e < 4; e++) {
            store_float(p, type, i + long(e) * stride, x[e]);
        }
    } else if (type == TYPE_F32) {
        *(device float4*)((device float*)p + i) = float4(x[0], x[1], x[2], x[3]);
    } else {
        ushort u[4];
        for (uint e = 0; e < 4; e++) {
            u[e] = type == TYPE_F16 ? to_f16(x[e]) : to_bf16(x[e]);
        }
        const uint lo = uint(u[0]) | (uint(u[1]) << 16);
        const uint hi = uint(u[2]) | (uint(u[3]) << 16);
        *(device uint2*)((device ushort*)p + i) = uint2(lo, hi);
    }
}

// ---- strided rows: [n0, n1, n2, last], offsets in 64 bits; nth numbers the rows of the dispatch ----

static inline uint3 split_row(uint row, uint n1, uint n2) {
    if (row < n2) {
        return uint3(0u, 0u, row);
    }
    const uint q = row / n2;
    const uint i0 = q / n1;
    return uint3(i0, q - i0 * n1, row - q * n2);
}

static inline long row_offset(constant View& v, uint3 r) {
    return v.base + long(r.x) * v.s0 + long(r.y) * v.s1 + long(r.z) * v.s2;
}

// ---- status: the first offending index of the dispatch, in row-major order ----

static inline void report(device atomic_uint* status, uint word, uint index) {
    atomic_fetch_min_explicit(status + word, index, memory_order_relaxed);
}

// ---- SIMD-groups of 32 lanes, all active ----

// numerics §4's tree over 32 lanes: at each step both partners add the same two values.
static inline float tree_sum(float q) {
    for (ushort mask = 16; mask > 0; mask >>= 1) {
        const float other = simd_shuffle_xor(q, mask);
        q = q + other;
    }
    return q;
}

// Eight lanes hold a unit of eight codes, which is `bits` whole bytes. Lane u of
// the unit gets byte u (u < bits).
static inline uchar pack_lanes(uint code, uint bits, uint lane) {
    if (bits == 8) {
        return uchar(code);
    }
    const uint u = lane & 7u;
    const ulong placed = ulong(code) << (u * bits);
    uint lo = uint(placed);
    uint hi = uint(placed >> 32);
    for (ushort mask = 1; mask < 8; mask <<= 1) {
        lo |= simd_shuffle_xor(lo, mask);
        if (bits > 4) {
            hi |= simd_shuffle_xor(hi, mask);
        }
    }
    const uint word = u < 4 ? lo : hi;
    return uchar(word >> (8u * (u & 3u)));
}

// ---- packed units: eight codes are `bits` bytes, read once ----

static inline ulong load_unit(const device uchar* p, long i, long stride, uint bits) {
    ulong unit = 0;
    for (uint b = 0; b < bits; b++) {
        unit |= ulong(p[i + long(b) * stride]) << (8u * b);
    }
    return unit;
}

static inline uint unit_code(ulong unit, uint e, uint bits) {
    return uint(unit >> (e * bits)) & ((1u << bits) - 1u);
}

// ---- units: eight consecutive elements of a row ----

// A Units launch gives each lane UNITS of them: of the 32·UNITS that a SIMD-group takes of its threadgroup's tile, lane
// l has numbers l, l + 32 and so on. A tile is 2^shift units of a row by as many rows as fit. Where the rows of
// every operand follow each other, the host passes them as one long row. A lane without a unit takes the last one
// and stores nothing: exchanges need all lanes.
#define UNITS 4

struct Unit {
    uint3 row;
    uint x;      // in its row
    uint number; // in the dispatch
    bool active;
};

static inline void unit_at(constant Span& s, uint2 group, uint simd, uint simds, uint lane, uint r, thread Unit& u) {
    const uint q = (simd * UNITS + r) * 32u + lane;
    const uint x = (group.x << s.shift) + (q & ((1u << s.shift) - 1u));
    const uint y = group.y * ((simds * 32u * UNITS) >> s.shift) + (q >> s.shift);
    u.active = x < s.width && y < s.rows;
    u.x = min(x, s.width - 1u);
    u.number = u.x;
    u.row = uint3(0u, 0u, 0u);
    if (s.rows > 1) {
        const uint nth = min(y, s.rows - 1u);
        u.number = nth * s.width + u.x;
        u.row = split_row(s.row0 + nth, s.n1, s.n2);
    }
}

// Where the unit's row begins in an operand.
static inline long unit_row(constant View& v, constant Span& s, thread const Unit& u) {
    return s.rows > 1 ? row_offset(v, u.row) : v.base;
}

// Eight elements from element i on. wide says that stride is 1 and that the address of eight elements is aligned to
// 16 bytes. The result is not zero where one of them may be infinite or NaN.
static inline uint load_eight(const device uchar* p, uint type, long i, long stride, bool wide, thread float* x) {
    uint bad = 0;
    if (!wide) {
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            x[e] = load_float(p, type, i + long(e) * stride);
            bad |= is_finite(x[e]) ? 0u : 1u;
        }
    } else if (type == TYPE_F32) {
        const device float4* from = (const device float4*)((const device float*)p + i);
#pragma clang loop unroll(full)
        for (uint h = 0; h < 2; h++) {
            const float4 q = from[h];
            x[4 * h] = q.x;
            x[4 * h + 1] = q.y;
            x[4 * h + 2] = q.z;
            x[4 * h + 3] = q.w;
        }
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            bad |= is_finite(x[e]) ? 0u : 1u;
        }
    } else {
        const uint4 q = *(const device uint4*)((const device ushort*)p + i);
        const uint w[4] = {q.x, q.y, q.z, q.w};
        const uint exponents = type == TYPE_F16 ? 0x7c007c00u : 0x7f807f80u;
        const uint one = type == TYPE_F16 ? 0x04000400u : 0x00800080u;
#pragma clang loop unroll(full)
        for (uint e = 0; e < 4; e++) { // an exponent of all ones carries into the sign's place
            bad |= (w[e] & exponents) + one;
        }
        bad &= 0x80008000u;
        if (type == TYPE_F16) {
#pragma clang loop unroll(full)
            for (uint e = 0; e < 4; e++) {
                x[2 * e] = from_f16(ushort(w[e] & 0xffffu));
                x[2 * e + 1] = from_f16(ushort(w[e] >> 16));
            }
        } else {
#pragma clang loop unroll(full)
            for (uint e = 0; e < 4; e++) {
                x[2 * e] = as_type<float>(w[e] << 16);
                x[2 * e + 1] = as_type<float>(w[e] & 0xffff0000u);
            }
        }
    }
    return bad;
}

// canon of eight elements. Of f16 it changes the sign of zeros alone.
static inline void canon_eight(uint type, thread float* x) {
    if (type == TYPE_F16) {
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            x[e] = x[e] + 0.0f;
        }
    } else {
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            x[e] = canon(x[e]);
        }
    }
}

static inline void report_eight(device atomic_uint* status, thread const Unit& u, thread const float* x) {
#pragma clang loop unroll(full)
    for (uint e = 0; e < 8; e++) {
        if (u.active && !is_finite(x[e])) {
            report(status, STATUS_NON_FINITE, u.number * 8u + e);
        }
    }
}

// Eight results of a KV decoder. wide as in load_eight.
static inline void store_eight(device uchar* p, uint type, long i, long stride, bool wide, bool limit, thread float* x, device atomic_uint* limited) {
    if (limit) {
        float most = 0.0f;
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            most = fmax(most, fabs(x[e])); // passes over NaNs
        }
        if (most >= 65520.0f) {
            uint count = 0;
#pragma clang loop unroll(full)
            for (uint e = 0; e < 8; e++) {
                x[e] = limit_f16(x[e], count);
            }
            count_limited(limited, count);
        }
    }
    if (!wide) {
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            store_float(p, type, i + long(e) * stride, x[e]);
        }
    } else if (type == TYPE_F32) {
        device float4* to = (device float4*)((device float*)p + i);
        to[0] = float4(x[0], x[1], x[2], x[3]);
        to[1] = float4(x[4], x[5], x[6], x[7]);
    } else {
        uint w[4];
        if (type == TYPE_F16) {
#pragma clang loop unroll(full)
            for (uint e = 0; e < 4; e++) {
                w[e] = f16_pair(x[2 * e], x[2 * e + 1]);
            }
        } else {
#pragma clang loop unroll(full)
            for (uint e = 0; e < 4; e++) {
                w[e] = bf16_pair(x[2 * e], x[2 * e + 1]);
            }
        }
        *(device uint4*)((device ushort*)p + i) = uint4(w[0], w[1], w[2], w[3]);
    }
}

// The codes of unit number n from p on, code e from bit e·BITS of (x, y) on; other bits are zero. wide says that p
// is aligned to 4 bytes, to 8 where BITS is 8; rows are whole multiples of four units.
template <uint BITS>
static inline uint2 load_codes(const device uchar* p, uint n, bool wide) {
    if (!wide) {
        const ulong unit = load_unit(p, long(n) * BITS, 1, BITS);
        return uint2(uint(unit), uint(unit >> 32));
    }
    if (BITS == 8) {
        return ((const device uint2*)p)[n];
    }
    if (BITS == 4) {
        return uint2(((const device uint*)p)[n], 0u);
    }
    if (BITS == 2) {
        return uint2(uint(((const device ushort*)p)[n]), 0u);
    }
    const device uint* words = (const device uint*)p;
    const uint w = (n * BITS) >> 2;
    const uint s = ((n * BITS) & 3u) * 8u;
    const uint lo = words[w];
    const uint hi = words[w + (s + BITS * 8u > 32u ? 1u : 0u)];
    const uint x = (lo >> s) | ((hi << 1) << (31u - s));
    return BITS == 3 ? uint2(x & 0xffffffu, 0u) : uint2(x, (hi >> s) & 0xffu);
}

template <uint BITS>
static inline void store_codes(device uchar* p, uint n, bool wide, uint2 unit, bool active) {
    if (BITS == 3 && wide) { // the 24 bits of four lanes are three words
        const uint part = n & 3u;
        const uint next = simd_shuffle_xor(unit.x, ushort(1));   // for lanes 0 and 2
        const uint middle = simd_shuffle_xor(unit.x, ushort(3)); // for lane 1
        const uint word = (unit.x >> (part * 8u)) | ((part == 1u ? middle : next) << (24u - part * 8u));
        if (active && part < 3u) {
            ((device uint*)p)[(n >> 2) * 3u + part] = word;
        }
    } else if (!active) {
        return;
    } else if (BITS == 8 && wide) {
        ((device uint2*)p)[n] = unit;
    } else if (BITS == 4 && wide) {
        ((device uint*)p)[n] = unit.x;
    } else if (BITS == 2 && wide) {
        ((device ushort*)p)[n] = ushort(unit.x);
    } else {
#pragma clang loop unroll(full)
        for (uint b = 0; b < BITS; b++) {
            p[n * BITS + b] = uchar((b < 4 ? unit.x : unit.y) >> (8u * (b & 3u)));
        }
    }
}

// Code e of a unit, in place at bit code_bit of a word in which all of it is below bit 23.
template <uint BITS>
static inline uint code_bit(uint e) {
    return e % (23u / BITS) * BITS;
}

template <uint BITS>
static inline uint code_word(uint2 unit, uint e) {
    const uint at = e / (23u / BITS) * (23u / BITS) * BITS;
    return at >= 32u ? unit.y >> (at & 31u) : BITS * 8u <= 32u || at == 0 ? unit.x >> at : (unit.x >> at) | (unit.y << ((32u - at) & 31u));
}

template <uint BITS>
static inline uint code_at(uint2 unit, uint e) {
    return (code_word<BITS>(unit, e) >> code_bit<BITS>(e)) & ((1u << BITS) - 1u);
}

// The same as a float. Under the exponent of 2^23 the code is 2^23 + code·2^bit.
template <uint BITS>
static inline float code_float(uint2 unit, uint e, float offset) {
    const uint bit = code_bit<BITS>(e);
    const uint word = (code_word<BITS>(unit, e) & (((1u << BITS) - 1u) << bit)) | 0x4b000000u;
    return fma(as_type<float>(word), 1.0f / float(1u << bit), offset - float(1u << (23u - bit)));
}

// Packs eight codes: k[e] is 0x4b400000 + code, and the sum of what is shifted keeps the codes.
template <uint BITS>
static inline uint2 pack_eight(thread const uint* k) {
    const uint bias = 0x4b400000u;
    const uint half_unit = BITS == 8 ? 4u : BITS == 5 ? 6u : 8u; // codes of the first word
    uint sum = 0;
    uint all = 0;
#pragma clang loop unroll(full)
    for (uint e = 0; e < half_unit; e++) {
        sum += k[e] << (e * BITS);
        all += bias << (e * BITS);
    }
    sum -= all;
    if (BITS == 8) {
        const uint four = bias + (bias << 8) + (bias << 16) + (bias << 24);
        return uint2(sum, k[4] + (k[5] << 8) + (k[6] << 16) + (k[7] << 24) - four);
    }
    if (BITS == 5) {
        const uint high = (k[6] - bias) + ((k[7] - bias) << 5);
        return uint2(sum | (high << 30), high >> 2);
    }
    return uint2(sum, 0u);
}

// x / d, correctly rounded, from the correctly rounded reciprocal of d, if nothing overflows or underflows on the
// way (Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990).
static inline float divide_by(float x, float d, float reciprocal) {
    const float q = x * reciprocal;
    const float e = fma(-q, d, x);
    return fma(e, reciprocal, q);
}

// ---- levels (numerics §4) ----

// The number of boundaries below n; boundaries ascend behind the centroids.
template <uint BITS>
static inline uint level_index(const device float* table, float n) {
    const device float* boundaries = table + (1u << BITS);
    uint index = 0;
#pragma clang loop unroll(full)
    for (uint step = 1u << (BITS - 1u); step > 0; step >>= 1) {
        const float boundary = boundaries[index + step - 1u];
        index += n > boundary ? step : 0u;
    }
    return index;
}

// ---- the number of boundaries below n: level_index of up to 16 levels in a few instructions ----

// n falls into a cell, a monotonic function of n with one boundary in each, or none. A lane holds the cell of its
// number: the boundary, and 0x4b400000 + how many lie in the cells before. They stand behind the boundaries in the table: 32 of each.
struct Cell {
    float bound;
    uint before;
};

template <uint BITS>
static inline void level_cell(const device float* table, uint lane, thread Cell& c) {
    c.bound = BITS <= 4 ? table[(2u << BITS) - 1u + lane] : 0.0f;
    c.before = BITS <= 4 ? as_type<uint>(table[(2u << BITS) + 31u + lane]) : 0u;
}

// 0x4b400000 + the index. All lanes take part; n is not NaN.
template <uint BITS>
static inline uint level_number(const device float* table, thread const Cell& own, float n) {
    if (BITS > 4) {
        return 0x4b400000u + level_index<BITS>(table, n);
    }
    const float most = BITS == 2 ? 1.0f : BITS == 3 ? 1.5f : 2.75f; // about ± the outermost boundary
    const float cells = BITS == 2 ? 1.0f : BITS == 3 ? 2.0f : 5.25f; // per unit
    const float near = fmin(fmax(n, -most), most);
    const uint word = as_type<uint>(fma(near, cells, 12582928.0f)); // 16 + rint, under the exponent of 2^23
    const ushort cell = ushort(word & 31u);
    const float bound = simd_shuffle(own.bound, cell);
    const uint before = BITS == 4 ? simd_shuffle(own.before, cell) : word - (BITS == 2 ? 15u : 13u);
    return before + (n > bound ? 1u : 0u);
}

// Up to 32 centroids lie in the lanes of a SIMD-group, again and again where they are fewer.
template <uint BITS>
static inline float centroid_lane(const device float* table, uint lane) {
    return BITS <= 5 ? table[lane & ((1u << BITS) - 1u)] : 0.0f;
}

// The centroids of a unit's codes times scale. All lanes take part.
template <uint BITS>
static inline void unit_values(uint2 unit, const device float* table, float own, float scale, thread float* v) {
#pragma clang loop unroll(full)
    for (uint e = 0; e < 8; e++) {
        const uint word = code_word<BITS>(unit, e) >> code_bit<BITS>(e); // higher bits are other codes
        const float centroid = BITS <= 5 ? simd_shuffle(own, ushort(word & 31u)) : table[word & ((1u << BITS) - 1u)];
        v[e] = centroid * scale;
    }
}

// ---- rotation (numerics §3) ----

// The transform of rows of `units` units, a power of two, in a Units launch: x is one unit of a lane. The product
// with ±1 is exact, so that each fma is its one addition.
static inline void transform_unit(thread float* x, uint units, uint lane) {
#pragma clang loop unroll(full)
    for (uint h = 1; h < 8; h <<= 1) {
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            if ((e & h) == 0) {
                const float a = x[e];
                const float b = x[e + h];
                x[e] = a + b;
                x[e + h] = a - b;
            }
        }
    }
#pragma clang loop unroll(full)
    for (uint h = 1; h < 32; h <<= 1) {
        if (h < units) {
            const float sign = (lane & h) ? -1.0f : 1.0f;
#pragma clang loop unroll(full)
            for (uint e = 0; e < 8; e++) {
                const float partner = simd_shuffle_xor(x[e], ushort(h));
                x[e] = fma(x[e], sign, partner);
            }
        }
    }
}

// The stages of rows of 64 and 128 units between those of a lane.
static inline void transform_between(thread float* x, uint units) {
#pragma clang loop unroll(full)
    for (uint h = 1; h < UNITS; h <<= 1) {
        if (32u * h < units) {
#pragma clang loop unroll(full)
            for (uint i = 0; i < 8 * UNITS; i++) {
                if ((i & (8u * h)) == 0) {
                    const float a = x[i];
                    const float b = x[i + 8u * h];
                    x[i] = a + b;
                    x[i + 8u * h] = a - b;
                }
            }
        }
    }
}

// ±norm, for the eight columns of a unit.
static inline void unit_signs(const device uint* signs, uint j, float norm, thread float* s) {
    const uint word = signs[j >> 5] >> (j & 31u);
#pragma clang loop unroll(full)
    for (uint e = 0; e < 8; e++) {
        s[e] = negate_if(norm, (word >> e) & 1u);
    }
}

// log2(R) stages of the transform over runs of 2^k in threadgroup memory, from distance h on.
template <uint R>
static inline void transform_pass(threadgroup float* buf, uint d, uint h, uint thread_index, uint threads) {
    for (uint b = thread_index; b < d / R; b += threads) {
        const uint low = b & (h - 1u);
        const uint start = (b - low) * R + low;
        float x[R];
#pragma clang loop unroll(full)
        for (uint i = 0; i < R; i++) {
            x[i] = buf[start + i * h];
        }
#pragma clang loop unroll(full)
        for (uint s = 1; s < R; s <<= 1) {
#pragma clang loop unroll(full)
            for (uint i = 0; i < R; i++) {
                if ((i & s) == 0) {
                    const float p = x[i];
                    const float q = x[i + s];
                    x[i] = p + q;
                    x[i + s] = p - q;
                }
            }
        }
#pragma clang loop unroll(full)
        for (uint i = 0; i < R; i++) {
            buf[start + i * h] = x[i];
        }
    }
}

// The m×m ±1 matrix across runs, or its transpose: each output is summed in column order from +0.
template <uint M>
static inline void transform_cross(threadgroup float* buf, uint run, constant uint* rows, bool transposed, uint thread_index, uint threads) {
    for (uint i = thread_index; i < run; i += threads) {
        float x[M];
        for (uint c = 0; c < M; c++) {
            x[c] = buf[c * run + i];
        }
        for (uint j = 0; j < M; j++) {
            float sum = 0.0f;
            for (uint c = 0; c < M; c++) {
                const uint minus = transposed ? rows[c] >> j : rows[j] >> c;
                const float term = negate_if(x[c], minus & 1u);
                sum = sum + term;
            }
            buf[j * run + i] = sum;
        }
    }
}

// A whole row of d = m·2^k in threadgroup memory; every thread of the threadgroup
// calls it, `threads` of them on each row. Barriers: one before, one after each pass.
static inline void transform_row(threadgroup float* buf, uint d, uint m, bool transposed, uint thread_index, uint threads) {
    const uint run = d / m;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint h = 1;
    while (h < run) {
        const uint left = run / h;
        if (left >= 8) {
            transform_pass<8>(buf, d, h, thread_index, threads);
            h <<= 3;
        } else if (left == 4) {
            transform_pass<4>(buf, d, h, thread_index, threads);
            h <<= 2;
        } else {
            transform_pass<2>(buf, d, h, thread_index, threads);
            h <<= 1;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (m != 1) {
        if (m == 12) {
            transform_cross<12>(buf, run, hadamard12, transposed, thread_index, threads);
        } else if (m == 20) {
            transform_cross<20>(buf, run, hadamard20, transposed, thread_index, threads);
        } else {
            transform_cross<28>(buf, run, hadamard28, transposed, thread_index, threads);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// Sign words hold bit j set where the sign of element j is −1.
static inline uint sign_bit(const device uint* signs, uint j) {
    return (signs[j >> 5] >> (j & 31u)) & 1u;
}

// ---- trellis codes and windows (numerics §6) ----

constant uint code_1mad_reciprocal = 0x3bddb447u; // of 147.800537109375, rounded
constant uint code_1mad_rest = 0xaf7486beu;       // of the reciprocal, rounded

// The sum of the bytes of x, and base. A device that has an instruction for it may bring its own.
#if !defined(BYTE_SUM)
static inline uint byte_sum(uint x, uint base) {
    const uint pairs = (x & 0x00ff00ffu) + ((x >> 8) & 0x00ff00ffu);
    return (pairs & 0xffffu) + (pairs >> 16) + base;
}
#endif

// The sum is put into the mantissa of 2^23. The quotient y / 147.800537109375 is correctly rounded for every y in
// [−510, 510], as TestCode1MAD shows.
static inline float code_1mad(uint state) {
    const uint x = state * 34038481u + 76625530u;
    const float y = as_type<float>(byte_sum(x, 0x4b000000u)) - 8389118.0f;
    const float rest = y * as_type<float>(code_1mad_rest);
    return fma(y, as_type<float>(code_1mad_reciprocal), rest);
}

static inline float code_3inst(uint state) {
    const uint x = state * 89226354u + 64248484u;
    const uint halves = (x & 0x8fff8fffu) ^ 0x3b603b60u;
    const float hi = from_f16(ushort(halves >> 16));
    const float lo = from_f16(ushort(halves & 0xffffu));
    return hi + lo;
}

static inline float code_value(uint state, uint code, const device float* table) {
    if (code == CODE_1MAD) {
        return code_1mad(state);
    }
    if (code == CODE_3INST) {
        return code_3inst(state);
    }
    return table[state];
}

// 33 bits or more of the block's circular stream from bit `bit` on.
static inline ulong trellis_window(const device uint* codes, long in, long stride, uint words, uint bit) {
    const uint w = bit >> 5;
    const uint following = w + 1u == words ? 0u : w + 1u;
    const uint lo = codes[in + long(w) * stride];
    const uint hi = codes[in + long(following) * stride];
    return (ulong(lo) | (ulong(hi) << 32)) >> (bit & 31u);
}

// A factor of a product (numerics §7): a magnitude below 2^-50 becomes +0. By integer compare, as in canon.
static inline float canon_factor(float x) {
    const uint magnitude = as_type<uint>(x) & 0x7fffffffu;
    return magnitude < 0x26800000u ? 0.0f : x;
}

// ---- affine rows (numerics §8) ----

static inline float affine_weight(uint index, float scale, float bias, uint type) {
    const float product = float(index) * scale;
    const float rounded = stored(product, type);
    const float sum = rounded + bias;
    return stored(sum, type);
}
