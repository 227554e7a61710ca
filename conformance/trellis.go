package conformance

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// trellisCase is one call of a trellis codec.
type trellisCase struct {
	op     string // EncodeBlocks, Encode, DecodeMatrix
	name   string
	params trellis.Params
	dtype  codec.DType // of weights, or of decoded weights
	layout string      // dense, padded, stepped, columns, unaligned
	data   string
	geo    trellis.Geometry
	recon  codec.DType // of the reconstruction; 0 for none
	first  int         // DecodeMatrix: first row
	n      int         // DecodeMatrix: rows; EncodeBlocks: blocks
}

func (c *trellisCase) make() Case {
	p, g := c.params, c.geo
	c.name = fmt.Sprintf("%s(L=%d,K=%d,T=%d,code=%v", c.op, p.L, p.K, p.T, p.Code)
	switch c.op {
	case "EncodeBlocks":
		c.name += fmt.Sprintf(",free=%t,blocks=%d", p.FreeEnds, c.n)
	default:
		c.name += fmt.Sprintf(",policy=%v,rule=%v,axis=%d,out=%d,in=%d,interleaved=%t", p.Policy, p.Scale, g.Axis, g.Out, g.In, g.Interleaved)
	}
	if c.op == "Encode" {
		c.name += fmt.Sprintf(",recon=%v", recon(c.recon))
	}
	if c.op == "DecodeMatrix" {
		c.name += fmt.Sprintf(",first=%d,rows=%d", c.first, c.n)
	}
	c.name += fmt.Sprintf(",dtype=%v,layout=%s,data=%s)", c.dtype, c.layout, c.data)
	return Case{Op: c.op, Name: c.name, run: c.run}
}

func recon(t codec.DType) string {
	if t == 0 {
		return "none"
	}
	return t.String()
}

// matrix returns a guarded [rows, cols] tensor in one of the layouts.
func matrix(name, how string, t codec.DType, rows, cols int, s *stream, seed byte) (codec.Tensor, *memory) {
	l := layout{name: how, lead: []int{rows}}
	align := aligns[s.intn(len(aligns))]
	switch how {
	case "padded":
		l.stride = func(d int) ([]int, int) { return []int{d + 3, 1}, 2 }
	case "stepped":
		l.stride = func(d int) ([]int, int) { return []int{3*d + 1, 3}, 0 }
	case "columns":
		l.stride = func(d int) ([]int, int) { return []int{1, max(rows, 1)}, 0 }
	}
	if rows*cols == 0 {
		l.stride = nil
	}
	return place(name, l, t, cols, align, seed)
}

// weights fills x, rows of n elements, by a kind of data.
func (c *trellisCase) weights(x []float32, n int, s *stream) {
	if c.data == "path-ties" {
		for i := 0; i < len(x); i += n {
			c.pathTie(x[i:i+n], s)
		}
		return
	}
	for i := range x {
		switch c.data {
		case "normal":
			x[i] = s.normal()
		case "rows": // a scale for each row, zero rows included
			x[i] = s.normal() * pow2(i/n%29-14)
			if i/n%5 == 3 {
				x[i] = 0
			}
		case "zeros":
			x[i] = pick(s, 0)
		case "ones": // ties
			x[i] = 1
		case "quarters":
			x[i] = float32(s.intn(9)-4) * 0.25
		case "mixed":
			x[i] = s.normal() * pow2(s.intn(12)-8)
		case "small": // a scale that is subnormal or zero in binary16
			x[i] = s.normal() * pow2(-16-i/n%12)
		case "threshold":
			x[i] = pick(s, thresholds...)
		case "threshold-mixed":
			if x[i] = s.normal(); s.intn(2) == 0 {
				x[i] = pick(s, thresholds...)
			}
		case "large":
			x[i] = s.normal() * pow2(12)
		case "overflow":
			if x[i] = s.normal(); i/n%3 == 1 {
				x[i] *= pow2(30)
			}
		case "samples-edge": // ±2^60 is the largest sample
			x[i] = pick(s, 0x1p60, 1)
		case "samples-beyond":
			if x[i] = s.normal(); i == len(x)*2/3 {
				x[i] = up(0x1p60)
			}
		case "nan":
			if x[i] = s.normal(); i == len(x)/2 || i == len(x)-1 {
				x[i] = float32(math.NaN())
			}
		case "inf-last":
			if x[i] = s.normal(); i == len(x)-1 {
				x[i] = float32(math.Inf(-1))
			}
		default:
			panic("conformance: no data " + c.data)
		}
	}
}

