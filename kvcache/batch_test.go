package kvcache_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/kvcache"
)

// formats are those of every kind of row.
func formats() map[string][2]kvcache.Format {
	p := codec.KVParams{HeadDim: 32, Keys: codec.Q4_0, Values: codec.Q3_0}
	rows := codec.KVParams{HeadDim: 32, Keys: codec.T4, Values: codec.R3, CentreKeys: true}
	a := affine.RowFormat{Bits: 4, Group: 32}
	return map[string][2]kvcache.Format{
		"bf16":       {kvcache.Raw(codec.BF16, 2), kvcache.Raw(codec.BF16, 3)},
		"f16":        {kvcache.Raw(codec.F16, 1), kvcache.Raw(codec.F16, 2)},
		"f32":        {kvcache.Raw(codec.F32, 1), kvcache.Raw(codec.F32, 1)},
		"affine":     {kvcache.Affine(a, codec.BF16, 32), kvcache.Affine(a, codec.BF16, 64)},
		"turboquant": {kvcache.PackedKeys(p), kvcache.PackedValues(p)},
		"row codes":  {kvcache.PackedKeys(rows), kvcache.PackedValues(rows)},
		"mixed":      {kvcache.PackedKeys(p), kvcache.Raw(codec.BF16, 32)},
		"keys only":  {kvcache.PackedKeys(p), {}},
		"values":     {{}, kvcache.PackedValues(p)},
	}
}

// token fills a row with bytes that name its token, plane and head.
func token(row []byte, id, plane, head int) {
	for i := range row {
		row[i] = byte(id>>(8*(i&1)))*31 + byte(plane*7+head*3+i) | 1 // never zero: padding is
	}
}

// model is a batch as plain lists of token numbers.
type model struct {
	layout kvcache.Layout
	width  int
	seqs   [][]int // every token ever appended and not trimmed
}

func (m *model) held(i int) []int {
	s, w := m.seqs[i], m.layout.Window
	if w == 0 || len(s) <= m.layout.Sinks+w {
		return s
	}
	return slices.Concat(s[:m.layout.Sinks], s[len(s)-w:])
}

func (m *model) longest() int {
	n := 0
	for i := range m.seqs {
		n = max(n, len(m.held(i)))
	}
	return n
}

func (m *model) clone() *model {
	c := &model{layout: m.layout, width: m.width}
	for _, s := range m.seqs {
		c.seqs = append(c.seqs, slices.Clone(s))
	}
	return c
}

// pair is a batch and what it should be.
type pair struct {
	b *kvcache.Batch
	m *model
}

type driver struct {
	t      *testing.T
	r      *rand.Rand
	layout kvcache.Layout
	next   int // token number
	k, v   kvcache.Data
}

// heap is a Memory in Go. What it gives stands alone between guards.
type heap struct {
	t    *testing.T
	live map[*byte][]byte // all of it, by the first byte that was given
}

func (h *heap) Alloc(n int) ([]byte, error) {
	if n < 1 {
		h.t.Errorf("Alloc(%d)", n)
	}
	all := bytes.Repeat([]byte{0xa5}, n+16)
	data := all[8:][:n:n]
	clear(data)
	h.live[&data[0]] = all
	return data, nil
}

func (h *heap) Free(data []byte) error {
	all, ok := h.live[&data[0]]
	if !ok || len(all) != len(data)+16 {
		h.t.Error("Free of what Alloc did not give")
		return nil
	}
	for i, b := range all {
		if (i < 8 || i >= len(all)-8) && b != 0xa5 {
			h.t.Error("a guard was written")
		}
	}
	delete(h.live, &data[0])
	return nil
}

func (h *heap) Copy(list ...codec.RowCopy) error {
	for _, c := range list {
		if err := c.Validate(); err != nil {
			h.t.Error(err)
		}
		for i := range c.Rows {
			copy(c.Dst[i*c.DstStep:][:c.Len], c.Src[i*c.SrcStep:])
		}
	}
	return nil
}

func (d *driver) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *driver) data(f kvcache.Format, plane0 int, ids [][]int) kvcache.Data {
	data := kvcache.Data{Planes: make([][]byte, len(f.Planes))}
	if len(ids) > 0 {
		data.Tokens = len(ids[0])
	}
	for p, plane := range f.Planes {
		for _, seq := range ids {
			for h := range d.layout.Heads {
				for _, id := range seq {
					row := make([]byte, plane.RowLen)
					token(row, id, plane0+p, h)
					data.Planes[p] = append(data.Planes[p], row...)
				}
			}
		}
	}
	return data
}

