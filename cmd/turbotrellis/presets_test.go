package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// span prints the least and the greatest of xs with decimals, halves up, or one number where they print the same.
func span(xs []float64, decimals int) string {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, x := range xs {
		lo, hi = min(lo, x), max(hi, x)
	}
	text := func(x float64) string { return strings.TrimPrefix(fmt.Sprintf("%.*f", decimals, x+1e-9), "0") }
	if text(lo) == text(hi) {
		return text(lo)
	}
	return text(lo) + " to " + text(hi)
}

// TestPresetFigures holds what --help says of the presets to what make quality measured with them.
func TestPresetFigures(t *testing.T) {
	folder := filepath.Join("..", "..", "internal", "tools", "quality")
	var formats []struct{ Name, Preset string }
	var rows []struct {
		Setting, Format string
		KL              float64 `json:"kl"`
		BitsLimit       float64 `json:"bits_limit"`
	}
	for name, v := range map[string]any{"formats.json": &formats, "results.json": &rows} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, v); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	for _, p := range presets {
		var bits, loss []float64
		for _, f := range formats {
			for _, r := range rows {
				if f.Preset == p.name && r.Format == f.Name && r.Setting == "prefix" {
					bits, loss = append(bits, r.BitsLimit), append(loss, r.KL)
				}
			}
		}
		if len(bits) != 4 { // two models, two texts
			t.Errorf("%s was measured %d times", p.name, len(bits))
			continue
		}
		want := fmt.Sprintf("%s bits per element, %s nats lost", span(bits, 2), span(loss, 4))
		if !strings.HasPrefix(p.about, want) {
			t.Errorf("%s: --help says %q, measured was %q", p.name, p.about, want)
		}
	}
}
