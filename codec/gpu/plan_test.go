package gpu

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
	"github.com/turbotrellis/turbotrellis/trellis"
)

func openFake(t *testing.T, d *fakeDevice, change ...func(*Options)) *Backend {
	t.Helper()
	var o Options
	for _, f := range change {
		f(&o)
	}
	b, err := Open("gpu", d.open, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Close()
		if len(d.live) > 0 {
			t.Errorf("%d objects left", len(d.live))
		}
	})
	return b
}

// Without a driver, or where none opens, the reason is told.
func TestUnavailable(t *testing.T) {
	b, err := Open("gpu", func() (gpu.Device, error) {
		return nil, &gpu.Error{Op: "open", Err: gpu.ErrUnavailable, Detail: "gone fishing"}
	}, Options{})
	if b != nil || !errors.Is(err, codec.ErrUnavailable) || !strings.Contains(err.Error(), "gone fishing") {
		t.Error(b, err)
	}
}

// One wrong word in the canary's answer and the device is refused, but a NaN may be any.
func TestCanaryRefuses(t *testing.T) {
	words := shaders.CanaryLen / 4
	refused := 0
	for i := range words - 1 { // the last is recorded, not judged
		d := newFake()
		d.canary = func(at int, w uint32) uint32 {
			if at == i {
				w ^= 1<<30 | 1 // another number, of a NaN too
			}
			return w
		}
		b, err := Open("gpu", d.open, Options{})
		if b != nil || !errors.Is(err, codec.ErrUnavailable) || !strings.Contains(err.Error(), "canary: ") {
			t.Errorf("word %d: %v", i, err)
		}
		if len(d.live) > 0 {
			t.Errorf("word %d: %d objects left", i, len(d.live))
		}
		refused++
	}
	if refused < 500 {
		t.Errorf("%d words", refused)
	}
	nans := 0
	d := newFake()
	d.canary = func(_ int, w uint32) uint32 {
		if w&0x7fffffff > 0x7f800000 {
			w = 0x7fffffff
			nans++
		}
		return w
	}
	if openFake(t, d); nans == 0 {
		t.Error("no NaN among the answers")
	}
	for subnormal, flushes := range map[uint32]bool{0: true, 0x00800000: false} {
		d := newFake()
		d.canary = func(at int, w uint32) uint32 {
			if at == words-1 {
				w = subnormal
			}
			return w
		}
		if b := openFake(t, d); b.Flushes() != flushes {
			t.Errorf("subnormal·2 = %#x: flushes %t", subnormal, b.Flushes())
		}
	}
}

// Kernels whose argument structs are not this program's do not run.
func TestOtherVersion(t *testing.T) {
	for name, change := range map[string]func(string) string{
		"field moved": func(s string) string {
			return strings.Replace(s, "uint n1;\n    uint n2;", "uint n2;\n    uint n1;", 1)
		},
		"number moved": func(s string) string { return strings.Replace(s, "TYPE_F16 = 1", "TYPE_F16 = 2", 1) },
	} {
		d := newFake()
		var o Options
		o.Source = func(kernels ...shaders.Variant) string {
			s := shaders.Source(kernels...)
			changed := change(s)
			if changed == s {
				t.Errorf("%s: nothing changed", name)
			}
			return changed
		}
		if b, err := Open("gpu", d.open, o); b != nil || !errors.Is(err, codec.ErrUnavailable) || !strings.Contains(err.Error(), "another version") {
			t.Errorf("%s: %v", name, err)
		}
		if len(d.sources) > 0 {
			t.Errorf("%s: compiled", name)
		}
	}
}

// viewAddress follows a view as the kernels do.
func viewAddress(v shaders.View, r uint32, n1, n2, j int) int64 {
	q := r / uint32(n2)
	i0 := q / uint32(n1)
	return v.Base + int64(i0)*v.S0 + int64(q-i0*uint32(n1))*v.S1 + int64(r-q*uint32(n2))*v.S2 + int64(j)*v.S3
}