// pathTie fills one block that is next to a tie of two paths: one sample a last
// place further, and the other path is the better one. It bisects a sample
// between two numbers that give different paths.
func (c *trellisCase) pathTie(x []float32, s *stream) {
	enc, err := trellis.NewEncoder(c.params)
	if err != nil {
		panic(err)
	}
	a, b := make([]uint16, len(x)), make([]uint16, len(x))
	path := func(states []uint16) {
		if err := enc.EncodeBlock(states, x); err != nil {
			panic(err)
		}
	}
	for {
		for i := range x {
			x[i] = s.normal()
		}
		t := s.intn(len(x))
		// Positive floats are in the order of their bits.
		lo, hi := math.Float32bits(0.25), math.Float32bits(1)
		x[t] = math.Float32frombits(lo)
		path(a)
		x[t] = math.Float32frombits(hi)
		path(b)
		if slices.Equal(a, b) {
			continue
		}
		for hi-lo > 1 {
			mid := (lo + hi) / 2
			x[t] = math.Float32frombits(mid)
			if path(b); slices.Equal(a, b) {
				lo = mid
			} else {
				hi = mid
			}
		}
		x[t] = math.Float32frombits([2]uint32{lo, hi}[s.intn(2)])
		return
	}
}

func (e *env) trellis(p trellis.Params) codec.Trellis {
	t, ok := e.trellises[p]
	if !ok {
		var err error
		if t, err = e.backend.Trellis(p); err != nil {
			e.refuse(err, "parameters")
		}
		if t == nil {
			panic(failure(Error, "parameters", "neither a codec nor an error"))
		}
		e.trellises[p] = t
	}
	return t
}

func (e *env) refTrellis(p trellis.Params) codec.Trellis {
	t, ok := e.refTrellises[p]
	if !ok {
		var err error
		if t, err = e.ref.Trellis(p); err != nil {
			panic(fmt.Sprintf("conformance: a case has parameters that the reference refuses: %v", err))
		}
		e.refTrellises[p] = t
	}
	return t
}

func (c *trellisCase) run(e *env) *Failure {
	switch c.op {
	case "EncodeBlocks":
		return c.encodeBlocks(e)
	case "Encode":
		return c.encode(e)
	}
	return c.decode(e)
}

// bytesOf returns words as little-endian bytes.
func bytesOf[T uint16 | uint32](words []T) []byte {
	size := binary.Size(T(0))
	b := make([]byte, size*len(words))
	for i, w := range words {
		for j := range size {
			b[i*size+j] = byte(w >> (8 * j))
		}
	}
	return b
}

func (c *trellisCase) encodeBlocks(e *env) *Failure {
	p, s := c.params, seeded(c.name)
	x, m := matrix("samples", c.layout, c.dtype, c.n, p.T, s, byte(s.next()))
	v := make([]float32, c.n*p.T)
	c.weights(v, p.T, s)
	fill(x, v)
	m.freeze()
	want := make([]uint16, len(v))
	wantErr := e.refTrellis(p).EncodeBlocks(context.Background(), want, dense(x))
	e.note(0, []byte(describe(wantErr)))
	if wantErr == nil {
		e.note(0, bytesOf(want))
	}
	const spare = 8
	buf := make([]uint16, spare+len(v)+spare)
	for i := range buf {
		buf[i] = 0xa5a5
	}
	got := buf[spare : spare+len(v)]
	err := e.trellis(p).EncodeBlocks(context.Background(), got, x)
	if off, bad := m.changed(nil); bad {
		return failure(Input, "samples", "byte %d of the input changed", off)
	}
	for i := range spare {
		if buf[i] != 0xa5a5 || buf[len(buf)-1-i] != 0xa5a5 {
			return failure(Bounds, "states", "a state was written outside the %d of the output", len(v))
		}
	}
	if f := sameError(err, wantErr); f != nil || wantErr != nil {
		return f
	}
	return compareStates(got, want, p.T)
}