func (d *driver) append(x pair, n int) {
	ids := make([][]int, len(x.m.seqs))
	for i := range ids {
		for range n {
			d.next++
			ids[i] = append(ids[i], d.next)
		}
		x.m.seqs[i] = append(x.m.seqs[i], ids[i]...)
	}
	k, v := d.data(d.layout.Keys, 0, ids), d.data(d.layout.Values, len(d.layout.Keys.Planes), ids)
	k.Tokens, v.Tokens = n, n
	d.must(x.b.Append(k, v))
	if len(ids) > 0 {
		x.m.width += n
		if w := d.layout.Window; w > 0 {
			x.m.width = min(x.m.width, d.layout.Sinks+w)
		}
	}
	for _, data := range []kvcache.Data{k, v} { // what was handed over is not kept
		for _, p := range data.Planes {
			clear(p)
		}
	}
}

// compare reads all of a batch and compares it with the model.
func (d *driver) compare(what string, x pair) {
	d.t.Helper()
	if x.b.Len() != len(x.m.seqs) || x.b.Width() != x.m.width {
		d.t.Fatalf("%s: %d sequences of width %d, want %d of %d", what, x.b.Len(), x.b.Width(), len(x.m.seqs), x.m.width)
	}
	pads, offsets := x.b.Padding(), x.b.Offsets()
	for i, s := range x.m.seqs {
		held := x.m.held(i)
		if pads[i] != x.m.width-len(held) || offsets[i] != len(s) || x.b.Tokens(i) != len(held) {
			d.t.Fatalf("%s: sequence %d: padding %d, offset %d, %d tokens, want %d, %d, %d", what, i, pads[i], offsets[i], x.b.Tokens(i), x.m.width-len(held), len(s), len(held))
		}
	}
	first := d.r.IntN(x.m.width + 1)
	n := d.r.IntN(x.m.width - first + 1)
	d.must(x.b.Read(&d.k, &d.v, first, n))
	plane0 := 0
	for _, side := range []struct {
		f    kvcache.Format
		data kvcache.Data
	}{{d.layout.Keys, d.k}, {d.layout.Values, d.v}} {
		for p, plane := range side.f.Planes {
			want := make([]byte, plane.RowLen)
			at := side.data.Planes[p]
			for i := range x.m.seqs {
				held := x.m.held(i)
				for h := range d.layout.Heads {
					for c := first; c < first+n; c++ {
						clear(want)
						if t := c - pads[i]; t >= 0 {
							token(want, held[t], plane0+p, h)
						}
						if !bytes.Equal(at[:plane.RowLen], want) {
							d.t.Fatalf("%s: plane %d, sequence %d, head %d, column %d: %x, want %x", what, plane0+p, i, h, c, at[:plane.RowLen], want)
						}
						at = at[plane.RowLen:]
					}
				}
			}
			if len(at) != 0 {
				d.t.Fatalf("%s: %d bytes too many", what, len(at))
			}
		}
		plane0 += len(side.f.Planes)
	}
	if len(x.m.seqs) > 0 && d.layout.Heads > 0 {
		i, h := d.r.IntN(len(x.m.seqs)), d.r.IntN(d.layout.Heads)
		held, t := x.m.held(i), 0
		for first, rows := range x.b.Runs(i, h) {
			if first != t {
				d.t.Fatalf("%s: a run from token %d, want %d", what, first, t)
			}
			planes := slices.Concat(d.layout.Keys.Planes, d.layout.Values.Planes)
			n := len(rows[0]) / planes[0].RowLen
			for p, plane := range planes {
				want := make([]byte, plane.RowLen)
				for j := range n {
					token(want, held[t+j], p, h)
					if !bytes.Equal(rows[p][j*plane.RowLen:][:plane.RowLen], want) {
						d.t.Fatalf("%s: run: sequence %d, token %d", what, i, t+j)
					}
				}
			}
			t += n
		}
		if t != len(held) {
			d.t.Fatalf("%s: runs of %d tokens, want %d", what, t, len(held))
		}
	}
}

