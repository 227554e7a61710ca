package driver

import (
	"slices"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/trellis"
)

func (f *backend) unsupported(what string) error {
	return &codec.Error{Err: codec.ErrUnsupported, Index: codec.NoIndex, Reason: "backend " + f.b.Name() + " has no " + what}
}

// checkProduct checks first x, then y: x·Wᵀ for W of shape [out, in].
func checkProduct(y, x codec.Tensor, out, in int, o codec.ProductOptions) error {
	if o.Weights != 0 && o.Weights.Size() == 0 {
		return dtypeError("weights", "%v", o.Weights)
	}
	if o.Order > codec.Fast {
		return &codec.Error{Err: codec.ErrParams, Index: codec.NoIndex, Reason: "unknown order of summation"}
	}
	if err := checkInput("x", x, in); err != nil {
		return err
	}
	return checkOutput("y", y, append(slices.Clone(x.Shape[:len(x.Shape)-1]), out))
}

func (c *weights) MatMul(y, x codec.Tensor, m *trellis.Matrix, o codec.ProductOptions) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if err := checkMatrix(c.p, m); err != nil {
		return err
	}
	if err := checkProduct(y, x, m.Geometry.Out, m.Geometry.In, o); err != nil || y.Len() == 0 {
		return err
	}
	d, ok := c.d.(Products)
	if !ok {
		return c.unsupported("products with trellis weights")
	}
	if o.Weights == 0 {
		o.Weights = x.DType
	}
	return d.MatMul(y, x, m, o)
}

func (f *backend) Affine(format affine.RowFormat) (codec.Affine, error) {
	if err := f.enter(); err != nil {
		return nil, err
	}
	defer f.leave()
	if err := format.Validate(); err != nil {
		return nil, &codec.Error{Err: codec.ErrParams, Index: codec.NoIndex, Reason: err.Error()}
	}
	b, ok := f.b.(AffineBackend)
	if !ok {
		return nil, f.unsupported("affine rows")
	}
	d, err := b.Affine(format)
	if err != nil {
		return nil, err
	}
	return &rows{backend: f, d: d, f: format}, nil
}

// rows is the front of an Affine.
type rows struct {
	*backend
	d Affine
	f affine.RowFormat
}

func (c *rows) Format() affine.RowFormat { return c.f }

// lens returns the bytes per row of n elements: codes, and scales, which the biases equal in size.
func (c *rows) lens(n int, t codec.DType) (codes, scales int) {
	return n / 8 * c.f.Bits, n / c.f.Group * t.Size()
}

func (c *rows) Quantize(dst *codec.AffineRows, x codec.Tensor) error {
	*dst = codec.AffineRows{Shape: dst.Shape[:0], Codes: dst.Codes[:0], Scales: dst.Scales[:0], Biases: dst.Biases[:0]}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if err := x.Validate("weights"); err != nil {
		return err
	}
	if err := c.checkGroups(x.Shape); err != nil {
		return err
	}
	codes, scales := c.lens(x.Dim(), x.DType)
	n := x.Rows()
	a := codec.AffineRows{
		Shape:  append(dst.Shape, x.Shape...),
		DType:  x.DType,
		Codes:  sized(dst.Codes, n*codes),
		Scales: sized(dst.Scales, n*scales),
		Biases: sized(dst.Biases, n*scales),
	}
	if x.Len() > 0 {
		found, err := c.d.Quantize(a, x)
		switch {
		case err != nil:
			return err
		case found.NonFinite != None:
			return nonFinite("weights", x, found.NonFinite)
		case found.Overflow != None:
			return scaleOverflow("weights", found.Overflow, "the range of the group that starts here exceeds f32")
		}
	}
	*dst = a
	return nil
}

func (c *rows) checkGroups(shape []int) error {
	if len(shape) == 0 || shape[len(shape)-1]%c.f.Group != 0 {
		return shapeError("weights", "shape %v, want rows of a multiple of %d", slices.Clone(shape), c.f.Group)
	}
	return nil
}

