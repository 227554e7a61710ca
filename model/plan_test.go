package model

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBitsMap(t *testing.T) {
	m, err := ParseBitsMap([]byte(`{"layers\\.0": 3, "layers.0.up": 4, "layers.1.q.weight": 1, "layers": 8}`))
	if err != nil {
		t.Fatal(err)
	}
	for base, want := range map[string]int{"layers.0.q": 3, "layers.0.up": 4, "layers.1.q": 1, "layers.2.q": 8, "head": 7} {
		if got := m.bits(base, 7); got != want {
			t.Errorf("%s: %d bits, want %d", base, got, want)
		}
	}
	for _, text := range []string{``, `[]`, `{"a": 9}`, `{"a": 0}`, `{"a": 1.5}`, `{"a": "2"}`, `{"(": 2}`, `{"a": 2, "a": 3}`, `{"a": 2} x`} {
		if _, err := ParseBitsMap([]byte(text)); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
	o := opts()
	o.Bits, o.Params.K = m[:3], 0
	p := plan(t, toy(t), o)
	var got []int
	for _, x := range p.Tensors {
		got = append(got, x.Bits)
	}
	if !slices.Equal(got, []int{3, 4, 1}) {
		t.Errorf("bits %v", got)
	}
	o.Bits = m
	if _, err := PlanEncode(open(t, toy(t)), o); !errors.Is(err, ErrSelection) || !strings.Contains(err.Error(), `"layers"`) {
		t.Errorf("a rule for nothing: %v", err)
	}
	o.Bits = m[:2]
	if _, err := PlanEncode(open(t, toy(t)), o); !errors.Is(err, ErrTensor) || !strings.Contains(err.Error(), "layers.1.q.weight") {
		t.Errorf("a tensor without bits: %v", err)
	}
}

func TestPlan(t *testing.T) {
	o := opts()
	o.Tensors = regexp.MustCompile(`norm|layers`)
	p := plan(t, toy(t), o)
	var got []string
	for _, x := range p.Tensors {
		got = append(got, fmt.Sprintf("%s %s %s %v k%d a%d %d %d %.3f", x.Name, x.File, x.DType, x.Shape, x.Bits, x.Axis, x.SourceBytes, x.Bytes, x.PerWeight))
	}
	want := []string{
		"layers.0.q.weight a.safetensors F32 [6 64] k2 a1 1536 108 2.250",
		"layers.0.up.weight b.safetensors F16 [32 5] k2 a0 320 50 2.500",
		"layers.1.q.weight b.safetensors BF16 [4 32] k2 a1 256 40 2.500",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("plan (-want +got):\n%s", d)
	}
	if !slices.Equal(p.Passed, []string{"norm.weight"}) || p.Copied != 2 || !slices.Equal(p.Files, []string{"1_Pooling/config.json", "tokenizer.json"}) {
		t.Errorf("passed %v, copied %d, files %v", p.Passed, p.Copied, p.Files)
	}
}
