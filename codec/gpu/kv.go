package gpu

import (
	"context"
	"encoding/binary"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/hadamard"
	"github.com/turbotrellis/turbotrellis/shaders"
)

// kv is the KV cache codec of an engine.
type kv struct {
	e *engine
	p codec.KVParams
}

// dtypes numbers element types as the kernels do.
var dtypes = map[codec.DType]uint32{codec.F32: shaders.TypeF32, codec.F16: shaders.TypeF16, codec.BF16: shaders.TypeBF16}

// policies numbers policies as the kernels do.
var policies = map[codec.Policy]uint32{codec.Finite: shaders.PolicyFinite, codec.Compat: shaders.PolicyCompat}

// keys describes packed keys: codes, scales, zeros.
func (c *kv) keys(k codec.Keys, output bool) []*operand {
	lead := k.Shape[:len(k.Shape)-1]
	codes, _ := c.p.KeyRowLen()
	size, groups := c.p.ScaleType.Size(), c.p.HeadDim/c.p.Group
	return []*operand{c.e.packed(k.Codes, 1, codes, lead, output), c.e.packed(k.Scales, size, groups, lead, output), c.e.packed(k.Zeros, size, groups, lead, output)}
}

// values describes packed values: codes, scales.
func (c *kv) values(v codec.Values, output bool) []*operand {
	lead := v.Shape[:len(v.Shape)-1]
	codes, _ := c.p.ValueRowLen()
	return []*operand{c.e.packed(v.Codes, 1, codes, lead, output), c.e.packed(v.Scales, c.p.ScaleType.Size(), c.p.ValueHeadDim/c.p.Group, lead, output)}
}

// encode runs an encoder over the slabs of ops, of which the first is the input. add adds its dispatch; status
// is where the kernel reports what it finds.
func (c *kv) encode(ops []*operand, add func(s *slab, status gpu.Binding) error) (driver.Found, error) {
	found := driver.Nothing
	err := c.e.over(context.Background(), 3, ops, func(s *slab) error {
		status, err := s.status()
		if err != nil {
			return err
		}
		if err := add(s, gpu.Binding{Buffer: status}); err != nil {
			return err
		}
		if err := s.run(); err != nil {
			return err
		}
		return collect(&found, status, s.row*ops[0].dim, c.p.Group)
	})
	if c.p.Policy == codec.Compat {
		found.Overflow = driver.None // Compat stores it
	}
	return found, err
}

// EncodeKeys packs x (docs/numerics.md §1, §2, §5).
func (c *kv) EncodeKeys(dst codec.Keys, x codec.Tensor) (driver.Found, error) {
	p := c.p
	k, err := c.e.kernels.pick(need{op: "keys_encode", keyBits: p.Keys.Bits(), signed: p.Keys.Signed()})
	if err != nil {
		return driver.Found{}, c.e.failed(err)
	}
	ops := append([]*operand{c.e.tensor(x, false)}, c.keys(dst, true)...)
	return c.encode(ops, func(s *slab, status gpu.Binding) error {
		l := s.lay(k, p.HeadDim)
		args := shaders.KeysEncodeArgs{
			X: s.view[0], Codes: s.view[1], Scales: s.view[2], Zeros: s.view[3], Span: l.span, Wide: l.wide, GroupShift: groupShift(p.Group),
			XType: dtypes[x.DType], ScaleType: dtypes[p.ScaleType], Policy: policies[p.Policy],
		}
		s.add(k, s.n, l.Grid, l.memory, &args, append(s.at, status)...)
		return nil
	})
}

