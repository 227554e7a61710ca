package trellis

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
)

// RowBlocks is the number of blocks in a row of MeasureDistortion: with T = 256,
// rows of 4096 weights, a usual width, whose scale adds 1/256 bit a weight.
const RowBlocks = 16

// Distortion is the mean squared error of a code on N(0, 1) weights.
type Distortion struct {
	Blocks int
	MSE    float64
	StdErr float64 // of MSE, from the spread of the rows; NaN for one row
}

// MeasureDistortion codes rows of RowBlocks·T independent N(0, 1) weights as
// EncodeRow does, scale included, and returns the squared error a weight.
// blocks is a positive multiple of RowBlocks. workers rows are coded at a time;
// the result does not depend on it.
//
// Row r is drawn by math/rand/v2's NormFloat64 over NewPCG(seed, r). This is a
// measurement: no coded byte depends on it.
func MeasureDistortion(p Params, blocks int, seed uint64, workers int) (Distortion, error) {
	if blocks < RowBlocks || blocks%RowBlocks != 0 || workers < 1 {
		return Distortion{}, fmt.Errorf("%w: %d blocks by %d workers, want a positive multiple of %d and at least 1",
			ErrParams, blocks, workers, RowBlocks)
	}
	rows := make([]float64, blocks/RowBlocks)
	workers = min(workers, len(rows))
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			e, err := NewEncoder(p)
			for r := i; r < len(rows) && err == nil; r += workers {
				rows[r], err = e.rowDistortion(rand.New(rand.NewPCG(seed, uint64(r))))
			}
			errs[i] = err
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return Distortion{}, err
		}
	}
	n := float64(len(rows))
	var sum, dev float64
	for _, mse := range rows {
		sum += mse
	}
	mean := sum / n
	for _, mse := range rows {
		d := mse - mean
		dev += float64(d * d)
	}
	return Distortion{Blocks: blocks, MSE: mean, StdErr: math.Sqrt(dev / (n - 1) / n)}, nil
}

func (e *Encoder) rowDistortion(r *rand.Rand) (float64, error) {
	w := make([]float32, RowBlocks*e.p.T)
	for i := range w {
		w[i] = float32(r.NormFloat64())
	}
	recon := make([]float32, len(w))
	codes := make([]uint32, RowBlocks*e.p.BlockWords())
	if _, err := e.EncodeRow(codes, recon, w); err != nil {
		return 0, err
	}
	var sum float64
	for i, v := range w {
		d := float64(recon[i]) - float64(v)
		sum += float64(d * d)
	}
	return sum / float64(len(w)), nil
}
