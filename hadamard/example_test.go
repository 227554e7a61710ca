package hadamard_test

import (
	"fmt"
	"log"

	"github.com/turbotrellis/turbotrellis/hadamard"
)

// A rotation spreads an outlier over the vector, and undoes it.
func ExampleRotation() {
	r, err := hadamard.New(8)
	if err != nil {
		log.Fatal(err)
	}
	x := []float32{0, 0, 100, 0, 0, 0, 0, 0}
	r.Forward(x)
	fmt.Printf("%.2f\n", x)
	r.Inverse(x)
	fmt.Printf("%.0f\n", x)
	// Output:
	// [35.36 35.36 -35.36 -35.36 35.36 35.36 -35.36 -35.36]
	// [-0 -0 100 0 -0 0 0 0]
}

// The head dimensions below 400 that can be rotated and are multiples of 32.
func ExampleSupported() {
	for d := 32; d < 400; d += 32 {
		if m, n, ok := hadamard.Split(d); ok {
			fmt.Printf("%d = %d·%d\n", d, m, n)
		}
	}
	// Output:
	// 32 = 1·32
	// 64 = 1·64
	// 96 = 12·8
	// 128 = 1·128
	// 160 = 20·8
	// 192 = 12·16
	// 224 = 28·8
	// 256 = 1·256
	// 320 = 20·16
	// 384 = 12·32
}