func compareStates(got, want []uint16, t int) *Failure {
	f := compare([]part{{name: "states", stage: States, wide: 2, perElem: 1, got: bytesOf(got), want: bytesOf(want)}}, t, len(want)/max(t, 1))
	return f
}

func (c *trellisCase) encode(e *env) *Failure {
	p, g, s := c.params, c.geo, seeded(c.name)
	x, m := matrix("weights", c.layout, c.dtype, g.Out, g.In, s, byte(s.next()))
	v := make([]float32, g.Out*g.In)
	c.weights(v, max(g.In, 1), s)
	fill(x, v)
	m.freeze()
	plain := dense(x)
	var want trellis.Matrix
	var wantRecon codec.Tensor
	if c.recon != 0 {
		wantRecon = codec.NewTensor(c.recon, g.Out, g.In)
	}
	wantErr := e.refTrellis(p).Encode(context.Background(), &want, wantRecon, plain, g)
	e.note(0, []byte(describe(wantErr)))
	e.note(0, bytesOf(want.Codes))
	e.note(0, bytesOf(want.Scales))
	if wantErr == nil && c.recon != 0 { // the reference's reconstruction is what it decodes
		if err := e.refTrellis(p).Decode(wantRecon, &want, 0); err != nil {
			return failure(Error, "", "the reference: %v", err)
		}
	}
	var dst trellis.Matrix
	var out codec.Tensor
	var outMem *memory
	const spare = 4
	codes, scales := make([]uint32, g.CodesLen(p)+spare), make([]uint16, g.Rows()+spare)
	for i := range codes {
		codes[i] = 0xa5a5a5a5
	}
	for i := range scales {
		scales[i] = 0xa5a5
	}
	if s.intn(3) > 0 {
		dst.Codes, dst.Scales = codes[:min(2, len(codes))], scales[:1]
	}
	if c.recon != 0 {
		out, outMem = matrix("reconstruction", c.layout, c.recon, g.Out, g.In, s, poisons[0])
		outMem.freeze()
	}
	err := e.trellis(p).Encode(context.Background(), &dst, out, x, g)
	if off, bad := m.changed(nil); bad {
		return failure(Input, "weights", "byte %d of the input changed", off)
	}
	for i := range spare {
		if codes[len(codes)-1-i] != 0xa5a5a5a5 {
			return failure(Bounds, "codes", "a word was written beyond the %d of the output", len(codes)-spare)
		}
		if scales[len(scales)-1-i] != 0xa5a5 {
			return failure(Bounds, "scales", "a scale was written beyond the %d of the output", len(scales)-spare)
		}
	}
	if f := sameError(err, wantErr); f != nil {
		return f
	}
	if wantErr != nil {
		if len(dst.Codes)+len(dst.Scales) != 0 {
			return failure(Error, "dst", "output of %d words and %d scales after an error, want none", len(dst.Codes), len(dst.Scales))
		}
		return nil
	}
	if dst.Geometry != want.Geometry || dst.Params != want.Params {
		return failure(Bounds, "matrix", "parameters %+v, %+v, want %+v, %+v", dst.Params, dst.Geometry, want.Params, want.Geometry)
	}
	f := c.compare(&dst, &want)
	if f != nil || c.recon == 0 {
		return f
	}
	o := output{name: "reconstruction", dtype: c.recon}
	if f := o.written(out, outMem, wantRecon, max(g.In, 1)); f != nil {
		return f
	}
	return nil
}

