package snapshot

import (
	"fmt"
	"testing"
)

func TestParseLayersBound(t *testing.T) {
	if set, err := ParseLayers(fmt.Sprint(maxLayer)); err != nil || !set[maxLayer] {
		t.Errorf("layer %d: %v", maxLayer, err)
	}
	if _, err := ParseLayers(fmt.Sprint(maxLayer + 1)); err == nil {
		t.Errorf("layer %d is accepted", maxLayer+1)
	}
}

// Names of which one is the beginning or the end of the other, or equal ones.
func TestShared(t *testing.T) {
	for _, test := range []struct{ a, b, before, after string }{
		{"x.1.keys", "x.1.values", "x.1", ""},
		{"x.1.keys.w", "x.1.values.w", "x.1", "w"},
		{"x.1", "x.1.values", "x.1", ""},
		{"x.1", "values.x.1", "", "x.1"},
		{"x.1", "x.1", "x.1", ""},
		{"x", "y", "", ""},
	} {
		for _, names := range [][2]string{{test.a, test.b}, {test.b, test.a}} {
			if before, after := shared(names[0], names[1]); before != test.before || after != test.after {
				t.Errorf("shared(%q, %q) = %q, %q; want %q, %q", names[0], names[1], before, after, test.before, test.after)
			}
		}
	}
}
