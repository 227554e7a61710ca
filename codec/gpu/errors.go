package gpu

import (
	"context"
	"errors"
	"fmt"

	"github.com/turbotrellis/turbotrellis/codec"
)

// What a device reports becomes an error here. What kernels find in the data is a driver.Found: collect.

func unavailable(err error) error {
	return &codec.Error{Err: codec.ErrUnavailable, Index: codec.NoIndex, Reason: err.Error()}
}

func (e *engine) closed() error {
	return &codec.Error{Err: codec.ErrClosed, Index: codec.NoIndex, Reason: e.name}
}

func (e *engine) unsupported(format string, args ...any) error {
	return &codec.Error{Err: codec.ErrUnsupported, Index: codec.NoIndex, Reason: e.name + ": " + fmt.Sprintf(format, args...)}
}

// failed returns what a call reports when the device fails. It is not about the call's input, so it wraps the
// error of package gpu and is not a *codec.Error, unless no kernel can run here.
func (e *engine) failed(err error) error {
	var typed *codec.Error
	switch {
	case err == nil, errors.As(err, &typed), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, errNoKernel):
		return e.unsupported("%v", err)
	}
	return fmt.Errorf("%s: %w", e.name, err)
}
