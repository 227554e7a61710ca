// Row codes (numerics §10). Rows whose length is a power of two from 32 to 1024 stay in the registers of a SIMD-group;
// other rows are rotated in threadgroup memory. Rows of levels of the first kind are packed at once. The others go
// through f32 scratch, dim elements per row of the dispatch, with a SIMD-group per row behind it, of which lane l
// holds elements l, l + 32 and so on. The search of the trellis code is trellis_encode's.

constant int row_steps[9] = {0, -1, 1, -2, 2, -3, 3, -4, 4};
constant uint row_max_scale = 247;

// s(c).
static inline float row_scale(uint code) {
    return from_f16(ushort(code << 7));
}

// Step number `step` around c0.
static inline uint row_candidate(uint c0, uint step) {
    const int code = int(c0) + row_steps[step];
    return uint(min(max(code, 1), int(row_max_scale)));
}

// ---- sums of rows in units ----

// Squares are summed by 32 lanes as in numerics §4: element e of unit n belongs to sum 8·(n % 4) + e. K lanes, four
// apart, hold the terms of eight sums of a row, or of a part of it that is K·4 units long. Registers and lanes change places:
// afterwards s[e] is of unit e % K of these, and of sum 8·(lane % 4) + (e with the lane's place among the K for e % K).
template <uint K>
static inline void row_exchange(thread float* s, uint lane) {
#pragma clang loop unroll(full)
    for (uint h = 1; h < K; h <<= 1) {
        const bool upper = (lane & (4u * h)) != 0;
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            if ((e & h) == 0) {
                const float other = simd_shuffle_xor(upper ? s[e] : s[e + h], ushort(4u * h));
                s[e] = upper ? other : s[e];
                s[e + h] = upper ? s[e + h] : other;
            }
        }
    }
}

// The tree over the sums, of which s[e] is one where e is a multiple of K: the lane's place stands for the lower bits of e.
template <uint K>
static inline float row_tree(thread float* s, uint lane) {
#pragma clang loop unroll(full)
    for (uint e = 0; e < 8; e += K) {
        s[e] = s[e] + simd_shuffle_xor(s[e], ushort(2));
        s[e] = s[e] + simd_shuffle_xor(s[e], ushort(1));
    }
#pragma clang loop unroll(full)
    for (uint h = 4; h >= K; h >>= 1) {
#pragma clang loop unroll(full)
        for (uint e = 0; e < h; e++) {
            s[e] = e % K == 0 ? s[e] + s[e + h] : s[e];
        }
    }
#pragma clang loop unroll(full)
    for (uint h = K / 2; h > 0; h >>= 1) {
        s[0] = s[0] + simd_shuffle_xor(s[0], ushort(4u * h));
    }
    return s[0];
}

template <uint K>
static inline float row_total(thread float* s, uint lane) {
    row_exchange<K>(s, lane);
#pragma clang loop unroll(full)
    for (uint e = 0; e < 8; e++) {
        const uint first = e / K * K;
        s[first] = e == first ? s[e] : s[first] + s[e];
    }
    return row_tree<K>(s, lane);
}

// The sum of a row of up to 32 units, from the terms of the lane's unit.
static inline float row_sum(thread float* s, uint units, uint lane) {
    if (units == 32) {
        return row_total<8>(s, lane);
    }
    if (units == 16) {
        return row_total<4>(s, lane);
    }
    return units == 8 ? row_total<2>(s, lane) : row_total<1>(s, lane);
}

// Of a longer row: what 32 units add to one of the sums.
static inline float row_add(float sum, thread float* s, uint lane) {
    row_exchange<8>(s, lane);
#pragma clang loop unroll(full)
    for (uint k = 0; k < 8; k++) {
        sum = sum + s[k];
    }
    return sum;
}

// The row of a unit in its span, which may have rows that follow each other as one.
static inline uint row_of(constant RowCodeArgs& a, uint unit) {
    return a.factor == 1 ? unit >> a.unit_shift : unit / (a.dim / 8u);
}

