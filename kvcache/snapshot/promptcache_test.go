package snapshot

import (
	"bytes"
	"errors"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/pack"
)

// A prompt cache that mlx-lm wrote is packed without being told its names, and what is restored is a prompt cache
// again: the same tensors, types, shapes and metadata, and the offsets bit for bit.
func TestPromptCache(t *testing.T) {
	src, err := os.ReadFile("testdata/mlx_prompt_cache.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	packed, err := encode(t, src, options())
	if err != nil {
		t.Fatal(err)
	}
	s, err := open(packed)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range s.Layers() {
		names = append(names, l.Keys.Name, l.Values.Name)
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"0.0", "0.1", "1.0", "1.1", "2.0", "2.1"}) {
		t.Fatal(names)
	}
	f, err := decode(t, packed, DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := safetensors.NewFile(bytes.NewReader(src), int64(len(src)))
	if err != nil {
		t.Fatal(err)
	}
	for key, v := range in.Metadata() {
		if f.Metadata()[key] != v {
			t.Errorf("metadata %s: %q, want %q", key, f.Metadata()[key], v)
		}
	}
	for _, want := range in.Tensors() {
		got, ok := f.Lookup(want.Name)
		if !ok || got.DType != want.DType || !slices.Equal(got.Shape, want.Shape) {
			t.Errorf("%s: %+v, want %+v", want.Name, got, want)
			continue
		}
		a, err := in.AppendTensor(nil, want.Name)
		b, err2 := f.AppendTensor(nil, want.Name)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		if want.DType != safetensors.BF16 {
			if !bytes.Equal(a, b) {
				t.Errorf("%s: %x, want %x", want.Name, b, a)
			}
			continue
		}
		for i := 0; i < len(a); i += 2 {
			if x, y := float64(codec.BF16.Load(a[i:])), float64(codec.BF16.Load(b[i:])); math.Abs(x-y) > 1 {
				t.Fatalf("%s: element %d is %v, was %v", want.Name, i/2, y, x)
			}
		}
	}
}

// A layer whose cache is of another class is left as it is; without one of keys and values the names are not used.
func TestPromptCacheClasses(t *testing.T) {
	side := func(name string) tensor { return f32(name, []int{1, 2, 64}, wave) }
	meta := func(class string) map[string]string { return map[string]string{"1.0": "KVCache", "1.1": class} }
	src := file(t, meta("ArraysCache"), side("0.0"), side("0.1"), side("1.0"), side("1.1"))
	packed, err := encode(t, src, options())
	if err != nil {
		t.Fatal(err)
	}
	s, err := open(packed)
	if err != nil || len(s.Layers()) != 1 || !slices.Equal(s.Raw(), []string{"1.0", "1.1"}) {
		t.Error(s.Layers(), s.Raw(), err)
	}
	if _, err := encode(t, file(t, map[string]string{"1.0": "ArraysCache"}, side("0.0"), side("0.1")), options()); !errors.Is(err, ErrNoTensor) {
		t.Error(err)
	}
}

// 8-bit floats are packed as the binary16 tensor of the same numbers is, and one that is not finite is named.
func TestF8(t *testing.T) {
	for d, from := range map[safetensors.DType]func(byte) float32{safetensors.F8E4M3: pack.FromE4M3, safetensors.F8E5M2: pack.FromE5M2} {
		narrow := make([]byte, 4*3*64)
		wide := make([]byte, 2*len(narrow))
		for i := range narrow {
			b := byte(i * 37)
			if x := from(b); x != x || math.IsInf(float64(x), 0) {
				b = 0x38
			}
			narrow[i] = b
			codec.F16.Store(wide[2*i:], from(b))
		}
		shape := []int{4, 3, 64}
		make := func(d safetensors.DType, data []byte) []byte {
			return file(t, nil, tensor{Name: "0.keys", DType: d, Shape: shape, Data: data}, tensor{Name: "0.values", DType: d, Shape: shape, Data: data})
		}
		got, err := encode(t, make(d, narrow), options())
		if err != nil {
			t.Fatal(d, err)
		}
		want, err := encode(t, make(safetensors.F16, wide), options())
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: another snapshot than that of F16: %v", d, err)
		}
		narrow[100] = 0x7f
		var e *codec.Error
		if _, err := encode(t, make(d, narrow), options()); !errors.As(err, &e) || e.Err != codec.ErrNonFinite || e.Tensor != `"0.keys"` || e.Index != 100 {
			t.Errorf("%s: %v", d, err)
		}
	}
}
