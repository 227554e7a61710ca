package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/model"
	"github.com/turbotrellis/turbotrellis/trellis"
)

func newTrellis() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trellis",
		Short: "Code and restore the weights of models",
		Args:  subcommands,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTrellisEncode(), newTrellisDecode(), newTrellisMerge(), newTrellisTable())
	return cmd
}

// modelResult is what commands that write a model print with --json.
type modelResult struct {
	Output  string `json:"output"`
	Backend string `json:"backend,omitempty"`
	model.Result
}

func (r modelResult) text(w io.Writer) error {
	resumed := ""
	if r.Resumed > 0 {
		resumed = fmt.Sprintf(" (%d found finished)", r.Resumed)
	}
	_, err := fmt.Fprintf(w, "%s: %d matrices%s, %s from %s; %d other tensors\n",
		r.Output, len(r.Tensors), resumed, bytesText(r.Bytes), bytesText(r.SourceBytes), r.Copied)
	return err
}

// runFlags are the flags of every command that writes a model.
type runFlags struct {
	jobs                 int
	force, twice, asJSON bool
}

func (r *runFlags) add(f *pflag.FlagSet) {
	f.IntVar(&r.jobs, "jobs", 1, "tensors in memory at a time; all cores are used in any case")
	f.BoolVar(&r.twice, "copy-duplicates", false, "copy further *.safetensors that hold tensors of the model's names, such as a stale single file beside shards")
	f.BoolVar(&r.force, "force", false, "replace OUT if it exists, and begin again where OUT.partial is of another run")
	f.BoolVar(&r.asJSON, "json", false, "print the result as JSON")
}

// options returns the options of a run; the caller adds the backend.
func (r *runFlags) options(bar *weightBar) (model.RunOptions, error) {
	if r.jobs < 1 {
		return model.RunOptions{}, usagef("--jobs %d: want at least 1", r.jobs)
	}
	return model.RunOptions{Jobs: r.jobs, Force: r.force, Twice: r.twice, Progress: bar.update}, nil
}

// encodeFlags are the flags of trellis encode.
type encodeFlags struct {
	planFlags
	params         trellis.Params
	axis, hessians string
}

func newTrellisEncode() *cobra.Command {
	e := encodeFlags{params: trellis.DefaultParams(0)}
	cmd := &cobra.Command{
		Use:   "encode MODEL OUT",
		Short: "Code weight matrices of a model",
		Long: `Code weight matrices of a model in a few bits per weight.

MODEL is a directory with config.json and model.safetensors, whole or in shards,
or one safetensors file; OUT becomes the same. Of the tensors whose names match
--tensors, the matrices called <base>.weight are coded. All other tensors and
files are copied byte for byte; a note names those that match but are copied,
such as fused experts of three dimensions. A model of affine weights is one, too:
those that match are dequantised and coded.

OUT appears only when complete. Until then work is in OUT.partial, and the same
command resumes it.

With --shard i/n the run codes the i-th of n parts of the matrices, and OUT is a
directory; trellis merge joins the parts to the bytes that one run writes.`,
		Example: `  turbotrellis trellis encode llama llama-3bit --bits 3 --tensors 'proj\.weight$'
  turbotrellis trellis encode w.safetensors out.safetensors --bits 2 --tensors mlp --block 128 --dry-run
  turbotrellis trellis encode llama part-1 --bits 3 --tensors proj --shard 1/4`,
		Args: exactly(2),
	}
	f := cmd.Flags()
	aliases(cmd, map[string]string{"k": "bits", "k-map": "bits-map", "scale": "scale-rule"})
	f.StringVar(&e.tensors, "tensors", "", "regular expression for the names of tensors to code (required)")
	f.IntVar(&e.params.K, "bits", 0, "bits per weight, 1 to 8 (required unless --bits-map covers all)")
	f.IntVar(&e.params.T, "block", e.params.T, "weights per block: times the bits it is a multiple of 32")
	f.TextVar(&e.params.Code, "code", e.params.Code, "code: 1mad, 3inst or rand")
	f.StringVar(&e.axis, "axis", "auto", "axis of [out, in] to code along: 0, 1, or auto for 1 where its length is a multiple of the block, else 0")
	f.TextVar(&e.params.Policy, "policy", e.params.Policy, "what to store for an all-zero row: finite or compat")
	f.TextVar(&e.params.Scale, "scale-rule", e.params.Scale, "how to choose the scales: rms or refit (less error)")
	f.StringVar(&e.hessians, "hessian", "", "directory or safetensors file of Hessians, <base>.weight.hessian, for error feedback")
	e.planFlags.add(f)
	backend := addBackendFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := noStreams(args...); err != nil {
			return err
		}
		bar := &weightBar{w: cmd.ErrOrStderr()}
		defer bar.done()
		run, err := e.runFlags.options(bar)
		if err != nil {
			return err
		}
		o, err := e.encodeOptions()
		if err != nil {
			return err
		}
		m, err := model.Open(args[0])
		if err != nil {
			return err
		}
		defer m.Close()
		if e.hessians != "" {
			if o.Hessians, err = model.OpenHessians(e.hessians); err != nil {
				return err
			}
			defer o.Hessians.Close()
		}
		plan, err := model.PlanEncode(m, o)
		if err != nil {
			return err
		}
		return e.carryOut(cmd, plan, args[1], run, *backend, bar)
	}
	return cmd
}

