package gpu

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/shaders"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// spy counts the kernels that run on a device.
type spy struct {
	gpu.Device
	mu      sync.Mutex
	kernels map[string]int
}

func (s *spy) wrap(d gpu.Device) (gpu.Device, error) {
	s.Device, s.kernels = d, map[string]int{}
	return s, nil
}

func (s *spy) Run(list ...gpu.Dispatch) (time.Duration, error) {
	s.mu.Lock()
	for _, d := range list {
		s.kernels[d.Pipeline.Name()]++
	}
	s.mu.Unlock()
	return s.Device.Run(list...)
}

// exercise runs operations on a backend and on the reference, and compares.
type exercise struct {
	t        testing.TB
	b        *Backend
	r        codec.Backend
	compared int
}

func newExercise(t testing.TB, b *Backend) *exercise {
	return &exercise{t: t, b: b, r: ref.New()}
}

func (e *exercise) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// same compares element by element, NaN equal to NaN.
func (e *exercise) same(what string, d codec.DType, got, want []byte) {
	e.t.Helper()
	if len(got) != len(want) {
		e.t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
	}
	size := max(d.Size(), 1)
	for i := 0; i < len(got); i += size {
		if g, w := got[i:i+size], want[i:i+size]; !bytes.Equal(g, w) && (d == 0 || d.Load(g) == d.Load(g) || d.Load(w) == d.Load(w)) {
			e.t.Fatalf("%s: element %d = %x, want %x", what, i/size, g, w)
		}
	}
	e.compared += len(got) / size
}

// samples gives rows that are hard in one way each.
func samples(rows, d int, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 7))
	tiny := []float32{0x1p-63, 0x1p-64, 0x1p-65, 0x1p-126, 0x1p-149, -0x1p-63, -0x1p-64, float32(math.Copysign(0, -1))}
	x := make([]float32, rows*d)
	for i := range x {
		g := float32(r.NormFloat64())
		switch row := i / d; row % 9 {
		case 0, 1:
			x[i] = g
		case 2: // about the canonical threshold
			if x[i] = g; i%3 != 0 {
				x[i] = tiny[r.IntN(len(tiny))]
			}
		case 3: // ties
			x[i] = float32(r.IntN(9)-4) * 0.5
		case 4: // constants and zeros
			x[i] = float32(row%2) * 9
		case 6: // all zeros of both signs, once canonical
			x[i] = []float32{0x1p-65, -0x1p-65, 0x1p-126, -0x1p-149, tiny[7]}[r.IntN(5)]
		case 7: // zero points on a half: lo = scale/2, 2, 4 and 8 bits
			x[i] = float32(2+row) * (0.5 + float32([]int{0, 3, 15, 255}[i%4]))
			if i%32 >= 2+i/32%3 {
				x[i] = float32(2+row) * 0.5
			}
		case 8: // indices on a half: of multiples that have no exact reciprocal
			step := float32([]int{3, 7, 11, 13, 21, 49}[i/32%6])
			x[i] = (float32(i%15) + 0.5) * step
			if i%32 < 2 {
				x[i] = float32(i%32) * 15 * step
			}
		case 5: // outliers
			if x[i] = g; r.IntN(32) == 0 {
				x[i] = g * 300
			}
		}
	}
	return x
}

// tensor rounds x into a dense tensor.
func tensor(d codec.DType, x []float32, shape ...int) codec.Tensor {
	t := codec.NewTensor(d, shape...)
	for i, v := range x {
		d.Store(t.Data[i*d.Size():], v)
	}
	return t
}

// canonical drops what a device that flushes subnormals and one that does not
// read differently, where no encoder does.
func canonical(x []float32) []float32 {
	for i, v := range x {
		x[i] = f32.Canon(v)
	}
	return x
}

// placed is a tensor somewhere in memory full of other things.
type placed struct {
	codec.Tensor
	all, before []byte
}

// A layout lays a tensor out: the order of dimensions from the innermost, gaps of
// so many elements between the runs of each, and so many bytes before the first.
type arrangement struct {
	name  string
	order []int
	gap   int
	skew  int
	owned bool
	room  int // more rows that the innermost leading dimension has room for
}

// place copies x, of four dimensions and more, into memory in layout l.
func (e *exercise) place(x codec.Tensor, l arrangement) placed {
	e.t.Helper()
	stride := make([]int, len(x.Shape))
	step := 1
	if l.gap > 0 {
		step = 2
	}
	for _, i := range l.order {
		stride[i] = step
		step = step*x.Shape[i] + l.gap
		if i == len(x.Shape)-2 {
			step += stride[i] * l.room
		}
	}
	n := l.skew + step*x.DType.Size() + 37
	var all []byte
	if l.owned {
		var err error
		if all, err = e.b.Alloc(n); err != nil {
			e.t.Fatal(err)
		}
		e.t.Cleanup(func() { e.b.Free(all) })
	} else {
		all = make([]byte, n)
	}
	for i := range all {
		all[i] = byte(i*29) ^ 0xa5
	}
	p := placed{Tensor: codec.Tensor{DType: x.DType, Shape: x.Shape, Stride: stride, Data: all[l.skew:]}, all: all}
	p.fill(x)
	p.before = bytes.Clone(all)
	return p
}

