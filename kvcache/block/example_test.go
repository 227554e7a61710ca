package block_test

import (
	"context"
	"fmt"
	"os"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/kvcache/block"
)

// A server stores the blocks of a prompt, and a later one finds those that its own prompt begins with.
func Example() {
	dir, err := os.MkdirTemp("", "blocks")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	layers := []block.Layer{{Heads: 2, Params: codec.KVParams{HeadDim: 64, Keys: codec.Q8_0, Values: codec.Q4_0}}}
	c, err := block.New(ref.New(), layers)
	if err != nil {
		panic(err)
	}
	store, err := block.OpenStore(dir, block.StoreOptions{MaxBytes: 1 << 30})
	if err != nil {
		panic(err)
	}
	defer store.Close()

	fingerprint := block.Hash{1} // of the model
	prompt := []uint32{11, 12, 13, 14, 15, 16, 17, 18}
	k, v := codec.NewTensor(codec.BF16, 2, 4, 64), codec.NewTensor(codec.BF16, 2, 4, 64)
	id := block.ID{Fingerprint: fingerprint, Tokens: 4}
	for i, key := range block.Chain(fingerprint, prompt, 4) {
		id.Key, id.First = key, uint64(4*i)
		size, err := c.Size(id.Tokens)
		if err != nil {
			panic(err)
		}
		frame := make([]byte, size)
		if _, err := c.Encode(frame, id, func(int) (codec.Tensor, codec.Tensor, error) { return k, v, nil }); err != nil {
			panic(err)
		}
		if err := store.Put(context.Background(), frame); err != nil {
			panic(err)
		}
		id.Parent = key
	}

	found, err := store.Longest(fingerprint, []uint32{11, 12, 13, 14, 15, 16, 99, 98}, 4)
	if err != nil {
		panic(err)
	}
	for _, key := range found {
		frame, err := store.Get(nil, key)
		if err != nil {
			panic(err)
		}
		got, err := c.Decode(frame, block.ID{Fingerprint: fingerprint}, func(int) (codec.Tensor, codec.Tensor, error) { return k, v, nil })
		if err != nil {
			panic(err)
		}
		fmt.Println("tokens", got.First, "to", got.First+uint64(got.Tokens)-1)
	}
	// Output: tokens 0 to 3
}
