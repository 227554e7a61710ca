// Affine keys (numerics §2), no rotation. BITS with SIGNED names the format.

template <uint BITS, bool SIGNED>
static inline float key_max() {
    return SIGNED ? float((1u << (BITS - 1u)) - 1u) : float((1u << BITS) - 1u);
}

// The lesser or the greater of two numbers, own if they are equal and other is late: it decides the sign of a zero.
static inline float first_min(float own, float other, bool late) {
    const bool take = late ? other < own : other <= own;
    return take ? other : own;
}

static inline float first_max(float own, float other, bool late) {
    const bool take = late ? other > own : other >= own;
    return take ? other : own;
}

// What a lane knows of a group: how its elements become indices.
struct KeyGroup {
    float se;
    float zero;
    float reciprocal; // of se; 0: every index is 0; infinite: divide
};

template <uint BITS, bool SIGNED>
static inline void key_group(float lo, float hi, uint policy, uint type, thread KeyGroup& k, thread float& scale, thread float& zero) {
    const float max_index = key_max<BITS, SIGNED>();
    const float steps = SIGNED ? 2.0f * max_index : max_index;
    const float range = hi - lo;
    const float numerator = SIGNED ? hi + lo : lo;
    // Below 2^96 nothing overflows on the way to a quotient, and se is 2^-27 at least.
    if (fmax(fabs(lo), fabs(hi)) < as_type<float>(0x6f800000u)) {
        scale = divide_by(range, steps, 1.0f / steps);
        k.se = scale + 1e-8f;
        k.reciprocal = 1.0f / k.se;
        zero = SIGNED ? divide_by(numerator, 2.0f * k.se, 0.5f * k.reciprocal) : divide_by(numerator, k.se, k.reciprocal);
    } else {
        scale = range / steps;
        k.se = scale + 1e-8f;
        k.reciprocal = INFINITY;
        zero = numerator / (SIGNED ? 2.0f * k.se : k.se);
    }
    zero = rint(zero);
    zero = with_sign(zero, numerator);
    k.zero = zero;
    if (policy == POLICY_FINITE && is_finite(stored(scale, type)) && !is_finite(stored(zero, type))) {
        const float half_range = range * 0.5f;
        scale = lo + half_range;
        zero = 1.0f;
        k.zero = 0.0f;
        k.reciprocal = 0.0f;
    }
}

template <uint BITS, bool SIGNED>
static inline uint2 key_indices(thread const float* v, thread const KeyGroup& g) {
    const float max_index = key_max<BITS, SIGNED>();
    const float min_index = SIGNED ? -max_index : 0.0f;
    const float bias = SIGNED ? float(1u << (BITS - 1u)) : 0.0f;
    uint k[8];
    if (g.reciprocal < INFINITY) {
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            float q = divide_by(v[e], g.se, g.reciprocal);
            q = q - g.zero;
            q = fmin(fmax(q, min_index), max_index);
            k[e] = as_type<uint>(q + (12582912.0f + bias)); // rint, under the exponent of 2^23
        }
    } else {
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            float q = v[e] / g.se;
            q = q - g.zero;
            q = q > max_index ? max_index : q;
            q = q < min_index ? min_index : q;
            q = q == q ? q : 0.0f; // Inf − Inf
            k[e] = as_type<uint>(q + (12582912.0f + bias));
        }
    }
    const uint2 unit = pack_eight<BITS>(k);
    return SIGNED ? uint2(unit.x ^ 0x80808080u, unit.y ^ 0x80808080u) : unit;
}

