package block_test

import (
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/cpu"
	"github.com/turbotrellis/turbotrellis/kvcache/block"
)

// BenchmarkBlock encodes and decodes 256 tokens of 4 layers, beside the codec alone.
func BenchmarkBlock(b *testing.B) {
	backend := cpu.New(cpu.Options{Workers: 1})
	p := codec.KVParams{HeadDim: 128, Keys: codec.Q8_0, Values: codec.Q4_0}
	l := block.Layer{Heads: 8, Params: p}
	c, err := block.New(backend, []block.Layer{l, l, l, l})
	if err != nil {
		b.Fatal(err)
	}
	kv, err := backend.KV(p)
	if err != nil {
		b.Fatal(err)
	}
	x := wave(codec.BF16, 1, 8, 256, 128)
	size, err := c.Size(256)
	if err != nil {
		b.Fatal(err)
	}
	frame, id := make([]byte, size), block.ID{Tokens: 256}
	both := func(int) (codec.Tensor, codec.Tensor, error) { return x, x, nil }
	out := codec.NewTensor(codec.BF16, 8, 256, 128)
	outs := func(int) (codec.Tensor, codec.Tensor, error) { return out, out, nil }
	var k codec.Keys
	var v codec.Values
	for _, bench := range []struct {
		name string
		call func() error
	}{
		{"encode", func() error { _, err := c.Encode(frame, id, both); return err }},
		{"encode codec alone", func() error {
			for range 4 {
				if err := kv.EncodeKeys(&k, x); err != nil {
					return err
				}
				if err := kv.EncodeValues(&v, x); err != nil {
					return err
				}
			}
			return nil
		}},
		{"decode", func() error { _, err := c.Decode(frame, id, outs); return err }},
		{"decode codec alone", func() error {
			for range 4 {
				if err := kv.Decode(out, out, k, v); err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.SetBytes(int64(8 * len(x.Data)))
			b.ReportAllocs()
			for b.Loop() {
				if err := bench.call(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkLongest finds 64 blocks in a store of a few thousand.
func BenchmarkLongest(b *testing.B) {
	s := openStore(b, b.TempDir(), block.StoreOptions{})
	for seed := range 32 {
		put(b, s, frames(b, tokensOf(256, seed)))
	}
	tokens := tokensOf(256, 5)
	for b.Loop() {
		if found, err := s.Longest(model, tokens, 4); err != nil || len(found) != 64 {
			b.Fatal(len(found), err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(64*b.N), "µs/block")
}
