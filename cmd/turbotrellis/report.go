package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/atomicfile"
	"github.com/turbotrellis/turbotrellis/kvcache/snapshot"
)

func newReport() *cobra.Command {
	var o snapshot.EncodeOptions
	var html, detail string
	var force, asJSON bool
	cmd := &cobra.Command{
		Use:   "report IN.safetensors",
		Short: "Show what each preset would cost and lose on a KV cache",
		Long: `Pack and restore the keys and values of a safetensors file with every preset of
kv encode, in memory, and show what that costs and loses: bits per element, with
centres and raw tokens; errors by layer and head; and which layers are hard.

The relative error is the root of the squared error over the squared distance
from the mean of each channel over the tokens of the head, the part of keys that
tells tokens apart. The rms error is in the cache's own units. Raw tokens have no
error and are not counted in it. A layer is hard if its relative error is over
1.25 times the median of the layers; the layers of the largest errors, of keys and of
values, are named as well.

--html writes the same as a page with plots, one file that needs no network.
IN may be - for standard input.`,
		Example: `  turbotrellis report cache.safetensors
  turbotrellis report cache.safetensors --html report.html --preset small`,
		Args: exactly(1),
	}
	f := cmd.Flags()
	f.StringVar(&detail, "preset", defaultPreset, "preset whose layers the text shows: "+presetNames())
	f.StringVar(&html, "html", "", "also write a page with plots to this file")
	f.BoolVar(&force, "force", false, "replace the page if it exists")
	names := addNameFlags(cmd, "layers to leave out, such as 0,1,30-31")
	f.BoolVar(&asJSON, "json", false, "print the report as JSON, with every head")
	backend := addBackendFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := findPreset(detail); err != nil {
			return err
		}
		var err error
		if err := names.set(&o); err != nil {
			return err
		}
		if o.Backend, err = openBackend(*backend); err != nil {
			return err
		}
		defer o.Backend.Close()
		if err := haveNames(cmd, "html"); err != nil {
			return err
		}
		var page *atomicfile.File
		if html != "" {
			if err := noStreams(html); err != nil {
				return err
			}
			if err := distinct(args[0], html, cmd.InOrStdin()); err != nil {
				return err
			}
			if page, err = atomicfile.Create(html, atomicfile.Options{Force: force}); err != nil {
				return advised(err)
			}
			defer page.Close()
			defer cleanups.add(func() { page.Close() })()
		}
		in, err := openSource(args[0], cmd.InOrStdin())
		if err != nil {
			return err
		}
		defer in.Close()
		r, err := measurePresets(cmd.Context(), in, o)
		if err != nil {
			if cmd.Context().Err() != nil {
				return context.Cause(cmd.Context())
			}
			return named(args[0], err)
		}
		if err := in.unchanged(); err != nil {
			return named(args[0], err)
		}
		r.Input, r.Detail = args[0], detail
		if page != nil {
			if err := r.html(page); err != nil {
				return err
			}
			if err := page.Commit(); err != nil {
				return advised(err)
			}
		}
		return emit(cmd.OutOrStdout(), asJSON, r, r.text)
	}
	return cmd
}

// costReport is what report prints with --json.
type costReport struct {
	Input   string         `json:"input"`
	Backend string         `json:"backend"`
	Source  int64          `json:"source_bytes"`
	Presets []presetReport `json:"presets"`
	Detail  string         `json:"-"`
}

type presetReport struct {
	Name      string        `json:"name"`
	KeyType   string        `json:"key_type"`
	ValueType string        `json:"value_type"`
	About     string        `json:"-"`
	Centred   bool          `json:"keys_centred"`
	RawFirst  int           `json:"raw_first"`
	Refused   string        `json:"refused,omitempty"` // why it cannot pack this cache
	Bits      float64       `json:"bits_per_element"`
	Packed    int64         `json:"packed_bytes"`
	Ratio     float64       `json:"compression"`
	Keys      sideReport    `json:"keys"`
	Values    sideReport    `json:"values"`
	Layers    []layerReport `json:"layers"`
	HardKeys  []string      `json:"hard_layers_keys"` // the hardest first
	HardValue []string      `json:"hard_layers_values"`

	// The layers of the largest errors, hard or not.
	WorstKeys   string `json:"worst_layer_keys"`
	WorstValues string `json:"worst_layer_values"`
}

type layerReport struct {
	Layer  string     `json:"layer"`
	Keys   sideReport `json:"keys"`
	Values sideReport `json:"values"`
}

