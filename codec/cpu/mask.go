package cpu

import (
	"encoding/binary"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
)

var (
	_ driver.Masks  = (*backend)(nil)
	_ driver.Copies = (*backend)(nil)
)

// maskCall is one call of Mask or Compact as a task: chunk i is rows i·per to (i+1)·per−1.
type maskCall struct {
	dst, x    tensor
	rows, per int
	m         *codec.Bitmask // nil: copy
	empty     []bool         // by row
}

func (b *backend) runRows(a *maskCall) {
	a.rows, a.per = a.x.Rows(), max(1, chunkBytes/(a.x.dim*a.x.size))
	b.pool.run(a, (a.rows+a.per-1)/a.per)
}

// Mask rejects tokens (docs/numerics.md §9).
func (b *backend) Mask(dst, logits codec.Tensor, m codec.Bitmask) (empty []int, err error) {
	a := &maskCall{dst: newTensor(dst), x: newTensor(logits), m: &m, empty: make([]bool, logits.Rows())}
	b.runRows(a)
	for r, none := range a.empty {
		if none {
			empty = append(empty, r)
		}
	}
	return empty, nil
}

// Compact copies a view.
func (b *backend) Compact(dst, x codec.Tensor) error {
	b.runRows(&maskCall{dst: newTensor(dst), x: newTensor(x)})
	return nil
}

func (a *maskCall) chunk(i int) {
	lo, hi := i*a.per, min((i+1)*a.per, a.rows)
	n := a.x.dim * a.x.size
	switch {
	case a.m != nil:
		for r := lo; r < hi; r++ {
			a.empty[r] = a.mask(r)
		}
	case a.x.contiguous:
		copy(a.dst.Data[lo*n:hi*n], a.x.Data[lo*n:])
	default:
		for r := lo; r < hi; r++ {
			gather(a.dst.Data[r*n:][:n], a.x.Tensor, r)
		}
	}
}

// mask masks row r and reports whether no token of it is allowed.
func (a *maskCall) mask(r int) (none bool) {
	at := r
	if a.m.Rows == 1 {
		at = 0
	}
	var words []byte
	if a.m.Words > 0 {
		words = a.m.Data[4*at*a.m.Stride:][:4*a.m.Words]
	}
	from, fromStep := a.x.RowOffset(r)
	to, toStep := a.dst.RowOffset(r)
	none = true
	for t := 0; t < a.x.dim; t += 32 {
		var word uint32
		if t/8 < len(words) {
			word = binary.LittleEndian.Uint32(words[t/8:])
		}
		n := min(32, a.x.dim-t)
		none = none && word<<(32-n) == 0
		if a.x.size == 4 {
			for j := range n {
				x := binary.LittleEndian.Uint32(a.x.Data[(from+(t+j)*fromStep)*4:])
				binary.LittleEndian.PutUint32(a.dst.Data[(to+(t+j)*toStep)*4:], masked(x, 1<<31, 0x7f800000, 0x7fc00000, word>>j&1 != 0))
			}
			continue
		}
		inf, nan := uint32(0x7f80), uint32(0x7fc0)
		if a.x.DType == codec.F16 {
			inf, nan = 0x7c00, 0x7e00
		}
		for j := range n {
			x := uint32(binary.LittleEndian.Uint16(a.x.Data[(from+(t+j)*fromStep)*2:]))
			binary.LittleEndian.PutUint16(a.dst.Data[(to+(t+j)*toStep)*2:], uint16(masked(x, 1<<15, inf, nan, word>>j&1 != 0)))
		}
	}
	return none
}

// masked returns the bits of logit + (0 | −Inf), for a type whose sign, infinity and quiet NaN are given.
func masked(x, sign, inf, nan uint32, allow bool) uint32 {
	switch {
	case allow && x == sign: // −0 + 0
		return 0
	case allow || x&^sign > inf: // NaN stays NaN
		return x
	case x == inf: // +Inf − Inf
		return nan
	}
	return sign | inf
}