// check checks that every part of a has its length.
func (c *rows) check(a codec.AffineRows) error {
	if a.DType.Size() == 0 {
		return dtypeError("weights", "%v", a.DType)
	}
	if err := c.checkGroups(a.Shape); err != nil {
		return err
	}
	n, dim := 0, a.Shape[len(a.Shape)-1]
	if dim > 0 {
		var err error
		if n, err = packedRows("weights", a.Shape, dim); err != nil {
			return err
		}
	}
	codes, scales := c.lens(dim, a.DType)
	return checkPlanes("weight ", []codec.Plane{
		{Name: "codes", RowLen: codes, Data: a.Codes},
		{Name: "scales", RowLen: scales, DType: a.DType, Data: a.Scales},
		{Name: "biases", RowLen: scales, DType: a.DType, Data: a.Biases},
	}, n)
}

func (c *rows) Dequantize(dst codec.Tensor, a codec.AffineRows) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if err := c.check(a); err != nil {
		return err
	}
	if err := checkOutput("dst weights", dst, a.Shape); err != nil {
		return err
	}
	if dst.DType != a.DType {
		return dtypeError("dst weights", "%v, want %v", dst.DType, a.DType)
	}
	if dst.Len() == 0 {
		return nil
	}
	return c.d.Dequantize(dst, a)
}

func (c *rows) MatMul(y, x codec.Tensor, a codec.AffineRows, o codec.ProductOptions) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if err := c.check(a); err != nil {
		return err
	}
	if len(a.Shape) != 2 {
		return shapeError("weights", "shape %v, want [Out, In]", slices.Clone(a.Shape))
	}
	if err := checkProduct(y, x, a.Shape[0], a.Shape[1], o); err != nil || y.Len() == 0 {
		return err
	}
	o.Weights = a.DType
	return c.d.MatMul(y, x, a, o)
}

func (f *backend) Mask(dst, logits codec.Tensor, m codec.Bitmask) ([]int, error) {
	if err := f.enter(); err != nil {
		return nil, err
	}
	defer f.leave()
	if err := logits.Validate("logits"); err != nil {
		return nil, err
	}
	if len(logits.Shape) == 0 {
		return nil, shapeError("logits", "shape [], want [..., vocabulary]")
	}
	if err := checkOutput("dst logits", dst, logits.Shape); err != nil {
		return nil, err
	}
	if dst.DType != logits.DType {
		return nil, dtypeError("dst logits", "%v, want %v", dst.DType, logits.DType)
	}
	if err := checkBitmask(&m, logits.Rows()); err != nil || logits.Len() == 0 {
		return nil, err
	}
	d, ok := f.b.(Masks)
	if !ok {
		return nil, f.unsupported("token masks")
	}
	return d.Mask(dst, logits, m)
}

// checkBitmask checks m for so many rows of logits, and sets its stride.
func checkBitmask(m *codec.Bitmask, rows int) error {
	if m.Rows != rows && m.Rows != 1 {
		return shapeError("mask", "%d rows for %d rows of logits, want as many or 1", m.Rows, rows)
	}
	if m.Stride == 0 {
		m.Stride = m.Words
	}
	if m.Words < 0 || m.Stride < m.Words {
		return shapeError("mask", "rows of %d words, %d apart", m.Words, m.Stride)
	}
	words := len(m.Data) / 4
	if m.Rows > 0 && m.Words > 0 && (m.Words > words || m.Rows-1 > (words-m.Words)/m.Stride) {
		return shapeError("mask", "%d bytes for %d rows of %d words, %d apart", len(m.Data), m.Rows, m.Words, m.Stride)
	}
	return nil
}

func (f *backend) Compact(dst *codec.Tensor, x codec.Tensor) error {
	if err := f.enter(); err != nil {
		return err
	}
	defer f.leave()
	if err := x.Validate("tensor"); err != nil {
		return err
	}
	d, ok := f.b.(Copies)
	if !ok {
		return f.unsupported("copies of views")
	}
	out := codec.Tensor{DType: x.DType, Shape: append(dst.Shape[:0], x.Shape...), Data: sized(dst.Data, x.Len()*x.DType.Size())}
	if x.Len() > 0 {
		to := out
		if len(x.Shape) == 0 { // one element: a row of one
			to.Shape, x.Shape, x.Stride = []int{1}, []int{1}, nil
		}
		if err := d.Compact(to, x); err != nil {
			return err
		}
	}
	*dst = out
	return nil
}
