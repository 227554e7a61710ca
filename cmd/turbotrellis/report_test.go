package main

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/cpu"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/internal/safetensors/safetensorstest"
	"github.com/turbotrellis/turbotrellis/kvcache/snapshot"
)

// cacheFile writes a cache of one layer and opens it.
func cacheFile(t *testing.T, keyDim, valueDim int, x func(i int) float32) *source {
	t.Helper()
	var tensors []safetensorstest.Tensor
	for name, dim := range map[string]int{"layers.0.keys": keyDim, "layers.0.values": valueDim} {
		data := make([]byte, 2*10*dim*4)
		for i := range 2 * 10 * dim {
			codec.F32.Store(data[4*i:], x(i))
		}
		tensors = append(tensors, safetensorstest.Tensor{Name: name, DType: safetensors.F32, Shape: []int{2, 10, dim}, Data: data})
	}
	path := filepath.Join(t.TempDir(), "cache.safetensors")
	if err := os.WriteFile(path, safetensorstest.File(t, nil, tensors...), 0o666); err != nil {
		t.Fatal(err)
	}
	in, err := openSource(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	return in
}

// Keys of 576 elements, as of a latent attention, have no row code: the report says so and shows the rest. Where no
// preset is left the reason is the error.
func TestReportRefused(t *testing.T) {
	o := snapshot.EncodeOptions{Backend: cpu.New(cpu.Options{})}
	defer o.Backend.Close()
	wave := func(i int) float32 { return float32(math.Sin(float64(i) * 0.7)) }
	r, err := measurePresets(t.Context(), cacheFile(t, 576, 64, wave), o)
	if err != nil {
		t.Fatal(err)
	}
	r.Detail = defaultPreset
	for _, p := range r.Presets {
		if (p.Refused == "") != (p.Name == "compat") {
			t.Errorf("%s: refused %q", p.Name, p.Refused)
		}
	}
	var text, html bytes.Buffer
	if err := errors.Join(r.text(&text), r.html(&html)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"576", "compat, by layer"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in\n%s", want, text.String())
		}
	}
	if n := strings.Count(html.String(), "<svg"); n != 3 || !strings.Contains(html.String(), "576") {
		t.Errorf("%d plots in the page", n)
	}
	if _, err := measurePresets(t.Context(), cacheFile(t, 64, 576, wave), o); !errors.Is(err, codec.ErrParams) {
		t.Error(err)
	}
	if _, err := measurePresets(t.Context(), cacheFile(t, 64, 64, func(i int) float32 { return float32(math.Inf(1)) }), o); !errors.Is(err, codec.ErrNonFinite) {
		t.Error(err)
	}
	// Constant tokens: nothing varies, and pages have no ranges to divide by.
	r, err = measurePresets(t.Context(), cacheFile(t, 64, 64, func(int) float32 { return 3 }), o)
	if err != nil {
		t.Fatal(err)
	}
	text.Reset()
	html.Reset()
	if err := errors.Join(r.text(&text), r.html(&html), emit(&text, true, r, r.text)); err != nil {
		t.Error(err)
	}
}

// Raw tokens may be anything: the presets that have some pack a NaN there, and the report says why the other does not.
// Where there are errors but nothing varies, the relative error is none, not 0.
func TestReportOdd(t *testing.T) {
	o := snapshot.EncodeOptions{Backend: cpu.New(cpu.Options{})}
	defer o.Backend.Close()
	r, err := measurePresets(t.Context(), cacheFile(t, 64, 64, func(i int) float32 {
		if i == 5 {
			return float32(math.NaN())
		}
		return float32(math.Sin(float64(i) * 0.7))
	}), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Presets {
		if (p.Refused != "") != (p.Name == "compat") || p.Name == "compat" && !strings.Contains(p.Refused, "element 5: NaN") {
			t.Errorf("%s: refused %q", p.Name, p.Refused)
		}
	}

	if r, err = measurePresets(t.Context(), cacheFile(t, 64, 64, func(i int) float32 { return float32(math.Sin(float64(i % 64))) }), o); err != nil {
		t.Fatal(err)
	}
	r.Detail = defaultPreset
	if p := r.detail(); !math.IsNaN(float64(p.Values.Error)) || p.Values.RMS == 0 || p.WorstValues != "" {
		t.Errorf("values that are equal at every token: %+v", p.Values)
	}
	var text, html bytes.Buffer
	if err := errors.Join(r.text(&text), r.html(&html), emit(&text, true, r, r.text)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), ", none\n") || !strings.Contains(html.String(), ", none</td>") {
		t.Errorf("no layer of the largest error is not said to be none:\n%s", text.String())
	}
}

func TestHardLayers(t *testing.T) {
	var layers []layerReport
	for i, e := range []float64{0.10, 0.11, 0.2, 0.09, 0.138, 0.11, math.NaN()} {
		layers = append(layers, layerReport{Layer: string(rune('a' + i)), Keys: sideReport{Error: number(e)}})
	}
	of := func(l layerReport) number { return l.Keys.Error }
	if got, worst := hard(layers, of); !slices.Equal(got, []string{"c", "e"}) || worst != "c" {
		t.Error(got, worst)
	}
	if got, worst := hard(nil, of); len(got) != 0 || worst != "" {
		t.Error(got, worst)
	}
}
