package lloydmax

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"
)

var widths = []int{2, 3, 4, 5, 8}

func table(t testing.TB, bits int) *Table {
	t.Helper()
	tab, err := Lookup(bits)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

// count is Index's definition, by counting.
func count(boundaries []float32, n float32) int {
	c := 0
	for _, b := range boundaries {
		if n > b {
			c++
		}
	}
	return c
}

func TestIndexAtBoundaries(t *testing.T) {
	for _, bits := range widths {
		tab := table(t, bits)
		bounds := tab.AppendBoundaries(nil)
		inf := float32(math.Inf(1))
		probes := []float32{-inf, inf, 0, float32(math.Copysign(0, -1)), math.MaxFloat32, -math.MaxFloat32,
			math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32}
		for i, b := range bounds {
			below, above := math.Nextafter32(b, -inf), math.Nextafter32(b, inf)
			probes = append(probes, below, b, above)
			for _, p := range []struct {
				n    float32
				want int
			}{{below, i}, {b, i}, {above, i + 1}} {
				if got := tab.Index(p.n); got != p.want {
					t.Errorf("%d bits: Index(%v) = %d, want %d", bits, p.n, got, p.want)
				}
			}
		}
		probes = tab.AppendCentroids(probes)
		for x := float32(-6); x <= 6; x += 1.0 / 1024 {
			probes = append(probes, x)
		}
		for _, n := range probes {
			if got, want := tab.Index(n), count(bounds, n); got != want {
				t.Errorf("%d bits: Index(%v) = %d, want %d", bits, n, got, want)
			}
		}
		for i := range tab.Levels() {
			if got := tab.Index(tab.Centroid(i)); got != i {
				t.Errorf("%d bits: centroid %d has index %d", bits, i, got)
			}
		}
		for _, b := range []uint32{0x7fc00000, 0xffc00000, 0x7f800001} {
			if got := tab.Index(math.Float32frombits(b)); got != 0 {
				t.Errorf("%d bits: Index(NaN %08x) = %d, want 0", bits, b, got)
			}
		}
	}
}

// 4 Ki floats a width at random bit patterns: every exponent, NaN included.
func TestIndexRandomBits(t *testing.T) {
	for _, bits := range widths {
		tab := table(t, bits)
		bounds := tab.AppendBoundaries(nil)
		for b := uint32(12345); b < math.MaxUint32-1048573; b += 1048573 {
			n := math.Float32frombits(b)
			if got, want := tab.Index(n), count(bounds, n); got != want {
				t.Fatalf("%d bits: Index(%v) = %d, want %d", bits, n, got, want)
			}
		}
	}
}

func FuzzIndex(f *testing.F) {
	f.Add(uint32(0))
	f.Add(uint32(0x3fdfbc2c))
	f.Fuzz(func(t *testing.T, b uint32) {
		n := math.Float32frombits(b)
		for _, bits := range widths {
			tab := table(t, bits)
			if got, want := tab.Index(n), count(tab.AppendBoundaries(nil), n); got != want {
				t.Errorf("%d bits: Index(%v) = %d, want %d", bits, n, got, want)
			}
		}
	})
}

// Complete, strictly ascending, and every boundary between its two centroids:
// so no level is dead.
func TestShape(t *testing.T) {
	for _, bits := range widths {
		tab := table(t, bits)
		if tab.Bits() != bits || tab.Levels() != 1<<bits {
			t.Errorf("%d bits: Bits %d, Levels %d", bits, tab.Bits(), tab.Levels())
		}
		c, b := tab.AppendCentroids([]float32{7}), tab.AppendBoundaries([]float32{7})
		if c[0] != 7 || b[0] != 7 || len(c) != 1+1<<bits || len(b) != 1<<bits {
			t.Fatalf("%d bits: %d centroids, %d boundaries", bits, len(c)-1, len(b)-1)
		}
		c, b = c[1:], b[1:]
		for i := range b {
			if !(c[i] < b[i] && b[i] < c[i+1]) {
				t.Errorf("%d bits: centroids %v, %v about boundary %d, %v", bits, c[i], c[i+1], i, b[i])
			}
			if c[i] != tab.Centroid(i) || b[i] != tab.Boundary(i) {
				t.Errorf("%d bits: level %d differs between accessors", bits, i)
			}
		}
	}
	// Of the five, the 3-bit table alone is symmetric.
	tab := table(t, 3)
	for i := range 8 {
		if tab.Centroid(i) != -tab.Centroid(7-i) {
			t.Errorf("3 bits: centroid %d has no mirror", i)
		}
	}
}

// What Append returns is the caller's: a table cannot be written through it.
func TestImmutable(t *testing.T) {
	tab := table(t, 3)
	c, b := tab.AppendCentroids(nil), tab.AppendBoundaries(nil)
	c[0], b[0] = 1, 1
	if tab.Centroid(0) == 1 || tab.Boundary(0) == 1 {
		t.Error("a table shares memory with its caller")
	}
}

func TestLookupUnknown(t *testing.T) {
	for bits := -2; bits <= 40; bits++ {
		tab, err := Lookup(bits)
		if known := slices.Contains(widths, bits); known != (err == nil) || known != (tab != nil) {
			t.Errorf("Lookup(%d) = %v, %v", bits, tab, err)
		}
	}
	for _, bits := range []int{math.MinInt, math.MaxInt} {
		if _, err := Lookup(bits); err == nil {
			t.Errorf("Lookup(%d): no error", bits)
		}
	}
}

func TestAllocs(t *testing.T) {
	tab := table(t, 8)
	buf := make([]float32, 0, 256)
	sum := 0
	if n := testing.AllocsPerRun(100, func() {
		sum += tab.Index(0.3)
		buf = tab.AppendCentroids(buf[:0])
		buf = tab.AppendBoundaries(buf[:0])
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func ExampleTable_Index() {
	tab, err := Lookup(3)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, n := range []float32{-3, 0, 0.4, 1.05} {
		i := tab.Index(n)
		fmt.Println(n, i, tab.Centroid(i))
	}
	// Output:
	// -3 0 -2.15195
	// 0 3 -0.24509
	// 0.4 4 0.24509
	// 1.05 6 1.34391
}

func BenchmarkIndex(b *testing.B) {
	r := uint64(1)
	x := make([]float32, 4096)
	for i := range x {
		s := -6.0
		for range 12 { // a sum of twelve uniforms is near enough to normal
			r ^= r << 13
			r ^= r >> 7
			r ^= r << 17
			s += float64(r>>11) / (1 << 53)
		}
		x[i] = float32(s)
	}
	for _, bits := range widths {
		b.Run(fmt.Sprintf("bits=%d", bits), func(b *testing.B) {
			tab := table(b, bits)
			dst := make([]byte, len(x))
			b.ReportAllocs()
			for b.Loop() {
				for i, n := range x {
					dst[i] = byte(tab.Index(n))
				}
			}
			b.ReportMetric(float64(b.N)*float64(len(x))/b.Elapsed().Seconds()/1e6, "Melem/s")
		})
	}
}

// The tables are the format. A digest covers the little-endian bit patterns of
// the centroids, then of the boundaries.
func TestChecksum(t *testing.T) {
	want := map[int]string{
		2: "60dcbe0cd696cede93201924a769bb2b975c98387964b9e1a0cb2481d3b235e3",
		3: "28d44b55549a33037f4031bd0b72eba43c3056baa03323d3d64d535a1909de01",
		4: "1795aa1835f64e3798f588feab7ee405337d75b58ce83f629932a504d6822527",
		5: "776902dd08a23c451ae15ed0e145fe27022df011d10c91bda27ad6b87900fe51",
		8: "18c44cdebbf65758d651e9e5c65cba96ae7430fc595490a7cc370e7a7f25dddd",
	}
	for _, bits := range widths {
		tab := table(t, bits)
		var raw []byte
		for _, x := range tab.AppendBoundaries(tab.AppendCentroids(nil)) {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(raw)); got != want[bits] {
			t.Errorf("%d bits: digest %s, want %s", bits, got, want[bits])
		}
	}
}

// A boundary is the midpoint of its two centroids in float32 arithmetic, except
// for the outermost two at 3 bits: the published 1.74793 is one ulp above.
func TestBoundariesAreMidpoints(t *testing.T) {
	for _, bits := range widths {
		tab := table(t, bits)
		for i := range tab.Levels() - 1 {
			want := float32(tab.Centroid(i)+tab.Centroid(i+1)) * 0.5
			if bits == 3 && (i == 0 || i == 6) {
				want = math.Nextafter32(want, 2*want)
			}
			if got := tab.Boundary(i); math.Float32bits(got) != math.Float32bits(want) {
				t.Errorf("%d bits: boundary %d is %v, want %v", bits, i, got, want)
			}
		}
	}
}
