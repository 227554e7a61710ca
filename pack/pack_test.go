package pack

import (
	"bytes"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"
)

func TestWorkedExample(t *testing.T) {
	src := []byte{5, 2, 7, 1, 0, 6, 3, 4}
	want := []byte{0xd5, 0x03, 0x8f}
	got, err := packed(src, 3)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("Pack = %x, %v; want %x", got, err, want)
	}
	back := make([]byte, len(src))
	if err := Unpack(back, got, 3); err != nil || !bytes.Equal(back, src) {
		t.Fatalf("Unpack = %x, %v; want %x", back, err, src)
	}
}

// packed returns src packed.
func packed(src []byte, bits int) ([]byte, error) {
	n, err := PackedLen(len(src), bits)
	if err != nil {
		return nil, err
	}
	dst := bytes.Repeat([]byte{0xa5}, n)
	return dst, Pack(dst, src, bits)
}

func TestPackedLen(t *testing.T) {
	counts := []int{math.MinInt, -8, -1, math.MaxInt, math.MaxInt - 7, math.MaxInt/8 + 1, math.MaxInt / 8}
	for n := range 130 {
		counts = append(counts, n)
	}
	for _, n := range counts {
		for bits := -1; bits <= 10; bits++ {
			got, err := PackedLen(n, bits)
			total := new(big.Int).Mul(big.NewInt(int64(n)), big.NewInt(int64(bits)))
			want, rem := new(big.Int).QuoRem(total, big.NewInt(8), new(big.Int))
			ok := n >= 0 && bits >= 1 && bits <= 8 && rem.Sign() == 0
			switch {
			case ok && (err != nil || int64(got) != want.Int64()):
				t.Errorf("PackedLen(%d, %d) = %d, %v; want %d", n, bits, got, err, want)
			case !ok && err == nil:
				t.Errorf("PackedLen(%d, %d) = %d, want an error", n, bits, got)
			case !ok && got != 0:
				t.Errorf("PackedLen(%d, %d) = %d, %v", n, bits, got, err)
			}
		}
	}
	_, err := PackedLen(12, 3)
	const want = "12 elements of 3 bits do not fill whole bytes: the count must be a multiple of 8"
	if err == nil || err.Error() != want {
		t.Errorf("PackedLen(12, 3): %v", err)
	}
	for bits, multiple := range map[int]int{1: 8, 2: 4, 3: 8, 4: 2, 5: 8, 6: 4, 7: 8} {
		_, err := PackedLen(8*multiple+1, bits)
		if want := fmt.Sprintf("multiple of %d", multiple); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%d bits: error %v does not name a %s", bits, err, want)
		}
	}
}

// packOracle places the elements in one large integer and takes its bytes.
func packOracle(src []byte, bits int) []byte {
	stream := new(big.Int)
	for i, v := range src {
		stream.Or(stream, new(big.Int).Lsh(big.NewInt(int64(v)), uint(i*bits)))
	}
	out := stream.FillBytes(make([]byte, len(src)*bits/8))
	slices.Reverse(out)
	return out
}

// guarded returns n bytes between guards, and a check that the guards stand.
func guarded(t *testing.T, n int) (buf []byte, check func()) {
	const guard = 16
	all := bytes.Repeat([]byte{0xa5}, n+2*guard)
	return all[guard : guard+n : guard+n], func() {
		t.Helper()
		for i, v := range all {
			if (i < guard || i >= guard+n) && v != 0xa5 {
				t.Fatalf("guard byte at %d of %d overwritten", i-guard, n)
			}
		}
	}
}

// ramp counts up through every code, from a different start at each turn.
func ramp(n, bits int) []byte {
	src := make([]byte, n)
	for i := range src {
		src[i] = byte((i + i>>bits) & (1<<bits - 1))
	}
	return src
}

// Every code at every width, at every length that fills whole bytes, against
// the large integer.
func TestRampEveryWidthAndLength(t *testing.T) {
	for bits := 1; bits <= 8; bits++ {
		lengths := []int{512, 2880}
		for n := range 80 {
			lengths = append(lengths, n)
		}
		seen := map[byte]bool{}
		for _, n := range lengths {
			size, err := PackedLen(n, bits)
			if err != nil {
				continue
			}
			src := ramp(n, bits)
			want := packOracle(src, bits)
			packed, checkPacked := guarded(t, size)
			if err := Pack(packed, src, bits); err != nil {
				t.Fatalf("Pack %d×%d bits: %v", n, bits, err)
			}
			checkPacked()
			if !bytes.Equal(packed, want) {
				t.Fatalf("Pack %d×%d bits = %x, want %x", n, bits, packed, want)
			}
			got, checkGot := guarded(t, n)
			if err := Unpack(got, want, bits); err != nil {
				t.Fatalf("Unpack %d×%d bits: %v", n, bits, err)
			}
			checkGot()
			if !bytes.Equal(got, src) {
				t.Fatalf("Unpack %d×%d bits = %x, want %x", n, bits, got, src)
			}
			for _, v := range got {
				seen[v] = true
			}
		}
		if len(seen) != 1<<bits {
			t.Errorf("%d bits: %d codes seen of %d", bits, len(seen), 1<<bits)
		}
	}
}

func TestOverwrites(t *testing.T) {
	for bits := 1; bits <= 8; bits++ {
		src := ramp(40, bits)
		want := packOracle(src, bits)
		got, err := packed(src, bits)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bits: Pack = %x, %v", bits, got, err)
		}
		back := bytes.Repeat([]byte{0xa5}, len(src))
		if err := Unpack(back, want, bits); err != nil || !bytes.Equal(back, src) {
			t.Errorf("%d bits: Unpack = %x, %v", bits, back, err)
		}
	}
}

