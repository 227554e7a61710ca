package main

import (
	"github.com/spf13/cobra"

	"github.com/turbotrellis/turbotrellis/affine"
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/model"
)

func newAffine() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "affine",
		Short: "Quantise and restore the weights of models in MLX's affine format",
		Args:  subcommands,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newAffineEncode(), newAffineDecode())
	return cmd
}

func newAffineEncode() *cobra.Command {
	var p planFlags
	var dtype string
	format := affine.RowFormat{Bits: 4, Group: 64}
	cmd := &cobra.Command{
		Use:   "encode MODEL OUT",
		Short: "Quantise weight matrices of a model",
		Long: `Quantise weight matrices of a model in MLX's affine format: what mlx-lm loads.

MODEL is a directory with config.json and model.safetensors, whole or in shards,
or one safetensors file; OUT becomes the same. The matrices called <base>.weight
whose rows are a multiple of --group-size are quantised, embeddings among them;
with --tensors those whose names match. All other tensors and files are copied
byte for byte. Trellis-coded matrices are decoded first.

OUT appears only when complete. Until then work is in OUT.partial, and the same
command resumes it. trellis merge joins the parts that --shard makes.`,
		Example: `  turbotrellis affine encode llama llama-4bit
  turbotrellis affine encode llama llama-3bit --bits 3 --group-size 32 --tensors 'proj\.weight$' --dtype bf16`,
		Args: exactly(2),
	}
	f := cmd.Flags()
	f.StringVar(&p.tensors, "tensors", "", "regular expression for the names of tensors to quantise (default all)")
	f.IntVar(&format.Bits, "bits", format.Bits, "bits per weight: 2, 3, 4, 5, 6 or 8")
	f.IntVar(&format.Group, "group-size", format.Group, "weights per scale: 32, 64 or 128")
	f.StringVar(&dtype, "dtype", "", "type of scales and biases, to which weights are rounded first: bf16, f16 or f32 (default that of each matrix, bf16 for trellis codes)")
	p.add(f)
	backend := addBackendFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := noStreams(args...); err != nil {
			return err
		}
		bar := &weightBar{w: cmd.ErrOrStderr()}
		defer bar.done()
		run, err := p.options(bar)
		if err != nil {
			return err
		}
		o := model.AffineOptions{Format: format}
		if err := format.Validate(); err != nil {
			return usageError{err}
		}
		if p.tensors != "" {
			if o.Tensors, err = nameFlag("--tensors", p.tensors); err != nil {
				return err
			}
		}
		if o.DType, err = dtypeFlag(dtype); err != nil {
			return err
		}
		if o.Part, o.Parts, err = p.part(); err != nil {
			return err
		}
		if o.Bits, err = p.bits(); err != nil {
			return err
		}
		m, err := model.Open(args[0])
		if err != nil {
			return err
		}
		defer m.Close()
		plan, err := model.PlanAffine(m, o)
		if err != nil {
			return err
		}
		return p.carryOut(cmd, plan, args[1], run, *backend, bar)
	}
	return cmd
}

// dtypeFlag reads an element type, 0 for none.
func dtypeFlag(s string) (t codec.DType, err error) {
	if s == "" {
		return 0, nil
	}
	if err := t.UnmarshalText([]byte(s)); err != nil {
		return 0, usagef("--dtype: %w", err)
	}
	return t, nil
}

func newAffineDecode() *cobra.Command {
	var r runFlags
	var dtype string
	cmd := &cobra.Command{
		Use:   "decode IN OUT",
		Short: "Restore the weight matrices of a model in MLX's affine format",
		Long: `Restore the weight matrices of a model in MLX's affine format, a directory or one
safetensors file, under the names that they had. OUT becomes what IN is.`,
		Example: `  turbotrellis affine decode llama-4bit llama-restored`,
		Args:    exactly(2),
	}
	f := cmd.Flags()
	f.StringVar(&dtype, "dtype", "", "type of restored weights: bf16, f16 or f32 (default that of their scales)")
	r.add(f)
	backend := addBackendFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		t, err := dtypeFlag(dtype)
		if err != nil {
			return err
		}
		return r.restore(cmd, args, *backend, func(m *model.Model, run model.RunOptions) (model.Result, error) {
			return m.DecodeAffine(cmd.Context(), args[1], t, run)
		})
	}
	return cmd
}