// EncodeValues rotates and packs x (docs/numerics.md §1, §3, §4, §5).
func (c *kv) EncodeValues(dst codec.Values, x codec.Tensor) (driver.Found, error) {
	p, d := c.p, c.p.ValueHeadDim
	op := "values_encode"
	if p.Scale == codec.Search {
		op = "values_search"
	}
	k, err := c.e.kernels.pick(need{op: op, bits: p.Values.Bits(), dim: d})
	if err != nil {
		return driver.Found{}, c.e.failed(err)
	}
	ops := append([]*operand{c.e.tensor(x, false)}, c.values(dst, true)...)
	return c.encode(ops, func(s *slab, status gpu.Binding) error {
		levels, signs, err := s.valueTables(p)
		if err != nil {
			return err
		}
		l := s.lay(k, d)
		args := shaders.ValuesEncodeArgs{
			X: s.view[0], Codes: s.view[1], Scales: s.view[2], Span: l.span, Wide: l.wide, GroupShift: groupShift(p.Group),
			Dim: uint32(d), Factor: factor(d), ThreadsPerRow: l.threadsPerRow,
			XType: dtypes[x.DType], ScaleType: dtypes[p.ScaleType], Norm: hadamard.Norm(d),
		}
		s.add(k, s.n, l.Grid, l.memory, &args, append(s.at, status, levels, signs)...)
		return nil
	})
}

// valueTables returns what value kernels read: the levels and the signs.
func (s *slab) valueTables(p codec.KVParams) (levels, signs gpu.Binding, err error) {
	if levels, err = s.table(tableKey{levelTable, p.Values.Bits(), 0}); err == nil {
		signs, err = s.table(tableKey{signTable, p.ValueHeadDim, 0})
	}
	return levels, signs, err
}

// decode runs a decoder over the slabs of ops and returns how many elements it saturated. halves says that an
// output is f16. add adds the dispatch; count is where the kernel counts, if it has something to count.
func (c *kv) decode(ops []*operand, halves bool, add func(s *slab, count gpu.Binding) error) (saturated int, err error) {
	counts := halves && c.p.Policy == codec.Finite
	err = c.e.over(context.Background(), 3, ops, func(s *slab) error {
		count := s.at[0] // the kernel does not touch it
		if counts {
			buf, err := s.filled(make([]byte, 4))
			if err != nil {
				return err
			}
			count = gpu.Binding{Buffer: buf}
		}
		if err := add(s, count); err != nil {
			return err
		}
		if err := s.run(); err != nil || !counts {
			return err
		}
		word := make([]byte, 4)
		err := count.Buffer.Download(0, word)
		saturated += int(binary.LittleEndian.Uint32(word))
		return err
	})
	return saturated, err
}

// keyDecoder returns what adds the decoding of keys to t, over slabs of their operands and t's.
func (c *kv) keyDecoder(t codec.DType) (func(s *slab, count gpu.Binding) error, error) {
	p := c.p
	k, err := c.e.kernels.pick(need{op: "keys_decode", keyBits: p.Keys.Bits(), signed: p.Keys.Signed()})
	return func(s *slab, count gpu.Binding) error {
		l := s.lay(k, p.HeadDim)
		args := shaders.KeysDecodeArgs{
			Codes: s.view[0], Scales: s.view[1], Zeros: s.view[2], Out: s.view[3], Span: l.span, Wide: l.wide, GroupShift: groupShift(p.Group),
			ScaleType: dtypes[p.ScaleType], OutType: dtypes[t], Policy: policies[p.Policy],
		}
		s.add(k, s.n, l.Grid, l.memory, &args, append(s.at, count)...)
		return nil
	}, err
}

