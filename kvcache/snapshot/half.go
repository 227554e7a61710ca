package snapshot

import (
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
)

// half is the keys or the values of a layer. What differs between the two is
// here; the rest of the package loops over halves and planes.
type half struct {
	part   func(*Layer) *Part
	planes func(codec.KVParams) []plane // in file order
	// set makes data, a slice per plane, the packed rows of x, of the given shape.
	set func(x *rows, shape []int, data [][]byte)
	// encode packs in to x and returns its planes.
	encode func(kv codec.KV, x *rows, in codec.Tensor) ([][]byte, error)
	// decode restores the packed rows of x to out.
	decode func(kv codec.KV, out codec.Tensor, x *rows) error
}

// plane is one stored tensor of a half: a number of elements for each row.
type plane struct {
	suffix   string // of its name, after the packed tensor's
	dtype    safetensors.DType
	elements int // of a row
}

func (p plane) rowBytes() int { return p.elements * p.dtype.Size() }

// rows holds packed rows of keys or of values.
type rows struct {
	keys   codec.Keys
	values codec.Values
}

// halves are the keys and the values, in file order.
var halves = []half{{
	part: func(l *Layer) *Part { return &l.Keys },
	planes: func(p codec.KVParams) []plane {
		codes := plane{".codes", safetensors.U8, 0}
		if p.Keys.Signed() {
			codes.dtype = safetensors.I8
		}
		codes.elements, _ = p.KeyRowLen()
		scales := safetensors.DTypeOf(p.ScaleType)
		return []plane{{".scales", scales, p.HeadDim / p.Group}, {".zeros", scales, p.HeadDim / p.Group}, codes}
	},
	set: func(x *rows, shape []int, data [][]byte) {
		x.keys = codec.Keys{Shape: shape, Scales: data[0], Zeros: data[1], Codes: data[2]}
	},
	encode: func(kv codec.KV, x *rows, in codec.Tensor) ([][]byte, error) {
		err := kv.EncodeKeys(&x.keys, in)
		return [][]byte{x.keys.Scales, x.keys.Zeros, x.keys.Codes}, err
	},
	decode: func(kv codec.KV, out codec.Tensor, x *rows) error { return kv.DecodeKeys(out, x.keys) },
}, {
	part: func(l *Layer) *Part { return &l.Values },
	planes: func(p codec.KVParams) []plane {
		n, _ := p.ValueRowLen()
		return []plane{{".scales", safetensors.DTypeOf(p.ScaleType), p.ValueHeadDim / p.Group}, {".codes", safetensors.U8, n}}
	},
	set: func(x *rows, shape []int, data [][]byte) {
		x.values = codec.Values{Shape: shape, Scales: data[0], Codes: data[1]}
	},
	encode: func(kv codec.KV, x *rows, in codec.Tensor) ([][]byte, error) {
		err := kv.EncodeValues(&x.values, in)
		return [][]byte{x.values.Scales, x.values.Codes}, err
	},
	decode: func(kv codec.KV, out codec.Tensor, x *rows) error { return kv.DecodeValues(out, x.values) },
}}
