package ref_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
)

// Keys and values of two heads and three tokens, packed and unpacked.
func Example() {
	b := ref.New()
	defer b.Close()
	kv, err := b.KV(codec.KVParams{HeadDim: 64, Keys: codec.Q8_0, Values: codec.Q5_0})
	if err != nil {
		log.Fatal(err)
	}
	x := codec.NewTensor(codec.F16, 2, 3, 64) // [heads, tokens, head dimension]
	for i := range x.Len() {
		x.DType.Store(x.Data[2*i:], float32(i%7-3))
	}
	var k codec.Keys // reused from call to call
	var v codec.Values
	if err := errors.Join(kv.EncodeKeys(&k, x), kv.EncodeValues(&v, x)); err != nil {
		log.Fatal(err)
	}
	fmt.Println("keys:", len(k.Codes)+len(k.Scales)+len(k.Zeros), "bytes of", len(x.Data))
	fmt.Println("values:", len(v.Codes)+len(v.Scales), "bytes of", len(x.Data))

	keys, values := codec.NewTensor(codec.F32, 2, 3, 64), codec.NewTensor(codec.F32, 2, 3, 64)
	if err := kv.Decode(keys, values, k, v); err != nil {
		log.Fatal(err)
	}
	for i := range 4 {
		fmt.Printf("%5.2f as a key %5.2f, as a value %5.2f\n", x.DType.Load(x.Data[2*i:]), keys.DType.Load(keys.Data[4*i:]), values.DType.Load(values.Data[4*i:]))
	}
	// Output:
	// keys: 432 bytes of 768
	// values: 264 bytes of 768
	// -3.00 as a key -3.00, as a value -2.88
	// -2.00 as a key -2.01, as a value -2.00
	// -1.00 as a key -0.99, as a value -0.97
	//  0.00 as a key  0.00, as a value  0.07
}

// A view is encoded where it lies: here every second token of a cache whose
// memory holds tokens before heads.
func ExampleBackend_strided() {
	kv, err := ref.New().KV(codec.KVParams{HeadDim: 32, Keys: codec.Q4_0, Values: codec.Q4_0})
	if err != nil {
		log.Fatal(err)
	}
	const tokens, heads, dim = 4, 2, 32
	cache := codec.NewTensor(codec.BF16, tokens, heads, dim)
	for i := range cache.Len() {
		cache.DType.Store(cache.Data[2*i:], float32(i))
	}
	view := codec.Tensor{
		DType:  cache.DType,
		Shape:  []int{heads, tokens / 2, dim},
		Stride: []int{dim, 2 * heads * dim, 1}, // in elements
		Data:   cache.Data,
	}
	var k codec.Keys
	if err := kv.EncodeKeys(&k, view); err != nil {
		log.Fatal(err)
	}
	fmt.Println(k.Shape, len(k.Codes))

	view.Shape = []int{heads, tokens, dim} // reaches past the cache's end
	fmt.Println(kv.EncodeKeys(&k, view))
	// Output:
	// [2 2 32] 64
	// keys: shape [2 4 32] of bf16 needs 448 elements of data, have 512 bytes (shape does not fit)
}
