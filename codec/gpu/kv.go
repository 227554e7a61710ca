package gpu

import (
	"errors"
	"fmt"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
)

// KV is the KV cache codec of a Backend.
type KV struct {
	b *Backend
	p codec.KVParams
}

var _ codec.KV = (*KV)(nil)

func newKV(b *Backend, p codec.KVParams) (*KV, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	p = p.WithDefaults()
	if _, err := shaders.RowLaunch(p.ValueHeadDim, 1, b.info.MaxThreads[0], b.info.MaxThreadgroupMemory); err != nil {
		return nil, unsupported("%v", err)
	}
	return &KV{b: b, p: p}, nil
}

// Params returns the parameters with defaults filled in.
func (c *KV) Params() codec.KVParams { return c.p }

// Saturated returns 0: the kernels do not saturate yet.
func (c *KV) Saturated() uint64 { return 0 }

// dtypes numbers element types as the kernels do.
var dtypes = map[codec.DType]uint32{codec.F32: shaders.TypeF32, codec.F16: shaders.TypeF16, codec.BF16: shaders.TypeBF16}

// EncodeKeys packs x (docs/numerics.md §1, §2, §5).
func (c *KV) EncodeKeys(dst *codec.Keys, x codec.Tensor) error {
	*dst = codec.Keys{Shape: dst.Shape[:0], Codes: dst.Codes[:0], Scales: dst.Scales[:0], Zeros: dst.Zeros[:0]}
	if err := c.b.enter(); err != nil {
		return err
	}
	defer c.b.leave()
	p := c.p
	if err := p.CheckEncodeKeys(x); err != nil {
		return err
	}
	rows := x.Rows()
	if rows > 0 && p.HeadDim > maxDim {
		return tooLong(p.HeadDim)
	}
	codesLen, scalesLen := p.KeyRowLen()
	out := codec.Keys{Codes: sized(dst.Codes, rows*codesLen), Scales: sized(dst.Scales, rows*scalesLen), Zeros: sized(dst.Zeros, rows*scalesLen)}
	if rows > 0 {
		found, err := c.encodeKeys(out, x)
		if err != nil {
			return failed(err)
		}
		if err := found.groups("keys", x, p.Group, p.ScaleType); err != nil {
			return err
		}
	}
	out.Shape = append(dst.Shape, x.Shape...)
	*dst = out
	return nil
}

func (c *KV) encodeKeys(out codec.Keys, t codec.Tensor) (status, error) {
	b, p, lead := c.b, c.p, t.Shape[:len(t.Shape)-1]
	codesLen, _ := p.KeyRowLen()
	groups := p.HeadDim / p.Group
	x := b.tensor(t, false)
	codes := b.packed(out.Codes, 1, codesLen, lead, true)
	scales := b.packed(out.Scales, p.ScaleType.Size(), groups, lead, true)
	zeros := b.packed(out.Zeros, p.ScaleType.Size(), groups, lead, true)
	found := newStatus()
	k, err := b.kernels.pick(need{op: "keys_encode", keyBits: p.Keys.Bits(), signed: p.Keys.Signed()}, wholeSIMD)
	if err != nil {
		return found, err
	}
	policy := shaders.PolicyFinite
	if p.Policy == codec.Compat {
		policy = shaders.PolicyCompat
	}
	return found, b.overRows(3, []*operand{x, codes, scales, zeros}, func(j *job, pl plan, row, n int, at []gpu.Binding, v []shaders.View) error {
		words, err := j.status()
		if err != nil {
			return err
		}
		args := shaders.KeysEncodeArgs{
			X: v[0], Codes: v[1], Scales: v[2], Zeros: v[3], N1: uint32(pl.n1), N2: uint32(pl.n2), Row0: uint32(row), Rows: uint32(n),
			Dim: uint32(p.HeadDim), Group: uint32(p.Group), XType: dtypes[t.DType], ScaleType: dtypes[p.ScaleType], Policy: policy,
		}
		j.add(k, n, shaders.LaneGrid(n, k.pipeline.MaxThreads()), 0, false, &args, append(at, gpu.Binding{Buffer: words})...)
		if err := j.run(); err != nil {
			return err
		}
		if err := found.read(words, row*p.HeadDim, row*groups); err != nil {
			return err
		}
		if p.Policy == codec.Compat {
			found.overflow = none // Compat stores it
		}
		return nil
	})
}