func TestEmpty(t *testing.T) {
	for bits := 1; bits <= 8; bits++ {
		if err := Pack(nil, nil, bits); err != nil {
			t.Error(err)
		}
		if err := Unpack(nil, nil, bits); err != nil {
			t.Error(err)
		}
	}
}

// Every wrong length near the right one is an error that leaves dst alone.
func TestWrongLength(t *testing.T) {
	for bits := 1; bits <= 8; bits++ {
		for n := range 33 {
			size, lenErr := PackedLen(n, bits)
			for k := range 48 {
				wrong := lenErr != nil || k != size
				if !wrong {
					continue
				}
				dst, check := guarded(t, k)
				if err := Pack(dst, make([]byte, n), bits); err == nil {
					t.Errorf("Pack of %d×%d bits into %d bytes: no error", n, bits, k)
				}
				check()
				if slices.ContainsFunc(dst, func(b byte) bool { return b != 0xa5 }) {
					t.Errorf("Pack of %d×%d bits into %d bytes wrote", n, bits, k)
				}
				dst, check = guarded(t, n)
				if err := Unpack(dst, make([]byte, k), bits); err == nil {
					t.Errorf("Unpack of %d×%d bits from %d bytes: no error", n, bits, k)
				}
				check()
				if slices.ContainsFunc(dst, func(b byte) bool { return b != 0xa5 }) {
					t.Errorf("Unpack of %d×%d bits from %d bytes wrote", n, bits, k)
				}
			}
		}
	}
	for _, bits := range []int{math.MinInt, -1, 0, 9, 16, math.MaxInt} {
		if err := Pack(make([]byte, 8), make([]byte, 8), bits); err == nil {
			t.Errorf("Pack at %d bits: no error", bits)
		}
		if err := Unpack(make([]byte, 8), make([]byte, 8), bits); err == nil {
			t.Errorf("Unpack at %d bits: no error", bits)
		}
	}
}

func TestOutOfRange(t *testing.T) {
	for bits := 1; bits <= 7; bits++ {
		for at := range 24 {
			for v := 1 << bits; v < 256; v++ {
				src := make([]byte, 24)
				src[23] = 0xff // the first is the one to name
				src[at] = byte(v)
				want := fmt.Sprintf("index %d at position %d does not fit %d bits", v, at, bits)
				dst := bytes.Repeat([]byte{0xa5}, 3*bits)
				if err := Pack(dst, src, bits); err == nil || err.Error() != want {
					t.Fatalf("Pack: %v, want %s", err, want)
				}
				if !bytes.Equal(dst, bytes.Repeat([]byte{0xa5}, 3*bits)) {
					t.Fatalf("Pack wrote before it failed: %x", dst)
				}
			}
		}
	}
}

func TestAllocs(t *testing.T) {
	for bits := 1; bits <= 8; bits++ {
		src := ramp(128, bits)
		packed := make([]byte, 16*bits)
		if n := testing.AllocsPerRun(100, func() {
			if Pack(packed, src, bits) != nil || Unpack(src, packed, bits) != nil {
				t.Fatal("round trip failed")
			}
		}); n != 0 {
			t.Errorf("%d bits: %v allocations", bits, n)
		}
	}
}

// Any indices survive packing, and any bytes survive unpacking.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte{5, 2, 7, 1, 0, 6, 3, 4}, 3)
	f.Add([]byte{0xff, 0, 0x80}, 8)
	f.Add([]byte{}, 9)
	f.Fuzz(func(t *testing.T, data []byte, bits int) {
		if packed, err := packed(data, bits); err == nil {
			if !bytes.Equal(packed, packOracle(data, bits)) {
				t.Errorf("Pack(%x, %d) = %x", data, bits, packed)
			}
			back := make([]byte, len(data))
			if err := Unpack(back, packed, bits); err != nil || !bytes.Equal(back, data) {
				t.Errorf("%d bits: %x came back as %x, %v", bits, data, back, err)
			}
		}
		if bits < 1 || bits > 8 || len(data)*8%bits != 0 {
			return
		}
		src := make([]byte, len(data)*8/bits)
		if err := Unpack(src, data, bits); err != nil {
			t.Fatal(err)
		}
		again, err := packed(src, bits)
		if err != nil || !bytes.Equal(again, data) {
			t.Errorf("%d bits: bytes %x came back as %x, %v", bits, data, again, err)
		}
	})
}

const benchLen = 4096

func reportRate(b *testing.B) {
	b.ReportMetric(float64(b.N)*benchLen/b.Elapsed().Seconds()/1e6, "Melem/s")
}

func BenchmarkPack(b *testing.B) {
	for bits := 1; bits <= 8; bits++ {
		b.Run(fmt.Sprintf("bits=%d", bits), func(b *testing.B) {
			src := ramp(benchLen, bits)
			dst := make([]byte, benchLen*bits/8)
			b.ReportAllocs()
			for b.Loop() {
				if err := Pack(dst, src, bits); err != nil {
					b.Fatal(err)
				}
			}
			reportRate(b)
		})
	}
}

func BenchmarkUnpack(b *testing.B) {
	for bits := 1; bits <= 8; bits++ {
		b.Run(fmt.Sprintf("bits=%d", bits), func(b *testing.B) {
			src := packOracle(ramp(benchLen, bits), bits)
			dst := make([]byte, benchLen)
			b.ReportAllocs()
			for b.Loop() {
				if err := Unpack(dst, src, bits); err != nil {
					b.Fatal(err)
				}
			}
			reportRate(b)
		})
	}
}
