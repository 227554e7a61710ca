// Command turbotrellis packs, restores, inspects and checks KV caches and
// trellis-coded and affine weights. Run it without arguments for help.
//
// It exits with 0 if all went well, 1 on bad data or a mismatch, 2 if it was
// called wrongly, and 128 plus the signal's number if a signal ended it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/auto"
)

func main() { os.Exit(run(os.Args[1:])) }

// usageError is an error in how the command was called.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Exit codes.
const (
	exitOK          = 0
	exitData        = 1 // bad data or a mismatch
	exitUsage       = 2
	exitInterrupted = -1 // stands for the signal's code
)

// run runs the command until it is done or a signal ends it, and returns the
// exit code.
func run(args []string) int {
	return untilSignal(func(ctx context.Context) int { return execute(ctx, args) })
}

// execute runs the command and reports its error.
func execute(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	stopped := context.Cause(ctx) == errInterrupted && (errors.Is(err, context.Canceled) || errors.Is(err, errInterrupted))
	if stopped && !strings.Contains(err.Error(), errInterrupted.Error()) {
		err = errInterrupted // and not "context canceled"
	}
	report(err)
	if stopped {
		return exitInterrupted
	}
	if usage := (usageError{}); errors.As(err, &usage) {
		fmt.Fprintf(os.Stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
		return exitUsage
	}
	return exitData
}

// report prints an error.
func report(err error) { fmt.Fprintf(os.Stderr, "turbotrellis: %v\n", err) }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "turbotrellis",
		Short: "Portable, bit-exact codecs for language models",
		Long: `turbotrellis packs KV caches and weights of language models into a few bits per
element and restores them to the same bits on every machine.

Exit codes: 0 ok, 1 bad data or a mismatch, 2 wrong usage, 128 plus the number
of the signal that interrupted it.`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          subcommands,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate(versionLine())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newDemo(), newKV(), newTrellis(), newAffine(), newInspect(), newReport(), newVerify(), newBench(), newDevices(), newVersion())
	root.SetHelpCommand(newHelp(root))
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.Args, c.RunE = subcommands, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
	return root
}

// newHelp is cobra's help command, which takes any name, as one that does not.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show the help of a command",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil {
				return usageError{err}
			}
			if len(rest) > 0 {
				return subcommands(cmd, rest)
			}
			return cmd.Help()
		},
	}
}

// subcommands refuses the arguments of a command that only has subcommands.
func subcommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return usagef("unknown command %q: want one of %s", cmd.CommandPath()+" "+args[0], strings.Join(names, ", "))
}

// emit prints v as JSON or, without asJSON, what text prints.
func emit(w io.Writer, asJSON bool, v any, text func(io.Writer) error) error {
	if asJSON {
		return json.NewEncoder(w).Encode(v)
	}
	return text(w)
}

// number is a number in JSON, or null where it is not finite.
type number float64

// MarshalJSON implements json.Marshaler.
func (n number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// aliases lets a command take flags under the names they had before: old to new.
func aliases(cmd *cobra.Command, names map[string]string) {
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if now, ok := names[name]; ok {
			name = now
		}
		return pflag.NormalizedName(name)
	})
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
	return cmd.Flags().String("backend", "", "backend to use: "+strings.Join(auto.Names(), ", ")+" (default the fastest available)")
}

// openBackend opens the backend that --backend names.
func openBackend(name string) (codec.Backend, error) {
	if name == "" {
		return auto.Open()
	}
	b, err := auto.OpenName(name)
	if err != nil && !errors.Is(err, codec.ErrUnavailable) {
		return nil, usageError{err}
	}
	return b, err
}