// EncodeValues rotates and packs x (docs/numerics.md §1, §3, §4, §5).
func (c *KV) EncodeValues(dst *codec.Values, x codec.Tensor) error {
	*dst = codec.Values{Shape: dst.Shape[:0], Codes: dst.Codes[:0], Scales: dst.Scales[:0]}
	if err := c.b.enter(); err != nil {
		return err
	}
	defer c.b.leave()
	p := c.p
	if err := p.CheckEncodeValues(x); err != nil {
		return err
	}
	rows := x.Rows()
	codesLen, scalesLen := p.ValueRowLen()
	out := codec.Values{Codes: sized(dst.Codes, rows*codesLen), Scales: sized(dst.Scales, rows*scalesLen)}
	if rows > 0 {
		found, err := c.encodeValues(out, x)
		if err != nil {
			return failed(err)
		}
		if err := found.groups("values", x, p.Group, p.ScaleType); err != nil {
			return err
		}
	}
	out.Shape = append(dst.Shape, x.Shape...)
	*dst = out
	return nil
}

func (c *KV) encodeValues(out codec.Values, t codec.Tensor) (status, error) {
	b, p, lead := c.b, c.p, t.Shape[:len(t.Shape)-1]
	d := p.ValueHeadDim
	codesLen, _ := p.ValueRowLen()
	groups := d / p.Group
	x := b.tensor(t, false)
	codes := b.packed(out.Codes, 1, codesLen, lead, true)
	scales := b.packed(out.Scales, p.ScaleType.Size(), groups, lead, true)
	found := newStatus()
	k, err := b.kernels.pick(need{op: "values_encode", bits: p.Values.Bits(), dim: d}, b.rowOf(d))
	if err != nil {
		return found, err
	}
	search := uint32(0)
	if p.Scale == codec.Search {
		search = 1
	}
	return found, b.overRows(3, []*operand{x, codes, scales}, func(j *job, pl plan, row, n int, at []gpu.Binding, v []shaders.View) error {
		words, err := j.status()
		if err != nil {
			return err
		}
		table, err := j.table(tableKey{levelTable, p.Values.Bits(), 0})
		if err != nil {
			return err
		}
		signs, err := j.table(tableKey{signTable, d, 0})
		if err != nil {
			return err
		}
		l := b.launchRow(k, d, n)
		args := shaders.ValuesEncodeArgs{
			X: v[0], Codes: v[1], Scales: v[2], N1: uint32(pl.n1), N2: uint32(pl.n2), Row0: uint32(row), Rows: uint32(n),
			Dim: uint32(d), Group: uint32(p.Group), Factor: uint32(factor(d)), ThreadsPerRow: uint32(l.ThreadsPerRow),
			XType: dtypes[t.DType], ScaleType: dtypes[p.ScaleType], Search: search, Norm: norm(d),
		}
		j.add(k, n, l.Grid, l.Bytes, false, &args, append(at, gpu.Binding{Buffer: words}, table, signs)...)
		if err := j.run(); err != nil {
			return err
		}
		if err := found.read(words, row*d, row*groups); err != nil {
			return err
		}
		if p.Policy == codec.Compat {
			found.overflow = none
		}
		return nil
	})
}

// DecodeKeys unpacks k (docs/numerics.md §2).
func (c *KV) DecodeKeys(dst codec.Tensor, k codec.Keys) error {
	if err := c.b.enter(); err != nil {
		return err
	}
	defer c.b.leave()
	if err := c.p.CheckDecodeKeys(dst, k); err != nil {
		return err
	}
	if dst.Len() == 0 {
		return nil
	}
	return failed(c.decodeKeys(dst, k))
}

func (c *KV) decodeKeys(dst codec.Tensor, keys codec.Keys) error {
	b, p := c.b, c.p
	k, err := b.kernels.pick(need{op: "keys_decode", keyBits: p.Keys.Bits(), signed: p.Keys.Signed()}, accept)
	if err != nil {
		return err
	}
	return b.overRows(3, append(c.keys(keys), b.tensor(dst, true)), func(j *job, pl plan, row, n int, at []gpu.Binding, v []shaders.View) error {
		args := shaders.KeysDecodeArgs{
			Codes: v[0], Scales: v[1], Zeros: v[2], Out: v[3], N1: uint32(pl.n1), N2: uint32(pl.n2), Row0: uint32(row), Rows: uint32(n),
			Dim: uint32(p.HeadDim), Group: uint32(p.Group), ScaleType: dtypes[p.ScaleType], OutType: dtypes[dst.DType], Wide: wide(v[3]),
		}
		j.add(k, n, shaders.ElementGrid(p.HeadDim/8, n, k.pipeline.MaxThreads()), 0, false, &args, at...)
		return j.run()
	})
}

