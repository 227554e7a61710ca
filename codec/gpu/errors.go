package gpu

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
)

// Everything that a device or a kernel reports becomes an error here.

var errClosed = &codec.Error{Err: codec.ErrClosed, Index: codec.NoIndex, Reason: "metal"}

func unavailable(err error) error {
	return &codec.Error{Err: codec.ErrUnavailable, Index: codec.NoIndex, Reason: err.Error()}
}

func unsupported(format string, args ...any) error {
	return &codec.Error{Err: codec.ErrUnsupported, Index: codec.NoIndex, Reason: "metal: " + fmt.Sprintf(format, args...)}
}

// failed returns what a call reports when the device fails: nothing about its
// input, so no *codec.Error but where the device was closed or no kernel can run.
// It wraps the error of package gpu.
func failed(err error) error {
	var e *codec.Error
	switch {
	case err == nil, errors.As(err, &e):
		return err
	case errors.Is(err, gpu.ErrClosed):
		return errClosed
	case errors.Is(err, errNoKernel):
		return unsupported("%v", err)
	}
	return fmt.Errorf("metal: %w", err)
}

// status is what the encoders found in an input: the first offending element
// and the first group or row whose scale overflows, both counted over the whole
// input, or none.
type status struct{ nonFinite, overflow int }

const none = -1

func newStatus() status { return status{none, none} }

func clearStatus() []byte {
	var words []byte
	for range shaders.StatusWords {
		words = binary.LittleEndian.AppendUint32(words, shaders.StatusClear)
	}
	return words
}

// read takes in the status words of a dispatch that began at the given element
// and group. Dispatches come in the order of rows.
func (s *status) read(buf gpu.Buffer, element, group int) error {
	words := make([]byte, 4*shaders.StatusWords)
	err := buf.Download(0, words)
	if err == nil {
		s.add(words, element, group)
	}
	return err
}

func (s *status) add(words []byte, element, group int) {
	take := func(to *int, word, start int) {
		if w := binary.LittleEndian.Uint32(words[4*word:]); *to == none && w != shaders.StatusClear {
			*to = start + int(w)
		}
	}
	take(&s.nonFinite, shaders.StatusNonFinite, element)
	take(&s.overflow, shaders.StatusScaleOverflow, group)
}

// groups is the error of an encoder of groups: an element that is not finite
// comes before any group that overflows.
func (s status) groups(name string, x codec.Tensor, group int, scale codec.DType) error {
	switch {
	case s.nonFinite != none:
		return codec.NonFinite(name, s.nonFinite, element(x, s.nonFinite))
	case s.overflow != none:
		return codec.ScaleOverflow(name, s.overflow*group, scale)
	}
	return nil
}

// rows is the error of an encoder of rows of x: that of the first row that has
// one, and within it an element that is not finite before the scale. at gives
// the index to report for element i.
func (s status) rows(name string, x codec.Tensor, at func(i int) int) error {
	switch {
	case s.nonFinite != none && (s.overflow == none || s.nonFinite/x.Dim() <= s.overflow):
		return codec.NonFinite(name, at(s.nonFinite), element(x, s.nonFinite))
	case s.overflow != none:
		return codec.ScaleOverflow(name, at(s.overflow*x.Dim()), codec.F16)
	}
	return nil
}

// samples is the error of an encoder of samples: that of the first sample that
// has one. Both counts are of elements.
func (s status) samples(name string, x codec.Tensor) error {
	switch {
	case s.nonFinite != none && (s.overflow == none || s.nonFinite <= s.overflow):
		return codec.NonFinite(name, s.nonFinite, element(x, s.nonFinite))
	case s.overflow != none:
		return &codec.Error{Err: codec.ErrScaleOverflow, Tensor: name, Index: s.overflow,
			Reason: fmt.Sprintf("%v is beyond ±2^60", element(x, s.overflow))}
	}
	return nil
}

// element returns element i of x in row-major order.
func element(x codec.Tensor, i int) float32 {
	offset, stride := x.RowOffset(i / x.Dim())
	return x.DType.Load(x.Data[(offset+i%x.Dim()*stride)*x.DType.Size():])
}
