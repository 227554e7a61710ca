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

import (
	"slices"

	"github.com/turbotrellis/turbotrellis/internal/fault"
)

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
	packAll(dst, src, bits)
	return nil
}

// AppendPack appends the packed form of src, one index a byte, to dst and
// returns the extended slice. Errors are as in Pack; dst is then returned
// unchanged.
func AppendPack(dst, src []byte, bits int) ([]byte, error) {
	n, err := PackedLen(len(src), bits)
	if err != nil {
		return dst, err
	}
	if err := checkRange(src, bits); err != nil {
		return dst, err
	}
	dst = slices.Grow(dst, n)
	dst = dst[:len(dst)+n]
	packAll(dst[len(dst)-n:], src, bits)
	return dst, nil
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
	unpackAll(dst, src, bits)
	return nil
}

// AppendUnpack appends the n indices packed in src, which must be exactly
// PackedLen(n, bits) bytes, to dst and returns the extended slice. On any error
// dst is returned unchanged.
func AppendUnpack(dst, src []byte, n, bits int) ([]byte, error) {
	want, err := PackedLen(n, bits)
	if err != nil {
		return dst, err
	}
	if len(src) != want {
		return dst, fault.New(fault.ErrShape, "%d elements of %d bits are packed in %d bytes, but src has %d", n, bits, want, len(src))
	}
	dst = slices.Grow(dst, n)
	dst = dst[:len(dst)+n]
	unpackAll(dst[len(dst)-n:], src, bits)
	return dst, nil
}

func checkBits(bits int) error {
	if bits < 1 || bits > 8 {
		return fault.New(fault.ErrParams, "width of %d bits is outside 1 to 8", bits)
	}
	return nil
}

// checkRange reports the first index of src that does not fit the width.
func checkRange(src []byte, bits int) error {
	var all byte
	for _, v := range src {
		all |= v
	}
	if all>>bits == 0 {
		return nil
	}
	i := slices.IndexFunc(src, func(v byte) bool { return v>>bits != 0 })
	return fault.New(fault.ErrParams, "index %d at position %d does not fit %d bits", src[i], i, bits)
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

// packAll and unpackAll move eight elements at a time: 8·bits bits are whole
// bytes at every width and fit one word. A shorter last run fills whole bytes
// too, as PackedLen has seen to.
func packAll(dst, src []byte, bits int) {
	if bits == 8 {
		copy(dst, src)
		return
	}
	for len(src) > 0 {
		n := min(8, len(src))
		var w uint64
		for i, v := range src[:n] {
			w |= uint64(v) << (i * bits)
		}
		run := dst[:n*bits/8]
		for i := range run {
			run[i] = byte(w >> (8 * i))
		}
		src, dst = src[n:], dst[len(run):]
	}
}

func unpackAll(dst, src []byte, bits int) {
	if bits == 8 {
		copy(dst, src)
		return
	}
	mask := byte(1)<<bits - 1
	for len(dst) > 0 {
		n := min(8, len(dst))
		run := src[:n*bits/8]
		var w uint64
		for i, v := range run {
			w |= uint64(v) << (8 * i)
		}
		for i := range dst[:n] {
			dst[i] = byte(w>>(i*bits)) & mask
		}
		dst, src = dst[n:], src[len(run):]
	}
}