// keys describes packed keys to read: codes, scales, zeros.
func (c *KV) keys(k codec.Keys) []*operand {
	lead := k.Shape[:len(k.Shape)-1]
	codesLen, _ := c.p.KeyRowLen()
	size, groups := c.p.ScaleType.Size(), c.p.HeadDim/c.p.Group
	return []*operand{c.b.packed(k.Codes, 1, codesLen, lead, false), c.b.packed(k.Scales, size, groups, lead, false), c.b.packed(k.Zeros, size, groups, lead, false)}
}

// values describes packed values to read: codes, scales.
func (c *KV) values(v codec.Values) []*operand {
	lead := v.Shape[:len(v.Shape)-1]
	codesLen, _ := c.p.ValueRowLen()
	return []*operand{c.b.packed(v.Codes, 1, codesLen, lead, false), c.b.packed(v.Scales, c.p.ScaleType.Size(), c.p.ValueHeadDim/c.p.Group, lead, false)}
}

// DecodeValues unpacks v and rotates it back (docs/numerics.md §3, §4).
func (c *KV) DecodeValues(dst codec.Tensor, v codec.Values) error {
	if err := c.b.enter(); err != nil {
		return err
	}
	defer c.b.leave()
	if err := c.p.CheckDecodeValues(dst, v); err != nil {
		return err
	}
	if dst.Len() == 0 {
		return nil
	}
	return failed(c.decodeInverse(codec.Tensor{}, dst, codec.Keys{}, v))
}

// DecodeValuesRotated unpacks v and leaves it rotated (docs/numerics.md §4).
func (c *KV) DecodeValuesRotated(dst codec.Tensor, v codec.Values) error {
	if err := c.b.enter(); err != nil {
		return err
	}
	defer c.b.leave()
	if err := c.p.CheckDecodeValues(dst, v); err != nil {
		return err
	}
	if dst.Len() == 0 {
		return nil
	}
	return failed(c.decodeValues(dst, v))
}

func (c *KV) decodeValues(dst codec.Tensor, values codec.Values) error {
	b, p := c.b, c.p
	d := p.ValueHeadDim
	k, err := b.kernels.pick(need{op: "values_decode", bits: p.Values.Bits()}, accept)
	if err != nil {
		return err
	}
	return b.overRows(3, append(c.values(values), b.tensor(dst, true)), func(j *job, pl plan, row, n int, at []gpu.Binding, v []shaders.View) error {
		table, err := j.table(tableKey{levelTable, p.Values.Bits(), 0})
		if err != nil {
			return err
		}
		args := shaders.ValuesDecodeArgs{
			Codes: v[0], Scales: v[1], Out: v[2], N1: uint32(pl.n1), N2: uint32(pl.n2), Row0: uint32(row), Rows: uint32(n),
			Dim: uint32(d), Group: uint32(p.Group), ScaleType: dtypes[p.ScaleType], OutType: dtypes[dst.DType], Wide: wide(v[2]),
		}
		j.add(k, n, shaders.ElementGrid(d/8, n, k.pipeline.MaxThreads()), 0, false, &args, append(at, table)...)
		return j.run()
	})
}

// Decode is DecodeKeys and DecodeValues in one pass.
func (c *KV) Decode(dstK, dstV codec.Tensor, k codec.Keys, v codec.Values) error {
	return c.decode(dstK, dstV, k, v, c.decodeInverse)
}

// DecodeRotated is DecodeKeys and DecodeValuesRotated in one pass.
func (c *KV) DecodeRotated(dstK, dstV codec.Tensor, k codec.Keys, v codec.Values) error {
	return c.decode(dstK, dstV, k, v, c.decodeJoint)
}