// Whatever the shape and strides, a view leads to the elements that RowOffset
// does, or to compact rows that hold them; slab by slab.
func TestViews(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	direct, gathered, copies := 0, 0, 0
	for range 3000 {
		d := newFake()
		d.private = r.IntN(2) == 0
		b := openFake(t, d, func(o *Options) {
			if r.IntN(3) == 0 {
				o.stage = 16 * (1 + r.IntN(20))
			}
		})
		rank := 1 + r.IntN(6)
		shape := make([]int, rank)
		for i := range shape {
			shape[i] = 1 + r.IntN(4)
		}
		order := r.Perm(rank)
		if r.IntN(3) == 0 { // row-major
			for i := range order {
				order[i] = rank - 1 - i
			}
		}
		stride := make([]int, rank)
		step, gap := 1, r.IntN(2)*r.IntN(3)
		for _, i := range order {
			stride[i] = step
			step = step*shape[i] + gap
			if r.IntN(8) == 0 {
				stride[i] = 0 // broadcast
			}
		}
		size := []int{2, 4}[r.IntN(2)]
		dt := map[int]codec.DType{2: codec.BF16, 4: codec.F32}[size]
		skew := r.IntN(4) * r.IntN(3)
		x := codec.Tensor{DType: dt, Shape: shape, Stride: stride}
		n := skew + step*size
		if owned := r.IntN(2) == 0; owned {
			data, err := b.Alloc(n)
			if err != nil {
				t.Fatal(err)
			}
			x.Data = data[skew:]
		} else {
			x.Data = make([]byte, n)[skew:]
		}
		for i := range x.Data {
			x.Data[i] = byte(r.Uint32())
		}
		if err := x.Validate("x"); err != nil {
			t.Fatal(err)
		}
		dims := []int{1, 3}[r.IntN(2)]
		o := b.engine.tensor(x, false)
		p, err := b.engine.plan(dims, o)
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		err = p.each(t.Context(), func(row, n int) error {
			j := b.engine.newJob()
			defer j.release()
			at, v, err := j.bind(o, p, row, n)
			if err != nil {
				return err
			}
			for _, c := range j.list { // what the copy kernels do
				runCopy(t, c)
				copies++
			}
			if o.direct {
				direct++
			} else {
				gathered++
			}
			mem := contents(at.Buffer)
			for i := range n {
				off, st := x.RowOffset(row + i)
				for e := range x.Dim() {
					a := viewAddress(v, uint32(row+i), p.n1, p.n2, e) * int64(size)
					if a < 0 || a+int64(size) > int64(len(mem)) {
						return fmt.Errorf("row %d, element %d: byte %d of %d", row+i, e, a, len(mem))
					}
					if got, want := mem[a:a+int64(size)], x.Data[(off+e*st)*size:][:size]; !bytes.Equal(got, want) {
						return fmt.Errorf("row %d, element %d: %x, want %x", row+i, e, got, want)
					}
					seen++
				}
			}
			return nil
		})
		if err != nil || seen != x.Len() {
			t.Fatalf("%v %v %v, stage %d, skew %d: %d elements: %v", dt, shape, stride, b.engine.opts.stage, skew, seen, err)
		}
	}
	if direct == 0 || gathered == 0 || copies == 0 {
		t.Error("not all ways were taken")
	}
	t.Logf("%d slabs direct, %d compact, %d copies", direct, gathered, copies)
}

// runCopy does what a copy kernel does.
func runCopy(t *testing.T, d gpu.Dispatch) {
	t.Helper()
	var a shaders.CopyArgs
	if err := decodeArgs(d.Args, &a); err != nil {
		t.Fatal(err)
	}
	size := int64(d.Pipeline.Name()[len("copy_")] - '0')
	from, to := contents(d.Buffers[0].Buffer), contents(d.Buffers[1].Buffer)
	for i := range a.Rows {
		for e := range int(a.Dim) {
			x := viewAddress(a.X, a.Row0+i, int(a.N1), int(a.N2), e) * size
			y := viewAddress(a.Y, a.Row0+i, int(a.N1), int(a.N2), e) * size
			copy(to[y:y+size], from[x:x+size])
		}
	}
}