func (d *driver) fresh(n int) pair {
	b, err := kvcache.New(d.layout, n)
	d.must(err)
	return pair{b, &model{layout: d.layout, seqs: make([][]int, n)}}
}

// sequence runs a few random operations over a few caches.
func (d *driver) sequence(steps int) {
	all := []pair{d.fresh(d.r.IntN(3)), d.fresh(1)}
	for range steps {
		x := all[d.r.IntN(len(all))]
		what := ""
		switch op := d.r.IntN(10); op {
		case 0, 1, 2, 3:
			n := d.r.IntN(4)
			if d.r.IntN(8) == 0 {
				n = d.r.IntN(25)
			}
			what = fmt.Sprintf("Append(%d)", n)
			d.append(x, n)
		case 4:
			what = "Merge"
			var parts []*kvcache.Batch
			m := &model{layout: d.layout}
			for range 1 + d.r.IntN(3) {
				y := all[d.r.IntN(len(all))]
				parts = append(parts, y.b)
				m.seqs = append(m.seqs, y.m.clone().seqs...)
			}
			if len(m.seqs) > 6 {
				continue
			}
			m.width = m.longest()
			b, err := kvcache.Merge(parts...)
			d.must(err)
			x = pair{b, m}
			all = append(all, x)
		case 5:
			y := all[d.r.IntN(len(all))]
			if len(x.m.seqs)+len(y.m.seqs) > 6 {
				continue
			}
			what = "Extend"
			longest := y.m.longest()
			seqs := y.m.clone().seqs
			d.must(x.b.Extend(y.b))
			x.m.seqs = append(x.m.seqs, seqs...)
			x.m.width = max(x.m.width, longest)
		case 6:
			keep := make([]int, d.r.IntN(4))
			if len(x.m.seqs) == 0 {
				keep = nil
			}
			var seqs [][]int
			for n := range keep {
				keep[n] = d.r.IntN(len(x.m.seqs))
				seqs = append(seqs, slices.Clone(x.m.seqs[keep[n]]))
			}
			what = fmt.Sprintf("Filter(%v)", keep)
			d.must(x.b.Filter(keep))
			x.m.seqs = seqs
		case 7:
			n := d.r.IntN(4)
			what = fmt.Sprintf("Trim(%d)", n)
			var want error
			for i, s := range x.m.seqs {
				if len(s) < n {
					want = kvcache.ErrIndex
					break
				}
				if len(x.m.held(i)) < len(s) && n > 0 {
					want = kvcache.ErrDropped
					break
				}
			}
			if err := x.b.Trim(n); !errors.Is(err, want) || err != nil && want == nil {
				d.t.Fatalf("%s: %v, want %v", what, err, want)
			}
			if want == nil && len(x.m.seqs) > 0 {
				for i := range x.m.seqs {
					x.m.seqs[i] = x.m.seqs[i][:len(x.m.seqs[i])-n]
				}
				x.m.width -= n
			}
		case 8:
			n := d.r.IntN(8)
			share := d.r.IntN(2) == 0
			i := 0
			if len(x.m.seqs) == 0 {
				continue
			}
			i = d.r.IntN(len(x.m.seqs))
			what = fmt.Sprintf("Truncate(%d), Share %t", n, share)
			cut := func(i int) ([]int, error) {
				s := x.m.seqs[i]
				if len(x.m.held(i)) < len(s) && n > d.layout.Sinks && n < len(s) {
					return nil, kvcache.ErrDropped
				}
				return slices.Clone(s[:min(n, len(s))]), nil
			}
			if share {
				s, want := cut(i)
				b, err := x.b.Share(i, n)
				if !errors.Is(err, want) || err != nil && want == nil {
					d.t.Fatalf("%s: %v, want %v", what, err, want)
				}
				if want != nil {
					continue
				}
				m := &model{layout: d.layout, seqs: [][]int{s}}
				m.width = m.longest()
				x = pair{b, m}
				all = append(all, x)
				break
			}
			var seqs [][]int
			var want error
			for i := range x.m.seqs {
				s, err := cut(i)
				if err != nil {
					want = err
					break
				}
				seqs = append(seqs, s)
			}
			if err := x.b.Truncate(n); !errors.Is(err, want) || err != nil && want == nil {
				d.t.Fatalf("%s: %v, want %v", what, err, want)
			}
			if want == nil {
				x.m.seqs = seqs
				x.m.width = x.m.longest()
			}
		case 9:
			if len(x.m.seqs) == 0 {
				continue
			}
			i := d.r.IntN(len(x.m.seqs))
			what = fmt.Sprintf("Extract(%d)", i)
			b, err := x.b.Extract(i)
			d.must(err)
			m := &model{layout: d.layout, seqs: [][]int{slices.Clone(x.m.seqs[i])}}
			m.width = m.longest()
			x = pair{b, m}
			all = append(all, x)
		}
		d.compare(what, x)
		if len(all) > 5 {
			d.must(all[0].b.Close())
			all = slices.Delete(all, 0, 1)
		}
	}
	for _, x := range all { // what was shared has not changed under anyone
		d.compare("at the end", x)
	}
	for _, x := range all {
		d.must(x.b.Close())
	}
	if h, ok := d.layout.Memory.(*heap); ok && len(h.live) > 0 {
		d.t.Errorf("%d allocations are left", len(h.live))
	}
}