// planFlags are the flags of every command that codes matrices.
type planFlags struct {
	runFlags
	tensors, bitsMap, shard string
	dryRun                  bool
}

func (p *planFlags) add(f *pflag.FlagSet) {
	f.StringVar(&p.bitsMap, "bits-map", "", "JSON file of bits by tensor name or regular expression: names first, then the first expression that matches")
	f.StringVar(&p.shard, "shard", "", "code part i of n, such as 1/4")
	f.BoolVar(&p.dryRun, "dry-run", false, "check everything but the weights, print what would be done, and write nothing")
	p.runFlags.add(f)
}

// part returns the part of how many that --shard names, 0 of 0 without it.
func (p *planFlags) part() (part, parts int, err error) {
	if p.shard == "" {
		return 0, 0, nil
	}
	i, n, ok := strings.Cut(p.shard, "/")
	part, err1 := strconv.Atoi(i)
	parts, err2 := strconv.Atoi(n)
	if !ok || errors.Join(err1, err2) != nil || parts < 1 || part < 1 || part > parts {
		return 0, 0, usagef("--shard %q: want i/n with i from 1 to n", p.shard)
	}
	return part, parts, nil
}

// bits returns what --bits-map says.
func (p *planFlags) bits() (model.BitsMap, error) {
	if p.bitsMap == "" {
		return nil, nil
	}
	text, err := readRegular(p.bitsMap)
	if err != nil {
		return nil, err
	}
	m, err := model.ParseBitsMap(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.bitsMap, err)
	}
	return m, nil
}

// carryOut checks a plan and prints it or carries it out.
func (p *planFlags) carryOut(cmd *cobra.Command, plan *model.Plan, out string, run model.RunOptions, backend string, bar *weightBar) error {
	if err := haveNames(cmd, "bits-map", "hessian"); err != nil {
		return err
	}
	if p.bitsMap != "" {
		if err := distinct(p.bitsMap, out, nil); err != nil {
			return fmt.Errorf("--bits-map: %w", err)
		}
	}
	if err := plan.Check(out, run); err != nil {
		return advised(err)
	}
	printNotes(cmd.ErrOrStderr(), plan)
	if p.dryRun {
		if err := plan.CheckHessians(cmd.Context()); err != nil {
			return err
		}
		return printPlan(cmd.OutOrStdout(), plan, p.asJSON)
	}
	b, err := openBackend(backend)
	if err != nil {
		return err
	}
	defer b.Close()
	run.Backend = b
	r, err := plan.Encode(cmd.Context(), out, run)
	if err != nil {
		return advised(err)
	}
	bar.done()
	result := modelResult{out, b.Name(), r}
	return emit(cmd.OutOrStdout(), p.asJSON, result, result.text)
}

// encodeOptions checks the flags that say what is coded and how.
func (e *encodeFlags) encodeOptions() (model.EncodeOptions, error) {
	o := model.EncodeOptions{Params: e.params}
	if e.tensors == "" {
		return o, usagef("--tensors is required")
	}
	var err error
	if o.Tensors, err = nameFlag("--tensors", e.tensors); err != nil {
		return o, err
	}
	switch e.axis {
	case "auto":
		o.Axis = model.AutoAxis
	case "0", "1":
		o.Axis = int(e.axis[0] - '0')
	default:
		return o, usagef("--axis %q: want auto, 0 or 1", e.axis)
	}
	if e.params.K != 0 {
		if err := o.Params.Validate(); err != nil {
			return o, usageError{err}
		}
	}
	if o.Part, o.Parts, err = e.part(); err != nil {
		return o, err
	}
	if o.Bits, err = e.bits(); err != nil {
		return o, err
	}
	if e.params.K == 0 && o.Bits == nil {
		return o, usagef("--bits is required")
	}
	return o, nil
}

