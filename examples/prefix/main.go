// Prefix keeps the KV cache of a prompt's blocks in a directory, and a later process computes only those that no
// earlier one has kept: prefix DIR PROMPT. A token is a byte here, and fill stands for a model of one layer.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/auto"
	"github.com/turbotrellis/turbotrellis/kvcache/block"
)

const heads, dim, size = 2, 64, 16 // tokens per block

var model = block.Hash{1} // its fingerprint

func run(dir, prompt string) error {
	backend, err := auto.Open()
	if err != nil {
		return err
	}
	defer backend.Close()
	blocks, err := block.New(backend, []block.Layer{{Heads: heads, Params: codec.KVParams{HeadDim: dim, Keys: codec.Q8_0, Values: codec.Q4_0}}})
	if err != nil {
		return err
	}
	store, err := block.OpenStore(dir, block.StoreOptions{MaxBytes: 1 << 30})
	if err != nil {
		return err
	}
	defer store.Close()

	k, v := codec.NewTensor(codec.BF16, heads, size, dim), codec.NewTensor(codec.BF16, heads, size, dim)
	rows := func(layer int) (codec.Tensor, codec.Tensor, error) { return k, v, nil }
	tokens, frame := tokensOf(prompt), make([]byte, 1<<16)
	id := block.ID{Fingerprint: model, Tokens: size}
	for i, key := range block.Chain(model, tokens, size) {
		id.Key, id.First = key, uint64(i*size)
		verb := "restored"
		if frame, err = store.Get(frame[:0], key); errors.Is(err, block.ErrNotFound) || errors.Is(err, block.ErrDamaged) {
			verb = "computed"
			fill(k, v, tokens[i*size:][:size])
			var n int
			if n, err = blocks.Encode(frame[:cap(frame)], id, rows); err == nil {
				err = store.Put(context.Background(), frame[:n])
			}
		} else if err == nil {
			_, err = blocks.Decode(frame, id, rows) // k and v are the block's again
		}
		if err != nil {
			return err
		}
		fmt.Printf("%s %q\n", verb, prompt[i*size:][:size])
		id.Parent = key
	}
	return nil
}

func tokensOf(prompt string) (tokens []uint32) {
	for _, b := range []byte(prompt) {
		tokens = append(tokens, uint32(b))
	}
	return tokens
}

// fill computes the rows of tokens.
func fill(k, v codec.Tensor, tokens []uint32) {
	for i := range k.Len() {
		t := tokens[i/dim%size]
		codec.BF16.Store(k.Data[2*i:], float32(t)/64)
		codec.BF16.Store(v.Data[2*i:], float32(i%dim)-float32(t)/8)
	}
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: prefix DIR PROMPT")
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		log.Fatal("prefix: ", err)
	}
}
