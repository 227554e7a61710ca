package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// demoSample is made by demo/make.py. Its real tensors are cut from
// all-MiniLM-L6-v2, Apache-2.0 (demo/LICENSE-APACHE).
//
//go:embed demo/sample.safetensors
var demoSample []byte

// demoDigests maps a row of the demo to the SHA-256 of its packed bytes:
// codes, then scales, then zero points or the centre's means and gains. They are made by an implementation in
// another language (conformance/vectors/oracle).
//
//go:embed demo/digests.json
var demoDigests []byte

func newDemo() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Pack embedded samples at several settings and show what that costs",
		Long: `Pack embedded samples at several settings and show what that costs.

The real samples are cut from a small language model, the synthetic ones are
random numbers with outlier channels. For each setting the table shows the bits
per element, scales and centres included; the size compared with bf16; the error after
decoding; the speed; and whether the packed bytes are the expected ones, which
another implementation computed. The demo needs no file and no network.`,
		Args: exactly(0),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the rows as JSON")
	backend := addBackendFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		b, err := openBackend(*backend)
		if err != nil {
			return err
		}
		defer b.Close()
		rows, err := demo(cmd.Context(), b)
		if err != nil {
			return err
		}
		if err := emit(cmd.OutOrStdout(), asJSON, rows, func(w io.Writer) error { return printDemo(w, b.Name(), rows) }); err != nil {
			return err
		}
		for _, r := range rows {
			if !r.Match {
				return fmt.Errorf("%s, %s: the packed bytes are not the expected ones", r.Sample, r.Setting)
			}
		}
		return nil
	}
	return cmd
}

// demoRow is one line of the demo.
type demoRow struct {
	Sample      string  `json:"sample"`
	Setting     string  `json:"setting"`
	Bits        float64 `json:"bits_per_element"` // scales and centres included
	Compression float64 `json:"compression_vs_bf16"`
	RelError    number  `json:"relative_error"` // ‖decoded − x‖ / ‖x‖
	SNR         number  `json:"snr_db"`
	Worst       float64 `json:"worst_element"`   // largest |decoded − x|
	EncodeMBs   number  `json:"encode_mb_per_s"` // bytes of the source
	DecodeMBs   number  `json:"decode_mb_per_s"`
	Digest      string  `json:"digest"`
	Match       bool    `json:"digest_matches"`
}

