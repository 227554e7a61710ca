package codec

import (
	"cmp"
	"errors"
	"strconv"

	"github.com/turbotrellis/turbotrellis/internal/fault"
)

// Classes of error. Every error that a backend returns about its input wraps
// exactly one of them inside an *Error. Errors of the packages below wrap the
// same classes.
var (
	// ErrParams reports parameters that describe no codec.
	ErrParams = fault.ErrParams
	// ErrShape reports a tensor or packed form whose shape, strides or length
	// do not fit the parameters, the data or each other.
	ErrShape = fault.ErrShape
	// ErrDType reports an element type that the operation does not take.
	ErrDType = fault.ErrDType
	// ErrNonFinite reports NaN or an infinity in an encoder's input.
	ErrNonFinite = fault.ErrNonFinite
	// ErrScaleOverflow reports a group or row whose scale is too large for the
	// scale type.
	ErrScaleOverflow = fault.ErrScaleOverflow
	// ErrUnsupported reports valid parameters that this backend does not serve.
	ErrUnsupported = errors.New("unsupported")
	// ErrUnavailable reports a backend that cannot run here.
	ErrUnavailable = errors.New("backend unavailable")
	// ErrClosed reports the use of a backend after Close.
	ErrClosed = errors.New("backend is closed")
)

// NoIndex is the Index of an Error that concerns no single element.
const NoIndex = -1

// Error is the type of every error that a codec returns about its input.
type Error struct {
	Err    error  // the class: one of the Err variables of this package
	Tensor string // the operand: "keys", "values", "dst keys", "key codes", …
	Index  int    // flat row-major element index in Tensor, or NoIndex
	Reason string // what was found, with its numbers
}

// Error returns "tensor: element index: reason (class)", without the parts that
// are not set.
func (e *Error) Error() string {
	s := ""
	if e.Tensor != "" {
		s += e.Tensor + ": "
	}
	if e.Index != NoIndex {
		s += "element " + strconv.Itoa(e.Index) + ": "
	}
	switch {
	case e.Err == nil:
		return s + cmp.Or(e.Reason, "unknown error")
	case e.Reason == "":
		return s + e.Err.Error()
	}
	return s + e.Reason + " (" + e.Err.Error() + ")"
}

// Unwrap returns the class of the error.
func (e *Error) Unwrap() error { return e.Err }

// At returns the error as one of the tensor of the given name, of which the
// operand was the elements from base.
func (e *Error) At(tensor string, base int) *Error {
	at := *e
	at.Tensor = tensor
	if at.Index != NoIndex {
		at.Index += base
	}
	return &at
}
