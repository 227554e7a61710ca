package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/turbotrellis/turbotrellis/internal/parallel"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// rowBlocks is the number of blocks in a row of measureDistortion: with T = 256,
// rows of 1024 weights, a usual width, whose scale adds 1/64 bit a weight.
const rowBlocks = 4

// measured is the mean squared error of a code on N(0, 1) weights.
type measured struct {
	Blocks int
	MSE    float64 // over the weights' own mean square, which is 1 but for sampling
	StdErr float64 // of MSE, from the spread of the rows; NaN for one row
}

// measureDistortion codes rows of rowBlocks·T independent N(0, 1) weights as
// Encoder.EncodeRow does, scale included, and returns the ratio of the squared error to
// the sum of squares. blocks is a positive multiple of rowBlocks. workers rows
// are coded at a time; the result does not depend on it.
//
// Row r is drawn by math/rand/v2's NormFloat64 over NewPCG(seed, r). This is a
// measurement: no coded byte depends on it. It returns ctx.Err() soon after ctx
// ends.
func measureDistortion(ctx context.Context, p trellis.Params, blocks int, seed uint64, workers int) (measured, error) {
	if blocks < rowBlocks || blocks%rowBlocks != 0 || workers < 1 {
		return measured{}, fmt.Errorf("%w: %d blocks by %d workers, want a positive multiple of %d and at least 1", trellis.ErrParams, blocks, workers, rowBlocks)
	}
	rows := make([]rowError, blocks/rowBlocks)
	encoders := make([]*trellis.Encoder, min(workers, len(rows)))
	for i := range encoders {
		var err error
		if encoders[i], err = trellis.NewEncoder(p); err != nil {
			return measured{}, err
		}
	}
	err := parallel.Each(ctx, encoders, parallel.Range(len(rows)), func(_ context.Context, e **trellis.Encoder, r int) (err error) {
		rows[r], err = measureRow(*e, rand.New(rand.NewPCG(seed, uint64(r))))
		return err
	})
	if err != nil {
		return measured{}, err
	}
	var squared, energy, spread float64
	for _, r := range rows {
		squared += r.squared
		energy += r.energy
	}
	mse := squared / energy
	for _, r := range rows {
		d := r.squared - float64(mse*r.energy)
		spread += float64(d * d)
	}
	n := float64(len(rows))
	return measured{Blocks: blocks, MSE: mse, StdErr: math.Sqrt(spread*n/(n-1)) / energy}, nil
}

// rowError sums the squared errors and the squares of a row's weights.
type rowError struct{ squared, energy float64 }

func measureRow(e *trellis.Encoder, r *rand.Rand) (rowError, error) {
	w := make([]float32, rowBlocks*e.Params().T)
	for i := range w {
		w[i] = float32(r.NormFloat64())
	}
	recon := make([]float32, len(w))
	codes := make([]uint32, rowBlocks*e.Params().BlockWords())
	if _, err := e.EncodeRow(codes, recon, w); err != nil {
		return rowError{}, err
	}
	var sum rowError
	for i, v := range w {
		d := float64(recon[i]) - float64(v)
		sum.squared += float64(d * d)
		sum.energy += float64(float64(v) * float64(v))
	}
	return sum, nil
}
