// Lloyd–Max value encode (numerics §4) in one pass: canon, rotate, scale, index, pack.

constant float search_factors[9] = {1.0f, 0.9375f, 1.0625f, 0.875f, 1.125f, 0.8125f, 1.1875f, 0.75f, 1.25f};

static inline float root_mean(float sum, float inverse_group) {
    const float mean = sum * inverse_group;
    return precise::sqrt(flush(mean));
}

static inline float normalise(float y, float scale) {
    const float se = scale + 1e-8f;
    return flush(y / se);
}

// What the elements of a group are divided by: scale + eps, and its reciprocal, or infinity where divide_by will not do.
// Below 2^30 no quotient is subnormal, and nothing overflows on the way to one.
static inline float2 value_divisor(float scale) {
    const float se = scale + 1e-8f;
    const float reciprocal = 1.0f / se;
    return float2(se, se < 1073741824.0f ? reciprocal : INFINITY);
}

// 0x4b400000 + indices. All lanes take part.
template <uint BITS>
static inline void value_numbers(thread const float* y, const device float* table, thread const Cell& own, float2 by, thread uint* k) {
#pragma clang loop unroll(full)
    for (uint e = 0; e < 8; e++) {
        k[e] = level_number<BITS>(table, own, divide_by(y[e], by.x, by.y));
    }
    if (!(by.y < INFINITY)) {
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            k[e] = 0x4b400000u + level_index<BITS>(table, flush(y[e] / by.x)); // a NaN has index 0
        }
    }
}

// Squares of a unit. Those of f16 inputs are no subnormals: sums of f16 are multiples of 2^-24.
static inline void unit_squares(thread const float* y, bool plain, thread float* s) {
#pragma clang loop unroll(full)
    for (uint e = 0; e < 8; e++) {
        s[e] = y[e] * y[e];
        s[e] = plain ? s[e] : flush(s[e]);
    }
}

// The tree of a group over its lanes, for UNITS units at once: a lane gets the sum of the group of its unit number
// rep, and adds no pair that another lane adds. In a group of 32 lanes two apart hold elements 16 apart, in one of
// 64 lanes four apart elements 32 apart.
static inline float units_tree(thread const float* y, bool plain, uint group_shift, uint lane) {
    const ushort far = ushort(1u << (group_shift - 1u));
    const ushort near = far >> 1;
    const bool second = (lane & far) != 0;
    const bool odd = (lane & near) != 0;
    float t[16];
#pragma clang loop unroll(full)
    for (uint i = 0; i < 2; i++) {
        float p[8];
        float q[8];
        unit_squares(y + 8 * i, plain, p);
        unit_squares(y + 8 * (i + 2u), plain, q);
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            const float other = simd_shuffle_xor(second ? p[e] : q[e], far);
            t[8 * i + e] = (second ? q[e] : p[e]) + other;
        }
    }
    float s[8];
#pragma clang loop unroll(full)
    for (uint e = 0; e < 8; e++) {
        const float other = simd_shuffle_xor(odd ? t[e] : t[8 + e], near);
        s[e] = (odd ? t[8 + e] : t[e]) + other;
    }
    if (group_shift == 3) {
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            s[e] = s[e] + simd_shuffle_xor(s[e], ushort(1));
        }
    }
#pragma clang loop unroll(full)
    for (uint h = 4; h > 0; h >>= 1) {
#pragma clang loop unroll(full)
        for (uint e = 0; e < h; e++) {
            s[e] = s[e] + s[e + h];
        }
    }
    return s[0];
}

// The same for one unit: its lanes share the eight registers out.
static inline float unit_tree(thread float* s, uint group_shift, uint lane) {
    if (group_shift == 3) {
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            s[e] = s[e] + simd_shuffle_xor(s[e], ushort(4));
        }
    }
    const bool second = (lane & 2u) != 0;
    const bool odd = (lane & 1u) != 0;
    float t[4];
#pragma clang loop unroll(full)
    for (uint i = 0; i < 4; i++) { // elements 2·i + (0 or 1)
        const float other = simd_shuffle_xor(second ? s[2 * i] : s[2 * i + 1], ushort(2));
        t[i] = (second ? s[2 * i + 1] : s[2 * i]) + other;
    }
    float u[2];
#pragma clang loop unroll(full)
    for (uint i = 0; i < 2; i++) { // elements 4·i + (0 or 2) + (0 or 1)
        const float other = simd_shuffle_xor(odd ? t[2 * i] : t[2 * i + 1], ushort(1));
        u[i] = (odd ? t[2 * i + 1] : t[2 * i]) + other;
    }
    float sum = u[0] + u[1];
    sum = sum + simd_shuffle_xor(sum, ushort(1));
    return sum + simd_shuffle_xor(sum, ushort(2));
}