// The unit of a mean (2) or gain (4): of one row where consecutive rows of a span share it.
static inline uint centre_unit(constant RowCodeArgs& a, thread const Unit& u, uint part) {
    return (a.centred & part) != 0 ? u.x & (a.dim / 8u - 1u) : u.x;
}

// ---- encoding ----

// x to y of units: dim is a power of two, above 256 where LONG.
template <bool LONG>
static inline void row_rotated(const device uchar* x, const device uchar* mean, const device uchar* gain, const device uint* signs, device atomic_uint* status, constant RowCodeArgs& a, uint2 group, uint simd, uint simds, uint lane, thread float* y) {
    const uint units = a.dim / 8u;
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
        canon_eight(a.x_type, y + 8 * r);
        const uint j = ((LONG ? 32u * r : 0u) + lane) * 8u & (a.dim - 1u);
        if (a.centred != 0) {
            Unit u;
            unit_at(a.span, group, simd, simds, lane, r, u);
            float m[8];
            float g[8];
            load_eight(mean, TYPE_F16, unit_row(a.mean, a.span, u) + long(centre_unit(a, u, 2u)) * 8 * a.mean.s3, a.mean.s3, (a.wide & 16u) != 0, m);
            load_eight(gain, TYPE_F16, unit_row(a.gain, a.span, u) + long(centre_unit(a, u, 4u)) * 8 * a.gain.s3, a.gain.s3, (a.wide & 32u) != 0, g);
#pragma clang loop unroll(full)
            for (uint e = 0; e < 8; e++) {
                const float v = y[8 * r + e] - m[e];
                y[8 * r + e] = v / g[e];
            }
            canon_eight(TYPE_F32, y + 8 * r);
        }
        float s[8];
        unit_signs(signs, j, 1.0f, s);
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
}

// x to y in scratch. Units launch.
template <bool LONG>
static inline void rowcode_rotate_unit_rows(const device uchar* x, const device uchar* mean, const device uchar* gain, const device uint* signs, device uchar* y, device atomic_uint* status, constant RowCodeArgs& a, uint2 group, uint simd, uint simds, uint lane) {
    float v[8 * UNITS];
    row_rotated<LONG>(x, mean, gain, signs, status, a, group, simd, simds, lane, v);
#pragma clang loop unroll(full)
    for (uint r = 0; r < UNITS; r++) {
        Unit u;
        unit_at(a.span, group, simd, simds, lane, r, u);
        if (u.active) {
            store_eight(y, TYPE_F32, long(u.number) * 8, 1, true, false, v + 8 * r, status);
        }
    }
}

// x to y in scratch. Rows launch.
static inline void rowcode_rotate_row(const device uchar* x, const device uchar* mean, const device uchar* gain, const device uint* signs, device uchar* y, device atomic_uint* status, constant RowCodeArgs& a, threadgroup float* memory, uint group, uint thread_index, uint threads, uint lane) {
    const uint in_group = thread_index / a.threads_per_row;
    const uint t = thread_index - in_group * a.threads_per_row;
    const uint nth = group * (threads / a.threads_per_row) + in_group;
    const bool active = nth < a.span.rows;
    const uint3 row = split_row(a.span.row0 + (active ? nth : 0u), a.span.n1, a.span.n2);
    threadgroup float* buf = memory + in_group * a.dim;
    const long in = row_offset(a.x, row);
    const long mean_in = row_offset(a.mean, row);
    const long gain_in = row_offset(a.gain, row);
    for (uint j = t; j < a.dim; j += a.threads_per_row) {
        float v = load_float(x, a.x_type, in + long(j) * a.x.s3);
        if (active && !is_finite(v)) {
            report(status, STATUS_NON_FINITE, nth * a.dim + j);
        }
        v = canon(v);
        if (a.centred != 0) {
            v = v - load_float(mean, TYPE_F16, mean_in + long(j) * a.mean.s3);
            v = v / load_float(gain, TYPE_F16, gain_in + long(j) * a.gain.s3);
            v = canon(v);
        }
        buf[j] = negate_if(v, sign_bit(signs, j));
    }
    transform_row(buf, a.dim, a.factor, false, t, a.threads_per_row);
    if (active) {
        for (uint j = t; j < a.dim; j += a.threads_per_row) {
            store_float(y, TYPE_F32, long(nth) * a.dim + j, buf[j] * a.norm);
        }
    }
}

