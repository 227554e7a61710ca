package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/cpu"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/internal/vectors"
)

// TestVersion1 holds files without row codes and raw tokens to the bytes that they had before there was version 2.
func TestVersion1(t *testing.T) {
	src := vectors.ReadFile(t, "kv_minilm.safetensors")
	for _, test := range []struct {
		keys, values codec.Format
		odd          bool // other scales, policy and rule, and a layer less
		sum          string
	}{
		{codec.Q8_0, codec.Q3_0, false, "02f43e1d716881be9a94e37c8c1bdc31b52c8013fb4f8bcad8c2625cfe8e3791"},
		{codec.Uint8, codec.Q3_0, false, "1d092ddcb3c54c4bf8becdf3986627c0d4f434267b8fa8e0b57a18db8dde14c0"},
		{codec.Q5_0, codec.Q3_0, false, "ee9d45c7da5cefa5539f6e6b2cb0af3acf77f776efb54f4886ade4cae15156cc"},
		{codec.Q4_0, codec.Q3_0, false, "20caee8e21ece6e289940f06d6bcd7ac1fbe9a30e1007587d767faba02d9e0f6"},
		{codec.Q3_0, codec.Q3_0, false, "97ca1fde7e9382711adb66c734bb5df5219faf33861e2aaae6d5a5619dedf18f"},
		{codec.Q2_0, codec.Q3_0, false, "976e5f99aaa53936afd9805c833da61db77ac9c192b6ce23b2e59afcab4f3934"},
		{codec.Q4_0, codec.Q8_0, true, "a98a55d0b89dad0499641fb6152a0ea79e33cea35f8ba9a081aff3934bb6289a"},
		{codec.Q4_0, codec.Q5_0, true, "ca3b68df913315e15482058b120d861a4ff2b5765babb55717d821c3c9cfa0eb"},
		{codec.Q4_0, codec.Q4_0, true, "ec7463dd8df9bf7e9c4cd7d4e7b468a44d845ef514239dbc678fc0ce5c2ea8a1"},
		{codec.Q4_0, codec.Q2_0, true, "96627a69576e45a93d2c46a10d1db4df7789cbf65fd0f35b79c5c40f40828658"},
	} {
		o := EncodeOptions{Backend: cpu.New(cpu.Options{}), Params: codec.KVParams{Keys: test.keys, Values: test.values}}
		if test.odd {
			o.Params.ScaleType, o.Params.Policy, o.Params.Scale, o.Skip = codec.BF16, codec.Compat, codec.Search, LayerSet{3: true}
		}
		b, err := encode(t, src, o)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != test.sum {
			t.Errorf("keys %v, values %v: %x, want %s", test.keys, test.values, sum, test.sum)
		}
		if s, err := open(b); err != nil || s.Version() != 1 {
			t.Errorf("version %d, %v", s.Version(), err)
		}
	}
}

// fed is a backend that wants pieces of another size.
type fed struct {
	codec.Backend
	bytes int
}

func (f fed) Feed() codec.Feed { return codec.Feed{Bytes: f.bytes, Calls: 3} }

// noisy returns a tensor of type d: rows about a mean of their own per head, and in the raw tokens what no encoder
// takes.
func noisy(name string, d codec.DType, shape []int, e edges) tensor {
	r := rand.New(rand.NewPCG(uint64(len(name)), uint64(shape[len(shape)-1])))
	x := codec.NewTensor(d, shape...)
	dim, tokens := shape[len(shape)-1], shape[len(shape)-2]
	for i := range x.Len() {
		channel := i%dim + i/dim/max(1, tokens)
		v := float32(channel%7-3) + float32(r.NormFloat64())*float32(1+channel%3)
		token := i / dim % tokens
		if f := min(e.first, tokens); token < f || token >= tokens-min(e.last, tokens-f) {
			v = []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 1e30, v}[r.IntN(5)]
		}
		d.Store(x.Data[i*d.Size():], v)
	}
	return tensor{Name: name, DType: safetensors.DTypeOf(d), Shape: shape, Data: x.Data}
}

