package pack_test

import (
	"fmt"
	"log"

	"github.com/turbotrellis/turbotrellis/pack"
)

// Eight elements of 3 bits fill three bytes, the first element in the lowest
// bits.
func ExamplePack() {
	src := []byte{5, 2, 7, 1, 0, 6, 3, 4}
	n, err := pack.PackedLen(len(src), 3)
	if err != nil {
		log.Fatal(err)
	}
	packed := make([]byte, n)
	if err := pack.Pack(packed, src, 3); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("% x\n", packed)

	back := make([]byte, len(src))
	if err := pack.Unpack(back, packed, 3); err != nil {
		log.Fatal(err)
	}
	fmt.Println(back)
	// Output:
	// d5 03 8f
	// [5 2 7 1 0 6 3 4]
}

// Store rounds once, half to even.
func ExampleDType_Store() {
	var b [2]byte
	for _, d := range []pack.DType{pack.F16, pack.BF16} {
		d.Store(b[:], 0.1)
		fmt.Printf("%v % x %v\n", d, b, d.Load(b[:]))
	}
	// Output:
	// f16 66 2e 0.099975586
	// bf16 cd 3d 0.100097656
}