// fill copies the elements of x, which has p's shape.
func (p placed) fill(x codec.Tensor) {
	row := make([]float32, x.Dim())
	for r := range x.Rows() {
		x.LoadRow(row, r)
		p.StoreRow(r, row)
	}
}

// compact returns the elements of p in row-major order.
func (p placed) compact() []byte {
	t := codec.NewTensor(p.DType, p.Shape...)
	size := p.DType.Size()
	for r := range p.Rows() {
		off, step := p.RowOffset(r)
		for i := range p.Dim() {
			copy(t.Data[(r*p.Dim()+i)*size:][:size], p.Data[(off+i*step)*size:])
		}
	}
	return t.Data
}

// wrote compares the elements of p with want, and sees that nothing else changed.
func (e *exercise) wrote(what string, p placed, want codec.Tensor) {
	e.t.Helper()
	e.same(what, want.DType, p.compact(), want.Data)
	back := placed{Tensor: p.Tensor, all: p.all}
	// Put the old elements back: then every byte is as it was.
	old := codec.Tensor{DType: p.DType, Shape: p.Shape, Stride: p.Stride, Data: p.before[len(p.before)-len(p.Data):]}
	size := p.DType.Size()
	for r := range p.Rows() {
		off, step := p.RowOffset(r)
		for i := range p.Dim() {
			at := (off + i*step) * size
			copy(back.Data[at:at+size], old.Data[at:])
		}
	}
	if !bytes.Equal(p.all, p.before) {
		e.t.Fatalf("%s: bytes between the elements changed", what)
	}
}

var layouts = []arrangement{
	{"dense", []int{3, 2, 1, 0}, 0, 0, false, 0},
	{"transposed", []int{3, 1, 2, 0}, 0, 0, false, 0},
	{"gaps", []int{3, 0, 2, 1}, 5, 3, false, 0},
	{"columns", []int{0, 2, 1, 3}, 0, 1, false, 0},
	{"owned dense", []int{3, 2, 1, 0}, 0, 32, true, 0},
	{"owned transposed", []int{3, 0, 2, 1}, 0, 8, true, 0},
	{"owned gaps", []int{3, 0, 2, 1}, 5, 4, true, 0},
	{"owned odd", []int{3, 2, 1, 0}, 0, 3, true, 0},
	{"owned odd gaps", []int{3, 1, 2, 0}, 7, 5, true, 0},
	{"owned capacity", []int{3, 2, 1, 0}, 0, 64, true, 4},
	{"owned odd capacity", []int{3, 2, 1, 0}, 0, 2, true, 3},
}

