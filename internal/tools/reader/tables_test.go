package reader

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/turbotrellis/turbotrellis/hadamard"
	"github.com/turbotrellis/turbotrellis/lloydmax"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// floats are f32 numbers, written twice.
type floats struct {
	Bits    []string      `json:"bits"`
	Decimal []json.Number `json:"decimal"`
	SHA256  string        `json:"sha256"`
}

// values checks that both spellings are the same numbers and returns them.
func (f floats) values(t *testing.T, name string) []float32 {
	t.Helper()
	if len(f.Bits) == 0 || len(f.Bits) != len(f.Decimal) {
		t.Fatalf("%s: %d bit patterns and %d decimals", name, len(f.Bits), len(f.Decimal))
	}
	var x []float32
	for i, s := range f.Bits {
		b, err := strconv.ParseUint(s, 16, 32)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		d, err := strconv.ParseFloat(f.Decimal[i].String(), 32)
		if err != nil || math.Float32bits(float32(d)) != uint32(b) {
			t.Errorf("%s %d: bits %s and decimal %s differ", name, i, s, f.Decimal[i])
		}
		x = append(x, math.Float32frombits(uint32(b)))
	}
	return x
}

func equal(t *testing.T, name string, got, want []float32) {
	t.Helper()
	same := func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }
	if !slices.EqualFunc(got, want, same) {
		t.Errorf("%s: docs/tables.json has %v, the code %v", name, got, want)
	}
}

func signs(t *testing.T, text string) []float32 {
	t.Helper()
	var x []float32
	for _, c := range text {
		switch c {
		case '+':
			x = append(x, 1)
		case '-':
			x = append(x, -1)
		default:
			t.Fatalf("%q is not a sign", c)
		}
	}
	return x
}

// docs/tables.json is what the code has, and what the vectors were made with.
func TestTables(t *testing.T) {
	var tables struct {
		LloydMax map[string]struct{ Centroids, Boundaries floats } `json:"lloyd_max"`
		Matrices map[string][]string                               `json:"matrices"`
		Signs    map[string]string                                 `json:"signs"`
		Codes    map[string]floats                                 `json:"codes"`
		RowCodes map[string]floats                                 `json:"row_codes"`
	}
	var oracle struct {
		Centroids, Boundaries map[string][]string
	}
	for path, v := range map[string]any{"../../../docs/tables.json": &tables, "../../../conformance/vectors/tables.json": &oracle} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, v); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}

	for _, bits := range []int{2, 3, 4, 5, 8} {
		name := strconv.Itoa(bits)
		table, err := lloydmax.Lookup(bits)
		if err != nil {
			t.Fatal(err)
		}
		f := tables.LloydMax[name]
		equal(t, name+" bits, centroids", f.Centroids.values(t, name), table.AppendCentroids(nil))
		equal(t, name+" bits, boundaries", f.Boundaries.values(t, name), table.AppendBoundaries(nil))
		for i, b := range f.Centroids.Bits {
			if oracle.Centroids[name][i] != "0x"+b {
				t.Errorf("%s bits: centroid %d is %s, the vectors' %s", name, i, b, oracle.Centroids[name][i])
			}
		}
		for i, b := range f.Boundaries.Bits {
			if oracle.Boundaries[name][i] != "0x"+b {
				t.Errorf("%s bits: boundary %d is %s, the vectors' %s", name, i, b, oracle.Boundaries[name][i])
			}
		}
	}

	for _, m := range []int{12, 20, 28} {
		rows := tables.Matrices[strconv.Itoa(m)]
		if len(rows) != m {
			t.Fatalf("matrix of order %d has %d rows", m, len(rows))
		}
		for c := range m {
			column := make([]float32, m) // the transform of a unit vector is a column, scaled
			column[c] = 1
			if err := hadamard.Transform(column); err != nil {
				t.Fatal(err)
			}
			for j, v := range column {
				if want := signs(t, rows[j])[c]; v*want < 0 || v == 0 {
					t.Errorf("matrix of order %d: element (%d, %d) is %v", m, j, c, want)
				}
			}
		}
	}

	if len(tables.Signs) == 0 {
		t.Error("no signs")
	}
	for d, text := range tables.Signs {
		n, err := strconv.Atoi(d)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "signs of "+d, signs(t, text), hadamard.AppendSigns(nil, n))
	}

	for k := 2; k <= 4; k++ {
		name := strconv.Itoa(k)
		values, err := trellis.RowValues(k)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "row code values of k = "+name, tables.RowCodes[name].values(t, name), values)
	}

	for _, c := range []trellis.Code{trellis.OneMAD, trellis.ThreeInst, trellis.Rand} {
		all, err := trellis.AppendValues(nil, c, 16)
		if err != nil {
			t.Fatal(err)
		}
		f := tables.Codes[c.String()]
		shown := f.values(t, c.String())
		equal(t, fmt.Sprintf("first values of %v", c), shown, all[:len(shown)])
		h := sha256.New()
		if err := binary.Write(h, binary.LittleEndian, all); err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(h.Sum(nil)); got != f.SHA256 {
			t.Errorf("%v: docs/tables.json has SHA-256 %s, the code %s", c, f.SHA256, got)
		}
	}
}
