package conformance

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/hadamard"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/lloydmax"
	"github.com/turbotrellis/turbotrellis/pack"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// mutantRowCode is the reference with one fault in its row codes.
type mutantRowCode struct {
	codec.Backend // the reference
	centre        func(c codec.Centre) codec.Centre
	shift         func(v, mean, gain float32) float32 // in place of v·gain + mean, in decoders
	steps         []int                               // of the search for the scale of levels
	seam          bool                                // paths that close at another place
}

func (b *mutantRowCode) KV(p codec.KVParams) (codec.KV, error) {
	kv, err := b.Backend.KV(p)
	if err != nil {
		return nil, err
	}
	p.CentreKeys, p.CentreValues = false, false
	plain, err := b.Backend.KV(p)
	return &mutantRowKV{kv, plain, b}, err
}

type mutantRowKV struct {
	codec.KV
	plain codec.KV // without centres
	b     *mutantRowCode
}

func (k *mutantRowKV) centre(c codec.Centre) codec.Centre {
	if k.b.centre != nil && c.Gain.DType != 0 {
		return k.b.centre(c)
	}
	return c
}

func (k *mutantRowKV) EncodeValues(dst *codec.Values, x codec.Tensor) error {
	dst.Centre = k.centre(dst.Centre)
	if err := k.KV.EncodeValues(dst, x); err != nil {
		return err
	}
	p := k.Params()
	if p.CentreValues || k.b.steps == nil && !k.b.seam || p.Values.Trellis() != k.b.seam {
		return nil
	}
	rot, err := hadamard.New(p.ValueHeadDim)
	if err != nil {
		return err
	}
	row, n := make([]float32, x.Dim()), x.Dim()*p.Values.Bits()/8
	for r := range x.Rows() {
		if dst.Scales[r] == 0 {
			continue
		}
		x.LoadRow(row, r)
		for i, v := range row {
			row[i] = f32.Canon(v)
		}
		rot.Forward(row)
		if k.b.seam {
			err = seamed(dst.Codes[r*n:][:n], row, p.Values.Bits())
		} else {
			dst.Scales[r], err = k.levels(dst.Codes[r*n:][:n], row, p.Values.Bits())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (k *mutantRowKV) EncodeKeys(dst *codec.Keys, x codec.Tensor) error {
	v := codec.Values{Codes: dst.Codes, Scales: dst.Scales, Centre: dst.Centre}
	if err := k.KV.EncodeKeys(dst, x); err != nil || k.Params().CentreKeys {
		return err
	}
	if err := k.EncodeValues(&v, x); err != nil {
		return err
	}
	dst.Codes, dst.Scales = v.Codes, v.Scales
	return nil
}

// firstScale is c0 of docs/numerics.md §10.
func firstScale(y []float32) int {
	var lanes [32]float32
	for i, v := range y {
		lanes[i%32] += flushed(v * v)
	}
	return min((int(pack.ToF16(f32.Sqrt(flushed(f32.TreeSum(lanes[:])/float32(len(y))))))+64)>>7, 247)
}

// levels packs a rotated row with this mutant's order of scales.
func (k *mutantRowKV) levels(codes []byte, y []float32, bits int) (byte, error) {
	table, err := lloydmax.Lookup(bits)
	if err != nil {
		return 0, err
	}
	best, least := 0, float32(0)
	var kept []byte
	for _, step := range k.b.steps {
		code := min(max(firstScale(y)+step, 1), 247)
		s := pack.FromF16(uint16(code << 7))
		var lanes [32]float32
		index := make([]byte, len(y))
		for i, v := range y {
			index[i] = byte(table.Index(flushed(v / s)))
			e := float32(table.Centroid(int(index[i]))*s) - v
			lanes[i%32] += flushed(e * e)
		}
		if sum := f32.TreeSum(lanes[:]); best == 0 || sum < least {
			best, least, kept = code, sum, index
		}
	}
	return byte(best), pack.Pack(codes, kept, bits)
}

// seamed packs the path of a rotated row that begins one sample later.
func seamed(codes []byte, y []float32, bits int) error {
	enc, err := trellis.NewRowEncoder(bits, len(y))
	if err != nil {
		return err
	}
	s := pack.FromF16(uint16(firstScale(y) << 7))
	samples, states, words := make([]float32, len(y)), make([]uint16, len(y)), make([]uint32, len(codes)/4)
	for i := range y {
		samples[i] = y[(i+1)%len(y)] / s
	}
	if err := enc.EncodeBlock(states, samples); err != nil {
		return err
	}
	states = append(states[len(states)-1:], states[:len(states)-1]...)
	if err := trellis.PackStates(words, states, enc.Params()); err != nil {
		return err
	}
	for i, w := range words {
		binary.LittleEndian.PutUint32(codes[4*i:], w)
	}
	return nil
}

func (k *mutantRowKV) DecodeValues(dst codec.Tensor, v codec.Values) error {
	centre := v.Centre
	v.Centre = k.centre(v.Centre)
	if err := k.KV.DecodeValues(dst, v); err != nil || k.b.shift == nil || !k.Params().CentreValues || dst.Len() == 0 {
		return err
	}
	wide := codec.NewTensor(codec.F32, dst.Shape...)
	if err := k.plain.DecodeValues(wide, v); err != nil {
		return err
	}
	mean, gain, row := make([]float32, dst.Dim()), make([]float32, dst.Dim()), make([]float32, dst.Dim())
	for r := range dst.Rows() { // centres of these cases are the same for all rows
		centre.Mean.LoadRow(mean, 0)
		centre.Gain.LoadRow(gain, 0)
		wide.LoadRow(row, r)
		for i, v := range row {
			row[i] = k.b.shift(v, mean[i], gain[i])
		}
		dst.StoreRow(r, row)
	}
	return nil
}

func (k *mutantRowKV) UnrotateCentred(dst, x codec.Tensor, c codec.Centre, mass codec.Tensor) error {
	return k.KV.UnrotateCentred(dst, x, k.centre(c), mass)
}

func TestBrokenRowCodes(t *testing.T) {
	t.Parallel()
	forget := func(c codec.Centre) codec.Centre {
		one := codec.NewTensor(codec.F16, c.Gain.Shape...)
		for i := range one.Len() {
			codec.F16.Store(one.Data[2*i:], 1)
		}
		return codec.Centre{Mean: c.Mean, Gain: one}
	}
	steps := []int{0, -1, 1, -2, 2, -3, 3, -4, 4}
	for _, test := range []struct {
		name   string
		filter string
		mutant mutantRowCode
		want   []Stage
	}{
		{"none", "EncodeRows", mutantRowCode{steps: steps}, nil},
		{"none, decoder", "DecodeRows", mutantRowCode{}, nil},
		{"gain forgotten, encoder", "EncodeRows", mutantRowCode{centre: forget}, []Stage{Scale, Index, States, Error}},
		{"gain forgotten, decoder", "DecodeRows", mutantRowCode{centre: forget}, []Stage{Dequantize, Saturate}},
		{"gain forgotten, Unrotate", "UnrotateRows", mutantRowCode{centre: forget}, []Stage{Unrotate, Saturate}},
		{"mean added before the gain", "side=values", mutantRowCode{shift: func(v, mean, gain float32) float32 { return (v + mean) * gain }}, []Stage{Dequantize}},
		{"mean added by fma", "side=values", mutantRowCode{shift: func(v, mean, gain float32) float32 { return f32.FMA(v, gain, mean) }}, []Stage{Dequantize}},
		{"scales searched in ascending order", "error-ties", mutantRowCode{steps: []int{-4, -3, -2, -1, 0, 1, 2, 3, 4}}, []Stage{Scale}},
		{"scales searched from above", "error-ties", mutantRowCode{steps: []int{0, 1, -1, 2, -2, 3, -3, 4, -4}}, []Stage{Scale}},
		{"seam at another place", "EncodeRows", mutantRowCode{seam: true}, []Stage{States}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.mutant.Backend = ref.New()
			r := Run(t.Context(), &test.mutant, plainly(test.filter))
			if test.want == nil {
				if err := r.Err(); err != nil {
					t.Error(err)
				}
				return
			}
			if r.Failed == 0 {
				t.Errorf("%d cases, none failed", r.Cases)
			}
			for _, f := range r.Failures {
				if !slices.Contains(test.want, f.Stage) {
					t.Errorf("want stage %v: %v", test.want, f)
					break
				}
			}
			t.Logf("%d of %d cases failed", r.Failed, r.Cases)
		})
	}
}
