package gpu

import (
	"fmt"
	"math"
)

// The limits that Metal states for every device.
const (
	MaxBindings = 31   // buffer slots, and as many for threadgroup memory
	MaxArgs     = 4095 // bytes of constant arguments: "smaller than 4 KB"
)

// Check reports what a device with the given limits would refuse in d, before anything is sent:
// Metal itself answers most of these by ending the process. It does not look at whether the
// pipeline or the buffers are released.
func (d *Dispatch) Check(info Info) error {
	if d.Pipeline == nil {
		return &Error{Op: "run", Err: ErrInvalid, Detail: "no pipeline"}
	}
	bad := func(format string, args ...any) error {
		return &Error{Op: "run", Kernel: d.Pipeline.Name(), Err: ErrInvalid, Detail: fmt.Sprintf(format, args...)}
	}
	slots := len(d.Buffers)
	if len(d.Args) > 0 {
		slots++
	}
	if slots > MaxBindings {
		return bad("%d buffers, more than %d", slots, MaxBindings)
	}
	for i, b := range d.Buffers {
		if b.Buffer == nil {
			return bad("buffer %d is nil", i)
		}
		if b.Offset < 0 || b.Offset >= b.Buffer.Len() {
			return bad("buffer %d: offset %d outside of %d bytes", i, b.Offset, b.Buffer.Len())
		}
	}
	if len(d.Args) > MaxArgs {
		return bad("%d bytes of arguments, more than %d", len(d.Args), MaxArgs)
	}
	if len(d.ThreadgroupMemory) > MaxBindings {
		return bad("%d threadgroup memory slots, more than %d", len(d.ThreadgroupMemory), MaxBindings)
	}
	left := info.MaxThreadgroupMemory - d.Pipeline.StaticThreadgroupMemory()
	for i, n := range d.ThreadgroupMemory {
		if n <= 0 || n%16 != 0 {
			return bad("threadgroup memory %d: %d bytes is not a positive multiple of 16", i, n)
		}
		if n > left {
			return bad("threadgroup memory %d: %d bytes where %d of %d are left", i, n, left, info.MaxThreadgroupMemory)
		}
		left -= n
	}
	threads := 1
	for i, n := range d.GroupSize {
		if n <= 0 || n > info.MaxThreads[i] {
			return bad("group size %v: dimension %d outside of 1..%d", d.GroupSize, i, info.MaxThreads[i])
		}
		threads *= n
		if threads > d.Pipeline.MaxThreads() {
			return bad("group size %v: more than %d threads", d.GroupSize, d.Pipeline.MaxThreads())
		}
	}
	for i, n := range d.Groups {
		if n < 0 || uint64(n) > math.MaxUint32 || uint64(n)*uint64(d.GroupSize[i]) > math.MaxUint32 {
			return bad("%v groups of %v: dimension %d outside of 0..2^32-1 threads", d.Groups, d.GroupSize, i)
		}
	}
	return nil
}

// Empty reports whether d has no threadgroup to run.
func (d *Dispatch) Empty() bool { return d.Groups[0] == 0 || d.Groups[1] == 0 || d.Groups[2] == 0 }

// CheckCopy reports what Upload and Download refuse: n bytes from offset on that do not lie within a
// buffer of size bytes. op is "upload" or "download".
func CheckCopy(op string, size, offset, n int) error {
	if offset < 0 || offset > size || n > size-offset {
		return &Error{Op: op, Err: ErrInvalid, Detail: fmt.Sprintf("%d bytes at offset %d of a buffer of %d", n, offset, size)}
	}
	return nil
}
