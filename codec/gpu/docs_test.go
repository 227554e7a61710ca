package gpu

import (
	"os"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/shaders"
)

// The kernel list of docs/metal.md is the one of the variant table.
func TestKernelListIsCurrent(t *testing.T) {
	doc, err := os.ReadFile("../../docs/metal.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), "\n"+shaders.Table()) {
		t.Error("docs/metal.md: replace the section Kernels by the output of go run ./shaders/gen -table")
	}
}
