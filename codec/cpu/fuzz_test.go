package cpu_test

import (
	"context"
	"slices"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/cpu"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// FuzzKV holds every level to the reference, errors included, on rows of any bits.
func FuzzKV(f *testing.F) {
	seed := make([]byte, 4*256)
	for i := range seed {
		seed[i] = byte(i*i>>3 ^ i)
	}
	f.Add(seed, uint8(0), uint8(0))
	f.Add(seed[:512], uint8(7), uint8(9))
	f.Add(make([]byte, 512), uint8(60), uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, format, rule uint8) {
		p := codec.KVParams{
			HeadDim:   []int{64, 32, 128, 96}[format/64],
			Keys:      codec.KeyFormats()[int(format)%len(codec.KeyFormats())],
			Values:    codec.ValueFormats()[int(rule)%len(codec.ValueFormats())],
			Group:     []int{32, 64}[rule>>3&1],
			Scale:     []codec.ScaleRule{codec.RMS, codec.Search}[rule>>4&1],
			Policy:    []codec.Policy{codec.Finite, codec.Compat}[rule>>5&1],
			ScaleType: []codec.DType{codec.F16, codec.F32, codec.BF16}[int(rule>>6)%3],
		}
		if p.Validate() != nil {
			return
		}
		d := []codec.DType{codec.F32, codec.F16, codec.BF16}[int(format>>3)%3]
		n := min(len(data)/d.Size()/p.HeadDim, 8)
		if n == 0 {
			return
		}
		x := codec.Tensor{DType: d, Shape: []int{n, p.HeadDim}, Data: data}
		want := exercise(t, ref.New(), p, x)
		for _, l := range cpu.Levels() {
			b := cpu.New(cpu.Options{Level: l, Workers: 1 + int(rule)%3})
			diff(t, l.String(), exercise(t, b, p, x), want)
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// FuzzTrellis holds every level to the reference on blocks of any samples.
func FuzzTrellis(f *testing.F) {
	seed := make([]byte, 4*128)
	for i := range seed {
		seed[i] = byte(i * 37)
	}
	f.Add(seed, uint8(2), uint8(0))
	f.Add(make([]byte, 512), uint8(3), uint8(5))
	f.Fuzz(func(t *testing.T, data []byte, k, form uint8) {
		p := trellis.Params{L: 8 + int(form)%5, K: 1 + int(k)%4, T: 32, Code: trellis.Code(form >> 4 % 3), FreeEnds: form>>6&1 != 0}
		if p.Validate() != nil || len(data) < 128 {
			return
		}
		x := codec.Tensor{DType: codec.F16, Shape: []int{min(len(data)/64, 4), 32}, Data: data}
		states := func(b codec.Backend) ([]uint16, string) {
			c, err := b.Trellis(p)
			if err != nil {
				t.Fatal(err)
			}
			s := make([]uint16, x.Len())
			if err := c.EncodeBlocks(context.Background(), s, x); err != nil {
				return nil, err.Error()
			}
			return s, ""
		}
		want, wantErr := states(ref.New())
		for _, l := range cpu.Levels() {
			b := cpu.New(cpu.Options{Level: l, Workers: 1})
			if got, err := states(b); err != wantErr || !slices.Equal(got, want) {
				t.Errorf("%v: error %q, states %v; want %q, %v", l, err, got, wantErr, want)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
