package block_test

import (
	"os"
	"path/filepath"
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

// BenchmarkStore finds, reads and lists in a store of 100,032 blocks: 1,563 sequences of 64.
func BenchmarkStore(b *testing.B) {
	dir := b.TempDir()
	s := openStore(b, dir, block.StoreOptions{})
	for seed := range 1563 {
		for _, frame := range frames(b, tokensOf(256, seed)) {
			id, _, err := block.Inspect(frame)
			if err != nil {
				b.Fatal(err)
			}
			// As Put names it. A hundred thousand Puts wait for the disk as often.
			name := id.Key.String()
			if err := os.MkdirAll(filepath.Join(dir, name[:2]), 0o777); err != nil {
				b.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name[:2], name+".ttkb"), frame, 0o666); err != nil {
				b.Fatal(err)
			}
		}
	}
	seed := 0
	next := func() []uint32 { seed = (seed + 389) % 1563; return tokensOf(256, seed) }
	b.Run("longest", func(b *testing.B) {
		for b.Loop() {
			if found, err := s.Longest(model, next(), 4); err != nil || len(found) != 64 {
				b.Fatal(len(found), err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(64*b.N), "µs/block")
	})
	b.Run("get", func(b *testing.B) {
		var frame []byte
		for b.Loop() {
			for _, key := range block.Chain(model, next(), 4) {
				var err error
				if frame, err = s.Get(frame[:0], key); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(64*b.N), "µs/block")
	})
	b.Run("list", func(b *testing.B) {
		for b.Loop() {
			if list, err := s.List(b.Context()); err != nil || len(list) != 100_032 {
				b.Fatal(len(list), err)
			}
		}
	})
}