// c0 of a row from the sum of its squares, 0 where it overflows, which is reported.
static inline uint row_scale_of(float sum, device atomic_uint* status, constant RowCodeArgs& a, uint nth, bool reports) {
    const float mean = sum / float(a.dim);
    const uint h = uint(to_f16(precise::sqrt(flush(mean))));
    if ((h & 0x7c00u) == 0x7c00u) {
        if (reports) {
            report(status, STATUS_SCALE_OVERFLOW, nth);
        }
        return 0;
    }
    return min((h + 64u) >> 7, row_max_scale);
}

static inline uint row_first_scale(const device float* y, device atomic_uint* status, constant RowCodeArgs& a, uint nth, bool active, uint lane) {
    float sum = 0.0f;
    for (uint j = lane; j < a.dim; j += 32u) {
        const float v = y[j];
        const float square = v * v;
        sum = sum + flush(square);
    }
    return row_scale_of(tree_sum(sum), status, a, nth, active && lane == 0);
}

// The number of boundaries below n; boundaries ascend behind the centroids.
static inline uint row_level(const device float* table, uint bits, float n) {
    const device float* boundaries = table + (1u << bits);
    uint index = 0;
    for (uint step = 1u << (bits - 1u); step > 0; step >>= 1) {
        const float boundary = boundaries[index + step - 1u];
        index += n > boundary ? step : 0u;
    }
    return index;
}

static inline uint row_level_of(const device float* table, uint bits, float y, float scale) {
    const float n = y / scale;
    return row_level(table, bits, flush(n));
}

static inline float row_error(float value, float scale, float y) {
    const float decoded = value * scale;
    const float e = decoded - y;
    const float square = e * e;
    return flush(square);
}

static inline void row_squares(thread const float* y, thread float* s) {
#pragma clang loop unroll(full)
    for (uint e = 0; e < 8; e++) {
        s[e] = flush(y[e] * y[e]);
    }
}

// Squares of the errors of a unit. They are no subnormals: a decoded value is 2^-25 at least, and what y differs
// from it is a multiple of 2^-49.
template <uint BITS>
static inline void row_errors(thread const float* y, uint code, const device float* table, thread const Cell& cell, float own, thread float* s) {
    const float scale = row_scale(code);
    const float reciprocal = 1.0f / scale;
#pragma clang loop unroll(full)
    for (uint e = 0; e < 8; e++) {
        const uint k = level_number<BITS>(table, cell, divide_by(y[e], scale, reciprocal));
        const float value = simd_shuffle(own, ushort(k & 31u)) * scale;
        const float error = value - y[e];
        s[e] = error * error;
    }
}