// compare returns the first difference of two packed matrices. Groups are coded
// rows.
func (c *trellisCase) compare(got, want *trellis.Matrix) *Failure {
	g := c.geo
	if len(got.Codes) != len(want.Codes) || len(got.Scales) != len(want.Scales) {
		return failure(Bounds, "codes", "%d words and %d scales, want %d and %d", len(got.Codes), len(got.Scales), len(want.Codes), len(want.Scales))
	}
	// States are the words, read otherwise: all of them are equal or none.
	cols := max(g.Cols(), 1)
	return compare([]part{
		{name: "scales", stage: Scale, t: codec.F16, perElem: cols, got: bytesOf(got.Scales), want: bytesOf(want.Scales)},
		{name: "states", stage: States, wide: 2, perElem: 1, got: bytesOf(c.states(got)), want: bytesOf(c.states(want))},
	}, cols, g.Rows())
}

// plain returns the words of a matrix in rows.
func (c *trellisCase) plain(m *trellis.Matrix) []uint32 {
	if !c.geo.Interleaved {
		return m.Codes
	}
	words := make([]uint32, len(m.Codes))
	if err := trellis.Deinterleave(words, m.Codes, c.geo.Rows(), c.geo.Cols(), c.params); err != nil {
		panic(err)
	}
	return words
}

// states returns the states of a matrix, row after row.
func (c *trellisCase) states(m *trellis.Matrix) []uint16 {
	states, err := trellis.AppendUnpackStates(nil, c.plain(m), c.params)
	if err != nil {
		panic(err)
	}
	return states
}

func (c *trellisCase) decode(e *env) *Failure {
	p, g, s := c.params, c.geo, seeded(c.name)
	m := trellis.Matrix{Params: p, Geometry: g, Codes: make([]uint32, g.CodesLen(p)), Scales: make([]uint16, g.Rows())}
	for i := range m.Codes {
		m.Codes[i] = uint32(s.next())
	}
	for i := range m.Scales {
		switch c.data {
		case "codes":
			m.Scales[i] = uint16(8+s.intn(16))<<10 | uint16(s.intn(1024)) // 2^-7 to 2^9
		case "any-scale": // zero, subnormal, negative, infinite and NaN scales
			m.Scales[i] = []uint16{0, 1, 0x3ff, 0x400, 0x7bff, 0x7c00, 0xfc00, 0x7e01, 0x8000, 0xbc00}[s.intn(10)]
		}
	}
	codes, scales := slices.Clone(m.Codes), slices.Clone(m.Scales)
	want := codec.NewTensor(c.dtype, c.n, g.In)
	if err := e.refTrellis(p).Decode(want, &m, c.first); err != nil {
		return failure(Error, "", "the reference: %v", err)
	}
	e.note(c.dtype, want.Data)
	out, mem := matrix("dst weights", c.layout, c.dtype, c.n, g.In, s, poisons[0])
	mem.freeze()
	kv := e.trellis(p)
	err := kv.Decode(out, &m, c.first)
	if !slices.Equal(m.Codes, codes) || !slices.Equal(m.Scales, scales) {
		return failure(Input, "codes", "the matrix changed")
	}
	if f := sameError(err, nil); f != nil {
		return f
	}
	o := output{name: "dst weights", dtype: c.dtype}
	return o.written(out, mem, want, max(g.In, 1))
}

var trellisCodes = []trellis.Code{trellis.OneMAD, trellis.ThreeInst, trellis.Rand}

// blockLens returns the lengths of blocks that are tried for K bits.
func blockLens(k int) []int {
	unit := 32
	for k%2 == 0 && unit > 1 {
		k /= 2
		unit /= 2
	}
	if unit < 8 {
		unit = 8
	}
	return []int{unit, 64, 256}
}