// tokensOf returns a copy of tokens from to from + n − 1 of x.
func tokensOf(x codec.Tensor, from, n int) codec.Tensor {
	last := len(x.Shape) - 1
	shape := slices.Clone(x.Shape)
	tokens, row := shape[last-1], shape[last]*x.DType.Size()
	shape[last-1] = n
	out := codec.NewTensor(x.DType, shape...)
	for l := range product(shape[:last-1]) {
		copy(out.Data[l*n*row:][:n*row], x.Data[(l*tokens+from)*row:])
	}
	return out
}

// TestRowCodes packs and restores with row codes, centres and raw tokens, in pieces of one row and more, and compares
// every stored and restored byte with the codec's, called on whole tensors, and with the source's.
func TestRowCodes(t *testing.T) {
	compared := 0
	for _, test := range []struct {
		keys, values   codec.Format
		centreK, centV bool
		e              edges
		shape          []int
		dimV           int
		d              codec.DType
	}{
		{codec.T4, codec.T4, true, false, edges{4, 0}, []int{1, 2, 40, 64}, 64, codec.BF16},
		{codec.R5, codec.R4, true, true, edges{4, 3}, []int{2, 3, 21, 32}, 96, codec.F16},
		{codec.T3, codec.T2, false, false, edges{0, 0}, []int{3, 17, 32}, 32, codec.F32},
		{codec.R2, codec.Q3_0, true, false, edges{0, 5}, []int{2, 19, 64}, 32, codec.F32},
		{codec.Q8_0, codec.T3, false, true, edges{2, 0}, []int{2, 2, 9, 96}, 128, codec.F32},
		{codec.Q4_0, codec.Q4_0, false, false, edges{1, 1}, []int{2, 9, 64}, 64, codec.F16}, // groups with raw tokens
		{codec.T4, codec.R3, true, true, edges{4, 9}, []int{3, 7, 32}, 32, codec.F32},       // nothing coded
		{codec.T4, codec.R3, true, true, edges{40, 9}, []int{3, 7, 32}, 32, codec.F32},
		{codec.T4, codec.R3, true, true, edges{4, 0}, []int{2, 0, 32}, 32, codec.F32}, // no tokens
		{codec.T4, codec.R3, true, true, edges{4, 2}, []int{0, 8, 32}, 32, codec.F32}, // no heads
		{codec.T2, codec.T2, true, true, edges{1, 0}, []int{30, 32}, 64, codec.F32},   // two dimensions
	} {
		k := noisy("k", test.d, test.shape, test.e)
		shapeV := slices.Clone(test.shape)
		shapeV[len(shapeV)-1] = test.dimV
		v := noisy("vv", test.d, shapeV, test.e)
		v.Name = "v"
		src := file(t, map[string]string{"own": "x"}, k, v, tensor{Name: "ids", DType: safetensors.I64, Shape: []int{1}, Data: []byte("12345678")})
		o := EncodeOptions{RawFirst: test.e.first, RawLast: test.e.last,
			Params: codec.KVParams{Keys: test.keys, Values: test.values, CentreKeys: test.centreK, CentreValues: test.centV}}
		var before []byte
		for _, feed := range []int{1, 1000, 1 << 20} {
			name := fmt.Sprintf("%v,%v,%v,%d,%d,%v", test.keys, test.values, test.shape, test.e.first, test.e.last, feed)
			o.Backend = fed{cpu.New(cpu.Options{Workers: 1}), feed}
			snap, err := encode(t, src, o)
			if err != nil {
				t.Fatal(name, err)
			}
			if before != nil && !bytes.Equal(snap, before) {
				t.Fatalf("%s: other bytes than in larger pieces", name)
			}
			before = snap
			s, err := open(snap)
			if err != nil || s.Version() != 2 {
				t.Fatal(name, err)
			}
			gotK, gotV, err := s.Read(0)
			if err != nil {
				t.Fatal(name, err)
			}
			rawK, rawV, err := s.ReadRaw(0)
			if err != nil {
				t.Fatal(name, err)
			}
			kv, err := ref.New().KV(params(t, s, 0))
			if err != nil {
				t.Fatal(name, err)
			}
			for i, d := range []codec.DType{0, codec.F32, codec.F16, codec.BF16} {
				var dst memory
				if _, err := s.Decode(t.Context(), &dst, DecodeOptions{Backend: o.Backend, DType: d}); err != nil {
					t.Fatal(name, err)
				}
				out, err := safetensors.NewFile(bytes.NewReader(dst.Data), int64(len(dst.Data)))
				if err != nil {
					t.Fatal(name, err)
				}
				if diff := cmp.Diff(map[string]string{"own": "x"}, out.Metadata()); diff != "" {
					t.Error(diff)
				}
				if d == 0 {
					d = test.d
				}
				for _, side := range []struct {
					tensor
					raw     RawRows
					check   func(x codec.Tensor) string
					decoded func(out codec.Tensor) error
				}{{k, rawK, func(x codec.Tensor) string {
					want := codec.Keys{}
					if test.centreK {
						want.Centre = mustCentre(t, x)
					}
					if err := kv.EncodeKeys(&want, x); err != nil {
						t.Fatal(name, err)
					}
					return diffKeys(want, gotK)
				}, func(out codec.Tensor) error { return kv.DecodeKeys(out, gotK) }},
					{v, rawV, func(x codec.Tensor) string {
						want := codec.Values{}
						if test.centV {
							want.Centre = mustCentre(t, x)
						}
						if err := kv.EncodeValues(&want, x); err != nil {
							t.Fatal(name, err)
						}
						return diffKeys(codec.Keys(keysOf(want)), keysOf(gotV))
					}, func(out codec.Tensor) error { return kv.DecodeValues(out, gotV) }}} {
					x := codec.Tensor{DType: test.d, Shape: side.Shape, Data: side.Data}
					tokens := side.Shape[len(side.Shape)-2]
					f := min(test.e.first, tokens)
					l := min(test.e.last, tokens-f)
					coded := tokensOf(x, f, tokens-f-l)
					if i > 0 {
						// What is packed does not depend on d.
					} else if diff := side.check(coded); diff != "" {
						t.Fatalf("%s: %s: packed form differs:\n%s", name, side.Name, diff)
					}
					for _, raw := range []struct {
						keeps int
						got   codec.Tensor
						want  codec.Tensor
					}{{test.e.first, side.raw.First, tokensOf(x, 0, f)}, {test.e.last, side.raw.Last, tokensOf(x, tokens-l, l)}} {
						if raw.keeps > 0 && (!bytes.Equal(raw.got.Data, raw.want.Data) || !slices.Equal(raw.got.Shape, raw.want.Shape) || raw.got.DType != test.d) {
							t.Fatalf("%s: %s: raw tokens differ", name, side.Name)
						}
					}
					restored, err := out.AppendTensor(nil, side.Name)
					if err != nil {
						t.Fatal(name, err)
					}
					got := codec.Tensor{DType: d, Shape: side.Shape, Data: restored}
					want := codec.NewTensor(d, coded.Shape...)
					if err := side.decoded(want); err != nil {
						t.Fatal(name, err)
					}
					if !bytes.Equal(tokensOf(got, f, tokens-f-l).Data, want.Data) {
						t.Fatalf("%s: %s as %v: coded tokens differ", name, side.Name, d)
					}
					for _, part := range [][2]int{{0, f}, {tokens - l, l}} {
						a, b := tokensOf(x, part[0], part[1]), tokensOf(got, part[0], part[1])
						if d == test.d && !bytes.Equal(a.Data, b.Data) {
							t.Fatalf("%s: %s: raw tokens are restored with other bits", name, side.Name)
						}
						for i := range a.Len() {
							if a, b := a.DType.Load(a.Data[i*a.DType.Size():]), d.Load(b.Data[i*d.Size():]); !sameAs(a, b, d) {
								t.Fatalf("%s: %s: raw element %v is restored to %v as %v", name, side.Name, a, d, b)
							}
						}
					}
					compared += len(restored)
				}
			}
		}
	}
	if compared == 0 {
		t.Error("nothing compared")
	}
}

