package main

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/kvcache/snapshot"
)

func newKV() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kv",
		Short: "Pack and restore KV caches",
		Args:  subcommands,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKVEncode(), newKVDecode(), newKVStore())
	return cmd
}

// kvResult is what kv encode and kv decode print with --json.
type kvResult struct {
	Input       string  `json:"input"`
	Output      string  `json:"output"`
	Backend     string  `json:"backend"`
	Layers      int     `json:"layers"`
	Raw         int     `json:"raw_tensors"`
	SourceBytes int64   `json:"source_bytes"`
	PackedBytes int64   `json:"packed_bytes"`
	KeyBits     float64 `json:"key_bits_per_element"` // scales, centres and raw tokens included
	ValueBits   float64 `json:"value_bits_per_element"`
	Bits        float64 `json:"bits_per_element"`
	Saturated   *uint64 `json:"saturated,omitempty"` // of kv decode
}

func (r kvResult) text(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s: %d layers, %d other tensors; packed %s, unpacked %s (%.2fx); %.2f bits per element\n",
		r.Output, r.Layers, r.Raw, bytesText(r.PackedBytes), bytesText(r.SourceBytes), float64(r.SourceBytes)/float64(max(1, r.PackedBytes)), r.Bits)
	if err == nil && r.Saturated != nil && *r.Saturated > 0 {
		_, err = fmt.Fprintf(w, "%d elements are beyond the range of f16 and were stored as ±65504\n", *r.Saturated)
	}
	return err
}

// runKV runs work, which packs or restores in to out, and prints the result.
func runKV(cmd *cobra.Command, args []string, what, backend string, force, asJSON bool, work func(codec.Backend, io.WriterAt, *source, *bar) (snapshot.Summary, error)) error {
	b, err := openBackend(backend)
	if err != nil {
		return err
	}
	defer b.Close()
	progress := &bar{what: what}
	defer progress.done()
	var sum snapshot.Summary
	err = convert(cmd, args[0], args[1], force, func(w io.WriterAt, in *source) (err error) {
		sum, err = work(b, w, in, progress)
		return err
	})
	if err != nil {
		return err
	}
	progress.done()
	total := sum.Total()
	r := kvResult{
		Input: args[0], Output: args[1], Backend: b.Name(),
		Layers: sum.Layers, Raw: sum.Raw, SourceBytes: total.Source, PackedBytes: total.Packed,
		KeyBits: sum.Keys.Bits(), ValueBits: sum.Values.Bits(), Bits: total.Bits(),
	}
	if what == decoding {
		r.Saturated = &sum.Saturated
	}
	return emit(resultWriter(cmd, args[1]), asJSON, r, r.text)
}

// What a progress bar of runKV says.
const (
	encoding = "encoding"
	decoding = "decoding"
)

func bytesText(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 10<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 10<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}

// nameFlags say which tensors are keys and values, and which layers count.
type nameFlags struct{ skip, keys, values string }

func addNameFlags(cmd *cobra.Command, skip string) *nameFlags {
	var n nameFlags
	f := cmd.Flags()
	f.StringVar(&n.skip, "skip", "", skip)
	f.StringVar(&n.keys, "key-names", "", "regular expression for the names of keys; its first group is what differs from the values' names")
	f.StringVar(&n.values, "value-names", "", "regular expression for the names of values, in the same way")
	return &n
}

func (n *nameFlags) set(o *snapshot.EncodeOptions) (err error) {
	if o.Skip, err = snapshot.ParseLayers(n.skip); err != nil {
		return usagef("--skip: %w", err)
	}
	if o.KeyNames, err = nameFlag("--key-names", n.keys); err != nil {
		return err
	}
	o.ValueNames, err = nameFlag("--value-names", n.values)
	return err
}

