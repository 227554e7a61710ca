package ref

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"github.com/turbotrellis/turbotrellis/internal/vectors"
	"github.com/turbotrellis/turbotrellis/pack"
)

// Every row code of testdata/row_codes.safetensors, which a numpy model of docs/numerics.md §10 wrote.
func TestVectorRowCodes(t *testing.T) {
	f := vectors.Load(t, "row_codes.safetensors")
	widen := func(bits []uint16) []float32 {
		out := make([]float32, len(bits))
		for i, b := range bits {
			out[i] = pack.FromF16(b)
		}
		return out
	}
	used := map[string]bool{"table.k2": true, "table.k3": true, "table.k4": true}
	rows := 0
	for d := 32; d <= 8192; d += 32 {
		base := fmt.Sprintf("d%d.", d)
		if !f.Has(base + "x") {
			continue
		}
		x := f.F32(t, base+"x")
		used[base+"x"], used[base+"centre.mu"], used[base+"centre.gain"] = true, true, true
		mu, gain := widen(f.U16(t, base+"centre.mu")), widen(f.U16(t, base+"centre.gain"))
		for _, code := range []string{"levels2", "levels3", "levels4", "levels5", "trellis2", "trellis3", "trellis4"} {
			for _, centred := range []bool{false, true} {
				name := base + code
				if centred {
					name += ".centred"
				}
				t.Run(name, func(t *testing.T) {
					bits := int(code[len(code)-1] - '0')
					c, err := newRowCode(d, bits, code[0] == 't')
					if err != nil {
						t.Fatal(err)
					}
					scales, codes, decoded := f.Bytes(t, name+".scales"), f.Bytes(t, name+".codes"), f.F32(t, name+".decoded")
					used[name+".scales"], used[name+".codes"], used[name+".decoded"] = true, true, true
					var rotated []float32
					if !centred {
						rotated = f.F32(t, name+".rotated")
						used[name+".rotated"] = true
					}
					for r := range len(x) / d {
						var m, g []float32
						if centred {
							m, g = mu, gain
						}
						copy(c.canon, x[r*d:])
						got := make([]byte, d*bits/8)
						scale, overflow := c.encode(got, m, g)
						if overflow || scale != scales[r] || !bytes.Equal(got, codes[r*len(got):][:len(got)]) {
							t.Fatalf("row %d: overflow %t, scale %d, want %d; codes equal: %t", r, overflow, scale, scales[r], bytes.Equal(got, codes[r*len(got):][:len(got)]))
						}
						c.decode(got, scale)
						if rotated != nil {
							equalBits(t, fmt.Sprintf("row %d rotated", r), c.decoded, rotated[r*d:][:d])
						}
						c.unrotate(m, g)
						equalBits(t, fmt.Sprintf("row %d decoded", r), c.decoded, decoded[r*d:][:d])
						rows++
					}
				})
			}
		}
	}
	for _, name := range f.Names() {
		if !used[name] {
			t.Errorf("%s was not read", name)
		}
	}
	if rows == 0 {
		t.Error("no rows")
	}
	t.Logf("%d rows", rows)
}

func equalBits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: element %d = %x, want %x", what, i, math.Float32bits(got[i]), math.Float32bits(want[i]))
		}
	}
}
