package auto_test

import (
	"fmt"
	"log"
	"os"
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/auto"
)

// Pack the keys of a layer and restore them.
func Example() {
	const heads, tokens = 2, 16
	bytes := make([]byte, heads*tokens*128*2)

	backend, err := auto.Open() // the fastest available; all give the same bits
	if err != nil {
		log.Fatal(err)
	}
	defer backend.Close()
	kv, err := backend.KV(codec.KVParams{HeadDim: 128, Keys: codec.Q8_0, Values: codec.Q3_0})
	if err != nil {
		log.Fatal(err)
	}

	var packed codec.Keys // reused from call to call
	keys := codec.Tensor{DType: codec.BF16, Shape: []int{heads, tokens, 128}, Data: bytes}
	if err := kv.EncodeKeys(&packed, keys); err != nil {
		log.Fatal(err)
	}

	out := codec.NewTensor(codec.F32, heads, tokens, 128)
	if err := kv.DecodeKeys(out, packed); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(keys.Data), "bytes became", len(packed.Codes)+len(packed.Scales)+len(packed.Zeros))
	// Output: 8192 bytes became 4608
}

// README's snippet is the example, without what handles errors.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, snippet, found := strings.Cut(string(readme), "```go\n")
	snippet, _, _ = strings.Cut(snippet, "```")
	if !found || snippet == "" {
		t.Fatal("README.md has no snippet of Go")
	}
	for line := range strings.Lines(snippet) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "err = ")
		if !strings.Contains(string(source), line) {
			t.Errorf("the example does not have %q", line)
		}
	}
}
