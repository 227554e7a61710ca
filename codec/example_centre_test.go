package codec_test

import (
	"fmt"
	"log"

	"github.com/turbotrellis/turbotrellis/codec"
)

// The centre of rows that come one at a time is that of all of them in memory.
func ExampleCentreOf() {
	rows := [][]float32{{1, 10}, {3, 10}, {5, 16}}
	c, err := codec.CentreOf(2, func(yield func([]float32, error) bool) {
		for _, row := range rows {
			if !yield(row, nil) {
				return
			}
		}
	})
	if err != nil {
		log.Fatal(err)
	}
	for j := range 2 {
		fmt.Println(codec.F16.Load(c.Mean.Data[2*j:]), codec.F16.Load(c.Gain.Data[2*j:]))
	}
	same, err := codec.NewCentre(codec.FromF32([]float32{1, 10, 3, 10, 5, 16}, 3, 2))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(c.Gain.Data) == string(same.Gain.Data))
	// Output:
	// 3 1.2783203
	// 12 1.6816406
	// true
}
