package affine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/internal/vectors"
	"github.com/turbotrellis/turbotrellis/pack"
)

var (
	dtypes    = []pack.DType{pack.F32, pack.F16, pack.BF16}
	rowBits   = []int{2, 3, 4, 5, 6, 8}
	rowGroups = []int{32, 64, 128}
)

func eachRowFormat(f func(f RowFormat, t pack.DType)) {
	for _, t := range dtypes {
		for _, b := range rowBits {
			for _, g := range rowGroups {
				f(RowFormat{b, g}, t)
			}
		}
	}
}

// TestRowVector compares with MLX's quantize and dequantize on a CPU.
func TestRowVector(t *testing.T) {
	file := vectors.Load(t, "affine_mlx.safetensors")
	weights, groups := 0, 0
	eachRowFormat(func(f RowFormat, dt pack.DType) {
		w := file.Bytes(t, "w."+dt.String())
		prefix := fmt.Sprintf("%v.b%d.g%d.", dt, f.Bits, f.Group)
		n := len(w) / dt.Size()
		packedLen, err := f.PackedLen(n)
		if err != nil {
			t.Fatal(err)
		}
		packed := make([]byte, packedLen)
		scales, biases := make([]byte, n/f.Group*dt.Size()), make([]byte, n/f.Group*dt.Size())
		if err := f.Quantize(packed, scales, biases, w, dt); err != nil {
			t.Fatalf("%s: %v", prefix, err)
		}
		out := make([]byte, len(w))
		if err := f.Dequantize(out, packed, scales, biases, dt); err != nil {
			t.Fatalf("%s: %v", prefix, err)
		}
		for part, got := range map[string][]byte{"packed": packed, "scales": scales, "biases": biases, "dequantized": out} {
			want := file.Bytes(t, prefix+part)
			if len(got) != len(want) {
				t.Fatalf("%s%s: %d bytes, want %d", prefix, part, len(got), len(want))
			}
			for i := range got {
				if got[i] != want[i] {
					t.Fatalf("%s%s: byte %d is %#02x, want %#02x", prefix, part, i, got[i], want[i])
				}
			}
		}
		weights += n
		groups += n / f.Group
	})
	t.Logf("compared %d weights, %d scales and biases", weights, groups)
	if weights == 0 {
		t.Error("no weight compared")
	}
}

// rowModel is docs/numerics.md §8 for one group, each operation in big.Float
// rounded once to float32.
func rowModel(f RowFormat, x []float32) (idx []byte, s, bias float32) {
	abs := func(v float32) float32 { return float32(math.Abs(float64(v))) }
	lo, hi := x[0], x[0]
	for _, v := range x {
		lo, hi = min(lo, v), max(hi, v)
	}
	n := map[int]float32{2: 3, 3: 7, 4: 15, 5: 31, 6: 63, 8: 255}[f.Bits]
	s = max(div(sub(hi, lo), n), 1e-7)
	low := abs(lo) > abs(hi)
	edge := hi
	if low {
		edge = lo
	} else {
		s = -s
	}
	if q0 := rint(div(edge, s)); q0 != 0 {
		s, bias = div(edge, q0), edge
	}
	for _, w := range x {
		idx = append(idx, byte(min(max(rint(div(sub(w, bias), s)), 0), n)))
	}
	return idx, s, bias
}

func encode(t pack.DType, x []float32) []byte {
	b := make([]byte, len(x)*t.Size())
	for i, v := range x {
		switch t {
		case pack.F32:
			binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
		case pack.F16:
			binary.LittleEndian.PutUint16(b[2*i:], pack.ToF16(v))
		case pack.BF16:
			binary.LittleEndian.PutUint16(b[2*i:], pack.ToBF16(v))
		}
	}
	return b
}

func decode(t pack.DType, b []byte) []float32 {
	x := make([]float32, len(b)/t.Size())
	for i := range x {
		switch t {
		case pack.F32:
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		case pack.F16:
			x[i] = pack.FromF16(binary.LittleEndian.Uint16(b[2*i:]))
		case pack.BF16:
			x[i] = pack.FromBF16(binary.LittleEndian.Uint16(b[2*i:]))
		}
	}
	return x
}

func TestRowModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 3))
	n, ties := 0, 0
	eachRowFormat(func(f RowFormat, dt pack.DType) {
		levels := float32(int(1)<<f.Bits - 1)
		groups := map[string]func(i int) float32{
			"normal":   func(int) float32 { return float32(rng.NormFloat64()) },
			"positive": func(int) float32 { return 1 + rng.Float32() },
			"negative": func(int) float32 { return -1 - rng.Float32() },
			"small":    func(int) float32 { return float32(rng.NormFloat64() * 1e-8) },
			"zero":     func(int) float32 { return 0 },
			"constant": func(int) float32 { return -0.37 },
			"equal": func(i int) float32 { // |lo| = |hi|
				return []float32{-1, 1, rng.Float32(), -rng.Float32()}[min(i, 2+i%2)]
			},
			// Scale −1 and bias N: every half is a tie.
			"halves": func(i int) float32 {
				switch i {
				case 0:
					return levels
				case 1:
					return 0
				}
				return float32(i%int(levels)) + 0.5
			},
		}
		for name, fill := range groups {
			x := make([]float32, f.Group)
			for i := range x {
				x[i] = fill(i)
			}
			w := encode(dt, x)
			x = decode(dt, w)
			packed := make([]byte, f.groupBytes())
			scale, bias := make([]byte, dt.Size()), make([]byte, dt.Size())
			if err := f.Quantize(packed, scale, bias, w, dt); err != nil {
				t.Fatalf("%v %v %s: %v", f, dt, name, err)
			}
			idx := make([]byte, f.Group)
			if err := pack.Unpack(idx, packed, f.Bits); err != nil {
				t.Fatal(err)
			}
			wantIdx, wantScale, wantBias := rowModel(f, x)
			if !bytes.Equal(scale, encode(dt, []float32{wantScale})) || !bytes.Equal(bias, encode(dt, []float32{wantBias})) {
				t.Fatalf("%v %v %s: scale, bias % x, % x; want %v, %v", f, dt, name, scale, bias, wantScale, wantBias)
			}
			if !bytes.Equal(idx, wantIdx) {
				t.Fatalf("%v %v %s: indices\n%v, want\n%v", f, dt, name, idx, wantIdx)
			}
			out := make([]byte, len(w))
			if err := f.Dequantize(out, packed, scale, bias, dt); err != nil {
				t.Fatal(err)
			}
			s, b := decode(dt, scale)[0], decode(dt, bias)[0]
			for i, q := range idx {
				if k := float64(div(sub(x[i], wantBias), wantScale)); k-math.Floor(k) == 0.5 {
					ties++
				}
				p := decode(dt, encode(dt, []float32{mul(float32(q), s)}))[0]
				if want := encode(dt, []float32{add(p, b)}); !bytes.Equal(out[i*dt.Size():(i+1)*dt.Size()], want) {
					t.Fatalf("%v %v %s: weight %d is % x, want % x", f, dt, name, i, out[i*dt.Size():(i+1)*dt.Size()], want)
				}
			}
			n += f.Group
		}
	})
	t.Logf("compared %d weights, %d of them ties", n, ties)
}

