package main

import (
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/shaders"
)

func clang(t *testing.T) string {
	t.Helper()
	path, err := compiler()
	if err != nil {
		t.Skip(err)
	}
	return path
}

func TestMSLShaders(t *testing.T) {
	if err := check(clang(t), shaders.Source(shaders.Variants()...), "-Wunused-function"); err != nil {
		t.Error(err)
	}
}

// Each mistake is made on a copy of the sources and must be refused where it stands.
func TestMSLSeededMistakes(t *testing.T) {
	c := clang(t)
	for _, m := range []struct{ name, old, new, want string }{
		{"device pointer without its space", "load_unit(const device uchar* p,", "load_unit(const uchar* p,", "no matching function"},
		{"threadgroup pointer without its space", "transform_row(threadgroup float* buf,", "transform_row(float* buf,", "no matching function"},
		{"threadgroup taken for device", "transform_row(threadgroup float* buf,", "transform_row(device float* buf,", "no matching function"},
		{"cast between spaces", "(const device float*)p)[i]", "(const threadgroup float*)p)[i]", "mismatching address spaces"},
		{"double variable", "const float range = hi - lo;", "const double range = hi - lo;", "double"},
		{"double literal", "const float se = scale + 1e-8f;", "const float se = scale + 1e-8;", "double"},
		{"constant variable written", "const float mean = sum * inverse_group;", "search_factors[0] = 1.0f;\n    const float mean = sum * inverse_group;", "read-only"},
		{"argument written", "if (first >= a.dim || at.y >= a.rows) {", "a.dim = 0;\n    if (first >= a.dim || at.y >= a.rows) {", "read-only"},
		{"input written", "const float scale = load_float(scales,", "scales[0] = 0;\n    const float scale = load_float(scales,", "read-only"},
		{"unknown field", "a.threads_per_row", "a.threads_in_row", "no member named"},
	} {
		t.Run(m.name, func(t *testing.T) {
			source := shaders.Source(shaders.Variants()...)
			if !strings.Contains(source, m.old) {
				t.Fatalf("the sources no longer contain %q", m.old)
			}
			err := check(c, strings.Replace(source, m.old, m.new, 1))
			if err == nil {
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), m.want) {
				t.Errorf("refused, but not for it (want %q):\n%v", m.want, err)
			}
		})
	}
}
