package ref

import (
	"encoding/binary"

	"github.com/turbotrellis/turbotrellis/codec"
)

// Mask rejects tokens (docs/numerics.md §9).
func (Backend) Mask(dst, logits codec.Tensor, m codec.Bitmask) (empty []int, err error) {
	size := logits.DType.Size()
	for r := range logits.Rows() {
		from, fromStep := logits.RowOffset(r)
		to, toStep := dst.RowOffset(r)
		words := maskRow(m, r)
		none := true
		for t := range logits.Dim() {
			allow := allowed(words, t)
			none = none && !allow
			bits := loadBits(logits.DType, logits.Data[(from+t*fromStep)*size:])
			storeBits(dst.DType, dst.Data[(to+t*toStep)*size:], mask(logits.DType, bits, allow))
		}
		if none {
			empty = append(empty, r)
		}
	}
	return empty, nil
}

// maskRow returns the words of row r.
func maskRow(m codec.Bitmask, r int) []byte {
	if m.Words == 0 {
		return nil
	}
	if m.Rows == 1 {
		r = 0
	}
	return m.Data[4*r*m.Stride:][:4*m.Words]
}

// allowed reports whether token t is allowed by a row of words: a token beyond them is not.
func allowed(words []byte, t int) bool {
	return t/8 < len(words) && words[t/8]>>(t%8)&1 != 0
}

// mask returns the bits of logit + (0 | −Inf) for a logit of the given bits.
func mask(t codec.DType, bits uint32, allow bool) uint32 {
	sign, inf, nan := uint32(1<<15), uint32(0x7f80), uint32(0x7fc0) // bf16
	switch t {
	case codec.F32:
		sign, inf, nan = 1<<31, 0x7f800000, 0x7fc00000
	case codec.F16:
		inf, nan = 0x7c00, 0x7e00
	}
	switch {
	case allow && bits == sign: // −0 + 0
		return 0
	case allow || bits&^sign > inf: // NaN stays NaN
		return bits
	case bits == inf: // +Inf − Inf
		return nan
	}
	return sign | inf
}

// Compact copies a view.
func (Backend) Compact(dst, x codec.Tensor) error {
	size := x.DType.Size()
	at := dst.Data
	for r := range x.Rows() {
		from, step := x.RowOffset(r)
		for i := range x.Dim() {
			copy(at[:size], x.Data[(from+i*step)*size:])
			at = at[size:]
		}
	}
	return nil
}

func loadBits(t codec.DType, b []byte) uint32 {
	if t.Size() == 4 {
		return binary.LittleEndian.Uint32(b)
	}
	return uint32(binary.LittleEndian.Uint16(b))
}

func storeBits(t codec.DType, b []byte, bits uint32) {
	if t.Size() == 4 {
		binary.LittleEndian.PutUint32(b, bits)
	} else {
		binary.LittleEndian.PutUint16(b, uint16(bits))
	}
}
