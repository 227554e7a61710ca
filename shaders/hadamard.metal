// The inverse rotation (numerics §3) of rows that are not packed: an attention output over
// rotated values.

static inline void hadamard_store(device uchar* y, const device uint* signs, constant HadamardArgs& a, long i, uint j, float v, bool limit, thread uint& count) {
    v = v * a.norm;
    if (limit) {
        v = limit_f16(v, count);
    }
    v = negate_if(v, sign_bit(signs, j));
    store_float(y, a.y_type, i, v);
}

// dim = 32·E, one row per SIMD-group.
template <uint E>
static inline void hadamard_lanes(const device uchar* x, device uchar* y, const device uint* signs, device atomic_uint* limited, constant HadamardArgs& a, uint nth, uint lane) {
    const bool active = nth < a.rows;
    const uint3 row = split_row(a.row0 + (active ? nth : 0u), a.n1, a.n2);
    const long in = row_offset(a.x, row);
    float v[E];
#pragma clang loop unroll(full)
    for (uint e = 0; e < E; e++) {
        const uint j = e * 32u + lane;
        v[e] = canon(load_float(x, a.x_type, in + long(j) * a.x.s3));
    }
    transform_lanes<E>(v, lane);
    if (active) {
        const long out = row_offset(a.y, row);
        const bool limit = limits(a.policy, a.y_type);
        uint count = 0;
#pragma clang loop unroll(full)
        for (uint e = 0; e < E; e++) {
            const uint j = e * 32u + lane;
            hadamard_store(y, signs, a, out + long(j) * a.y.s3, j, v[e], limit, count);
        }
        count_limited(limited, count);
    }
}

// Any dim that fits in threadgroup memory, threads_per_row threads per row.
static inline void hadamard_row(const device uchar* x, device uchar* y, const device uint* signs, device atomic_uint* limited, constant HadamardArgs& a, threadgroup float* memory, uint group, uint thread_index, uint threads, uint lane) {
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
        const long out = row_offset(a.y, row);
        const bool limit = limits(a.policy, a.y_type);
        uint count = 0;
        for (uint j = t; j < a.dim; j += a.threads_per_row) {
            hadamard_store(y, signs, a, out + long(j) * a.y.s3, j, buf[j], limit, count);
        }
        count_limited(limited, count);
    }
}
