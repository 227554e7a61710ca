package conformance

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"math"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// A digest is SHA-256 over every output of n iterations in order. Iteration i
// has parameters chosen by i and one row of a specified generator, so that
// another implementation can compute the same number: vectors/README.md is the
// specification, and vectors/oracle/digest.py is the one that made the numbers
// of this file. NaN is hashed as the quiet NaN without payload.
type digest struct {
	of     string
	want   map[int]string // by n
	run    func(e backends, lo, hi int) ([]iteration, error)
	params func(i int) string
}

// backends makes codecs: the backend's or the reference's.
type backends interface {
	digestKV(p codec.KVParams) codec.KV
	digestTrellis(p trellis.Params) codec.Trellis
}

func (e *env) digestKV(p codec.KVParams) codec.KV           { return e.kv(p) }
func (e *env) digestTrellis(p trellis.Params) codec.Trellis { return e.trellis(p) }

// refOnly is an env's reference.
type refOnly struct{ *env }

func (e refOnly) digestKV(p codec.KVParams) codec.KV           { return e.refKV(p) }
func (e refOnly) digestTrellis(p trellis.Params) codec.Trellis { return e.refTrellis(p) }

// iteration is the outputs of one iteration; only name, stage, t, perElem and
// got are set.
type iteration struct {
	parts []part
	group int
}

// hash adds the outputs to h.
func (it *iteration) hash(h hash.Hash) {
	for k := range it.parts {
		p := &it.parts[k]
		if p.t != 0 {
			canonicalNaN(p.t, p.got)
		}
		h.Write(p.got)
	}
}

// canonicalNaN replaces every NaN in b by the quiet NaN without payload.
func canonicalNaN(t codec.DType, b []byte) {
	for i := 0; i < len(b); i += t.Size() {
		if v := t.Load(b[i:]); v != v {
			t.Store(b[i:], math.Float32frombits(0x7fc00000))
		}
	}
}

var digests = []digest{
	{of: "keys", want: keysDigests, run: digestKeys, params: func(i int) string {
		p, t := digestKeyParams(i)
		return paramsText(p, true, false) + ",dtype=" + t.String()
	}},
	{of: "weights", want: weightsDigests, run: digestWeights, params: func(i int) string { p, t := digestTrellisParams(i); return fmt.Sprintf("%+v,dtype=%v", p, t) }},
	{of: "values", want: valuesDigests, run: digestValues, params: func(i int) string {
		p, t := digestValueParams(i)
		return paramsText(p, false, true) + ",dtype=" + t.String()
	}},
}

// digestChunk is the number of iterations whose rows of equal parameters go to
// the backend together.
const digestChunk = 20000

// digestSizes are the numbers of iterations of the short, normal and long forms.
var digestSizes = []int{100, 10000, 1000000}

func digestCases() []Case {
	var cases []Case
	for _, d := range digests {
		for _, n := range digestSizes {
			form := Normal
			if n > 10000 {
				form = Long
			}
			cases = append(cases, Case{Op: "Digest", Name: fmt.Sprintf("Digest(of=%s,n=%d)", d.of, n), short: n == 100, form: form,
				run: func(e *env) *Failure { return d.check(e, n) }})
		}
	}
	return cases
}