func trellisCases() []Case {
	var cases []Case
	add := func(short uint64, c trellisCase) {
		if c.params.Validate() != nil || c.op != "EncodeBlocks" && c.geo.Validate(c.params) != nil {
			return
		}
		k := c.make()
		k.short = sparse(k.Name, short)
		cases = append(cases, k)
	}
	t := &turn{}
	inputs := []string{"dense", "padded", "stepped", "columns"}
	// The search: states of few bits in number, the usual 12 sparingly.
	for _, k := range []int{1, 2, 3, 4, 5, 6, 7, 8} {
		for _, l := range []int{k + 1, 6, 8, 9, 12} {
			for _, n := range blockLens(k) {
				if l < k+1 || l == 12 && n > 64 || l > 10 && k > 4 {
					continue
				}
				for _, code := range trellisCodes {
					for _, free := range []bool{false, true} {
						for _, d := range []string{"normal", "zeros", "ones", "quarters", "mixed"} {
							short := uint64(12)
							if l == 12 {
								if d != "normal" && d != "zeros" {
									continue
								}
								short = 30
							}
							add(short, trellisCase{op: "EncodeBlocks", params: trellis.Params{L: l, K: k, T: n, Code: code, FreeEnds: free},
								dtype: t.dtype(), layout: inputs[t.step()%4], data: d, n: 1 + t.step()%3})
						}
					}
				}
			}
		}
	}
	for _, d := range []string{"samples-edge", "samples-beyond", "nan", "inf-last", "threshold", "threshold-mixed"} {
		for _, free := range []bool{false, true} {
			for k := 1; k <= 4; k++ {
				add(1, trellisCase{op: "EncodeBlocks", params: trellis.Params{L: 8, K: k, T: 32, FreeEnds: free}, dtype: codec.F32, layout: "dense", data: d, n: 3})
			}
		}
	}
	add(1, trellisCase{op: "EncodeBlocks", params: trellis.Params{L: 8, K: 2, T: 32}, dtype: codec.F16, layout: "dense", data: "normal", n: 0})
	for _, code := range trellisCodes {
		for _, free := range []bool{false, true} {
			for k := 1; k <= 4; k++ {
				for l := k + 2; l <= k+4; l++ {
					add(1, trellisCase{op: "EncodeBlocks", params: trellis.Params{L: l, K: k, T: 32, Code: code, FreeEnds: free}, dtype: codec.F32, layout: "dense", data: "path-ties", n: 4})
				}
			}
		}
	}
	// Every k with the L for which a GPU has kernels of their own.
	for k := 1; k <= 8; k++ {
		for l := max(9, k+1); l <= 12; l++ {
			for _, free := range []bool{false, true} {
				for _, d := range []string{"normal", "path-ties"} {
					add(6, trellisCase{op: "EncodeBlocks", params: trellis.Params{L: l, K: k, T: blockLens(k)[0], Code: trellisCodes[t.step()%3], FreeEnds: free},
						dtype: t.dtype(), layout: inputs[t.step()%4], data: d, n: 5})
				}
			}
		}
	}
	// More states than a threadgroup's memory holds on any GPU.
	for k := 1; k <= 2; k++ {
		add(1<<20, trellisCase{op: "EncodeBlocks", params: trellis.Params{L: 16, K: k, T: 32}, dtype: codec.F32, layout: "dense", data: "normal", n: 2})
	}
	// Matrices.
	for _, k := range []int{1, 2, 3, 4, 6, 8} {
		for _, code := range trellisCodes {
			for _, rule := range []trellis.ScaleRule{trellis.RMS, trellis.Refit} {
				for _, policy := range []trellis.Policy{trellis.Finite, trellis.Compat} {
					for axis := range 2 {
						for _, inter := range []bool{false, true} {
							p := trellis.Params{L: k + 5, K: k, T: blockLens(k)[t.step()%2], Code: code, Policy: policy, Scale: rule}
							blocks := 2 * (1 + t.step()%2)
							g := trellis.Geometry{Axis: axis, Out: 1 + t.step()%5, In: blocks * p.T, Interleaved: inter}
							if axis == 0 {
								g.Out, g.In = g.In, g.Out
							}
							for _, d := range []string{"normal", "rows", "zeros", "mixed", "small", "threshold", "threshold-mixed", "large", "overflow", "nan", "inf-last"} {
								out := []codec.DType{0, codec.F32, codec.F16, codec.BF16}[t.step()%4]
								add(12, trellisCase{op: "Encode", params: p, dtype: t.dtype(), layout: inputs[t.step()%4], data: d, geo: g, recon: out})
							}
						}
					}
				}
			}
		}
	}
	for _, g := range []trellis.Geometry{{Axis: 1, Out: 0, In: 64}, {Axis: 1, Out: 3, In: 0}, {Axis: 0, Out: 64, In: 0}, {Axis: 0}, {Axis: 1, Out: 33, In: 32}, {Axis: 0, Out: 32, In: 33}} {
		add(1, trellisCase{op: "Encode", params: trellis.Params{L: 6, K: 2, T: 32}, dtype: codec.F32, layout: "dense", data: "normal", geo: g, recon: codec.F32})
		add(1, trellisCase{op: "DecodeMatrix", params: trellis.Params{L: 6, K: 2, T: 32}, dtype: codec.F32, layout: "dense", data: "codes", geo: g, n: g.Out})
	}
	// The usual trellis, once for each width.
	for k := 1; k <= 4; k++ {
		add(1, trellisCase{op: "Encode", params: trellis.DefaultParams(k), dtype: codec.F32, layout: "dense", data: "normal", geo: trellis.Geometry{Axis: 1, Out: 1, In: 256}})
	}
	// Decoding any words: every width, long states included.
	for _, k := range []int{1, 2, 3, 4, 5, 6, 7, 8} {
		for _, l := range []int{k + 1, 10, 12, 14, 15, 16} {
			if l < k+1 {
				continue
			}
			for _, code := range trellisCodes {
				for _, n := range blockLens(k) {
					for axis := range 2 {
						p := trellis.Params{L: l, K: k, T: n, Code: code}
						g := trellis.Geometry{Axis: axis, Out: 2 + t.step()%6, In: 2 * n, Interleaved: t.step()%2 == 0}
						if axis == 0 {
							g.Out, g.In = g.In, g.Out
						}
						first := t.step() % 2 * (g.Out / 3)
						rows := g.Out - first - t.step()%2
						add(12, trellisCase{op: "DecodeMatrix", params: p, dtype: t.dtype(), layout: inputs[t.step()%4], data: "codes", geo: g, first: first, n: rows})
						add(12, trellisCase{op: "DecodeMatrix", params: p, dtype: t.dtype(), layout: "dense", data: "any-scale", geo: g, n: g.Out})
					}
				}
			}
		}
	}
	return append(cases, badTrellisCases()...)
}

