package driver

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	counts "github.com/turbotrellis/turbotrellis/internal/shape"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Every check of an operand is here. The order in which an operation makes its checks is part of the contract:
// every backend reports the same one of two faults.

func shapeError(tensor, format string, args ...any) error {
	return &codec.Error{Err: codec.ErrShape, Tensor: tensor, Index: codec.NoIndex, Reason: fmt.Sprintf(format, args...)}
}

func dtypeError(tensor, format string, args ...any) error {
	return &codec.Error{Err: codec.ErrDType, Tensor: tensor, Index: codec.NoIndex, Reason: fmt.Sprintf(format, args...)}
}

func scaleOverflow(tensor string, index int, format string, args ...any) error {
	return &codec.Error{Err: codec.ErrScaleOverflow, Tensor: tensor, Index: index, Reason: fmt.Sprintf(format, args...)}
}

func nonFinite(tensor string, x codec.Tensor, index int) error {
	v := element(x, index)
	return &codec.Error{Err: codec.ErrNonFinite, Tensor: tensor, Index: index, Reason: strconv.FormatFloat(float64(v), 'g', -1, 32)}
}

// element returns element i of x in row-major order.
func element(x codec.Tensor, i int) float32 {
	offset, stride := x.RowOffset(i / x.Dim())
	return x.DType.Load(x.Data[(offset+i%x.Dim()*stride)*x.DType.Size():])
}

// maxElements bounds inputs, which strides of 0 let be larger than any memory: what is packed from one still has a
// length that a slice can have.
const maxElements = 1 << 46

// checkInput checks that x is a valid tensor of rows of dim elements.
func checkInput(name string, x codec.Tensor, dim int) error {
	if err := x.Validate(name); err != nil {
		return err
	}
	if uint64(x.Len()) > maxElements {
		return shapeError(name, "shape %v has more than 2^46 elements", slices.Clone(x.Shape))
	}
	return checkDim(name, x.Shape, dim)
}

// checkOutput checks that dst is a valid output of the given shape.
func checkOutput(name string, dst codec.Tensor, shape []int) error {
	if err := dst.ValidateOutput(name); err != nil {
		return err
	}
	if !slices.Equal(dst.Shape, shape) {
		return shapeError(name, "shape %v, want %v", slices.Clone(dst.Shape), slices.Clone(shape))
	}
	return nil
}

func checkDim(name string, shape []int, dim int) error {
	if len(shape) == 0 || shape[len(shape)-1] != dim {
		return shapeError(name, "shape %v, want [..., %d]", slices.Clone(shape), dim)
	}
	return nil
}

// packedRows returns the number of rows of packed data of the given shape.
func packedRows(name string, shape []int, dim int) (int, error) {
	if err := checkDim(name, shape, dim); err != nil {
		return 0, err
	}
	n, err := counts.Elements(shape)
	if err != nil {
		return 0, shapeError(name, "%v", err)
	}
	return n / dim, nil
}

// checkPlanes checks that every plane has the exact length. of is "key " or "value ".
func checkPlanes(of string, planes []codec.Plane, rows int) error {
	for _, p := range planes {
		if p.RowLen > 0 && rows > math.MaxInt/p.RowLen || len(p.Data) != rows*p.RowLen {
			return shapeError(of+p.Name, "%d bytes, want %d rows of %d", len(p.Data), rows, p.RowLen)
		}
	}
	return nil
}

// checkDecodeKeys checks first k, then dst.
func checkDecodeKeys(p codec.KVParams, dst codec.Tensor, k codec.Keys) (c codec.Centre, err error) {
	rows, err := packedRows("keys", k.Shape, p.HeadDim)
	if err != nil {
		return c, err
	}
	if err := checkPlanes("key ", k.Planes(p), rows); err != nil {
		return c, err
	}
	if p.Keys.RowCode() {
		if len(k.Zeros) > 0 {
			return c, shapeError("key zeros", "%d bytes, and a row code has none", len(k.Zeros))
		}
		if err := checkRowScales("key scales", k.Scales); err != nil {
			return c, err
		}
	}
	if c, err = checkCentre("key", k.Centre, p.CentreKeys, k.Shape); err != nil {
		return c, err
	}
	return c, checkOutput("dst keys", dst, k.Shape)
}

