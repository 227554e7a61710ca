package snapshot_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/kvcache/snapshot"
)

// The cache of a model becomes a snapshot, from which one layer is restored.
func Example() {
	ctx := context.Background()
	b := ref.New() // or that of auto.Open
	defer b.Close()

	cache, err := os.Open("../../testdata/kv_minilm.safetensors")
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	st, err := cache.Stat()
	if err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "snapshot")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	packed, err := os.Create(filepath.Join(dir, "cache.tt.safetensors"))
	if err != nil {
		log.Fatal(err)
	}
	defer packed.Close()

	sum, err := snapshot.Encode(ctx, packed, cache, st.Size(), snapshot.EncodeOptions{
		Backend: b,
		Params:  codec.KVParams{Keys: codec.Q8_0, Values: codec.Q3_0},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d layers, %d bytes from %d\n", sum.Layers, sum.Total().Packed, sum.Total().Source)

	if st, err = packed.Stat(); err != nil {
		log.Fatal(err)
	}
	s, err := snapshot.Open(packed, st.Size())
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range s.Layers() {
		fmt.Println(l.Keys.Name, l.Keys.Shape, l.Values.Name, l.Values.Shape)
	}
	restored, err := os.Create(filepath.Join(dir, "layer3.safetensors"))
	if err != nil {
		log.Fatal(err)
	}
	defer restored.Close()
	sum, err = s.Decode(ctx, restored, snapshot.DecodeOptions{Backend: b, DType: codec.BF16, Layers: snapshot.LayerSet{3: true}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d layer restored\n", sum.Layers)

	// Output:
	// 2 layers, 307200 bytes from 786432
	// layers.0.keys [1 12 256 32] layers.0.values [1 12 256 32]
	// layers.3.keys [1 12 256 32] layers.3.values [1 12 256 32]
	// 1 layer restored
}
