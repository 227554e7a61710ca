package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
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
	Saturated   *uint64 `json:"saturated,omitempty"` // of kv decode
}

func (r kvResult) text(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s: %d layers, %d other tensors; packed %s, unpacked %s (%.2fx)\n",
		r.Output, r.Layers, r.Raw, bytesText(r.PackedBytes), bytesText(r.SourceBytes), float64(r.SourceBytes)/float64(max(1, r.PackedBytes)))
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
	r := kvResult{
		Input: args[0], Output: args[1], Backend: b.Name(),
		Layers: sum.Layers, Raw: sum.Raw, SourceBytes: sum.SourceBytes, PackedBytes: sum.PackedBytes,
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

func newKVEncode() *cobra.Command {
	var o snapshot.EncodeOptions
	var skip, keyNames, valueNames string
	var force, asJSON bool
	keyFormats := slices.DeleteFunc(codec.KeyFormats(), codec.Format.RowCode) // snapshots hold none
	valueFormats := slices.DeleteFunc(codec.ValueFormats(), codec.Format.RowCode)
	cmd := &cobra.Command{
		Use:   "encode IN.safetensors OUT.safetensors",
		Short: "Pack the keys and values of a safetensors file into a KV snapshot",
		Long: `Pack the keys and values of a safetensors file into a KV snapshot.

Keys and values are the tensors whose names end in .keys or .k and in .values
or .v, or those of a prompt cache of mlx-lm, unless --key-names and --value-names
say otherwise. 8-bit floats are widened to F16. Keys and values whose
names are equal without the matched part are a layer: layers.3.keys goes with
layers.3.values, and is layer 3. Their shape is [..., tokens, head dimension].
All other tensors are copied byte for byte.

IN and OUT may be - for standard input and output.`,
		Example: `  turbotrellis kv encode cache.safetensors cache.tt.safetensors --key-type q8_0 --value-type q3_0
  turbotrellis kv encode in.safetensors out.safetensors --key-type q4_0 --value-type q2_0 --scale-rule search --skip 0,1
  turbotrellis kv encode cache.safetensors out.safetensors --key-names '\.(k_cache)$' --value-names '\.(v_cache)$'`,
		Args: exactly(2),
	}
	f := cmd.Flags()
	f.TextVar(&o.Params.Keys, "key-type", codec.Q8_0, "format of keys: "+list(keyFormats))
	f.TextVar(&o.Params.Values, "value-type", codec.Q3_0, "format of values: "+list(valueFormats)+", or the bits alone")
	f.IntVar(&o.Params.Group, "group", 32, "elements that share a scale: 32 or 64")
	f.TextVar(&o.Params.ScaleType, "scale-type", codec.F16, "type of scales and zero points: f16, bf16 or f32")
	f.TextVar(&o.Params.Policy, "policy", codec.Finite, "what to do with groups that the format cannot hold: finite or compat")
	f.TextVar(&o.Params.Scale, "scale-rule", codec.RMS, "how to choose the scales of values: rms or search (slower, less error)")
	f.StringVar(&skip, "skip", "", "layers to copy instead of pack, such as 0,1,30-31")
	f.StringVar(&keyNames, "key-names", "", "regular expression for the names of keys; its first group is what differs from the values' names")
	f.StringVar(&valueNames, "value-names", "", "regular expression for the names of values, in the same way")
	f.BoolVar(&force, "force", false, "replace OUT if it exists")
	f.BoolVar(&asJSON, "json", false, "print the result as JSON")
	aliases(cmd, map[string]string{"k": "key-type", "v": "value-type", "keys": "key-names", "values": "value-names", "scale": "scale-rule"})
	backend := addBackendFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !slices.Contains(keyFormats, o.Params.Keys) {
			return usagef("--key-type %v: want one of %s", o.Params.Keys, list(keyFormats))
		}
		if !slices.Contains(valueFormats, o.Params.Values) {
			return usagef("--value-type %v: want one of %s", o.Params.Values, list(valueFormats))
		}
		if o.Params.Group != 32 && o.Params.Group != 64 {
			return usagef("--group %d: want 32 or 64", o.Params.Group)
		}
		var err error
		if o.Skip, err = snapshot.ParseLayers(skip); err != nil {
			return usagef("--skip: %w", err)
		}
		if o.KeyNames, err = nameFlag("--key-names", keyNames); err != nil {
			return err
		}
		if o.ValueNames, err = nameFlag("--value-names", valueNames); err != nil {
			return err
		}
		return runKV(cmd, args, encoding, *backend, force, asJSON, func(b codec.Backend, w io.WriterAt, in *source, p *bar) (snapshot.Summary, error) {
			o.Backend, o.Progress = b, p.update
			return snapshot.Encode(cmd.Context(), w, in, in.size, o)
		})
	}
	return cmd
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
