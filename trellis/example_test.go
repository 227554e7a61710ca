package trellis_test

import (
	"context"
	"fmt"
	"log"
	"math"

	"github.com/turbotrellis/turbotrellis/trellis"
)

// A matrix coded at 2 bits per weight, and its weights read again.
func Example() {
	p := trellis.DefaultParams(2)
	p.Scale = trellis.Refit
	enc, err := trellis.NewEncoder(p)
	if err != nil {
		log.Fatal(err)
	}
	g := trellis.Geometry{Axis: 1, Out: 2, In: 256}
	w := make([]float32, g.Out*g.In)
	for i := range w {
		w[i] = float32(math.Sin(float64(i*i))) / 16
	}
	var m trellis.Matrix
	if err := enc.Encode(context.Background(), &m, nil, w, g); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(m.Codes)*4+len(m.Scales)*2, "bytes of", 4*len(w))

	decoded := make([]float32, len(w))
	if err := m.DecodeRows(decoded, 0, g.Out); err != nil {
		log.Fatal(err)
	}
	var square, miss float64
	for i, v := range w {
		square += float64(v) * float64(v)
		miss += float64(decoded[i]-v) * float64(decoded[i]-v)
	}
	fmt.Printf("squared error %.0f %%\n", 100*miss/square)

	one, err := m.At(1, 7) // reads two words and a scale
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(one == decoded[256+7])
	// Output:
	// 132 bytes of 2048
	// squared error 7 %
	// true
}

// Codes are named in files and flags.
func ExampleCode_UnmarshalText() {
	var c trellis.Code
	fmt.Println(c.UnmarshalText([]byte("3inst")), c)
	fmt.Println(c.UnmarshalText([]byte("hyb")))
	// Output:
	// <nil> 3inst
	// unknown code "hyb": want one of 1mad, 3inst, rand
}