// printNotes says what a user may have expected to be coded, or coded otherwise.
func printNotes(w io.Writer, p *model.Plan) {
	printNote(w, "matched, but copied, as these are not matrices called <base>.weight"+wholeGroups(p), p.Passed)
	printNote(w, "coded without a Hessian", p.NoHessian)
	printNote(w, "Hessians of no selected matrix", p.UnusedHessians)
	printNote(w, copiedAsAsked, p.Twice)
}

const copiedAsAsked = "copied as asked"

// printNote prints the first of the names that something is true of, if any.
func printNote(w io.Writer, what string, names []string) {
	if n := len(names); n > 0 {
		more := ""
		if n > 3 {
			names, more = names[:3], fmt.Sprintf(" and %d more", n-3)
		}
		fmt.Fprintf(w, "note: %s: %s%s\n", what, printable(strings.Join(names, ", ")), more)
	}
}

// wholeGroups is what else affine rows need.
func wholeGroups(p *model.Plan) string {
	if p.Tensors[0].GroupSize == 0 {
		return ""
	}
	return fmt.Sprintf(" with rows that are multiples of %d", p.Tensors[0].GroupSize)
}

// printPlan prints what an encoding would do.
func printPlan(w io.Writer, p *model.Plan, asJSON bool) error {
	v := struct {
		Tensors        []model.Planned `json:"tensors"`
		Passed         []string        `json:"matched_but_copied"`
		NoHessian      []string        `json:"without_hessian,omitempty"`
		UnusedHessians []string        `json:"unused_hessians,omitempty"`
		Twice          []string        `json:"copied_duplicates,omitempty"`
		Copied         int             `json:"copied_tensors"`
		Files          []string        `json:"copied_files"`
	}{p.Tensors, append([]string{}, p.Passed...), p.NoHessian, p.UnusedHessians, p.Twice, p.Copied, append([]string{}, p.Files...)}
	return emit(w, asJSON, v, func(w io.Writer) error { return planText(w, p) })
}

func planText(w io.Writer, p *model.Plan) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TENSOR\tSHAPE\tDTYPE\tBITS\tAXIS\tHESSIAN\tBITS/WEIGHT\tSIZE\tCODED\tPART")
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
	fmt.Fprintf(w, "%d matrices of %d weights: %s from %s, %.3f bits per weight\n",
		len(p.Tensors), weights, bytesText(coded), bytesText(source), 8*float64(coded)/float64(max(1, weights)))
	fmt.Fprintf(w, "copied: %d tensors\n", p.Copied)
	if len(p.Files) > 0 {
		fmt.Fprintf(w, "copied: %s\n", printable(strings.Join(p.Files, ", ")))
	}
	return nil
}

func newTrellisDecode() *cobra.Command {
	var r runFlags
	dtype := codec.BF16
	cmd := &cobra.Command{
		Use:   "decode IN OUT",
		Short: "Restore the weight matrices of a coded model",
		Long: `Restore the weight matrices of a coded model, a directory or one safetensors
file, under the names that they had. OUT becomes what IN is.`,
		Example: `  turbotrellis trellis decode llama-3bit llama-restored --dtype bf16`,
		Args:    exactly(2),
	}
	f := cmd.Flags()
	f.TextVar(&dtype, "dtype", dtype, "type of restored weights: bf16, f16 or f32")
	r.add(f)
	backend := addBackendFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return r.restore(cmd, args, *backend, func(m *model.Model, run model.RunOptions) (model.Result, error) {
			return m.Decode(cmd.Context(), args[1], dtype, run)
		})
	}
	return cmd
}

// restore opens the model args[0] and lets decode write args[1].
func (r *runFlags) restore(cmd *cobra.Command, args []string, backend string, decode func(*model.Model, model.RunOptions) (model.Result, error)) error {
	if err := noStreams(args...); err != nil {
		return err
	}
	bar := &weightBar{w: cmd.ErrOrStderr()}
	defer bar.done()
	run, err := r.options(bar)
	if err != nil {
		return err
	}
	m, err := model.Open(args[0])
	if err != nil {
		return err
	}
	defer m.Close()
	b, err := openBackend(backend)
	if err != nil {
		return err
	}
	defer b.Close()
	run.Backend = b
	result, err := decode(m, run)
	if err != nil {
		return advised(err)
	}
	bar.done()
	printNote(cmd.ErrOrStderr(), copiedAsAsked, result.Twice)
	printed := modelResult{args[1], b.Name(), result}
	return emit(cmd.OutOrStdout(), r.asJSON, printed, printed.text)
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
			return advised(err)
		}
		bar.done()
		return emit(cmd.OutOrStdout(), asJSON, modelResult{Output: out, Result: r}, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s: %d parts, %d tensors\n", out, len(args)-1, r.Copied)
			return err
		})
	}
	return cmd
}
