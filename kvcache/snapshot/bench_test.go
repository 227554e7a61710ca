package snapshot

import (
	"bytes"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/cpu"
	"github.com/turbotrellis/turbotrellis/codec/ref"
)

// inPlace is a file in memory that has its length.
type inPlace []byte

func (m inPlace) WriteAt(p []byte, off int64) (int, error) { return copy(m[off:], p), nil }

// BenchmarkTranscode packs and restores keys and values of 32 MiB each in
// memory. The codec alone, on the whole tensors, is the yardstick.
func BenchmarkTranscode(b *testing.B) {
	const rows, dim = 1 << 16, 128
	src := file(b, nil, f32("k", []int{rows, dim}, wave), f32("v", []int{rows, dim}, wave))
	fast, err := cpu.Open()
	if err != nil {
		b.Fatal(err)
	}
	defer fast.Close()
	for _, backend := range []codec.Backend{fast, ref.New()} {
		o := options()
		o.Backend = backend
		snap, err := encode(b, src, o)
		if err != nil {
			b.Fatal(err)
		}
		run := func(name string, f func() error) {
			b.Run(backend.Name()+"/"+name, func(b *testing.B) {
				b.SetBytes(2 * rows * dim * 4)
				b.ReportAllocs()
				for b.Loop() {
					if err := f(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		dst := make(inPlace, len(src)+1<<16)
		run("Encode", func() error {
			return second(Encode(b.Context(), dst, bytes.NewReader(src), int64(len(src)), o))
		})
		s, err := open(snap)
		if err != nil {
			b.Fatal(err)
		}
		run("Decode", func() error { return second(s.Decode(b.Context(), dst, DecodeOptions{Backend: backend})) })

		p := o.Params
		p.HeadDim = dim
		kv, err := backend.KV(p)
		if err != nil {
			b.Fatal(err)
		}
		x := codec.FromF32(make([]float32, rows*dim), rows, dim)
		var k codec.Keys
		var v codec.Values
		run("codec encode", func() error {
			if err := kv.EncodeKeys(&k, x); err != nil {
				return err
			}
			return kv.EncodeValues(&v, x)
		})
		run("codec decode", func() error { return kv.Decode(x, x, k, v) })
	}
}