// Outputs come back to where their strides say, and bytes between them stay.
func TestScatter(t *testing.T) {
	for _, owned := range []bool{false, true} {
		for i := range 4 {
			skew := i % 2
			d := newFake()
			d.private = i/2 == 1
			b := openFake(t, d)
			const size = 4
			x := codec.Tensor{DType: codec.F32, Shape: []int{2, 2, 2, 2, 3}, Stride: []int{7, 100, 50, 20, 2}}
			all := make([]byte, 4*200)
			if owned {
				all, _ = b.Alloc(len(all))
			}
			for i := range all {
				all[i] = 0xee
			}
			want := bytes.Clone(all)
			x.Data = all[skew:]
			o := b.engine.tensor(x, true)
			p, err := b.engine.plan(3, o)
			if err != nil {
				t.Fatal(err)
			}
			j := b.engine.newJob()
			at, v, err := j.bind(o, p, 0, p.rows)
			if err != nil {
				t.Fatal(err)
			}
			for r := range x.Rows() {
				off, st := x.RowOffset(r)
				for e := range x.Dim() {
					w := []byte{byte(r), byte(e), 1, 2}
					copy(contents(at.Buffer)[size*viewAddress(v, uint32(r), p.n1, p.n2, e):], w)
					copy(want[skew+(off+e*st)*size:], w)
				}
			}
			for _, c := range j.late {
				runCopy(t, c)
			}
			for _, f := range j.after {
				if err := f(); err != nil {
					t.Error(err)
				}
			}
			if !bytes.Equal(all, want) {
				t.Errorf("owned %t, private %t, skew %d: wrong bytes", owned, d.private, skew)
			}
			j.release()
		}
	}
}

func TestCollapse(t *testing.T) {
	for _, test := range []struct {
		shape   []int
		strides [][]int
		want    []int
		steps   [][]int
	}{
		{[]int{2, 3, 4}, [][]int{{12, 4, 1}}, []int{24}, [][]int{{1}}},
		{[]int{2, 3, 4}, [][]int{{12, 4, 1}, {1, 2, 6}}, []int{2, 3, 4}, [][]int{{12, 4, 1}, {1, 2, 6}}},
		{[]int{2, 3, 4}, [][]int{{0, 4, 1}}, []int{2, 12}, [][]int{{0, 1}}},
		{[]int{2, 1, 4}, [][]int{{4, 99, 1}}, []int{8}, [][]int{{1}}},
		{[]int{1, 1}, [][]int{{4, 99}}, nil, [][]int{nil}},
		{[]int{5, 6}, nil, []int{30}, [][]int{}},
		{[]int{2, 2, 3}, [][]int{{0, 0, 7}}, []int{4, 3}, [][]int{{0, 7}}},
	} {
		got, steps := collapse(test.shape, test.strides)
		if !slices.Equal(got, test.want) || fmt.Sprint(steps) != fmt.Sprint(test.steps) {
			t.Errorf("%v %v: %v %v, want %v %v", test.shape, test.strides, got, steps, test.want, test.steps)
		}
	}
}

