package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/turbotrellis/turbotrellis/internal/safetensors"
	"github.com/turbotrellis/turbotrellis/kvcache/snapshot"
	"github.com/turbotrellis/turbotrellis/model"
)

func newInspect() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "inspect FILE",
		Short: "Show what a file or model holds",
		Long: `Show what a KV snapshot, a model with trellis-coded or affine weights, or any
other safetensors file holds. FILE may be the directory of a model, or - for standard
input.`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := inspectPath(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			return emit(cmd.OutOrStdout(), asJSON, r, r.print)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// inspectPath inspects a file, a directory or, for "-", standard input.
func inspectPath(path string, stdin io.Reader) (*inspection, error) {
	if st, err := os.Stat(path); path != "-" && err == nil && st.IsDir() {
		m, err := model.Open(path)
		if err != nil {
			return nil, err
		}
		defer m.Close()
		return inspectModel(m), nil
	}
	in, err := openSource(path, stdin)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	r, err := inspect(in, in.size)
	if err != nil {
		return nil, named(path, err)
	}
	return r, nil
}

// inspection is what inspect prints with --json.
type inspection struct {
	Format   string            `json:"format"` // kv-snapshot, trellis-weights (affine ones too), affine-weights, model or safetensors
	Bytes    int64             `json:"bytes"`  // of a directory, all tensors
	Metadata map[string]string `json:"metadata"`
	KV       *inspectedKV      `json:"kv,omitempty"`
	Matrices []inspectedMatrix `json:"matrices,omitempty"`
	Affine   []inspectedAffine `json:"affine,omitempty"`
	Tensors  []inspectedTensor `json:"tensors"` // those that are not packed
}

type inspectedMatrix struct {
	Name        string  `json:"name"`
	Shape       []int   `json:"shape"` // [out, in]
	K           int     `json:"k"`
	L           int     `json:"L"`
	Block       int     `json:"block"`
	Code        string  `json:"code"`
	Axis        int     `json:"axis"`
	Interleaved bool    `json:"interleaved"`
	PerWeight   float64 `json:"bits_per_weight"` // the scales included
	Bytes       int64   `json:"bytes"`
}

type inspectedAffine struct {
	Name      string  `json:"name"`
	DType     string  `json:"dtype"` // of the scales, the biases and the weights
	Shape     []int   `json:"shape"` // of the weights
	Bits      int     `json:"bits"`
	Group     int     `json:"group_size"`
	PerWeight float64 `json:"bits_per_weight"` // scales and biases included
	Bytes     int64   `json:"bytes"`
}

type inspectedKV struct {
	Version   int              `json:"version"`
	Group     int              `json:"group"`
	ScaleType string           `json:"scale_type"`
	Policy    string           `json:"policy"`
	Scale     string           `json:"scale"`
	RawFirst  int              `json:"raw_first"` // tokens
	RawLast   int              `json:"raw_last"`
	KeyBits   float64          `json:"key_bits_per_element"` // of all layers
	ValueBits float64          `json:"value_bits_per_element"`
	Bits      float64          `json:"bits_per_element"`
	Layers    []inspectedLayer `json:"layers"`
}

type inspectedLayer struct {
	snapshot.Layer
	KeyType     string  `json:"key_type"`
	ValueType   string  `json:"value_type"`
	KeyBits     float64 `json:"key_bits_per_element"` // scales, zero points, centres and raw tokens included
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
	s, err := snapshot.Open(r, size)
	switch {
	case errors.Is(err, snapshot.ErrNotSnapshot):
		m, err := model.OpenFile(r, size)
		if err != nil {
			return nil, err
		}
		out := inspectModel(m)
		out.Bytes = size
		return out, nil
	case err != nil:
		return nil, err
	}
	out := &inspection{Format: "kv-snapshot", Bytes: size, Metadata: s.Metadata(), Tensors: []inspectedTensor{}}
	common := s.Common()
	out.KV = &inspectedKV{Version: s.Version(), Group: common.Group, ScaleType: common.ScaleType.String(), Policy: common.Policy.String(), Scale: common.Scale.String()}
	out.KV.RawFirst, out.KV.RawLast = s.RawTokens()
	var allKeys, allValues snapshot.Size
	for i, l := range s.Layers() {
		p, err := s.Params(i)
		if err != nil {
			return nil, err
		}
		k, v, err := s.Sizes(i)
		if err != nil {
			return nil, err
		}
		allKeys.Add(k)
		allValues.Add(v)
		out.KV.Layers = append(out.KV.Layers, inspectedLayer{l, p.Keys.String(), p.Values.String(), k.Bits(), v.Bits(), k.Packed + v.Packed, k.Source + v.Source})
	}
	out.KV.KeyBits, out.KV.ValueBits = allKeys.Bits(), allValues.Bits()
	allKeys.Add(allValues)
	out.KV.Bits = allKeys.Bits()
	for _, name := range s.Raw() {
		in, _ := f.Lookup(name)
		out.Tensors = append(out.Tensors, tensorOf(in))
	}
	return out, nil
}

// inspectModel describes a model, whether it has coded weights or not.
func inspectModel(m *model.Model) *inspection {
	out := &inspection{Format: "safetensors", Metadata: m.Metadata(), Tensors: []inspectedTensor{}}
	if m.IsDir() {
		out.Format = "model"
	}
	for _, a := range m.Affine() {
		out.Format = "affine-weights"
		out.Affine = append(out.Affine, inspectedAffine{
			a.Base, a.DType.String(), a.Shape, a.Format.Bits, a.Format.Group, 8 * float64(a.Bytes()) / float64(max(1, a.Weights())), a.Bytes(),
		})
		out.Bytes += a.Bytes()
	}
	for _, c := range m.Coded() {
		out.Format = "trellis-weights"
		out.Matrices = append(out.Matrices, inspectedMatrix{
			Name: c.Base, Shape: []int{c.Geometry.Out, c.Geometry.In},
			K: c.Params.K, L: c.Params.L, Block: c.Params.T, Code: c.Params.Code.String(),
			Axis: c.Geometry.Axis, Interleaved: c.Geometry.Interleaved,
			PerWeight: 8 * float64(c.Bytes()) / float64(max(1, c.Weights())), Bytes: c.Bytes(),
		})
		out.Bytes += c.Bytes()
	}
	for _, t := range m.Plain() {
		out.Tensors = append(out.Tensors, inspectedTensor{t.Name, t.DType, t.Shape, t.Bytes})
		out.Bytes += t.Bytes
	}
	return out
}

func tensorOf(in safetensors.Info) inspectedTensor {
	return inspectedTensor{in.Name, string(in.DType), in.Shape, in.Size}
}

// printable quotes text from a file that would move a terminal's cursor, or do
// worse.
func printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

func typeText(name string, centred bool) string {
	if centred {
		return name + " centred"
	}
	return name
}

func (r *inspection) print(w io.Writer) error {
	fmt.Fprintf(w, "%s, %s\n", r.Format, bytesText(r.Bytes))
	for _, k := range slices.Sorted(maps.Keys(r.Metadata)) {
		if k == "quantization" && len(r.Matrices)+len(r.Affine) > 0 {
			continue // the tables below say it
		}
		fmt.Fprintf(w, "metadata %s: %s\n", printable(k), printable(r.Metadata[k]))
	}
	if r.KV != nil {
		fmt.Fprintf(w, "version %d, group %d, scales %s, policy %s, scale rule %s, %d first and %d last tokens raw\n",
			r.KV.Version, r.KV.Group, r.KV.ScaleType, r.KV.Policy, r.KV.Scale, r.KV.RawFirst, r.KV.RawLast)
		fmt.Fprintf(w, "%.2f bits per element, raw tokens and centres included (keys %.2f, values %.2f)\n", r.KV.Bits, r.KV.KeyBits, r.KV.ValueBits)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "TENSOR\tDTYPE\tSHAPE\tTYPE\tBITS/ELEMENT")
		for _, l := range r.KV.Layers {
			fmt.Fprintf(t, "%s\t%s\t%v\t%s\t%.2f\n", printable(l.Keys.Name), l.Keys.DType, l.Keys.Shape, typeText(l.KeyType, l.Keys.Centred), l.KeyBits)
			fmt.Fprintf(t, "%s\t%s\t%v\t%s\t%.2f\n", printable(l.Values.Name), l.Values.DType, l.Values.Shape, typeText(l.ValueType, l.Values.Centred), l.ValueBits)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if len(r.Matrices) > 0 {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "MATRIX\tSHAPE\tK\tL\tBLOCK\tCODE\tAXIS\tBITS/WEIGHT\tSIZE")
		for _, x := range r.Matrices {
			axis := strconv.Itoa(x.Axis)
			if x.Interleaved {
				axis += " interleaved"
			}
			fmt.Fprintf(t, "%s\t%v\t%d\t%d\t%d\t%s\t%s\t%.3f\t%s\n", printable(x.Name), x.Shape, x.K, x.L, x.Block, x.Code, axis, x.PerWeight, bytesText(x.Bytes))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if len(r.Affine) > 0 {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "AFFINE\tDTYPE\tSHAPE\tBITS\tGROUP\tBITS/WEIGHT\tSIZE")
		for _, x := range r.Affine {
			fmt.Fprintf(t, "%s\t%s\t%v\t%d\t%d\t%.3f\t%s\n", printable(x.Name), x.DType, x.Shape, x.Bits, x.Group, x.PerWeight, bytesText(x.Bytes))
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
		fmt.Fprintf(t, "%s\t%s\t%v\t%s\n", printable(in.Name), in.DType, in.Shape, bytesText(in.Bytes))
	}
	return t.Flush()
}
