package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/kvcache"
)

func newInspect() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "inspect FILE",
		Short: "Show what a file holds",
		Long:  `Show what a KV snapshot or any other safetensors file holds. FILE may be - for standard input.`,
		Args:  exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := openSource(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			defer in.Close()
			r, err := inspect(in, in.size)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
			}
			return r.print(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print it as JSON")
	return cmd
}

// inspection is what inspect prints with --json.
type inspection struct {
	Format   string            `json:"format"` // kv-snapshot or safetensors
	Bytes    int64             `json:"bytes"`
	Metadata map[string]string `json:"metadata"`
	KV       *inspectedKV      `json:"kv,omitempty"`
	Tensors  []inspectedTensor `json:"tensors"` // of a snapshot, those kept as they were
}

type inspectedKV struct {
	Group     int              `json:"group"`
	ScaleType string           `json:"scale_type"`
	Policy    string           `json:"policy"`
	Scale     string           `json:"scale"`
	Layers    []inspectedLayer `json:"layers"`
}

type inspectedLayer struct {
	kvcache.Layer
	KeyBits     float64 `json:"key_bits_per_element"` // scales and zero points included
	ValueBits   float64 `json:"value_bits_per_element"`
	PackedBytes int64   `json:"packed_bytes"`
	SourceBytes int64   `json:"source_bytes"`
}

type inspectedTensor struct {
	Name  string `json:"name"`
	DType string `json:"dtype"`
	Shape []int  `json:"shape"`
	Bytes int64  `json:"bytes"`
}

func inspect(r io.ReaderAt, size int64) (*inspection, error) {
	f, err := safetensors.NewFile(r, size)
	if err != nil {
		return nil, err
	}
	out := &inspection{Format: "safetensors", Bytes: size, Metadata: f.Metadata(), Tensors: []inspectedTensor{}}
	s, err := kvcache.Open(r, size)
	switch {
	case errors.Is(err, kvcache.ErrNotSnapshot):
		for _, in := range f.Tensors() {
			out.Tensors = append(out.Tensors, tensorOf(in))
		}
		return out, nil
	case err != nil:
		return nil, err
	}
	out.Format, out.Metadata = "kv-snapshot", s.Metadata()
	common := s.Common()
	out.KV = &inspectedKV{Group: common.Group, ScaleType: common.ScaleType.String(), Policy: common.Policy.String(), Scale: common.Scale.String()}
	for i, l := range s.Layers() {
		p := s.Params(i)
		packed, source := s.Sizes(i)
		out.KV.Layers = append(out.KV.Layers, inspectedLayer{l, p.KeyBitsPerElement(), p.ValueBitsPerElement(), packed, source})
	}
	for _, name := range s.Raw() {
		in, _ := f.Lookup(name)
		out.Tensors = append(out.Tensors, tensorOf(in))
	}
	return out, nil
}

func tensorOf(in safetensors.Info) inspectedTensor {
	return inspectedTensor{in.Name, string(in.DType), in.Shape, in.Size}
}

func (r *inspection) print(w io.Writer) error {
	fmt.Fprintf(w, "%s, %s\n", r.Format, bytesText(r.Bytes))
	for _, k := range slices.Sorted(maps.Keys(r.Metadata)) {
		fmt.Fprintf(w, "metadata %s: %s\n", k, r.Metadata[k])
	}
	if r.KV != nil {
		fmt.Fprintf(w, "group %d, scales %s, policy %s, scale rule %s\n", r.KV.Group, r.KV.ScaleType, r.KV.Policy, r.KV.Scale)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "TENSOR\tDTYPE\tSHAPE\tBITS\tWITH SCALES")
		for _, l := range r.KV.Layers {
			sign := "u"
			if l.Keys.Signed {
				sign = "s"
			}
			fmt.Fprintf(t, "%s\t%s\t%v\t%s%d\t%.2f\n", l.Keys.Name, l.Keys.DType, l.Keys.Shape, sign, l.Keys.Bits, l.KeyBits)
			fmt.Fprintf(t, "%s\t%s\t%v\t%d\t%.2f\n", l.Values.Name, l.Values.DType, l.Values.Shape, l.Values.Bits, l.ValueBits)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if len(r.Tensors) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TENSOR\tDTYPE\tSHAPE\tSIZE")
	for _, in := range r.Tensors {
		fmt.Fprintf(t, "%s\t%s\t%v\t%s\n", in.Name, in.DType, in.Shape, bytesText(in.Bytes))
	}
	return t.Flush()
}