// The searched scale and its indices of one unit of each lane. Candidate c's scale is found by lane c % 4 of four.
template <uint BITS>
static inline float value_search(thread const float* y, float rms, const device float* table, thread const Cell& cell, constant ValuesEncodeArgs& a, uint lane, thread uint* k) {
    // From rms 2^-29 on the square of an error is normal, or lost beside those of the group: centroids are 2^-8 at
    // least, so that a decoded value is 0 or 2^-38 at least, and what y differs from it is a multiple of 2^-62.
    const bool plain = rms >= as_type<float>(0x31000000u);
    const float own = BITS <= 5 ? table[lane & ((1u << BITS) - 1u)] : 0.0f;
    float scales[3];
    float reciprocals[3];
#pragma clang loop unroll(full)
    for (uint i = 0; i < 3; i++) {
        const uint c = min(4u * i + (lane & 3u), 8u);
        scales[i] = stored(rms * search_factors[c], a.scale_type);
        reciprocals[i] = value_divisor(scales[i]).y;
    }
    bool found = false;
    float best = 0.0f;
    float scale = rms;
#pragma clang loop unroll(full)
    for (uint e = 0; e < 8; e++) {
        k[e] = 0;
    }
    for (uint c = 0; c < 9; c++) {
        const ushort from = ushort((lane & 28u) | (c & 3u));
        const float tried = simd_shuffle(c < 4 ? scales[0] : c < 8 ? scales[1] : scales[2], from);
        const float reciprocal = simd_shuffle(c < 4 ? reciprocals[0] : c < 8 ? reciprocals[1] : reciprocals[2], from);
        uint i[8];
        value_numbers<BITS>(y, table, cell, float2(tried + 1e-8f, reciprocal), i);
        float s[8];
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            const float centroid = BITS <= 5 ? simd_shuffle(own, ushort(i[e] & 31u)) : table[i[e] & 255u];
            const float value = centroid * tried;
            const float error = value - y[e];
            s[e] = error * error;
            s[e] = plain ? s[e] : flush(s[e]);
        }
        const float sum = unit_tree(s, a.group_shift, lane);
        if (is_finite(tried) && (!found || sum < best)) {
            found = true;
            best = sum;
            scale = tried;
#pragma clang loop unroll(full)
            for (uint e = 0; e < 8; e++) {
                k[e] = i[e];
            }
        }
    }
    if (!found) { // no candidate is finite
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            k[e] = 0x4b400000u + level_index<BITS>(table, normalise(y[e], rms));
        }
    }
    return scale;
}

static inline void values_store_scale(device uchar* scales, device atomic_uint* status, constant ValuesEncodeArgs& a, thread const Unit& u, long row, float scale) {
    store_float(scales, a.scale_type, row + long(u.x >> a.group_shift), scale);
    if (!is_finite(stored(scale, a.scale_type))) {
        report(status, STATUS_SCALE_OVERFLOW, u.number >> a.group_shift);
    }
}

// dim is a power of two: up to 256, or 512 or 1024 where LONG.
template <uint BITS, bool SEARCH, bool LONG>
static inline void values_encode_units(const device uchar* x, device uchar* codes, device uchar* scales, device atomic_uint* status, const device float* table, const device uint* signs, constant ValuesEncodeArgs& a, uint2 group, uint simd, uint simds, uint lane) {
    const uint units = a.dim / 8u;
    Cell cell;
    level_cell<BITS>(table, lane, cell);
    float y[8 * UNITS];
#pragma clang loop unroll(full)
    for (uint r = 0; r < UNITS; r++) {
        Unit u;
        unit_at(a.span, group, simd, simds, lane, r, u);
        const uint bad = load_eight(x, a.x_type, unit_row(a.x, a.span, u) + long(u.x) * 8 * a.x.s3, a.x.s3, (a.wide & 1u) != 0, y + 8 * r);
        if (bad != 0) {
            report_eight(status, u, y + 8 * r);
        }
    }
#pragma clang loop unroll(full)
    for (uint r = 0; r < UNITS; r++) {
        if (a.x_type != TYPE_F16) { // the sign of a zero reaches no result
            canon_eight(a.x_type, y + 8 * r);
        }
        float s[8];
        unit_signs(signs, ((LONG ? 32u * r : 0u) + lane) * 8u & (a.dim - 1u), 1.0f, s);
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            y[8 * r + e] = y[8 * r + e] * s[e];
        }
        transform_unit(y + 8 * r, units, lane);
    }
    if (LONG) {
        transform_between(y, units);
    }
