// What a device must do before any other kernel runs on it. Operands come from a
// buffer, so that nothing folds at compile time; CheckCanary holds the answers.

static inline void canary_probe(const device uint* in, device uint* out, constant CanaryArgs& a, uint lane, uint width) {
    for (uint i = lane; i < a.count; i += 32) {
        const float x = as_type<float>(in[3u * i]);
        const float y = as_type<float>(in[3u * i + 1u]);
        const float z = as_type<float>(in[3u * i + 2u]);
        device uint* r = out + CANARY_WORDS * i;
        r[0] = as_type<uint>((x + z) + z);
        // The one place with a product and a sum in an expression: it must not contract.
        r[1] = as_type<uint>(x * y + z);
        r[2] = as_type<uint>(x / y);
        r[3] = as_type<uint>(precise::sqrt(fabs(x)));
        r[4] = as_type<uint>(rint(x));
        r[5] = uint(to_f16(x));
        r[6] = as_type<uint>(from_f16(ushort(in[3u * i] & 0xffffu)));
        r[7] = as_type<uint>(fma(x, y, z));
    }
    device uint* tail = out + CANARY_WORDS * a.count;
    if (width == 32) {
        const float first = as_type<float>(in[3u * lane]);
        tail[lane] = as_type<uint>(tree_sum(first));
    }
    if (lane == 0) {
        tail[32] = width;
        // A subnormal times two: recorded, not judged.
        tail[33] = as_type<uint>(as_type<float>(a.subnormal) * 2.0f);
    }
}
