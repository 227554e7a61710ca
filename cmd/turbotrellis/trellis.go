package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/model"
	"github.com/turbotrellis/turbotrellis/trellis"
)

func newTrellis() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trellis",
		Short: "Code and restore the weights of models",
		Args:  exactly(0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTrellisEncode(), newTrellisDecode(), newTrellisMerge(), newTrellisTable())
	return cmd
}

// trellisResult is what trellis encode, decode and merge print with --json.
type trellisResult struct {
	Output  string `json:"output"`
	Backend string `json:"backend,omitempty"`
	model.Result
}

func (r trellisResult) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	resumed := ""
	if r.Resumed > 0 {
		resumed = fmt.Sprintf(" (%d found finished)", r.Resumed)
	}
	_, err := fmt.Fprintf(w, "%s: %d matrices%s, %s from %s; %d other tensors\n",
		r.Output, len(r.Tensors), resumed, bytesText(r.Bytes), bytesText(r.SourceBytes), r.Copied)
	return err
}

func newTrellisEncode() *cobra.Command {
	var tensors, code, axis, policy, scale, bitsFile, hessians, shard string
	var k, block, jobs int
	var force, dryRun, asJSON bool
	cmd := &cobra.Command{
		Use:   "encode MODEL OUT",
		Short: "Code weight matrices of a model",
		Long: `Code weight matrices of a model in K bits a weight.

MODEL is a directory with config.json and model.safetensors, whole or in shards,
or one safetensors file; OUT becomes the same. Of the tensors whose names match
--tensors, the matrices called <base>.weight are coded. All other tensors and
files are copied byte for byte.

OUT appears when it is whole. Until then it is OUT.partial; the same command
goes on with what a run that was stopped has left there.

With --shard i/n the run codes the i-th of n parts of the matrices, and OUT is a
directory; trellis merge joins the parts to the bytes that one run writes.`,
		Example: `  turbotrellis trellis encode llama llama-3bit --k 3 --tensors 'proj\.weight$'
  turbotrellis trellis encode w.safetensors out.safetensors --k 2 --tensors mlp --block 128 --dry-run
  turbotrellis trellis encode llama part-1 --k 3 --tensors proj --shard 1/4`,
		Args: exactly(2),
	}
	f := cmd.Flags()
	f.StringVar(&tensors, "tensors", "", "regular expression for the names of tensors to code (required)")
	f.IntVar(&k, "k", 0, "bits a weight, 1 to 8 (required unless --k-map covers all)")
	f.StringVar(&bitsFile, "k-map", "", "JSON file of bits by tensor name or regular expression: names first, then the first expression that matches")
	f.IntVar(&block, "block", 256, "weights in a block: k times it is a multiple of 32")
	f.StringVar(&code, "code", "1mad", "code: 1mad, 3inst or rand")
	f.StringVar(&axis, "axis", "auto", "axis of [out, in] to code along: 0, 1, or auto for 1 where its length is a multiple of the block, else 0")
	f.StringVar(&policy, "policy", "finite", "what to store for an all-zero row: finite or compat")
	f.StringVar(&scale, "scale", "rms", "how to choose the scales: rms or refit (less error)")
	f.StringVar(&hessians, "hessian", "", "directory or safetensors file of Hessians, <base>.weight.hessian, for error feedback")
	f.StringVar(&shard, "shard", "", "code part i of n, such as 1/4")
	f.IntVar(&jobs, "jobs", 1, "tensors in memory at a time; all cores are used in any case")
	f.BoolVar(&force, "force", false, "replace OUT if it exists, and begin again where OUT.partial is of another run")
	f.BoolVar(&dryRun, "dry-run", false, "print what would be done, and do nothing")
	f.BoolVar(&asJSON, "json", false, "print the result as JSON")
	backend := addBackendFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := noStreams(args...); err != nil {
			return err
		}
		o, err := trellisOptions(tensors, k, block, code, axis, policy, scale, shard)
		if err != nil {
			return err
		}
		if jobs < 1 {
			return usagef("--jobs %d: want at least 1", jobs)
		}
		if bitsFile != "" {
			text, err := os.ReadFile(bitsFile)
			if err != nil {
				return err
			}
			if o.Bits, err = model.ParseBitsMap(text); err != nil {
				return fmt.Errorf("%s: %w", bitsFile, err)
			}
		}
		if k == 0 && o.Bits == nil {
			return usagef("--k is required")
		}
		m, err := model.Open(args[0])
		if err != nil {
			return err
		}
		defer m.Close()
		if hessians != "" {
			if o.Hessians, err = model.OpenHessians(hessians); err != nil {
				return err
			}
			defer o.Hessians.Close()
		}
		plan, err := model.PlanEncode(m, o)
		if err != nil {
			return err
		}
		if dryRun {
			return printPlan(cmd.OutOrStdout(), plan, asJSON)
		}
		b, err := openBackend(*backend)
		if err != nil {
			return err
		}
		defer b.Close()
		bar := &weightBar{w: cmd.ErrOrStderr()}
		defer bar.done()
		r, err := plan.Encode(cmd.Context(), args[1], model.RunOptions{Backend: b, Jobs: jobs, Force: force, Progress: bar.update})
		if err != nil {
			return existing(err)
		}
		bar.done()
		return trellisResult{args[1], b.Name(), r}.print(cmd.OutOrStdout(), asJSON)
	}
	return cmd
}

