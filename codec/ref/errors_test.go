package ref_test

import (
	"errors"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
)

// wantError fails the test unless err is a *codec.Error of that class, tensor
// and index with a reason.
func wantError(t *testing.T, what string, err, class error, tensor string, index int) {
	t.Helper()
	var e *codec.Error
	if !errors.As(err, &e) {
		t.Fatalf("%s: error %v, want %v", what, err, class)
	}
	if !errors.Is(err, class) || e.Tensor != tensor || e.Index != index {
		t.Fatalf("%s: %v: tensor %q, index %d; want %v, %q, %d", what, err, e.Tensor, e.Index, class, tensor, index)
	}
	if e.Reason == "" {
		t.Fatalf("%s: %v gives no reason", what, err)
	}
}
