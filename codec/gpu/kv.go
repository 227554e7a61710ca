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
		args := shaders.KeysEncodeArgs{
			X: s.view[0], Codes: s.view[1], Scales: s.view[2], Zeros: s.view[3], N1: s.n1, N2: s.n2, Row0: s.row0, Rows: s.height,
			Dim: uint32(p.HeadDim), Group: uint32(p.Group), XType: dtypes[x.DType], ScaleType: dtypes[p.ScaleType], Policy: policies[p.Policy],
		}
		s.add(k, s.n, shaders.LaneGrid(s.n, k.pipeline.MaxThreads()), 0, &args, append(s.at, status)...)
		return nil
	})
}

// EncodeValues rotates and packs x (docs/numerics.md §1, §3, §4, §5).
func (c *kv) EncodeValues(dst codec.Values, x codec.Tensor) (driver.Found, error) {
	p, d := c.p, c.p.ValueHeadDim
	k, err := c.e.kernels.pick(need{op: "values_encode", bits: p.Values.Bits(), dim: d})
	if err != nil {
		return driver.Found{}, c.e.failed(err)
	}
	ops := append([]*operand{c.e.tensor(x, false)}, c.values(dst, true)...)
	return c.encode(ops, func(s *slab, status gpu.Binding) error {
		levels, signs, err := s.valueTables(p)
		if err != nil {
			return err
		}
		l := c.e.launchRow(k, d, s.n)
		args := shaders.ValuesEncodeArgs{
			X: s.view[0], Codes: s.view[1], Scales: s.view[2], N1: s.n1, N2: s.n2, Row0: s.row0, Rows: s.height,
			Dim: uint32(d), Group: uint32(p.Group), Factor: factor(d), ThreadsPerRow: uint32(l.ThreadsPerRow),
			XType: dtypes[x.DType], ScaleType: dtypes[p.ScaleType], Norm: hadamard.Norm(d),
		}
		if p.Scale == codec.Search {
			args.Search = 1
		}
		s.add(k, s.n, l.Grid, l.Bytes, &args, append(s.at, status, levels, signs)...)
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

// DecodeKeys unpacks k (docs/numerics.md §2).
func (c *kv) DecodeKeys(dst codec.Tensor, keys codec.Keys) (saturated int, err error) {
	p := c.p
	k, err := c.e.kernels.pick(need{op: "keys_decode", keyBits: p.Keys.Bits(), signed: p.Keys.Signed()})
	if err != nil {
		return 0, c.e.failed(err)
	}
	ops := append(c.keys(keys, false), c.e.tensor(dst, true))
	return c.decode(ops, dst.DType == codec.F16, func(s *slab, count gpu.Binding) error {
		args := shaders.KeysDecodeArgs{
			Codes: s.view[0], Scales: s.view[1], Zeros: s.view[2], Out: s.view[3], N1: s.n1, N2: s.n2, Row0: s.row0, Rows: s.height,
			Dim: uint32(p.HeadDim), Group: uint32(p.Group), ScaleType: dtypes[p.ScaleType], OutType: dtypes[dst.DType], Wide: wide(s.view[3]), Policy: policies[c.p.Policy],
		}
		s.add(k, s.n, shaders.ElementGrid(p.HeadDim/8, s.n, k.pipeline.MaxThreads()), 0, &args, append(s.at, count)...)
		return nil
	})
}

// DecodeValues unpacks v, and rotates it back unless rotated is set (docs/numerics.md §3, §4).
func (c *kv) DecodeValues(dst codec.Tensor, v codec.Values, rotated bool) (saturated int, err error) {
	if !rotated {
		return c.decodeInverse(codec.Tensor{}, dst, codec.Keys{}, v)
	}
	p, d := c.p, c.p.ValueHeadDim
	k, err := c.e.kernels.pick(need{op: "values_decode", bits: p.Values.Bits()})
	if err != nil {
		return 0, c.e.failed(err)
	}
	ops := append(c.values(v, false), c.e.tensor(dst, true))
	return c.decode(ops, dst.DType == codec.F16, func(s *slab, count gpu.Binding) error {
		levels, err := s.table(tableKey{levelTable, p.Values.Bits(), 0})
		if err != nil {
			return err
		}
		args := shaders.ValuesDecodeArgs{
			Codes: s.view[0], Scales: s.view[1], Out: s.view[2], N1: s.n1, N2: s.n2, Row0: s.row0, Rows: s.height,
			Dim: uint32(d), Group: uint32(p.Group), ScaleType: dtypes[p.ScaleType], OutType: dtypes[dst.DType], Wide: wide(s.view[2]), Policy: policies[c.p.Policy],
		}
		s.add(k, s.n, shaders.ElementGrid(d/8, s.n, k.pipeline.MaxThreads()), 0, &args, append(s.at, levels, count)...)
		return nil
	})
}

// Decode is DecodeKeys and DecodeValues in one pass.
func (c *kv) Decode(dstK, dstV codec.Tensor, k codec.Keys, v codec.Values, rotated bool) (saturated int, err error) {
	if rotated {
		return c.decodeJoint(dstK, dstV, k, v)
	}
	return c.decodeInverse(dstK, dstV, k, v)
}

// jointArgs are the arguments that the two joint kernels share. v is in the order of their buffers.
func (c *kv) jointArgs(s *slab, v []shaders.View, dstK, dstV codec.DType) shaders.KVDecodeArgs {
	p := c.p
	return shaders.KVDecodeArgs{
		KCodes: v[0], KScales: v[1], KZeros: v[2], VCodes: v[3], VScales: v[4], KOut: v[5], VOut: v[6],
		N1: s.n1, N2: s.n2, Row0: s.row0, Rows: s.height,
		KDim: uint32(p.HeadDim), KGroup: uint32(p.Group), VDim: uint32(p.ValueHeadDim), VGroup: uint32(p.Group),
		ScaleType: dtypes[p.ScaleType], KType: dtypes[dstK], VType: dtypes[dstV], KWide: wide(v[5]), VWide: wide(v[6]), Policy: policies[c.p.Policy],
	}
}

func (c *kv) decodeJoint(dstK, dstV codec.Tensor, keys codec.Keys, values codec.Values) (saturated int, err error) {
	p := c.p
	k, err := c.e.kernels.pick(need{op: "kv_decode", bits: p.Values.Bits(), keyBits: p.Keys.Bits(), signed: p.Keys.Signed()})
	if err != nil {
		return 0, c.e.failed(err)
	}
	ops := append(append(c.keys(keys, false), c.values(values, false)...), c.e.tensor(dstK, true), c.e.tensor(dstV, true))
	return c.decode(ops, dstK.DType == codec.F16 || dstV.DType == codec.F16, func(s *slab, count gpu.Binding) error {
		levels, err := s.table(tableKey{levelTable, p.Values.Bits(), 0})
		if err != nil {
			return err
		}
		args := c.jointArgs(s, s.view, dstK.DType, dstV.DType)
		grid := shaders.ElementGrid(max(p.HeadDim, p.ValueHeadDim)/8, s.n, k.pipeline.MaxThreads())
		s.add(k, s.n, grid, 0, &args, append(s.at, levels, count)...)
		return nil
	})
}

// decodeInverse decodes values with the inverse rotation, and keys beside them unless dstK is the zero Tensor.
func (c *kv) decodeInverse(dstK, dstV codec.Tensor, keys codec.Keys, values codec.Values) (saturated int, err error) {
	p, d := c.p, c.p.ValueHeadDim
	k, err := c.e.kernels.pick(need{op: "kv_inverse", bits: p.Values.Bits(), dim: d})
	if err != nil {
		return 0, c.e.failed(err)
	}
	ops := append(c.values(values, false), c.e.tensor(dstV, true))
	both := dstK.DType != 0
	if both {
		ops = append(append(ops, c.keys(keys, false)...), c.e.tensor(dstK, true))
	}
	return c.decode(ops, dstK.DType == codec.F16 || dstV.DType == codec.F16, func(s *slab, count gpu.Binding) error {
		levels, signs, err := s.valueTables(p)
		if err != nil {
			return err
		}
		at, v := s.at, s.view
		if !both { // the kernel does not touch what stands in for the keys
			at = append(at, at[0], at[1], at[1], at[2])
			v = append(v, shaders.View{}, shaders.View{}, shaders.View{}, shaders.View{})
		}
		order := [...]int{3, 4, 5, 0, 1, 6, 2}
		bindings, views := make([]gpu.Binding, 0, len(order)+3), make([]shaders.View, 0, len(order))
		for _, i := range order {
			bindings, views = append(bindings, at[i]), append(views, v[i])
		}
		args := c.jointArgs(s, views, dstK.DType, dstV.DType)
		l := c.e.launchRow(k, d, s.n)
		args.KBits, args.Factor, args.ThreadsPerRow, args.Norm = uint32(p.Keys.Bits()), factor(d), uint32(l.ThreadsPerRow), hadamard.Norm(d)
		if p.Keys.Signed() {
			args.KSigned = 1
		}
		if !both {
			args.KDim = 0
		}
		s.add(k, s.n, l.Grid, l.Bytes, &args, append(bindings, levels, signs, count)...)
		return nil
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
		l := c.e.launchRow(k, d, s.n)
		args := shaders.HadamardArgs{
			X: s.view[0], Y: s.view[1], N1: s.n1, N2: s.n2, Row0: s.row0, Rows: s.height, Dim: uint32(d), Factor: factor(d),
			ThreadsPerRow: uint32(l.ThreadsPerRow), XType: dtypes[x.DType], YType: dtypes[dst.DType], Policy: policies[c.p.Policy], Norm: hadamard.Norm(d),
		}
		s.add(k, s.n, l.Grid, l.Bytes, &args, append(s.at, signs, count)...)
		return nil
	})
}

// factor returns the m of d = m·2^k.
func factor(d int) uint32 {
	m, _, _ := hadamard.Split(d)
	return uint32(m)
}