// trellisOptions reads the flags of trellis encode.
func trellisOptions(tensors string, k, block int, code, axis, policy, scale, shard string) (model.EncodeOptions, error) {
	var o model.EncodeOptions
	if tensors == "" {
		return o, usagef("--tensors is required")
	}
	var err error
	if o.Tensors, err = nameFlag("--tensors", tensors); err != nil {
		return o, err
	}
	o.Params = trellis.DefaultParams(k)
	o.Params.T = block
	if err = o.Params.Code.UnmarshalText([]byte(code)); err != nil {
		return o, usagef("--code: %w", err)
	}
	if err = o.Params.Scale.UnmarshalText([]byte(scale)); err != nil {
		return o, usagef("--scale: %w", err)
	}
	switch policy {
	case trellis.Finite.String():
	case trellis.Compat.String():
		o.Params.Policy = trellis.Compat
	default:
		return o, usagef("--policy %q: want finite or compat", policy)
	}
	switch axis {
	case "auto":
		o.Axis = model.AutoAxis
	case "0", "1":
		o.Axis = int(axis[0] - '0')
	default:
		return o, usagef("--axis %q: want auto, 0 or 1", axis)
	}
	if k != 0 {
		if err := o.Params.Validate(); err != nil {
			return o, usageError{err}
		}
	}
	if shard != "" {
		i, n, ok := strings.Cut(shard, "/")
		var errs [2]error
		o.Part, errs[0] = strconv.Atoi(i)
		o.Parts, errs[1] = strconv.Atoi(n)
		if !ok || errors.Join(errs[:]...) != nil || o.Parts < 1 || o.Part < 1 || o.Part > o.Parts {
			return o, usagef("--shard %q: want i/n with i from 1 to n", shard)
		}
	}
	return o, nil
}