// kv runs every method on one input.
func (e *exercise) kv(p codec.KVParams, in, out codec.DType, lead []int, l arrangement, seed uint64) {
	e.t.Helper()
	what := fmt.Sprintf("%+v %v→%v %s", p, in, out, l.name)
	p = p.WithDefaults()
	m, err := e.b.KV(p)
	e.must(err)
	r, err := e.r.KV(p)
	e.must(err)
	shape := func(d int) []int { return append(slices.Clone(lead), d) }
	rows := product(lead)
	var k, wantK codec.Keys
	x := tensor(in, samples(rows, p.HeadDim, seed), shape(p.HeadDim)...)
	e.must(r.EncodeKeys(&wantK, x))
	e.must(m.EncodeKeys(&k, e.place(x, l).Tensor))
	e.same(what+" key codes", 0, k.Codes, wantK.Codes)
	e.same(what+" key scales", p.ScaleType, k.Scales, wantK.Scales)
	e.same(what+" key zeros", p.ScaleType, k.Zeros, wantK.Zeros)
	var v, wantV codec.Values
	x = tensor(in, samples(rows, p.ValueHeadDim, seed+1), shape(p.ValueHeadDim)...)
	e.must(r.EncodeValues(&wantV, x))
	e.must(m.EncodeValues(&v, e.place(x, l).Tensor))
	e.same(what+" value codes", 0, v.Codes, wantV.Codes)
	e.same(what+" value scales", p.ScaleType, v.Scales, wantV.Scales)

	dst := func(d int) (placed, codec.Tensor) {
		want := codec.NewTensor(out, shape(d)...)
		return e.place(want, l), want
	}
	gotK, outK := dst(p.HeadDim)
	e.must(r.DecodeKeys(outK, wantK))
	e.must(m.DecodeKeys(gotK.Tensor, k))
	e.wrote(what+" keys", gotK, outK)
	gotV, outV := dst(p.ValueHeadDim)
	e.must(r.DecodeValues(outV, wantV))
	e.must(m.DecodeValues(gotV.Tensor, v))
	e.wrote(what+" values", gotV, outV)
	e.must(m.Decode(gotK.Tensor, gotV.Tensor, k, v))
	e.wrote(what+" joint keys", gotK, outK)
	e.wrote(what+" joint values", gotV, outV)
	e.must(r.DecodeValuesRotated(outV, wantV))
	e.must(m.DecodeValuesRotated(gotV.Tensor, v))
	e.wrote(what+" rotated", gotV, outV)
	e.must(m.DecodeRotated(gotK.Tensor, gotV.Tensor, k, v))
	e.wrote(what+" joint rotated keys", gotK, outK)
	e.wrote(what+" joint rotated values", gotV, outV)

	x = tensor(in, canonical(samples(rows, p.ValueHeadDim, seed+2)), shape(p.ValueHeadDim)...)
	want := codec.NewTensor(in, x.Shape...)
	e.must(r.Unrotate(want, x))
	got := e.place(codec.NewTensor(in, x.Shape...), l)
	e.must(m.Unrotate(got.Tensor, e.place(x, l).Tensor))
	e.wrote(what+" unrotated", got, want)
	inPlace := e.place(x, l)
	e.must(m.Unrotate(inPlace.Tensor, inPlace.Tensor))
	e.same(what+" unrotated in place", in, inPlace.compact(), want.Data)
}

// trellis codes one matrix and decodes it, whole and in part.
func (e *exercise) trellis(p trellis.Params, g trellis.Geometry, in, out codec.DType, seed uint64) {
	e.t.Helper()
	what := fmt.Sprintf("%+v %+v %v→%v", p, g, in, out)
	m, err := e.b.Trellis(p)
	e.must(err)
	r, err := e.r.Trellis(p)
	e.must(err)
	x := tensor(in, samples(g.Out, g.In, seed), g.Out, g.In)
	var got, want trellis.Matrix
	recon, wantRecon := codec.NewTensor(out, g.Out, g.In), codec.NewTensor(out, g.Out, g.In)
	e.must(r.Encode(context.Background(), &want, wantRecon, x, g))
	e.must(m.Encode(context.Background(), &got, recon, x, g))
	e.same(what+" scales", 0, bytesOf(got.Scales), bytesOf(want.Scales))
	e.same(what+" codes", 0, bytesOf(got.Codes), bytesOf(want.Codes))
	e.same(what+" reconstruction", out, recon.Data, wantRecon.Data)
	for _, rows := range [][2]int{{0, g.Out}, {1, g.Out}, {1, min(4, g.Out)}, {g.Out - 1, g.Out}} {
		y, wantY := codec.NewTensor(out, rows[1]-rows[0], g.In), codec.NewTensor(out, rows[1]-rows[0], g.In)
		e.must(r.Decode(wantY, &want, rows[0]))
		e.must(m.Decode(y, &got, rows[0]))
		e.same(fmt.Sprint(what, " rows ", rows), out, y.Data, wantY.Data)
	}
}

// blocks finds states of blocks without scales.
func (e *exercise) blocks(p trellis.Params, in codec.DType, lead []int, seed uint64) {
	e.t.Helper()
	m, err := e.b.Trellis(p)
	e.must(err)
	r, err := e.r.Trellis(p)
	e.must(err)
	n := product(lead)
	s := canonical(samples(n, p.T, seed))
	for i, v := range s {
		s[i] = float32(math.Mod(float64(v), 4))
	}
	x := tensor(in, s, append(slices.Clone(lead), p.T)...)
	got, want := make([]uint16, n*p.T), make([]uint16, n*p.T)
	e.must(r.EncodeBlocks(context.Background(), want, x))
	e.must(m.EncodeBlocks(context.Background(), got, x))
	e.same(fmt.Sprintf("%+v %v", p, in), 0, bytesOf(got), bytesOf(want))
}

var allTypes = []codec.DType{codec.F32, codec.F16, codec.BF16}

