// Lloyd–Max value encode (numerics §4) in one pass: canon, rotate, scale, index, pack.
//
// Squares can be f32 subnormals only in groups whose sum of squares is below 2^-40
// (2^-70 for the scale itself; 2^-40 leaves room for the errors of a searched scale).
// Such a group is worked on 2^64 times larger, where 2^-149 is 2^-21 and one FMA
// against 4 rounds to that grid: the same bits on a device that flushes subnormals.

constant float search_factors[9] = {1.0f, 0.9375f, 1.0625f, 0.875f, 1.125f, 0.8125f, 1.1875f, 0.75f, 1.25f};

constant float two_64 = 18446744073709551616.0f;
constant float two_minus_64 = 5.421010862427522e-20f;
constant float two_minus_40 = 9.094947017729282e-13f;

// Two registers of a SIMD-group: two groups of 32, or the halves of one of 64 (joined).
struct Pair {
    float a, b;
};

static inline Pair pair_tree(Pair q, bool joined) {
    if (joined) {
        q.a = q.a + q.b;
        q.b = q.a;
    }
    q.a = tree_sum(q.a);
    q.b = tree_sum(q.b);
    return q;
}

// t·t where t is 2^64 times the number meant, rounded as the small product would be.
static inline float square_tiny(float t) {
    const float square = t * t;
    const float shifted = fma(t, t, 4.0f);
    const float rounded = shifted - 4.0f;
    return square < 4.0f ? rounded : square;
}

static inline float root(float sum, float inverse_group) {
    const float mean = sum * inverse_group;
    return precise::sqrt(mean);
}

static inline float root_tiny(float sum, float inverse_group) {
    float mean = sum * inverse_group;
    if (mean < 4.0f) {
        const float shifted = fma(sum, inverse_group, 4.0f);
        mean = shifted - 4.0f;
    }
    const float r = precise::sqrt(mean);
    return r * two_minus_64;
}

static inline float normalise(float y, float se) {
    const float n = y / se;
    return (as_type<uint>(n) & 0x7fffffffu) < 0x00800000u ? 0.0f : n;
}

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

static inline float squared_error(float centroid, float scale, float y, bool tiny) {
    if (tiny) {
        const float scale_64 = scale * two_64;
        const float y_64 = y * two_64;
        const float value_64 = centroid * scale_64;
        return square_tiny(value_64 - y_64);
    }
    const float value = centroid * scale;
    const float error = value - y;
    return error * error;
}

struct EncodedPair {
    Pair scale;
    uint code_a, code_b;
};

template <uint BITS>
static inline EncodedPair values_encode_pair(float ya, float yb, const device float* table, constant ValuesEncodeArgs& a) {
    const bool joined = a.group == 64;
    const float inverse_group = joined ? 0.015625f : 0.03125f;
    Pair q = {ya * ya, yb * yb};
    q = pair_tree(q, joined);
    const bool tiny_a = q.a < two_minus_40;
    const bool tiny_b = q.b < two_minus_40;
    Pair rms = {root(q.a, inverse_group), root(q.b, inverse_group)};
    if (tiny_a || tiny_b) {
        const float ta = ya * two_64;
        const float tb = yb * two_64;
        Pair t = {square_tiny(ta), square_tiny(tb)};
        t = pair_tree(t, joined);
        rms.a = tiny_a ? root_tiny(t.a, inverse_group) : rms.a;
        rms.b = tiny_b ? root_tiny(t.b, inverse_group) : rms.b;
    }

    EncodedPair r;
    if (a.search == 0) {
        r.scale = rms;
        const float sa = rms.a + 1e-8f;
        const float sb = rms.b + 1e-8f;
        r.code_a = level_index<BITS>(table, normalise(ya, sa));
        r.code_b = level_index<BITS>(table, normalise(yb, sb));
        return r;
    }

    bool found_a = false;
    bool found_b = false;
    Pair best = {0.0f, 0.0f};
    r.scale.a = stored(rms.a, a.scale_type);
    r.scale.b = stored(rms.b, a.scale_type);
    r.code_a = 0;
    r.code_b = 0;
    for (uint c = 0; c < 9; c++) {
        const float factor = search_factors[c];
        const float wanted_a = rms.a * factor;
        const float wanted_b = rms.b * factor;
        const float sa = stored(wanted_a, a.scale_type);
        const float sb = stored(wanted_b, a.scale_type);
        const float se_a = sa + 1e-8f;
        const float se_b = sb + 1e-8f;
        const uint ia = level_index<BITS>(table, normalise(ya, se_a));
        const uint ib = level_index<BITS>(table, normalise(yb, se_b));
        Pair e = {squared_error(table[ia], sa, ya, tiny_a), squared_error(table[ib], sb, yb, tiny_b)};
        e = pair_tree(e, joined);
        if (is_finite(sa) && (!found_a || e.a < best.a)) {
            found_a = true;
            best.a = e.a;
            r.scale.a = sa;
            r.code_a = ia;
        }
        if (is_finite(sb) && (!found_b || e.b < best.b)) {
            found_b = true;
            best.b = e.b;
            r.scale.b = sb;
            r.code_b = ib;
        }
    }
    return r;
}

