package safetensors

import (
	"errors"
	"fmt"
	"strconv"
)

var (
	// ErrFormat says that a file breaks the format, or that what is to be
	// written would.
	ErrFormat = errors.New("malformed safetensors")

	// ErrNotSafetensors says that a file is of another type.
	ErrNotSafetensors = errors.New("not a safetensors file")

	// ErrNoTensor says that a file has no tensor of the requested name.
	ErrNoTensor = errors.New("no such tensor")

	// ErrLength says that a tensor's bytes were not exactly as many as its
	// dtype and shape call for.
	ErrLength = errors.New("wrong number of bytes")
)

// Error is the type of every error of this package. Its text does not name the
// package: it says what a user can see.
type Error struct {
	File   string // path as given to Open, or empty
	Tensor string // empty where the error is not about one tensor
	Reason string // what is wrong, with the figures
	Err    error  // one of the sentinels above, or the error of a read or write
}

func (e *Error) Error() string {
	s := ""
	if e.File != "" {
		s += e.File + ": "
	}
	if e.Tensor != "" {
		s += "tensor " + strconv.Quote(e.Tensor) + ": "
	}
	s += e.Err.Error()
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// malformed returns an ErrFormat about the named tensor, or about none.
func malformed(tensor, format string, args ...any) *Error {
	return &Error{Tensor: tensor, Reason: fmt.Sprintf(format, args...), Err: ErrFormat}
}