func newKVEncode() *cobra.Command {
	var o snapshot.EncodeOptions
	var centres string
	var force, asJSON bool
	cmd := &cobra.Command{
		Use:   "encode IN.safetensors OUT.safetensors",
		Short: "Pack the keys and values of a safetensors file into a KV snapshot",
		Long: `Pack the keys and values of a safetensors file into a KV snapshot.

Presets, with the bits per element that they come to in a long cache and what
they lose: the mean KL divergence of next-token distributions after a stored
prefix, on two small models and two texts (docs/quality.md).

` + presetsText() + `
Types t2 to t4 (trellis) and r2 to r5 (levels) code a row with one byte of scale,
the others groups of 32 or 64. A trellis takes several times as long to encode as
levels and as long to decode (docs/performance.md). Keys with a row code are
centred: the mean of the coded tokens of each head is taken out first and each
channel is divided by a gain, both stored once per head. With a row code the
first 4 tokens stay as they are. Files without row codes and raw tokens are of
version 1, which older programs read. Row codes need a head dimension of 32·2^n,
or of 12, 20 or 28 times 2^n that is a multiple of 32; for others choose types of
groups.

Keys and values are the tensors whose names end in .keys or .k and in .values
or .v, or those of a prompt cache of mlx-lm, unless --key-names and --value-names
say otherwise. 8-bit floats are widened to F16. Keys and values whose
names are equal without the matched part are a layer: layers.3.keys goes with
layers.3.values, and is layer 3. Their shape is [..., tokens, head dimension].
All other tensors are copied byte for byte.

IN and OUT may be - for standard input and output.`,
		Example: `  turbotrellis kv encode cache.safetensors cache.tt.safetensors
  turbotrellis kv encode cache.safetensors cache.tt.safetensors --preset small --raw-last 64
  turbotrellis kv encode cache.safetensors cache.tt.safetensors --key-type q8_0 --value-type q3_0
  turbotrellis kv encode in.safetensors out.safetensors --key-type q4_0 --value-type q2_0 --scale-rule search --skip 0,1
  turbotrellis kv encode cache.safetensors out.safetensors --key-names '\.(k_cache)$' --value-names '\.(v_cache)$'`,
		Args: exactly(2),
	}
	kv := addKVFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&centres, "centre", "", "take the centres from this file, such as the snapshot of a calibration text (default those of the tokens)")
	names := addNameFlags(cmd, "layers to copy instead of pack, such as 0,1,30-31")
	f.BoolVar(&force, "force", false, "replace OUT if it exists")
	f.BoolVar(&asJSON, "json", false, "print the result as JSON")
	aliases(cmd, map[string]string{"k": "key-type", "v": "value-type", "keys": "key-names", "values": "value-names", "scale": "scale-rule"})
	backend := addBackendFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var err error
		if o.Params, err = kv.resolve(); err != nil {
			return err
		}
		o.RawFirst, o.RawLast = kv.rawFirst, kv.rawLast
		if err := names.set(&o); err != nil {
			return err
		}
		if err := haveNames(cmd, "centre"); err != nil {
			return err
		}
		if centres != "" {
			if !o.Params.CentreKeys && !o.Params.CentreValues {
				return usagef("--centre %s: neither keys nor values are centred", centres)
			}
			if o.Centres, err = readCentres(centres); err != nil {
				return err
			}
			if err := distinct(centres, args[1], nil); err != nil {
				return fmt.Errorf("--centre: %w", err)
			}
		}
		return runKV(cmd, args, encoding, *backend, force, asJSON, func(b codec.Backend, w io.WriterAt, in *source, p *bar) (snapshot.Summary, error) {
			o.Backend, o.Progress = b, p.update
			s, err := snapshot.Encode(cmd.Context(), w, in, in.size, o)
			if errors.Is(err, snapshot.ErrCentre) {
				err = named(centres, err)
			}
			return s, err
		})
	}
	return cmd
}