func (c *KV) decode(dstK, dstV codec.Tensor, k codec.Keys, v codec.Values, run func(dstK, dstV codec.Tensor, k codec.Keys, v codec.Values) error) error {
	if err := c.b.enter(); err != nil {
		return err
	}
	defer c.b.leave()
	if err := c.p.CheckDecode(dstK, dstV, k, v); err != nil {
		return err
	}
	if dstV.Len() == 0 {
		return nil
	}
	return failed(run(dstK, dstV, k, v))
}

// jointArgs are the arguments that the two joint kernels share. v is in the order
// of their buffers.
func (c *KV) jointArgs(pl plan, row, n int, v []shaders.View, dstK, dstV codec.DType) shaders.KVDecodeArgs {
	p := c.p
	return shaders.KVDecodeArgs{
		KCodes: v[0], KScales: v[1], KZeros: v[2], VCodes: v[3], VScales: v[4], KOut: v[5], VOut: v[6],
		N1: uint32(pl.n1), N2: uint32(pl.n2), Row0: uint32(row), Rows: uint32(n),
		KDim: uint32(p.HeadDim), KGroup: uint32(p.Group), VDim: uint32(p.ValueHeadDim), VGroup: uint32(p.Group),
		ScaleType: dtypes[p.ScaleType], KType: dtypes[dstK], VType: dtypes[dstV], KWide: wide(v[5]), VWide: wide(v[6]),
	}
}

func (c *KV) decodeJoint(dstK, dstV codec.Tensor, keys codec.Keys, values codec.Values) error {
	b, p := c.b, c.p
	k, err := b.kernels.pick(need{op: "kv_decode", bits: p.Values.Bits(), keyBits: p.Keys.Bits(), signed: p.Keys.Signed()}, accept)
	if err != nil {
		return err
	}
	ops := append(append(c.keys(keys), c.values(values)...), b.tensor(dstK, true), b.tensor(dstV, true))
	return b.overRows(3, ops, func(j *job, pl plan, row, n int, at []gpu.Binding, v []shaders.View) error {
		table, err := j.table(tableKey{levelTable, p.Values.Bits(), 0})
		if err != nil {
			return err
		}
		args := c.jointArgs(pl, row, n, v, dstK.DType, dstV.DType)
		grid := shaders.ElementGrid(max(p.HeadDim, p.ValueHeadDim)/8, n, k.pipeline.MaxThreads())
		j.add(k, n, grid, 0, false, &args, append(at, table)...)
		return j.run()
	})
}

// decodeInverse decodes values with the inverse rotation, and keys beside them
// unless dstK is the zero Tensor.
func (c *KV) decodeInverse(dstK, dstV codec.Tensor, keys codec.Keys, values codec.Values) error {
	b, p := c.b, c.p
	d := p.ValueHeadDim
	k, err := b.kernels.pick(need{op: "kv_inverse", bits: p.Values.Bits(), dim: d}, b.rowOf(d))
	if err != nil {
		return err
	}
	ops := append(c.values(values), b.tensor(dstV, true))
	both := dstK.DType != 0
	if both {
		ops = append(append(ops, c.keys(keys)...), b.tensor(dstK, true))
	}
	return b.overRows(3, ops, func(j *job, pl plan, row, n int, at []gpu.Binding, v []shaders.View) error {
		table, err := j.table(tableKey{levelTable, p.Values.Bits(), 0})
		if err != nil {
			return err
		}
		signs, err := j.table(tableKey{signTable, d, 0})
		if err != nil {
			return err
		}
		if !both { // the kernel does not touch what stands in for the keys
			at = append(at, at[0], at[1], at[1], at[2])
			v = append(v, shaders.View{}, shaders.View{}, shaders.View{}, shaders.View{})
		}
		order := [...]int{3, 4, 5, 0, 1, 6, 2}
		bindings, views := make([]gpu.Binding, 0, len(order)+2), make([]shaders.View, 0, len(order))
		for _, i := range order {
			bindings, views = append(bindings, at[i]), append(views, v[i])
		}
		args := c.jointArgs(pl, row, n, views, dstK.DType, dstV.DType)
		l := b.launchRow(k, d, n)
		args.KBits, args.Factor, args.ThreadsPerRow, args.Norm = uint32(p.Keys.Bits()), uint32(factor(d)), uint32(l.ThreadsPerRow), norm(d)
		if p.Keys.Signed() {
			args.KSigned = 1
		}
		if !both {
			args.KDim = 0
		}
		j.add(k, n, l.Grid, l.Bytes, false, &args, append(bindings, table, signs)...)
		return j.run()
	})
}

