//go:build metal

package shaders_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/gpu/metal"
	"github.com/turbotrellis/turbotrellis/hadamard"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/lloydmax"
	"github.com/turbotrellis/turbotrellis/pack"
	"github.com/turbotrellis/turbotrellis/shaders"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// These tests launch every kernel by hand, without the planning of codec/metal, and compare
// with the reference bit for bit. They run on whichever driver was compiled in.

// A bench is an open device with the kernels, and a record of which ran.
type bench struct {
	device    gpu.Device
	mu        sync.Mutex
	libraries map[string]gpu.Library
	pipelines map[string]gpu.Pipeline
}

var shared struct {
	once  sync.Once
	bench *bench
	err   error
}

func open(t testing.TB) *bench {
	t.Helper()
	shared.once.Do(func() {
		d, err := metal.Open(gpu.Options{})
		shared.err = err
		shared.bench = &bench{device: d, libraries: map[string]gpu.Library{}, pipelines: map[string]gpu.Pipeline{}}
	})
	if errors.Is(shared.err, gpu.ErrUnavailable) && !strings.Contains(os.Getenv("REQUIRE_BACKENDS"), "metal") {
		t.Skip(shared.err)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.bench
}

func (b *bench) pipeline(t testing.TB, name string) gpu.Pipeline {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if p, ok := b.pipelines[name]; ok {
		return p
	}
	v, ok := shaders.Lookup(name)
	if !ok {
		t.Fatalf("no kernel %s", name)
	}
	lib, ok := b.libraries[v.Family]
	if !ok {
		source, err := shaders.FamilySource(v.Family)
		if err == nil {
			source, err = mutate(source)
		}
		if err == nil {
			lib, err = b.device.NewLibrary(source, gpu.CompileOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		b.libraries[v.Family] = lib
	}
	p, err := lib.Pipeline(name)
	if err != nil {
		t.Fatal(err)
	}
	b.pipelines[name] = p
	return p
}

// run launches a kernel once. The buffers are copied in and back.
func (b *bench) run(t testing.TB, name string, grid shaders.Grid, memory int, args any, buffers ...[]byte) {
	t.Helper()
	d := gpu.Dispatch{Pipeline: b.pipeline(t, name), Args: shaders.Append(nil, args), Groups: grid.Groups, GroupSize: grid.Threads}
	if memory > 0 {
		d.ThreadgroupMemory = []int{memory}
	}
	for _, data := range buffers {
		buf, err := b.device.NewBuffer(max(len(data), 4))
		if err != nil {
			t.Fatal(err)
		}
		defer buf.Release()
		copy(buf.Bytes(), data)
		d.Buffers = append(d.Buffers, gpu.Binding{Buffer: buf})
	}
	if _, err := b.device.Run(d); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for i, data := range buffers {
		copy(data, d.Buffers[i].Buffer.Bytes())
	}
}

func (b *bench) maxThreads(t testing.TB, name string) int { return b.pipeline(t, name).MaxThreads() }

// viterbi plans a trellis encode within what the device and the pipeline allow.
func (b *bench) viterbi(t testing.TB, L, k, T, threads, memory int) shaders.TrellisPlan {
	threads = min(threads, b.device.Info().MaxThreads[0])
	memory = min(memory, b.device.Info().MaxThreadgroupMemory)
	p := shaders.TrellisLaunch(L, k, T, threads, memory)
	for p.Threads > b.maxThreads(t, p.Kernel) {
		p = shaders.TrellisLaunch(L, k, T, b.maxThreads(t, p.Kernel), memory)
	}
	return p
}

func words[T any](x []T) []byte {
	var out bytes.Buffer
	if err := binary.Write(&out, binary.LittleEndian, x); err != nil {
		panic(err)
	}
	return out.Bytes()
}

func read[T any](b []byte, n int) []T {
	x := make([]T, n)
	if err := binary.Read(bytes.NewReader(b), binary.LittleEndian, x); err != nil {
		panic(err)
	}
	return x
}

func signs(d int) []byte {
	w := make([]uint32, (d+31)/32)
	for i, s := range hadamard.AppendSigns(nil, d) {
		if s < 0 {
			w[i/32] |= 1 << (i % 32)
		}
	}
	return words(w)
}

func levels(t testing.TB, bits int) []byte {
	table, err := lloydmax.Lookup(bits)
	if err != nil {
		t.Fatal(err)
	}
	return words(table.AppendBoundaries(table.AppendCentroids(nil)))
}

func factor(d int) int {
	for _, m := range []int{12, 20, 28} {
		if d&(d-1) != 0 && d%m == 0 && d/m&(d/m-1) == 0 {
			return m
		}
	}
	return 1
}

func norm(d int) float32 { return float32(1 / math.Sqrt(float64(d))) }

func dtype(d codec.DType) uint32 {
	return map[codec.DType]uint32{codec.F32: shaders.TypeF32, codec.F16: shaders.TypeF16, codec.BF16: shaders.TypeBF16}[d]
}

// compact is the view of rows of n elements without gaps. A row past the last (N2) is far away.
func compact(n int) shaders.View { return shaders.View{S0: 1 << 30, S2: int64(n), S3: 1} }

// diff compares two byte strings of elements of the given size; NaN equals NaN.
func diff(t testing.TB, what string, got, want []byte, d codec.DType) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
	}
	if bytes.Equal(got, want) {
		return
	}
	size := 1
	if d != 0 {
		size = d.Size()
	}
	for i := 0; i < len(want); i += size {
		g, w := got[i:i+size], want[i:i+size]
		if bytes.Equal(g, w) || d != 0 && d.Load(g) != d.Load(g) && d.Load(w) != d.Load(w) {
			continue
		}
		if d == 0 {
			t.Fatalf("%s: byte %d is %#x, want %#x", what, i, g, w)
		}
		t.Fatalf("%s: element %d is %x (%v), want %x (%v)", what, i/size, g, d.Load(g), w, d.Load(w))
	}
}

// samples gives rows that are hard in one way each: ordinary, tiny, huge, tied, zero, constant.
func samples(rows, d int, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	x := make([]float32, rows*d)
	tiny := []float32{0x1p-63, 0x1p-64, 0x1p-65, 0x1p-126, 0x1p-149, -0x1p-63, -0x1p-64, float32(math.Copysign(0, -1))}
	for i := range x {
		g := float32(r.NormFloat64())
		switch row := i / d; row % 9 {
		case 0, 1:
			x[i] = g
		case 2: // on both sides of the canonical threshold, mixed with ordinary ones
			if x[i] = g; i%3 != 0 {
				x[i] = tiny[r.IntN(len(tiny))]
			}
		case 3: // all tiny
			x[i] = tiny[r.IntN(len(tiny))] * float32(1+r.IntN(3))
		case 4: // ties
			x[i] = float32(r.IntN(9)-4) * 0.5
		case 5: // constants, and ±0
			x[i] = float32(row%3) * 9
			if row%2 == 0 && r.IntN(2) == 0 {
				x[i] = float32(math.Copysign(0, float64(g)))
			}
		case 6: // outliers
			if x[i] = g; r.IntN(32) == 0 {
				x[i] = g * 300
			}
		case 7:
			x[i] = g * 1e-12
		case 8:
			x[i] = g * 1000
		}
	}
	return x
}

func tensor(d codec.DType, x []float32, shape ...int) codec.Tensor {
	t := codec.NewTensor(d, shape...)
	for i, v := range x {
		d.Store(t.Data[i*d.Size():], v)
	}
	return t
}

// strided spreads the rows of x [a, b, c, d] out: dimensions permuted, gaps, elements two apart.
func strided(x codec.Tensor) (data []byte, view shaders.View, n1, n2 int) {
	a, b, c, d := x.Shape[0], x.Shape[1], x.Shape[2], x.Shape[3]
	s3, s0 := 2, 2*d+3
	s2 := a * s0
	s1 := c*s2 + 5
	const base = 7
	size := x.DType.Size()
	data = bytes.Repeat([]byte{0xa5}, (base+b*s1+c*s2+a*s0+2*d)*size)
	for r := range a * b * c {
		i0, i1, i2 := r/(b*c), r/c%b, r%c
		for j := range d {
			copy(data[(base+i0*s0+i1*s1+i2*s2+j*s3)*size:][:size], x.Data[(r*d+j)*size:])
		}
	}
	return data, shaders.View{Base: base, S0: int64(s0), S1: int64(s1), S2: int64(s2), S3: int64(s3)}, b, c
}

// gather is the inverse of strided.
func gather(data []byte, v shaders.View, size, rows, n1, n2, d int) []byte {
	out := make([]byte, 0, rows*d*size)
	for r := range rows {
		i0, i1, i2 := int64(r/(n1*n2)), int64(r/n2%n1), int64(r%n2)
		for j := range int64(d) {
			at := (v.Base + i0*v.S0 + i1*v.S1 + i2*v.S2 + j*v.S3) * int64(size)
			out = append(out, data[at:at+int64(size)]...)
		}
	}
	return out
}

func clearStatus() []byte {
	return words([]uint32{shaders.StatusClear, shaders.StatusClear})
}

var dtypes = []codec.DType{codec.F32, codec.F16, codec.BF16}

func TestKernelPack(t *testing.T) {
	b := open(t)
	r := rand.New(rand.NewPCG(2, 2))
	for bits := 1; bits <= 8; bits++ {
		for _, n := range []int{4, 8, 12, 20, 88, 1032} {
			if n*bits%8 != 0 {
				continue
			}
			const rows = 5
			codes := make([]byte, rows*n)
			for i := range codes {
				codes[i] = byte(r.UintN(1 << bits))
			}
			rowBytes := n * bits / 8
			var want []byte
			for i := range rows {
				var err error
				if want, err = pack.AppendPack(want, codes[i*n:][:n], bits); err != nil {
					t.Fatal(err)
				}
			}
			args := shaders.PackArgs{Codes: compact(n), Packed: compact(rowBytes), N1: 1, N2: rows, Rows: rows, Dim: uint32(n)}
			name := fmt.Sprintf("pack_b%d", bits)
			packed := make([]byte, len(want))
			grid := shaders.ElementGrid((n+7)/8, rows, b.maxThreads(t, name))
			b.run(t, name, grid, 0, &args, codes, packed)
			diff(t, fmt.Sprintf("%s n=%d", name, n), packed, want, 0)
			back := make([]byte, len(codes))
			b.run(t, "un"+name, grid, 0, &args, packed, back)
			diff(t, fmt.Sprintf("un%s n=%d", name, n), back, codes, 0)
		}
	}
}

func TestKernelHadamard(t *testing.T) {
	b := open(t)
	elements := 0
	for d := 1; d <= 8192; d++ {
		if !hadamard.Supported(d) || testing.Short() && d > 2048 {
			continue
		}
		const rows = 2 * 3 * 2
		x := samples(rows, d, uint64(d))
		// A plain transform takes its input as it is: without canonical inputs a device that
		// flushes subnormals must not meet any.
		canonical := d%8 == 0
		for i := range x {
			if !canonical {
				x[i] = f32.Canon(x[i])
			}
		}
		dt := dtypes[d%3]
		in := tensor(dt, x, 2, 3, 2, d)
		data, view, n1, n2 := strided(in)
		rot, err := hadamard.New(d)
		if err != nil {
			t.Fatal(err)
		}
		for _, inverse := range []bool{false, true} {
			want := codec.NewTensor(dt, rows, d)
			row := make([]float32, d)
			for r := range rows {
				in.LoadRow(row, r)
				for i := range row {
					if canonical {
						row[i] = f32.Canon(row[i])
					}
				}
				if inverse {
					rot.Inverse(row)
				} else {
					rot.Forward(row)
				}
				want.StoreRow(r, row)
			}
			args := shaders.HadamardArgs{X: view, Y: shaders.View{S0: int64(n1 * n2 * d), S1: int64(n2 * d), S2: int64(d), S3: 1}, N1: uint32(n1), N2: uint32(n2), Rows: rows, Dim: uint32(d), Factor: uint32(factor(d)),
				XType: dtype(dt), YType: dtype(dt), Norm: norm(d), SignsBefore: 1}
			if canonical {
				args.Canonical = 1
			}
			if inverse {
				args.SignsBefore, args.SignsAfter, args.Transposed = 0, 1, 1
			}
			names := []string{"hadamard_any"}
			if _, ok := shaders.Lookup(fmt.Sprintf("hadamard_d%d", d)); ok {
				names = append(names, fmt.Sprintf("hadamard_d%d", d))
			}
			for _, name := range names {
				got := make([]byte, len(want.Data))
				grid, memory := shaders.LaneGrid(rows, b.maxThreads(t, name)), 0
				if name == "hadamard_any" {
					plan, err := shaders.RowLaunch(d, rows, b.maxThreads(t, name), shaders.ThreadgroupLimit)
					if err != nil {
						t.Fatal(err)
					}
					grid, memory, args.ThreadsPerRow = plan.Grid, plan.Bytes, uint32(plan.ThreadsPerRow)
				}
				b.run(t, name, grid, memory, &args, data, got, signs(d))
				diff(t, fmt.Sprintf("%s d=%d inverse=%t %v", name, d, inverse, dt), got, want.Data, dt)
				elements += rows * d
			}
		}
	}
	t.Logf("%d elements", elements)
}

type part struct{ first, rows int }

// parts is all rows at once, or for odd i in two dispatches.
func parts(rows, i int) []part {
	if i%2 == 0 {
		return []part{{0, rows}}
	}
	return []part{{0, rows / 2}, {rows / 2, rows - rows/2}}
}

type kvCase struct {
	p  codec.KVParams
	in codec.DType
}

func (c kvCase) String() string { return fmt.Sprintf("%+v %v", c.p, c.in) }

func keyName(p codec.KVParams) string {
	if p.KeySigned {
		return "s8"
	}
	return fmt.Sprintf("u%d", p.KeyBits)
}

func policy(p codec.Policy) uint32 {
	if p == codec.Compat {
		return shaders.PolicyCompat
	}
	return shaders.PolicyFinite
}

func TestKernelKeys(t *testing.T) {
	b := open(t)
	elements := 0
	i := 0
	for _, kt := range codec.KeyTypes() {
		for _, group := range []int{32, 64} {
			for _, scaleType := range dtypes {
				for _, pol := range []codec.Policy{codec.Finite, codec.Compat} {
					i++
					d := []int{64, 128, 192, 320}[i%4]
					p := codec.KVParams{HeadDim: d, KeyBits: kt.Bits, KeySigned: kt.Signed, ValueHeadDim: 64, ValueBits: 3, Group: group, ScaleType: scaleType, Policy: pol}
					c := kvCase{p, dtypes[i%3]}
					kv, err := ref.NewKV(p)
					if err != nil {
						t.Fatal(err)
					}
					const rows = 2 * 3 * 3
					in := tensor(c.in, samples(rows, d, uint64(i)), 2, 3, 3, d)
					var want codec.Keys
					if err := kv.EncodeKeys(&want, in); err != nil {
						t.Fatal(c, err)
					}
					data, view, n1, n2 := strided(in)
					codesLen, scalesLen := p.KeyRowLen()
					groups := d / group
					out := func(n int) shaders.View {
						return shaders.View{S0: int64(n1 * n2 * n), S1: int64(n2 * n), S2: int64(n), S3: 1}
					}
					codes, scales, zeros, status := make([]byte, rows*codesLen), make([]byte, rows*scalesLen), make([]byte, rows*scalesLen), clearStatus()
					name := "keys_encode_" + keyName(p)
					for _, part := range parts(rows, i) {
						b.run(t, name, shaders.LaneGrid(part.rows, b.maxThreads(t, name)), 0, &shaders.KeysEncodeArgs{
							X: view, Codes: out(codesLen), Scales: out(groups), Zeros: out(groups), N1: uint32(n1), N2: uint32(n2), Row0: uint32(part.first), Rows: uint32(part.rows),
							Dim: uint32(d), Group: uint32(group), XType: dtype(c.in), ScaleType: dtype(scaleType), Policy: policy(pol),
						}, data, codes, scales, zeros, status)
					}
					diff(t, c.String()+" scales", scales, want.Scales, scaleType)
					diff(t, c.String()+" zeros", zeros, want.Zeros, scaleType)
					diff(t, c.String()+" codes", codes, want.Codes, 0)

					for j, outType := range dtypes {
						wantOut := codec.NewTensor(outType, 2, 3, 3, d)
						if err := kv.DecodeKeys(wantOut, want); err != nil {
							t.Fatal(err)
						}
						shape := codec.NewTensor(outType, 2, 3, 3, d)
						outData, outView, _, _ := strided(shape)
						wide := uint32(0)
						if j == i%3 {
							outData, outView, wide = shape.Data, out(d), 1
						}
						name := "keys_decode_" + keyName(p)
						for _, part := range parts(rows, i+j) {
							b.run(t, name, shaders.ElementGrid(d/8, part.rows, b.maxThreads(t, name)), 0, &shaders.KeysDecodeArgs{
								Codes: out(codesLen), Scales: out(groups), Zeros: out(groups), Out: outView, N1: uint32(n1), N2: uint32(n2), Row0: uint32(part.first), Rows: uint32(part.rows),
								Dim: uint32(d), Group: uint32(group), ScaleType: dtype(scaleType), OutType: dtype(outType), Wide: wide,
							}, codes, scales, zeros, outData)
						}
						diff(t, fmt.Sprint(c, " decoded ", outType), gather(outData, outView, outType.Size(), rows, n1, n2, d), wantOut.Data, outType)
						elements += rows * d
					}
				}
			}
		}
	}
	t.Logf("%d elements", elements)
}

func TestKernelValues(t *testing.T) {
	b := open(t)
	elements := 0
	i := 0
	for _, bits := range []int{2, 3, 4, 5, 8} {
		for _, d := range []int{32, 64, 128, 256, 512, 1024, 96, 160, 192, 224, 320, 384, 640, 1792, 2048} {
			for _, search := range []codec.ScaleRule{codec.RMS, codec.Search} {
				i++
				group := []int{32, 64}[i/2%2]
				if d%group != 0 {
					group = 32
				}
				kt := codec.KeyTypes()[i%len(codec.KeyTypes())]
				scaleType := dtypes[i%3]
				kd := []int{64, 96, 160}[i%3] &^ (group - 1)
				p := codec.KVParams{HeadDim: kd, KeyBits: kt.Bits, KeySigned: kt.Signed, ValueHeadDim: d, ValueBits: bits, Group: group, ScaleType: scaleType, Scale: search}
				c := kvCase{p, dtypes[i/3%3]}
				kv, err := ref.NewKV(p)
				if err != nil {
					t.Fatal(err)
				}
				const rows = 9
				in := tensor(c.in, samples(rows, d, uint64(i)), 3, 1, 3, d)
				var want codec.Values
				if err := kv.EncodeValues(&want, in); err != nil {
					t.Fatal(c, err)
				}
				data, view, n1, n2 := strided(in)
				codesLen, scalesLen := p.ValueRowLen()
				groups := d / group
				out := func(n int) shaders.View {
					return shaders.View{S0: int64(n1 * n2 * n), S1: int64(n2 * n), S2: int64(n), S3: 1}
				}
				searching := uint32(0)
				if search == codec.Search {
					searching = 1
				}
				variants := []string{"any"}
				if _, ok := shaders.Lookup(fmt.Sprintf("values_encode_b%d_d%d", bits, d)); ok {
					variants = append(variants, fmt.Sprintf("d%d", d))
				}
				for _, variant := range variants {
					name := fmt.Sprintf("values_encode_b%d_%s", bits, variant)
					args := shaders.ValuesEncodeArgs{X: view, Codes: out(codesLen), Scales: out(groups), N1: uint32(n1), N2: uint32(n2),
						Dim: uint32(d), Group: uint32(group), Factor: uint32(factor(d)), XType: dtype(c.in), ScaleType: dtype(scaleType), Search: searching, Norm: norm(d)}
					codes, scales, status := make([]byte, rows*codesLen), make([]byte, rows*scalesLen), clearStatus()
					for _, part := range parts(rows, i) {
						grid, memory := shaders.LaneGrid(part.rows, b.maxThreads(t, name)), 0
						if variant == "any" {
							plan, err := shaders.RowLaunch(d, part.rows, b.maxThreads(t, name), shaders.ThreadgroupLimit)
							if err != nil {
								t.Fatal(err)
							}
							grid, memory, args.ThreadsPerRow = plan.Grid, plan.Bytes, uint32(plan.ThreadsPerRow)
						}
						args.Row0, args.Rows = uint32(part.first), uint32(part.rows)
						b.run(t, name, grid, memory, &args, data, codes, scales, status, levels(t, bits), signs(d))
					}
					diff(t, fmt.Sprint(name, c, " scales"), scales, want.Scales, scaleType)
					diff(t, fmt.Sprint(name, c, " codes"), codes, want.Codes, 0)
					if !bytes.Equal(status, clearStatus()) {
						t.Errorf("%s %v: status %x", name, c, status)
					}
					elements += rows * d
				}

				// Keys of the same leading shape, for the joint decoders.
				keys := tensor(codec.F32, samples(rows, kd, uint64(i)+1000), 3, 1, 3, kd)
				var k codec.Keys
				if err := kv.EncodeKeys(&k, keys); err != nil {
					t.Fatal(err)
				}
				outType := dtypes[i/2%3]
				wantK, wantV := codec.NewTensor(outType, 3, 1, 3, kd), codec.NewTensor(outType, 3, 1, 3, d)
				kCodes, _ := p.KeyRowLen()
				args := shaders.KVDecodeArgs{
					KCodes: out(kCodes), KScales: out(kd / group), KZeros: out(kd / group), VCodes: out(codesLen), VScales: out(groups),
					N1: uint32(n1), N2: uint32(n2), Rows: rows, KDim: uint32(kd), KGroup: uint32(group), KBits: uint32(p.KeyBits),
					VDim: uint32(d), VGroup: uint32(group), Factor: uint32(factor(d)), ScaleType: dtype(scaleType), KType: dtype(outType), VType: dtype(outType), Norm: norm(d),
				}
				if p.KeySigned {
					args.KSigned = 1
				}
				check := func(name string, grid shaders.Grid, memory int, wide bool, tables ...[]byte) {
					t.Helper()
					gotK, gotV := codec.NewTensor(outType, 3, 1, 3, kd), codec.NewTensor(outType, 3, 1, 3, d)
					kData, kView, _, _ := strided(gotK)
					vData, vView, _, _ := strided(gotV)
					args.KWide, args.VWide = 0, 0
					if wide {
						kData, kView, vData, vView = gotK.Data, out(kd), gotV.Data, out(d)
						args.KWide, args.VWide = 1, 1
					}
					args.KOut, args.VOut = kView, vView
					b.run(t, name, grid, memory, &args, append([][]byte{k.Codes, k.Scales, k.Zeros, want.Codes, want.Scales, kData, vData}, tables...)...)
					diff(t, fmt.Sprint(name, c, " keys ", outType), gather(kData, kView, outType.Size(), rows, n1, n2, kd), wantK.Data, outType)
					diff(t, fmt.Sprint(name, c, " values ", outType), gather(vData, vView, outType.Size(), rows, n1, n2, d), wantV.Data, outType)
					elements += rows * (d + kd)
				}

				if err := kv.DecodeRotated(wantK, wantV, k, want); err != nil {
					t.Fatal(err)
				}
				joint := fmt.Sprintf("kv_decode_%s_b%d", keyName(p), bits)
				check(joint, shaders.ElementGrid(max(d, kd)/8, rows, b.maxThreads(t, joint)), 0, i%2 == 0, levels(t, bits))
				name := fmt.Sprintf("values_decode_b%d", bits)
				got := make([]byte, len(wantV.Data))
				b.run(t, name, shaders.ElementGrid(d/8, rows, b.maxThreads(t, name)), 0, &shaders.ValuesDecodeArgs{
					Codes: out(codesLen), Scales: out(groups), Out: out(d), N1: uint32(n1), N2: uint32(n2), Rows: rows, Dim: uint32(d), Group: uint32(group),
					ScaleType: dtype(scaleType), OutType: dtype(outType), Wide: uint32(i % 2),
				}, want.Codes, want.Scales, got, levels(t, bits))
				diff(t, fmt.Sprint(name, c, outType), got, wantV.Data, outType)

				if err := kv.Decode(wantK, wantV, k, want); err != nil {
					t.Fatal(err)
				}
				for _, variant := range variants {
					name := fmt.Sprintf("kv_inverse_b%d_%s", bits, variant)
					grid, memory := shaders.LaneGrid(rows, b.maxThreads(t, name)), 0
					if variant == "any" {
						plan, err := shaders.RowLaunch(d, rows, b.maxThreads(t, name), shaders.ThreadgroupLimit)
						if err != nil {
							t.Fatal(err)
						}
						grid, memory, args.ThreadsPerRow = plan.Grid, plan.Bytes, uint32(plan.ThreadsPerRow)
					}
					check(name, grid, memory, false, levels(t, bits), signs(d))
				}
			}
		}
	}
	// The joint decoders that the walk above did not meet.
	for _, kt := range codec.KeyTypes() {
		for _, bits := range []int{2, 3, 4, 5, 8} {
			p := codec.KVParams{HeadDim: 64, KeyBits: kt.Bits, KeySigned: kt.Signed, ValueBits: bits}.WithDefaults()
			kv, err := ref.NewKV(p)
			if err != nil {
				t.Fatal(err)
			}
			const rows = 5
			x := tensor(codec.F32, samples(rows, 64, 3), rows, 64)
			var k codec.Keys
			var v codec.Values
			if err := errors.Join(kv.EncodeKeys(&k, x), kv.EncodeValues(&v, x)); err != nil {
				t.Fatal(err)
			}
			wantK, wantV := codec.NewTensor(codec.BF16, rows, 64), codec.NewTensor(codec.BF16, rows, 64)
			if err := kv.DecodeRotated(wantK, wantV, k, v); err != nil {
				t.Fatal(err)
			}
			kc, _ := p.KeyRowLen()
			vc, _ := p.ValueRowLen()
			gotK, gotV := make([]byte, len(wantK.Data)), make([]byte, len(wantV.Data))
			name := fmt.Sprintf("kv_decode_%s_b%d", keyName(p), bits)
			b.run(t, name, shaders.ElementGrid(8, rows, b.maxThreads(t, name)), 0, &shaders.KVDecodeArgs{
				KCodes: compact(kc), KScales: compact(2), KZeros: compact(2), KOut: compact(64), VCodes: compact(vc), VScales: compact(2), VOut: compact(64),
				N1: 1, N2: rows, Rows: rows, KDim: 64, KGroup: 32, VDim: 64, VGroup: 32, ScaleType: shaders.TypeF16, KType: shaders.TypeBF16, VType: shaders.TypeBF16, KWide: 1, VWide: 1,
			}, k.Codes, k.Scales, k.Zeros, v.Codes, v.Scales, gotK, gotV, levels(t, bits))
			diff(t, name+" keys", gotK, wantK.Data, codec.BF16)
			diff(t, name+" values", gotV, wantV.Data, codec.BF16)
		}
	}
	t.Logf("%d elements", elements)
}

func TestKernelStatus(t *testing.T) {
	b := open(t)
	const rows, d = 40, 128
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for _, at := range [][]int{{0}, {rows*d - 1}, {4321, 17*d + 5, 4000}, {3*d + 31, 3*d + 32}} {
		x := samples(rows, d, 5)
		for i, j := range at {
			x[j] = []float32{nan, inf}[i%2]
		}
		first := uint32(slices.Min(at))
		for _, name := range []string{"keys_encode_u4", "values_encode_b3_d128", "values_encode_b3_any", "trellis_scales"} {
			status := clearStatus()
			switch {
			case strings.HasPrefix(name, "keys"):
				b.run(t, name, shaders.LaneGrid(rows, 1024), 0, &shaders.KeysEncodeArgs{X: compact(d), Codes: compact(d / 2), Scales: compact(4), Zeros: compact(4),
					N1: 1, N2: rows, Rows: rows, Dim: d, Group: 32, ScaleType: shaders.TypeF16}, words(x), make([]byte, rows*d/2), make([]byte, rows*8), make([]byte, rows*8), status)
			case strings.HasPrefix(name, "values"):
				plan, _ := shaders.RowLaunch(d, rows, 1024, shaders.ThreadgroupLimit)
				grid, memory := shaders.LaneGrid(rows, 1024), 0
				if strings.HasSuffix(name, "any") {
					grid, memory = plan.Grid, plan.Bytes
				}
				b.run(t, name, grid, memory, &shaders.ValuesEncodeArgs{X: compact(d), Codes: compact(d * 3 / 8), Scales: compact(4), N1: 1, N2: rows, Rows: rows, Dim: d, Group: 32,
					Factor: 1, ThreadsPerRow: uint32(plan.ThreadsPerRow), ScaleType: shaders.TypeF16, Norm: norm(d)}, words(x), make([]byte, rows*d*3/8), make([]byte, rows*8), status, levels(t, 3), signs(d))
			default:
				b.run(t, name, shaders.LaneGrid(rows, 1024), 0, &shaders.TrellisScalesArgs{W: compact(d), Scales: compact(1), Rows: rows, Cols: d, InverseCodeRMS: 1, Factor: 1},
					words(x), make([]byte, 2*rows), status)
			}
			if got := read[uint32](status, 2); got[shaders.StatusNonFinite] != first {
				t.Errorf("%s, non-finite at %v: status %d, want %d", name, at, got[shaders.StatusNonFinite], first)
			}
		}
	}
	// Scales that overflow f16: the first group's number.
	x := samples(rows, d, 6)
	for i := 20*d + 64; i < 20*d+96; i++ {
		x[i] = float32(i%2) * 3e7
	}
	x[30*d] = 3e7
	status := clearStatus()
	b.run(t, "keys_encode_u4", shaders.LaneGrid(rows, 1024), 0, &shaders.KeysEncodeArgs{X: compact(d), Codes: compact(d / 2), Scales: compact(4), Zeros: compact(4),
		N1: 1, N2: rows, Rows: rows, Dim: d, Group: 32, ScaleType: shaders.TypeF16}, words(x), make([]byte, rows*d/2), make([]byte, rows*8), make([]byte, rows*8), status)
	if got := read[uint32](status, 2); got[0] != shaders.StatusClear || got[1] != 20*4+2 {
		t.Errorf("keys: status %d, want overflow in group 82", got)
	}
	status = clearStatus()
	b.run(t, "values_encode_b3_d128", shaders.LaneGrid(rows, 1024), 0, &shaders.ValuesEncodeArgs{X: compact(d), Codes: compact(d * 3 / 8), Scales: compact(4), N1: 1, N2: rows, Rows: rows, Dim: d, Group: 32,
		ScaleType: shaders.TypeF16, Norm: norm(d)}, words(x), make([]byte, rows*d*3/8), make([]byte, rows*8), status, levels(t, 3), signs(d))
	if got := read[uint32](status, 2); got[0] != shaders.StatusClear || got[1] < 20*4 || got[1] >= 21*4 {
		t.Errorf("values: status %d, want overflow in row 20", got)
	}
}

// Samples that the caller divided: the encoder itself finds what it cannot code.
func TestKernelTrellisStatus(t *testing.T) {
	b := open(t)
	table, err := trellis.AppendValues(nil, trellis.OneMAD, 8)
	if err != nil {
		t.Fatal(err)
	}
	const rows, T = 6, 32
	for _, bad := range []struct {
		name      string
		at        map[int]float32
		nonFinite uint32
		beyond    uint32
	}{
		{"none", nil, shaders.StatusClear, shaders.StatusClear},
		{"limits", map[int]float32{3: 0x1p60, 70: -0x1p60}, shaders.StatusClear, shaders.StatusClear},
		{"beyond", map[int]float32{150: 0x1.000002p60, 70: -0x1p90}, shaders.StatusClear, 70},
		{"both", map[int]float32{33: float32(math.Inf(1)), 190: float32(math.NaN()), 31: 0x1p61}, 33, 31},
	} {
		x := make([]float32, rows*T)
		for i := range x {
			x[i] = float32(i%5) - 2
		}
		for i, v := range bad.at {
			x[i] = v
		}
		plan := b.viterbi(t, 8, 2, T, 1024, shaders.ThreadgroupLimit)
		status := clearStatus()
		b.run(t, plan.Kernel, shaders.Grid{Groups: [3]int{2, 1, 1}, Threads: [3]int{plan.Threads, 1, 1}}, plan.Bytes, &shaders.TrellisEncodeArgs{
			W: compact(T), Codes: compact(2), States: compact(T), SlotBytes: plan.SlotBytes, Blocks: rows, RowBlocks: 1, Block: T, StateBits: 8, Bits: 2, TailBiting: 1, WriteStates: 1,
		}, words(x), nil, words(table), nil, make([]byte, 2*len(x)), make([]byte, 2*plan.SlotBytes), status)
		got := read[uint32](status, 2)
		// Beyond the range includes the infinities, which the other word has too.
		if got[shaders.StatusNonFinite] != bad.nonFinite || got[shaders.StatusScaleOverflow] != bad.beyond {
			t.Errorf("%s: status %d, want %d and %d", bad.name, got, bad.nonFinite, bad.beyond)
		}
	}
}

func TestKernelTrellis(t *testing.T) {
	b := open(t)
	used := map[string]bool{}
	elements := 0
	for _, c := range []struct {
		L, k, T int
		code    trellis.Code
		free    bool
	}{
		{12, 1, 64, trellis.OneMAD, false}, {12, 2, 64, trellis.OneMAD, false}, {12, 3, 64, trellis.OneMAD, false}, {12, 4, 32, trellis.ThreeInst, false},
		{12, 5, 32, trellis.OneMAD, false}, {12, 6, 32, trellis.OneMAD, false}, {12, 7, 32, trellis.OneMAD, false}, {12, 8, 32, trellis.OneMAD, false},
		{12, 3, 64, trellis.OneMAD, true}, {10, 4, 64, trellis.ThreeInst, false}, {8, 2, 64, trellis.OneMAD, false}, {7, 1, 32, trellis.Rand, true},
		{4, 1, 32, trellis.OneMAD, false}, {5, 4, 32, trellis.Rand, false}, {6, 3, 32, trellis.OneMAD, true}, {9, 8, 16, trellis.OneMAD, false},
		{14, 2, 32, trellis.ThreeInst, false}, {13, 5, 32, trellis.OneMAD, true}, {16, 2, 16, trellis.OneMAD, false},
	} {
		p := trellis.Params{L: c.L, K: c.k, T: c.T, Code: c.code, FreeEnds: c.free}
		enc, err := trellis.NewEncoder(p)
		if err != nil {
			t.Fatal(err)
		}
		table, err := trellis.AppendValues(nil, c.code, c.L)
		if err != nil {
			t.Fatal(err)
		}
		const rows, perRow = 4, 2
		cols := perRow * c.T
		x := samples(rows, cols, uint64(c.L*16+c.k))
		for i := range x { // a row of zeros, all ties; a row of quarter steps
			switch i / cols {
			case 2:
				x[i] = 0
			case 3:
				x[i] = float32(i%7-3) * 0.25
			default:
				x[i] = float32(math.Mod(float64(x[i]), 4))
			}
		}
		want := make([]uint16, len(x))
		var wantWords []uint32
		for blk := range rows * perRow {
			if err := enc.EncodeBlock(want[blk*c.T:][:c.T], x[blk*c.T:][:c.T]); err != nil {
				t.Fatal(err)
			}
			if !c.free {
				if wantWords, err = trellis.AppendPackStates(wantWords, want[blk*c.T:][:c.T], p); err != nil {
					t.Fatal(err)
				}
			}
		}
		n := c.T * c.k / 32
		for _, limit := range []struct{ threads, memory int }{{1024, 32 << 10}, {256, 32 << 10}, {1024, 1 << 10}} {
			plan := b.viterbi(t, c.L, c.k, c.T, limit.threads, limit.memory)
			if used[fmt.Sprint(c, plan)] {
				continue
			}
			used[fmt.Sprint(c, plan)], used[plan.Kernel] = true, true
			const slots = 3
			states, codes, status := make([]byte, 2*len(x)), make([]byte, 4*rows*perRow*n), clearStatus()
			args := shaders.TrellisEncodeArgs{W: compact(cols), Codes: compact(perRow * n), States: compact(cols), SlotBytes: plan.SlotBytes, Blocks: rows * perRow, RowBlocks: perRow,
				Block: uint32(c.T), StateBits: uint32(c.L), Bits: uint32(c.k), WriteStates: 1}
			if !c.free {
				args.TailBiting, args.WriteCodes = 1, 1
			}
			b.run(t, plan.Kernel, shaders.Grid{Groups: [3]int{slots, 1, 1}, Threads: [3]int{plan.Threads, 1, 1}}, plan.Bytes, &args,
				words(x), make([]byte, 2*rows), words(table), codes, states, make([]byte, slots*plan.SlotBytes), status)
			if got := read[uint16](states, len(want)); !slices.Equal(got, want) {
				for i := range got {
					if got[i] != want[i] {
						t.Fatalf("%s %+v threads=%d: state %d is %d, want %d", plan.Kernel, c, plan.Threads, i, got[i], want[i])
					}
				}
			}
			if !c.free {
				diff(t, fmt.Sprintf("%s %+v words", plan.Kernel, c), codes, words(wantWords), 0)
			}
			if !bytes.Equal(status, clearStatus()) {
				t.Errorf("%s: status %x", plan.Kernel, status)
			}
			elements += len(x)
		}
		if c.free {
			continue
		}

		// Back from the packed blocks, scalar, by four, and interleaved.
		scales := []float32{0.75, 1, 3, 0.0371}
		half := make([]uint16, rows)
		for i, s := range scales {
			half[i] = pack.ToF16(s)
		}
		g := trellis.Geometry{Axis: 1, Out: rows, In: cols}
		m := trellis.Matrix{Params: p, Geometry: g, Codes: wantWords, Scales: half}
		f := make([]float32, len(x))
		if err := m.DecodeRows(f, 0, rows); err != nil {
			t.Fatal(err)
		}
		inter := make([]uint32, len(wantWords))
		if err := trellis.Interleave(inter, wantWords, rows, cols, p); err != nil {
			t.Fatal(err)
		}
		code := map[trellis.Code]uint32{trellis.OneMAD: shaders.Code1MAD, trellis.ThreeInst: shaders.Code3INST, trellis.Rand: shaders.CodeLUT}[c.code]
		args := shaders.TrellisExpandArgs{Codes: compact(perRow * n), Scales: compact(1), Rows: rows, Cols: uint32(cols), Block: uint32(c.T), StateBits: uint32(c.L), Bits: uint32(c.k), Code: code}
		args.Out = compact(cols)
		got := make([]byte, 2*len(x))
		b.run(t, "trellis_states", shaders.ElementGrid(cols, rows, 1024), 0, &args, words(wantWords), got)
		diff(t, fmt.Sprintf("%+v trellis_states", c), got, words(want), 0)
		for i, dt := range dtypes {
			wantOut := tensor(dt, f, rows, cols)
			for _, interleaved := range []uint32{0, 1} {
				src := wantWords
				args.Codes = compact(perRow * n)
				if interleaved == 1 {
					src = inter
					args.Codes = shaders.View{S1: int64(rows * 2 * n), S2: int64(2 * n), S3: 1}
				}
				args.Interleaved, args.OutType, args.RowTile = interleaved, dtype(dt), 2
				kernels := []string{fmt.Sprintf("trellis_expand_k%d", c.k)}
				if c.L+3*c.k <= 33 {
					kernels = append(kernels, fmt.Sprintf("trellis_expand4_k%d", c.k))
					if interleaved == 1 {
						kernels = append(kernels, fmt.Sprintf("trellis_tile_k%d", c.k))
					}
				}
				for _, name := range kernels {
					used[name] = true
					grid := shaders.ElementGrid(cols, rows, 1024)
					if strings.Contains(name, "expand4") {
						grid = shaders.ElementGrid(cols/4, rows, 1024)
					} else if strings.Contains(name, "tile") {
						grid = shaders.TileGrid(rows, cols, int(args.RowTile), 1024)
					}
					args.Wide = uint32(i % 2)
					args.Out = compact(cols)
					out := make([]byte, len(wantOut.Data))
					b.run(t, name, grid, 0, &args, words(src), words(half), words(table), out)
					diff(t, fmt.Sprintf("%+v %s %v interleaved=%d", c, name, dt, interleaved), out, wantOut.Data, dt)
					// Transposed: axis 0.
					args.Wide = 0
					args.Out = shaders.View{S2: 1, S3: rows}
					b.run(t, name, grid, 0, &args, words(src), words(half), words(table), out)
					diff(t, fmt.Sprintf("%+v %s %v transposed", c, name, dt), gather(out, args.Out, dt.Size(), rows, 1, rows, cols), wantOut.Data, dt)
					elements += 2 * len(x)
				}
			}
		}
		// A column range.
		args.Interleaved, args.Codes, args.OutType, args.Col0, args.Cols = 0, compact(perRow*n), shaders.TypeF32, 4, uint32(cols-8)
		args.Out = compact(cols - 8)
		out := make([]byte, 4*rows*(cols-8))
		b.run(t, fmt.Sprintf("trellis_expand_k%d", c.k), shaders.ElementGrid(cols-8, rows, 1024), 0, &args, words(wantWords), words(half), words(table), out)
		diff(t, fmt.Sprintf("%+v columns", c), out, gather(words(f), shaders.View{Base: 4, S2: int64(cols), S3: 1}, 4, rows, 1, rows, cols-8), codec.F32)
	}
	for _, v := range shaders.Variants() {
		// Only the specialised kernels ask for all 1024 threads, and a device may have fewer.
		if v.Op == "trellis_encode" && !used[v.Name] && b.device.Info().MaxThreads[0] >= 1024 {
			t.Errorf("%s did not run", v.Name)
		}
	}
	t.Logf("%d elements", elements)
}

func TestKernelTrellisRows(t *testing.T) {
	b := open(t)
	for _, rule := range []trellis.ScaleRule{trellis.RMS, trellis.Refit} {
		for _, pol := range []trellis.Policy{trellis.Finite, trellis.Compat} {
			for k := 1; k <= 4; k++ {
				p := trellis.Params{L: 8, K: k, T: 32, Scale: rule, Policy: pol}
				enc, err := trellis.NewEncoder(p)
				if err != nil {
					t.Fatal(err)
				}
				table, err := trellis.AppendValues(nil, p.Code, p.L)
				if err != nil {
					t.Fatal(err)
				}
				const rows, cols = 9, 96
				x := samples(rows, cols, uint64(k))
				for i := 4 * cols; i < 5*cols; i++ {
					x[i] = 0
				}
				var m trellis.Matrix
				if err := enc.Encode(&m, nil, x, trellis.Geometry{Axis: 1, Out: rows, In: cols}); err != nil {
					t.Fatal(err)
				}
				ss := 0.0
				for _, f := range table {
					ss += float64(f) * float64(f)
				}
				alpha := float32(1)
				if rule == trellis.Refit {
					alpha = []float32{7. / 8, 33. / 32, 35. / 32, 73. / 64}[k-1]
				}
				sa := shaders.TrellisScalesArgs{W: compact(cols), Scales: compact(1), States: compact(cols), Rows: rows, Cols: cols,
					InverseCodeRMS: float32(1 / math.Sqrt(ss/float64(len(table)))), Factor: alpha}
				if pol == trellis.Compat {
					sa.Policy = shaders.PolicyCompat
				}
				scales, states, status := make([]byte, 2*rows), make([]byte, 2*len(x)), clearStatus()
				b.run(t, "trellis_scales", shaders.LaneGrid(rows, 1024), 0, &sa, words(x), scales, status)
				plan := b.viterbi(t, p.L, k, p.T, 1024, shaders.ThreadgroupLimit)
				n := p.BlockWords()
				codes := make([]byte, 4*len(m.Codes))
				b.run(t, plan.Kernel, shaders.Grid{Groups: [3]int{5, 1, 1}, Threads: [3]int{plan.Threads, 1, 1}}, plan.Bytes, &shaders.TrellisEncodeArgs{
					W: compact(cols), Scales: compact(1), Codes: compact(cols / p.T * n), States: compact(cols), SlotBytes: plan.SlotBytes,
					Blocks: rows * cols / uint32(p.T), RowBlocks: cols / uint32(p.T), Block: uint32(p.T), StateBits: uint32(p.L), Bits: uint32(k),
					Scaled: 1, TailBiting: 1, WriteCodes: 1, WriteStates: 1,
				}, words(x), scales, words(table), codes, states, make([]byte, 5*plan.SlotBytes), status)
				if rule == trellis.Refit {
					b.run(t, "trellis_refit", shaders.LaneGrid(rows, 1024), 0, &sa, words(x), states, words(table), scales)
				}
				if !bytes.Equal(status, clearStatus()) {
					t.Errorf("status %x", status)
				}
				if got := read[uint16](scales, rows); !slices.Equal(got, m.Scales) {
					t.Errorf("k=%d %v %v: scales %x, want %x", k, rule, pol, got, m.Scales)
				}
				diff(t, fmt.Sprintf("k=%d %v %v codes", k, rule, pol), codes, words(m.Codes), 0)
			}
		}
	}
}

func TestKernelCopy(t *testing.T) {
	b := open(t)
	for _, size := range []int{1, 2, 4} {
		name := fmt.Sprintf("copy_%d", size)
		dt := map[int]codec.DType{2: codec.BF16, 4: codec.F32}[size]
		const rows, d = 12, 37
		n := size
		if size == 1 {
			dt, n = codec.BF16, 2 // bytes: twice as many
		}
		in := tensor(dt, samples(rows, d, 9), 2, 3, 2, d)
		want := in.Data
		data, view, n1, n2 := strided(in)
		dim := d
		if size == 1 {
			data, want = in.Data, in.Data
			dim = d * n
			view = shaders.View{S0: int64(6 * dim), S1: int64(2 * dim), S2: int64(dim), S3: 1}
		}
		got := make([]byte, len(want))
		b.run(t, name, shaders.ElementGrid(dim, rows, b.maxThreads(t, name)), 0, &shaders.CopyArgs{X: view,
			Y: shaders.View{S0: int64(6 * dim), S1: int64(2 * dim), S2: int64(dim), S3: 1}, N1: uint32(n1), N2: uint32(n2), Rows: rows, Dim: uint32(dim)}, data, got)
		diff(t, name, got, want, 0)
	}
}

func TestKernelCanary(t *testing.T) {
	b := open(t)
	in, args := shaders.CanaryInput()
	out := make([]byte, shaders.CanaryLen)
	b.run(t, "canary", shaders.Grid{Groups: [3]int{1, 1, 1}, Threads: [3]int{32, 1, 1}}, 0, &args, in, out)
	flushes, err := shaders.CheckCanary(out)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the device flushes f32 subnormals: %t", flushes)
	// Every word is judged: one wrong bit in any is refused (but for the recorded one).
	for i := range len(out)/4 - 1 {
		bad := slices.Clone(out)
		bad[4*i] ^= 1
		if _, err := shaders.CheckCanary(bad); err == nil {
			t.Errorf("word %d is not judged", i)
		}
	}
}

// mutations are mistakes on copies of the sources; each must make the named test fail.
var mutations = []struct{ name, old, new, test string }{
	{"barrier between passes removed", "        threadgroup_barrier(mem_flags::mem_threadgroup);\n    }\n    if (m != 1)", "    }\n    if (m != 1)", "Hadamard"},
	{"barrier before the transform removed", "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    uint h = 1;", "    uint h = 1;", "Hadamard"},
	{"barrier of a Viterbi step removed", "        threadgroup_barrier(mem_flags::mem_threadgroup);\n        threadgroup float* swap", "        threadgroup float* swap", "Trellis$"},
	{"return before a barrier", "threadgroup float* buf = memory + in_group * a.dim;", "if (!active) { return; }\n    threadgroup float* buf = memory + in_group * a.dim;", "Hadamard"},
	{"tree from the other end", "for (ushort mask = 16; mask > 0; mask >>= 1) {\n        const float other = simd_shuffle_xor(q, mask);", "for (ushort mask = 1; mask < 32; mask <<= 1) {\n        const float other = simd_shuffle_xor(q, mask);", "Values"},
	{"wrong shuffle mask", "const float partner = simd_shuffle_xor(x[e], ushort(h));", "const float partner = simd_shuffle_xor(x[e], ushort(h ^ 1u));", "Hadamard"},
	{"tail guard dropped", "if (first >= a.dim || at.y >= a.rows) {", "if (first >= a.dim) {", "Pack"},
	{"one row too many", "const bool active = nth < a.rows;", "const bool active = nth <= a.rows;", "Keys"},
	{"fused key", "return shifted * scale;", "return fma(key_value(code, is_signed), scale, zero * scale);", "Keys"},
	{"fused metric", "const float product = x * f[i * Q + q];\n                const float e = product - squares[i * Q + q];", "const float e = fma(x, f[i * Q + q], -squares[i * Q + q]);", "Trellis$"},
	{"fused subtraction of the zero point", "float q = v / se;\n            q = q - zero;", "const float inverse = 1.0f / se;\n            float q = fma(v, inverse, -zero);", "Keys"},
	{"round for rint", "q = rint(q);", "q = round(q);", "Keys"},
	{"no canonical inputs", "return magnitude < 0x1f800000u ? 0.0f : x;", "return x;", "Values"},
	{"bf16 truncated", "return ushort((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);", "return ushort(u >> 16);", "Keys"},
	{"largest index reported", "atomic_fetch_min_explicit(status + word, index, memory_order_relaxed);", "atomic_store_explicit(status + word, index, memory_order_relaxed);", "Status"},
	{"strides of two dimensions exchanged", "long(r.x) * v.s0 + long(r.y) * v.s1", "long(r.x) * v.s1 + long(r.y) * v.s0", "Keys"},
	{"ties to the smallest predecessor", "if (g >= best) {", "if (g > best) {", "Trellis$"},
	{"decoder's matrix not transposed", "a.transposed != 0", "false", "Hadamard"},
	{"block without its wrap", "w + 1u == words ? 0u : w + 1u", "w + 1u == words ? w : w + 1u", "Trellis$"},
	{"threads swapped in the packed unit", "const uint word = u < 4 ? lo : hi;", "const uint word = u < 4 ? hi : lo;", "Values"},
}

const mutationVariable = "TURBOTRELLIS_MUTATION"

// mutate applies the mutation that the environment names, if it fits the source.
func mutate(source string) (string, error) {
	for _, m := range mutations {
		if m.name == os.Getenv(mutationVariable) {
			return strings.ReplaceAll(source, m.old, m.new), nil
		}
	}
	return source, nil
}

func TestMutationsAreCaught(t *testing.T) {
	if os.Getenv("TURBOTRELLIS_LONG") == "" {
		t.Skip("compiles a copy of the shaders for each mistake: set TURBOTRELLIS_LONG")
	}
	open(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutations {
		if !strings.Contains(shaders.Source(), m.old) {
			t.Errorf("%s: the sources no longer contain %q", m.name, m.old)
			continue
		}
		cmd := exec.Command(exe, "-test.run=^TestKernel"+m.test, "-test.short")
		cmd.Env = append(os.Environ(), mutationVariable+"="+m.name)
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Errorf("%s: not caught", m.name)
			continue
		}
		t.Logf("%s: %s", m.name, firstFailure(string(out)))
	}
}

// firstFailure picks the line that says what failed.
func firstFailure(out string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(line, "kernels_test.go") || strings.Contains(line, "hostmetal") {
			return strings.TrimSpace(line)
		}
	}
	return out
}