// TestBatchModel drives random operations against plain lists of tokens: for every format, with windows 0 to 9
// and sinks 0 to 4, every third in a Memory. TURBOTRELLIS_LONG makes it 10^6 sequences of operations.
func TestBatchModel(t *testing.T) {
	total := 20_000
	if os.Getenv("TURBOTRELLIS_LONG") != "" {
		total = 1_000_000
	}
	if testing.Short() {
		total = 4_000
	}
	all := formats()
	for name, f := range all {
		for seed := range total / len(all) {
			r := rand.New(rand.NewPCG(uint64(seed), 1))
			l := kvcache.Layout{Heads: 1 + seed%2, Keys: f[0], Values: f[1], Window: r.IntN(10), Step: 1 + r.IntN(5)}
			if l.Window > 0 {
				l.Sinks = r.IntN(5)
			}
			if !t.Run(fmt.Sprintf("%s/seed=%d", name, seed), func(t *testing.T) {
				if seed%3 == 2 {
					l.Memory = &heap{t, map[*byte][]byte{}}
				}
				(&driver{t: t, r: r, layout: l}).sequence(12)
			}) {
				return
			}
		}
	}
}

// full is a Memory without room, after so many allocations, and with broken copies.
type full struct {
	heap
	left int
}

var errFull = errors.New("no room")

func (f *full) Alloc(n int) ([]byte, error) {
	if f.left--; f.left < 0 {
		return nil, errFull
	}
	return f.heap.Alloc(n)
}

func (f *full) Copy(list ...codec.RowCopy) error {
	if f.left--; f.left < 0 {
		return errFull
	}
	return f.heap.Copy(list...)
}

// Whatever of a Memory fails, a cache is as it was and nothing is lost.
func TestMemoryFails(t *testing.T) {
	f := formats()["turboquant"]
	for left := range 40 {
		mem := &full{heap{t, map[*byte][]byte{}}, left}
		d := &driver{t: t, r: rand.New(rand.NewPCG(1, 1)), layout: kvcache.Layout{Heads: 2, Keys: f[0], Values: f[1], Step: 4, Memory: mem}}
		mem.left = 1000
		x := d.fresh(2)
		d.append(x, 3)
		mem.left = left
		calls := []func() error{
			func() error { return x.b.Filter([]int{1, 0}) },
			func() error { b, err := x.b.Extract(1); return errors.Join(err, closed(b)) },
			func() error { b, err := kvcache.Merge(x.b, x.b); return errors.Join(err, closed(b)) },
			func() error { return x.b.Truncate(3) },
		}
		for i, call := range calls {
			err := call()
			if err != nil && !errors.Is(err, errFull) {
				t.Fatal(err)
			}
			if err == nil && i == 0 {
				slices.Reverse(x.m.seqs)
			}
			d.compare(fmt.Sprintf("call %d with %d left", i, left), x)
		}
		d.must(x.b.Close())
		if len(mem.live) > 0 {
			t.Errorf("with %d left: %d allocations are left", left, len(mem.live))
		}
	}
}

func closed(b *kvcache.Batch) error {
	if b == nil {
		return nil
	}
	return b.Close()
}
