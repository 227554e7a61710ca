// Package kvcache holds the keys and values of running sequences in any row format: raw tensors, MLX's affine
// rows, or the packed rows of package codec. A Batch is one layer's cache of several sequences. It moves bytes and
// computes nothing, so a row's bytes are those that the sequence alone would have. With Layout.Memory the rows lie in
// the memory of a GPU backend, whose kernels move them and whose codecs read them in place.
//
// Package snapshot stores whole caches in files; package block stores runs of tokens as self-describing frames.
package kvcache

import (
	"fmt"
	"math"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
)

// Plane is one of the byte strings that make up the stored rows of a format.
type Plane struct {
	Name   string // "data", "codes", "scales", "zeros", "biases"
	RowLen int    // bytes per token and head
}

// Format says how the row of one token and head is stored: as one row of each plane.
type Format struct {
	Name   string
	Planes []Plane
}

// Raw returns the format of unpacked rows of dim elements of type t.
func Raw(t codec.DType, dim int) Format {
	return Format{t.String(), []Plane{{"data", dim * t.Size()}}}
}

// PackedKeys returns the format of keys packed with valid parameters p: the planes of codec.Keys.
func PackedKeys(p codec.KVParams) Format {
	return Format{p.Keys.String(), planes(codec.Keys{}.Planes(p))}
}

// PackedValues returns the format of values packed with valid parameters p: the planes of codec.Values.
func PackedValues(p codec.KVParams) Format {
	return Format{p.Values.String(), planes(codec.Values{}.Planes(p))}
}

func planes(from []codec.Plane) []Plane {
	var list []Plane
	for _, p := range from {
		list = append(list, Plane{p.Name, p.RowLen})
	}
	return list
}

// Affine returns the format of rows of dim elements that f quantised from type t: the parts of codec.AffineRows.
func Affine(f affine.RowFormat, t codec.DType, dim int) Format {
	scales := dim / f.Group * t.Size()
	return Format{"affine", []Plane{{"codes", dim / 8 * f.Bits}, {"scales", scales}, {"biases", scales}}}
}

// validate reports a format that no row can have. No planes is an empty side.
func (f Format) validate(side string) error {
	for _, p := range f.Planes {
		if p.RowLen < 0 || p.RowLen > math.MaxInt32 {
			return fmt.Errorf("%w: %s %s rows of %d bytes", ErrLayout, side, p.Name, p.RowLen)
		}
	}
	return nil
}

// Data is stored rows of n sequences, heads and tokens, in that order and without gaps: plane i of the format is
// Planes[i], of n·heads·Tokens·RowLen bytes.
type Data struct {
	Tokens int
	Planes [][]byte
}

// KeysData returns keys packed with parameters p, of shape [..., heads, tokens, d], as Data. It copies nothing.
func KeysData(k codec.Keys, p codec.KVParams) Data { return planesData(k.Shape, k.Planes(p)) }

// ValuesData returns packed values as KeysData does keys.
func ValuesData(v codec.Values, p codec.KVParams) Data { return planesData(v.Shape, v.Planes(p)) }

func planesData(shape []int, from []codec.Plane) Data {
	d := Data{tokens(shape), make([][]byte, len(from))}
	for i, p := range from {
		d.Planes[i] = p.Data
	}
	return d
}

// TensorData returns the elements of a row-major tensor without gaps, of shape [..., heads, tokens, d], as Data. It
// copies nothing.
func TensorData(x codec.Tensor) Data {
	return Data{tokens(x.Shape), [][]byte{x.Data[:min(len(x.Data), x.Len()*x.DType.Size())]}}
}

func tokens(shape []int) int {
	if len(shape) < 2 {
		return 0
	}
	return shape[len(shape)-2]
}