func mustCentre(t *testing.T, x codec.Tensor) codec.Centre {
	c, err := codec.NewCentre(x)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func keysOf(v codec.Values) codec.Keys {
	return codec.Keys{Shape: v.Shape, Codes: v.Codes, Scales: v.Scales, Centre: v.Centre}
}

// diffKeys compares what is packed, whatever slices are nil.
func diffKeys(a, b codec.Keys) string {
	for _, k := range []*codec.Keys{&a, &b} {
		for _, s := range []*[]byte{&k.Codes, &k.Scales, &k.Zeros, &k.Centre.Mean.Data, &k.Centre.Gain.Data} {
			if len(*s) == 0 {
				*s = nil
			}
		}
	}
	return cmp.Diff(a, b)
}

// sameAs reports whether b is a rounded to d under Finite.
func sameAs(a, b float32, d codec.DType) bool {
	switch x := float64(a); {
	case a != a:
		return b != b
	case d == codec.F16 && !math.IsInf(x, 0) && math.Abs(x) >= 65520:
		return float64(b) == math.Copysign(65504, x)
	default:
		want := make([]byte, 4)
		d.Store(want, a)
		return d.Load(want) == b
	}
}

// TestGivenCentres packs with centres from a file, broadcast ones among them, and with those of another snapshot.
func TestGivenCentres(t *testing.T) {
	shape := []int{2, 3, 10, 32}
	k, v := noisy("k", codec.F32, shape, edges{}), noisy("v", codec.F32, shape, edges{})
	src := file(t, nil, k, v)
	channels := func(positive bool, shape ...int) tensor {
		n := product(shape)
		data := make([]byte, 2*n)
		for i := range n {
			x := float32(i%11-5) / 4
			if positive {
				x = 0.5 + float32(i%5)/8
			}
			codec.F16.Store(data[2*i:], x)
		}
		return tensor{Name: map[bool]string{false: "k.mean", true: "k.gain"}[positive], DType: safetensors.F16, Shape: shape, Data: data}
	}
	for _, lead := range [][]int{{2, 3}, {1, 3}, {2, 1}, {1, 1}} {
		mean, gain := channels(false, append(lead, 1, 32)...), channels(true, append(lead, 1, 32)...)
		b := file(t, nil, mean, gain, tensor{Name: "other.mean", DType: safetensors.U8, Shape: []int{1}, Data: []byte{1}})
		centres, err := ReadCentres(bytes.NewReader(b), int64(len(b)))
		if err != nil || len(centres) != 1 {
			t.Fatal(centres, err)
		}
		for _, feed := range []int{200, 3000, 1 << 20} {
			o := EncodeOptions{Backend: fed{ref.New(), feed}, Params: codec.KVParams{Keys: codec.R3, Values: codec.R2, CentreKeys: true}, Centres: centres}
			snap, err := encode(t, src, o)
			if err != nil {
				t.Fatal(err)
			}
			s, err := open(snap)
			if err != nil {
				t.Fatal(err)
			}
			got, _, err := s.Read(0)
			if err != nil {
				t.Fatal(err)
			}
			kv, err := ref.New().KV(params(t, s, 0))
			if err != nil {
				t.Fatal(err)
			}
			want := codec.Keys{Centre: codec.Centre{
				Mean: codec.Tensor{DType: codec.F16, Shape: mean.Shape, Data: mean.Data}, Gain: codec.Tensor{DType: codec.F16, Shape: gain.Shape, Data: gain.Data}}}
			if err := kv.EncodeKeys(&want, codec.Tensor{DType: codec.F32, Shape: shape, Data: k.Data}); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Codes, want.Codes) || !bytes.Equal(got.Scales, want.Scales) {
				t.Fatalf("centres of %v in pieces of %d: other codes", lead, feed)
			}
			// The snapshot's own centres give the same file.
			own, err := ReadCentres(bytes.NewReader(snap), int64(len(snap)))
			if err != nil {
				t.Fatal(err)
			}
			o.Centres = own
			if again, err := encode(t, src, o); err != nil || !bytes.Equal(again, snap) {
				t.Fatalf("with the snapshot's centres: %v", err)
			}
		}
	}
	for _, test := range []struct {
		name string
		c    map[string]codec.Centre
		err  error
		text string
	}{
		{"none", map[string]codec.Centre{}, ErrNoTensor, `no centre is given for tensor "k"`},
		{"rank", map[string]codec.Centre{"k": centreOf(channels(false, 1, 32), channels(true, 1, 32))}, codec.ErrShape, "no centre of tokens"},
		{"heads", map[string]codec.Centre{"k": centreOf(channels(false, 2, 2, 1, 32), channels(true, 2, 2, 1, 32))}, codec.ErrShape, "[2 2 1 32]"},
		{"tokens", map[string]codec.Centre{"k": centreOf(channels(false, 2, 3, 10, 32), channels(true, 2, 3, 10, 32))}, codec.ErrShape, "[2 3 10 32]"},
		{"two shapes", map[string]codec.Centre{"k": centreOf(channels(false, 1, 3, 1, 32), channels(true, 2, 3, 1, 32))}, codec.ErrShape, "its gain"},
		{"gain of 0 or less", map[string]codec.Centre{"k": centreOf(channels(false, 1, 3, 1, 32), channels(false, 1, 3, 1, 32))}, codec.ErrParams, `"k.gain": element 0`},
	} {
		o := EncodeOptions{Backend: ref.New(), Params: codec.KVParams{Keys: codec.R3, Values: codec.R2, CentreKeys: true}, Centres: test.c}
		if b, err := encode(t, src, o); !errors.Is(err, test.err) || !errors.Is(err, ErrCentre) || !strings.Contains(err.Error(), test.text) || len(b) > 0 {
			t.Errorf("%s: %v after %d bytes", test.name, err, len(b))
		}
	}
	if _, err := ReadCentres(bytes.NewReader(src), int64(len(src))); !errors.Is(err, ErrNoTensor) {
		t.Error(err)
	}
}