func (d *digest) sum(ctx context.Context, e backends, n int) (string, error) {
	h := sha256.New()
	for lo := 0; lo < n; lo += digestChunk {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		its, err := d.run(e, lo, min(n, lo+digestChunk))
		if err != nil {
			return "", err
		}
		for i := range its {
			its[i].hash(h)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (d *digest) check(e *env, n int) *Failure {
	got, err := d.sum(e.ctx, e, n)
	if err != nil {
		e.refuse(err, "")
	}
	if got == d.want[n] {
		return nil
	}
	f := d.first(e, n)
	f.Detail += fmt.Sprintf("\ndigest %s, want %s", got, d.want[n])
	return f
}

// first returns the first difference from the reference.
func (d *digest) first(e *env, n int) *Failure {
	for lo := 0; lo < n; lo += digestChunk {
		got, err := d.run(e, lo, min(n, lo+digestChunk))
		if err != nil {
			return failure(Error, "", "%v", err)
		}
		want, err := d.run(refOnly{e}, lo, min(n, lo+digestChunk))
		if err != nil {
			return failure(Error, "", "the reference: %v", err)
		}
		for i := range got {
			parts, elements := got[i].parts, 0
			for k := range parts {
				parts[k].want = want[i].parts[k].got
				elements = max(elements, len(parts[k].want)/parts[k].size()*parts[k].perElem)
			}
			if f := compare(parts, got[i].group, elements/got[i].group); f != nil {
				f.Detail = fmt.Sprintf("iteration %d: %s", lo+i, d.params(lo+i))
				return f
			}
		}
	}
	return failure(Unstable, "", "the reference gives this digest, too")
}

// The seeds of the digests' generators.
const (
	seedKeys    = 1
	seedValues  = 2
	seedWeights = 3
)

// digestRow returns the n elements of iteration i: word j of the iteration is
// mix(seed + (i·2^20 + j + 1)·golden).
func digestRow(seed uint64, i int, t codec.DType, dst []byte, n int) {
	word := func(j int) uint64 { return mix(seed + (uint64(i)<<20+uint64(j)+1)*golden) }
	size := t.Size()
	e := int(word(0)%12) - 5
	for j := range n {
		s := centred(word(1 + 2*j))
		x := float32(s) * pow2(e-15)
		tiny := pow2(-60)
		if t != codec.F32 { // eight significant bits
			x = float32(s>>10) * pow2(e-5)
		}
		if t == codec.F16 {
			tiny = pow2(-14)
		}
		switch word(2+2*j) % 64 {
		case 0:
			x = 0
		case 1:
			x = negativeZero
		case 2:
			x *= 64
		case 3:
			x *= tiny
		}
		t.Store(dst[j*size:], x)
	}
}

var negativeZero = float32(math.Copysign(0, -1))

// digits takes a number apart in mixed radix, least first.
type digits int

func (d *digits) next(radix int) int {
	r := int(*d) % radix
	*d /= digits(radix)
	return r
}

var (
	digestKeyDims   = []int{64, 128, 192}
	digestValueDims = []int{64, 128, 192, 256, 320, 448}
)

func digestKeyParams(i int) (codec.KVParams, codec.DType) {
	d := digits(int(uint64(i) * 347 % 648))
	f := keyFormats[d.next(6)]
	group, scale, policy, t, dim := groups[d.next(2)], scaleTypes[d.next(3)], policies[d.next(2)], dtypes[d.next(3)], digestKeyDims[d.next(3)]
	return keyParams(dim, f, group, scale, policy), t
}

func digestValueParams(i int) (codec.KVParams, codec.DType) {
	d := digits(int(uint64(i) * 347 % 1080))
	f, group, scale, rule, t, dim := valueFormats[d.next(5)], groups[d.next(2)], scaleTypes[d.next(3)], rules[d.next(2)], dtypes[d.next(3)], digestValueDims[d.next(6)]
	return valueParams(dim, f, group, scale, codec.Finite, rule), t
}

// rowsOf returns iterations lo to hi−1 by their parameters: period apart, they
// have the same.
func rowsOf(lo, hi, period int, f func(first, rows int) error) error {
	for first := lo; first < min(hi, lo+period); first++ {
		if err := f(first, (hi-1-first)/period+1); err != nil {
			return err
		}
	}
	return nil
}

func row(b []byte, r, rows int) []byte {
	n := len(b) / rows
	return b[r*n : (r+1)*n : (r+1)*n]
}

func digestKeys(e backends, lo, hi int) ([]iteration, error) {
	its := make([]iteration, hi-lo)
	err := rowsOf(lo, hi, 648, func(first, rows int) error {
		p, t := digestKeyParams(first)
		x, out := codec.NewTensor(t, rows, p.HeadDim), codec.NewTensor(t, rows, p.HeadDim)
		for r := range rows {
			digestRow(seedKeys, first+r*648, t, row(x.Data, r, rows), p.HeadDim)
		}
		kv := e.digestKV(p)
		var k codec.Keys
		if err := kv.EncodeKeys(&k, x); err != nil {
			return err
		}
		if err := kv.DecodeKeys(out, k); err != nil {
			return err
		}
		for r := range rows {
			its[first+r*648-lo] = iteration{group: p.Group, parts: []part{
				{name: "scales", stage: Scale, t: p.ScaleType, perElem: p.Group, got: row(k.Scales, r, rows)},
				{name: "zeros", stage: Zero, t: p.ScaleType, perElem: p.Group, got: row(k.Zeros, r, rows)},
				{name: "codes", stage: Index, perElem: 1, got: row(k.Codes, r, rows)},
				{name: "dst keys", stage: Dequantize, t: t, perElem: 1, got: row(out.Data, r, rows)},
			}}
		}
		return nil
	})
	return its, err
}

func digestValues(e backends, lo, hi int) ([]iteration, error) {
	its := make([]iteration, hi-lo)
	err := rowsOf(lo, hi, 1080, func(first, rows int) error {
		p, t := digestValueParams(first)
		d := p.ValueHeadDim
		x, rotated, out, back := codec.NewTensor(t, rows, d), codec.NewTensor(t, rows, d), codec.NewTensor(t, rows, d), codec.NewTensor(t, rows, d)
		for r := range rows {
			digestRow(seedValues, first+r*1080, t, row(x.Data, r, rows), d)
		}
		kv := e.digestKV(p)
		var v codec.Values
		if err := kv.EncodeValues(&v, x); err != nil {
			return err
		}
		if err := kv.DecodeValuesRotated(rotated, v); err != nil {
			return err
		}
		if err := kv.DecodeValues(out, v); err != nil {
			return err
		}
		if err := kv.Unrotate(back, x); err != nil {
			return err
		}
		for r := range rows {
			its[first+r*1080-lo] = iteration{group: p.Group, parts: []part{
				{name: "scales", stage: Scale, t: p.ScaleType, perElem: p.Group, got: row(v.Scales, r, rows)},
				{name: "codes", stage: Index, perElem: 1, got: row(v.Codes, r, rows)},
				{name: "dst values, rotated", stage: Dequantize, t: t, perElem: 1, got: row(rotated.Data, r, rows)},
				{name: "dst values", stage: Unrotate, t: t, perElem: 1, got: row(out.Data, r, rows)},
				{name: "x, unrotated", stage: Unrotate, t: t, perElem: 1, got: row(back.Data, r, rows)},
			}}
		}
		return nil
	})
	return its, err
}

func digestTrellisParams(i int) (trellis.Params, codec.DType) {
	d := digits(int(uint64(i) * 347 % 288))
	k := d.next(4) + 1
	p := trellis.Params{L: k + 4, K: k}
	p.Code, p.Scale, p.Policy = trellisCodes[d.next(3)], []trellis.ScaleRule{trellis.RMS, trellis.Refit}[d.next(2)], []trellis.Policy{trellis.Finite, trellis.Compat}[d.next(2)]
	t := dtypes[d.next(3)]
	p.T = []int{32, 64}[d.next(2)]
	return p, t
}

func digestWeights(e backends, lo, hi int) ([]iteration, error) {
	its := make([]iteration, hi-lo)
	err := rowsOf(lo, hi, 288, func(first, rows int) error {
		p, t := digestTrellisParams(first)
		cols := 2 * p.T
		x, out := codec.NewTensor(codec.F32, rows, cols), codec.NewTensor(t, rows, cols)
		for r := range rows {
			digestRow(seedWeights, first+r*288, codec.F32, row(x.Data, r, rows), cols)
		}
		c := e.digestTrellis(p)
		var m trellis.Matrix
		if err := c.Encode(context.Background(), &m, codec.Tensor{}, x, trellis.Geometry{Axis: 1, Out: rows, In: cols}); err != nil {
			return err
		}
		if err := c.Decode(out, &m, 0); err != nil {
			return err
		}
		scales, codes := bytesOf(m.Scales), bytesOf(m.Codes)
		for r := range rows {
			its[first+r*288-lo] = iteration{group: cols, parts: []part{
				{name: "scales", stage: Scale, t: codec.F16, perElem: cols, got: row(scales, r, rows)},
				{name: "codes", stage: States, perElem: 1, got: row(codes, r, rows)},
				{name: "dst weights", stage: Dequantize, t: t, perElem: 1, got: row(out.Data, r, rows)},
			}}
		}
		return nil
	})
	return its, err
}