// x to levels: the first scale of least error. dim as in row_rotated. A quotient y / s(c) is no subnormal: y is 0 or
// 2^-93 at least, as rotated numbers are multiples of 2^-87, and s(c) is 2^16 at most.
template <uint BITS, bool LONG>
static inline void rowcode_encode_units(const device uchar* x, device uchar* codes, device uchar* scales, const device uchar* mean, const device uchar* gain, const device uint* signs, const device float* table, device atomic_uint* status, constant RowCodeArgs& a, uint2 group, uint simd, uint simds, uint lane) {
    const uint units = a.dim / 8u;
    Cell cell;
    level_cell<BITS>(table, lane, cell);
    const float own = centroid_lane<BITS>(table, lane);
    float y[8 * UNITS];
    row_rotated<LONG>(x, mean, gain, signs, status, a, group, simd, simds, lane, y);
    uint best[UNITS];
    if (LONG) { // two rows in a lane, or the halves of one
        const bool one = units == 128;
        uint c0[2];
        float least[2];
        for (uint step = 0; step < 10; step++) { // the squares of y, and then of errors
            uint code[2];
            float sum[2];
#pragma clang loop unroll(full)
            for (uint i = 0; i < 2; i++) {
                code[i] = step == 0 ? 0u : row_candidate(c0[i], step - 1u);
                sum[i] = i == 1 && one ? sum[0] : 0.0f;
#pragma clang loop unroll(full)
                for (uint r = 2 * i; r < 2 * i + 2; r++) {
                    float s[8];
                    if (step == 0) {
                        row_squares(y + 8 * r, s);
                    } else {
                        row_errors<BITS>(y + 8 * r, code[i], table, cell, own, s);
                    }
                    sum[i] = row_add(sum[i], s, lane);
                }
            }
            sum[1] = row_tree<8>(sum + 1, lane);
            sum[0] = one ? sum[1] : row_tree<8>(sum, lane);
#pragma clang loop unroll(full)
            for (uint i = 0; i < 2; i++) {
                if (step == 0) {
                    Unit u;
                    unit_at(a.span, group, simd, simds, lane, 2 * i, u);
                    c0[i] = row_scale_of(sum[i], status, a, u.number >> a.unit_shift, u.active && lane == 0);
                } else if (step == 1 || sum[i] < least[i]) {
                    best[2 * i] = code[i];
                    least[i] = sum[i];
                }
            }
        }
#pragma clang loop unroll(full)
        for (uint i = 0; i < 2; i++) {
            best[2 * i] = c0[i] == 0 ? 0u : best[2 * i];
            best[2 * i + 1] = best[2 * i];
        }
    } else {
#pragma clang loop unroll(full)
        for (uint r = 0; r < UNITS; r++) {
            float s[8];
            row_squares(y + 8 * r, s);
            Unit u;
            unit_at(a.span, group, simd, simds, lane, r, u);
            const uint c0 = row_scale_of(row_sum(s, units, lane), status, a, u.number >> a.unit_shift, u.active && (lane & (units - 1u)) == 0);
            float least = 0.0f;
            best[r] = 0;
            for (uint step = 0; step < 9; step++) {
                const uint code = row_candidate(c0, step);
                row_errors<BITS>(y + 8 * r, code, table, cell, own, s);
                const float sum = row_sum(s, units, lane);
                if (c0 != 0 && (step == 0 || sum < least)) {
                    best[r] = code;
                    least = sum;
                }
            }
        }
    }
#pragma clang loop unroll(full)
    for (uint r = 0; r < UNITS; r++) {
        const float scale = row_scale(max(best[r], 1u));
        const float reciprocal = 1.0f / scale;
        uint k[8];
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            k[e] = level_number<BITS>(table, cell, divide_by(y[8 * r + e], scale, reciprocal));
            k[e] = best[r] == 0 ? 0x4b400000u : k[e];
        }
        Unit u;
        unit_at(a.span, group, simd, simds, lane, r, u);
        store_codes<BITS>(codes + unit_row(a.codes, a.span, u), u.x, (a.wide & 4u) != 0, pack_eight<BITS>(k), u.active);
        if (u.active && (u.x & (units - 1u)) == 0) {
            scales[unit_row(a.scales, a.span, u) + long(u.x >> a.unit_shift)] = uchar(best[r]);
        }
    }
}

