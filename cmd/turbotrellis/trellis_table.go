package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turbotrellis/turbotrellis/trellis"
)

// tableSeed draws the table's weights.
const tableSeed = 1

// longBlocks is the most blocks that the rows of L = 16 take: they cost
// 16 times as much.
const longBlocks = 256

// lloydMax is the mean squared error of the optimal scalar quantiser of
// N(0, 1) with 2^k levels (Max 1960, table I), for k = 1 to 4.
var lloydMax = map[int]float64{1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497}

// tableRow is a line of the distortion table.
type tableRow struct {
	K      int     `json:"k"`
	L      int     `json:"L"`
	Code   string  `json:"code"`
	Scale  string  `json:"scale"`
	Blocks int     `json:"blocks"`
	MSE    float64 `json:"mse"`
	StdErr number  `json:"stderr"` // not finite for one row of blocks
	Lloyd  float64 `json:"lloyd_max"`
	Bound  float64 `json:"bound"` // 2^(−2k), the least at k bits
}

func newTrellisTable() *cobra.Command {
	var ks []int
	var blocks int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "table",
		Short: "Measure the distortion of the codes",
		Long: fmt.Sprintf(`Measure the mean squared error of the codes on blocks of 256 independent N(0, 1)
weights, tail-biting, in rows of %d blocks, the stored scale included. Also shown: its
standard error, the error of the optimal scalar quantiser (Lloyd–Max) and the
least error that k bits allow, 2^(-2k).

The rows of L = 16 take at most %d blocks. The default takes some minutes on two
cores.`, rowBlocks, longBlocks),
		Example: `  turbotrellis trellis table --bits 2,3 --blocks 256`,
		Args:    exactly(0),
	}
	aliases(cmd, map[string]string{"k": "bits"})
	cmd.Flags().IntSliceVar(&ks, "bits", []int{1, 2, 3, 4}, "bits per weight, 1 to 4 each")
	cmd.Flags().IntVar(&blocks, "blocks", 4096, fmt.Sprintf("blocks per row of the table: a multiple of %d", rowBlocks))
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if blocks < rowBlocks || blocks%rowBlocks != 0 {
			return usagef("--blocks %d: want a positive multiple of %d", blocks, rowBlocks)
		}
		for _, k := range ks {
			if _, ok := lloydMax[k]; !ok {
				return usagef("--bits %d: want 1 to 4", k)
			}
		}
		b := &bar{what: "measuring", unit: "states"}
		rows, err := distortionTable(cmd.Context(), ks, blocks, b.update)
		b.done()
		if err != nil {
			return err
		}
		return emit(cmd.OutOrStdout(), asJSON, rows, func(w io.Writer) error { return printTable(w, rows) })
	}
	return cmd
}

// tableCase is a line of the table to be measured.
type tableCase struct {
	p      trellis.Params
	blocks int
}

// tableCases returns what the table measures for the given bits.
func tableCases(ks []int, blocks int) []tableCase {
	var cases []tableCase
	for _, k := range slices.Compact(slices.Sorted(slices.Values(ks))) {
		p := trellis.DefaultParams(k)
		refit := p
		refit.Scale = trellis.Refit
		cases = append(cases, tableCase{p, blocks}, tableCase{refit, blocks})
		if k != 2 {
			continue
		}
		for _, code := range []trellis.Code{trellis.OneMAD, trellis.ThreeInst} {
			long := p
			long.L, long.Code = 16, code
			cases = append(cases, tableCase{long, min(blocks, longBlocks)})
		}
	}
	return cases
}

// distortionTable measures the table. step is called with the states visited,
// in all and of all, at the start and after each line.
func distortionTable(ctx context.Context, ks []int, blocks int, step func(done, total int64)) ([]tableRow, error) {
	cases := tableCases(ks, blocks)
	var done, total int64
	cost := func(c tableCase) int64 { return int64(c.blocks*c.p.T) << c.p.L }
	for _, c := range cases {
		total += cost(c)
	}
	step(0, total)
	rows := []tableRow{}
	for _, c := range cases {
		d, err := measureDistortion(ctx, c.p, c.blocks, tableSeed, runtime.GOMAXPROCS(0))
		if err != nil {
			return nil, err
		}
		rows = append(rows, tableRow{
			K: c.p.K, L: c.p.L, Code: c.p.Code.String(), Scale: c.p.Scale.String(),
			Blocks: c.blocks, MSE: d.MSE, StdErr: number(d.StdErr),
			Lloyd: lloydMax[c.p.K], Bound: math.Ldexp(1, -2*c.p.K),
		})
		done += cost(c)
		step(done, total)
	}
	return rows, nil
}

func printTable(w io.Writer, rows []tableRow) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "K\tL\tCODE\tSCALE\tBLOCKS\tMSE\tSTDERR\tLLOYD-MAX\tBOUND")
	for _, r := range rows {
		fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%d\t%.5f\t%.5f\t%.5f\t%.5f\n", r.K, r.L, r.Code, r.Scale, r.Blocks, r.MSE, r.StdErr, r.Lloyd, r.Bound)
	}
	return t.Flush()
}
