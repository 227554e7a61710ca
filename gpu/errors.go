package gpu

import (
	"errors"
	"strconv"
	"strings"
)

// The classes of failure. Every error of a device is an *Error that wraps one of them.
var (
	ErrUnavailable = errors.New("unavailable")           // no driver compiled in, no library, or no such device
	ErrClosed      = errors.New("device is closed")      // the device was closed before the call
	ErrReleased    = errors.New("released")              // a buffer, library or pipeline was released before the call
	ErrInvalid     = errors.New("invalid argument")      // refused before anything was sent
	ErrCompile     = errors.New("compile failed")        // the source was rejected
	ErrNoFunction  = errors.New("no such kernel")        // the library lacks the kernel
	ErrPipeline    = errors.New("no pipeline")           // the device made no pipeline of the kernel
	ErrOutOfMemory = errors.New("out of memory")         // on allocation or while running
	ErrTimeout     = errors.New("timed out")             // the system stopped the command buffer
	ErrPageFault   = errors.New("page fault")            // a kernel touched memory that is not there
	ErrLost        = errors.New("device lost")           // what the device held is gone; see Resetter
	ErrFailed      = errors.New("command buffer failed") // any other failure of a command buffer
)

// Error is a failure of a device.
type Error struct {
	Op     string // what was asked: "open", "new buffer", "upload", "download", "compile", "load", "pipeline", "run", "reset", "close"
	Kernel string // the kernel concerned, or the kernels of the list, where there is one
	Err    error  // one of this package's sentinels
	Domain string // where the system gave an error, whose it is: NSError's domain, "CUDA"
	Code   int    // and its code: NSError's, a CUresult
	Detail string // the reason: the system's text, or what is wrong with the argument
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Kernel != "" {
		b.WriteString(" " + e.Kernel)
	}
	b.WriteString(": " + e.Err.Error())
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	if e.Domain != "" {
		b.WriteString(" (" + e.Domain + " " + strconv.Itoa(e.Code) + ")")
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }
