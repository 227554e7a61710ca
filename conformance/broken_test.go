package conformance

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/hadamard"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/lloydmax"
	"github.com/turbotrellis/turbotrellis/pack"
)

// mutant is the reference with one fault. Where an encoder is at fault it is
// written again below, from docs/numerics.md, so that one stage can be wrong.
type mutant struct {
	codec.Backend // the reference
	load          func(x codec.Tensor, row []float32, r int)
	canon         func(float32) float32
	rint          func(float32) float32 // of indices
	rintZero      func(float32) float32
	sum           func(y []float32) float32 // of squares
	level         func(t *lloydmax.Table, n float32) int
	signs         func(signs []float32)
	permute       func(codes []byte)
	finish        func(dst *packed, rows int)          // after an encoder
	decoded       func(dst codec.Tensor, fresh []byte) // after a decoder; fresh is dst's memory before it
	unpack        func(codes []byte)                   // before a decoder, on a copy
	dequant       func(i, zero, scale float32) float32 // of keys
	store         func(t codec.DType, b []byte, x float32)
	input         func(x codec.Tensor) // before any encoder
	errs          func(error) error
	decline       func(p codec.KVParams) bool
	miss          func(centroid, s, y float32) float32 // the error of one element in the search
	calls         int
	unstable      bool
	reencodes     bool
}

func (m *mutant) KV(p codec.KVParams) (codec.KV, error) {
	if m.decline != nil && m.decline(p) {
		return nil, &codec.Error{Err: codec.ErrUnsupported, Index: codec.NoIndex}
	}
	kv, err := m.Backend.KV(p)
	if err != nil {
		return nil, err
	}
	checks, err := m.Backend.KV(p)
	return &mutantKV{kv, checks, refStages(p), m}, err
}

type mutantKV struct {
	codec.KV
	checks codec.KV // shows whether the reference takes operands, and counts nothing
	stages *ref.KV
	m      *mutant
}

// refEncode is the reference's encoder.
func (k *mutantKV) refEncode(values bool, dst *packed, x codec.Tensor) error {
	if k.m.input != nil {
		k.m.input(x)
	}
	err := encode(k.KV, values, dst, x)
	if k.m.errs != nil {
		err = k.m.errs(err)
	}
	if err != nil || !k.m.reencodes || values && k.Params().Scale == codec.Search && k.m.miss == nil {
		return err
	}
	p := k.Params()
	d := dim(p, values)
	codesLen, scalesLen := rowLen(p, values)
	row := make([]float32, d)
	for r := range x.Rows() {
		k.m.load(x, row, r)
		for i, v := range row {
			row[i] = k.m.canon(v)
			if p.Policy == codec.Compat && !values && row[i] == 0 {
				row[i] = float32(math.Copysign(0, float64(v)))
			}
		}
		index := make([]byte, d)
		if values {
			k.encodeValues(index, row, dst.scales[r*scalesLen:][:scalesLen])
		} else {
			k.encodeKeys(index, row, dst.scales[r*scalesLen:][:scalesLen], dst.zeros[r*scalesLen:][:scalesLen])
		}
		codes := dst.codes[r*codesLen:][:codesLen]
		if err := pack.Pack(codes, index, bitsOfIndex(p, values)); err != nil {
			return err
		}
		if k.m.permute != nil {
			k.m.permute(codes)
		}
	}
	return nil
}

func (k *mutantKV) encodeKeys(index []byte, x []float32, scales, zeros []byte) {
	p := k.Params()
	t, size := p.ScaleType, p.ScaleType.Size()
	n, low, div := float32(p.KeyFormat().MaxIndex()), float32(0), float32(p.KeyFormat().MaxIndex())
	if p.Keys.Signed() {
		low, div = -n, 2*n
	}
	for g := 0; g < len(x); g += p.Group {
		lo, hi := x[g], x[g]
		for _, v := range x[g : g+p.Group] {
			if v < lo {
				lo = v
			}
			if v > hi {
				hi = v
			}
		}
		scale := (hi - lo) / div
		se := scale + eps
		zero := k.m.rintZero(lo / se)
		if p.Keys.Signed() {
			zero = k.m.rintZero((hi + lo) / (2 * se))
		}
		constant := p.Policy == codec.Finite && !f32.IsFinite(t.Round(zero))
		for i, v := range x[g : g+p.Group] {
			q := k.m.rint(v/se - zero)
			switch {
			case constant || q != q:
				q = 0
			case q < low:
				q = low
			case q > n:
				q = n
			}
			index[g+i] = byte(int(q))
		}
		if constant {
			scale, zero = lo+float32((hi-lo)*0.5), 1
		}
		t.Store(scales[g/p.Group*size:], scale)
		t.Store(zeros[g/p.Group*size:], zero)
	}
}

func (k *mutantKV) encodeValues(index []byte, x []float32, scales []byte) {
	p := k.Params()
	signs := hadamard.AppendSigns(nil, len(x))
	if k.m.signs != nil {
		k.m.signs(signs)
	}
	for i := range x {
		x[i] *= signs[i]
	}
	if err := hadamard.Transform(x); err != nil {
		panic(err)
	}
	table, err := lloydmax.Lookup(p.Values.Bits())
	if err != nil {
		panic(err)
	}
	for g := 0; g < len(x); g += p.Group {
		scale := f32.Sqrt(flushed(k.m.sum(x[g:g+p.Group]) * (1 / float32(p.Group))))
		if p.Scale == codec.Search {
			scale = k.search(scale, x[g:g+p.Group], table)
		}
		for i, v := range x[g : g+p.Group] {
			index[g+i] = byte(k.m.level(table, v/(scale+eps)))
		}
		p.ScaleType.Store(scales[g/p.Group*p.ScaleType.Size():], scale)
	}
}

func (k *mutantKV) search(rms float32, y []float32, table *lloydmax.Table) float32 {
	best, least, found := rms, float32(0), false
	q := make([]float32, len(y))
	for _, step := range []float32{16, 15, 17, 14, 18, 13, 19, 12, 20} {
		s := k.Params().ScaleType.Round(rms * (step / 16))
		if !f32.IsFinite(s) {
			continue
		}
		for i, v := range y {
			e := k.m.miss(table.Centroid(k.m.level(table, v/(s+eps))), s, v)
			q[i] = flushed(e * e)
		}
		if sum := f32.TreeSum(q); !found || sum < least {
			best, least, found = s, sum, true
		}
	}
	return best
}

func (k *mutantKV) encode(values bool, dst *packed, x codec.Tensor) error {
	if err := k.refEncode(values, dst, x); err != nil {
		return err
	}
	if k.m.finish != nil {
		k.m.finish(dst, x.Rows())
	}
	if k.m.calls++; k.m.unstable && k.m.calls%7 == 0 && len(dst.codes) > 0 {
		dst.codes[len(dst.codes)/2] ^= 1
	}
	return nil
}

func (k *mutantKV) EncodeKeys(dst *codec.Keys, x codec.Tensor) error {
	d := packed{dst.Shape, dst.Codes, dst.Scales, dst.Zeros}
	err := k.encode(false, &d, x)
	*dst = d.keys()
	return err
}

func (k *mutantKV) EncodeValues(dst *codec.Values, x codec.Tensor) error {
	d := packed{dst.Shape, dst.Codes, dst.Scales, nil}
	err := k.encode(true, &d, x)
	*dst = d.values()
	return err
}

// copied returns x with memory of its own, in which the reference shows whether it takes the operands.
func copied(x codec.Tensor) codec.Tensor {
	x.Data = slices.Clone(x.Data)
	return x
}

// decode runs a decoder of the reference with this mutant's fault.
func (k *mutantKV) decode(dst codec.Tensor, codes []byte, f func(dst codec.Tensor, codes []byte) error) error {
	if k.m.unpack != nil {
		codes = slices.Clone(codes)
		k.m.unpack(codes)
	}
	before := slices.Clone(dst.Data)
	if k.m.store != nil {
		wide := codec.NewTensor(codec.F32, dst.Shape...)
		if err := f(dst, codes); err != nil {
			return err
		}
		if err := f(wide, codes); err != nil {
			return err
		}
		eachElement(dst, func(i, at int) { k.m.store(dst.DType, dst.Data[at:], codec.F32.Load(wide.Data[4*i:])) })
		return nil
	}
	if err := f(dst, codes); err != nil {
		return err
	}
	if k.m.decoded != nil {
		k.m.decoded(dst, before)
	}
	return nil
}

func (k *mutantKV) DecodeKeys(dst codec.Tensor, p codec.Keys) error {
	if err := k.checks.DecodeKeys(copied(dst), p); err != nil {
		return err
	}
	return k.decode(dst, p.Codes, func(dst codec.Tensor, codes []byte) error {
		p.Codes = codes
		if k.m.dequant == nil {
			return k.KV.DecodeKeys(dst, p)
		}
		if err := k.KV.DecodeKeys(copied(dst), p); err != nil { // which counts
			return err
		}
		row := make([]float32, dst.Dim())
		for r := range dst.Rows() {
			st := k.stages.KeyDecodeStages(p, r)
			for i := range row {
				g, x := i/k.Params().Group, float32(st.Index[i])
				if k.Params().Keys.Signed() {
					x = float32(int8(st.Index[i]))
				}
				row[i] = k.m.dequant(x, st.Zero[g], st.Scale[g])
				if k.Params().Policy == codec.Finite && dst.DType == codec.F16 && f32.IsFinite(row[i]) {
					row[i] = min(max(row[i], -65504), 65504)
				}
			}
			dst.StoreRow(r, row)
		}
		return nil
	})
}

func (k *mutantKV) DecodeValues(dst codec.Tensor, p codec.Values) error {
	if err := k.checks.DecodeValues(copied(dst), p); err != nil {
		return err
	}
	return k.decode(dst, p.Codes, func(dst codec.Tensor, codes []byte) error {
		p.Codes = codes
		if k.m.signs == nil {
			return k.KV.DecodeValues(dst, p)
		}
		if err := k.KV.DecodeValuesRotated(dst, p); err != nil {
			return err
		}
		row := make([]float32, dst.Dim())
		signs := hadamard.AppendSigns(nil, len(row))
		k.m.signs(signs)
		for r := range dst.Rows() {
			st := k.stages.ValueDecodeStages(p, r)
			rot, err := hadamard.New(len(row))
			if err != nil {
				return err
			}
			copy(row, st.Rotated)
			rot.Inverse(row)
			for i, s := range hadamard.AppendSigns(nil, len(row)) {
				row[i] *= s * signs[i]
			}
			dst.StoreRow(r, row)
		}
		return nil
	})
}

func (k *mutantKV) DecodeValuesRotated(dst codec.Tensor, p codec.Values) error {
	if err := k.checks.DecodeValues(copied(dst), p); err != nil {
		return err
	}
	return k.decode(dst, p.Codes, func(dst codec.Tensor, codes []byte) error {
		p.Codes = codes
		return k.KV.DecodeValuesRotated(dst, p)
	})
}

func (k *mutantKV) Decode(dstK, dstV codec.Tensor, x codec.Keys, v codec.Values) error {
	if err := k.checks.Decode(copied(dstK), copied(dstV), x, v); err != nil {
		return err
	}
	if err := k.DecodeKeys(dstK, x); err != nil {
		return err
	}
	return k.DecodeValues(dstV, v)
}

func (k *mutantKV) DecodeRotated(dstK, dstV codec.Tensor, x codec.Keys, v codec.Values) error {
	if err := k.checks.Decode(copied(dstK), copied(dstV), x, v); err != nil {
		return err
	}
	if err := k.DecodeKeys(dstK, x); err != nil {
		return err
	}
	return k.DecodeValuesRotated(dstV, v)
}

func loadRow(x codec.Tensor, row []float32, r int) { x.LoadRow(row, r) }

func halfAway(x float32) float32 { return float32(math.Round(float64(x))) }

func flushed(x float32) float32 {
	if x < 0x1p-126 && x > -0x1p-126 {
		return 0
	}
	return x
}

func treeOfSquares(y []float32) float32 {
	q := make([]float32, len(y))
	for i, v := range y {
		q[i] = flushed(v * v)
	}
	return f32.TreeSum(q)
}

// fusedSquares adds the first half's squares by fused multiply-add.
func fusedSquares(y []float32) float32 {
	h := len(y) / 2
	q := make([]float32, h)
	for i := range q {
		q[i] = f32.FMA(y[i], y[i], flushed(y[h+i]*y[h+i]))
	}
	return f32.TreeSum(q)
}

// rewritten returns a mutant that has every encoder written again, with no fault.
func rewritten() *mutant {
	return &mutant{Backend: ref.New(), reencodes: true, load: loadRow, canon: f32.Canon, rint: f32.Rint, rintZero: f32.Rint, sum: treeOfSquares,
		level: func(t *lloydmax.Table, n float32) int { return t.Index(flushed(n)) }}
}

// plainly returns options for a mutant.
func plainly(filter string) Options {
	return Options{Filter: filter, Form: Short, MaxFailures: 40}
}

func swapNibbles(b []byte) {
	for i := range b {
		b[i] = b[i]<<4 | b[i]>>4
	}
}

// TestBroken breaks one thing at a time, and wants it found under its name.
func TestBroken(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		filter string
		break_ func(m *mutant)
		want   []Stage
	}{
		{"round half away", "EncodeKeys", func(m *mutant) { m.rint = halfAway }, []Stage{Index}},
		{"round half away, zero points", "EncodeKeys", func(m *mutant) { m.rintZero = halfAway }, []Stage{Zero}},
		{"fused multiply-add, sum of squares", "EncodeValues", func(m *mutant) { m.sum = fusedSquares }, []Stage{Scale}},
		{"fused multiply-add, searched scale", "rule=search", func(m *mutant) {
			m.miss = func(c, s, y float32) float32 { return f32.FMA(c, s, -y) }
		}, []Stage{Scale}},
		{"fused multiply-add, keys", "DecodeKeys", func(m *mutant) {
			m.dequant = func(i, zero, scale float32) float32 { return f32.FMA(i, scale, float32(zero*scale)) }
		}, []Stage{Dequantize}},
		{"wrong tie", "EncodeValues", func(m *mutant) {
			m.level = func(t *lloydmax.Table, n float32) int {
				i := t.Index(flushed(n))
				if i < t.Levels()-1 && flushed(n) == t.Boundary(i) {
					i++
				}
				return i
			}
		}, []Stage{Index}},
		{"dropped tail", "EncodeValues", func(m *mutant) {
			m.finish = func(dst *packed, rows int) {
				if n := len(dst.codes); rows > 0 && n > 8 {
					clear(dst.codes[n-8:])
				}
			}
		}, []Stage{Index}},
		{"swapped nibble, keys", "EncodeKeys", func(m *mutant) { m.permute = swapNibbles }, []Stage{Index}},
		{"swapped nibble, values", "EncodeValues", func(m *mutant) { m.permute = swapNibbles }, []Stage{Index}},
		{"swapped nibble, unpacking keys", "DecodeKeys", func(m *mutant) { m.unpack = swapNibbles }, []Stage{Dequantize}},
		{"swapped nibble, unpacking values", "DecodeValues", func(m *mutant) { m.unpack = swapNibbles }, []Stage{Dequantize}},
		{"wrong sign table", "EncodeValues", func(m *mutant) {
			m.signs = func(s []float32) { copy(s, hadamard.AppendSigns(nil, len(s)+1)) }
		}, []Stage{Scale, Index}},
		{"one wrong sign", "EncodeValues", func(m *mutant) { m.signs = func(s []float32) { s[3] = -s[3] } }, []Stage{Scale, Index}},
		{"wrong sign table, decoder", "DecodeValues", func(m *mutant) {
			m.signs = func(s []float32) { s[len(s)/2] = -s[len(s)/2] }
		}, []Stage{Dequantize}},
		{"off-by-one stride", "EncodeKeys", func(m *mutant) {
			m.load = func(x codec.Tensor, row []float32, r int) {
				y := x
				if x.Stride != nil && len(x.Shape) > 1 && x.Stride[len(x.Stride)-2] > 0 {
					y.Stride = slices.Clone(x.Stride)
					y.Stride[len(y.Stride)-2]--
				}
				y.LoadRow(row, r)
			}
		}, []Stage{Scale, Zero, Index, Error}},
		{"strides of the output ignored", "DecodeKeys", func(m *mutant) {
			m.decoded = func(dst codec.Tensor, before []byte) {
				if dst.Stride != nil {
					plain := elements(dst)
					copy(dst.Data, before)
					copy(dst.Data, plain)
				}
			}
		}, []Stage{Dequantize, Bounds}},
		{"stale byte past the end", "EncodeValues", func(m *mutant) {
			m.finish = func(dst *packed, rows int) {
				if n := len(dst.codes); cap(dst.codes) > n {
					dst.codes[:n+1][n]++
				}
			}
		}, []Stage{Bounds}},
		{"a byte too many", "EncodeValues", func(m *mutant) {
			m.finish = func(dst *packed, rows int) { dst.codes = append(slices.Clip(dst.codes), 0) }
		}, []Stage{Bounds}},
		{"no canonical inputs", "EncodeValues", func(m *mutant) { m.canon = func(x float32) float32 { return x } }, []Stage{Scale, Index}},
		{"last element not decoded", "Decode", func(m *mutant) {
			m.decoded = func(dst codec.Tensor, before []byte) {
				eachElement(dst, func(i, at int) {
					if i == dst.Len()-1 {
						copy(dst.Data[at:at+dst.DType.Size()], before[at:])
					}
				})
			}
		}, []Stage{Dequantize}},
		{"bf16 truncated", "DecodeValuesRotated", func(m *mutant) {
			m.store = func(t codec.DType, b []byte, x float32) {
				if t == codec.BF16 && f32.IsFinite(x) {
					x = math.Float32frombits(math.Float32bits(x) &^ 0xffff)
				}
				t.Store(b, x)
			}
		}, []Stage{Dequantize}},
		{"input modified", "EncodeValues", func(m *mutant) {
			m.input = func(x codec.Tensor) {
				if len(x.Data) > 0 && x.Len() != 0 {
					x.Data[0] ^= 0x80
				}
			}
		}, []Stage{Input}},
		{"wrong index in errors", "data=nan", func(m *mutant) {
			m.errs = func(err error) error {
				if e, ok := err.(*codec.Error); ok {
					c := *e
					c.Index++
					return &c
				}
				return err
			}
		}, []Stage{Error}},
		{"untyped errors", "data=nan", func(m *mutant) {
			m.errs = func(err error) error {
				if err != nil {
					return codec.ErrShape
				}
				return nil
			}
		}, []Stage{Error}},
		{"unstable", "EncodeValues", func(m *mutant) { m.unstable = true }, []Stage{Index, Unstable}},
		{"panic", "EncodeValues", func(m *mutant) { m.input = func(codec.Tensor) { panic("boom") } }, []Stage{Panic}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m := rewritten()
			test.break_(m)
			r := Run(t.Context(), m, plainly(test.filter))
			if r.Failed == 0 || r.Err() == nil {
				t.Fatalf("%d cases, none failed", r.Cases)
			}
			wrong := 0
			stages := map[Stage]int{}
			for _, f := range r.Failures {
				stages[f.Stage]++
				if !slices.Contains(test.want, f.Stage) {
					if wrong++; wrong <= 3 {
						t.Errorf("want stage %v: %v", test.want, f)
					}
				}
				if !strings.Contains(f.Error(), f.Case) || f.Case == "" {
					t.Errorf("report without its case: %v", f)
				}
			}
			t.Logf("%d of %d cases failed: %v", r.Failed, r.Cases, stages)
		})
	}
}

// The rewritten encoders are right where they are meant to be, so the faults
// above are the only ones.
func TestRewritten(t *testing.T) {
	t.Parallel()
	for _, filter := range []string{"EncodeKeys", "rule=rms", "rule=search"} {
		m := rewritten()
		m.miss = func(c, s, y float32) float32 { return float32(c*s) - y }
		if r := Run(t.Context(), m, plainly(filter)); r.Err() != nil {
			t.Error(r.Err())
		}
	}
}
