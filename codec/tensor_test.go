package codec_test

import (
	"errors"
	"math"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
)

const maxInt = math.MaxInt

func TestTensorValidate(t *testing.T) {
	f32 := func(data int, shape []int, stride []int) codec.Tensor {
		return codec.Tensor{DType: codec.F32, Shape: shape, Stride: stride, Data: make([]byte, data)}
	}
	for _, c := range []struct {
		name   string
		x      codec.Tensor
		in     string // part of Validate's error; empty if valid
		out    string // likewise for ValidateOutput
		dtype  bool   // the error is ErrDType, not ErrShape
		length int
	}{
		{name: "contiguous", x: f32(24, []int{2, 3}, nil), length: 6},
		{name: "scalar", x: f32(4, nil, nil), length: 1},
		{name: "one byte short", x: f32(23, []int{2, 3}, nil), in: "needs 6 elements of data, have 23 bytes"},
		{name: "longer than needed", x: f32(100, []int{2, 3}, nil), length: 6},
		{name: "empty", x: f32(0, []int{2, 0, 3}, nil)},
		{name: "empty, any strides", x: f32(0, []int{2, 0, 3}, []int{9, 9, 9})},
		{name: "empty, huge", x: f32(0, []int{maxInt, 0, 2}, nil), in: "more elements than an int"},
		{name: "padded rows", x: f32(4*(8+3), []int{2, 3}, []int{8, 1}), length: 6},
		{name: "padded rows, one short", x: f32(4*(8+3)-1, []int{2, 3}, []int{8, 1}), in: "needs 11 elements"},
		{name: "transposed", x: f32(24, []int{2, 3}, []int{1, 2}), length: 6},
		{name: "broadcast", x: f32(12, []int{5, 3}, []int{0, 1}), length: 15, out: "stride 0 in dimension 0"},
		{name: "broadcast element", x: f32(4, []int{5, 3}, []int{0, 0}), length: 15, out: "in one place"},
		{name: "sliding window", x: f32(16, []int{2, 3}, []int{1, 1}), length: 6, out: "stride 1 in dimension 1"},
		{name: "overlapping rows", x: f32(4*5, []int{2, 3}, []int{2, 1}), length: 6, out: "stride 2 in dimension 0"},
		{name: "dimension of one", x: f32(12, []int{1, 3}, []int{0, 1}), length: 3},
		{name: "negative dimension", x: f32(24, []int{2, -3}, nil), in: "negative dimension"},
		{name: "negative dimensions", x: f32(24, []int{-2, -3}, nil), in: "negative dimension"},
		{name: "negative stride", x: f32(24, []int{2, 3}, []int{3, -1}), in: "negative stride -1"},
		{name: "too few strides", x: f32(24, []int{2, 3}, []int{1}), in: "1 strides for 2 dimensions"},
		{name: "too many strides", x: f32(24, []int{2, 3}, []int{6, 3, 1}), in: "3 strides for 2 dimensions"},
		{name: "strides of no dimension", x: f32(4, nil, []int{1}), in: "1 strides for 0 dimensions"},
		{name: "product wraps to 0", x: f32(24, []int{1 << (bits.UintSize / 2), 1 << (bits.UintSize / 2)}, nil), in: "more elements than an int"},
		{name: "product wraps to 2", x: f32(24, []int{maxInt, maxInt, 2}, nil), in: "more elements than an int"},
		{name: "bytes wrap", x: f32(24, []int{maxInt/2 + 1}, nil), in: "exceeds the address space"},
		{name: "stride wraps", x: f32(24, []int{3, 2}, []int{maxInt, 1}), in: "address space"},
		{name: "stride sum wraps", x: f32(24, []int{2, 2, 2}, []int{maxInt, maxInt, maxInt}), in: "address space"},
		{name: "unknown type", x: codec.Tensor{DType: 9, Shape: []int{2}, Data: make([]byte, 64)}, in: "DType(9)", dtype: true},
		{name: "no type", x: codec.Tensor{Shape: []int{2}, Data: make([]byte, 64)}, in: "DType(0)", dtype: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.out == "" {
				c.out = c.in
			}
			class := codec.ErrShape
			if c.dtype {
				class = codec.ErrDType
			}
			for _, v := range []struct {
				name string
				err  error
				want string
			}{{"Validate", c.x.Validate("keys"), c.in}, {"ValidateOutput", c.x.ValidateOutput("keys"), c.out}} {
				if v.want == "" {
					if v.err != nil {
						t.Errorf("%s: %v", v.name, v.err)
					}
					continue
				}
				if !errors.Is(v.err, class) || !strings.Contains(v.err.Error(), v.want) || !strings.HasPrefix(v.err.Error(), "keys: ") {
					t.Errorf("%s: error %v, want %v with %q", v.name, v.err, class, v.want)
				}
			}
			if c.in == "" && c.x.Len() != c.length {
				t.Errorf("Len %d, want %d", c.x.Len(), c.length)
			}
		})
	}
}