type sideReport struct {
	Name  string       `json:"name,omitempty"` // of the tensor
	Bits  float64      `json:"bits_per_element"`
	Error number       `json:"relative_error"`
	RMS   float64      `json:"rms_error"`
	Worst float64      `json:"worst_element"`
	Heads []headReport `json:"heads,omitempty"`
}

type headReport struct {
	Error number  `json:"relative_error"`
	RMS   float64 `json:"rms_error"`
}

// measurePresets measures every preset.
func measurePresets(ctx context.Context, in *source, o snapshot.EncodeOptions) (*costReport, error) {
	p := &bar{what: "measuring"}
	defer p.done()
	r := &costReport{Backend: o.Backend.Name()}
	var refused error
	for i, preset := range presets {
		flags := kvFlags{preset: preset.name, rawFirst: unset, params: codec.KVParams{Group: 32}}
		var err error
		if o.Params, err = flags.resolve(); err != nil {
			return nil, err
		}
		o.RawFirst = flags.rawFirst
		o.Progress = func(done, total int64) { p.update(int64(i)*total+done, int64(len(presets))*total) }
		one := presetReport{Name: preset.name, About: preset.about, KeyType: preset.keys.String(), ValueType: preset.values.String(),
			Centred: o.Params.CentreKeys, RawFirst: o.RawFirst, Layers: []layerReport{}, HardKeys: []string{}, HardValue: []string{}}
		losses, err := snapshot.Measure(ctx, in, in.size, o)
		switch {
		case errors.Is(err, codec.ErrParams) || errors.Is(err, codec.ErrScaleOverflow) || errors.Is(err, codec.ErrUnsupported) || errors.Is(err, codec.ErrNonFinite):
			one.Refused, refused = err.Error(), err
		case err != nil:
			return nil, err
		default:
			one.fill(losses)
			r.Source = 0
			for _, l := range losses {
				r.Source += l.Keys.Size.Source + l.Values.Size.Source
			}
		}
		r.Presets = append(r.Presets, one)
	}
	if r.Source == 0 && refused != nil {
		return nil, refused // by every preset
	}
	return r, nil
}

// fill adds what was measured.
func (r *presetReport) fill(losses []snapshot.LayerLoss) {
	slices.SortStableFunc(losses, func(a, b snapshot.LayerLoss) int { return cmp.Compare(a.Number, b.Number) })
	var size, keySize, valueSize snapshot.Size
	var keys, values []snapshot.PartLoss
	for i, l := range losses {
		label := strconv.Itoa(l.Number)
		if l.Number < 0 {
			label = "#" + strconv.Itoa(i)
		}
		r.Layers = append(r.Layers, layerReport{label, sideOf(l.Keys), sideOf(l.Values)})
		keySize.Add(l.Keys.Size)
		valueSize.Add(l.Values.Size)
		keys, values = append(keys, l.Keys), append(values, l.Values)
	}
	size = keySize
	size.Add(valueSize)
	r.Bits, r.Packed, r.Ratio = size.Bits(), size.Packed, float64(size.Source)/float64(max(1, size.Packed))
	r.Keys, r.Values = allOf(keySize, keys), allOf(valueSize, values)
	r.HardKeys, r.WorstKeys = hard(r.Layers, func(l layerReport) number { return l.Keys.Error })
	r.HardValue, r.WorstValues = hard(r.Layers, func(l layerReport) number { return l.Values.Error })
}

func sideOf(p snapshot.PartLoss) sideReport {
	s := lossOf(p.Size, p.Total())
	s.Name = p.Name
	for _, h := range p.Heads {
		s.Heads = append(s.Heads, headReport{number(h.Relative()), h.RMS()})
	}
	return s
}

// allOf returns the keys or the values of all layers: the relative error is the root of the mean of its squares over
// layers, so that layers of large numbers do not hide the others.
func allOf(size snapshot.Size, parts []snapshot.PartLoss) sideReport {
	var all snapshot.Loss
	squares, n := 0.0, 0
	for _, p := range parts {
		t := p.Total()
		all.Elements += t.Elements
		all.Noise += t.Noise
		all.Worst = max(all.Worst, t.Worst)
		if e := t.Relative(); !math.IsNaN(e) {
			squares += float64(e * e)
			n++
		}
	}
	s := lossOf(size, all)
	switch {
	case n > 0:
		s.Error = number(math.Sqrt(squares / float64(n)))
	case len(parts) > 0:
		s.Error = number(math.NaN()) // errors, and nothing that varies to compare them with
	}
	return s
}

