// Value decode: to the rotated domain, and with the inverse rotation fused in. Every packed byte is read once, every
// output written once.

template <uint BITS>
static inline void values_decode_units(const device uchar* codes, const device uchar* scales, device uchar* out, const device float* table, device atomic_uint* limited, constant ValuesDecodeArgs& a, uint2 group, uint simd, uint simds, uint lane) {
    const float own = centroid_lane<BITS>(table, lane);
    uint2 unit[UNITS];
    float scale[UNITS];
#pragma clang loop unroll(full)
    for (uint r = 0; r < UNITS; r++) {
        Unit u;
        unit_at(a.span, group, simd, simds, lane, r, u);
        unit[r] = load_codes<BITS>(codes + unit_row(a.codes, a.span, u), u.x, (a.wide & 1u) != 0);
        scale[r] = load_float(scales, a.scale_type, unit_row(a.scales, a.span, u) + long(u.x >> a.group_shift));
    }
#pragma clang loop unroll(full)
    for (uint r = 0; r < UNITS; r++) {
        Unit u;
        unit_at(a.span, group, simd, simds, lane, r, u);
        float v[8];
        unit_values<BITS>(unit[r], table, own, scale[r], v);
        if (u.active) {
            store_eight(out, a.out_type, unit_row(a.out, a.span, u) + long(u.x) * 8 * a.out.s3, a.out.s3, (a.wide & 4u) != 0, limits(a.policy, a.out_type), v, limited);
        }
    }
}

// dim is a power of two: up to 256, or 512 or 1024 where LONG.
template <uint BITS, bool LONG>
static inline void values_inverse_units(const device uchar* codes, const device uchar* scales, device uchar* out, const device float* table, const device uint* signs, device atomic_uint* limited, constant ValuesDecodeArgs& a, uint2 group, uint simd, uint simds, uint lane) {
    const float own = centroid_lane<BITS>(table, lane);
    const uint units = a.dim / 8u;
    uint2 unit[UNITS];
    float scale[UNITS];
#pragma clang loop unroll(full)
    for (uint r = 0; r < UNITS; r++) {
        Unit u;
        unit_at(a.span, group, simd, simds, lane, r, u);
        unit[r] = load_codes<BITS>(codes + unit_row(a.codes, a.span, u), u.x, (a.wide & 1u) != 0);
        scale[r] = load_float(scales, a.scale_type, unit_row(a.scales, a.span, u) + long(u.x >> a.group_shift));
    }
    float y[8 * UNITS];
    if (LONG) {
#pragma clang loop unroll(full)
        for (uint r = 0; r < UNITS; r++) {
            unit_values<BITS>(unit[r], table, own, scale[r], y + 8 * r);
            transform_unit(y + 8 * r, units, lane);
        }
        transform_between(y, units);
    }
#pragma clang loop unroll(full)
    for (uint r = 0; r < UNITS; r++) {
        if (!LONG) {
            unit_values<BITS>(unit[r], table, own, scale[r], y + 8 * r);
            transform_unit(y + 8 * r, units, lane);
        }
        float s[8];
        unit_signs(signs, ((LONG ? 32u * r : 0u) + lane) * 8u & (a.dim - 1u), a.norm, s);
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            y[8 * r + e] = y[8 * r + e] * s[e];
        }
        Unit u;
        unit_at(a.span, group, simd, simds, lane, r, u);
        if (u.active) {
            store_eight(out, a.out_type, unit_row(a.out, a.span, u) + long(u.x) * 8 * a.out.s3, a.out.s3, (a.wide & 4u) != 0, limits(a.policy, a.out_type), y + 8 * r, limited);
        }
    }
}

// Any dim that fits in threadgroup memory, threads_per_row threads per row.
template <uint BITS>
static inline void values_inverse_row(const device uchar* codes, const device uchar* scales, device uchar* out, const device float* table, const device uint* signs, device atomic_uint* limited, constant ValuesDecodeArgs& a, threadgroup float* memory, uint group, uint thread_index, uint threads, uint lane) {
    const uint in_group = thread_index / a.threads_per_row;
    const uint t = thread_index - in_group * a.threads_per_row;
    const uint nth = group * (threads / a.threads_per_row) + in_group;
    const bool active = nth < a.span.rows;
    const uint3 row = split_row(a.span.row0 + (active ? nth : 0u), a.span.n1, a.span.n2);
    threadgroup float* buf = memory + in_group * a.dim;
    const device uchar* row_codes = codes + row_offset(a.codes, row);
    const long scale_in = row_offset(a.scales, row);
    for (uint n = t; n < a.dim / 8u; n += a.threads_per_row) {
        const uint2 unit = load_codes<BITS>(row_codes, n, (a.wide & 1u) != 0);
        const float scale = load_float(scales, a.scale_type, scale_in + long(n >> a.group_shift));
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            buf[n * 8u + e] = table[code_at<BITS>(unit, e)] * scale;
        }
    }
    transform_row(buf, a.dim, a.factor, true, t, a.threads_per_row);
    if (active) {
        const long to = row_offset(a.out, row);
        for (uint n = t; n < a.dim / 8u; n += a.threads_per_row) {
            float s[8];
            unit_signs(signs, n * 8u, a.norm, s);
            float y[8];
#pragma clang loop unroll(full)
            for (uint e = 0; e < 8; e++) {
                y[e] = buf[n * 8u + e] * s[e];
            }
            store_eight(out, a.out_type, to + long(n) * 8 * a.out.s3, a.out.s3, (a.wide & 4u) != 0, limits(a.policy, a.out_type), y, limited);
        }
    }
}
