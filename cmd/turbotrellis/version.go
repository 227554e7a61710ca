package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/turbotrellis/turbotrellis/codec/cpu"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
}

// versionLine is what the command prints as its version.
func versionLine() string {
	return fmt.Sprintf("turbotrellis %s %s %s/%s cpu %s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH, cpuLevel())
}

// cpuLevel names the level at which the cpu backend runs.
func cpuLevel() string {
	b, err := cpu.Open()
	if err != nil {
		return err.Error()
	}
	defer b.Close()
	return b.Level().String()
}

// version returns the module's version and revision as the Go tool recorded
// them.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)"
	}
	v := info.Main.Version
	if v == "" {
		v = "(devel)"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v += " " + s.Value
		}
	}
	return v
}
