package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/turbotrellis/turbotrellis/codec/metal"
	"github.com/turbotrellis/turbotrellis/gpu"
	device "github.com/turbotrellis/turbotrellis/gpu/metal"
)

func newDevices() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "List the GPUs and whether they pass the canary",
		Long: `Print the level at which the cpu backend runs and list the GPUs. Each runs the canary kernel, which checks how it rounds; GPUs
that fail are not used. Without a GPU, or without a driver for one, devices says
why there is none and exits with 0.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := listDevices()
			if err != nil {
				return err
			}
			return emit(cmd.OutOrStdout(), asJSON, d, d.write)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

type devices struct {
	CPU     string       `json:"cpu"`              // level of the cpu backend
	Driver  string       `json:"driver"`           // empty if none was built in
	Reason  string       `json:"reason,omitempty"` // why there is no list
	Devices []deviceInfo `json:"devices"`
}

type deviceInfo struct {
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
}

func listDevices() (*devices, error) {
	d := &devices{CPU: cpuLevel(), Driver: device.Name, Devices: []deviceInfo{}}
	list, err := device.List()
	if errors.Is(err, gpu.ErrUnavailable) {
		d.Reason = err.Error()
		if e, ok := errors.AsType[*gpu.Error](err); ok && e.Detail != "" {
			d.Reason = e.Detail // the rest says what was asked, and that it is unavailable
		}
		return d, nil
	}
	if err != nil {
		return nil, err
	}
	for _, i := range list {
		x := deviceInfo{
			Name: i.Name, Architecture: i.Architecture, RegistryID: fmt.Sprintf("%#x", i.RegistryID), UnifiedMemory: i.UnifiedMemory,
			WorkingSet: i.WorkingSet, MaxBuffer: i.MaxBuffer, MaxThreadgroupMemory: i.MaxThreadgroupMemory, MaxThreads: i.MaxThreads,
		}
		b, err := metal.Open(metal.Options{RegistryID: i.RegistryID})
		if err == nil {
			x.Usable, x.FlushesSubnormals = true, b.Flushes()
			err = b.Close()
		}
		if err != nil {
			x.Usable, x.Reason = false, err.Error()
		}
		d.Devices = append(d.Devices, x)
	}
	return d, nil
}

func (d *devices) write(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "CPU: level %s\n", d.CPU); err != nil {
		return err
	}
	if len(d.Devices) == 0 {
		reason := d.Reason
		if reason == "" {
			reason = "the system has none"
		}
		_, err := fmt.Fprintf(w, "no GPU: %s\n", reason)
		return err
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
  driver              %s
  architecture        %s
  registry id         %s
  unified memory      %t
  working set         %d bytes
  largest buffer      %d bytes
  threadgroup memory  %d bytes
  threadgroup         %d threads
  canary              %s
`, x.Name, d.Driver, x.Architecture, x.RegistryID, x.UnifiedMemory, x.WorkingSet, x.MaxBuffer, x.MaxThreadgroupMemory, x.MaxThreads[0], canary); err != nil {
			return err
		}
	}
	return nil
}
