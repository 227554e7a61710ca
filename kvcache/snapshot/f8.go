package snapshot

import (
	"encoding/binary"
	"sync"

	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/pack"
)

// widened returns the type in which tensors of type d are packed: F16 for 8-bit floats, which it holds exactly.
func widened(d safetensors.DType) safetensors.DType {
	if d == safetensors.F8E4M3 || d == safetensors.F8E5M2 {
		return safetensors.F16
	}
	return d
}

// widen writes the binary16 of each 8-bit float of type d in src to dst.
func widen(dst, src []byte, d safetensors.DType) {
	table := e4m3()
	if d == safetensors.F8E5M2 {
		table = e5m2()
	}
	for i, b := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], table[b])
	}
}

var (
	e4m3 = sync.OnceValue(func() *[256]uint16 { return f16Table(pack.FromE4M3) })
	e5m2 = sync.OnceValue(func() *[256]uint16 { return f16Table(pack.FromE5M2) })
)

func f16Table(from func(byte) float32) *[256]uint16 {
	var table [256]uint16
	for b := range table {
		table[b] = pack.ToF16(from(byte(b)))
	}
	return &table
}
