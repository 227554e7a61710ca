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

// Below, two numbers (x, y) are two registers of a SIMD-group: a lane's elements of two groups
// of 32, or of the halves of one group of 64 (joined).

static inline float2 pair_tree(float2 q, bool joined) {
    if (joined) {
        const float sum = q.x + q.y;
        q = float2(sum, sum);
    }
    return float2(tree_sum(q.x), tree_sum(q.y));
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
    float2 scale;
    uint2 code;
};

template <uint BITS>
static inline void values_encode_pair(float2 y, const device float* table, constant ValuesEncodeArgs& a, thread EncodedPair& r) {
    const bool joined = a.group == 64;
    const float inverse_group = joined ? 0.015625f : 0.03125f;
    const float2 sum = pair_tree(float2(y.x * y.x, y.y * y.y), joined);
    const bool tiny_x = sum.x < two_minus_40;
    const bool tiny_y = sum.y < two_minus_40;
    float2 rms = float2(root(sum.x, inverse_group), root(sum.y, inverse_group));
    if (tiny_x || tiny_y) {
        const float tx = y.x * two_64;
        const float ty = y.y * two_64;
        const float2 t = pair_tree(float2(square_tiny(tx), square_tiny(ty)), joined);
        rms.x = tiny_x ? root_tiny(t.x, inverse_group) : rms.x;
        rms.y = tiny_y ? root_tiny(t.y, inverse_group) : rms.y;
    }

    if (a.search == 0) {
        const float sx = rms.x + 1e-8f;
        const float sy = rms.y + 1e-8f;
        r.scale = rms;
        r.code = uint2(level_index<BITS>(table, normalise(y.x, sx)), level_index<BITS>(table, normalise(y.y, sy)));
        return;
    }

    bool found_x = false;
    bool found_y = false;
    float2 best = float2(0.0f, 0.0f);
    r.scale = float2(stored(rms.x, a.scale_type), stored(rms.y, a.scale_type));
    r.code = uint2(0, 0);
    for (uint c = 0; c < 9; c++) {
        const float factor = search_factors[c];
        const float sx = stored(rms.x * factor, a.scale_type);
        const float sy = stored(rms.y * factor, a.scale_type);
        const float se_x = sx + 1e-8f;
        const float se_y = sy + 1e-8f;
        const uint ix = level_index<BITS>(table, normalise(y.x, se_x));
        const uint iy = level_index<BITS>(table, normalise(y.y, se_y));
        const float ex = squared_error(table[ix], sx, y.x, tiny_x);
        const float ey = squared_error(table[iy], sy, y.y, tiny_y);
        const float2 e = pair_tree(float2(ex, ey), joined);
        if (is_finite(sx) && (!found_x || e.x < best.x)) {
            found_x = true;
            best.x = e.x;
            r.scale.x = sx;
            r.code.x = ix;
        }
        if (is_finite(sy) && (!found_y || e.y < best.y)) {
            found_y = true;
            best.y = e.y;
            r.scale.y = sy;
            r.code.y = iy;
        }
    }
}

static inline void values_store_codes(device uchar* codes, constant ValuesEncodeArgs& a, long out, uint bits, uint first, uint code, bool active, uint lane) {
    const uchar byte = pack_lanes(code, bits, lane);
    const uint u = lane & 7u;
    if (active && u < bits) {
        const uint unit = (first + lane) / 8u;
        codes[out + long(unit * bits + u) * a.codes.s3] = byte;
    }
}