func centreOf(mean, gain tensor) codec.Centre {
	return codec.Centre{Mean: codec.Tensor{DType: codec.F16, Shape: mean.Shape, Data: mean.Data}, Gain: codec.Tensor{DType: codec.F16, Shape: gain.Shape, Data: gain.Data}}
}

// TestRowCodeErrors finds what cannot be packed at its place in the whole tensor, whatever the pieces.
func TestRowCodeErrors(t *testing.T) {
	shape := []int{2, 3, 10, 32}
	clean := func(name string) tensor { return noisy(name, codec.F32, shape, edges{}) }
	at := (1*3+2)*10*32 + 5*32 + 7
	spoiled := func(name string, x float32) tensor {
		s := clean(name)
		codec.F32.Store(s.Data[4*at:], x)
		return s
	}
	for _, feed := range []int{100, 700, 1500, 9000, 1 << 20} {
		for _, test := range []struct {
			name string
			k, v tensor
			err  error
			text string
		}{
			{"NaN under a centre", spoiled("k", float32(math.NaN())), clean("v"), codec.ErrNonFinite, fmt.Sprintf(`"k": element %d`, at)},
			{"NaN", clean("k"), spoiled("v", float32(math.NaN())), codec.ErrNonFinite, fmt.Sprintf(`"v": element %d`, at)},
			{"scale", clean("k"), spoiled("v", 1e9), codec.ErrScaleOverflow, fmt.Sprintf(`"v": element %d`, at-7)},
		} {
			o := EncodeOptions{Backend: fed{ref.New(), feed}, Params: codec.KVParams{Keys: codec.R3, Values: codec.R2, CentreKeys: true}, RawFirst: 2, RawLast: 1}
			if _, err := encode(t, file(t, nil, test.k, test.v), o); !errors.Is(err, test.err) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("%s in pieces of %d: %v, want %q", test.name, feed, err, test.text)
			}
		}
	}
	src := file(t, nil, clean("k"), clean("v"))
	beyond := int64(math.MaxInt32) + 1 // negative as an int of 32 bits
	for _, e := range []edges{{-1, 0}, {0, -1}, {int(beyond), 0}} {
		o := options()
		o.RawFirst, o.RawLast = e.first, e.last
		if _, err := encode(t, src, o); !errors.Is(err, ErrArgument) {
			t.Errorf("%v: %v", e, err)
		}
	}
	o := options()
	o.RawFirst = 1
	taken := file(t, nil, clean("k"), clean("v"), tensor{Name: "v.first", DType: safetensors.U8, Shape: []int{1}, Data: []byte{0}})
	if _, err := encode(t, taken, o); !errors.Is(err, ErrSource) || !strings.Contains(err.Error(), `"v.first"`) {
		t.Error(err)
	}
	o.RawFirst = 0
	if _, err := encode(t, taken, o); err != nil {
		t.Error("a name that this snapshot does not need:", err)
	}
}

