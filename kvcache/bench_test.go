package kvcache_test

import (
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/cpu"
	"github.com/turbotrellis/turbotrellis/kvcache"
)

// BenchmarkBatch moves packed rows of 8 sequences of 2,048 tokens, 8 heads, d = 128, beside a plain copy of as many bytes.
func BenchmarkBatch(b *testing.B) {
	p := codec.KVParams{HeadDim: 128, Keys: codec.Q8_0, Values: codec.Q4_0}
	l := kvcache.Layout{Heads: 8, Keys: kvcache.PackedKeys(p), Values: kvcache.PackedValues(p)}
	const tokens, sequences = 2048, 8
	fill := func(f kvcache.Format, n int) kvcache.Data {
		d := kvcache.Data{Tokens: n}
		for _, plane := range f.Planes {
			d.Planes = append(d.Planes, make([]byte, l.Heads*n*plane.RowLen))
		}
		return d
	}
	var rows []*kvcache.Batch
	bytes := 0
	for range sequences {
		r, err := kvcache.New(l, 1)
		if err != nil {
			b.Fatal(err)
		}
		k, v := fill(l.Keys, tokens), fill(l.Values, tokens)
		if err := r.Append(k, v); err != nil {
			b.Fatal(err)
		}
		for _, d := range []kvcache.Data{k, v} {
			for _, p := range d.Planes {
				bytes += len(p)
			}
		}
		rows = append(rows, r)
	}
	merged, err := kvcache.Merge(rows...)
	if err != nil {
		b.Fatal(err)
	}
	run := func(name string, n int, call func() error) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				if err := call(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	src := make([]byte, bytes)
	run("copy to new memory", bytes, func() error { dst := make([]byte, bytes); copy(dst, src); return nil })
	run("merge", bytes, func() error { _, err := kvcache.Merge(rows...); return err })
	run("extract", bytes/sequences, func() error { _, err := merged.Extract(3); return err })
	run("filter half", bytes/2, func() error {
		c := *merged
		return c.Filter([]int{0, 2, 4, 6})
	})
}

// BenchmarkAppend packs one token of 30 layers of 8 heads, d = 128, and appends it to caches of up to 4,096 tokens,
// beside packing alone.
func BenchmarkAppend(b *testing.B) {
	kv, err := cpu.New(cpu.Options{Workers: 1}).KV(codec.KVParams{HeadDim: 128, Keys: codec.Q8_0, Values: codec.Q4_0})
	if err != nil {
		b.Fatal(err)
	}
	p := kv.Params()
	x := codec.NewTensor(codec.BF16, 1, 8, 1, 128)
	for i := range x.Len() {
		codec.BF16.Store(x.Data[2*i:], float32(i%37)-18)
	}
	var k codec.Keys
	var v codec.Values
	l := kvcache.Layout{Heads: 8, Keys: kvcache.PackedKeys(p), Values: kvcache.PackedValues(p)}
	for name, appends := range map[string]bool{"pack": false, "pack and append": true} {
		b.Run(name, func(b *testing.B) {
			var caches [30]*kvcache.Batch
			for b.Loop() {
				for i := range caches {
					if err := kv.EncodeKeys(&k, x); err != nil {
						b.Fatal(err)
					}
					if err := kv.EncodeValues(&v, x); err != nil {
						b.Fatal(err)
					}
					if !appends {
						continue
					}
					if caches[i] == nil || caches[i].Width() == 4096 {
						if caches[i], err = kvcache.New(l, 1); err != nil {
							b.Fatal(err)
						}
					}
					if err := caches[i].Append(kvcache.KeysData(k, p), kvcache.ValuesData(v, p)); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
