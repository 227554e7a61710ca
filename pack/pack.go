// Package pack stores small unsigned integers of 1 to 8 bits each in a
// little-endian bit stream, and converts between float32 and the two 16-bit
// floating-point formats (docs/numerics.md §5 and §0).
//
// Element i of width b occupies bits [i·b, i·b+b) of the stream; bit k of the
// stream is bit k mod 8 of byte k/8, counting from the least significant. At 3
// bits the elements 5, 2, 7, 1, 0, 6, 3, 4 fill three bytes:
//
//	byte       0            1            2
//	bits       11 010 101   0 000 001 1  100 011 11
//	element     2   1   0   5   4   3 2    7   6  5
//	value      0xd5         0x03         0x8f
//
// The bytes are the same on every host. A sequence that does not end on a byte
// boundary is an error, never padded.
package pack

import "github.com/turbotrellis/turbotrellis/internal/fault"

// PackedLen returns the number of bytes that n elements of the given width
// take: n·bits/8. It is an error for bits to be outside 1 to 8, for n to be
// negative, and for n·bits not to be a multiple of 8. The result never exceeds
// n, so it cannot overflow.
func PackedLen(n, bits int) (int, error) {
	if err := checkBits(bits); err != nil {
		return 0, err
	}
	if n < 0 {
		return 0, fault.New(fault.ErrShape, "negative element count %d", n)
	}
	if n%8*bits%8 != 0 {
		return 0, fault.New(fault.ErrShape, "%d elements of %d bits do not fill whole bytes: the count must be a multiple of %d",
			n, bits, elementsPerByteBoundary(bits))
	}
	return n/8*bits + n%8*bits/8, nil
}

// Pack packs src, one index a byte, into dst, which must be exactly
// PackedLen(len(src), bits) bytes. An index of 2^bits or more is an error that
// names its position and value. On any error dst is left as it was. dst and
// src must not overlap.
func Pack(dst, src []byte, bits int) error {
	n, err := PackedLen(len(src), bits)
	if err != nil {
		return err
	}
	if len(dst) != n {
		return fault.New(fault.ErrShape, "%d elements of %d bits pack into %d bytes, but dst has %d", len(src), bits, n, len(dst))
	}
	if err := checkRange(src, bits); err != nil {
		return err
	}
	clear(dst)
	for i, v := range src {
		for k := range bits {
			at := i*bits + k
			dst[at/8] |= v >> k & 1 << (at % 8)
		}
	}
	return nil
}

// Unpack unpacks len(dst) indices of the given width from src, which must be
// exactly PackedLen(len(dst), bits) bytes. Each byte of dst receives one index
// in [0, 2^bits). On any error dst is left as it was. dst and src must not
// overlap.
func Unpack(dst, src []byte, bits int) error {
	n, err := PackedLen(len(dst), bits)
	if err != nil {
		return err
	}
	if len(src) != n {
		return fault.New(fault.ErrShape, "%d elements of %d bits are packed in %d bytes, but src has %d", len(dst), bits, n, len(src))
	}
	for i := range dst {
		dst[i] = 0
		for k := range bits {
			at := i*bits + k
			dst[i] |= src[at/8] >> (at % 8) & 1 << k
		}
	}
	return nil
}

func checkBits(bits int) error {
	if bits < 1 || bits > 8 {
		return fault.New(fault.ErrParams, "width of %d bits is outside 1 to 8", bits)
	}
	return nil
}

// checkRange reports the first index of src that does not fit the width.
func checkRange(src []byte, bits int) error {
	for i, v := range src {
		if v>>bits != 0 {
			return fault.New(fault.ErrParams, "index %d at position %d does not fit %d bits", v, i, bits)
		}
	}
	return nil
}

// elementsPerByteBoundary is the least positive n for which n·bits is a
// multiple of 8.
func elementsPerByteBoundary(bits int) int {
	n := 8
	for bits%2 == 0 {
		bits /= 2
		n /= 2
	}
	return n
}
