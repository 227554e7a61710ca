// Command turbotrellis packs, restores, inspects and checks KV caches and
// trellis-coded weights. Run it without arguments for help.
//
// It exits with 0 if all went well, 1 on bad data or a mismatch, and 2 if it
// was called wrongly.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/auto"
)

func main() { os.Exit(run(os.Args[1:])) }

// usageError is an error in how the command was called.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// run runs the command and returns its exit code.
func run(args []string) int {
	root := newRoot()
	root.SetArgs(args)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	var usage usageError
	if errors.As(err, &usage) || strings.HasPrefix(err.Error(), "unknown command") {
		fmt.Fprintf(os.Stderr, "turbotrellis: %v\nRun '%s --help' for usage.\n", err, cmd.CommandPath())
		return 2
	}
	fmt.Fprintf(os.Stderr, "turbotrellis: %v\n", err)
	return 1
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "turbotrellis",
		Short: "Portable, bit-exact codecs for language models",
		Long: `turbotrellis packs KV caches and weights of language models into a few bits an
element and restores them to the same bits on every machine.

Exit codes: 0 ok, 1 bad data or a mismatch, 2 wrong usage.`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newDemo(), newKV(), newTrellis(), newInspect(), newVerify(), newDevices(), newVersion())
	return root
}

// exactly is cobra.ExactArgs as a usage error.
func exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef("%s takes %d arguments, got %d", cmd.CommandPath(), n, len(args))
		}
		return nil
	}
}

// addBackendFlag adds --backend to cmd.
func addBackendFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("backend", "", "backend to use: "+strings.Join(auto.Names(), ", ")+" (default the best one that runs here)")
}

// openBackend opens the backend that --backend names.
func openBackend(name string) (codec.Backend, error) {
	if name == "" {
		b, _, err := auto.Open()
		return b, err
	}
	b, err := auto.OpenName(name)
	if err != nil && !errors.Is(err, codec.ErrUnavailable) {
		return nil, usageError{err}
	}
	return b, err
}
