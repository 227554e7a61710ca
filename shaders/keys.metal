// Affine keys (numerics §2), no rotation. BITS with SIGNED names the format.

template <uint BITS, bool SIGNED>
static inline float key_max() {
    return SIGNED ? float((1u << (BITS - 1u)) - 1u) : float((1u << BITS) - 1u);
}

// One row per SIMD-group; a lane holds one element of a group of 32, two of 64.
template <uint BITS, bool SIGNED>
static inline void keys_encode_row(const device uchar* x, device uchar* codes, device uchar* scales, device uchar* zeros, device atomic_uint* status, constant KeysEncodeArgs& a, uint nth, uint lane) {
    const bool active = nth < a.rows;
    const uint3 row = split_row(a.row0 + (active ? nth : 0u), a.n1, a.n2);
    const long in = row_offset(a.x, row);
    const long code_out = row_offset(a.codes, row);
    const long scale_out = row_offset(a.scales, row);
    const long zero_out = row_offset(a.zeros, row);
    const float max_index = key_max<BITS, SIGNED>();
    const float min_index = SIGNED ? -max_index : 0.0f;
    const float steps = SIGNED ? 2.0f * max_index : max_index;
    const bool pair = a.group == 64;

    for (uint g = 0; g < a.dim / a.group; g++) {
        const uint j = g * a.group + lane;
        float v0 = load_float(x, a.x_type, in + long(j) * a.x.s3);
        float v1 = pair ? load_float(x, a.x_type, in + long(j + 32u) * a.x.s3) : v0;
        if (active && !is_finite(v0)) {
            report(status, STATUS_NON_FINITE, nth * a.dim + j);
        }
        if (active && pair && !is_finite(v1)) {
            report(status, STATUS_NON_FINITE, nth * a.dim + j + 32u);
        }
        v0 = a.policy == POLICY_COMPAT ? canon_signed(v0) : canon(v0);
        v1 = a.policy == POLICY_COMPAT ? canon_signed(v1) : canon(v1);
        float lo = lanes_min(v0, lane);
        float hi = lanes_max(v0, lane);
        if (pair) {
            const float lo1 = lanes_min(v1, lane);
            const float hi1 = lanes_max(v1, lane);
            lo = lo1 < lo ? lo1 : lo;
            hi = hi1 > hi ? hi1 : hi;
        }

        const float range = hi - lo;
        const float scale = range / steps;
        const float se = scale + 1e-8f;
        float numerator = lo;
        float denominator = se;
        if (SIGNED) {
            numerator = hi + lo;
            denominator = 2.0f * se;
        }
        float zero = numerator / denominator;
        zero = rint(zero);
        zero = with_sign(zero, numerator);

        const bool representable = !is_finite(stored(scale, a.scale_type)) || is_finite(stored(zero, a.scale_type));
        const bool constant_group = a.policy == POLICY_FINITE && !representable;
        float scale_stored = scale;
        float zero_stored = zero;
        if (constant_group) {
            const float half_range = range * 0.5f;
            scale_stored = lo + half_range;
            zero_stored = 1.0f;
        }
        if (active && lane == 0) {
            store_float(scales, a.scale_type, scale_out + long(g) * a.scales.s3, scale_stored);
            store_float(zeros, a.scale_type, zero_out + long(g) * a.zeros.s3, zero_stored);
            if (!is_finite(stored(scale_stored, a.scale_type))) {
                report(status, STATUS_SCALE_OVERFLOW, nth * (a.dim / a.group) + g);
            }
        }

        for (uint part = 0; part < (pair ? 2u : 1u); part++) {
            const float v = part == 0 ? v0 : v1;
            float q = v / se;
            q = q - zero;
            q = rint(q);
            // A NaN (Inf − Inf) has index 0.
            q = q > max_index ? max_index : q;
            q = q < min_index ? min_index : q;
            const int index = q == q ? int(q) : 0;
            const uint code = constant_group ? 0u : uint(index) & ((1u << BITS) - 1u);
            const uchar byte = pack_lanes(code, BITS, lane);
            const uint u = lane & 7u;
            if (active && u < BITS) {
                const uint unit = (g * a.group + part * 32u + lane) / 8u;
                codes[code_out + long(unit * BITS + u) * a.codes.s3] = byte;
            }
        }
    }
}

// One thread per unit of eight codes.
template <uint BITS, bool SIGNED>
static inline void keys_decode_unit(const device uchar* codes, const device uchar* scales, const device uchar* zeros, device uchar* out, device atomic_uint* limited, constant KeysDecodeArgs& a, uint2 at) {
    const uint first = at.x * 8u;
    if (first >= a.dim || at.y >= a.rows) {
        return;
    }
    const uint3 row = split_row(a.row0 + at.y, a.n1, a.n2);
    const uint g = first / a.group;
    const float scale = load_float(scales, a.scale_type, row_offset(a.scales, row) + long(g) * a.scales.s3);
    const float zero = load_float(zeros, a.scale_type, row_offset(a.zeros, row) + long(g) * a.zeros.s3);
    const ulong unit = load_unit(codes, row_offset(a.codes, row) + long(at.x * BITS) * a.codes.s3, a.codes.s3, BITS);
    float v[8];
#pragma clang loop unroll(full)
    for (uint e = 0; e < 8; e++) {
        v[e] = key_decode(unit_code(unit, e, BITS), SIGNED, zero, scale);
    }
    store_eight(out, a.out_type, row_offset(a.out, row) + long(first) * a.out.s3, a.out.s3, a.wide != 0, limits(a.policy, a.out_type), v, limited);
}