func TestRowGuards(t *testing.T) {
	const guard = 0x5a
	guarded := func(n int) (buf, mid []byte) {
		buf = bytes.Repeat([]byte{guard}, n+16)
		return buf, buf[8 : 8+n : 8+n]
	}
	eachRowFormat(func(f RowFormat, dt pack.DType) {
		x := make([]float32, 3*f.Group)
		for i := range x {
			x[i] = float32(i%17) - 5
		}
		src := encode(dt, x)
		packedBuf, packed := guarded(3 * f.groupBytes())
		scaleBuf, scales := guarded(3 * dt.Size())
		biasBuf, biases := guarded(3 * dt.Size())
		outBuf, out := guarded(len(src))
		if err := errors.Join(f.Quantize(packed, scales, biases, src, dt), f.Dequantize(out, packed, scales, biases, dt)); err != nil {
			t.Fatal(err)
		}
		for _, b := range [][]byte{packedBuf, scaleBuf, biasBuf, outBuf} {
			if string(b[:8]) != strings.Repeat("\x5a", 8) || string(b[len(b)-8:]) != strings.Repeat("\x5a", 8) {
				t.Fatalf("%v %v: wrote outside a buffer", f, dt)
			}
		}
		if !bytes.Equal(src, encode(dt, x)) {
			t.Fatalf("%v %v: changed the weights", f, dt)
		}
	})
}

func TestRowErrors(t *testing.T) {
	f := RowFormat{4, 32}
	buf := func(n int) []byte { return make([]byte, n) }
	ones := make([]float32, 64)
	nan := append([]float32(nil), ones...)
	nan[33] = float32(math.NaN())
	inf := append([]float32(nil), ones...)
	inf[5] = float32(math.Inf(-1))
	several := append([]float32(nil), ones...)
	several[0], several[3], several[40] = inf[5], nan[33], nan[33]
	huge := append([]float32(nil), ones...)
	huge[40], huge[41] = math.MaxFloat32, -math.MaxFloat32
	for _, c := range []struct {
		f                         RowFormat
		packed, scales, biases, w []byte
		dt                        pack.DType
		want                      string
	}{
		{RowFormat{7, 32}, nil, nil, nil, nil, pack.F32, "of 7 bits"},
		{RowFormat{0, 32}, nil, nil, nil, nil, pack.F32, "of 0 bits"},
		{RowFormat{4, 16}, nil, nil, nil, nil, pack.F32, "groups of 16"},
		{RowFormat{}, nil, nil, nil, nil, pack.F32, "of 0 bits"},
		{f, nil, nil, nil, nil, 0, "DType(0)"},
		{f, buf(16), buf(2), buf(2), buf(63), pack.F16, "63 bytes"},
		{f, buf(20), buf(4), buf(4), buf(160), pack.F32, "40 weights"},
		{f, buf(15), buf(4), buf(4), buf(128), pack.F32, "16 bytes of indices, not 15"},
		{f, buf(17), buf(4), buf(4), buf(128), pack.F32, "16 bytes of indices, not 17"},
		{f, buf(16), buf(2), buf(4), buf(128), pack.F32, "not 2 and 4"},
		{f, buf(16), buf(4), buf(8), buf(128), pack.F32, "not 4 and 8"},
		{f, buf(32), buf(8), buf(8), encode(pack.F32, nan), pack.F32, "weight 33 is NaN"},
		{f, buf(32), buf(4), buf(4), encode(pack.F16, nan), pack.F16, "weight 33 is NaN"},
		{f, buf(32), buf(4), buf(4), encode(pack.BF16, inf), pack.BF16, "weight 5 is -Inf"},
		{f, buf(32), buf(8), buf(8), encode(pack.F32, several), pack.F32, "weight 0 is -Inf"},
		{f, buf(32), buf(8), buf(8), encode(pack.F32, huge), pack.F32, "range of group 1, -3.4028235e+38 to 3.4028235e+38, overflows"},
	} {
		err := c.f.Quantize(c.packed, c.scales, c.biases, c.w, c.dt)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want one with %q", c.f, err, c.want)
		}
		for _, b := range [][]byte{c.packed, c.scales, c.biases} {
			if !bytes.Equal(b, buf(len(b))) {
				t.Errorf("%v: wrote before the error %v", c.f, err)
			}
		}
	}
	if err := f.Dequantize(buf(128), buf(15), buf(4), buf(4), pack.F32); err == nil || !strings.Contains(err.Error(), "not 15") {
		t.Errorf("Dequantize: error %v", err)
	}
	if err := errors.Join(f.Quantize(nil, nil, nil, nil, pack.F32), f.Dequantize(nil, nil, nil, nil, pack.BF16)); err != nil {
		t.Errorf("no weights: %v", err)
	}
	if _, err := f.PackedLen(-32); err == nil {
		t.Error("PackedLen accepts a negative count")
	}
}

