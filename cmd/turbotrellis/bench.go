package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/cpu"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/trellis"
)

func newBench() *cobra.Command {
	var asJSON bool
	var op string
	var elements int
	var duration time.Duration
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure every operation on this machine",
		Long: `Measure every operation on normal samples in memory, and the reference on the
same, in turns. Rates are of the best of the runs, in million elements per second;
GB/s counts bytes read and written; memcpy is that rate's share of what copying
memory reaches here. One line per operation.`,
		Args: exactly(0),
	}
	backend := addBackendFlag(cmd)
	cmd.Flags().StringVar(&op, "op", "", "only operations whose name contains `TEXT`")
	cmd.Flags().IntVar(&elements, "elements", 1<<22, "elements per call (a thousandth of them for trellis encode), a multiple of 65536")
	cmd.Flags().DurationVar(&duration, "time", 200*time.Millisecond, "time per operation and backend")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if elements <= 0 || elements%(1<<16) != 0 {
			return usagef("--elements %d: want a positive multiple of 65536", elements)
		}
		if duration <= 0 {
			return usagef("--time %v: want more than 0", duration)
		}
		b, err := openBackend(*backend)
		if err != nil {
			return err
		}
		defer b.Close()
		r, err := bench(cmd.Context(), b, op, elements, duration)
		if err != nil {
			return err
		}
		return emit(cmd.OutOrStdout(), asJSON, r, r.write)
	}
	return cmd
}

// benchReport is what bench found.
type benchReport struct {
	Backend string        `json:"backend"`
	Level   string        `json:"level,omitempty"`   // of the cpu backend
	Workers int           `json:"workers,omitempty"` // likewise
	Go      string        `json:"go"`
	GOARCH  string        `json:"goarch"`
	Memcpy  float64       `json:"memcpy_gb_per_s"` // bytes read and written
	Results []benchResult `json:"results"`
}

type benchResult struct {
	Op          string  `json:"op"`
	Elements    int     `json:"elements"` // of a call
	Melements   float64 `json:"melements_per_s"`
	GB          float64 `json:"gb_per_s"` // bytes read and written
	MemcpyShare float64 `json:"memcpy_share"`
	Reference   float64 `json:"times_reference"` // the rate divided by the reference's
	Allocations float64 `json:"allocations_per_call"`
}

// benchOp is an operation. prepare returns a call of it on a backend, which handles n elements and reads and
// writes so many bytes.
type benchOp struct {
	name    string
	n       int
	prepare func(b codec.Backend) (call func() error, bytes int, err error)
}

// bench measures the operations whose names contain filter.
func bench(ctx context.Context, b codec.Backend, filter string, elements int, d time.Duration) (*benchReport, error) {
	r := &benchReport{Backend: b.Name(), Go: runtime.Version(), GOARCH: runtime.GOARCH, Results: []benchResult{}}
	if c, ok := b.(*cpu.Backend); ok {
		r.Level, r.Workers = c.Level().String(), c.Workers()
	}
	src, dst := make([]byte, 4*elements), make([]byte, 4*elements)
	for i := range src {
		src[i] = byte(i)
	}
	rate, _, err := measure(ctx, d, func() error { copy(dst, src); return nil })
	if err != nil {
		return nil, err
	}
	r.Memcpy = rate * float64(2*len(src)) / 1e9
	ref := ref.New()
	defer ref.Close()
	for _, o := range benchOps(elements) {
		if !strings.Contains(o.name, filter) {
			continue
		}
		call, bytes, err := o.prepare(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.name, err)
		}
		rate, allocations, err := measure(ctx, d, call)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.name, err)
		}
		if call, _, err = o.prepare(ref); err != nil {
			return nil, fmt.Errorf("%s on the reference: %w", o.name, err)
		}
		refRate, _, err := measure(ctx, d, call)
		if err != nil {
			return nil, fmt.Errorf("%s on the reference: %w", o.name, err)
		}
		gb := rate * float64(bytes) / 1e9
		r.Results = append(r.Results, benchResult{
			Op: o.name, Elements: o.n, Melements: rate * float64(o.n) / 1e6, GB: gb, MemcpyShare: gb / r.Memcpy,
			Reference: rate / refRate, Allocations: allocations,
		})
	}
	if len(r.Results) == 0 {
		return nil, usagef("--op %q: no operation has it in its name", filter)
	}
	return r, nil
}

