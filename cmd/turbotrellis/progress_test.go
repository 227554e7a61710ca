package main

import (
	"math"
	"testing"
)

func TestErrorText(t *testing.T) {
	for e, want := range map[float64]string{0: "0.00000", 0.0123456: "0.01235", 999: "999.00000", 123456: "1.23e+05", math.MaxFloat64: "1.8e+308"} {
		if got := errorText(e); got != want {
			t.Errorf("%v: %s, want %s", e, got, want)
		}
	}
}