func TestRowAllocs(t *testing.T) {
	f := RowFormat{5, 64}
	w, packed, scales, biases := make([]byte, 512*2), make([]byte, 512/8*5), make([]byte, 16), make([]byte, 16)
	if n := testing.AllocsPerRun(50, func() {
		if err := errors.Join(f.Quantize(packed, scales, biases, w, pack.BF16), f.Dequantize(w, packed, scales, biases, pack.BF16)); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("allocates %v times", n)
	}
}

// No bytes make either direction panic, and only finite weights are accepted.
func FuzzRows(f *testing.F) {
	f.Add(uint8(0), uint8(0), uint8(1), []byte{1, 2, 3, 4, 5, 6, 7, 8})
	f.Add(uint8(5), uint8(2), uint8(2), bytes.Repeat([]byte{0x80, 0x7f}, 8))
	f.Fuzz(func(t *testing.T, bits, group, dtype uint8, data []byte) {
		rf := RowFormat{int(bits % 10), 32 << (group % 4)}
		dt := pack.DType(dtype % 4)
		if len(data) == 0 {
			return
		}
		if rf.Validate() != nil || dt == 0 {
			if rf.Quantize(data, data, data, data, dt) == nil {
				t.Fatalf("%v %v accepted", rf, dt)
			}
			return
		}
		w := make([]byte, 2*rf.Group*dt.Size())
		for i := range w {
			w[i] = data[i%len(data)]
		}
		packed, scales, biases := make([]byte, 2*rf.groupBytes()), make([]byte, 2*dt.Size()), make([]byte, 2*dt.Size())
		encodeErr := rf.Quantize(packed, scales, biases, w, dt)
		finite := true
		for _, v := range decode(dt, w) {
			finite = finite && !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0)
		}
		if encodeErr == nil && !finite {
			t.Fatal("accepted a weight that is not finite")
		}
		if encodeErr != nil && finite && !strings.Contains(encodeErr.Error(), "overflows") {
			t.Fatalf("finite weights: %v", encodeErr)
		}
		if err := rf.Dequantize(w, packed, scales, biases, dt); err != nil {
			t.Fatal(err)
		}
		if len(data) != len(w) && rf.Dequantize(data, packed, scales, biases, dt) == nil {
			t.Fatalf("%d bytes of weights accepted for %d", len(data), len(w))
		}
	})
}

func BenchmarkRows(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, 4096)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	w := encode(pack.BF16, x)
	f := RowFormat{4, 64}
	packed, scales, biases := make([]byte, 2048), make([]byte, 128), make([]byte, 128)
	run := func(name string, op func() error) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := op(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(x))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Melem/s")
		})
	}
	run("quantize", func() error { return f.Quantize(packed, scales, biases, w, pack.BF16) })
	run("dequantize", func() error { return f.Dequantize(w, packed, scales, biases, pack.BF16) })
}

// Of several weights that are not finite the first is named, wherever they lie in a group.
func TestFirstBadWeight(t *testing.T) {
	f := RowFormat{Bits: 4, Group: 32}
	for _, bad := range [][2]int{{0, 31}, {5, 9}, {30, 31}, {32, 33}, {40, 95}, {31, 64}} {
		w := make([]byte, 4*96)
		pack.F32.Store(w[4*bad[1]:], float32(math.Inf(1)))
		pack.F32.Store(w[4*bad[0]:], float32(math.NaN()))
		err := f.Quantize(make([]byte, 48), make([]byte, 12), make([]byte, 12), w, pack.F32)
		if want := fmt.Sprintf("weight %d is NaN", bad[0]); err == nil || err.Error() != want {
			t.Errorf("weights %v: %v, want %q", bad, err, want)
		}
	}
}
