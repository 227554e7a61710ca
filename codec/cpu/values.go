package cpu

import (
	"encoding/binary"
	"math"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/lloydmax"
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
	x := w.x[:c.dim]
	for base := 0; len(src) > 0; base += c.dim {
		exact, ok := c.load(x, src[:n], t)
		if !ok {
			widen(x, src[:n], t)
			f.nonFinite = base + firstNonFinite(x)
			return f
		}
		src = src[n:]
		c.rot.forward(x)
		for g := 0; g < c.dim; g += c.group {
			if !c.encodeGroup(&w.group, codes[:c.codeLen], scales, x[g:g+c.group], exact) && f.overflow < 0 {
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

// load widens a row, makes it canonical, multiplies it by the signs and applies octets. It is false where an
// element is not finite. exact reports whether squares of the rotated row may have to be flushed.
func (c *valueCoder) load(x []float32, src []byte, t codec.DType) (exact, ok bool) {
	// Sign bits: some magnitude is infinity or more; some is in (0, 2^-30).
	var big, tiny uint32
	if t == codec.F32 {
		big, tiny = load32(x, src, c.rot.signs)
	} else {
		widen(x, src, t)
		big, tiny = loadWide(x, c.rot.signs)
	}
	if (big|tiny)>>31 == 0 {
		return false, true
	}
	if big>>31 != 0 {
		return false, false
	}
	widen(x, src, t)
	for i, v := range x {
		x[i] = f32.Canon(v)
	}
	c.rot.flip(x)
	octets(x)
	return true, true
}

const (
	infinityUp = 1<<31 - infinity // carries a magnitude of infinity or more to the sign bit
	magnitude  = 0x7fffffff
)

// load32 applies signs and octets to float32 elements.
func load32(x []float32, src []byte, signs []uint32) (big, tiny uint32) {
	for len(x) >= 8 && len(src) >= 32 && len(signs) >= 8 {
		p, s, d := (*[32]byte)(src), (*[8]uint32)(signs), (*[8]float32)(x)
		b0, b1 := binary.LittleEndian.Uint32(p[0:]), binary.LittleEndian.Uint32(p[4:])
		b2, b3 := binary.LittleEndian.Uint32(p[8:]), binary.LittleEndian.Uint32(p[12:])
		big, tiny = note4(big, tiny, b0, b1, b2, b3)
		x0, x1 := math.Float32frombits(b0^s[0]), math.Float32frombits(b1^s[1])
		x2, x3 := math.Float32frombits(b2^s[2]), math.Float32frombits(b3^s[3])
		b0, b1 = binary.LittleEndian.Uint32(p[16:]), binary.LittleEndian.Uint32(p[20:])
		b2, b3 = binary.LittleEndian.Uint32(p[24:]), binary.LittleEndian.Uint32(p[28:])
		big, tiny = note4(big, tiny, b0, b1, b2, b3)
		x0, x1, x2, x3 = stages2(x0, x1, x2, x3)
		x4, x5 := math.Float32frombits(b0^s[4]), math.Float32frombits(b1^s[5])
		x6, x7 := math.Float32frombits(b2^s[6]), math.Float32frombits(b3^s[7])
		x4, x5, x6, x7 = stages2(x4, x5, x6, x7)
		d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7] = x0+x4, x1+x5, x2+x6, x3+x7, x0-x4, x1-x5, x2-x6, x3-x7
		x, src, signs = x[8:], src[32:], signs[8:]
	}
	return big, tiny
}

// loadWide is load32 for elements that x holds already.
func loadWide(x []float32, signs []uint32) (big, tiny uint32) {
	for len(x) >= 8 && len(signs) >= 8 {
		s, d := (*[8]uint32)(signs), (*[8]float32)(x)
		b0, b1, b2, b3 := math.Float32bits(d[0]), math.Float32bits(d[1]), math.Float32bits(d[2]), math.Float32bits(d[3])
		big, tiny = note4(big, tiny, b0, b1, b2, b3)
		x0, x1 := math.Float32frombits(b0^s[0]), math.Float32frombits(b1^s[1])
		x2, x3 := math.Float32frombits(b2^s[2]), math.Float32frombits(b3^s[3])
		b0, b1, b2, b3 = math.Float32bits(d[4]), math.Float32bits(d[5]), math.Float32bits(d[6]), math.Float32bits(d[7])
		big, tiny = note4(big, tiny, b0, b1, b2, b3)
		x0, x1, x2, x3 = stages2(x0, x1, x2, x3)
		x4, x5 := math.Float32frombits(b0^s[4]), math.Float32frombits(b1^s[5])
		x6, x7 := math.Float32frombits(b2^s[6]), math.Float32frombits(b3^s[7])
		x4, x5, x6, x7 = stages2(x4, x5, x6, x7)
		d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7] = x0+x4, x1+x5, x2+x6, x3+x7, x0-x4, x1-x5, x2-x6, x3-x7
		x, signs = x[8:], signs[8:]
	}
	return big, tiny
}

// note4 collects the signs of four elements' bits for load.
func note4(big, tiny, a, b, c, d uint32) (uint32, uint32) {
	a, b, c, d = a&magnitude, b&magnitude, c&magnitude, d&magnitude
	big |= (a + infinityUp) | (b + infinityUp) | (c + infinityUp) | (d + infinityUp)
	tiny |= (a-safeMin)&^(a-1) | (b-safeMin)&^(b-1) | (c-safeMin)&^(c-1) | (d-safeMin)&^(d-1)
	return big, tiny
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
	a := squares4(y[0], y[16], y[8], y[24]) + squares4(y[4], y[20], y[12], y[28])
	b := squares4(y[2], y[18], y[10], y[26]) + squares4(y[6], y[22], y[14], y[30])
	c := squares4(y[1], y[17], y[9], y[25]) + squares4(y[5], y[21], y[13], y[29])
	d := squares4(y[3], y[19], y[11], y[27]) + squares4(y[7], y[23], y[15], y[31])
	return (a + b) + (c + d)
}

func squares4(a, b, c, d float32) float32 {
	return (float32(a*a) + float32(b*b)) + (float32(c*c) + float32(d*d))
}

// tree32 is f32.TreeSum of 32 terms.
func tree32(q *[32]float32) float32 {
	a := sum4(q[0], q[16], q[8], q[24]) + sum4(q[4], q[20], q[12], q[28])
	b := sum4(q[2], q[18], q[10], q[26]) + sum4(q[6], q[22], q[14], q[30])
	c := sum4(q[1], q[17], q[9], q[25]) + sum4(q[5], q[21], q[13], q[29])
	d := sum4(q[3], q[19], q[11], q[27]) + sum4(q[7], q[23], q[15], q[31])
	return (a + b) + (c + d)
}

func sum4(a, b, c, d float32) float32 { return (a + b) + (c + d) }

// searched returns the stored scale of least squared error and sets w.index to go with it. Where no candidate is
// finite, it is the rms that does.
func (c *valueCoder) searched(w *group, y []float32, rms float32) float32 {
	index := w.index[:len(y)]
	best, found := rms, false
	var bestErr float32
	for _, factor := range lloydmax.SearchFactors() {
		s := c.scaleType.Round(float32(rms * factor))
		if !f32.IsFinite(s) {
			continue
		}
		var err float32
		if s > minScale && s < maxScale {
			// An error is 0 or far above 2^-63: its square is not flushed.
			c.levels.squares(w.q[:len(y)], y, s)
			if len(y) == 64 {
				q, p := (*[32]float32)(w.q[:32]), (*[32]float32)(w.q[32:64])
				for i := range q {
					q[i] += p[i]
				}
			}
			err = tree32((*[32]float32)(w.q[:32]))
		} else {
			q := w.q[:len(y)]
			c.levels.divide(w.trial[:len(y)], y, s+eps)
			for i, v := range y {
				e := float32(c.levels.centroids[w.trial[i]]*s) - v
				q[i] = flush(e * e)
			}
			err = f32.TreeSum(q)
		}
		if !found || err < bestErr {
			best, bestErr, found = s, err, true
		}
	}
	if found && best > minScale && best < maxScale {
		c.levels.guess(index, y, best+eps)
	} else {
		c.levels.divide(index, y, best+eps)
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
		fast := t == codec.BF16 && !rotated
		for g := 0; g < c.dim; g += c.group {
			scale := c.scaleType.Load(scales)
			fast = fast && scale == scale
			c.decodeGroup(x[g:g+c.group], codes[:c.codeLen], scale, rotated)
			codes, scales = codes[c.codeLen:], scales[size:]
		}
		if !rotated {
			c.rot.inverse(x)
		}
		if fast {
			narrowBF16(dst[:n], x, c.rot.signs)
		} else {
			if !rotated {
				c.rot.flip(x)
			}
			saturated += narrow(dst[:n], x, t, !c.compat)
		}
		dst = dst[n:]
	}
	return saturated
}

// decodeGroup writes centroid·scale, and applies octets unless rotated is set.
func (c *valueCoder) decodeGroup(x []float32, codes []byte, scale float32, rotated bool) {
	if c.bits > 5 {
		for i, v := range codes[:len(x)] {
			x[i] = c.levels.centroids[v] * scale
		}
		if !rotated {
			octets(x)
		}
		return
	}
	// Few levels: their products with the scale, once.
	var product [32]float32
	for i, v := range c.levels.centroids[:1<<(c.bits&7)] {
		product[i%32] = v * scale
	}
	s := 8 - c.packer.bits
	for len(x) >= 8 {
		d := (*[8]float32)(x)
		v := c.packer.spread(get(codes), s)
		d0, d1, d2, d3 := product[v%32], product[v>>8%32], product[v>>16%32], product[v>>24%32]
		d4, d5, d6, d7 := product[v>>32%32], product[v>>40%32], product[v>>48%32], product[v>>56%32]
		if !rotated {
			d0, d1, d2, d3 = stages2(d0, d1, d2, d3)
			d4, d5, d6, d7 = stages2(d4, d5, d6, d7)
			d0, d1, d2, d3, d4, d5, d6, d7 = d0+d4, d1+d5, d2+d6, d3+d7, d0-d4, d1-d5, d2-d6, d3-d7
		}
		d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7] = d0, d1, d2, d3, d4, d5, d6, d7
		codes = codes[c.packer.bits:]
		x = x[8:]
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
		octets(x)
		c.rot.inverse(x)
		c.rot.flip(x)
		saturated += narrow(dst[:n], x, t, !c.compat)
		dst, src = dst[n:], src[n:]
	}
	return saturated
}