// checkRowScales checks that every scale is one of §10's codes.
func checkRowScales(name string, scales []byte) error {
	for i, c := range scales {
		if c > maxRowScale {
			return &codec.Error{Err: codec.ErrParams, Tensor: name, Index: i, Reason: fmt.Sprintf("scale code %d exceeds %d", c, maxRowScale)}
		}
	}
	return nil
}

// maxRowScale is the largest scale code of a row code.
const maxRowScale = 247

// checkCentre checks the centre of rows of the given shape, if they are centred, and broadcasts it.
func checkCentre(side string, c codec.Centre, centred bool, shape []int) (codec.Centre, error) {
	if !centred {
		return codec.Centre{}, nil
	}
	mean, err := checkChannels(side+" mean", c.Mean, shape, false)
	if err != nil {
		return codec.Centre{}, err
	}
	gain, err := checkChannels(side+" gain", c.Gain, shape, true)
	return codec.Centre{Mean: mean, Gain: gain}, err
}

// checkChannels checks one of the tensors of a centre, whose elements are finite, and broadcasts it.
func checkChannels(name string, x codec.Tensor, shape []int, positive bool) (codec.Tensor, error) {
	if x.DType != codec.F16 {
		return x, dtypeError(name, "%v, want f16", x.DType)
	}
	if err := checkInput(name, x, shape[len(shape)-1]); err != nil {
		return x, err
	}
	for i := range x.Len() {
		if v := element(x, i); !f32.IsFinite(v) || positive && v <= 0 {
			return x, &codec.Error{Err: codec.ErrParams, Tensor: name, Index: i, Reason: fmt.Sprintf("%v: means are finite, gains finite and positive", v)}
		}
	}
	return broadcast(name, x, shape)
}

// broadcast returns the view of x in which it has the given shape.
func broadcast(name string, x codec.Tensor, shape []int) (codec.Tensor, error) {
	out := x
	out.Shape, out.Stride = shape, make([]int, len(shape))
	extra := len(shape) - len(x.Shape)
	if extra < 0 {
		return x, shapeError(name, "shape %v does not broadcast to %v", slices.Clone(x.Shape), slices.Clone(shape))
	}
	step := 1
	for i := len(x.Shape) - 1; i >= 0; i-- {
		n := x.Shape[i]
		if n != 1 && n != shape[extra+i] {
			return x, shapeError(name, "shape %v does not broadcast to %v", slices.Clone(x.Shape), slices.Clone(shape))
		}
		switch {
		case n == 1:
		case x.Stride != nil:
			out.Stride[extra+i] = x.Stride[i]
		default:
			out.Stride[extra+i] = step
		}
		step *= n
	}
	return out, nil
}

// checkMass checks the weights of the mean in an un-rotation of rows of the given shape.
func checkMass(mass codec.Tensor, shape []int) error {
	if mass.DType != codec.F32 {
		return dtypeError("mass", "%v, want f32", mass.DType)
	}
	if err := mass.Validate("mass"); err != nil {
		return err
	}
	want := append(slices.Clone(shape[:len(shape)-1]), 1)
	if !slices.Equal(mass.Shape, want) {
		return shapeError("mass", "shape %v, want %v", slices.Clone(mass.Shape), want)
	}
	return nil
}

// checkDecodeValues checks first v, then dst.
func checkDecodeValues(p codec.KVParams, dst codec.Tensor, v codec.Values) (c codec.Centre, err error) {
	rows, err := packedRows("values", v.Shape, p.ValueHeadDim)
	if err != nil {
		return c, err
	}
	if err := checkPlanes("value ", v.Planes(p), rows); err != nil {
		return c, err
	}
	if p.Values.RowCode() {
		if err := checkRowScales("value scales", v.Scales); err != nil {
			return c, err
		}
	}
	if c, err = checkCentre("value", v.Centre, p.CentreValues, v.Shape); err != nil {
		return c, err
	}
	return c, checkOutput("dst values", dst, v.Shape)
}

