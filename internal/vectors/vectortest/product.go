package vectortest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/vectors"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// served skips the test where the backend does not serve an operation, and fails on any other error.
func served(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, codec.ErrUnsupported) {
		t.Skip(err)
	}
	check(t, err)
}

// bases calls f, in a subtest, for each base name of a file that has a tensor base + suffix. f takes the tensors
// that it reads by name. One of a case that runs and does not take it is a failure, and so is a file without a base.
func bases(t *testing.T, file, suffix string, f func(t *testing.T, base string, take func(name string) vectors.Tensor)) {
	all := vectors.Load(t, file)
	longest := map[string]string{} // of the bases that a name starts with
	n := 0
	for _, x := range all.Names() {
		base, ok := strings.CutSuffix(x, suffix)
		if !ok {
			continue
		}
		n++
		for _, name := range all.Names() {
			if strings.HasPrefix(name, base+".") && len(base) > len(longest[name]) {
				longest[name] = base
			}
		}
	}
	if n == 0 {
		t.Errorf("%s: no cases", file)
	}
	for _, x := range all.Names() {
		base, ok := strings.CutSuffix(x, suffix)
		if !ok {
			continue
		}
		t.Run(strings.TrimSuffix(file, ".safetensors")+"/"+base, func(t *testing.T) {
			taken := map[string]bool{}
			f(t, base, func(name string) vectors.Tensor {
				v, ok := all[name]
				if !ok {
					t.Fatalf("no tensor %s", name)
				}
				taken[name] = true
				return v
			})
			for name, of := range longest {
				if of == base && !taken[name] {
					t.Errorf("%s was not read", name)
				}
			}
		})
	}
}

// product is x·Wᵀ for the weights of a case.
type product func(y, x codec.Tensor, o codec.ProductOptions) error

// runProduct compares every product of a case, and each row of it alone.
func runProduct(t *testing.T, b codec.Backend, base string, take func(string) vectors.Tensor) {
	x := tensor(t, take(base+".x"))
	multiply, out := productOf(t, b, base, take)
	size := x.Dim() * x.DType.Size()
	compared := 0
	for _, weights := range []codec.DType{codec.F32, codec.F16, codec.BF16} {
		for _, to := range []codec.DType{codec.F32, codec.F16, codec.BF16} {
			name := fmt.Sprintf("%s.y.w_%v.%v", base, weights, to)
			if !vectors.Load(t, "product.safetensors").Has(name) {
				continue
			}
			want := take(name)
			o := codec.ProductOptions{Weights: weights}
			y := codec.NewTensor(to, x.Shape[0], out)
			served(t, multiply(y, x, o))
			same(t, name, y.Data, want)
			for r := range x.Shape[0] {
				row := codec.NewTensor(to, 1, out)
				check(t, multiply(row, codec.Tensor{DType: x.DType, Shape: []int{1, x.Dim()}, Data: x.Data[r*size:][:size]}, o))
				n := len(row.Data)
				same(t, fmt.Sprintf("%s, row %d alone", name, r), row.Data, vectors.Tensor{DType: want.DType, Shape: row.Shape, Data: want.Data[r*n:][:n]})
			}
			compared++
		}
	}
	if compared == 0 {
		t.Error("no products")
	}
}

// productOf returns the product of a case's weights and their number of rows.
func productOf(t *testing.T, b codec.Backend, base string, take func(string) vectors.Tensor) (multiply product, out int) {
	var m trellis.Matrix
	if _, err := fmt.Sscanf(base, "trellis.k%d.T%d.axis%d.in%d.out%d.", &m.Params.K, &m.Params.T, &m.Geometry.Axis, &m.Geometry.In, &m.Geometry.Out); err == nil {
		m.Params.L = 12
		m.Codes, m.Scales = vectors.File{"": take(base + ".codes")}.U32(t, ""), take(base+".scales").U16(t)
		c, err := b.Trellis(m.Params)
		served(t, err)
		return func(y, x codec.Tensor, o codec.ProductOptions) error { return c.MatMul(y, x, &m, o) }, m.Geometry.Out
	}
	var f affine.RowFormat
	var in int
	if _, err := fmt.Sscanf(base, "affine.b%d.g%d.in%d.out%d.", &f.Bits, &f.Group, &in, &out); err != nil {
		t.Fatalf("%s: %v", base, err)
	}
	scales := take(base + ".scales")
	a := codec.AffineRows{Shape: []int{out, in}, DType: dtype(t, scales), Codes: take(base + ".packed").Data, Scales: scales.Data, Biases: take(base + ".biases").Data}
	c, err := b.Affine(f)
	served(t, err)
	return func(y, x codec.Tensor, o codec.ProductOptions) error { return c.MatMul(y, x, a, o) }, out
}

// runMask compares a mask, into another tensor and in place.
func runMask(t *testing.T, b codec.Backend, base string, take func(string) vectors.Tensor) {
	logits, words, want := tensor(t, take(base+".logits")), take(base+".bits"), take(base+".masked")
	m := codec.Bitmask{Rows: words.Shape[0], Words: words.Shape[1], Data: words.Data}
	got := codec.NewTensor(logits.DType, logits.Shape...)
	_, err := b.Mask(got, logits, m)
	served(t, err)
	same(t, "masked", got.Data, want)
	copy(got.Data, logits.Data)
	_, err = b.Mask(got, got, m)
	check(t, err)
	same(t, "masked in place", got.Data, want)
}

// runAffine compares MLX's quantised rows, from compact and from strided weights.
func runAffine(t *testing.T, b codec.Backend, base string, take func(string) vectors.Tensor) {
	d, format, _ := strings.Cut(base, ".")
	var f affine.RowFormat
	if _, err := fmt.Sscanf(format, "b%d.g%d", &f.Bits, &f.Group); err != nil {
		t.Fatal(err)
	}
	c, err := b.Affine(f)
	served(t, err)
	w := tensor(t, take("w."+d))
	n, size := w.Dim(), w.DType.Size()
	strided := codec.Tensor{DType: w.DType, Shape: w.Shape, Stride: []int{2*n + 6, 2}, Data: make([]byte, w.Rows()*(2*n+6)*size)}
	for i := range w.Len() {
		copy(strided.Data[(i/n*(2*n+6)+2*(i%n))*size:], w.Data[i*size:][:size])
	}
	for what, x := range map[string]codec.Tensor{"": w, ", strided": strided} {
		var a codec.AffineRows
		check(t, c.Quantize(&a, x))
		same(t, "packed"+what, a.Codes, vectors.Tensor{DType: "U8", Data: take(base + ".packed").Data})
		same(t, "scales"+what, a.Scales, take(base+".scales"))
		same(t, "biases"+what, a.Biases, take(base+".biases"))
		out := x
		out.Data = make([]byte, len(x.Data))
		check(t, c.Dequantize(out, a))
		var compact codec.Tensor
		check(t, b.Compact(&compact, out))
		same(t, "dequantized"+what, compact.Data, take(base+".dequantized"))
	}
}