// y to levels: the first scale of least error. Lanes launch.
static inline void rowcode_levels_row(const device float* y, device uchar* codes, device uchar* scales, device atomic_uint* status, const device float* table, constant RowCodeArgs& a, uint nth, uint lane) {
    const bool active = nth < a.span.rows;
    const uint in_dispatch = active ? nth : 0u;
    const uint3 row = split_row(a.span.row0 + in_dispatch, a.span.n1, a.span.n2);
    y += ulong(in_dispatch) * a.dim;
    const uint c0 = row_first_scale(y, status, a, nth, active, lane);
    uint best = 0;
    float least = 0.0f;
    if (c0 != 0) {
        for (uint step = 0; step < 9; step++) {
            const uint code = row_candidate(c0, step);
            const float scale = row_scale(code);
            float sum = 0.0f;
            for (uint j = lane; j < a.dim; j += 32u) {
                const float v = y[j];
                sum = sum + row_error(table[row_level_of(table, a.bits, v, scale)], scale, v);
            }
            sum = tree_sum(sum);
            if (best == 0 || sum < least) {
                best = code;
                least = sum;
            }
        }
    }
    const float scale = row_scale(best);
    const long out = row_offset(a.codes, row);
    for (uint first = 0; first < a.dim; first += 32u) {
        const uint code = best == 0 ? 0u : row_level_of(table, a.bits, y[first + lane], scale);
        const uchar byte = pack_lanes(code, a.bits, lane);
        const uint u = lane & 7u;
        if (active && u < a.bits) {
            codes[out + long((first + lane) / 8u * a.bits + u) * a.codes.s3] = byte;
        }
    }
    if (active && lane == 0) {
        scales[row_offset(a.scales, row)] = uchar(best);
    }
}

// y to c0 and the samples of the search. Lanes launch.
static inline void rowcode_samples_row(const device float* y, device float* samples, device uint* start, device atomic_uint* status, constant RowCodeArgs& a, uint nth, uint lane) {
    const bool active = nth < a.span.rows;
    const uint in_dispatch = active ? nth : 0u;
    y += ulong(in_dispatch) * a.dim;
    const uint c0 = row_first_scale(y, status, a, nth, active, lane);
    const float scale = row_scale(c0 == 0 ? 1u : c0);
    if (active) {
        for (uint j = lane; j < a.dim; j += 32u) {
            const float sample = y[j] / scale;
            samples[ulong(in_dispatch) * a.dim + j] = c0 == 0 ? 0.0f : sample;
        }
        if (lane == 0) {
            start[in_dispatch] = c0;
        }
    }
}

// The scale of a row whose states are found: the best of three. Lanes launch; codes count words.
static inline void rowcode_refine_row(const device float* y, const device ushort* states, const device uint* start, const device float* table, device uint* codes, device uchar* scales, constant RowCodeArgs& a, uint nth, uint lane) {
    const bool active = nth < a.span.rows;
    const uint in_dispatch = active ? nth : 0u;
    const uint3 row = split_row(a.span.row0 + in_dispatch, a.span.n1, a.span.n2);
    y += ulong(in_dispatch) * a.dim;
    states += ulong(in_dispatch) * a.dim;
    const uint c0 = start[in_dispatch];
    uint best = 0;
    float least = 0.0f;
    if (c0 != 0) {
        for (uint step = 0; step < 3; step++) {
            const uint code = row_candidate(c0, step);
            const float scale = row_scale(code);
            float sum = 0.0f;
            for (uint j = lane; j < a.dim; j += 32u) {
                sum = sum + row_error(table[states[j]], scale, y[j]);
            }
            sum = tree_sum(sum);
            if (best == 0 || sum < least) {
                best = code;
                least = sum;
            }
        }
    }
    if (active && best == 0) {
        const long out = row_offset(a.codes, row);
        for (uint w = lane; w < a.dim * a.bits / 32u; w += 32u) {
            codes[out + long(w) * a.codes.s3] = 0;
        }
    }
    if (active && lane == 0) {
        scales[row_offset(a.scales, row)] = uchar(best);
    }
}

// ---- decoding ----