// checkDecode checks first the keys' part, then the values', then whether they go together.
func checkDecode(p codec.KVParams, dstK, dstV codec.Tensor, k codec.Keys, v codec.Values) (kc, vc codec.Centre, err error) {
	if kc, err = checkDecodeKeys(p, dstK, k); err != nil {
		return kc, vc, err
	}
	if vc, err = checkDecodeValues(p, dstV, v); err != nil {
		return kc, vc, err
	}
	if !slices.Equal(k.Shape[:len(k.Shape)-1], v.Shape[:len(v.Shape)-1]) {
		return kc, vc, shapeError("values", "shape %v beside keys of shape %v", slices.Clone(v.Shape), slices.Clone(k.Shape))
	}
	if dstK.DType != dstV.DType {
		return kc, vc, dtypeError("dst values", "%v beside keys in %v", dstV.DType, dstK.DType)
	}
	return kc, vc, nil
}

// checkUnrotate checks first x, then dst.
func checkUnrotate(p codec.KVParams, dst, x codec.Tensor) error {
	if err := checkInput("values", x, p.ValueHeadDim); err != nil {
		return err
	}
	if err := checkOutput("dst values", dst, x.Shape); err != nil {
		return err
	}
	if dst.DType != x.DType {
		return dtypeError("dst values", "%v for values in %v", dst.DType, x.DType)
	}
	return nil
}

// checkSamples checks x, then states, then that the parameters have an encoder.
func checkSamples(p trellis.Params, states []uint16, x codec.Tensor) error {
	if err := checkInput("samples", x, p.T); err != nil {
		return err
	}
	if len(states) != x.Len() {
		return shapeError("states", "%d states for %d samples", len(states), x.Len())
	}
	return trellisError("", p.ValidateEncoder())
}

// checkWeights checks that g is a geometry for p, that x is a matrix of it and that recon is one unless it is
// the zero Tensor, and that p has an encoder of matrices.
func checkWeights(p trellis.Params, recon, x codec.Tensor, g trellis.Geometry) error {
	if err := g.Validate(p); err != nil {
		return trellisError("weights", err)
	}
	if p.FreeEnds {
		return &codec.Error{Err: codec.ErrParams, Index: codec.NoIndex, Reason: "free-ended blocks have no packed form"}
	}
	if err := x.Validate("weights"); err != nil {
		return err
	}
	if len(x.Shape) != 2 || x.Shape[0] != g.Out || x.Shape[1] != g.In {
		return shapeError("weights", "shape %v, want %v", slices.Clone(x.Shape), []int{g.Out, g.In})
	}
	if recon.DType != 0 || recon.Shape != nil || recon.Data != nil {
		if err := checkOutput("reconstruction", recon, x.Shape); err != nil {
			return err
		}
	}
	return trellisError("", p.ValidateEncoder())
}

// checkMatrix checks that m is a packed matrix with parameters p, as far as decoding is concerned: the same L,
// K, T and code, and slices of the exact lengths.
func checkMatrix(p trellis.Params, m *trellis.Matrix) error {
	if m == nil {
		return shapeError("codes", "no matrix")
	}
	if q := m.Params; q.L != p.L || q.K != p.K || q.T != p.T || q.Code != p.Code {
		return &codec.Error{Err: codec.ErrParams, Tensor: "codes", Index: codec.NoIndex,
			Reason: fmt.Sprintf("packed with L=%d, K=%d, T=%d, code %v, not %d, %d, %d, %v", q.L, q.K, q.T, q.Code, p.L, p.K, p.T, p.Code)}
	}
	return trellisError("codes", m.Validate())
}

// checkRows checks that dst is a writable [n, In] tensor for rows first to first+n−1 of a valid matrix.
func checkRows(dst codec.Tensor, m *trellis.Matrix, first int) error {
	if err := dst.ValidateOutput("dst weights"); err != nil {
		return err
	}
	if len(dst.Shape) != 2 || dst.Shape[1] != m.Geometry.In {
		return shapeError("dst weights", "shape %v, want [rows, %d]", slices.Clone(dst.Shape), m.Geometry.In)
	}
	if n := dst.Shape[0]; first < 0 || n > m.Geometry.Out || first > m.Geometry.Out-n {
		return shapeError("dst weights", "%d rows from row %d of %d", n, first, m.Geometry.Out)
	}
	return nil
}

// trellisError returns what package trellis refuses of the named operand as an *Error of the same meaning.
func trellisError(tensor string, err error) error {
	if err == nil {
		return nil
	}
	e := &codec.Error{Err: codec.ErrShape, Tensor: tensor, Index: codec.NoIndex, Reason: err.Error()}
	if errors.Is(err, trellis.ErrParams) {
		e.Err = codec.ErrParams
	}
	return e
}
