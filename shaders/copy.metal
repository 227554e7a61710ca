// Strided copy, one thread per element of 1, 2 or 4 bytes: a view to compact memory, or back.

template <typename T>
static inline void copy_element(const device uchar* x, device uchar* y, constant CopyArgs& a, uint2 at) {
    if (at.x >= a.dim || at.y >= a.rows) {
        return;
    }
    const uint3 row = split_row(a.row0 + at.y, a.n1, a.n2);
    const device T* from = (const device T*)x;
    device T* to = (device T*)y;
    to[row_offset(a.y, row) + long(at.x) * a.y.s3] = from[row_offset(a.x, row) + long(at.x) * a.x.s3];
}
