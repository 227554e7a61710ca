package model_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/auto"
	"github.com/turbotrellis/turbotrellis/model"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Code the feed-forward matrices of a model in 3 bits per weight, and restore them.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	coded, restored := filepath.Join(dir, "coded.safetensors"), filepath.Join(dir, "restored.safetensors")

	backend, err := auto.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer backend.Close()
	run := model.RunOptions{Backend: backend}

	m, err := model.Open("../testdata/weights_minilm.safetensors")
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	plan, err := model.PlanEncode(m, model.EncodeOptions{
		Tensors: regexp.MustCompile(`output\.dense\.weight$`),
		Params:  trellis.DefaultParams(3),
		Axis:    model.AutoAxis,
	})
	if err != nil {
		log.Fatal(err)
	}
	result, err := plan.Encode(context.Background(), coded, run)
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range result.Tensors {
		fmt.Printf("%s %v: %d bytes from %d, error %.2f\n", t.Name, t.Shape, t.Bytes, t.SourceBytes, t.Error)
	}

	c, err := model.Open(coded)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	for _, matrix := range c.Coded() {
		fmt.Printf("%s: %d bits, blocks of %d\n", matrix.Base, matrix.Params.K, matrix.Params.T)
	}
	if _, err := c.Decode(context.Background(), restored, codec.BF16, run); err != nil {
		log.Fatal(err)
	}

	// Output:
	// encoder.layer.0.output.dense.weight [8 1536]: 4624 bytes from 49152, error 0.02
	// encoder.layer.0.output.dense: 3 bits, blocks of 256
}
