// Bit packing (numerics §5): one thread a unit of eight codes, which is `bits` bytes.

template <uint BITS>
static inline void pack_unit(const device uchar* codes, device uchar* packed, constant PackArgs& a, uint2 at) {
    const uint first = at.x * 8u;
    if (first >= a.dim || at.y >= a.rows) {
        return;
    }
    const uint3 row = split_row(a.row0 + at.y, a.n1, a.n2);
    const uint count = min(8u, a.dim - first);
    const long in = row_offset(a.codes, row) + long(first) * a.codes.s3;
    ulong unit = 0;
    for (uint e = 0; e < count; e++) {
        const ulong code = codes[in + long(e) * a.codes.s3] & ((1u << BITS) - 1u);
        unit |= code << (e * BITS);
    }
    const long out = row_offset(a.packed, row) + long(at.x * BITS) * a.packed.s3;
    const uint bytes = (count * BITS + 7u) / 8u;
    for (uint b = 0; b < bytes; b++) {
        packed[out + long(b) * a.packed.s3] = uchar(unit >> (8u * b));
    }
}

template <uint BITS>
static inline void unpack_unit(const device uchar* packed, device uchar* codes, constant PackArgs& a, uint2 at) {
    const uint first = at.x * 8u;
    if (first >= a.dim || at.y >= a.rows) {
        return;
    }
    const uint3 row = split_row(a.row0 + at.y, a.n1, a.n2);
    const uint count = min(8u, a.dim - first);
    const uint bytes = (count * BITS + 7u) / 8u;
    const long in = row_offset(a.packed, row) + long(at.x * BITS) * a.packed.s3;
    const ulong unit = load_unit(packed, in, a.packed.s3, bytes);
    const long out = row_offset(a.codes, row) + long(first) * a.codes.s3;
    for (uint e = 0; e < count; e++) {
        codes[out + long(e) * a.codes.s3] = uchar(unit_code(unit, e, BITS));
    }
}
