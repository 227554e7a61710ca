package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/conformance"
)

func newVerify() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check that a backend gives the right bits on this machine",
		Long: `Run the conformance suite on this machine: generated cases of every operation,
compared with the reference bit for bit, and digests that are the same on every
machine. verify exits with 1 if a case fails or no case runs.

A failure ends with the line that runs its case alone.`,
		Example: `  turbotrellis verify
  turbotrellis verify --backend metal --filter EncodeKeys
  turbotrellis verify --filter 'Digest(of=keys,n=100)'`,
		Args: exactly(0),
	}
	backend := addBackendFlag(cmd)
	filter := cmd.Flags().String("filter", "", "run only the cases of one operation, or whose name contains this, or the one case of this name")
	long := cmd.Flags().Bool("long", false, "also run the long digests, of a million iterations each")
	asJSON := cmd.Flags().Bool("json", false, "print the report as JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		b, err := openBackend(*backend)
		if err != nil {
			return err
		}
		defer b.Close()
		o := conformance.Options{Filter: *filter}
		if *long {
			o.Form = conformance.Long
		}
		return verify(cmd.Context(), cmd.OutOrStdout(), b, o, *asJSON)
	}
	return cmd
}

// verify runs the suite on b and writes the report to w. It returns the
// report's error.
func verify(ctx context.Context, w io.Writer, b codec.Backend, o conformance.Options, asJSON bool) error {
	p := bar{what: "verify " + b.Name(), unit: "cases"}
	defer p.done()
	o.Progress = func(done, total int) { p.update(int64(done), int64(total)) }
	r := conformance.Run(ctx, b, o)
	p.done()
	if ctx.Err() != nil {
		return context.Cause(ctx) // a report of some of the cases would pass for one of all
	}
	if err := emit(w, asJSON, r, func(w io.Writer) error { return reportText(w, r) }); err != nil {
		return err
	}
	switch {
	case r.Failed > 0:
		return fmt.Errorf("%d of %d cases failed", r.Failed, r.Cases)
	case r.Cases == 0 && len(r.Declined) == 0:
		return fmt.Errorf("no case matches the filter %q", o.Filter)
	}
	return r.Err()
}

// reportText prints a report.
func reportText(w io.Writer, r *conformance.Report) error {
	for _, f := range r.Failures {
		if _, err := fmt.Fprintf(w, "%v\n\n", f); err != nil {
			return err
		}
	}
	for _, n := range r.Ops {
		if _, err := fmt.Fprintf(w, "%-20s %6d cases %6d failed %6d declined\n", n.Op, n.Cases, n.Failed, n.Declined); err != nil {
			return err
		}
	}
	if len(r.Declined) > 0 {
		if _, err := fmt.Fprintf(w, "declined, the first of %d: %s\n", len(r.Declined), r.Declined[0]); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "backend %s: %d cases, %d failed\n", r.Backend, r.Cases, r.Failed)
	return err
}
