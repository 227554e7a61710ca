package cpu

import (
	"math"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/f32"
)

// valueCoder is the arithmetic of values (docs/numerics.md §3, §4).
type valueCoder struct {
	dim, group int
	bits       int
	scaleType  codec.DType
	compat     bool
	search     bool
	rot        *rotation
	levels     *levels
	packer     bitPacker
	codeLen    int // bytes of a group's codes

	simd valueKernels
}

// valueKernels are vector kernels, or nil.
type valueKernels struct {
	encode   func(c *valueCoder, w *row, codes, scales, src []byte, t codec.DType) found
	decode   func(c *valueCoder, w *row, dst, codes, scales []byte, t codec.DType, rotated bool) int
	unrotate func(c *valueCoder, w *row, dst, src []byte, t codec.DType) int
}

func newValueCoder(p codec.KVParams, level Level) (valueCoder, error) {
	c := valueCoder{
		dim: p.ValueHeadDim, group: p.Group, bits: p.Values.Bits(), scaleType: p.ScaleType, compat: p.Policy == codec.Compat,
		search: p.Scale == codec.Search, packer: newBitPacker(p.Values.Bits()), codeLen: p.Group / 8 * p.Values.Bits(),
	}
	var err error
	if c.rot, err = newRotation(c.dim); err != nil {
		return c, err
	}
	if c.levels, err = newLevels(c.bits); err != nil {
		return c, err
	}
	c.simd = valueKernelsFor(&c, level)
	return c, nil
}

// encode packs the rows of src, elements of type t without gaps.
func (c *valueCoder) encode(w *row, codes, scales, src []byte, t codec.DType) found {
	if c.simd.encode != nil {
		return c.simd.encode(c, w, codes, scales, src, t)
	}
	f := clean
	n := c.dim * t.Size()
	for base := 0; len(src) > 0; base += c.dim {
		x := w.x[:c.dim]
		widen(x, src[:n], t)
		src = src[n:]
		exact, ok := c.signed(x)
		if !ok {
			f.nonFinite = base + firstNonFinite(x)
			return f
		}
		c.rot.forward(x)
		for g := 0; g < c.dim; g += c.group {
			if !c.encodeGroup(&w.group, codes, scales, x[g:g+c.group], exact) && f.overflow < 0 {
				f.overflow = base + g
			}
			codes, scales = codes[c.codeLen:], scales[c.scaleType.Size():]
		}
	}
	return f
}

// firstNonFinite returns the index of the first element that is NaN or an infinity. There is one.
func firstNonFinite(x []float32) int {
	for i, v := range x {
		if !f32.IsFinite(v) {
			return i
		}
	}
	return -1
}

// safeMin is the bits of 2^-30. Where every element is 0 or at least that, elements of the rotated row are 0 or
// at least 2^-60: their squares are not flushed.
const safeMin = 0x30800000

// signed makes a row canonical and multiplies it by the signs. It is false where an element is not finite, which
// is left so. exact reports whether squares of the rotated row may have to be flushed.
func (c *valueCoder) signed(x []float32) (exact, ok bool) {
	var big, tiny uint32 // sign bits: a magnitude from infinity on, a magnitude in (0, 2^-30)
	signs := c.rot.signs[:len(x)]
	for i := 0; i+8 <= len(x); i += 8 {
		p, s := (*[8]float32)(x[i:]), (*[8]uint32)(signs[i:])
		for j, v := range p {
			b := math.Float32bits(v)
			m := b & 0x7fffffff
			big |= m + (1<<31 - infinity)
			tiny |= (m - safeMin) &^ (m - 1)
			p[j] = math.Float32frombits(b ^ s[j])
		}
	}
	if big>>31 != 0 {
		return false, false
	}
	if tiny>>31 != 0 {
		for i, v := range x {
			if math.Float32bits(v)&0x7fffffff < canonMin {
				x[i] = 0
			}
		}
	}
	return tiny>>31 != 0, true
}

// encodeGroup packs one rotated group and reports whether its scale can be stored.
func (c *valueCoder) encodeGroup(w *group, codes, scale []byte, y []float32, exact bool) bool {
	s := c.rms(w, y, exact)
	index := w.index[:len(y)]
	if c.search {
		s = c.searched(w, y, s)
	} else if se := s + eps; se < maxScale { // and no less than eps: the reciprocal is normal
		c.levels.guess(index, y, se)
	} else {
		c.levels.divide(index, y, se)
	}
	c.packer.pack(codes, index)
	c.scaleType.Store(scale, s)
	return c.compat || f32.IsFinite(c.scaleType.Load(scale))
}