// valueDecoder returns what adds the decoding of values to t, and their inverse rotation unless rotated is set, over
// slabs of their operands and t's.
func (c *kv) valueDecoder(t codec.DType, rotated bool) (func(s *slab, count gpu.Binding) error, error) {
	p, d := c.p, c.p.ValueHeadDim
	n := need{op: "values_decode", bits: p.Values.Bits()}
	if !rotated {
		n = need{op: "values_inverse", bits: p.Values.Bits(), dim: d}
	}
	k, err := c.e.kernels.pick(n)
	return func(s *slab, count gpu.Binding) error {
		levels, signs, err := s.valueTables(p)
		if err != nil {
			return err
		}
		l := s.lay(k, d)
		args := shaders.ValuesDecodeArgs{
			Codes: s.view[0], Scales: s.view[1], Out: s.view[2], Span: l.span, Wide: l.wide, GroupShift: groupShift(p.Group),
			Dim: uint32(d), Factor: factor(d), ThreadsPerRow: l.threadsPerRow,
			ScaleType: dtypes[p.ScaleType], OutType: dtypes[t], Policy: policies[p.Policy], Norm: hadamard.Norm(d),
		}
		bindings := append(s.at, levels)
		if !rotated {
			bindings = append(bindings, signs)
		}
		s.add(k, s.n, l.Grid, l.memory, &args, append(bindings, count)...)
		return nil
	}, err
}

// DecodeKeys unpacks k (docs/numerics.md §2).
func (c *kv) DecodeKeys(dst codec.Tensor, keys codec.Keys) (saturated int, err error) {
	add, err := c.keyDecoder(dst.DType)
	if err != nil {
		return 0, c.e.failed(err)
	}
	return c.decode(append(c.keys(keys, false), c.e.tensor(dst, true)), dst.DType == codec.F16, add)
}

// DecodeValues unpacks v, and rotates it back unless rotated is set (docs/numerics.md §3, §4).
func (c *kv) DecodeValues(dst codec.Tensor, v codec.Values, rotated bool) (saturated int, err error) {
	add, err := c.valueDecoder(dst.DType, rotated)
	if err != nil {
		return 0, c.e.failed(err)
	}
	return c.decode(append(c.values(v, false), c.e.tensor(dst, true)), dst.DType == codec.F16, add)
}

// Decode is DecodeKeys and DecodeValues in one command buffer.
func (c *kv) Decode(dstK, dstV codec.Tensor, k codec.Keys, v codec.Values, rotated bool) (saturated int, err error) {
	addKeys, err := c.keyDecoder(dstK.DType)
	if err != nil {
		return 0, c.e.failed(err)
	}
	addValues, err := c.valueDecoder(dstV.DType, rotated)
	if err != nil {
		return 0, c.e.failed(err)
	}
	ops := append(c.keys(k, false), c.e.tensor(dstK, true))
	n := len(ops)
	ops = append(append(ops, c.values(v, false)...), c.e.tensor(dstV, true))
	return c.decode(ops, dstK.DType == codec.F16 || dstV.DType == codec.F16, func(s *slab, count gpu.Binding) error {
		if err := addKeys(s.part(0, n), count); err != nil {
			return err
		}
		return addValues(s.part(n, len(ops)), count)
	})
}

// Unrotate rotates rows back (docs/numerics.md §3, §4).
func (c *kv) Unrotate(dst, x codec.Tensor) (saturated int, err error) {
	d := c.p.ValueHeadDim
	k, err := c.e.kernels.pick(need{op: "hadamard", dim: d})
	if err != nil {
		return 0, c.e.failed(err)
	}
	ops := []*operand{c.e.tensor(x, false), c.e.tensor(dst, true)}
	return c.decode(ops, dst.DType == codec.F16, func(s *slab, count gpu.Binding) error {
		signs, err := s.table(tableKey{signTable, d, 0})
		if err != nil {
			return err
		}
		l := s.lay(k, d)
		args := shaders.HadamardArgs{
			X: s.view[0], Y: s.view[1], Span: l.span, Wide: l.wide, Dim: uint32(d), Factor: factor(d), ThreadsPerRow: l.threadsPerRow,
			XType: dtypes[x.DType], YType: dtypes[dst.DType], Policy: policies[c.p.Policy], Norm: hadamard.Norm(d),
		}
		s.add(k, s.n, l.Grid, l.memory, &args, append(s.at, signs, count)...)
		return nil
	})
}

// factor returns the m of d = m·2^k.
func factor(d int) uint32 {
	m, _, _ := hadamard.Split(d)
	return uint32(m)
}
