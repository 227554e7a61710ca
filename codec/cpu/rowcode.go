package cpu

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/pack"
	"github.com/turbotrellis/turbotrellis/trellis"
)

var _ driver.RowCodes = (*backend)(nil)

// rowCode implements driver.RowCode (docs/numerics.md §10).
type rowCode struct {
	b       *backend
	dim     int
	compat  bool
	codeLen int // bytes of a row
	rot     *rotation
	levels  *levels    // of the levels code, else nil
	weights *weights   // of the trellis code
	search  *rowSearch // its vector search, or nil
	packer  bitPacker

	rows sync.Pool // of *codeRow
}

// RowCode returns the row code f for rows of dim elements.
func (b *backend) RowCode(f codec.Format, dim int, p codec.Policy) (driver.RowCode, error) {
	c := &rowCode{b: b, dim: dim, compat: p == codec.Compat, codeLen: dim / 8 * f.Bits(), packer: newBitPacker(f.Bits())}
	var err error
	if c.rot, err = newRotation(dim); err != nil {
		return nil, err
	}
	if f.Trellis() {
		values, err := trellis.RowValues(f.Bits())
		if err != nil {
			return nil, err
		}
		c.weights = newWeights(b, trellis.Params{L: trellis.RowL, K: f.Bits(), T: dim}, values)
		c.search = rowSearchFor(c.weights, b.level)
	} else if c.levels, err = newLevels(f.Bits()); err != nil {
		return nil, err
	}
	c.rows.New = func() any { return newCodeRow(c) }
	return c, nil
}

// codeRow is what one goroutine needs.
type codeRow struct {
	x, samples   []float32
	mean, gain   []float32
	centre       int // the element of the means at which mean and gain begin, −1: none
	buf          []byte
	index, trial []byte
	states       []uint16
	words        []uint32
	search       *viterbi // made by the first encoder
	paths        *rowPaths
	call         trellisCall
}

func newCodeRow(c *rowCode) *codeRow {
	d := c.dim
	return &codeRow{x: make([]float32, d), samples: make([]float32, d), mean: make([]float32, d), gain: make([]float32, d), buf: make([]byte, 4*d),
		index: make([]byte, d), trial: make([]byte, d), states: make([]uint16, d), words: make([]uint32, c.codeLen/4)}
}

// rowOp is what a call does.
type rowOp uint8

const (
	encodeRow rowOp = iota
	decodeRow
	unrotateRow
)

// rowCall is one call as a task: chunk i is rows i·per to (i+1)·per−1.
type rowCall struct {
	c             *rowCode
	op            rowOp
	rows, per     int
	x, y          tensor // encoder, Unrotate: the input; decoder, Unrotate: the output
	codes, scales []byte
	mean, gain    tensor // of no type where there is no centre
	mass          tensor
	rotated       bool

	nonFinite, overflow atomic.Int64 // least index found, or none
	saturated           atomic.Int64
}

func (c *rowCode) run(a *rowCall, rows, size int) {
	a.c, a.rows, a.per = c, rows, max(1, chunkBytes/(c.dim*size))
	switch {
	case a.op == encodeRow && c.search != nil:
		a.per = c.search.lanes
	case a.op == encodeRow && c.weights != nil: // a search is worth handing out alone
		a.per = max(1, a.per/16)
	}
	a.nonFinite.Store(none)
	a.overflow.Store(none)
	c.b.pool.run(a, (rows+a.per-1)/a.per)
}

// Encode packs x.
func (c *rowCode) Encode(codes, scales []byte, x codec.Tensor, centre codec.Centre) (driver.Found, error) {
	a := &rowCall{op: encodeRow, x: newTensor(x), codes: codes, scales: scales, mean: newTensor(centre.Mean), gain: newTensor(centre.Gain)}
	c.run(a, x.Rows(), a.x.size)
	f := driver.Nothing
	if i := a.nonFinite.Load(); i != none {
		f.NonFinite = int(i)
	}
	if i := a.overflow.Load(); i != none {
		f.Overflow = int(i)
	}
	return f, nil
}

// Decode unpacks rows.
func (c *rowCode) Decode(dst codec.Tensor, codes, scales []byte, centre codec.Centre, rotated bool) (saturated int, err error) {
	a := &rowCall{op: decodeRow, y: newTensor(dst), codes: codes, scales: scales, rotated: rotated}
	if !rotated {
		a.mean, a.gain = newTensor(centre.Mean), newTensor(centre.Gain)
	}
	c.run(a, dst.Rows(), a.y.size)
	return int(a.saturated.Load()), nil
}

// Unrotate rotates rows back, and un-centres them.
func (c *rowCode) Unrotate(dst, x codec.Tensor, centre codec.Centre, mass codec.Tensor) (saturated int, err error) {
	a := &rowCall{op: unrotateRow, x: newTensor(x), y: newTensor(dst), mean: newTensor(centre.Mean), gain: newTensor(centre.Gain), mass: newTensor(mass)}
	c.run(a, x.Rows(), a.x.size)
	return int(a.saturated.Load()), nil
}