// measure calls f for the time d after one call that does not count, and returns the calls per second of the best
// of five parts, and the allocations of a call.
func measure(ctx context.Context, d time.Duration, f func() error) (rate, allocations float64, err error) {
	if err := f(); err != nil {
		return 0, 0, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	calls := 0
	for range 5 {
		start, n := time.Now(), 0
		for n == 0 || time.Since(start) < d/5 {
			if err := ctx.Err(); err != nil {
				return 0, 0, err
			}
			if err := f(); err != nil {
				return 0, 0, err
			}
			n++
		}
		rate = max(rate, float64(n)/time.Since(start).Seconds())
		calls += n
	}
	runtime.ReadMemStats(&after)
	return rate, float64(after.Mallocs-before.Mallocs) / float64(calls), nil
}

// benchOps returns the operations, in the order of the report.
func benchOps(elements int) []benchOp {
	const dim = 128
	r := rand.New(rand.NewPCG(1, 2))
	normal := func(n int) codec.Tensor {
		x := codec.NewTensor(codec.F32, n/dim, dim)
		for i := range n {
			codec.F32.Store(x.Data[4*i:], float32(r.NormFloat64()))
		}
		return x
	}
	x := normal(elements)
	out := codec.NewTensor(codec.BF16, x.Shape...)
	var ops []benchOp
	add := func(name string, n int, prepare func(b codec.Backend) (func() error, int, error)) {
		ops = append(ops, benchOp{name, n, prepare})
	}
	for _, f := range codec.KeyFormats() {
		p := codec.KVParams{HeadDim: dim, Keys: f, Values: codec.Q4_0}
		var k codec.Keys
		size := func() int { return len(k.Codes) + len(k.Scales) + len(k.Zeros) }
		add("encode keys "+f.String(), elements, func(b codec.Backend) (func() error, int, error) {
			c, err := b.KV(p)
			if err != nil {
				return nil, 0, err
			}
			err = c.EncodeKeys(&k, x)
			return func() error { return c.EncodeKeys(&k, x) }, len(x.Data) + size(), err
		})
		add("decode keys "+f.String(), elements, func(b codec.Backend) (func() error, int, error) {
			c, err := b.KV(p)
			if err != nil {
				return nil, 0, err
			}
			err = c.EncodeKeys(&k, x)
			return func() error { return c.DecodeKeys(out, k) }, len(out.Data) + size(), err
		})
	}
	for _, f := range codec.ValueFormats() {
		var v codec.Values
		size := func() int { return len(v.Codes) + len(v.Scales) }
		for _, s := range []codec.ScaleRule{codec.RMS, codec.Search} {
			p := codec.KVParams{HeadDim: dim, Keys: codec.Q8_0, Values: f, Scale: s}
			add(fmt.Sprintf("encode values %v %v", f, s), elements, func(b codec.Backend) (func() error, int, error) {
				c, err := b.KV(p)
				if err != nil {
					return nil, 0, err
				}
				err = c.EncodeValues(&v, x)
				return func() error { return c.EncodeValues(&v, x) }, len(x.Data) + size(), err
			})
		}
		p := codec.KVParams{HeadDim: dim, Keys: codec.Q8_0, Values: f}
		for _, rotated := range []bool{false, true} {
			name := "decode values " + f.String()
			if rotated {
				name += " rotated"
			}
			add(name, elements, func(b codec.Backend) (func() error, int, error) {
				c, err := b.KV(p)
				if err != nil {
					return nil, 0, err
				}
				err = c.EncodeValues(&v, x)
				return func() error {
					if rotated {
						return c.DecodeValuesRotated(out, v)
					}
					return c.DecodeValues(out, v)
				}, len(out.Data) + size(), err
			})
		}
	}
	y := codec.NewTensor(codec.F32, x.Shape...)
	add("unrotate", elements, func(b codec.Backend) (func() error, int, error) {
		c, err := b.KV(codec.KVParams{HeadDim: dim, Keys: codec.Q8_0, Values: codec.Q4_0})
		if err != nil {
			return nil, 0, err
		}
		return func() error { return c.Unrotate(y, x) }, 2 * len(x.Data), nil
	})
	for k := 1; k <= 4; k++ {
		p := trellis.DefaultParams(k)
		few := max(p.T, elements/1000/p.T*p.T)
		w := codec.Tensor{DType: codec.F32, Shape: []int{few / p.T, p.T}, Data: x.Data[:4*few]}
		rows := trellis.Geometry{Axis: 1, Out: few / p.T, In: p.T}
		var m trellis.Matrix
		add(fmt.Sprintf("encode trellis k=%d", k), few, func(b codec.Backend) (func() error, int, error) {
			c, err := b.Trellis(p)
			if err != nil {
				return nil, 0, err
			}
			return func() error { return c.Encode(context.Background(), &m, codec.Tensor{}, w, rows) }, 4*few + few*k/8, nil
		})
		g := trellis.Geometry{Axis: 1, Out: elements / 4096, In: 4096}
		coded := &trellis.Matrix{Params: p, Geometry: g, Codes: make([]uint32, g.CodesLen(p)), Scales: make([]uint16, g.Rows())}
		for i := range coded.Codes {
			coded.Codes[i] = r.Uint32()
		}
		for i := range coded.Scales {
			coded.Scales[i] = 0x3c00 // 1
		}
		weights := codec.Tensor{DType: codec.BF16, Shape: []int{g.Out, g.In}, Data: out.Data}
		add(fmt.Sprintf("decode trellis k=%d", k), elements, func(b codec.Backend) (func() error, int, error) {
			c, err := b.Trellis(p)
			if err != nil {
				return nil, 0, err
			}
			return func() error { return c.Decode(weights, coded, 0) }, len(out.Data) + 4*len(coded.Codes), nil
		})
	}
	return ops
}

func (r *benchReport) write(w io.Writer) error {
	level := ""
	if r.Level != "" {
		level = fmt.Sprintf(", level %s, %d workers", r.Level, r.Workers)
	}
	if _, err := fmt.Fprintf(w, "backend %s%s; %s %s; memcpy %.1f GB/s\n", r.Backend, level, r.Go, r.GOARCH, r.Memcpy); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "Melem/s\tGB/s\tmemcpy\t× ref\tallocs\t operation")
	for _, x := range r.Results {
		fmt.Fprintf(t, "%.4g\t%.3g\t%.2f\t%.3g\t%.2g\t %s\n", x.Melements, x.GB, x.MemcpyShare, x.Reference, x.Allocations, x.Op)
	}
	return t.Flush()
}
