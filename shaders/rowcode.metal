// Row codes (numerics §10). Rows are rotated in threadgroup memory into f32 scratch, dim elements per
// row of the dispatch; then a SIMD-group per row finds its scale, lane l holding elements l, l + 32 and so on,
// which is the order in which the squares are summed. The search of the trellis code is trellis_encode's.

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

// x to y. Rows launch.
static inline void rowcode_rotate_row(const device uchar* x, const device ushort* mean, const device ushort* gain, const device uint* signs, device float* y, device atomic_uint* status, constant RowCodeArgs& a, threadgroup float* memory, uint group, uint thread_index, uint threads, uint lane) {
    const uint in_group = thread_index / a.threads_per_row;
    const uint t = thread_index - in_group * a.threads_per_row;
    const uint nth = group * (threads / a.threads_per_row) + in_group;
    const bool active = nth < a.rows;
    const uint3 row = split_row(a.row0 + (active ? nth : 0u), a.n1, a.n2);
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
            v = v - from_f16(mean[mean_in + long(j) * a.mean.s3]);
            v = v / from_f16(gain[gain_in + long(j) * a.gain.s3]);
            v = canon(v);
        }
        buf[j] = negate_if(v, sign_bit(signs, j));
    }
    transform_row(buf, a.dim, a.factor, false, t, a.threads_per_row);
    if (active) {
        for (uint j = t; j < a.dim; j += a.threads_per_row) {
            y[ulong(nth) * a.dim + j] = buf[j] * a.norm;
        }
    }
}

// c0 of a row, 0 where it overflows, which is reported.
static inline uint row_first_scale(const device float* y, device atomic_uint* status, constant RowCodeArgs& a, uint nth, bool active, uint lane) {
    float sum = 0.0f;
    for (uint j = lane; j < a.dim; j += 32u) {
        const float v = y[j];
        const float square = v * v;
        sum = sum + flush(square);
    }
    sum = tree_sum(sum);
    const float mean = sum / float(a.dim);
    const uint h = uint(to_f16(precise::sqrt(flush(mean))));
    if ((h & 0x7c00u) == 0x7c00u) {
        if (active && lane == 0) {
            report(status, STATUS_SCALE_OVERFLOW, nth);
        }
        return 0;
    }
    return min((h + 64u) >> 7, row_max_scale);
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

// y to levels: the first scale of least error. Lanes launch.
static inline void rowcode_levels_row(const device float* y, device uchar* codes, device uchar* scales, device atomic_uint* status, const device float* table, constant RowCodeArgs& a, uint nth, uint lane) {
    const bool active = nth < a.rows;
    const uint in_dispatch = active ? nth : 0u;
    const uint3 row = split_row(a.row0 + in_dispatch, a.n1, a.n2);
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
    const bool active = nth < a.rows;
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
    const bool active = nth < a.rows;
    const uint in_dispatch = active ? nth : 0u;
    const uint3 row = split_row(a.row0 + in_dispatch, a.n1, a.n2);
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

// y[j] of packed codes: of the levels code bits b·j on are its index, of the trellis code the eight bits from
// (dim − 1 − j)·b on, which wrap, its state.
static inline float row_value(const device uchar* codes, const device float* table, constant RowCodeArgs& a, long in, uint scale, uint j) {
    if (scale == 0) {
        return 0.0f;
    }
    const uint bit = (a.trellis != 0 ? a.dim - 1u - j : j) * a.bits;
    const uint bytes = a.dim / 8u * a.bits;
    const uint byte = bit >> 3;
    const uint following = byte + 1u == bytes ? 0u : byte + 1u;
    const uint lo = codes[in + long(byte) * a.codes.s3];
    const uint hi = codes[in + long(following) * a.codes.s3];
    const uint mask = a.trellis != 0 ? 255u : (1u << a.bits) - 1u;
    const float value = table[((lo | (hi << 8)) >> (bit & 7u)) & mask];
    return value * row_scale(scale);
}

// One thread per element.
static inline void rowcode_decode_element(const device uchar* codes, const device uchar* scales, device uchar* out, const device float* table, device atomic_uint* limited, constant RowCodeArgs& a, uint2 at) {
    if (at.x >= a.dim || at.y >= a.rows) {
        return;
    }
    const uint3 row = split_row(a.row0 + at.y, a.n1, a.n2);
    float v = row_value(codes, table, a, row_offset(a.codes, row), scales[row_offset(a.scales, row)], at.x);
    uint count = 0;
    if (limits(a.policy, a.y_type)) {
        v = limit_f16(v, count);
    }
    store_float(out, a.y_type, row_offset(a.y, row) + long(at.x) * a.y.s3, v);
    count_limited(limited, count);
}

// The end of the inverse: norm, signs, centre, output. mass weights the means.
static inline void row_finish(threadgroup float* buf, const device ushort* mean, const device ushort* gain, const device uint* signs, device uchar* out, device atomic_uint* limited, constant RowCodeArgs& a, uint3 row, float mass, uint t) {
    const long to = row_offset(a.y, row);
    const long mean_in = row_offset(a.mean, row);
    const long gain_in = row_offset(a.gain, row);
    const bool limit = limits(a.policy, a.y_type);
    uint count = 0;
    for (uint j = t; j < a.dim; j += a.threads_per_row) {
        float v = buf[j] * a.norm;
        v = negate_if(v, sign_bit(signs, j));
        if (a.centred != 0) {
            v = v * from_f16(gain[gain_in + long(j) * a.gain.s3]);
            const float shift = from_f16(mean[mean_in + long(j) * a.mean.s3]) * mass;
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
static inline void rowcode_inverse_row(const device uchar* codes, const device uchar* scales, const device ushort* mean, const device ushort* gain, device uchar* out, const device float* table, const device uint* signs, device atomic_uint* limited, constant RowCodeArgs& a, threadgroup float* memory, uint group, uint thread_index, uint threads, uint lane) {
    const uint in_group = thread_index / a.threads_per_row;
    const uint t = thread_index - in_group * a.threads_per_row;
    const uint nth = group * (threads / a.threads_per_row) + in_group;
    const bool active = nth < a.rows;
    const uint3 row = split_row(a.row0 + (active ? nth : 0u), a.n1, a.n2);
    threadgroup float* buf = memory + in_group * a.dim;
    const long in = row_offset(a.codes, row);
    const uint scale = scales[row_offset(a.scales, row)];
    for (uint j = t; j < a.dim; j += a.threads_per_row) {
        buf[j] = row_value(codes, table, a, in, scale, j);
    }
    transform_row(buf, a.dim, a.factor, true, t, a.threads_per_row);
    if (active) {
        row_finish(buf, mean, gain, signs, out, limited, a, row, 1.0f, t);
    }
}

// Rows that are not packed. Rows launch.
static inline void rowcode_unrotate_row(const device uchar* x, const device ushort* mean, const device ushort* gain, const device uchar* mass, device uchar* out, const device uint* signs, device atomic_uint* limited, constant RowCodeArgs& a, threadgroup float* memory, uint group, uint thread_index, uint threads, uint lane) {
    const uint in_group = thread_index / a.threads_per_row;
    const uint t = thread_index - in_group * a.threads_per_row;
    const uint nth = group * (threads / a.threads_per_row) + in_group;
    const bool active = nth < a.rows;
    const uint3 row = split_row(a.row0 + (active ? nth : 0u), a.n1, a.n2);
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
