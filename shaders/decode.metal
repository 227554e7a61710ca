// Value decode in the rotated domain, joint key and value decode, and the same with
// the inverse rotation fused in. Every packed byte is read once, every output written once.

template <uint BITS>
static inline void values_decode_eight(ulong unit, const device float* table, float scale, thread float* v) {
#pragma clang loop unroll(full)
    for (uint e = 0; e < 8; e++) {
        const float centroid = table[unit_code(unit, e, BITS)];
        v[e] = centroid * scale;
    }
}

// One thread per unit of eight codes.
template <uint BITS>
static inline void values_decode_unit(const device uchar* codes, const device uchar* scales, device uchar* out, const device float* table, device atomic_uint* limited, constant ValuesDecodeArgs& a, uint2 at) {
    const uint first = at.x * 8u;
    if (first >= a.dim || at.y >= a.rows) {
        return;
    }
    const uint3 row = split_row(a.row0 + at.y, a.n1, a.n2);
    const float scale = load_float(scales, a.scale_type, row_offset(a.scales, row) + long(first / a.group) * a.scales.s3);
    const ulong unit = load_unit(codes, row_offset(a.codes, row) + long(at.x * BITS) * a.codes.s3, a.codes.s3, BITS);
    float v[8];
    values_decode_eight<BITS>(unit, table, scale, v);
    store_eight(out, a.out_type, row_offset(a.out, row) + long(first) * a.out.s3, a.out.s3, a.wide != 0, limits(a.policy, a.out_type), v, limited);
}

// One thread per unit of eight keys and unit of eight values.
template <uint KEY_BITS, bool SIGNED, uint BITS>
static inline void kv_decode_unit(const device uchar* k_codes, const device uchar* k_scales, const device uchar* k_zeros, const device uchar* v_codes, const device uchar* v_scales, device uchar* k_out, device uchar* v_out, const device float* table, device atomic_uint* limited, constant KVDecodeArgs& a, uint2 at) {
    if (at.y >= a.rows) {
        return;
    }
    const uint first = at.x * 8u;
    const uint3 row = split_row(a.row0 + at.y, a.n1, a.n2);
    float v[8];
    if (first < a.k_dim) {
        const uint g = first / a.k_group;
        const float scale = load_float(k_scales, a.scale_type, row_offset(a.k_scales, row) + long(g) * a.k_scales.s3);
        const float zero = load_float(k_zeros, a.scale_type, row_offset(a.k_zeros, row) + long(g) * a.k_zeros.s3);
        const ulong unit = load_unit(k_codes, row_offset(a.k_codes, row) + long(at.x * KEY_BITS) * a.k_codes.s3, a.k_codes.s3, KEY_BITS);
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            v[e] = key_decode(unit_code(unit, e, KEY_BITS), SIGNED, zero, scale);
        }
        store_eight(k_out, a.k_type, row_offset(a.k_out, row) + long(first) * a.k_out.s3, a.k_out.s3, a.k_wide != 0, limits(a.policy, a.k_type), v, limited);
    }
    if (first < a.v_dim) {
        const float scale = load_float(v_scales, a.scale_type, row_offset(a.v_scales, row) + long(first / a.v_group) * a.v_scales.s3);
        const ulong unit = load_unit(v_codes, row_offset(a.v_codes, row) + long(at.x * BITS) * a.v_codes.s3, a.v_codes.s3, BITS);
        values_decode_eight<BITS>(unit, table, scale, v);
        store_eight(v_out, a.v_type, row_offset(a.v_out, row) + long(first) * a.v_out.s3, a.v_out.s3, a.v_wide != 0, limits(a.policy, a.v_type), v, limited);
    }
}

// The keys of one row, by `simds` SIMD-groups, of which this is number `simd`; one lane per element.
static inline void kv_keys_row(const device uchar* codes, const device uchar* scales, const device uchar* zeros, device uchar* out, device atomic_uint* limited, constant KVDecodeArgs& a, uint3 row, bool active, uint simd, uint simds, uint lane) {
    const long code_in = row_offset(a.k_codes, row);
    const long scale_in = row_offset(a.k_scales, row);
    const long zero_in = row_offset(a.k_zeros, row);
    const long key_out = row_offset(a.k_out, row);
    const uint u = lane & 7u;
    const bool limit = limits(a.policy, a.k_type);
    uint count = 0;
    for (uint first = simd * 32u; first < a.k_dim; first += simds * 32u) {
        const uint g = first / a.k_group;
        const uint unit = (first + lane) / 8u;
        const uint byte = u < a.k_bits ? codes[code_in + long(unit * a.k_bits + u) * a.k_codes.s3] : 0;
        const uint code = unpack_lanes(byte, a.k_bits, lane);
        const float scale = load_float(scales, a.scale_type, scale_in + long(g) * a.k_scales.s3);
        const float zero = load_float(zeros, a.scale_type, zero_in + long(g) * a.k_zeros.s3);
        const float v = key_decode(code, a.k_signed != 0, zero, scale);
        if (active) {
            store_float(out, a.k_type, key_out + long(first + lane) * a.k_out.s3, limit ? limit_f16(v, count) : v);
        }
    }
    count_limited(limited, count);
}

