package snapshot_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/cpu"
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

// Trellis codes of 4 bits with centred keys and 4 raw tokens, the default of the command, and what they lose in each
// layer. The centres of one snapshot serve for another cache of the same model.
func ExampleMeasure() {
	ctx := context.Background()
	b := cpu.New(cpu.Options{})
	defer b.Close()
	cache, err := os.ReadFile("../../testdata/kv_minilm.safetensors")
	if err != nil {
		log.Fatal(err)
	}
	o := snapshot.EncodeOptions{
		Backend:  b,
		Params:   codec.KVParams{Keys: codec.T4, Values: codec.T4, CentreKeys: true},
		RawFirst: 4,
	}
	losses, err := snapshot.Measure(ctx, bytes.NewReader(cache), int64(len(cache)), o)
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range losses {
		k, v := l.Keys.Total(), l.Values.Total()
		fmt.Printf("layer %d: keys %.2f bits, error %.3f; values %.2f bits, error %.3f\n",
			l.Number, l.Keys.Size.Bits(), k.Relative(), l.Values.Size.Bits(), v.Relative())
	}

	packed, err := os.CreateTemp("", "*.safetensors")
	if err != nil {
		log.Fatal(err)
	}
	defer os.Remove(packed.Name())
	defer packed.Close()
	sum, err := snapshot.Encode(ctx, packed, bytes.NewReader(cache), int64(len(cache)), o)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.2f bits per element in all\n", sum.Total().Bits())
	st, err := packed.Stat()
	if err != nil {
		log.Fatal(err)
	}
	if o.Centres, err = snapshot.ReadCentres(packed, st.Size()); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(o.Centres), "centres of shape", o.Centres["layers.3.keys"].Mean.Shape)

	// Output:
	// layer 0: keys 4.56 bits, error 0.074; values 4.43 bits, error 0.076
	// layer 3: keys 4.56 bits, error 0.074; values 4.43 bits, error 0.076
	// 4.50 bits per element in all
	// 2 centres of shape [1 12 1 32]
}
