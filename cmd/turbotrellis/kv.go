package main

import (
	"encoding/json"
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
		Args:  exactly(0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKVEncode(), newKVDecode())
	return cmd
}

// kvResult is what kv encode and kv decode print with --json.
type kvResult struct {
	Input       string `json:"input"`
	Output      string `json:"output"`
	Backend     string `json:"backend"`
	Layers      int    `json:"layers"`
	Raw         int    `json:"raw_tensors"`
	SourceBytes int64  `json:"source_bytes"`
	PackedBytes int64  `json:"packed_bytes"`
}

// finish fills in what was done.
func (r *kvResult) finish(s snapshot.Summary) {
	r.Layers, r.Raw, r.SourceBytes, r.PackedBytes = s.Layers, s.Raw, s.SourceBytes, s.PackedBytes
}

func (r kvResult) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	_, err := fmt.Fprintf(w, "%s: %d layers, %d other tensors; packed %s, unpacked %s (%.2fx)\n",
		r.Output, r.Layers, r.Raw, bytesText(r.PackedBytes), bytesText(r.SourceBytes), float64(r.SourceBytes)/float64(max(1, r.PackedBytes)))
	return err
}

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
	var keyType, valueType, scaleType, policy, scale, skip, keyNames, valueNames string
	var group int
	var force, asJSON bool
	var names []string
	for _, f := range codec.KeyFormats() {
		names = append(names, f.String())
	}
	cmd := &cobra.Command{
		Use:   "encode IN.safetensors OUT.safetensors",
		Short: "Pack the keys and values of a safetensors file into a KV snapshot",
		Long: `Pack the keys and values of a safetensors file into a KV snapshot.

Keys and values are the tensors whose names end in .keys or .k and in .values
or .v, unless --keys and --values say otherwise; names that are equal without
that part are a layer (layers.3.keys goes with layers.3.values). Their shape is
[..., tokens, head dimension]. All other tensors are copied byte for byte.

IN and OUT may be - for standard input and output.`,
		Example: `  turbotrellis kv encode cache.safetensors cache.tt.safetensors --k q8_0 --v 3
  turbotrellis kv encode in.safetensors out.safetensors --k q4_0 --v 2 --scale search --skip 0,1`,
		Args: exactly(2),
	}
	f := cmd.Flags()
	f.StringVar(&keyType, "k", "q8_0", "key type: "+strings.Join(names, ", "))
	f.StringVar(&valueType, "v", "3", "bits of a value: 2, 3, 4, 5 or 8 (or q2_0 … q8_0)")
	f.IntVar(&group, "group", 32, "elements that share a scale: 32 or 64")
	f.StringVar(&scaleType, "scale-type", "f16", "type of scales and zero points: f16, bf16 or f32")
	f.StringVar(&policy, "policy", "finite", "what to do with groups that the format cannot hold: finite or compat")
	f.StringVar(&scale, "scale", "rms", "how to choose the scales of values: rms or search (slower, less error)")
	f.StringVar(&skip, "skip", "", "layers to copy instead of pack, such as 0,1,30-31")
	f.StringVar(&keyNames, "keys", "", "regular expression for the names of keys; its first group is what differs from the values' names")
	f.StringVar(&valueNames, "values", "", "likewise for values")
	f.BoolVar(&force, "force", false, "replace OUT if it exists")
	f.BoolVar(&asJSON, "json", false, "print the result as JSON")
	backend := addBackendFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var o snapshot.EncodeOptions
		err := o.Params.Keys.UnmarshalText([]byte(keyType))
		if err != nil {
			return usageError{err}
		}
		o.Params.Group = group
		if group != 32 && group != 64 {
			return usagef("--group %d: want 32 or 64", group)
		}
		if err = o.Params.Values.UnmarshalText([]byte(valueType)); err != nil {
			return usageError{err}
		}
		if err = o.Params.ScaleType.UnmarshalText([]byte(scaleType)); err != nil {
			return usagef("--scale-type: %w", err)
		}
		if err = o.Params.Policy.UnmarshalText([]byte(policy)); err != nil {
			return usageError{err}
		}
		if err = o.Params.Scale.UnmarshalText([]byte(scale)); err != nil {
			return usageError{err}
		}
		if o.Skip, err = snapshot.ParseLayers(skip); err != nil {
			return usageError{err}
		}
		if o.KeyNames, err = nameFlag("--keys", keyNames); err != nil {
			return err
		}
		if o.ValueNames, err = nameFlag("--values", valueNames); err != nil {
			return err
		}
		if o.Backend, err = openBackend(*backend); err != nil {
			return err
		}
		defer o.Backend.Close()
		in, err := openSource(args[0], cmd.InOrStdin())
		if err != nil {
			return err
		}
		defer in.Close()
		b := &bar{what: "encoding"}
		o.Progress = b.update
		r := kvResult{Input: args[0], Output: args[1], Backend: o.Backend.Name()}
		err = writeTo(cmd, args[1], force, func(w io.WriterAt) error {
			defer b.done()
			sum, err := snapshot.Encode(cmd.Context(), w, in, in.size, o)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			r.finish(sum)
			return nil
		})
		if err != nil {
			return err
		}
		return r.print(resultWriter(cmd, args[1]), asJSON)
	}
	return cmd
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
	f.StringVar(&layers, "layers", "", "restore these layers only, such as 3 or 0,2,5-7")
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
			return usageError{err}
		}
		if o.Backend, err = openBackend(*backend); err != nil {
			return err
		}
		defer o.Backend.Close()
		in, err := openSource(args[0], cmd.InOrStdin())
		if err != nil {
			return err
		}
		defer in.Close()
		s, err := snapshot.Open(in, in.size)
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		b := &bar{what: "decoding"}
		o.Progress = b.update
		r := kvResult{Input: args[0], Output: args[1], Backend: o.Backend.Name()}
		err = writeTo(cmd, args[1], force, func(w io.WriterAt) error {
			defer b.done()
			sum, err := s.Decode(cmd.Context(), w, o)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			r.finish(sum)
			return nil
		})
		if err != nil {
			return err
		}
		return r.print(resultWriter(cmd, args[1]), asJSON)
	}
	return cmd
}