// rms returns the root mean square of a group.
func (c *valueCoder) rms(w *group, y []float32, exact bool) float32 {
	var sum float32
	switch {
	case exact:
		q := w.q[:len(y)]
		for i, v := range y {
			q[i] = flush(v * v)
		}
		sum = f32.TreeSum(q)
	case len(y) == 32:
		sum = squares32((*[32]float32)(y))
	default:
		p := (*[64]float32)(y)
		q := (*[32]float32)(w.q[:32])
		for i := range q {
			a, b := p[i], p[i+32]
			q[i] = float32(a*a) + float32(b*b)
		}
		sum = tree32(q)
	}
	return f32.Sqrt(flush(sum * (1 / float32(len(y)))))
}

// squares32 is tree32 of the squares.
func squares32(y *[32]float32) float32 {
	var t [8]float32
	for i := range t {
		a, b, c, d := y[i], y[i+16], y[i+8], y[i+24]
		t[i] = (float32(a*a) + float32(b*b)) + (float32(c*c) + float32(d*d))
	}
	return ((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7]))
}

// tree32 is f32.TreeSum of 32 terms.
func tree32(q *[32]float32) float32 {
	var t [8]float32
	for i := range t {
		t[i] = (q[i] + q[i+16]) + (q[i+8] + q[i+24])
	}
	return ((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7]))
}

// searchSteps are the multiples of the rms, in sixteenths, that the search tries, in this order.
var searchSteps = [...]float32{16, 15, 17, 14, 18, 13, 19, 12, 20}

// searched returns the stored scale of least squared error and sets w.index to go with it. Where no candidate is
// finite, it is the rms that does.
func (c *valueCoder) searched(w *group, y []float32, rms float32) float32 {
	best, found := rms, false
	var bestErr float32
	q := w.q[:len(y)]
	for _, step := range searchSteps {
		s := c.scaleType.Round(float32(rms * (step / 16)))
		if !f32.IsFinite(s) {
			continue
		}
		trial := w.trial[:len(y)]
		if s > minScale && s < maxScale {
			c.levels.guess(trial, y, s+eps)
		} else {
			c.levels.divide(trial, y, s+eps)
		}
		for i, v := range y {
			e := float32(c.levels.centroids[trial[i]]*s) - v
			q[i] = flush(e * e)
		}
		if err := f32.TreeSum(q); !found || err < bestErr {
			best, bestErr, found = s, err, true
			copy(w.index[:], trial)
		}
	}
	if !found {
		c.levels.divide(w.index[:len(y)], y, rms+eps)
	}
	return best
}

// decode unpacks rows into dst, elements of type t without gaps, rotated back unless rotated is set, and returns
// how many it saturated.
func (c *valueCoder) decode(w *row, dst, codes, scales []byte, t codec.DType, rotated bool) (saturated int) {
	if c.simd.decode != nil {
		return c.simd.decode(c, w, dst, codes, scales, t, rotated)
	}
	n, size := c.dim*t.Size(), c.scaleType.Size()
	x := w.x[:c.dim]
	for len(dst) > 0 {
		for g := 0; g < c.dim; g += c.group {
			c.decodeGroup(&w.group, x[g:g+c.group], codes[:c.codeLen], c.scaleType.Load(scales))
			codes, scales = codes[c.codeLen:], scales[size:]
		}
		if !rotated {
			c.rot.inverse(x)
			c.rot.flip(x)
		}
		saturated += narrow(dst[:n], x, t, !c.compat)
		dst = dst[n:]
	}
	return saturated
}

// decodeGroup writes centroid·scale.
func (c *valueCoder) decodeGroup(w *group, x []float32, codes []byte, scale float32) {
	if c.bits > 5 {
		for i, v := range codes[:len(x)] {
			x[i] = c.levels.centroids[v] * scale
		}
		return
	}
	// Few levels: their products with the scale, once.
	var product [32]float32
	for i := range 1 << c.bits {
		product[i&31] = c.levels.centroids[i&31] * scale
	}
	s := 8 - c.packer.bits
	for i := 0; i+8 <= len(x); i += 8 {
		d := (*[8]float32)(x[i:])
		v := c.packer.spread(get(codes), s)
		codes = codes[c.packer.bits:]
		d[0] = product[v%32]
		d[1] = product[v>>8%32]
		d[2] = product[v>>16%32]
		d[3] = product[v>>24%32]
		d[4] = product[v>>32%32]
		d[5] = product[v>>40%32]
		d[6] = product[v>>48%32]
		d[7] = product[v>>56%32]
	}
}

// unrotate rotates rows back from src to dst, both of type t without gaps. dst may be src.
func (c *valueCoder) unrotate(w *row, dst, src []byte, t codec.DType) (saturated int) {
	if c.simd.unrotate != nil {
		return c.simd.unrotate(c, w, dst, src, t)
	}
	n := c.dim * t.Size()
	x := w.x[:c.dim]
	for len(dst) > 0 {
		widen(x, src[:n], t)
		for i, v := range x {
			x[i] = f32.Canon(v)
		}
		c.rot.inverse(x)
		c.rot.flip(x)
		saturated += narrow(dst[:n], x, t, !c.compat)
		dst, src = dst[n:], src[n:]
	}
	return saturated
}
