package gpu

import (
	"fmt"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/pack"
	"github.com/turbotrellis/turbotrellis/shaders"
)

// packSlab is how many codes are packed in a dispatch, a multiple of 8.
const packSlab = 1 << 24

// Pack packs codes, one a byte, into dst at 1 to 8 bits each (docs/numerics.md
// §5). dst has exactly pack.PackedLen(len(codes), bits) bytes. The bits of a code
// above the width are ignored, where pack.Pack refuses them.
func (b *Backend) Pack(dst, codes []byte, bits int) error {
	return b.repack("pack", codes, dst, bits)
}

// Unpack unpacks len(dst) codes of the given width from src, which has exactly
// pack.PackedLen(len(dst), bits) bytes.
func (b *Backend) Unpack(dst, src []byte, bits int) error {
	return b.repack("unpack", dst, src, bits)
}

func (b *Backend) repack(op string, codes, packed []byte, bits int) error {
	n := len(codes)
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	want, err := pack.PackedLen(n, bits)
	if err != nil {
		return &codec.Error{Err: codec.ErrParams, Tensor: "codes", Index: codec.NoIndex, Reason: err.Error()}
	}
	if len(packed) != want {
		return &codec.Error{Err: codec.ErrShape, Tensor: "packed codes", Index: codec.NoIndex,
			Reason: fmt.Sprintf("%d bytes for %d codes of %d bits, want %d", len(packed), n, bits, want)}
	}
	k, err := b.kernels.pick(need{op: op, bits: bits}, accept)
	if err != nil {
		return failed(err)
	}
	for first := 0; first < n; first += packSlab {
		count := min(packSlab, n-first)
		bytes := count * bits / 8
		c, p := codes[first:][:count], packed[first*bits/8:][:bytes]
		j := b.newJob()
		err := func() error {
			defer j.release()
			codesAt, codesBase, err := j.hold(c, 1, op == "unpack")
			if err != nil {
				return err
			}
			packedAt, packedBase, err := j.hold(p, 1, op == "pack")
			if err != nil {
				return err
			}
			args := shaders.PackArgs{Codes: shaders.View{Base: codesBase, S3: 1}, Packed: shaders.View{Base: packedBase, S3: 1}, N1: 1, N2: 1, Rows: 1, Dim: uint32(count)}
			bindings := []gpu.Binding{codesAt, packedAt}
			if op == "unpack" {
				bindings = []gpu.Binding{packedAt, codesAt}
			}
			j.add(k, 1, shaders.ElementGrid((count+7)/8, 1, k.pipeline.MaxThreads()), 0, false, &args, bindings...)
			if err := j.run(); err != nil {
				return err
			}
			return j.finish()
		}()
		if err != nil {
			return failed(err)
		}
	}
	return nil
}