#pragma clang loop unroll(full)
    for (uint i = 0; i < 8 * UNITS; i++) {
        y[i] = y[i] * a.norm;
    }
    const bool joined = a.group_shift == 3;
    const float rms = root_mean(units_tree(y, a.x_type == TYPE_F16, a.group_shift, lane), joined ? 0.015625f : 0.03125f);
    const uint far = joined ? 4u : 2u; // as in units_tree
    const uint near = joined ? 2u : 1u;
    if (!SEARCH) {
        const float2 own = value_divisor(rms);
        Unit u;
        unit_at(a.span, group, simd, simds, lane, ((lane & far) != 0 ? 2u : 0u) | ((lane & near) != 0 ? 1u : 0u), u);
        if (u.active && (!joined || (lane & 1u) == 0)) {
            values_store_scale(scales, status, a, u, unit_row(a.scales, a.span, u), rms);
        }
#pragma clang loop unroll(full)
        for (uint r = 0; r < UNITS; r++) {
            const ushort from = ushort((lane & ~(far | near)) | ((r & 2u) != 0 ? far : 0u) | ((r & 1u) != 0 ? near : 0u));
            const float se = simd_shuffle(own.x, from);
            const float reciprocal = simd_shuffle(own.y, from);
            uint k[8];
            value_numbers<BITS>(y + 8 * r, table, cell, float2(se, reciprocal), k);
            Unit u;
            unit_at(a.span, group, simd, simds, lane, r, u);
            store_codes<BITS>(codes + unit_row(a.codes, a.span, u), u.x, (a.wide & 2u) != 0, pack_eight<BITS>(k), u.active);
        }
    } else {
#pragma clang loop unroll(full)
        for (uint r = 0; r < UNITS; r++) {
            const ushort from = ushort((lane & ~(far | near)) | ((r & 2u) != 0 ? far : 0u) | ((r & 1u) != 0 ? near : 0u));
            uint k[8];
            const float scale = value_search<BITS>(y + 8 * r, simd_shuffle(rms, from), table, cell, a, lane, k);
            Unit u;
            unit_at(a.span, group, simd, simds, lane, r, u);
            store_codes<BITS>(codes + unit_row(a.codes, a.span, u), u.x, (a.wide & 2u) != 0, pack_eight<BITS>(k), u.active);
            if (u.active && (lane & ((1u << a.group_shift) - 1u)) == 0) {
                values_store_scale(scales, status, a, u, unit_row(a.scales, a.span, u), scale);
            }
        }
    }
}

// Any dim that fits in threadgroup memory, threads_per_row threads per row.
template <uint BITS, bool SEARCH>
static inline void values_encode_row(const device uchar* x, device uchar* codes, device uchar* scales, device atomic_uint* status, const device float* table, const device uint* signs, constant ValuesEncodeArgs& a, threadgroup float* memory, uint group, uint thread_index, uint threads, uint lane) {
    const uint in_group = thread_index / a.threads_per_row;
    const uint t = thread_index - in_group * a.threads_per_row;
    const uint units = a.dim / 8u;
    Unit u;
    u.number = group * (threads / a.threads_per_row) + in_group;
    const bool active = u.number < a.span.rows;
    u.row = split_row(a.span.row0 + (active ? u.number : 0u), a.span.n1, a.span.n2);
    const uint first = u.number * units;
    threadgroup float* buf = memory + in_group * a.dim;
    const long in = row_offset(a.x, u.row);
    for (uint n = t; n < units; n += a.threads_per_row) {
        float v[8];
        const uint bad = load_eight(x, a.x_type, in + long(n) * 8 * a.x.s3, a.x.s3, (a.wide & 1u) != 0, v);
        u.number = first + n;
        u.active = active;
        if (bad != 0) {
            report_eight(status, u, v);
        }
        canon_eight(a.x_type, v);
        float s[8];
        unit_signs(signs, n * 8u, 1.0f, s);
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            buf[n * 8u + e] = v[e] * s[e];
        }
    }
    transform_row(buf, a.dim, a.factor, false, t, a.threads_per_row);
    Cell cell;
    level_cell<BITS>(table, lane, cell);
    const float inverse_group = a.group_shift == 3 ? 0.015625f : 0.03125f;
    for (uint begin = 0; begin < units; begin += a.threads_per_row) {
        u.x = min(begin + t, units - 1u);
        u.number = first + u.x;
        u.active = active && begin + t < units;
        float y[8];
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            y[e] = buf[u.x * 8u + e] * a.norm;
        }
        float s[8];
        unit_squares(y, a.x_type == TYPE_F16, s);
        float scale = root_mean(unit_tree(s, a.group_shift, lane), inverse_group);
        uint k[8];
        if (SEARCH) {
            scale = value_search<BITS>(y, scale, table, cell, a, lane, k);
        } else {
            value_numbers<BITS>(y, table, cell, value_divisor(scale), k);
        }
        store_codes<BITS>(codes + row_offset(a.codes, u.row), u.x, (a.wide & 2u) != 0, pack_eight<BITS>(k), u.active);
        if (u.active && (lane & ((1u << a.group_shift) - 1u)) == 0) {
            values_store_scale(scales, status, a, u, row_offset(a.scales, u.row), scale);
        }
    }
}