// RowOffset against the definition, written as nested loops.
func TestRowOffset(t *testing.T) {
	x := codec.Tensor{DType: codec.F32, Shape: []int{2, 3, 4, 5}, Stride: []int{1, 1000, 20, 4000}}
	r := 0
	for i := range 2 {
		for j := range 3 {
			for k := range 4 {
				off, stride := x.RowOffset(r)
				if want := i*1 + j*1000 + k*20; off != want || stride != 4000 {
					t.Fatalf("row %d: offset %d, stride %d, want %d, 4000", r, off, stride, want)
				}
				r++
			}
		}
	}
	if r != x.Rows() || x.Dim() != 5 || x.Len() != 120 {
		t.Errorf("%d rows of %d, %d elements", x.Rows(), x.Dim(), x.Len())
	}
}

// Offsets beyond 2^31 elements are not cut to 32 bits.
func TestRowOffset32BitOverflow(t *testing.T) {
	if bits.UintSize == 32 {
		t.Skip("such tensors are beyond an int here")
	}
	const heads, tokens, dim = 32, 524288, 128 // 2^31 elements
	for _, stride := range [][]int{nil, {tokens * dim, dim, 1}} {
		x := codec.Tensor{DType: codec.BF16, Shape: []int{heads + 1, tokens, dim}, Stride: stride}
		off, _ := x.RowOffset(heads * tokens)
		if int64(off) != 1<<31 {
			t.Errorf("stride %v: offset %d, want 2^31", stride, off)
		}
	}
}

func TestLoadStoreRow(t *testing.T) {
	for _, d := range []codec.DType{codec.F32, codec.F16, codec.BF16} {
		want := []float32{1, -2.5, 0, 65504, 0.15625}
		if d == codec.BF16 {
			want[3] = 65536
		}
		const guard = 0xa5
		for _, stride := range []int{1, 3} {
			data := slices.Repeat([]byte{guard}, 3+(4*stride+1+7)*d.Size())
			x := codec.Tensor{DType: d, Shape: []int{2, 5}, Stride: []int{0, stride}, Data: data[3:]} // rows share: row 1 reads row 0's
			x.StoreRow(0, want)
			got := make([]float32, 5)
			x.LoadRow(got, 1)
			if !slices.Equal(got, want) {
				t.Errorf("%v, stride %d: %v, want %v", d, stride, got, want)
			}
			for i, b := range data {
				e := (i - 3) / d.Size()
				if written := i >= 3 && e%stride == 0 && e/stride < 5; !written && b != guard {
					t.Errorf("%v, stride %d: byte %d written", d, stride, i)
				}
			}
		}
	}
}

func TestNewTensor(t *testing.T) {
	shape := []int{2, 3}
	x := codec.NewTensor(codec.F16, shape...)
	shape[0] = 9
	if !slices.Equal(x.Shape, []int{2, 3}) || len(x.Data) != 12 {
		t.Errorf("shape %v, %d bytes", x.Shape, len(x.Data))
	}
	y := codec.FromF32([]float32{1, 2}, 2, 1)
	if !slices.Equal(y.Data, []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0x40}) {
		t.Errorf("bytes % x are not little-endian", y.Data)
	}
	for name, f := range map[string]func(){
		"negative":     func() { codec.NewTensor(codec.F32, -1) },
		"wraps":        func() { codec.NewTensor(codec.F32, maxInt/2+1, 4) },
		"unknown type": func() { codec.NewTensor(0, 1) },
		"length":       func() { codec.FromF32([]float32{1}, 2) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

// A tensor that validates can be read, and written if it validates as an
// output, without a panic; and an output's elements never share a byte.
func FuzzTensorValidate(f *testing.F) {
	f.Add(uint8(1), 2, 3, 4, 12, 4, 1, 96, true)
	f.Add(uint8(2), 2, 3, 4, 0, 0, 0, 2, true)
	f.Add(uint8(3), 2, 3, 4, 1, 2, 6, 48, true)
	f.Add(uint8(1), math.MaxInt, 2, 1, 1, 1, 1, 8, false)
	f.Add(uint8(1), 2, 2, 2, math.MaxInt, math.MaxInt, math.MaxInt, 8, true)
	f.Add(uint8(0), 1, 1, 1, 1, 1, 1, 8, false)
	f.Add(uint8(1), 2, 3, 0, 500, 500, 500, 8, true)
	f.Fuzz(func(t *testing.T, dtype uint8, d0, d1, d2, s0, s1, s2, size int, strided bool) {
		if size < 0 || size > 1<<12 {
			return
		}
		x := codec.Tensor{DType: codec.DType(dtype), Shape: []int{d0, d1, d2}, Data: make([]byte, size)}
		if strided {
			x.Stride = []int{s0, s1, s2}
		}
		if x.Validate("x") != nil {
			if x.ValidateOutput("x") == nil {
				t.Fatal("an output that is no tensor")
			}
			return
		}
		if x.Len() > 1<<16 { // broadcasts
			return
		}
		row := make([]float32, d2)
		for r := range x.Rows() {
			x.LoadRow(row, r)
		}
		if x.ValidateOutput("x") != nil {
			return
		}
		seen := map[int]bool{}
		for r := range x.Rows() {
			x.StoreRow(r, row)
			off, stride := x.RowOffset(r)
			for i := range d2 {
				if seen[off+i*stride] {
					t.Fatalf("two elements of %v with strides %v at offset %d", x.Shape, x.Stride, off+i*stride)
				}
				seen[off+i*stride] = true
			}
		}
	})
}
