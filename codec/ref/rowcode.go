package ref

import (
	"encoding/binary"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/hadamard"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/lloydmax"
	"github.com/turbotrellis/turbotrellis/pack"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// rows is the codec of one row code.
type rows struct {
	format codec.Format
	dim    int
	policy codec.Policy
}

// RowCode returns the row code f for rows of dim elements.
func (Backend) RowCode(f codec.Format, dim int, p codec.Policy) (driver.RowCode, error) {
	_, err := newRowCode(dim, f.Bits(), f.Trellis())
	return &rows{f, dim, p}, err
}

// Encode packs x (docs/numerics.md §10).
func (c *rows) Encode(codes, scales []byte, x codec.Tensor, centre codec.Centre) (driver.Found, error) {
	w, err := newRowCode(c.dim, c.format.Bits(), c.format.Trellis())
	if err != nil {
		return driver.Nothing, err
	}
	if i := firstNonFinite(x, w.canon); i >= 0 {
		return driver.Found{NonFinite: i, Overflow: driver.None}, nil
	}
	for r := range x.Rows() {
		x.LoadRow(w.canon, r)
		mean, gain := w.centre(centre, r)
		scale, overflow := w.encode(part(codes, r, c.dim*c.format.Bits()/8), mean, gain)
		if overflow {
			return driver.Found{NonFinite: driver.None, Overflow: r * c.dim}, nil
		}
		scales[r] = scale
	}
	return driver.Nothing, nil
}

// Decode unpacks rows (docs/numerics.md §10).
func (c *rows) Decode(dst codec.Tensor, codes, scales []byte, centre codec.Centre, rotated bool) (saturated int, err error) {
	w, err := newRowCode(c.dim, c.format.Bits(), c.format.Trellis())
	if err != nil {
		return 0, err
	}
	for r := range dst.Rows() {
		w.decode(part(codes, r, c.dim*c.format.Bits()/8), scales[r])
		if !rotated {
			w.unrotate(w.centre(centre, r))
		}
		saturated += storeRow(dst, r, w.decoded, c.policy)
	}
	return saturated, nil
}

// Unrotate rotates rows back, and un-centres them (docs/numerics.md §10).
func (c *rows) Unrotate(dst, x codec.Tensor, centre codec.Centre, mass codec.Tensor) (saturated int, err error) {
	w, err := newRowCode(c.dim, c.format.Bits(), c.format.Trellis())
	if err != nil {
		return 0, err
	}
	for r := range x.Rows() {
		x.LoadRow(w.decoded, r)
		canon(w.decoded)
		mean, gain := w.centre(centre, r)
		if mean != nil {
			var m [1]float32
			mass.LoadRow(m[:], r)
			for i, v := range mean {
				mean[i] = float32(v * m[0])
			}
		}
		w.unrotate(mean, gain)
		saturated += storeRow(dst, r, w.decoded, c.policy)
	}
	return saturated, nil
}

// rowCode codes rows with one scale byte each (docs/numerics.md §10): Lloyd–Max levels, or a trellis along the row.
type rowCode struct {
	bits   int
	rot    *hadamard.Rotation
	levels *lloydmax.Table  // of the levels code, else nil
	enc    *trellis.Encoder // of the trellis code
	values []float32        // f(state)

	// One row at every stage.
	canon   []float32 // canonical, centred if there is a centre
	rotated []float32 // y
	samples []float32 // y / s(c0)
	square  []float32
	index   []byte   // levels
	trial   []byte   // levels, of the scale being tried
	states  []uint16 // trellis
	words   []uint32 // trellis: one packed block
	decoded []float32
	mean    []float32 // of the row's centre
	gain    []float32
}

// centre returns row r of a centre, or nil where there is none.
func (c *rowCode) centre(centre codec.Centre, r int) (mean, gain []float32) {
	if centre.Mean.DType == 0 {
		return nil, nil
	}
	centre.Mean.LoadRow(c.mean, r)
	centre.Gain.LoadRow(c.gain, r)
	return c.mean, c.gain
}

// maxRowScale is the largest scale code.
const maxRowScale = 247

// rowScale returns s(c): the binary16 with bits c·128.
func rowScale(c int) float32 { return pack.FromF16(uint16(c << 7)) }

func newRowCode(dim, bits int, viterbi bool) (*rowCode, error) {
	rot, err := hadamard.New(dim)
	if err != nil {
		return nil, err
	}
	c := &rowCode{
		bits: bits, rot: rot,
		canon: make([]float32, dim), rotated: make([]float32, dim), samples: make([]float32, dim), square: make([]float32, dim),
		decoded: make([]float32, dim), mean: make([]float32, dim), gain: make([]float32, dim),
	}
	if !viterbi {
		c.index, c.trial = make([]byte, dim), make([]byte, dim)
		c.levels, err = lloydmax.Lookup(bits)
		return c, err
	}
	if c.values, err = trellis.RowValues(bits); err != nil {
		return nil, err
	}
	c.states, c.words = make([]uint16, dim), make([]uint32, dim*bits/32)
	c.enc, err = trellis.NewRowEncoder(bits, dim)
	return c, err
}

// encode packs the row in c.canon, already widened and finite, into codes, and returns its scale code. mean and
// gain are the centre, or nil. It reports whether the row's scale overflows.
func (c *rowCode) encode(codes []byte, mean, gain []float32) (scale byte, overflow bool) {
	canon(c.canon)
	if mean != nil {
		for i, v := range c.canon {
			c.canon[i] = f32.Canon((v - mean[i]) / gain[i])
		}
	}
	copy(c.rotated, c.canon)
	c.rot.Forward(c.rotated)
	for i, y := range c.rotated {
		c.square[i] = f32.Flush(y * y)
	}
	h := pack.ToF16(f32.Sqrt(f32.Flush(laneSum(c.square) / float32(len(c.square)))))
	if h&0x7c00 == 0x7c00 {
		return 0, true
	}
	c0 := min((int(h)+64)>>7, maxRowScale)
	if c0 == 0 {
		clear(codes)
		return 0, false
	}
	if c.levels != nil {
		return c.encodeLevels(codes, c0), false
	}
	return c.encodeTrellis(codes, c0), false
}

// encodeLevels tries the scales around c0 and keeps the first of least squared error.
func (c *rowCode) encodeLevels(codes []byte, c0 int) byte {
	best, bestErr := 0, float32(0)
	for _, step := range [...]int{0, -1, 1, -2, 2, -3, 3, -4, 4} {
		code := min(max(c0+step, 1), maxRowScale)
		s := rowScale(code)
		for i, y := range c.rotated {
			c.trial[i] = byte(c.levels.Index(f32.Flush(y / s)))
		}
		err := c.squaredError(s, func(i int) float32 { return c.levels.Centroid(int(c.trial[i])) })
		if best == 0 || err < bestErr {
			best, bestErr = code, err
			copy(c.index, c.trial)
		}
	}
	packRow(codes, c.index, c.bits)
	return byte(best)
}

// encodeTrellis finds the path with scale c0 and then the best scale for that path.
func (c *rowCode) encodeTrellis(codes []byte, c0 int) byte {
	s := rowScale(c0)
	for i, y := range c.rotated {
		c.samples[i] = y / s
	}
	if err := c.enc.EncodeBlock(c.states, c.samples); err != nil {
		panic(err) // |y| is at most rms·√d, so the samples are in range
	}
	best, bestErr := 0, float32(0)
	for _, step := range [...]int{0, -1, 1} {
		code := min(max(c0+step, 1), maxRowScale)
		err := c.squaredError(rowScale(code), func(i int) float32 { return c.values[c.states[i]] })
		if best == 0 || err < bestErr {
			best, bestErr = code, err
		}
	}
	if err := trellis.PackStates(c.words, c.states, c.enc.Params()); err != nil {
		panic(err) // the encoder's paths are tail-biting
	}
	for i, w := range c.words {
		binary.LittleEndian.PutUint32(codes[4*i:], w)
	}
	return byte(best)
}

// squaredError returns the sum of (value(i)·s − y)² over the row.
func (c *rowCode) squaredError(s float32, value func(i int) float32) float32 {
	for i, y := range c.rotated {
		e := float32(value(i)*s) - y
		c.square[i] = f32.Flush(e * e)
	}
	return laneSum(c.square)
}

// decode leaves the row of the given scale code, still rotated, in c.decoded.
func (c *rowCode) decode(codes []byte, scale byte) {
	if scale == 0 {
		clear(c.decoded)
		return
	}
	s := rowScale(int(scale))
	if c.levels != nil {
		unpackRow(c.index, codes, c.bits)
		for i, x := range c.index {
			c.decoded[i] = float32(c.levels.Centroid(int(x)) * s)
		}
		return
	}
	for i := range c.words {
		c.words[i] = binary.LittleEndian.Uint32(codes[4*i:])
	}
	if err := trellis.UnpackStates(c.states, c.words, c.enc.Params()); err != nil {
		panic(err) // the lengths are the encoder's own
	}
	for i, x := range c.states {
		c.decoded[i] = float32(c.values[x] * s)
	}
}

// unrotate turns c.decoded back into the row: the inverse rotation, then the centre if there is one.
func (c *rowCode) unrotate(mean, gain []float32) {
	c.rot.Inverse(c.decoded)
	if mean != nil {
		for i, v := range c.decoded {
			c.decoded[i] = float32(v*gain[i]) + mean[i]
		}
	}
}

// laneSum returns the sum of q, whose length is a multiple of 32: lane l of 32 adds q[l], q[l+32], … in order, and
// the lanes are added by the tree of §4.
func laneSum(q []float32) float32 {
	var lanes [32]float32
	copy(lanes[:], q)
	for i := 32; i < len(q); i++ {
		lanes[i%32] += q[i]
	}
	return f32.TreeSum(lanes[:])
}
