package affine_test

import (
	"fmt"
	"log"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/pack"
)

// A group of keys has one scale and one zero point.
func ExampleKeyFormat_Quantize() {
	f := affine.KeyFormat{Bits: 2}
	x := []float32{0.25, 1, 0.5, -0.5}
	index := make([]byte, len(x))
	scale, zero := f.Quantize(index, x)
	fmt.Println(index, scale, zero)
	for _, i := range index {
		fmt.Print(f.Dequantize(i, scale, zero), " ")
	}
	// Output:
	// [2 3 2 0] 0.5 -1
	// 0.5 1 0.5 -0.5
}

// Rows of weights in the layout of MLX's affine mode.
func ExampleRowFormat() {
	f := affine.RowFormat{Bits: 4, Group: 32}
	w := make([]byte, 32*2)
	for i := range 32 {
		pack.BF16.Store(w[2*i:], float32(i)/8-2)
	}
	packed, scales, biases := make([]byte, 16), make([]byte, 2), make([]byte, 2)
	if err := f.Quantize(packed, scales, biases, w, pack.BF16); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("% x\n", packed)
	fmt.Println(pack.BF16.Load(scales), pack.BF16.Load(biases))
	// Output:
	// 00 21 22 43 44 65 66 87 88 a9 aa cb cc ed ee ff
	// 0.25 -2
}
