package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turbotrellis/turbotrellis/codec/cuda"
	planner "github.com/turbotrellis/turbotrellis/codec/gpu"
	"github.com/turbotrellis/turbotrellis/codec/metal"
	"github.com/turbotrellis/turbotrellis/gpu"
	cudadevice "github.com/turbotrellis/turbotrellis/gpu/cuda"
	metaldevice "github.com/turbotrellis/turbotrellis/gpu/metal"
)

func newDevices() *cobra.Command {
	var asJSON, kernels bool
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "List the GPUs and whether they pass the canary",
		Long: `Print the level at which the cpu backend runs and list the GPUs. Each runs the
canary kernel, which checks how it rounds; GPUs that fail are not used. Without a
GPU, or without a driver for one, devices says why there is none and exits with 0.

With --kernels it prints instead the table by which kernels are picked: of what
they are compiled for and what they need beside it. The first kernel that needs
nothing else runs; what it was picked over is logged.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if kernels {
				table := kernelTable(planner.Kernels())
				return emit(cmd.OutOrStdout(), asJSON, table, table.write)
			}
			d, err := listDevices()
			if err != nil {
				return err
			}
			return emit(cmd.OutOrStdout(), asJSON, d, d.write)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&kernels, "kernels", false, "print which kernels serve what; needs no GPU")
	return cmd
}

type kernelTable []planner.Eligibility

func (table kernelTable) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "KERNELS\tNUMBER\tFOR\tNEED\tELSE")
	for _, k := range table {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\n", k.Kernel, len(k.Names), dash(strings.Join(k.Serves, "; ")), dash(strings.Join(k.Needs, "; ")), dash(k.Instead))
	}
	return t.Flush()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

type devices struct {
	CPU     string       `json:"cpu"`     // level of the cpu backend
	Drivers []driverInfo `json:"drivers"` // one per GPU backend
	Devices []deviceInfo `json:"devices"`
}

type driverInfo struct {
	Backend string `json:"backend"`
	Driver  string `json:"driver"`           // empty if none was built in
	Reason  string `json:"reason,omitempty"` // why it lists no device
}

type deviceInfo struct {
	Backend              string `json:"backend"`
	Number               int    `json:"number"` // among the backend's devices
	Name                 string `json:"name"`
	Architecture         string `json:"architecture,omitempty"`
	RegistryID           string `json:"registry_id"` // hexadecimal
	UnifiedMemory        bool   `json:"unified_memory"`
	WorkingSet           uint64 `json:"working_set_bytes"`
	MaxBuffer            uint64 `json:"max_buffer_bytes"`
	MaxThreadgroupMemory int    `json:"max_threadgroup_memory_bytes"`
	MaxThreads           [3]int `json:"max_threads_per_threadgroup"`
	Usable               bool   `json:"usable"`
	Reason               string `json:"reason,omitempty"` // why it is not
	FlushesSubnormals    bool   `json:"flushes_subnormals"`

	driver string
}

// gpuBackends are the backends that have devices.
var gpuBackends = []struct {
	name, driver string
	list         func() ([]gpu.Info, error)
	open         func(number int, info gpu.Info) (*planner.Backend, error)
}{
	{"metal", metaldevice.Name, metaldevice.List, func(_ int, info gpu.Info) (*planner.Backend, error) {
		return metal.Open(metal.Options{RegistryID: info.RegistryID})
	}},
	{"cuda", cudadevice.Name, cudadevice.List, func(number int, _ gpu.Info) (*planner.Backend, error) {
		return cuda.Open(cuda.Options{Number: number})
	}},
}

func listDevices() (*devices, error) {
	d := &devices{CPU: cpuLevel(), Devices: []deviceInfo{}}
	for _, g := range gpuBackends {
		from := driverInfo{Backend: g.name, Driver: g.driver}
		list, err := g.list()
		switch {
		case errors.Is(err, gpu.ErrUnavailable):
			from.Reason = err.Error()
			if e, ok := errors.AsType[*gpu.Error](err); ok && e.Detail != "" {
				from.Reason = e.Detail // the rest says what was asked, and that it is unavailable
			}
		case err != nil:
			return nil, err
		case len(list) == 0:
			from.Reason = "the system has none"
		}
		d.Drivers = append(d.Drivers, from)
		for n, i := range list {
			x := deviceInfo{
				Backend: g.name, Number: n, driver: g.driver,
				Name: i.Name, Architecture: i.Architecture, RegistryID: fmt.Sprintf("%#x", i.RegistryID), UnifiedMemory: i.UnifiedMemory,
				WorkingSet: i.WorkingSet, MaxBuffer: i.MaxBuffer, MaxThreadgroupMemory: i.MaxThreadgroupMemory, MaxThreads: i.MaxThreads,
			}
			b, err := g.open(n, i)
			if err == nil {
				x.Usable, x.FlushesSubnormals = true, b.Flushes()
				err = b.Close()
			}
			if err != nil {
				x.Usable, x.Reason = false, err.Error()
			}
			d.Devices = append(d.Devices, x)
		}
	}
	return d, nil
}

func (d *devices) write(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "CPU: level %s\n", d.CPU); err != nil {
		return err
	}
	if len(d.Devices) == 0 {
		for _, x := range d.Drivers {
			if _, err := fmt.Fprintf(w, "no GPU for %s: %s\n", x.Backend, x.Reason); err != nil {
				return err
			}
		}
	}
	for _, x := range d.Devices {
		canary := "passed, subnormals kept"
		if x.FlushesSubnormals {
			canary = "passed, subnormals flushed"
		}
		if !x.Usable {
			canary = x.Reason
		}
		if _, err := fmt.Fprintf(w, `%s
  backend             %s, device %d
  driver              %s
  architecture        %s
  registry id         %s
  unified memory      %t
  working set         %d bytes
  largest buffer      %d bytes
  threadgroup memory  %d bytes
  threadgroup         %d threads
  canary              %s
`, x.Name, x.Backend, x.Number, x.driver, x.Architecture, x.RegistryID, x.UnifiedMemory, x.WorkingSet, x.MaxBuffer, x.MaxThreadgroupMemory, x.MaxThreads[0], canary); err != nil {
			return err
		}
	}
	return nil
}