// all runs every kernel of the table at least once.
func (e *exercise) all() {
	e.t.Helper()
	dims := []int{32, 64, 128, 256, 512, 1024, 96, 160, 224}
	formats := slices.DeleteFunc(codec.KeyFormats(), codec.Format.RowCode) // allProducts has those
	lead := []int{2, 3, 2}
	i := 0
	for _, bits := range []int{2, 3, 4, 5, 8} {
		for _, d := range dims {
			f := formats[i%len(formats)]
			p := codec.KVParams{HeadDim: 64 + 64*(i%3), Keys: f, ValueHeadDim: d, Values: valueFormat(bits), Group: 32,
				ScaleType: allTypes[i%3], Policy: codec.Policy(i % 2), Scale: codec.ScaleRule(i / 2 % 2)}
			if d%64 == 0 {
				p.Group = 32 + 32*(i%2)
			}
			e.kv(p, allTypes[i/3%3], allTypes[i/2%3], lead, layouts[i%len(layouts)], uint64(i))
			if d >= 512 {
				p.Scale = codec.Search - p.Scale
				e.kv(p, allTypes[i/3%3], allTypes[i/2%3], lead, layouts[(i+5)%len(layouts)], uint64(i))
			}
			i++
		}
		for j, f := range formats {
			p := codec.KVParams{HeadDim: 64, Keys: f, Values: valueFormat(bits)}
			e.kv(p, allTypes[j%3], allTypes[(j+1)%3], []int{1, 2, 2}, layouts[(i+j)%len(layouts)], uint64(i))
		}
	}
	// More units than a threadgroup takes, in rows of one, in one row and in runs.
	for j, l := range []string{"dense", "owned transposed", "owned capacity"} {
		at := slices.IndexFunc(layouts, func(a arrangement) bool { return a.name == l })
		p := codec.KVParams{HeadDim: 256 >> j, Keys: formats[2*j], Values: codec.Q3_0, Policy: codec.Policy(j % 2)}
		e.kv(p, codec.F16, codec.BF16, []int{2, 3, 19}, layouts[at], uint64(j))
	}
	// Six dimensions that do not merge: more than a kernel's four.
	deep := arrangement{"deep", []int{5, 0, 2, 4, 1, 3}, 4, 4, true, 0}
	e.kv(codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0}, codec.F32, codec.F32, []int{2, 2, 2, 2, 2}, deep, 1)
	e.kv(codec.KVParams{HeadDim: 64, Keys: codec.Q4_0, Values: codec.Q3_0}, codec.F16, codec.BF16, []int{2, 2, 2, 2, 2}, deep, 2)
	for k := 1; k <= 8; k++ {
		p := trellis.Params{L: 9, K: k, T: 32, Code: trellis.Code(k % 3), Policy: trellis.Policy(k % 2), Scale: trellis.ScaleRule(k / 2 % 2)}
		e.trellis(p, trellis.Geometry{Axis: 1, Out: 5, In: 128, Interleaved: true}, allTypes[k%3], allTypes[k/2%3], uint64(k))
		e.trellis(p, trellis.Geometry{Axis: 0, Out: 64, In: 7, Interleaved: k%2 == 0}, allTypes[k/2%3], allTypes[k%3], uint64(k))
		e.trellis(p, trellis.Geometry{Axis: 1, Out: 3, In: 64}, codec.F32, codec.BF16, uint64(k))
		p.FreeEnds = true
		e.blocks(p, allTypes[k%3], []int{2, 3}, uint64(k))
	}
	e.trellis(trellis.Params{L: 5, K: 4, T: 32}, trellis.Geometry{Axis: 1, Out: 3, In: 64}, codec.F32, codec.F32, 9)
	// Metrics that threadgroup memory does not hold.
	wide := 13
	for 256+8<<wide <= e.b.Info().MaxThreadgroupMemory {
		wide++
	}
	e.trellis(trellis.Params{L: wide, K: 3, T: 32}, trellis.Geometry{Axis: 1, Out: 2, In: 32}, codec.F32, codec.F32, 9)
	e.allProducts()
}

// Every kernel of the table runs, and gives what the reference gives.
func TestEveryKernel(t *testing.T) {
	t.Run("shared", func(t *testing.T) { everyKernel(t) })
	t.Run("discrete", func(t *testing.T) { everyKernel(t, asDiscrete) })
}

func everyKernel(t *testing.T, wrap ...func(gpu.Device) (gpu.Device, error)) {
	var s spy
	b := open(t, Options{}, append(wrap, s.wrap)...)
	e := newExercise(t, b)
	e.all()
	for _, v := range shaders.Variants() {
		if s.kernels[v.Name] == 0 {
			t.Errorf("%s did not run", v.Name)
		}
	}
	if len(s.kernels) != len(shaders.Variants()) {
		t.Errorf("%d kernels ran, the table has %d", len(s.kernels), len(shaders.Variants()))
	}
	runs := 0
	for _, n := range s.kernels {
		runs += n
	}
	t.Logf("%d kernels of %d ran in %d dispatches; compared %d elements", len(s.kernels), len(shaders.Variants()), runs, e.compared)
}