// BenchmarkKernel reports elements a second by the device's own clock.
func BenchmarkKernel(b *testing.B) {
	d := open(b)
	const rows, dim = 4096, 128
	x := words(samples(rows, dim, 1))
	view := func(n int) shaders.View { return compact(n) }
	type launch struct {
		name    string
		grid    shaders.Grid
		memory  int
		args    any
		buffers [][]byte
	}
	codes, scales := make([]byte, rows*dim*3/8), make([]byte, rows*8)
	for i := range codes {
		codes[i] = byte(i * 37)
	}
	for i := range scales {
		scales[i] = byte(0x30 + i%2*8)
	}
	table, err := trellis.AppendValues(nil, trellis.OneMAD, 12)
	if err != nil {
		b.Fatal(err)
	}
	plan := d.viterbi(b, 12, 2, 256, 1024, shaders.ThreadgroupLimit)
	const blocks = 8
	for _, l := range []launch{
		{"values_decode_b3", shaders.ElementGrid(dim/8, rows, 256), 0, &shaders.ValuesDecodeArgs{Codes: view(dim * 3 / 8), Scales: view(4), Out: view(dim), N1: 1, N2: rows, Rows: rows,
			Dim: dim, Group: 32, ScaleType: shaders.TypeF16, OutType: shaders.TypeBF16, Wide: 1}, [][]byte{codes, scales, make([]byte, rows*dim*2), levels(b, 3)}},
		{"values_encode_b3_d128", shaders.LaneGrid(rows, 256), 0, &shaders.ValuesEncodeArgs{X: view(dim), Codes: view(dim * 3 / 8), Scales: view(4), N1: 1, N2: rows, Rows: rows,
			Dim: dim, Group: 32, ScaleType: shaders.TypeF16, Norm: norm(dim)}, [][]byte{x, make([]byte, len(codes)), make([]byte, len(scales)), clearStatus(), levels(b, 3), signs(dim)}},
		{"keys_encode_s8", shaders.LaneGrid(rows, 256), 0, &shaders.KeysEncodeArgs{X: view(dim), Codes: view(dim), Scales: view(4), Zeros: view(4), N1: 1, N2: rows, Rows: rows,
			Dim: dim, Group: 32, ScaleType: shaders.TypeF16}, [][]byte{x, make([]byte, rows*dim), make([]byte, len(scales)), make([]byte, len(scales)), clearStatus()}},
		{"kv_inverse_b3_d128", shaders.LaneGrid(rows, 256), 0, &shaders.KVDecodeArgs{VCodes: view(dim * 3 / 8), VScales: view(4), VOut: view(dim), N1: 1, N2: rows, Rows: rows,
			VDim: dim, VGroup: 32, ScaleType: shaders.TypeF16, VType: shaders.TypeBF16, Norm: norm(dim)},
			[][]byte{nil, nil, nil, codes, scales, nil, make([]byte, rows*dim*2), levels(b, 3), signs(dim)}},
		{plan.Kernel, shaders.Grid{Groups: [3]int{blocks, 1, 1}, Threads: [3]int{plan.Threads, 1, 1}}, plan.Bytes, &shaders.TrellisEncodeArgs{W: view(256), Codes: view(16), States: view(256),
			SlotBytes: plan.SlotBytes, Blocks: blocks, RowBlocks: 1, Block: 256, StateBits: 12, Bits: 2, TailBiting: 1, WriteCodes: 1},
			[][]byte{x[:blocks*1024], nil, words(table), make([]byte, blocks*64), nil, make([]byte, blocks*plan.SlotBytes), clearStatus()}},
		{"trellis_expand4_k2", shaders.ElementGrid(dim*8/4, rows/8, 256), 0, &shaders.TrellisExpandArgs{Codes: view(dim / 2), Scales: view(1), Out: view(dim * 8), Rows: rows / 8, Cols: dim * 8,
			Block: 256, StateBits: 12, Bits: 2, OutType: shaders.TypeBF16, Wide: 1}, [][]byte{codes, scales, words(table), make([]byte, rows*dim*2)}},
	} {
		b.Run(l.name, func(b *testing.B) {
			n := rows * dim
			if l.name == plan.Kernel {
				n = blocks * 256
			}
			dispatch := gpu.Dispatch{Pipeline: d.pipeline(b, l.name), Args: shaders.Append(nil, l.args), Groups: l.grid.Groups, GroupSize: l.grid.Threads}
			if l.memory > 0 {
				dispatch.ThreadgroupMemory = []int{l.memory}
			}
			for _, data := range l.buffers {
				buf, err := d.device.NewBuffer(max(len(data), 4))
				if err != nil {
					b.Fatal(err)
				}
				defer buf.Release()
				copy(buf.Bytes(), data)
				dispatch.Buffers = append(dispatch.Buffers, gpu.Binding{Buffer: buf})
			}
			seconds := 0.0
			for b.Loop() {
				took, err := d.device.Run(dispatch)
				if err != nil {
					b.Fatal(err)
				}
				seconds += took.Seconds()
			}
			b.ReportMetric(float64(n)*float64(b.N)/seconds/1e6, "Melem/s")
		})
	}
}