func (a *rowCall) chunk(i int) {
	c := a.c
	w := c.rows.Get().(*codeRow)
	defer c.rows.Put(w)
	w.centre = -1
	if a.op == encodeRow && c.search != nil {
		a.encodeLanes(w, i*a.per, min((i+1)*a.per, a.rows))
		return
	}
	saturated := 0
	for r := i * a.per; r < min((i+1)*a.per, a.rows); r++ {
		codes := func() []byte { return a.codes[r*c.codeLen:][:c.codeLen] }
		switch a.op {
		case encodeRow:
			a.x.load(w.x, w.buf, r)
			if i := firstNonFinite(w.x); i >= 0 {
				least(&a.nonFinite, int64(r*c.dim+i))
				return
			}
			scale, ok := a.encode(w, codes(), r)
			if !ok {
				least(&a.overflow, int64(r*c.dim))
				continue // an element that is not finite comes before it
			}
			a.scales[r] = scale
		case decodeRow:
			c.decode(w, codes(), a.scales[r])
			if !a.rotated {
				c.unrotate(w.x)
				if a.centred(w, r) {
					for i, v := range w.x {
						w.x[i] = float32(v*w.gain[i]) + w.mean[i]
					}
				}
			}
			saturated += a.store(w, r)
		case unrotateRow:
			a.x.load(w.x, w.buf, r)
			for i, v := range w.x {
				w.x[i] = f32.Canon(v)
			}
			c.unrotate(w.x)
			if a.centred(w, r) {
				var mass [1]float32
				a.mass.LoadRow(mass[:], r)
				for i, v := range w.x {
					w.x[i] = float32(v*w.gain[i]) + float32(w.mean[i]*mass[0])
				}
			}
			saturated += a.store(w, r)
		}
	}
	a.saturated.Add(int64(saturated))
}

// centred leaves the centre of row r in w, and reports whether there is one.
func (a *rowCall) centred(w *codeRow, r int) bool {
	if a.mean.dim == 0 {
		return false
	}
	at, _ := a.mean.RowOffset(r)
	if at == w.centre {
		return true
	}
	w.centre = at
	n := 2 * len(w.mean)
	gather(w.buf[:n], a.mean.Tensor, r)
	widen(w.mean, w.buf[:n], codec.F16)
	gather(w.buf[:n], a.gain.Tensor, r)
	widen(w.gain, w.buf[:n], codec.F16)
	return true
}

// store rounds w.x into row r of the output, and returns how many elements it saturated.
func (a *rowCall) store(w *codeRow, r int) (saturated int) {
	n := a.y.dim * a.y.size
	dst := w.buf[:n]
	if a.y.contiguous {
		dst = a.y.Data[r*n:][:n]
	}
	saturated = narrow(dst, w.x, a.y.DType, !a.c.compat)
	if !a.y.contiguous {
		scatter(a.y.Tensor, r, dst)
	}
	return saturated
}

// unrotate applies the inverse rotation.
func (c *rowCode) unrotate(x []float32) {
	octets(x)
	c.rot.inverse(x)
	c.rot.flip(x)
}

// maxRowScale is the largest scale code.
const maxRowScale = 247

// rowScale returns s(c): the binary16 with bits c·128.
func rowScale(c int) float32 { return pack.FromF16(uint16(c << 7)) }

// encode packs the row in w.x. It is false where the row's scale overflows.
func (a *rowCall) encode(w *codeRow, codes []byte, r int) (scale byte, ok bool) {
	c := a.c
	c0, largest, ok := a.rotate(w, r)
	switch {
	case c0 == 0:
		clear(codes)
		return 0, ok
	case c.levels != nil:
		return c.encodeLevels(w, codes, c0, largest), true
	}
	return c.encodeTrellis(w, codes, c0), true
}

// rotate makes the row in w.x canonical, centres and rotates it. It returns its first scale code and its largest
// magnitude. It is false where the scale overflows.
func (a *rowCall) rotate(w *codeRow, r int) (c0 int, largest float32, ok bool) {
	c, y := a.c, w.x
	for i, v := range y {
		y[i] = f32.Canon(v)
	}
	if a.centred(w, r) {
		for i, v := range y {
			y[i] = f32.Canon((v - w.mean[i]) / w.gain[i])
		}
	}
	c.rot.flip(y)
	octets(y)
	c.rot.forward(y)
	var lanes [32]float32
	for i := 0; i < len(y); i += 32 {
		for l, v := range (*[32]float32)(y[i:]) {
			lanes[l] += flush(v * v)
			largest = max(largest, max(v, -v))
		}
	}
	h := pack.ToF16(f32.Sqrt(flush(f32.TreeSum(lanes[:]) / float32(len(y)))))
	if h&0x7c00 == 0x7c00 {
		return 0, largest, false
	}
	return min((int(h)+64)>>7, maxRowScale), largest, true
}