// What is planned for a shape on a device: kernel, grid, memory, and everything
// that the kernel's row in the table asks for.
func TestPlans(t *testing.T) {
	encode := func(p codec.KVParams, rows int) func(*Backend) error {
		return func(b *Backend) error {
			kv, err := b.KV(p)
			if err != nil {
				return err
			}
			return kv.EncodeValues(new(codec.Values), codec.NewTensor(codec.F32, rows, p.ValueHeadDim))
		}
	}
	weights := func(p trellis.Params) func(*Backend) error {
		return func(b *Backend) error {
			c, err := b.Trellis(p)
			if err != nil {
				return err
			}
			return c.EncodeBlocks(context.Background(), make([]uint16, 10*p.T), codec.NewTensor(codec.F32, 10, p.T))
		}
	}
	kv := func(d, bits int) codec.KVParams {
		return codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, ValueHeadDim: d, Values: valueFormat(bits)}
	}
	for _, test := range []struct {
		name    string
		device  func(*fakeDevice)
		call    func(*Backend) error
		kernel  string
		groups  int
		threads int
		memory  int
		refused error
	}{
		{"units", nil, encode(kv(128, 3), 4096), "values_encode_b3", 64, 256, 0, nil},
		{"a rest of rows", nil, encode(kv(128, 3), 4097), "values_encode_b3", 65, 256, 0, nil},
		{"no special kernel", nil, encode(kv(96, 3), 4096), "values_encode_b3_any", 512, 256, 8 * 4 * 96, nil},
		{"special declined", func(d *fakeDevice) { d.limit = map[string]int{"values_encode_b3": 16} }, encode(kv(128, 3), 64), "values_encode_b3_any", 8, 256, 8 * 4 * 128, nil},
		{"64 threads", func(d *fakeDevice) { d.threads = 64 }, encode(kv(128, 3), 64), "values_encode_b3", 4, 64, 0, nil},
		{"16 threads", func(d *fakeDevice) { d.limit = map[string]int{"values_encode_b3": 16, "values_encode_b3_any": 16} }, encode(kv(128, 3), 64), "", 0, 0, 0, codec.ErrUnsupported},
		{"a long row", nil, encode(kv(512, 3), 64), "values_encode_b3_long", 4, 256, 0, nil},
		{"a row of 8192", nil, encode(kv(8192, 2), 3), "values_encode_b2_any", 3, 1024, 32 << 10, nil},
		{"a row too long", func(d *fakeDevice) { d.info.MaxThreadgroupMemory = 16 << 10 }, encode(kv(8192, 2), 3), "", 0, 0, 0, codec.ErrUnsupported},
		{"all states", nil, weights(trellis.Params{L: 12, K: 2, T: 256}), "trellis_encode_k2", 10, 256, 8 << 10, nil},
		{"short blocks", nil, weights(trellis.Params{L: 10, K: 2, T: 256}), "trellis_encode_k2", 3, 256, 8 << 10, nil},
		{"128 threads", func(d *fakeDevice) { d.threads = 128; d.info.MaxThreads[0] = 128 }, weights(trellis.Params{L: 12, K: 2, T: 256}), "trellis_encode_device", 10, 128, 256, nil},
		{"few registers", func(d *fakeDevice) { d.limit = map[string]int{"trellis_encode_k2": 255} }, weights(trellis.Params{L: 12, K: 2, T: 256}), "trellis_encode_device", 10, 224, 256, nil},
		{"L = 11, 64 threads", func(d *fakeDevice) { d.threads = 64; d.info.MaxThreads[0] = 64 }, weights(trellis.Params{L: 11, K: 2, T: 64}), "trellis_encode_any", 10, 64, 256 + 8*2048, nil},
		{"Viterbi, 16 threads", func(d *fakeDevice) {
			d.limit = map[string]int{"trellis_encode_k2": 16, "trellis_encode_any": 16, "trellis_encode_device": 16}
		}, weights(trellis.Params{L: 12, K: 2, T: 64}), "", 0, 0, 0, codec.ErrUnsupported},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newFake()
			if test.device != nil {
				test.device(d)
			}
			err := test.call(openFake(t, d))
			if test.refused != nil {
				if !errors.Is(err, test.refused) || len(d.ran) > 0 {
					t.Errorf("%d dispatches, %v", len(d.ran), err)
				}
				return
			}
			if err != nil || len(d.ran) != 1 {
				t.Fatalf("%d dispatches, %v", len(d.ran), err)
			}
			x := d.ran[0]
			memory := 0
			for _, n := range x.ThreadgroupMemory {
				memory += n
			}
			if x.Pipeline.Name() != test.kernel || x.Groups != [3]int{test.groups, 1, 1} || x.GroupSize != [3]int{test.threads, 1, 1} || memory != test.memory {
				t.Errorf("%s: %v groups of %v, %d bytes", x.Pipeline.Name(), x.Groups, x.GroupSize, memory)
			}
			v, _ := shaders.Lookup(test.kernel)
			if len(x.Buffers) != len(v.Params) || len(x.Args) == 0 || (memory > 0) != v.UsesThreadgroupMemory() {
				t.Errorf("%d buffers, %d bytes of arguments, %d of memory", len(x.Buffers), len(x.Args), memory)
			}
		})
	}
}