func lossOf(size snapshot.Size, l snapshot.Loss) sideReport {
	return sideReport{Bits: size.Bits(), Error: number(l.Relative()), RMS: l.RMS(), Worst: l.Worst}
}

// hardFactor is how far above the median error of the layers that of a hard one is.
const hardFactor = 1.25

// hard returns the hard layers, the hardest first, and the layer of the largest error.
func hard(layers []layerReport, of func(layerReport) number) (labels []string, worst string) {
	sorted := slices.Clone(layers)
	slices.SortStableFunc(sorted, func(a, b layerReport) int { return cmp.Compare(of(b), of(a)) })
	sorted = slices.DeleteFunc(sorted, func(l layerReport) bool { return math.IsNaN(float64(of(l))) })
	labels = []string{}
	if len(sorted) == 0 {
		return labels, ""
	}
	median := of(sorted[len(sorted)/2])
	for _, l := range sorted {
		if of(l) > hardFactor*median {
			labels = append(labels, l.Layer)
		}
	}
	return labels, sorted[0].Layer
}

// detail returns the preset whose layers are shown, or the first one that packs the cache.
func (r *costReport) detail() presetReport {
	shown := func(p presetReport) bool { return p.Name == r.Detail && p.Refused == "" }
	i := slices.IndexFunc(r.Presets, shown)
	if i < 0 {
		i = slices.IndexFunc(r.Presets, func(p presetReport) bool { return p.Refused == "" })
	}
	return r.Presets[i]
}

// hardText lists hard layers.
func hardText(labels []string) string {
	if len(labels) == 0 {
		return "none"
	}
	return strings.Join(labels, ", ")
}

func (r *costReport) text(w io.Writer) error {
	fmt.Fprintf(w, "%s: keys and values of %s, measured with %s\n\n", printable(r.Input), bytesText(r.Source), r.Backend)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PRESET\tKEYS\tVALUES\tBITS/ELEMENT\tSIZE\tRATIO\tKEY ERROR\tVALUE ERROR\tHARD KEYS\tHARD VALUES\tLARGEST")
	for _, p := range r.Presets {
		if p.Refused != "" {
			fmt.Fprintf(t, "%s\t%s\t%s\trefused: %s\n", p.Name, p.KeyType, p.ValueType, p.Refused)
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%.2f\t%s\t%.2fx\t%.4f\t%.4f\t%s\t%s\t%s, %s\n", p.Name, typeText(p.KeyType, p.Centred), p.ValueType, p.Bits, bytesText(p.Packed), p.Ratio,
			p.Keys.Error, p.Values.Error, few(p.HardKeys), few(p.HardValue), cmp.Or(p.WorstKeys, "none"), cmp.Or(p.WorstValues, "none"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	d := r.detail()
	fmt.Fprintf(w, "\n%s, by layer: relative error, that of the worst head, rms error\n", d.Name)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "LAYER\tKEYS\tHEAD\tRMS\tVALUES\tHEAD\tRMS\t")
	for _, l := range d.Layers {
		var marks []string
		if slices.Contains(d.HardKeys, l.Layer) {
			marks = append(marks, "hard keys")
		}
		if slices.Contains(d.HardValue, l.Layer) {
			marks = append(marks, "hard values")
		}
		fmt.Fprintf(t, "%s\t%.4f\t%s\t%.3g\t%.4f\t%s\t%.3g\t%s\n", l.Layer, l.Keys.Error, worstHead(l.Keys), l.Keys.RMS, l.Values.Error, worstHead(l.Values), l.Values.RMS, strings.Join(marks, ", "))
	}
	return t.Flush()
}

// few lists up to six labels.
func few(labels []string) string {
	if len(labels) > 6 {
		return fmt.Sprintf("%s and %d more", strings.Join(labels[:6], ", "), len(labels)-6)
	}
	return hardText(labels)
}

// worstHead returns the head of the largest error and that error.
func worstHead(s sideReport) string {
	worst := -1
	for i, h := range s.Heads {
		if !math.IsNaN(float64(h.Error)) && (worst < 0 || h.Error > s.Heads[worst].Error) {
			worst = i
		}
	}
	if worst < 0 {
		return "-"
	}
	return fmt.Sprintf("%d: %.4f", worst, s.Heads[worst].Error)
}
