// Package fault holds the classes of error that the codecs share, and the error that leaf packages return. The
// leaves and package codec export the classes that they use, so that errors.Is finds one class under any of
// its names.
package fault

import (
	"errors"
	"fmt"
)

// The classes.
var (
	ErrParams        = errors.New("invalid parameters")
	ErrShape         = errors.New("shape does not fit")
	ErrDType         = errors.New("element type does not fit")
	ErrNonFinite     = errors.New("not finite")
	ErrScaleOverflow = errors.New("scale overflows")
)

// Error says what is wrong, in a sentence that stands alone. It wraps its class.
type Error struct {
	Class  error
	Reason string
}

func (e *Error) Error() string { return e.Reason }
func (e *Error) Unwrap() error { return e.Class }

// New returns an Error.
func New(class error, format string, args ...any) error {
	return &Error{Class: class, Reason: fmt.Sprintf(format, args...)}
}