// encodeLanes packs rows lo to hi−1, at most as many as the search has lanes.
func (a *rowCall) encodeLanes(w *codeRow, lo, hi int) {
	c := a.c
	if w.paths == nil {
		w.paths = newRowPaths(c.search)
	}
	p, n := w.paths, c.search.lanes
	p.rows = 0
	for r := lo; r < hi; r++ {
		a.x.load(w.x, w.buf, r)
		if i := firstNonFinite(w.x); i >= 0 {
			least(&a.nonFinite, int64(r*c.dim+i))
			return
		}
		c0, _, ok := a.rotate(w, r)
		if !ok {
			least(&a.overflow, int64(r*c.dim))
			continue // an element that is not finite comes before it
		}
		if c0 == 0 {
			a.scales[r] = 0
			clear(a.codes[r*c.codeLen:][:c.codeLen])
			continue
		}
		l, s := p.rows, rowScale(c0)
		p.row[l], p.c0[l] = r, c0
		copy(p.y[l*c.dim:], w.x)
		for t, v := range w.x {
			p.x2[t*n+l] = 2 * (v / s)
		}
		p.rows++
	}
	if p.rows == 0 {
		return
	}
	c.search.encode(p)
	for l := range p.rows {
		r := p.row[l]
		a.scales[r] = c.finishTrellis(w, a.codes[r*c.codeLen:][:c.codeLen], p.y[l*c.dim:][:c.dim], p.states[l*c.dim:][:c.dim], p.c0[l])
	}
}

// encodeLevels tries the scales around c0 and keeps the first of least squared error.
func (c *rowCode) encodeLevels(w *codeRow, codes []byte, c0 int, largest float32) byte {
	best, bestError := 0, float32(0)
	for _, step := range [...]int{0, -1, 1, -2, 2, -3, 3, -4, 4} {
		code := min(max(c0+step, 1), maxRowScale)
		s := rowScale(code)
		if largest < 14*s { // exact, and far from 15·s
			c.levels.guess(w.trial, w.x, s)
		} else {
			c.levels.divide(w.trial, w.x, s)
		}
		var lanes [32]float32
		for i := 0; i < len(w.x); i += 32 {
			y, index := (*[32]float32)(w.x[i:]), (*[32]byte)(w.trial[i:])
			for l, v := range y {
				e := float32(c.levels.centroids[index[l]]*s) - v
				lanes[l] += flush(e * e)
			}
		}
		if sum := f32.TreeSum(lanes[:]); best == 0 || sum < bestError {
			best, bestError = code, sum
			w.index, w.trial = w.trial, w.index
		}
	}
	c.packer.pack(codes, w.index)
	return byte(best)
}

// encodeTrellis finds the path with scale c0, then the best scale for that path.
func (c *rowCode) encodeTrellis(w *codeRow, codes []byte, c0 int) byte {
	if w.search == nil {
		w.search = newViterbi(c.weights)
	}
	s := rowScale(c0)
	for i, y := range w.x {
		w.samples[i] = y / s
	}
	w.search.encode(w.states, w.samples, &w.call)
	return c.finishTrellis(w, codes, w.x, w.states, c0)
}

// finishTrellis packs a path of the rotated row y with the best scale for it.
func (c *rowCode) finishTrellis(w *codeRow, codes []byte, y []float32, states []uint16, c0 int) byte {
	best, bestError := 0, float32(0)
	for _, step := range [...]int{0, -1, 1} {
		code := min(max(c0+step, 1), maxRowScale)
		s := rowScale(code)
		var lanes [32]float32
		for i := 0; i < len(y); i += 32 {
			y, states := (*[32]float32)(y[i:]), (*[32]uint16)(states[i:])
			for l, v := range y {
				e := float32(c.weights.values[states[l]]*s) - v
				lanes[l] += flush(e * e)
			}
		}
		if sum := f32.TreeSum(lanes[:]); best == 0 || sum < bestError {
			best, bestError = code, sum
		}
	}
	packBlock(w.words, states, c.weights.p)
	for i, v := range w.words {
		binary.LittleEndian.PutUint32(codes[4*i:], v)
	}
	return byte(best)
}

// decode leaves the row of the given scale code, still rotated, in w.x.
func (c *rowCode) decode(w *codeRow, codes []byte, scale byte) {
	if scale == 0 {
		clear(w.x)
		return
	}
	s := rowScale(int(scale))
	if c.weights != nil {
		for i := range w.words {
			w.words[i] = binary.LittleEndian.Uint32(codes[4*i:])
		}
		c.weights.decodePart(w.x, w.words, 0, s)
		return
	}
	c.packer.unpack(w.index, codes)
	var product [32]float32
	for i := range 1 << (c.packer.bits & 7) {
		product[i%32] = c.levels.centroids[i] * s
	}
	for i, q := range w.index {
		w.x[i] = product[q%32]
	}
}