// A kernel for SIMD-groups of another width is passed over.
func TestPipelineWidth(t *testing.T) {
	d := newFake()
	b := openFake(t, d)
	d.width = 64
	kv, err := b.KV(codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0})
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.EncodeKeys(new(codec.Keys), codec.NewTensor(codec.F32, 1, 64)); !errors.Is(err, codec.ErrUnsupported) || !strings.Contains(err.Error(), "SIMD-groups of 64") {
		t.Error(err)
	}
}

// Status words of slabs become indices in the whole input.
func TestStatusWords(t *testing.T) {
	const clear = shaders.StatusClear
	d := newFake()
	b := openFake(t, d, func(o *Options) { o.stage = 10 * 4 * 64 })
	kv, err := b.KV(codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0})
	if err != nil {
		t.Fatal(err)
	}
	x := codec.NewTensor(codec.F32, 100, 64)
	for _, test := range []struct {
		words []uint32
		class error
		index int
	}{
		{[]uint32{clear, clear}, nil, 0},
		{[]uint32{5, clear}, codec.ErrNonFinite, 5},
		{[]uint32{clear, 3}, codec.ErrScaleOverflow, 3 * 32},
		{[]uint32{639, 3}, codec.ErrNonFinite, 639},
	} {
		d.status = test.words
		err := kv.EncodeKeys(new(codec.Keys), x)
		var e *codec.Error
		if !errors.Is(err, test.class) || test.class != nil && (!errors.As(err, &e) || e.Index != test.index) {
			t.Errorf("%v: %v", test.words, err)
		}
	}
	if got := len(d.ran); got != 4*10 {
		t.Errorf("%d dispatches, want 10 slabs each time", got)
	}
	// Found in the third slab of ten rows, and again in the fourth.
	d.status, d.ran = nil, nil
	found := driver.Nothing
	buf, err := b.engine.pool.get(4 * shaders.StatusWords)
	if err != nil {
		t.Fatal(err)
	}
	defer b.engine.pool.put(buf)
	for i, w := range [][2]uint32{{clear, clear}, {clear, 1}, {7, 9}, {3, clear}} {
		words := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, w[0]), w[1])
		if err := errors.Join(buf.Upload(0, words), collect(&found, buf, 640*i, 32)); err != nil {
			t.Fatal(err)
		}
	}
	if found != (driver.Found{NonFinite: 1287, Overflow: 672}) {
		t.Error(found)
	}
}

