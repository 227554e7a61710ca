// The inverse rotation (numerics §3) of rows that are not packed: an attention output over
// rotated values.

static inline void hadamard_store(device uchar* y, const device uint* signs, device atomic_uint* limited, constant HadamardArgs& a, long i, uint j, thread float* v) {
    float s[8];
    unit_signs(signs, j, a.norm, s);
#pragma clang loop unroll(full)
    for (uint e = 0; e < 8; e++) {
        v[e] = v[e] * s[e];
    }
    store_eight(y, a.y_type, i, a.y.s3, (a.wide & 2u) != 0, limits(a.policy, a.y_type), v, limited);
}

// dim is a power of two: up to 256, or 512 or 1024 where LONG.
template <bool LONG>
static inline void hadamard_unit_rows(const device uchar* x, device uchar* y, const device uint* signs, device atomic_uint* limited, constant HadamardArgs& a, uint2 group, uint simd, uint simds, uint lane) {
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
            hadamard_store(y, signs, limited, a, unit_row(a.y, a.span, u) + long(u.x) * 8 * a.y.s3, j, v + 8 * r);
        }
    }
}

// Any dim that fits in threadgroup memory, threads_per_row threads per row.
static inline void hadamard_row(const device uchar* x, device uchar* y, const device uint* signs, device atomic_uint* limited, constant HadamardArgs& a, threadgroup float* memory, uint group, uint thread_index, uint threads, uint lane) {
    const uint in_group = thread_index / a.threads_per_row;
    const uint t = thread_index - in_group * a.threads_per_row;
    const uint nth = group * (threads / a.threads_per_row) + in_group;
    const bool active = nth < a.span.rows;
    const uint3 row = split_row(a.span.row0 + (active ? nth : 0u), a.span.n1, a.span.n2);
    threadgroup float* buf = memory + in_group * a.dim;
    const long in = row_offset(a.x, row);
    for (uint n = t; n < a.dim / 8u; n += a.threads_per_row) {
        float v[8];
        load_eight(x, a.x_type, in + long(n) * 8 * a.x.s3, a.x.s3, (a.wide & 1u) != 0, v);
        canon_eight(a.x_type, v);
#pragma clang loop unroll(full)
        for (uint e = 0; e < 8; e++) {
            buf[n * 8u + e] = v[e];
        }
    }
    transform_row(buf, a.dim, a.factor, true, t, a.threads_per_row);
    if (active) {
        const long out = row_offset(a.y, row);
        for (uint n = t; n < a.dim / 8u; n += a.threads_per_row) {
            float v[8];
#pragma clang loop unroll(full)
            for (uint e = 0; e < 8; e++) {
                v[e] = buf[n * 8u + e];
            }
            hadamard_store(y, signs, limited, a, out + long(n) * 8 * a.y.s3, n * 8u, v);
        }
    }
}