// The rotated value that a lane holds in the run of 32 that starts at first.
template <uint BITS>
static inline float kv_value_lane(const device uchar* codes, const device uchar* scales, const device float* table, constant KVDecodeArgs& a, long code_in, long scale_in, uint first, uint lane) {
    const uint u = lane & 7u;
    const uint unit = (first + lane) / 8u;
    const uint byte = u < BITS ? codes[code_in + long(unit * BITS + u) * a.v_codes.s3] : 0;
    const uint code = unpack_lanes(byte, BITS, lane);
    const float scale = load_float(scales, a.scale_type, scale_in + long(first / a.v_group) * a.v_scales.s3);
    const float centroid = table[code];
    return centroid * scale;
}

static inline void kv_value_store(device uchar* out, const device uint* signs, constant KVDecodeArgs& a, long i, uint j, float v, bool limit, thread uint& count) {
    v = v * a.norm;
    if (limit) {
        v = limit_f16(v, count);
    }
    store_float(out, a.v_type, i + long(j) * a.v_out.s3, negate_if(v, sign_bit(signs, j)));
}

// v_dim = 32·E, one row per SIMD-group.
template <uint BITS, uint E>
static inline void kv_inverse_lanes(const device uchar* k_codes, const device uchar* k_scales, const device uchar* k_zeros, const device uchar* v_codes, const device uchar* v_scales, device uchar* k_out, device uchar* v_out, const device float* table, const device uint* signs, device atomic_uint* limited, constant KVDecodeArgs& a, uint nth, uint lane) {
    const bool active = nth < a.rows;
    const uint3 row = split_row(a.row0 + (active ? nth : 0u), a.n1, a.n2);
    kv_keys_row(k_codes, k_scales, k_zeros, k_out, limited, a, row, active, 0, 1, lane);
    const long code_in = row_offset(a.v_codes, row);
    const long scale_in = row_offset(a.v_scales, row);
    float y[E];
#pragma clang loop unroll(full)
    for (uint e = 0; e < E; e++) {
        y[e] = kv_value_lane<BITS>(v_codes, v_scales, table, a, code_in, scale_in, e * 32u, lane);
    }
    transform_lanes<E>(y, lane);
    if (active) {
        const long out = row_offset(a.v_out, row);
        const bool limit = limits(a.policy, a.v_type);
        uint count = 0;
#pragma clang loop unroll(full)
        for (uint e = 0; e < E; e++) {
            kv_value_store(v_out, signs, a, out, e * 32u + lane, y[e], limit, count);
        }
        count_limited(limited, count);
    }
}

// Any v_dim that fits in threadgroup memory.
template <uint BITS>
static inline void kv_inverse_row(const device uchar* k_codes, const device uchar* k_scales, const device uchar* k_zeros, const device uchar* v_codes, const device uchar* v_scales, device uchar* k_out, device uchar* v_out, const device float* table, const device uint* signs, device atomic_uint* limited, constant KVDecodeArgs& a, threadgroup float* memory, uint group, uint thread_index, uint threads, uint lane) {
    const uint in_group = thread_index / a.threads_per_row;
    const uint t = thread_index - in_group * a.threads_per_row;
    const uint nth = group * (threads / a.threads_per_row) + in_group;
    const bool active = nth < a.rows;
    const uint3 row = split_row(a.row0 + (active ? nth : 0u), a.n1, a.n2);
    const uint simd = t / 32u;
    const uint simds = a.threads_per_row / 32u;
    kv_keys_row(k_codes, k_scales, k_zeros, k_out, limited, a, row, active, simd, simds, lane);
    threadgroup float* buf = memory + in_group * a.v_dim;
    const long code_in = row_offset(a.v_codes, row);
    const long scale_in = row_offset(a.v_scales, row);
    for (uint first = simd * 32u; first < a.v_dim; first += simds * 32u) {
        buf[first + lane] = kv_value_lane<BITS>(v_codes, v_scales, table, a, code_in, scale_in, first, lane);
    }
    transform_row(buf, a.v_dim, a.factor, true, t, a.threads_per_row);
    if (active) {
        const long out = row_offset(a.v_out, row);
        const bool limit = limits(a.policy, a.v_type);
        uint count = 0;
        for (uint j = t; j < a.v_dim; j += a.threads_per_row) {
            kv_value_store(v_out, signs, a, out, j, buf[j], limit, count);
        }
        count_limited(limited, count);
    }
}
