package gpu

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
)

var (
	_ driver.Masks  = (*engine)(nil)
	_ driver.Copies = (*engine)(nil)
)

// Mask rejects tokens (docs/numerics.md §9).
func (e *engine) Mask(dst, logits codec.Tensor, m codec.Bitmask) (empty []int, err error) {
	size, dim := logits.DType.Size(), logits.Dim()
	k, err := e.kernels.pick(need{op: "mask", size: size})
	if err != nil {
		return nil, e.failed(err)
	}
	allow, err := e.kernels.pick(need{op: "mask_any"})
	if err != nil {
		return nil, e.failed(err)
	}
	ops := []*operand{e.tensor(logits, false), e.tensor(dst, true)}
	words := min(m.Words, (dim+31)/32)
	if words > 0 {
		ops = append(ops, e.tensor(maskTensor(m, logits.Shape[:len(logits.Shape)-1], words), false))
	}
	err = e.over(context.Background(), 3, ops, func(s *slab) error {
		args := shaders.MaskArgs{X: s.view[0], Y: s.view[1], N1: s.n1, N2: s.n2, Row0: s.row0, Rows: s.height,
			Dim: uint32(dim), Words: uint32(words), Type: dtypes[logits.DType]}
		mask := s.at[0] // without words, the kernels do not touch it
		if words > 0 {
			mask, args.Mask = s.at[2], s.view[2]
		}
		allowed, err := s.buffer(4 * s.n)
		if err != nil {
			return err
		}
		s.add(allow, s.n, shaders.LaneGrid(s.n, allow.pipeline.MaxThreads()), 0, &args, mask, gpu.Binding{Buffer: allowed})
		s.add(k, s.n, shaders.ElementGrid(dim, s.n, k.pipeline.MaxThreads()), 0, &args, s.at[0], mask, s.at[1])
		if err := s.run(); err != nil {
			return err
		}
		return read(allowed, 4*s.n, func(b []byte) {
			for r := range s.n {
				if binary.LittleEndian.Uint32(b[4*r:]) == 0 {
					empty = append(empty, s.row+r)
				}
			}
		})
	})
	return empty, err
}

// maskTensor returns the first words of the rows of m as a tensor of elements of 4 bytes, whose leading dimensions
// are those of the logits.
func maskTensor(m codec.Bitmask, lead []int, words int) codec.Tensor {
	shape := append(slices.Clone(lead), words)
	stride := rowMajor(append(slices.Clone(lead), m.Stride))
	if m.Rows == 1 {
		clear(stride)
	}
	stride[len(lead)] = 1
	return codec.Tensor{DType: codec.F32, Shape: shape, Stride: stride, Data: m.Data}
}

// Compact copies a view.
func (e *engine) Compact(dst, x codec.Tensor) error {
	k, err := e.kernels.pick(need{op: "copy", size: x.DType.Size()})
	if err != nil {
		return e.failed(err)
	}
	dim := x.Dim()
	ops := []*operand{e.tensor(x, false), e.tensor(dst, true)}
	return e.over(context.Background(), 3, ops, func(s *slab) error {
		args := shaders.CopyArgs{X: s.view[0], Y: s.view[1], N1: s.n1, N2: s.n2, Row0: s.row0, Rows: s.height, Dim: uint32(dim)}
		s.add(k, s.n, shaders.ElementGrid(dim, s.n, k.pipeline.MaxThreads()), 0, &args, s.at...)
		return s.run()
	})
}
