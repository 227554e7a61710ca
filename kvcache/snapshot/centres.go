package snapshot

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/safetensors"
)

// ReadCentres reads the centres in the first size bytes of r, a safetensors file (docs/format.md, "Centres from a
// file"), by the names of the tensors that they are of. A snapshot with centres is such a file. Errors are
// ErrNoTensor if there are none, and those of reading.
func ReadCentres(r io.ReaderAt, size int64) (map[string]codec.Centre, error) {
	f, err := safetensors.NewFile(r, size)
	if err != nil {
		return nil, err
	}
	centres := map[string]codec.Centre{}
	for _, mean := range f.Tensors() {
		name, ok := strings.CutSuffix(mean.Name, meanSuffix)
		gain, both := f.Lookup(name + gainSuffix)
		if !ok || !both || mean.DType != safetensors.F16 || gain.DType != safetensors.F16 {
			continue
		}
		c := codec.Centre{
			Mean: codec.Tensor{DType: codec.F16, Shape: slices.Clone(mean.Shape)},
			Gain: codec.Tensor{DType: codec.F16, Shape: slices.Clone(gain.Shape)},
		}
		if c.Mean.Data, err = f.AppendTensor(nil, mean.Name); err != nil {
			return nil, err
		}
		if c.Gain.Data, err = f.AppendTensor(nil, gain.Name); err != nil {
			return nil, err
		}
		centres[name] = c
	}
	if len(centres) == 0 {
		return nil, fmt.Errorf("%w: no NAME%s and NAME%s of F16", ErrNoTensor, meanSuffix, gainSuffix)
	}
	return centres, nil
}
