// Lloyd–Max value encode (numerics §4) in one pass: canon, rotate, scale, index, pack.

constant float search_factors[9] = {1.0f, 0.9375f, 1.0625f, 0.875f, 1.125f, 0.8125f, 1.1875f, 0.75f, 1.25f};

// Below, two numbers (x, y) are two registers of a SIMD-group: a lane's elements of two groups
// of 32, or of the halves of one group of 64 (joined).

static inline float2 pair_tree(float2 q, bool joined) {
    if (joined) {
        const float sum = q.x + q.y;
        q = float2(sum, sum);
    }
    return float2(tree_sum(q.x), tree_sum(q.y));
}

static inline float square(float x) {
    return flush(x * x);
}

static inline float root_mean(float sum, float inverse_group) {
    const float mean = sum * inverse_group;
    return precise::sqrt(flush(mean));
}

static inline float normalise(float y, float scale) {
    const float se = scale + 1e-8f;
    return flush(y / se);
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

static inline float squared_error(float centroid, float scale, float y) {
    const float value = centroid * scale;
    return square(value - y);
}

struct EncodedPair {
    float2 scale;
    uint2 code;
};

template <uint BITS>
static inline void values_encode_pair(float2 y, const device float* table, constant ValuesEncodeArgs& a, thread EncodedPair& r) {
    const bool joined = a.group == 64;
    const float inverse_group = joined ? 0.015625f : 0.03125f;
    const float2 sum = pair_tree(float2(square(y.x), square(y.y)), joined);
    const float2 rms = float2(root_mean(sum.x, inverse_group), root_mean(sum.y, inverse_group));
    r.scale = rms;
    r.code.x = level_index<BITS>(table, normalise(y.x, rms.x));
    r.code.y = level_index<BITS>(table, normalise(y.y, rms.y));
    if (a.search == 0) {
        return;
    }

    bool found_x = false;
    bool found_y = false;
    float2 best = float2(0.0f, 0.0f);
    for (uint c = 0; c < 9; c++) {
        const float factor = search_factors[c];
        const float sx = stored(rms.x * factor, a.scale_type);
        const float sy = stored(rms.y * factor, a.scale_type);
        const uint ix = level_index<BITS>(table, normalise(y.x, sx));
        const uint iy = level_index<BITS>(table, normalise(y.y, sy));
        const float ex = squared_error(table[ix], sx, y.x);
        const float ey = squared_error(table[iy], sy, y.y);
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
    transform_row(buf, a.dim, a.factor, false, t, a.threads_per_row);
    for (uint first = (t / 32u) * 64u; first < a.dim; first += a.threads_per_row * 2u) {
        const bool two = first + 32u < a.dim;
        const float ya = buf[first + lane] * a.norm;
        const float yb = buf[first + (two ? 32u : 0u) + lane] * a.norm;
        values_encode_registers<BITS>(float2(ya, yb), two, first, codes, scales, status, table, a, row, nth, active, lane);
    }
}