// version2Snapshot returns a good snapshot of version 2, and its file.
func version2Snapshot(t testing.TB) ([]byte, *safetensors.File) {
	src := file(t, nil, noisy("0.k", codec.F32, []int{2, 6, 32}, edges{1, 1}), noisy("0.v", codec.F32, []int{2, 6, 64}, edges{1, 1}), f32("other", []int{3}, wave))
	snap, err := encode(t, src, EncodeOptions{Backend: ref.New(), Params: codec.KVParams{Keys: codec.T4, Values: codec.R5, CentreKeys: true}, RawFirst: 1, RawLast: 1})
	if err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.NewFile(bytes.NewReader(snap), int64(len(snap)))
	if err != nil {
		t.Fatal(err)
	}
	return snap, f
}

// TestVersion2Refuses changes one thing of a good snapshot at a time.
func TestVersion2Refuses(t *testing.T) {
	_, f := version2Snapshot(t)
	rebuilt := func(meta func(map[string]string), keep func(tensor) []tensor) []byte {
		m := f.Metadata()
		meta(m)
		var tensors []tensor
		for _, in := range f.Tensors() {
			data, err := f.AppendTensor(nil, in.Name)
			if err != nil {
				t.Fatal(err)
			}
			tensors = append(tensors, keep(tensor{Name: in.Name, DType: in.DType, Shape: in.Shape, Data: data})...)
		}
		return file(t, m, tensors...)
	}
	all := func(x tensor) []tensor { return []tensor{x} }
	same := func(map[string]string) {}
	if _, err := open(rebuilt(same, all)); err != nil {
		t.Fatalf("the unchanged snapshot: %v", err)
	}
	replaced := func(old, new string) []byte {
		return rebuilt(func(m map[string]string) {
			s := strings.Replace(m[kvKey], old, new, 1)
			if s == m[kvKey] {
				t.Fatalf("%q is not in %s", old, m[kvKey])
			}
			m[kvKey] = s
		}, all)
	}
	without := func(name string) []byte {
		return rebuilt(same, func(x tensor) []tensor {
			if x.Name == name {
				return nil
			}
			return all(x)
		})
	}
	for _, test := range []struct {
		name string
		b    []byte
		text string
	}{
		{"as version 1", rebuilt(func(m map[string]string) { m[versionKey] = "1" }, all), `unknown field`},
		{"code", replaced(`"code":"trellis"`, `"code":"Trellis"`), `code "Trellis"`},
		{"bits of a trellis", replaced(`"bits":4,"code":"trellis"`, `"bits":5,"code":"trellis"`), `"trellis" of 5 bits`},
		{"bits of levels", replaced(`"bits":5,"code":"levels"`, `"bits":8,"code":"levels"`), `"levels" of 8 bits`},
		{"signed", replaced(`"code":"trellis"`, `"signed":true,"code":"trellis"`), "not signed"},
		{"another code", replaced(`"code":"trellis"`, `"code":"levels"`), ""}, // same planes: see below
		{"no code", replaced(`"code":"trellis",`, ``), "has no centre"},
		{"values of groups", replaced(`,"code":"levels"`, ``), "0.v.scales"},
		{"not centred", replaced(`,"centred":true`, ``), "0.k."},
		{"centred", replaced(`"code":"levels"`, `"code":"levels","centred":true`), "0.v."},
		{"raw first", replaced(`"raw_first":1`, `"raw_first":2`), "0.k."},
		{"no raw first", replaced(`"raw_first":1,`, ``), "0.k."},
		{"raw first below 0", replaced(`"raw_first":1`, `"raw_first":-1`), "-1 first"},
		{"raw last of 2^31", replaced(`"raw_last":1`, `"raw_last":2147483648`), "2147483648"},
		{"fraction", replaced(`"raw_last":1`, `"raw_last":1.0`), "raw_last"},
		{"head dimension", replaced(`[2,6,32]`, `[2,6,33]`), "33"},
		{"mean missing", without("0.k.mean"), "0.k.mean"},
		{"gain missing", without("0.k.gain"), "0.k.gain"},
		{"first missing", without("0.v.first"), "0.v.first"},
		{"last missing", without("0.k.last"), "0.k.last"},
		{"last of another type", rebuilt(same, func(x tensor) []tensor {
			if x.Name == "0.k.last" {
				x.DType = safetensors.U32
			}
			return all(x)
		}), "0.k.last"},
	} {
		if test.text == "" {
			if _, err := open(test.b); err != nil {
				t.Errorf("%s: %v", test.name, err)
			}
			continue
		}
		if _, err := open(test.b); !errors.Is(err, ErrSnapshot) || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: %v, want %q", test.name, err, test.text)
		}
	}
	// What only decoding sees.
	for _, test := range []struct {
		tensor string
		at     int
		b      []byte
		text   string
	}{
		{"0.k.scales", 5, []byte{248}, `"0.k.scales": element 5: `},
		{"0.v.scales", 0, []byte{255}, `"0.v.scales": element 0: `},
		{"0.k.mean", 2 * 40, []byte{0, 0x7c}, `"0.k.mean": element 40: `},
		{"0.k.gain", 2 * 40, []byte{0, 0}, `"0.k.gain": element 40: `},
		{"0.k.gain", 2, []byte{0, 0xbc}, `"0.k.gain": element 1: `},
		{"0.k.gain", 2, []byte{1, 0x7e}, `"0.k.gain": element 1: `},
	} {
		b := rebuilt(same, func(x tensor) []tensor {
			if x.Name == test.tensor {
				copy(x.Data[test.at:], test.b)
			}
			return all(x)
		})
		for _, feed := range []int{1, 1 << 20} {
			s, err := open(b)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Decode(t.Context(), new(memory), DecodeOptions{Backend: fed{ref.New(), feed}}); !errors.Is(err, ErrSnapshot) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("%s: %v, want %q", test.tensor, err, test.text)
			}
		}
	}
}