// A failing device is an error about no input, and the backend works afterwards.
func TestDeviceErrors(t *testing.T) {
	d := newFake()
	b := openFake(t, d)
	kv, err := b.KV(codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0})
	if err != nil {
		t.Fatal(err)
	}
	x := codec.NewTensor(codec.F32, 4, 64)
	k := codec.Keys{}
	if err := kv.EncodeKeys(&k, x); err != nil {
		t.Fatal(err)
	}
	live := len(d.live)
	for _, class := range []error{gpu.ErrFailed, gpu.ErrTimeout, gpu.ErrPageFault, gpu.ErrOutOfMemory} {
		d.fail = func([]gpu.Dispatch) error { return &gpu.Error{Op: "run", Err: class} }
		var input *codec.Error
		if err := kv.EncodeKeys(&k, x); !errors.Is(err, class) || errors.As(err, &input) || len(k.Codes) != 0 {
			t.Errorf("%v: %v", class, err)
		}
		d.fail = nil
		if err := kv.EncodeKeys(&k, x); err != nil || len(k.Codes) == 0 {
			t.Errorf("after %v: %v", class, err)
		}
		if len(d.live) != live {
			t.Errorf("after %v: %d objects, were %d", class, len(d.live), live)
		}
	}
	d.info.MaxBuffer = 100 // as a device with no room
	b.engine.pool.drain()
	if err := kv.EncodeKeys(&k, x); !errors.Is(err, gpu.ErrOutOfMemory) {
		t.Error(err)
	}
}

// A device that is lost comes back for the next call, once: with kernels, tables and staging made anew, and
// memory from Alloc where it was.
func TestLostDevice(t *testing.T) {
	d := newFake()
	d.private = true
	b := openFake(t, d)
	kv := newCodec(t, b, codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0})
	data, err := b.Alloc(4 * 4 * 64)
	if err != nil {
		t.Fatal(err)
	}
	x := codec.Tensor{DType: codec.F32, Shape: []int{4, 64}, Data: data}
	owned := d.ran
	encode := func() error {
		d.ran = nil
		err := kv.EncodeValues(new(codec.Values), x)
		owned = d.ran
		return err
	}
	if err := encode(); err != nil {
		t.Fatal(err)
	}
	lost := &gpu.Error{Op: "run", Err: gpu.ErrLost, Detail: "illegal address"}
	sources := len(d.sources)
	for resets := range 2 {
		d.fail = func([]gpu.Dispatch) error {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.lost = lost
			return lost
		}
		if err := encode(); !errors.Is(err, gpu.ErrLost) || d.resets != resets {
			t.Fatalf("%v after %d resets", err, d.resets)
		}
		d.fail = nil
		err := encode()
		if resets == 1 {
			if !errors.Is(err, gpu.ErrLost) || d.resets != 1 {
				t.Errorf("lost twice: %v after %d resets", err, d.resets)
			}
			break
		}
		if err != nil || d.resets != 1 || len(d.sources) != sources+1 {
			t.Fatalf("%v after %d resets, %d sources compiled", err, d.resets, len(d.sources)-sources)
		}
		if len(owned) != 1 || &contents(owned[0].Buffers[0].Buffer)[0] != &data[0] {
			t.Error("memory from Alloc is no longer used in place")
		}
	}
	if err := b.Free(data); err != nil {
		t.Error(err)
	}
}

// The log says which kernel ran and why a more special one did not.
func TestLog(t *testing.T) {
	d := newFake()
	d.limit = map[string]int{"values_encode_b3": 16}
	var log bytes.Buffer
	b := openFake(t, d, func(o *Options) {
		o.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	kv, err := b.KV(codec.KVParams{HeadDim: 128, Keys: codec.Q4_0, Values: codec.Q3_0})
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.EncodeValues(new(codec.Values), codec.NewTensor(codec.F32, 5, 128)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"kernel=values_encode_b3_any", `declined="values_encode_b3: threadgroups of 16 threads"`, "rows=5"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("log %q lacks %q", log.String(), want)
		}
	}
}

// keyFormat and valueFormat return the format of so many bits, or none.
func keyFormat(bits int, signed bool) codec.Format {
	f, _ := codec.KeyFormat(bits, signed)
	return f
}

func valueFormat(bits int) codec.Format {
	f, _ := codec.ValueFormat(bits)
	return f
}
