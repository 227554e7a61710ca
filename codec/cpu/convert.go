package cpu

import (
	"encoding/binary"
	"math"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/pack"
)

// Rows whose length is a multiple of 8 are converted 8 elements at a time: an array of known length needs no
// check per element.

// widen converts the elements of type t in src, which dst has room for.
func widen(dst []float32, src []byte, t codec.DType) {
	n := len(dst) &^ 7
	switch t {
	case codec.F32:
		for i := 0; i < n; i += 8 {
			d, s := (*[8]float32)(dst[i:]), (*[32]byte)(src[4*i:])
			for j := range d {
				d[j] = math.Float32frombits(binary.LittleEndian.Uint32(s[4*j:]))
			}
		}
		for i := n; i < len(dst); i++ {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case codec.F16:
		for i := 0; i < n; i += 8 {
			d, s := (*[8]float32)(dst[i:]), (*[16]byte)(src[2*i:])
			for j := range d {
				h := uint32(binary.LittleEndian.Uint16(s[2*j:]))
				if e := h & 0x7c00; e-0x0400 < 0x7800 { // normal
					d[j] = math.Float32frombits(h&0x8000<<16 | (h&0x7fff+(127-15)<<10)<<13)
				} else {
					d[j] = pack.FromF16(uint16(h))
				}
			}
		}
		for i := n; i < len(dst); i++ {
			dst[i] = pack.FromF16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case codec.BF16:
		for i := 0; i < n; i += 8 {
			d, s := (*[8]float32)(dst[i:]), (*[16]byte)(src[2*i:])
			for j := range d {
				d[j] = pack.FromBF16(binary.LittleEndian.Uint16(s[2*j:]))
			}
		}
		for i := n; i < len(dst); i++ {
			dst[i] = pack.FromBF16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	}
}

// narrow rounds src to elements of type t in dst. Where saturate is set, a finite value that binary16 would make
// an infinity becomes ±65504; narrow returns their number.
func narrow(dst []byte, src []float32, t codec.DType, saturate bool) (saturated int) {
	n := len(src) &^ 7
	switch t {
	case codec.F32:
		for i := 0; i < n; i += 8 {
			d, s := (*[32]byte)(dst[4*i:]), (*[8]float32)(src[i:])
			for j, x := range s {
				binary.LittleEndian.PutUint32(d[4*j:], math.Float32bits(x))
			}
		}
		for i := n; i < len(src); i++ {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(src[i]))
		}
	case codec.F16:
		for i := 0; i < n; i += 8 {
			d, s := (*[16]byte)(dst[2*i:]), (*[8]float32)(src[i:])
			for j, x := range s {
				b := math.Float32bits(x)
				m := b & 0x7fffffff
				if m-0x38800000 < 0x477ff000-0x38800000 { // normal in binary16
					binary.LittleEndian.PutUint16(d[2*j:], uint16(b>>16&0x8000|(m-(127-15)<<23+0xfff+m>>13&1)>>13))
					continue
				}
				h, sat := toF16(x, saturate)
				binary.LittleEndian.PutUint16(d[2*j:], h)
				saturated += sat
			}
		}
		for i := n; i < len(src); i++ {
			h, sat := toF16(src[i], saturate)
			binary.LittleEndian.PutUint16(dst[2*i:], h)
			saturated += sat
		}
	case codec.BF16:
		for i := 0; i < n; i += 8 {
			d, s := (*[16]byte)(dst[2*i:]), (*[8]float32)(src[i:])
			for j, x := range s {
				binary.LittleEndian.PutUint16(d[2*j:], toBF16(x))
			}
		}
		for i := n; i < len(src); i++ {
			binary.LittleEndian.PutUint16(dst[2*i:], toBF16(src[i]))
		}
	}
	return saturated
}

// toF16 is pack.ToF16 for any value, saturating if told to.
func toF16(x float32, saturate bool) (h uint16, saturated int) {
	h = pack.ToF16(x)
	if saturate && h&0x7fff == 0x7c00 && math.Float32bits(x)&0x7fffffff < 0x7f800000 {
		return h - 1, 1 // the largest finite value
	}
	return h, 0
}

// toBF16 is pack.ToBF16, small enough to be inlined.
func toBF16(x float32) uint16 {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16 | 0x40)
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// roundBF16 is toBF16 of what is not a NaN that came from a stored scale.
func roundBF16(x float32) uint16 {
	b := math.Float32bits(x)
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// narrowBF16 is narrow to bf16 of x with the sign bits in signs turned, for rows without a NaN that came from a
// stored scale: one that an operation made does not overflow when it is rounded.
func narrowBF16(dst []byte, x []float32, signs []uint32) {
	for len(x) >= 4 && len(signs) >= 4 && len(dst) >= 8 {
		s, g := (*[4]float32)(x), (*[4]uint32)(signs)
		a, b := math.Float32bits(s[0])^g[0], math.Float32bits(s[1])^g[1]
		c, d := math.Float32bits(s[2])^g[2], math.Float32bits(s[3])^g[3]
		p := (*[8]byte)(dst)
		binary.LittleEndian.PutUint16(p[0:], uint16((a+0x7fff+a>>16&1)>>16))
		binary.LittleEndian.PutUint16(p[2:], uint16((b+0x7fff+b>>16&1)>>16))
		binary.LittleEndian.PutUint16(p[4:], uint16((c+0x7fff+c>>16&1)>>16))
		binary.LittleEndian.PutUint16(p[6:], uint16((d+0x7fff+d>>16&1)>>16))
		x, signs, dst = x[4:], signs[4:], dst[8:]
	}
}

// contiguous reports whether rows of t follow each other without gaps, elements too.
func contiguous(t codec.Tensor) bool {
	step := 1
	for i := len(t.Shape) - 1; i >= 0 && t.Stride != nil; i-- {
		if t.Shape[i] != 1 && t.Stride[i] != step {
			return false
		}
		step *= t.Shape[i]
	}
	return true
}

// gather copies row r of t to dst, without gaps and in t's type.
func gather(dst []byte, t codec.Tensor, r int) {
	off, stride := t.RowOffset(r)
	size := t.DType.Size()
	src, step := t.Data[off*size:], stride*size
	if size == 4 {
		for i := 0; i < len(dst); i += 4 {
			binary.LittleEndian.PutUint32(dst[i:], binary.LittleEndian.Uint32(src[i/4*step:]))
		}
		return
	}
	for i := 0; i < len(dst); i += 2 {
		binary.LittleEndian.PutUint16(dst[i:], binary.LittleEndian.Uint16(src[i/2*step:]))
	}
}

// scatter copies src to row r of t.
func scatter(t codec.Tensor, r int, src []byte) {
	off, stride := t.RowOffset(r)
	size := t.DType.Size()
	dst, step := t.Data[off*size:], stride*size
	if size == 4 {
		for i := 0; i < len(src); i += 4 {
			binary.LittleEndian.PutUint32(dst[i/4*step:], binary.LittleEndian.Uint32(src[i:]))
		}
		return
	}
	for i := 0; i < len(src); i += 2 {
		binary.LittleEndian.PutUint16(dst[i/2*step:], binary.LittleEndian.Uint16(src[i:]))
	}
}