// TestDefaultBits holds the formats of the command's default preset to their price on a real cache: 4 bits, a byte a
// row, the raw tokens and the centres.
func TestDefaultBits(t *testing.T) {
	src := vectors.ReadFile(t, "kv_minilm.safetensors")
	var dst memory
	sum, err := Encode(t.Context(), &dst, bytes.NewReader(src), int64(len(src)), EncodeOptions{
		Backend: cpu.New(cpu.Options{}), Params: codec.KVParams{Keys: codec.T4, Values: codec.T4, CentreKeys: true}, RawFirst: 4})
	if err != nil {
		t.Fatal(err)
	}
	const tokens, dim = 256, 32
	rows := (float64(tokens-4)*(4*dim+8) + 4*16*dim) / (tokens * dim)
	if got := sum.Values.Bits(); math.Abs(got-rows) > 1e-9 {
		t.Errorf("values take %v bits, want %v", got, rows)
	}
	if got, want := sum.Keys.Bits(), rows+2*16/float64(tokens); math.Abs(got-want) > 1e-9 {
		t.Errorf("keys take %v bits, want %v", got, want)
	}
	payload := int64(0)
	f, err := safetensors.NewFile(bytes.NewReader(dst.Data), int64(len(dst.Data)))
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range f.Tensors() {
		payload += in.Size
	}
	if payload != sum.Total().Packed {
		t.Errorf("%d bytes in the file, %d said", payload, sum.Total().Packed)
	}
	// 4 bits of the row trellis on Gaussian rows come to 22.2 dB; real rows are not as even.
	out, err := decode(t, dst.Data, DecodeOptions{DType: codec.F32})
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range vectors.Load(t, "kv_minilm.safetensors") {
		got, err := out.AppendTensor(nil, name)
		if err != nil {
			t.Fatal(err)
		}
		var noise, signal float64
		for i := range len(x.Data) / 2 {
			v := float64(codec.F16.Load(x.Data[2*i:]))
			e := float64(codec.F32.Load(got[4*i:])) - v
			noise, signal = noise+e*e, signal+v*v
		}
		if db := 10 * math.Log10(signal/noise); db < 20 {
			t.Errorf("%s: %.1f dB", name, db)
		}
	}
}