// printPlan prints what trellis encode would do.
func printPlan(w io.Writer, p *model.Plan, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(struct {
			Tensors []model.Planned `json:"tensors"`
			Passed  []string        `json:"matched_but_copied"`
			Copied  int             `json:"copied_tensors"`
			Files   []string        `json:"copied_files"`
		}{p.Tensors, append([]string{}, p.Passed...), p.Copied, append([]string{}, p.Files...)})
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TENSOR\tSHAPE\tDTYPE\tK\tAXIS\tHESSIAN\tBITS/WEIGHT\tSIZE\tCODED\tPART")
	var weights, source, coded int64
	for _, x := range p.Tensors {
		part := "-"
		if x.Part > 0 {
			part = strconv.Itoa(x.Part)
		}
		hessian := "-"
		if x.Hessian {
			hessian = "yes"
		}
		fmt.Fprintf(t, "%s\t%v\t%s\t%d\t%d\t%s\t%.3f\t%s\t%s\t%s\n",
			printable(x.Name), x.Shape, x.DType, x.Bits, x.Axis, hessian, x.PerWeight, bytesText(x.SourceBytes), bytesText(x.Bytes), part)
		weights, source, coded = weights+x.Weights(), source+x.SourceBytes, coded+x.Bytes
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "%d matrices of %d weights: %s from %s, %.3f bits a weight\n",
		len(p.Tensors), weights, bytesText(coded), bytesText(source), 8*float64(coded)/float64(max(1, weights)))
	if len(p.Passed) > 0 {
		fmt.Fprintf(w, "matched, but copied since no matrices called <base>.weight: %s\n", printable(strings.Join(p.Passed, ", ")))
	}
	fmt.Fprintf(w, "copied: %d tensors\n", p.Copied)
	if len(p.Files) > 0 {
		fmt.Fprintf(w, "copied: %s\n", printable(strings.Join(p.Files, ", ")))
	}
	return nil
}

func newTrellisDecode() *cobra.Command {
	var dtype string
	var jobs int
	var force, asJSON bool
	cmd := &cobra.Command{
		Use:   "decode IN OUT",
		Short: "Restore the weight matrices of a coded model",
		Long: `Restore the weight matrices of a coded model, a directory or one safetensors
file, under the names that they had. OUT becomes what IN is.`,
		Example: `  turbotrellis trellis decode llama-3bit llama-restored --dtype bf16`,
		Args:    exactly(2),
	}
	f := cmd.Flags()
	f.StringVar(&dtype, "dtype", "bf16", "type of restored weights: bf16, f16 or f32")
	f.IntVar(&jobs, "jobs", 1, "tensors in memory at a time; all cores are used in any case")
	f.BoolVar(&force, "force", false, "replace OUT if it exists, and begin again where OUT.partial is of another run")
	f.BoolVar(&asJSON, "json", false, "print the result as JSON")
	backend := addBackendFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := noStreams(args...); err != nil {
			return err
		}
		var d codec.DType
		err := d.UnmarshalText([]byte(dtype))
		if err != nil {
			return usagef("--dtype: %w", err)
		}
		if jobs < 1 {
			return usagef("--jobs %d: want at least 1", jobs)
		}
		m, err := model.Open(args[0])
		if err != nil {
			return err
		}
		defer m.Close()
		b, err := openBackend(*backend)
		if err != nil {
			return err
		}
		defer b.Close()
		bar := &weightBar{w: cmd.ErrOrStderr()}
		defer bar.done()
		r, err := m.Decode(cmd.Context(), args[1], d, model.RunOptions{Backend: b, Jobs: jobs, Force: force, Progress: bar.update})
		if err != nil {
			return existing(err)
		}
		bar.done()
		return trellisResult{args[1], b.Name(), r}.print(cmd.OutOrStdout(), asJSON)
	}
	return cmd
}

func newTrellisMerge() *cobra.Command {
	var force, asJSON bool
	cmd := &cobra.Command{
		Use:   "merge PART... OUT",
		Short: "Join the parts of an encoding",
		Long: `Join the parts that trellis encode --shard wrote, in any order, to the same
bytes that one run writes.`,
		Example: `  turbotrellis trellis merge part-1 part-2 part-3 part-4 llama-3bit`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usagef("%s takes at least 2 arguments, got %d", cmd.CommandPath(), len(args))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace OUT if it exists")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := noStreams(args...); err != nil {
			return err
		}
		out := args[len(args)-1]
		bar := &weightBar{w: cmd.ErrOrStderr()}
		defer bar.done()
		r, err := model.Merge(cmd.Context(), args[:len(args)-1], out, model.RunOptions{Force: force, Progress: bar.update})
		if err != nil {
			return existing(err)
		}
		bar.done()
		if asJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(trellisResult{Output: out, Result: r})
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d parts, %d tensors\n", out, len(args)-1, r.Copied)
		return err
	}
	return cmd
}
