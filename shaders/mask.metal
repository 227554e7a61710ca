// Token masks (numerics §9): logit + (0 | −Inf), by bits.

// One thread per element. T holds its bits.
template <typename T>
static inline void mask_element(const device uchar* x, const device uint* words, device uchar* y, constant MaskArgs& a, uint2 at) {
    if (at.x >= a.dim || at.y >= a.rows) {
        return;
    }
    const uint3 row = split_row(a.row0 + at.y, a.n1, a.n2);
    const uint word = at.x / 32u;
    uint allowed = 0;
    if (word < a.words) {
        allowed = (words[row_offset(a.mask, row) + long(word) * a.mask.s3] >> (at.x & 31u)) & 1u;
    }
    const uint sign = 1u << (sizeof(T) * 8u - 1u);
    const uint infinity = a.type == TYPE_F32 ? 0x7f800000u : a.type == TYPE_F16 ? 0x7c00u : 0x7f80u;
    const uint nan = a.type == TYPE_F32 ? 0x7fc00000u : a.type == TYPE_F16 ? 0x7e00u : 0x7fc0u;
    const uint bits = uint(((const device T*)x)[row_offset(a.x, row) + long(at.x) * a.x.s3]);
    uint masked = sign | infinity;
    if (allowed != 0) {
        masked = bits == sign ? 0u : bits; // −0 + 0
    } else if ((bits & ~sign) > infinity) {
        masked = bits; // a NaN
    } else if (bits == infinity) {
        masked = nan; // Inf − Inf
    }
    ((device T*)y)[row_offset(a.y, row) + long(at.x) * a.y.s3] = T(masked);
}

// Whether a row allows any token: one row per SIMD-group.
static inline void mask_any_row(const device uint* words, device uint* any, constant MaskArgs& a, uint nth, uint lane) {
    const bool active = nth < a.rows;
    const uint3 row = split_row(a.row0 + (active ? nth : 0u), a.n1, a.n2);
    const long in = row_offset(a.mask, row);
    uint found = 0;
    for (uint word = lane; word < a.words; word += 32u) {
        const uint tokens = min(a.dim - word * 32u, 32u);
        found |= words[in + long(word) * a.mask.s3] << (32u - tokens);
    }
    for (ushort mask = 16; mask > 0; mask >>= 1) {
        found |= simd_shuffle_xor(found, mask);
    }
    if (active && lane == 0) {
        any[nth] = found;
    }
}