// y of unit n of a row: of the levels code bits b·j on are the index of element j, of the trellis code the eight bits
// from (dim − 1 − j)·b on, which wrap, its state. codes is where the row begins. All lanes take part.
template <uint BITS, bool TRELLIS>
static inline void row_unit(const device uchar* codes, uint n, uint units, bool wide, uint scale_code, const device float* table, float own, thread float* y) {
    const float scale = row_scale(scale_code);
    if (TRELLIS) {
        const uint m = units - 1u - n;
        const uint2 unit = load_codes<BITS>(codes, m, wide);
        const ulong next = codes[n == 0 ? 0u : (m + 1u) * BITS];
        const ulong stream = ulong(unit.x) | (next << (8u * BITS));
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            y[e] = table[uint(stream >> ((7u - e) * BITS)) & 255u] * scale;
        }
    } else {
        unit_values<BITS>(load_codes<BITS>(codes, n, wide), table, own, scale, y);
    }
#pragma clang loop unroll(full)
    for (uint e = 0; e < 8; e++) {
        y[e] = scale_code == 0 ? 0.0f : y[e]; // and not −0
    }
}

template <uint BITS, bool TRELLIS>
static inline void row_unit_at(const device uchar* codes, const device uchar* scales, constant RowCodeArgs& a, thread const Unit& u, const device float* table, float own, thread float* y) {
    const uint units = a.dim / 8u;
    const uint row = row_of(a, u.x);
    const uint scale = scales[unit_row(a.scales, a.span, u) + long(row)];
    const device uchar* from = codes + unit_row(a.codes, a.span, u) + long(row) * long(units * BITS);
    row_unit<BITS, TRELLIS>(from, u.x - row * units, units, (a.wide & 4u) != 0, scale, table, own, y);
}

// Codes to rotated rows. Units launch.
template <uint BITS, bool TRELLIS>
static inline void rowcode_decode_units(const device uchar* codes, const device uchar* scales, device uchar* out, const device float* table, device atomic_uint* limited, constant RowCodeArgs& a, uint2 group, uint simd, uint simds, uint lane) {
    const float own = TRELLIS ? 0.0f : centroid_lane<BITS>(table, lane);
#pragma clang loop unroll(full)
    for (uint r = 0; r < UNITS; r++) {
        Unit u;
        unit_at(a.span, group, simd, simds, lane, r, u);
        float v[8];
        row_unit_at<BITS, TRELLIS>(codes, scales, a, u, table, own, v);
        if (u.active) {
            store_eight(out, a.y_type, unit_row(a.y, a.span, u) + long(u.x) * 8 * a.y.s3, a.y.s3, (a.wide & 2u) != 0, limits(a.policy, a.y_type), v, limited);
        }
    }
}

// The end of the inverse of a unit: norm, signs, centre, output. mass weights the means.
static inline void row_finish_unit(const device uchar* mean, const device uchar* gain, const device uint* signs, device uchar* out, device atomic_uint* limited, constant RowCodeArgs& a, thread const Unit& u, uint j, float mass, thread float* v) {
    float s[8];
    unit_signs(signs, j, a.norm, s);
#pragma clang loop unroll(full)
    for (uint e = 0; e < 8; e++) {
        v[e] = v[e] * s[e];
    }
    if (a.centred != 0) {
        float m[8];
        float g[8];
        load_eight(mean, TYPE_F16, unit_row(a.mean, a.span, u) + long(centre_unit(a, u, 2u)) * 8 * a.mean.s3, a.mean.s3, (a.wide & 16u) != 0, m);
        load_eight(gain, TYPE_F16, unit_row(a.gain, a.span, u) + long(centre_unit(a, u, 4u)) * 8 * a.gain.s3, a.gain.s3, (a.wide & 32u) != 0, g);
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            const float scaled = v[e] * g[e];
            const float shift = m[e] * mass;
            v[e] = scaled + shift;
        }
    }
    store_eight(out, a.y_type, unit_row(a.y, a.span, u) + long(u.x) * 8 * a.y.s3, a.y.s3, (a.wide & 2u) != 0, limits(a.policy, a.y_type), v, limited);
}

