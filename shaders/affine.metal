// Affine rows in MLX's format (numerics §8).

// The order of finite numbers as integers, so that a device that flushes subnormals has the same.
static inline int affine_order(float x) {
    const uint u = as_type<uint>(x);
    const int magnitude = int(u & 0x7fffffffu);
    return (u >> 31) != 0 ? -magnitude : magnitude;
}

static inline float affine_number(int order) {
    return order < 0 ? as_type<float>(uint(-order) | 0x80000000u) : as_type<float>(uint(order));
}

// One group per SIMD-group; a lane holds group/32 elements.
static inline void affine_quantize_group(const device uchar* x, device uchar* codes, device uchar* scales, device uchar* biases, device atomic_uint* status, constant AffineArgs& a, uint nth, uint lane) {
    const uint groups = a.dim / a.group;
    const bool active = nth / groups < a.rows;
    const uint in_dispatch = active ? nth / groups : 0u;
    const uint g = active ? nth - in_dispatch * groups : 0u;
    const uint3 row = split_row(a.row0 + in_dispatch, a.n1, a.n2);
    const long in = row_offset(a.x, row);
    const uint held = a.group / 32u;
    float v[4];
    int lo = 0x7fffffff;
    int hi = -0x7fffffff;
#pragma clang loop unroll(full)
    for (uint e = 0; e < 4; e++) {
        if (e < held) {
            const uint j = g * a.group + e * 32u + lane;
            v[e] = load_float(x, a.type, in + long(j) * a.x.s3);
            if (active && !is_finite(v[e])) {
                report(status, STATUS_NON_FINITE, in_dispatch * a.dim + j);
            }
            const int order = affine_order(v[e]);
            lo = min(lo, order);
            hi = max(hi, order);
        }
    }
    for (ushort mask = 16; mask > 0; mask >>= 1) {
        lo = min(lo, simd_shuffle_xor(lo, mask));
        hi = max(hi, simd_shuffle_xor(hi, mask));
    }
    const float low = affine_number(lo);
    const float high = affine_number(hi);
    const float range = high - low;
    if (active && lane == 0 && !is_finite(range)) {
        report(status, STATUS_SCALE_OVERFLOW, nth);
    }

    const float most = float((1u << a.bits) - 1u);
    float scale = range / most;
    scale = scale < 1e-7f ? 1e-7f : scale;
    const bool from_low = (as_type<uint>(low) & 0x7fffffffu) > (as_type<uint>(high) & 0x7fffffffu);
    const float edge = from_low ? low : high;
    scale = from_low ? scale : -scale;
    float q = edge / scale;
    q = rint(q);
    float bias = 0.0f;
    if (q != 0.0f) {
        scale = edge / q;
        bias = edge;
    }
    if (active && lane == 0) {
        store_float(scales, a.type, row_offset(a.scales, row) + long(g) * a.scales.s3, scale);
        store_float(biases, a.type, row_offset(a.biases, row) + long(g) * a.biases.s3, bias);
    }
    const long out = row_offset(a.codes, row);
#pragma clang loop unroll(full)
    for (uint e = 0; e < 4; e++) {
        if (e < held) {
            float index = v[e] - bias;
            index = index / scale;
            index = rint(index);
            index = index > most ? most : index;
            index = index > 0.0f ? index : 0.0f; // NaN too: the status says so
            const uchar byte = pack_lanes(uint(index), a.bits, lane);
            const uint u = lane & 7u;
            if (active && u < a.bits) {
                const uint unit = (g * a.group + e * 32u + lane) / 8u;
                codes[out + long(unit * a.bits + u) * a.codes.s3] = byte;
            }
        }
    }
}

// One thread per unit of eight codes.
static inline void affine_dequantize_unit(const device uchar* codes, const device uchar* scales, const device uchar* biases, device uchar* out, constant AffineArgs& a, uint2 at) {
    const uint first = at.x * 8u;
    if (first >= a.dim || at.y >= a.rows) {
        return;
    }
    const uint3 row = split_row(a.row0 + at.y, a.n1, a.n2);
    const uint g = first / a.group;
    const float scale = load_float(scales, a.type, row_offset(a.scales, row) + long(g) * a.scales.s3);
    const float bias = load_float(biases, a.type, row_offset(a.biases, row) + long(g) * a.biases.s3);
    const ulong unit = load_unit(codes, row_offset(a.codes, row) + long(at.x * a.bits) * a.codes.s3, a.codes.s3, a.bits);
    float v[8];
#pragma clang loop unroll(full)
    for (uint e = 0; e < 8; e++) {
        v[e] = affine_weight(unit_code(unit, e, a.bits), scale, bias, a.type);
    }
    const long to = row_offset(a.x, row) + long(first) * a.x.s3;
    store_four(out, a.type, to, a.x.s3, a.wide != 0, v);
    store_four(out, a.type, to + 4 * a.x.s3, a.x.s3, a.wide != 0, v + 4);
}