// badTrellisCases are parameters of no trellis.
func badTrellisCases() []Case {
	var cases []Case
	good := trellis.Params{L: 8, K: 2, T: 32}
	params := func(set func(*trellis.Params)) {
		p := good
		set(&p)
		cases = append(cases, Case{Op: "Trellis", short: true,
			Name: fmt.Sprintf("Trellis(L=%d,K=%d,T=%d,code=%d,free=%t,policy=%d,rule=%d)", p.L, p.K, p.T, p.Code, p.FreeEnds, p.Policy, p.Scale),
			run: func(e *env) *Failure {
				_, want := e.ref.Trellis(p)
				got, err := e.backend.Trellis(p)
				if f := sameError(err, want); f != nil {
					return f
				}
				if err != nil && got != nil {
					return failure(Error, "parameters", "a codec and an error, %v", err)
				}
				return nil
			}})
	}
	params(func(*trellis.Params) {})
	params(func(p *trellis.Params) { *p = trellis.Params{} })
	for _, l := range []int{-1, 0, 1, 2, 17, 64, math.MaxInt} {
		params(func(p *trellis.Params) { p.L = l })
	}
	for _, k := range []int{-1, 0, 8, 9, 32, math.MaxInt} {
		params(func(p *trellis.Params) { p.K = k })
	}
	for _, n := range []int{-32, 0, 1, 8, 24, 33, math.MaxInt &^ 31} {
		params(func(p *trellis.Params) { p.T = n })
	}
	params(func(p *trellis.Params) { p.Code = 3 })
	params(func(p *trellis.Params) { p.Policy = 2 })
	params(func(p *trellis.Params) { p.Scale = 2 })
	return cases
}
