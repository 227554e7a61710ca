package threefry

import (
	"slices"
	"testing"
)

// The known answers of the Random123 distribution (kat_vectors, threefry2x32 20).
func TestKnownAnswers(t *testing.T) {
	const ones = 0xffffffff
	for _, v := range []struct{ key, ctr, want [2]uint32 }{
		{[2]uint32{0, 0}, [2]uint32{0, 0}, [2]uint32{0x6b200159, 0x99ba4efe}},
		{[2]uint32{ones, ones}, [2]uint32{ones, ones}, [2]uint32{0x1cb996fc, 0xbb002be7}},
		{[2]uint32{0x13198a2e, 0x03707344}, [2]uint32{0x243f6a88, 0x85a308d3}, [2]uint32{0xc4923a9c, 0x483df7a0}},
	} {
		a, b := block(v.key[0], v.key[1], v.ctr[0], v.ctr[1])
		if a != v.want[0] || b != v.want[1] {
			t.Errorf("block(%x, %x) = %x %x, want %x", v.key, v.ctr, a, b, v.want)
		}
	}
}

// Words printed by MLX for bits(key(42), n).
func TestMLXWords(t *testing.T) {
	for _, v := range []struct {
		n    int
		want []uint32
	}{
		{0, nil},
		{4, []uint32{0x92fb20ea, 0xdb4c98db, 0x0f38d913, 0x0ff68959}},
		{5, []uint32{0xbad56946, 0xde837c89, 0x3249c374, 0x354ba891, 0x2fc69b62}},
		{64, []uint32{0x4a53a5a2, 0xd5a6507b, 0xd001fae1, 0xc773a4a8}},
	} {
		const guard = 0xfeedface
		buf := make([]uint32, v.n+1)
		buf[v.n] = guard
		Bits(buf[:v.n], 42)
		if got := buf[:len(v.want)]; !slices.Equal(got, v.want) {
			t.Errorf("n=%d: %08x, want %08x", v.n, got, v.want)
		}
		if buf[v.n] != guard {
			t.Errorf("n=%d: wrote past the end", v.n)
		}
	}
}

// The seed's high word is the first word of the key.
func TestSeedWords(t *testing.T) {
	var dst, low [2]uint32
	Bits(dst[:], 0x13198a2e03707344)
	a, b := block(0x13198a2e, 0x03707344, 0, 1)
	if dst != [2]uint32{a, b} {
		t.Errorf("Bits = %x, want %x %x", dst, a, b)
	}
	if Bits(low[:], 0x03707344); low == dst {
		t.Error("the seed's high word is ignored")
	}
}

func BenchmarkBits(b *testing.B) {
	dst := make([]uint32, 512)
	b.ReportAllocs()
	for b.Loop() {
		Bits(dst, 42)
	}
	b.ReportMetric(float64(len(dst))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Melem/s")
}