// TestCancelCentre ends the context while a centre is computed.
func TestCancelCentre(t *testing.T) {
	src := file(t, nil, noisy("k", codec.F32, []int{1, 50, 32}, edges{}), noisy("v", codec.F32, []int{1, 50, 32}, edges{}))
	stop := errors.New("stop")
	for n := range 8 {
		ctx, cancel := context.WithCancelCause(t.Context())
		left := n
		o := EncodeOptions{Backend: fed{ref.New(), 1000}, Params: codec.KVParams{Keys: codec.R3, Values: codec.R2, CentreKeys: true}}
		_, err := Encode(ctx, new(memory), readerAt(func(p []byte, off int64) (int, error) {
			if off > 200 { // beyond the header
				if left--; left < 0 {
					cancel(stop)
				}
			}
			return bytes.NewReader(src).ReadAt(p, off)
		}), int64(len(src)), o)
		if err != stop {
			t.Errorf("stopped at read %d: %v", n, err)
		}
	}
}

type readerAt func(p []byte, off int64) (int, error)

func (r readerAt) ReadAt(p []byte, off int64) (int, error) { return r(p, off) }

// FuzzReadCentres packs with the centres of arbitrary files: what is taken restores.
func FuzzReadCentres(f *testing.F) {
	shape := []int{2, 3, 32}
	src := file(f, nil, noisy("k", codec.F32, shape, edges{}), noisy("v", codec.F32, shape, edges{}))
	mean := make([]byte, 2*32)
	gain := bytes.Repeat([]byte{0, 0x3c}, 32)
	for _, lead := range []int{1, 2} {
		f.Add(file(f, nil, tensor{Name: "k.mean", DType: safetensors.F16, Shape: []int{lead, 1, 32}, Data: bytes.Repeat(mean, lead)},
			tensor{Name: "k.gain", DType: safetensors.F16, Shape: []int{lead, 1, 32}, Data: bytes.Repeat(gain, lead)}))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		centres, err := ReadCentres(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		snap, err := encode(t, src, EncodeOptions{Backend: ref.New(), Params: codec.KVParams{Keys: codec.R2, Values: codec.R2, CentreKeys: true}, Centres: centres})
		if err != nil {
			return
		}
		if _, err := decode(t, snap, DecodeOptions{}); err != nil {
			t.Error(err)
		}
	})
}