// addKVFlags adds the flags that say how keys and values are packed.
func addKVFlags(cmd *cobra.Command) *kvFlags {
	kv := &kvFlags{rawFirst: unset}
	f := cmd.Flags()
	f.StringVar(&kv.preset, "preset", defaultPreset, "formats by what they are for: "+presetNames())
	f.Var(formatFlag{&kv.keys}, "key-type", "format of keys: "+list(codec.KeyFormats())+" (default the preset's)")
	f.Var(formatFlag{&kv.values}, "value-type", "format of values: "+list(codec.ValueFormats())+", or the bits of groups alone (default the preset's)")
	f.StringVar(&kv.centred, "centred", "", "what is centred, of row codes: keys, values, both or none (default keys)")
	f.Var(countFlag{&kv.rawFirst}, "raw-first", "tokens at the beginning to copy bit for bit (default 4 with a row code, otherwise 0)")
	f.Var(countFlag{&kv.rawLast}, "raw-last", "tokens at the end to copy bit for bit (default 0)")
	f.IntVar(&kv.params.Group, "group", 32, "elements that share a scale, in types of groups: 32 or 64")
	f.TextVar(&kv.params.ScaleType, "scale-type", codec.F16, "type of scales and zero points of groups: f16, bf16 or f32")
	f.TextVar(&kv.params.Policy, "policy", codec.Finite, "what to do with groups that the format cannot hold: finite or compat")
	f.TextVar(&kv.params.Scale, "scale-rule", codec.RMS, "how to choose the scales of groups of values: rms or search (slower, less error)")
	return kv
}

// readCentres reads a file of centres.
func readCentres(path string) (map[string]codec.Centre, error) {
	if err := noStreams(path); err != nil {
		return nil, err
	}
	in, err := openSource(path, nil)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	c, err := snapshot.ReadCentres(in, in.size)
	if err != nil {
		return nil, named(path, err)
	}
	return c, nil
}

// list returns names for a help text.
func list[T fmt.Stringer](names []T) string {
	var s []string
	for _, n := range names {
		s = append(s, n.String())
	}
	return strings.Join(s, ", ")
}

// nameFlag compiles a flag's regular expression, or returns nil for "".
func nameFlag(flag, expr string) (*regexp.Regexp, error) {
	if expr == "" {
		return nil, nil
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, usagef("%s: %w", flag, err)
	}
	return re, nil
}

// resultWriter is standard output, unless the data went there.
func resultWriter(cmd *cobra.Command, out string) io.Writer {
	if out == "-" {
		return cmd.ErrOrStderr()
	}
	return cmd.OutOrStdout()
}

func newKVDecode() *cobra.Command {
	var dtype, layers string
	var force, asJSON bool
	cmd := &cobra.Command{
		Use:   "decode IN.safetensors OUT.safetensors",
		Short: "Restore the tensors of a KV snapshot",
		Long: `Restore the tensors of a KV snapshot under the names and shapes that they had.

IN and OUT may be - for standard input and output.`,
		Example: `  turbotrellis kv decode cache.tt.safetensors cache.safetensors --dtype bf16
  turbotrellis kv decode cache.tt.safetensors layer3.safetensors --layers 3`,
		Args: exactly(2),
	}
	f := cmd.Flags()
	f.StringVar(&dtype, "dtype", "", "type of restored tensors: bf16, f16 or f32 (default the type they had)")
	f.StringVar(&layers, "layers", "", "restore only these layers, such as 3 or 0,2,5-7")
	f.BoolVar(&force, "force", false, "replace OUT if it exists")
	f.BoolVar(&asJSON, "json", false, "print the result as JSON")
	backend := addBackendFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var o snapshot.DecodeOptions
		var err error
		if dtype != "" {
			if err = o.DType.UnmarshalText([]byte(dtype)); err != nil {
				return usagef("--dtype: %w", err)
			}
		}
		if o.Layers, err = snapshot.ParseLayers(layers); err != nil {
			return usagef("--layers: %w", err)
		}
		return runKV(cmd, args, decoding, *backend, force, asJSON, func(b codec.Backend, w io.WriterAt, in *source, p *bar) (snapshot.Summary, error) {
			s, err := snapshot.Open(in, in.size)
			if err != nil {
				return snapshot.Summary{}, err
			}
			o.Backend, o.Progress = b, p.update
			return s.Decode(cmd.Context(), w, o)
		})
	}
	return cmd
}