// Unrotate rotates rows back (docs/numerics.md §3, §4).
func (c *KV) Unrotate(dst, x codec.Tensor) error {
	if err := c.b.enter(); err != nil {
		return err
	}
	defer c.b.leave()
	if err := c.p.CheckUnrotate(dst, x); err != nil {
		return err
	}
	if x.Len() == 0 {
		return nil
	}
	return failed(c.unrotate(dst, x))
}

func (c *KV) unrotate(dst, x codec.Tensor) error {
	b, d := c.b, c.p.ValueHeadDim
	k, err := b.kernels.pick(need{op: "hadamard", dim: d}, b.rowOf(d))
	if err != nil {
		return err
	}
	return b.overRows(3, []*operand{b.tensor(x, false), b.tensor(dst, true)}, func(j *job, pl plan, row, n int, at []gpu.Binding, v []shaders.View) error {
		signs, err := j.table(tableKey{signTable, d, 0})
		if err != nil {
			return err
		}
		l := b.launchRow(k, d, n)
		args := shaders.HadamardArgs{
			X: v[0], Y: v[1], N1: uint32(pl.n1), N2: uint32(pl.n2), Row0: uint32(row), Rows: uint32(n), Dim: uint32(d), Factor: uint32(factor(d)),
			ThreadsPerRow: uint32(l.ThreadsPerRow), XType: dtypes[x.DType], YType: dtypes[dst.DType], Norm: norm(d),
		}
		j.add(k, n, l.Grid, l.Bytes, false, &args, append(at, signs)...)
		return j.run()
	})
}

// overRows runs f for every slab of the rows of ops, in up to dims dimensions,
// with the operands bound in their order.
func (b *Backend) overRows(dims int, ops []*operand, f func(j *job, pl plan, row, n int, at []gpu.Binding, v []shaders.View) error) error {
	pl, err := b.plan(dims, ops...)
	if err != nil {
		return err
	}
	return pl.each(func(row, n int) error {
		j := b.newJob()
		defer j.release()
		at, v := make([]gpu.Binding, len(ops), len(ops)+4), make([]shaders.View, len(ops))
		for i, o := range ops {
			if at[i], v[i], err = j.bind(o, pl, row, n); err != nil {
				return err
			}
		}
		return f(j, pl, row, n, at, v)
	})
}

// accept declines nothing.
func accept(kernel) error { return nil }

// wholeSIMD declines a kernel that the device cannot run in whole SIMD-groups.
func wholeSIMD(k kernel) error {
	switch {
	case k.pipeline.ExecutionWidth() != simdWidth:
		return fmt.Errorf("SIMD-groups of %d threads", k.pipeline.ExecutionWidth())
	case k.pipeline.MaxThreads() < simdWidth:
		return fmt.Errorf("threadgroups of %d threads", k.pipeline.MaxThreads())
	}
	return nil
}

// rowOf declines a kernel that cannot be launched over rows of dim.
func (b *Backend) rowOf(dim int) func(kernel) error {
	return func(k kernel) error {
		if err := wholeSIMD(k); err != nil || k.Launch != shaders.Rows {
			return err
		}
		_, err := shaders.RowLaunch(dim, 1, k.pipeline.MaxThreads(), b.room(k))
		return err
	}
}

// room is the threadgroup memory left to a kernel.
func (b *Backend) room(k kernel) int {
	return b.info.MaxThreadgroupMemory - k.pipeline.StaticThreadgroupMemory()
}

// launchRow lays a kernel that rowOf accepts over n rows.
func (b *Backend) launchRow(k kernel, dim, n int) shaders.RowPlan {
	if k.Launch == shaders.Lanes {
		return shaders.RowPlan{Grid: shaders.LaneGrid(n, k.pipeline.MaxThreads())}
	}
	l, err := shaders.RowLaunch(dim, n, k.pipeline.MaxThreads(), b.room(k))
	if err != nil {
		panic(errors.Join(errors.New("metal: launch of an accepted kernel"), err))
	}
	return l
}

// wide reports, as the kernels read it, whether four elements can be stored at
// once.
func wide(v shaders.View) uint32 {
	if v.S3 == 1 && (v.Base|v.S0|v.S1|v.S2)&3 == 0 {
		return 1
	}
	return 0
}

// sized returns b with length n, in the same memory if it is large enough.
func sized(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}