static inline void values_store_codes(device uchar* codes, constant ValuesEncodeArgs& a, long out, uint bits, uint first, uint code, bool active, uint lane) {
    const uchar byte = pack_lanes(code, bits, lane);
    const uint u = lane & 7u;
    if (active && u < bits) {
        const uint unit = (first + lane) / 8u;
        codes[out + long(unit * bits + u) * a.codes.s3] = byte;
    }
}

// first is the row's element that lane 0 holds in register a; without a register b,
// yb repeats ya and goes nowhere.
template <uint BITS>
static inline void values_encode_registers(float ya, float yb, bool has_b, uint first, device uchar* codes, device uchar* scales, device atomic_uint* status, const device float* table, constant ValuesEncodeArgs& a, RowIndex row, uint local, bool active, uint lane) {
    const EncodedPair r = values_encode_pair<BITS>(ya, yb, table, a);
    const long out = row_offset(a.codes, row);
    values_store_codes(codes, a, out, BITS, first, r.code_a, active, lane);
    if (has_b) {
        values_store_codes(codes, a, out, BITS, first + 32u, r.code_b, active, lane);
    }
    const uint group = first / a.group;
    const uint count = has_b && a.group == 32 ? 2u : 1u;
    if (active && lane < count) {
        const float scale = lane == 0 ? r.scale.a : r.scale.b;
        const uint g = group + lane;
        store_float(scales, a.scale_type, row_offset(a.scales, row) + long(g) * a.scales.s3, scale);
        if (!is_finite(stored(scale, a.scale_type))) {
            report(status, STATUS_SCALE_OVERFLOW, local * (a.dim / a.group) + g);
        }
    }
}

static inline float values_load(const device uchar* x, device atomic_uint* status, const device uint* signs, constant ValuesEncodeArgs& a, long in, uint j, uint local, bool active) {
    const float v = load_float(x, a.x_type, in + long(j) * a.x.s3);
    if (active && !is_finite(v)) {
        report(status, STATUS_NON_FINITE, local * a.dim + j);
    }
    return negate_if(canon(v), sign_bit(signs, j));
}

// dim = 32·E, one row a SIMD-group, everything in registers.
template <uint BITS, uint E>
static inline void values_encode_lanes(const device uchar* x, device uchar* codes, device uchar* scales, device atomic_uint* status, const device float* table, const device uint* signs, constant ValuesEncodeArgs& a, uint local, uint lane) {
    const bool active = local < a.rows;
    const RowIndex row = split_row(a.row0 + (active ? local : 0u), a.n1, a.n2);
    const long in = row_offset(a.x, row);
    float y[E];
#pragma clang loop unroll(full)
    for (uint e = 0; e < E; e++) {
        y[e] = values_load(x, status, signs, a, in, e * 32u + lane, local, active);
    }
    transform_lanes<E>(y, lane);
#pragma clang loop unroll(full)
    for (uint e = 0; e < E; e++) {
        y[e] = y[e] * a.norm;
    }
#pragma clang loop unroll(full)
    for (uint e = 0; e < E; e += 2) {
        const float yb = y[(e + 1) % E];
        values_encode_registers<BITS>(y[e], yb, E > 1, e * 32u, codes, scales, status, table, a, row, local, active, lane);
    }
}

// Any dim that fits in threadgroup memory; a SIMD-group takes 64 elements at a time.
template <uint BITS>
static inline void values_encode_row(const device uchar* x, device uchar* codes, device uchar* scales, device atomic_uint* status, const device float* table, const device uint* signs, constant ValuesEncodeArgs& a, threadgroup float* memory, uint group, uint thread_index, uint threads, uint lane) {
    const uint in_group = thread_index / a.threads_per_row;
    const uint t = thread_index - in_group * a.threads_per_row;
    const uint local = group * (threads / a.threads_per_row) + in_group;
    const bool active = local < a.rows;
    const RowIndex row = split_row(a.row0 + (active ? local : 0u), a.n1, a.n2);
    threadgroup float* buf = memory + in_group * a.dim;
    const long in = row_offset(a.x, row);
    for (uint j = t; j < a.dim; j += a.threads_per_row) {
        buf[j] = values_load(x, status, signs, a, in, j, local, active);
    }
    transform_row(buf, a.dim, a.factor, t, a.threads_per_row);
    for (uint first = (t / 32u) * 64u; first < a.dim; first += a.threads_per_row * 2u) {
        const bool has_b = first + 32u < a.dim;
        const float ya = buf[first + lane] * a.norm;
        const float yb = buf[first + (has_b ? 32u : 0u) + lane] * a.norm;
        values_encode_registers<BITS>(ya, yb, has_b, first, codes, scales, status, table, a, row, local, active, lane);
    }
}