// A group is four lanes or eight. Four lanes share out the groups of their UNITS units: lane l finds the scale of
// unit l % 4.
template <uint BITS, bool SIGNED>
static inline void keys_encode_units(const device uchar* x, device uchar* codes, device uchar* scales, device uchar* zeros, device atomic_uint* status, constant KeysEncodeArgs& a, uint2 group, uint simd, uint simds, uint lane) {
    const bool compat = a.policy == POLICY_COMPAT;
    float v[8 * UNITS];
    float lo[UNITS];
    float hi[UNITS];
#pragma clang loop unroll(full)
    for (uint r = 0; r < UNITS; r++) {
        Unit u;
        unit_at(a.span, group, simd, simds, lane, r, u);
        const uint bad = load_eight(x, a.x_type, unit_row(a.x, a.span, u) + long(u.x) * 8 * a.x.s3, a.x.s3, (a.wide & 1u) != 0, v + 8 * r);
        if (bad != 0) {
            report_eight(status, u, v + 8 * r);
        }
    }
#pragma clang loop unroll(full)
    for (uint r = 0; r < UNITS; r++) {
        thread float* y = v + 8 * r;
        if (compat) {
            lo[r] = canon_signed(y[0]);
            hi[r] = lo[r];
#pragma clang loop unroll(full)
            for (uint e = 0; e < 8; e++) {
                y[e] = canon_signed(y[e]);
                lo[r] = first_min(lo[r], y[e], true);
                hi[r] = first_max(hi[r], y[e], true);
            }
        } else {
            if (a.x_type != TYPE_F16) { // canon of f16 is +0 for −0, which is made up for below
                canon_eight(a.x_type, y);
            }
            lo[r] = fmin(fmin(fmin(y[0], y[1]), fmin(y[2], y[3])), fmin(fmin(y[4], y[5]), fmin(y[6], y[7]))) + 0.0f;
            hi[r] = fmax(fmax(fmax(y[0], y[1]), fmax(y[2], y[3])), fmax(fmax(y[4], y[5]), fmax(y[6], y[7]))) + 0.0f;
        }
    }
    // Ascending masks keep each partner's lanes together and in order.
    const bool odd = (lane & 1u) != 0;
    const bool high = (lane & 2u) != 0;
#pragma clang loop unroll(full)
    for (uint r = 0; r < UNITS; r += 2) {
        const float other_lo = simd_shuffle_xor(odd ? lo[r] : lo[r + 1], ushort(1));
        const float other_hi = simd_shuffle_xor(odd ? hi[r] : hi[r + 1], ushort(1));
        lo[r / 2] = first_min(odd ? lo[r + 1] : lo[r], other_lo, !odd);
        hi[r / 2] = first_max(odd ? hi[r + 1] : hi[r], other_hi, !odd);
    }
    const float other_lo = simd_shuffle_xor(high ? lo[0] : lo[1], ushort(2));
    const float other_hi = simd_shuffle_xor(high ? hi[0] : hi[1], ushort(2));
    float least = first_min(high ? lo[1] : lo[0], other_lo, !high);
    float greatest = first_max(high ? hi[1] : hi[0], other_hi, !high);
    if (a.group_shift == 3) {
        const bool late = (lane & 4u) == 0;
        least = first_min(least, simd_shuffle_xor(least, ushort(4)), late);
        greatest = first_max(greatest, simd_shuffle_xor(greatest, ushort(4)), late);
    }

    KeyGroup own;
    float scale;
    float zero;
    key_group<BITS, SIGNED>(least, greatest, a.policy, a.scale_type, own, scale, zero);
    Unit mine;
    unit_at(a.span, group, simd, simds, lane, lane & 3u, mine);
    if (mine.active && (a.group_shift == 2 || (lane & 4u) == 0)) {
        const long g = long(mine.x >> a.group_shift);
        store_float(scales, a.scale_type, unit_row(a.scales, a.span, mine) + g, scale);
        store_float(zeros, a.scale_type, unit_row(a.zeros, a.span, mine) + g, zero);
        if (!is_finite(stored(scale, a.scale_type))) {
            report(status, STATUS_SCALE_OVERFLOW, mine.number >> a.group_shift);
        }
    }
#pragma clang loop unroll(full)
    for (uint r = 0; r < UNITS; r++) {
        const ushort from = ushort((lane & 28u) | r);
        KeyGroup g;
        g.se = simd_shuffle(own.se, from);
        g.zero = simd_shuffle(own.zero, from);
        g.reciprocal = simd_shuffle(own.reciprocal, from);
        Unit u;
        unit_at(a.span, group, simd, simds, lane, r, u);
        store_codes<BITS>(codes + unit_row(a.codes, a.span, u), u.x, (a.wide & 2u) != 0, key_indices<BITS, SIGNED>(v + 8 * r, g), u.active);
    }
}

template <uint BITS, bool SIGNED>
static inline void keys_decode_units(const device uchar* codes, const device uchar* scales, const device uchar* zeros, device uchar* out, device atomic_uint* limited, constant KeysDecodeArgs& a, uint2 group, uint simd, uint simds, uint lane) {
    uint2 unit[UNITS];
    float scale[UNITS];
    float zero[UNITS];
#pragma clang loop unroll(full)
    for (uint r = 0; r < UNITS; r++) {
        Unit u;
        unit_at(a.span, group, simd, simds, lane, r, u);
        const long g = long(u.x >> a.group_shift);
        unit[r] = load_codes<BITS>(codes + unit_row(a.codes, a.span, u), u.x, (a.wide & 1u) != 0);
        scale[r] = load_float(scales, a.scale_type, unit_row(a.scales, a.span, u) + g);
        zero[r] = load_float(zeros, a.scale_type, unit_row(a.zeros, a.span, u) + g);
    }
#pragma clang loop unroll(full)
    for (uint r = 0; r < UNITS; r++) {
        Unit u;
        unit_at(a.span, group, simd, simds, lane, r, u);
        if (SIGNED) {
            unit[r] = uint2(unit[r].x ^ 0x80808080u, unit[r].y ^ 0x80808080u);
        }
        float v[8];
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            const float shifted = code_float<BITS>(unit[r], e, SIGNED ? -128.0f : 0.0f) + zero[r];
            v[e] = shifted * scale[r];
        }
        if (u.active) {
            store_eight(out, a.out_type, unit_row(a.out, a.span, u) + long(u.x) * 8 * a.out.s3, a.out.s3, (a.wide & 8u) != 0, limits(a.policy, a.out_type), v, limited);
        }
    }
}
