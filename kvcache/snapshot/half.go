package snapshot

import (
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
)

// rows holds packed rows of keys or of values.
type rows struct {
	keys   codec.Keys
	values codec.Values
}

// half is the keys or the values of a layer. What differs between the two is
// here; the rest of the package loops over halves and planes.
type half struct {
	part    func(*Layer) *Part
	format  func(codec.KVParams) codec.Format
	signed  bool // codes of a signed format are
	centred func(codec.KVParams) bool
	planes  func(*rows, codec.KVParams) []codec.Plane
	shape   func(*rows) *[]int
	centre  func(*rows) *codec.Centre
	data    func(x *rows, plane string) *[]byte
	encode  func(kv codec.KV, x *rows, in codec.Tensor) error
	decode  func(kv codec.KV, out codec.Tensor, x *rows) error
}

// halves are the keys and the values, in file order.
var halves = []half{{
	part:    func(l *Layer) *Part { return &l.Keys },
	format:  func(p codec.KVParams) codec.Format { return p.Keys },
	signed:  true,
	centred: func(p codec.KVParams) bool { return p.CentreKeys },
	planes:  func(x *rows, p codec.KVParams) []codec.Plane { return x.keys.Planes(p) },
	shape:   func(x *rows) *[]int { return &x.keys.Shape },
	centre:  func(x *rows) *codec.Centre { return &x.keys.Centre },
	data: func(x *rows, plane string) *[]byte {
		return map[string]*[]byte{"codes": &x.keys.Codes, "scales": &x.keys.Scales, "zeros": &x.keys.Zeros}[plane]
	},
	encode: func(kv codec.KV, x *rows, in codec.Tensor) error { return kv.EncodeKeys(&x.keys, in) },
	decode: func(kv codec.KV, out codec.Tensor, x *rows) error { return kv.DecodeKeys(out, x.keys) },
}, {
	part:    func(l *Layer) *Part { return &l.Values },
	format:  func(p codec.KVParams) codec.Format { return p.Values },
	centred: func(p codec.KVParams) bool { return p.CentreValues },
	planes:  func(x *rows, p codec.KVParams) []codec.Plane { return x.values.Planes(p) },
	shape:   func(x *rows) *[]int { return &x.values.Shape },
	centre:  func(x *rows) *codec.Centre { return &x.values.Centre },
	data: func(x *rows, plane string) *[]byte {
		return map[string]*[]byte{"codes": &x.values.Codes, "scales": &x.values.Scales}[plane]
	},
	encode: func(kv codec.KV, x *rows, in codec.Tensor) error { return kv.EncodeValues(&x.values, in) },
	decode: func(kv codec.KV, out codec.Tensor, x *rows) error { return kv.DecodeValues(out, x.values) },
}}

// plane is one stored tensor of the packed rows of a half.
type plane struct {
	name   string // the codec's; the tensor's name ends in it
	dtype  safetensors.DType
	rowLen int // bytes per row
}

func (p plane) suffix() string { return "." + p.name }

// stored returns the planes of a half, in file order: the codes last.
func (h half) stored(p codec.KVParams) []plane {
	var list []plane
	for _, pl := range h.planes(new(rows), p) {
		dtype := safetensors.DTypeOf(pl.DType)
		switch {
		case pl.DType != 0:
		case h.signed && h.format(p).Signed() && pl.Name == "codes":
			dtype = safetensors.I8
		default:
			dtype = safetensors.U8
		}
		list = append(list, plane{pl.Name, dtype, pl.RowLen})
	}
	return append(list[1:], list[0])
}

// The tensors of a part besides its planes end in these.
const (
	meanSuffix  = ".mean"
	gainSuffix  = ".gain"
	firstSuffix = ".first"
	lastSuffix  = ".last"
)