// Codes to rows. dim as in row_rotated.
template <uint BITS, bool TRELLIS, bool LONG>
static inline void rowcode_inverse_units(const device uchar* codes, const device uchar* scales, const device uchar* mean, const device uchar* gain, device uchar* out, const device float* table, const device uint* signs, device atomic_uint* limited, constant RowCodeArgs& a, uint2 group, uint simd, uint simds, uint lane) {
    const float own = TRELLIS ? 0.0f : centroid_lane<BITS>(table, lane);
    const uint units = a.dim / 8u;
    float y[8 * UNITS];
#pragma clang loop unroll(full)
    for (uint r = 0; r < UNITS; r++) {
        Unit u;
        unit_at(a.span, group, simd, simds, lane, r, u);
        row_unit_at<BITS, TRELLIS>(codes, scales, a, u, table, own, y + 8 * r);
    }
    if (LONG) {
#pragma clang loop unroll(full)
        for (uint r = 0; r < UNITS; r++) {
            transform_unit(y + 8 * r, units, lane);
        }
        transform_between(y, units);
    }
#pragma clang loop unroll(full)
    for (uint r = 0; r < UNITS; r++) {
        if (!LONG) {
            transform_unit(y + 8 * r, units, lane);
        }
        Unit u;
        unit_at(a.span, group, simd, simds, lane, r, u);
        if (u.active) {
            const uint j = ((LONG ? 32u * r : 0u) + lane) * 8u & (a.dim - 1u);
            row_finish_unit(mean, gain, signs, out, limited, a, u, j, 1.0f, y + 8 * r);
        }
    }
}

// Rows that are not packed. dim as in row_rotated.
template <bool LONG>
static inline void rowcode_unrotate_unit_rows(const device uchar* x, const device uchar* mean, const device uchar* gain, const device uchar* mass, device uchar* out, const device uint* signs, device atomic_uint* limited, constant RowCodeArgs& a, uint2 group, uint simd, uint simds, uint lane) {
    const uint units = a.dim / 8u;
    float v[8 * UNITS];
#pragma clang loop unroll(full)
    for (uint r = 0; r < UNITS; r++) {
        Unit u;
        unit_at(a.span, group, simd, simds, lane, r, u);
        load_eight(x, a.x_type, unit_row(a.x, a.span, u) + long(u.x) * 8 * a.x.s3, a.x.s3, (a.wide & 1u) != 0, v + 8 * r);
    }
    if (LONG) {
#pragma clang loop unroll(full)
        for (uint r = 0; r < UNITS; r++) {
            canon_eight(a.x_type, v + 8 * r);
            transform_unit(v + 8 * r, units, lane);
        }
        transform_between(v, units);
    }
#pragma clang loop unroll(full)
    for (uint r = 0; r < UNITS; r++) {
        if (!LONG) {
            canon_eight(a.x_type, v + 8 * r);
            transform_unit(v + 8 * r, units, lane);
        }
        Unit u;
        unit_at(a.span, group, simd, simds, lane, r, u);
        if (u.active) {
            const uint j = ((LONG ? 32u * r : 0u) + lane) * 8u & (a.dim - 1u);
            const float weight = a.centred != 0 ? load_float(mass, a.mass_type, unit_row(a.mass, a.span, u) + long(u.x >> a.unit_shift)) : 0.0f;
            row_finish_unit(mean, gain, signs, out, limited, a, u, j, weight, v + 8 * r);
        }
    }
}

// y[j] of packed codes, as in row_unit.
template <bool TRELLIS>
static inline float row_value(const device uchar* codes, const device float* table, constant RowCodeArgs& a, long in, uint scale, uint j) {
    if (scale == 0) {
        return 0.0f;
    }
    const uint bit = (TRELLIS ? a.dim - 1u - j : j) * a.bits;
    const uint bytes = a.dim / 8u * a.bits;
    const uint byte = bit >> 3;
    const uint following = byte + 1u == bytes ? 0u : byte + 1u;
    const uint lo = codes[in + long(byte) * a.codes.s3];
    const uint hi = codes[in + long(following) * a.codes.s3];
    const uint mask = TRELLIS ? 255u : (1u << a.bits) - 1u;
    const float value = table[((lo | (hi << 8)) >> (bit & 7u)) & mask];
    return value * row_scale(scale);
}

