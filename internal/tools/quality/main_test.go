package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../../.."

func loadAll(t *testing.T) measured {
	t.Helper()
	m, err := load(".")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestPages holds the tables of the pages to results.json.
func TestPages(t *testing.T) {
	m := loadAll(t)
	for name, tables := range pages {
		page, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		want, err := m.fill(string(page), tables)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if string(page) != want {
			t.Errorf("%s has other tables than results.json gives: run go run ./internal/tools/quality", name)
		}
	}
}

// TestPicture checks that docs/quality.svg was drawn from results.json.
func TestPicture(t *testing.T) {
	results, err := os.ReadFile("results.json")
	if err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(filepath.Join(root, "docs", "quality.svg"))
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("<!-- results.json: SHA-256 %x -->", sha256.Sum256(results)); !strings.Contains(string(svg), want) {
		t.Errorf("docs/quality.svg does not contain %q: run internal/tools/plot", want)
	}
}

// TestComplete checks that every format of formats.json was measured everywhere, once, and nothing else was.
func TestComplete(t *testing.T) {
	m := loadAll(t)
	if len(m.formats) == 0 {
		t.Fatal("no formats")
	}
	want := map[string]bool{}
	for _, model := range models {
		for _, text := range texts {
			want[strings.Join([]string{model, text, "untouched", "-"}, ",")] = true
			for _, f := range m.formats {
				for _, setting := range []string{"prefix", "all"} {
					want[strings.Join([]string{model, text, setting, f.Name}, ",")] = true
				}
			}
		}
	}
	for _, r := range m.rows {
		name := strings.Join([]string{r.Model, r.Text, r.Setting, r.Format}, ",")
		if !want[name] {
			t.Errorf("%s: measured twice, or not in formats.json", name)
		}
		delete(want, name)
		if r.Setting != "untouched" && (r.KL <= 0 || r.Top1 <= 0 || r.Top1 > 1) {
			t.Errorf("%s: KL divergence %v, top-1 %v", name, r.KL, r.Top1)
		}
	}
	for name := range want {
		t.Errorf("%s: not measured", name)
	}
}

// near says whether x is within a factor of 1.5 of was, which has four decimals.
func near(x, was float64) bool {
	return x <= 1.5*(was+0.00005) && x >= (was-0.00005)/1.5
}

// TestEarlier holds the KL divergences to those of an earlier program with codecs of its own, and formats that differ
// clearly there to the same order. With every token coded single positions dominate some means, so there the medians
// are within the factor.
func TestEarlier(t *testing.T) {
	m := loadAll(t)
	compared, ordered := 0, 0
	for _, model := range models {
		for i, text := range texts {
			for _, e := range m.before {
				r, err := m.find(model, text, e.Setting, e.Format)
				if err != nil {
					t.Fatal(err)
				}
				name := strings.Join([]string{model, text, e.Setting, e.Format}, ", ")
				if !near(r.Median, e.Median[model][i]) {
					t.Errorf("%s: median %.5f, earlier %.4f", name, r.Median, e.Median[model][i])
				}
				if e.Setting == "prefix" && !near(r.KL, e.KL[model][i]) {
					t.Errorf("%s: KL divergence %.5f, earlier %.4f", name, r.KL, e.KL[model][i])
				}
				compared++
				for _, o := range m.before {
					if o.Setting != e.Setting || o.KL[model][i] < 1.5*e.KL[model][i] {
						continue
					}
					ordered++
					worse, err := m.find(model, text, o.Setting, o.Format)
					if err != nil {
						t.Fatal(err)
					}
					if worse.KL <= r.KL {
						t.Errorf("%s: KL divergence %.5f is not below the %.5f of %s", name, r.KL, worse.KL, o.Format)
					}
				}
			}
		}
	}
	if compared < 80 || ordered < 300 {
		t.Errorf("%d values and %d pairs compared", compared, ordered)
	}
}

// TestBits holds the bits in the limit to the formats' own price, and the default preset's file of 1,024 tokens to
// 4.3 bits.
func TestBits(t *testing.T) {
	m := loadAll(t)
	dim := map[string]float64{"SmolLM2-135M": 64, "Gemma-3-270M": 256}
	// Bits per element and bits per row of keys and values: docs/format.md.
	price := map[byte]func(bits, d float64, key bool) float64{
		'q': func(bits, _ float64, key bool) float64 {
			if key {
				return bits + 1
			}
			return bits + 0.5
		},
		't': func(bits, d float64, _ bool) float64 { return bits + 8/d },
		'r': func(bits, d float64, _ bool) float64 { return bits + 8/d },
	}
	cost := func(name string, d float64, key bool) float64 {
		return price[name[0]](float64(name[1]-'0'), d, key)
	}
	checked := 0
	for _, r := range m.rows {
		if r.Setting != "prefix" {
			continue
		}
		i := slices.IndexFunc(m.formats, func(f format) bool { return f.Name == r.Format })
		keys, values, _ := strings.Cut(r.Format, " / ")
		d := dim[r.Model]
		want := (cost(keys, d, true) + cost(values, d, false)) / 2
		if diff := r.BitsLimit - want; diff < -0.005 || diff > 0.005 {
			t.Errorf("%s, %s: %.4f bits in the limit, want %.4f", r.Model, r.Format, r.BitsLimit, want)
		}
		if r.BitsStored < r.BitsLong || r.BitsLong < r.BitsLimit {
			t.Errorf("%s, %s: %.4f bits of 512 tokens, %.4f of 1,024, %.4f in the limit", r.Model, r.Format, r.BitsStored, r.BitsLong, r.BitsLimit)
		}
		if m.formats[i].Preset == "balanced" {
			checked++
			if r.BitsLong > 4.3 {
				t.Errorf("%s: the default preset's file of 1,024 tokens has %.3f bits per element", r.Model, r.BitsLong)
			}
		}
	}
	if checked != len(models)*len(texts) {
		t.Errorf("the default preset was measured %d times", checked)
	}
}
