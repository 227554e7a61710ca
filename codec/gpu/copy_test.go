package gpu

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/kvcache"
)

var _ kvcache.Memory = (*Backend)(nil)

// Runs of every alignment are copied, and nothing beside them.
func TestCopy(t *testing.T) {
	b := open(t, Options{})
	e := newExercise(t, b)
	src, err := b.Alloc(8192)
	e.must(err)
	dst, err := b.Alloc(8192)
	e.must(err)
	for i := range src {
		src[i] = byte(i*7 + i>>8)
	}
	var list []codec.RowCopy
	want := bytes.Repeat([]byte{0xa5}, len(dst))
	copy(dst, want)
	at := 0
	for _, c := range []struct{ from, rows, n, dstStep, srcStep int }{
		{0, 3, 64, 80, 100}, {1, 4, 33, 35, 40}, {2, 5, 30, 32, 44}, {4, 1, 700, 0, 0}, {6, 2, 1, 9, 3}, {0, 7, 12, 12, 0}, {8, 0, 5, 1, 1}, {8, 3, 0, 0, 0},
	} {
		at += 5 // so that destinations are of every alignment too
		list = append(list, codec.RowCopy{Dst: dst[at:], Src: src[c.from:], Rows: c.rows, Len: c.n, DstStep: c.dstStep, SrcStep: c.srcStep})
		for i := range c.rows {
			copy(want[at+i*c.dstStep:][:c.n], src[c.from+i*c.srcStep:])
		}
		at += c.rows*c.dstStep + c.n
	}
	e.must(b.Copy(list...))
	e.same("copies", 0, dst, want)

	for name, c := range map[string]codec.RowCopy{
		"Go memory": {Dst: make([]byte, 8), Src: src, Rows: 1, Len: 8},
		"too long":  {Dst: dst, Src: src, Rows: 2, Len: 8, DstStep: 8, SrcStep: 8190},
	} {
		if err := b.Copy(list[0], c); !errors.Is(err, codec.ErrShape) {
			t.Errorf("%s: %v", name, err)
		}
	}
	e.same("after refusals", 0, dst, want)
	e.must(b.Copy())
}

// A cache in the backend's memory holds the bytes of one in Go's, and codecs read its rows in place.
func TestCacheInMemory(t *testing.T) {
	var n counter
	b := open(t, Options{exact: true}, n.wrap)
	e := newExercise(t, b)
	p := codec.KVParams{HeadDim: 32, Keys: codec.Q4_0, Values: codec.Q3_0}
	kv := newCodec(t, b, p)
	host := kvcache.Layout{Heads: 2, Keys: kvcache.PackedKeys(p), Values: kvcache.PackedValues(p), Step: 3}
	device := host
	device.Memory = b
	var all [2][]*kvcache.Batch
	for i, l := range []kvcache.Layout{host, device} {
		for s, tokens := range []int{5, 1, 9} {
			c, err := kvcache.New(l, 1)
			e.must(err)
			for at := range tokens {
				x := tensor(codec.F32, samples(2, 32, uint64(100*s+at)), 1, 2, 1, 32)
				var k codec.Keys
				var v codec.Values
				e.must(kv.EncodeKeys(&k, x))
				e.must(kv.EncodeValues(&v, x))
				e.must(c.Append(kvcache.KeysData(k, p), kvcache.ValuesData(v, p)))
			}
			all[i] = append(all[i], c)
		}
		merged, err := kvcache.Merge(all[i]...)
		e.must(err)
		e.must(merged.Filter([]int{2, 0, 2}))
		e.must(merged.Extend(all[i][1]))
		one, err := merged.Extract(1)
		e.must(err)
		e.must(one.Truncate(4))
		all[i] = append(all[i], merged, one)
	}
	for c := range all[0] {
		var k, v [2]kvcache.Data
		for i := range all {
			e.must(all[i][c].Read(&k[i], &v[i], 0, all[i][c].Width()))
		}
		for _, pair := range [][2]kvcache.Data{{k[0], k[1]}, {v[0], v[1]}} {
			for j := range pair[0].Planes {
				e.same(fmt.Sprintf("cache %d, plane %d", c, j), 0, pair[1].Planes[j], pair[0].Planes[j])
			}
		}
	}

	out, err := b.NewTensor(codec.F32, 1, 9, 32)
	e.must(err)
	for _, rows := range all[1][3].Runs(0, 1) {
		e.must(kv.DecodeKeys(out, codec.Keys{Shape: []int{1, 9, 32}, Codes: rows[0], Scales: rows[1], Zeros: rows[2]})) // tables
		n.bytes = 0
		e.must(kv.DecodeKeys(out, codec.Keys{Shape: []int{1, 9, 32}, Codes: rows[0], Scales: rows[1], Zeros: rows[2]}))
		if n.bytes != 0 {
			t.Errorf("decoding in place allocated %d bytes", n.bytes)
		}
	}
	for _, c := range slices.Concat(all[0], all[1]) {
		e.must(c.Close())
	}
	e.must(b.Free(out.Data))
	if left := len(b.engine.memory.list); left != 0 {
		t.Errorf("%d allocations are left", left)
	}
	b.Close()
	if _, err := kvcache.New(device, 1); err != nil {
		t.Error("an empty cache needs no memory:", err)
	}
	if err := b.Copy(); !errors.Is(err, codec.ErrClosed) {
		t.Errorf("a copy after Close: %v", err)
	}
}