// demo runs every setting.
func demo(ctx context.Context, b codec.Backend) ([]demoRow, error) {
	f, err := safetensors.NewFile(bytes.NewReader(demoSample), int64(len(demoSample)))
	if err != nil {
		return nil, err
	}
	var want map[string]string
	if err := json.Unmarshal(demoDigests, &want); err != nil {
		return nil, fmt.Errorf("digests: %w", err)
	}
	load := func(name string) (codec.Tensor, error) {
		in, _ := f.Lookup(name)
		data, err := f.AppendTensor(nil, name)
		if err != nil {
			return codec.Tensor{}, err
		}
		d := codec.F16
		if in.DType == safetensors.F32 {
			d = codec.F32
		}
		return codec.Tensor{DType: d, Shape: in.Shape, Data: data}, nil
	}
	var rows []demoRow
	run := func(sample, setting string, x codec.Tensor, encode func() ([][]byte, error), decode func(codec.Tensor) error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r := demoRow{Sample: sample, Setting: setting}
		packed, err := encode() // once to warm up and to keep
		if err != nil {
			return fmt.Errorf("%s, %s: %w", sample, setting, err)
		}
		bytesOut, h := 0, sha256.New()
		for _, p := range packed {
			bytesOut += len(p)
			h.Write(p)
		}
		r.Digest = hex.EncodeToString(h.Sum(nil))
		r.Match = want[sample+"/"+setting] == r.Digest
		out := codec.NewTensor(codec.F32, x.Shape...)
		if err := decode(out); err != nil {
			return fmt.Errorf("%s, %s: %w", sample, setting, err)
		}
		r.EncodeMBs = rate(len(x.Data), func() error { _, err := encode(); return err })
		r.DecodeMBs = rate(len(x.Data), func() error { return decode(out) })
		r.Bits = 8 * float64(bytesOut) / float64(x.Len())
		r.Compression = 16 / r.Bits
		var signal, noise float64
		for i := range x.Len() {
			v := float64(x.DType.Load(x.Data[i*x.DType.Size():]))
			e := float64(codec.F32.Load(out.Data[4*i:])) - v
			signal += v * v
			noise += e * e
			r.Worst = max(r.Worst, math.Abs(e))
		}
		r.RelError = number(math.Sqrt(noise / signal))
		r.SNR = number(10 * math.Log10(signal/noise))
		rows = append(rows, r)
		return nil
	}
	for _, sample := range []string{"real", "synthetic"} {
		keys, err := load("keys." + sample)
		if err != nil {
			return nil, err
		}
		values, err := load("values." + sample)
		if err != nil {
			return nil, err
		}
		for _, name := range []string{"q8_0", "q4_0", "uint2"} {
			var f codec.Format
			if err := f.UnmarshalText([]byte(name)); err != nil {
				return nil, err
			}
			kv, err := b.KV(codec.KVParams{HeadDim: keys.Dim(), Keys: f, Values: codec.Q8_0})
			if err != nil {
				return nil, err
			}
			var k codec.Keys
			err = run(sample+" keys", name, keys, func() ([][]byte, error) {
				err := kv.EncodeKeys(&k, keys)
				return [][]byte{k.Codes, k.Scales, k.Zeros}, err
			}, func(out codec.Tensor) error { return kv.DecodeKeys(out, k) })
			if err != nil {
				return nil, err
			}
		}
		for _, format := range []codec.Format{codec.R5, codec.T4, codec.T3} {
			kv, err := b.KV(codec.KVParams{HeadDim: keys.Dim(), Keys: format, Values: codec.Q8_0, CentreKeys: true})
			if err != nil {
				return nil, err
			}
			var k codec.Keys
			err = run(sample+" keys", format.String()+" centred", keys, func() ([][]byte, error) {
				var err error
				if k.Centre, err = codec.NewCentre(keys); err == nil {
					err = kv.EncodeKeys(&k, keys)
				}
				return [][]byte{k.Codes, k.Scales, k.Centre.Mean.Data, k.Centre.Gain.Data}, err
			}, func(out codec.Tensor) error { return kv.DecodeKeys(out, k) })
			if err != nil {
				return nil, err
			}
		}
		for _, format := range []codec.Format{codec.R4, codec.T4, codec.T3} {
			kv, err := b.KV(codec.KVParams{HeadDim: 64, ValueHeadDim: values.Dim(), Keys: codec.Uint8, Values: format})
			if err != nil {
				return nil, err
			}
			var v codec.Values
			err = run(sample+" values", format.String(), values, func() ([][]byte, error) {
				err := kv.EncodeValues(&v, values)
				return [][]byte{v.Codes, v.Scales}, err
			}, func(out codec.Tensor) error { return kv.DecodeValues(out, v) })
			if err != nil {
				return nil, err
			}
		}
		for _, s := range []struct {
			format codec.Format
			rule   codec.ScaleRule
		}{{codec.Q8_0, codec.RMS}, {codec.Q4_0, codec.RMS}, {codec.Q4_0, codec.Search}, {codec.Q3_0, codec.RMS}, {codec.Q3_0, codec.Search}, {codec.Q2_0, codec.RMS}} {
			kv, err := b.KV(codec.KVParams{HeadDim: values.Dim(), Keys: codec.Uint8, Values: s.format, Scale: s.rule})
			if err != nil {
				return nil, err
			}
			var v codec.Values
			err = run(sample+" values", fmt.Sprintf("%d bits, %v", s.format.Bits(), s.rule), values, func() ([][]byte, error) {
				err := kv.EncodeValues(&v, values)
				return [][]byte{v.Codes, v.Scales}, err
			}, func(out codec.Tensor) error { return kv.DecodeValues(out, v) })
			if err != nil {
				return nil, err
			}
		}
	}
	weights, err := load("weights.real")
	if err != nil {
		return nil, err
	}
	g := trellis.Geometry{Axis: 1, Out: weights.Shape[0], In: weights.Shape[1]}
	for _, s := range []struct {
		k    int
		rule trellis.ScaleRule
	}{{4, trellis.Refit}, {3, trellis.RMS}, {2, trellis.RMS}} {
		p := trellis.DefaultParams(s.k)
		p.Scale = s.rule
		c, err := b.Trellis(p)
		if err != nil {
			return nil, err
		}
		var m trellis.Matrix
		err = run("real weights", fmt.Sprintf("trellis %d bits, %v", s.k, s.rule), weights, func() ([][]byte, error) {
			err := c.Encode(ctx, &m, codec.Tensor{}, weights, g)
			return [][]byte{littleEndian(m.Codes), littleEndian(m.Scales)}, err
		}, func(out codec.Tensor) error { return c.Decode(out, &m, 0) })
		if err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// littleEndian returns the bytes of words as a file holds them.
func littleEndian[T uint16 | uint32](words []T) []byte {
	b, err := binary.Append(nil, binary.LittleEndian, words)
	if err != nil {
		panic(err) // the types have a fixed size
	}
	return b
}

// rate returns the MB/s at which f handles n bytes, measured for a few
// hundredths of a second.
func rate(n int, f func() error) number {
	start, times := time.Now(), 0
	for time.Since(start) < 30*time.Millisecond {
		if f() != nil {
			return number(math.NaN())
		}
		times++
	}
	return number(float64(n) * float64(times) / time.Since(start).Seconds() / 1e6)
}

func printDemo(w io.Writer, backend string, rows []demoRow) error {
	fmt.Fprintf(w, "backend %s; real: all-MiniLM-L6-v2 (Apache-2.0); synthetic: random numbers, no model\n\n", backend)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "sample\tsetting\tbits/elem\tvs bf16\trel. error\tSNR dB\tworst\tenc MB/s\tdec MB/s\tbytes\t")
	for _, r := range rows {
		match := "as expected"
		if !r.Match {
			match = "DIFFERENT"
		}
		fmt.Fprintf(t, "%s\t%s\t%.2f\t%.2fx\t%.4f\t%.1f\t%.3g\t%.3g\t%.3g\t%s\t\n",
			r.Sample, r.Setting, r.Bits, r.Compression, r.RelError, r.SNR, r.Worst, r.EncodeMBs, r.DecodeMBs, match)
	}
	return t.Flush()
}