// The end of the inverse: norm, signs, centre, output. mass weights the means.
static inline void row_finish(threadgroup float* buf, const device uchar* mean, const device uchar* gain, const device uint* signs, device uchar* out, device atomic_uint* limited, constant RowCodeArgs& a, uint3 row, float mass, uint t) {
    const long to = row_offset(a.y, row);
    const long mean_in = row_offset(a.mean, row);
    const long gain_in = row_offset(a.gain, row);
    const bool limit = limits(a.policy, a.y_type);
    uint count = 0;
    for (uint j = t; j < a.dim; j += a.threads_per_row) {
        float v = buf[j] * a.norm;
        v = negate_if(v, sign_bit(signs, j));
        if (a.centred != 0) {
            v = v * load_float(gain, TYPE_F16, gain_in + long(j) * a.gain.s3);
            const float shift = load_float(mean, TYPE_F16, mean_in + long(j) * a.mean.s3) * mass;
            v = v + shift;
        }
        if (limit) {
            v = limit_f16(v, count);
        }
        store_float(out, a.y_type, to + long(j) * a.y.s3, v);
    }
    count_limited(limited, count);
}

// Codes to rows. Rows launch.
template <bool TRELLIS>
static inline void rowcode_inverse_row(const device uchar* codes, const device uchar* scales, const device uchar* mean, const device uchar* gain, device uchar* out, const device float* table, const device uint* signs, device atomic_uint* limited, constant RowCodeArgs& a, threadgroup float* memory, uint group, uint thread_index, uint threads, uint lane) {
    const uint in_group = thread_index / a.threads_per_row;
    const uint t = thread_index - in_group * a.threads_per_row;
    const uint nth = group * (threads / a.threads_per_row) + in_group;
    const bool active = nth < a.span.rows;
    const uint3 row = split_row(a.span.row0 + (active ? nth : 0u), a.span.n1, a.span.n2);
    threadgroup float* buf = memory + in_group * a.dim;
    const long in = row_offset(a.codes, row);
    const uint scale = scales[row_offset(a.scales, row)];
    for (uint j = t; j < a.dim; j += a.threads_per_row) {
        buf[j] = row_value<TRELLIS>(codes, table, a, in, scale, j);
    }
    transform_row(buf, a.dim, a.factor, true, t, a.threads_per_row);
    if (active) {
        row_finish(buf, mean, gain, signs, out, limited, a, row, 1.0f, t);
    }
}

// Rows that are not packed. Rows launch.
static inline void rowcode_unrotate_row(const device uchar* x, const device uchar* mean, const device uchar* gain, const device uchar* mass, device uchar* out, const device uint* signs, device atomic_uint* limited, constant RowCodeArgs& a, threadgroup float* memory, uint group, uint thread_index, uint threads, uint lane) {
    const uint in_group = thread_index / a.threads_per_row;
    const uint t = thread_index - in_group * a.threads_per_row;
    const uint nth = group * (threads / a.threads_per_row) + in_group;
    const bool active = nth < a.span.rows;
    const uint3 row = split_row(a.span.row0 + (active ? nth : 0u), a.span.n1, a.span.n2);
    threadgroup float* buf = memory + in_group * a.dim;
    const long in = row_offset(a.x, row);
    for (uint j = t; j < a.dim; j += a.threads_per_row) {
        buf[j] = canon(load_float(x, a.x_type, in + long(j) * a.x.s3));
    }
    transform_row(buf, a.dim, a.factor, true, t, a.threads_per_row);
    if (active) {
        const float weight = a.centred != 0 ? load_float(mass, a.mass_type, row_offset(a.mass, row)) : 0.0f;
        row_finish(buf, mean, gain, signs, out, limited, a, row, weight, t);
    }
}