// first is the row's element that lane 0 holds in y.x; without a second register y.y repeats
// y.x and goes nowhere.
template <uint BITS>
static inline void values_encode_registers(float2 y, bool two, uint first, device uchar* codes, device uchar* scales, device atomic_uint* status, const device float* table, constant ValuesEncodeArgs& a, uint3 row, uint nth, bool active, uint lane) {
    EncodedPair r;
    values_encode_pair<BITS>(y, table, a, r);
    const long out = row_offset(a.codes, row);
    values_store_codes(codes, a, out, BITS, first, r.code.x, active, lane);
    if (two) {
        values_store_codes(codes, a, out, BITS, first + 32u, r.code.y, active, lane);
    }
    const uint group = first / a.group;
    const uint count = two && a.group == 32 ? 2u : 1u;
    if (active && lane < count) {
        const float scale = lane == 0 ? r.scale.x : r.scale.y;
        const uint g = group + lane;
        store_float(scales, a.scale_type, row_offset(a.scales, row) + long(g) * a.scales.s3, scale);
        if (!is_finite(stored(scale, a.scale_type))) {
            report(status, STATUS_SCALE_OVERFLOW, nth * (a.dim / a.group) + g);
        }
    }
}

static inline float values_load(const device uchar* x, device atomic_uint* status, const device uint* signs, constant ValuesEncodeArgs& a, long in, uint j, uint nth, bool active) {
    const float v = load_float(x, a.x_type, in + long(j) * a.x.s3);
    if (active && !is_finite(v)) {
        report(status, STATUS_NON_FINITE, nth * a.dim + j);
    }
    return negate_if(canon(v), sign_bit(signs, j));
}

// dim = 32·E, one row a SIMD-group, everything in registers.
template <uint BITS, uint E>
static inline void values_encode_lanes(const device uchar* x, device uchar* codes, device uchar* scales, device atomic_uint* status, const device float* table, const device uint* signs, constant ValuesEncodeArgs& a, uint nth, uint lane) {
    const bool active = nth < a.rows;
    const uint3 row = split_row(a.row0 + (active ? nth : 0u), a.n1, a.n2);
    const long in = row_offset(a.x, row);
    float y[E];
#pragma clang loop unroll(full)
    for (uint e = 0; e < E; e++) {
        y[e] = values_load(x, status, signs, a, in, e * 32u + lane, nth, active);
    }
    transform_lanes<E>(y, lane);
#pragma clang loop unroll(full)
    for (uint e = 0; e < E; e++) {
        y[e] = y[e] * a.norm;
    }
#pragma clang loop unroll(full)
    for (uint e = 0; e < E; e += 2) {
        values_encode_registers<BITS>(float2(y[e], y[(e + 1) % E]), E > 1, e * 32u, codes, scales, status, table, a, row, nth, active, lane);
    }
}

// Any dim that fits in threadgroup memory; a SIMD-group takes 64 elements at a time.
template <uint BITS>
static inline void values_encode_row(const device uchar* x, device uchar* codes, device uchar* scales, device atomic_uint* status, const device float* table, const device uint* signs, constant ValuesEncodeArgs& a, threadgroup float* memory, uint group, uint thread_index, uint threads, uint lane) {
    const uint in_group = thread_index / a.threads_per_row;
    const uint t = thread_index - in_group * a.threads_per_row;
    const uint nth = group * (threads / a.threads_per_row) + in_group;
    const bool active = nth < a.rows;
    const uint3 row = split_row(a.row0 + (active ? nth : 0u), a.n1, a.n2);
    threadgroup float* buf = memory + in_group * a.dim;
    const long in = row_offset(a.x, row);
    for (uint j = t; j < a.dim; j += a.threads_per_row) {
        buf[j] = values_load(x, status, signs, a, in, j, nth, active);
    }
    transform_row(buf, a.dim, a.factor, t, a.threads_per_row);
    for (uint first = (t / 32u) * 64u; first < a.dim; first += a.threads_per_row * 2u) {
        const bool two = first + 32u < a.dim;
        const float ya = buf[first + lane] * a.norm;
        const float yb = buf[first + (two ? 32u : 0u) + lane] * a.norm;
        values_encode_registers<BITS>(float2(ya, yb), two, first, codes, scales, status, table, a, row, nth, active, lane);
    }
}
