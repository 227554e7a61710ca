// Package gpu is the seam between the codecs and a GPU: a device, buffers, compute pipelines, and
// dispatches. Package codec/gpu plans in these terms and knows no particular device; gpu/metal
// implements them over Metal.
//
// # Memory
//
// Where the CPU and the GPU share one memory, a buffer's contents are at hand as Bytes. Where they
// do not, Bytes is nil and Upload and Download copy. Memory from NewShared is addressable by both
// sides on every device, though a discrete GPU reaches it more slowly than its own.
//
// # Ownership
//
// Every buffer, library and pipeline is released by its Release method or, at the latest, by
// Device.Close; nothing is left to the garbage collector, so no finalizer runs while the device
// works. An object that is released while a Run uses it lives until that Run ends. Using a released
// object is an error (ErrReleased), and every call on a closed device says ErrClosed.
//
// # Concurrency
//
// All methods are safe for concurrent use. A Run returns when the device has finished; two
// concurrent Runs must not write bytes that the other reads or writes, and the Go program must not
// touch a buffer's bytes while a Run uses them.
package gpu

import (
	"crypto/sha256"
	"encoding/hex"
	"time"
)

// A Device is one open GPU.
type Device interface {
	// Info describes the device. It stays valid after Close.
	Info() Info

	// NewBuffer allocates size bytes of zeroed memory where kernels reach it fastest, 1 <= size <=
	// Info().MaxBuffer. It fails with ErrOutOfMemory when the device has no room.
	NewBuffer(size int) (Buffer, error)

	// NewShared allocates size bytes of zeroed memory that the CPU addresses too: its Bytes are not
	// nil. Limits and errors are those of NewBuffer.
	NewShared(size int) (Buffer, error)

	// NewLibrary compiles source, which is in the dialect that the device takes: kernels of package
	// shaders. A failure is ErrCompile and carries the compiler's text.
	NewLibrary(source string, opts CompileOptions) (Library, error)

	// Run executes the dispatches in order, as one command buffer, and waits for it. Each dispatch
	// sees what the earlier ones wrote. The duration is the device's own (GPU end less GPU start).
	// A list that is empty, or whose dispatches all have a zero in Groups, is no work and returns at once. On error the
	// contents of every buffer that the list could write are undefined. The device stays usable
	// unless the error is ErrLost.
	Run(list ...Dispatch) (time.Duration, error)

	// Close waits for the Runs in progress and releases the device with all that came from it. A
	// second Close returns ErrClosed.
	Close() error
}

// A Resetter is a device that a failure can end. The call that meets the failure, and every later one,
// returns ErrLost until Reset.
type Resetter interface {
	// Lost reports whether the device waits for Reset.
	Lost() bool

	// Reset brings a lost device back. What came from it before is released, but for buffers of
	// NewShared: those stay as they are. If it fails, the device stays lost.
	Reset() error
}

// Info is what a device says of itself.
type Info struct {
	Driver               string // how calls reach it: "purego", "darwinkit", "cuda"
	Name                 string // "Apple M4 Max"
	Architecture         string // "applegpu_g16s", empty where the system does not tell
	RegistryID           uint64 // unique on this machine while it is up
	UnifiedMemory        bool   // CPU and GPU share one memory: no buffer's Bytes are nil
	WorkingSet           uint64 // bytes the device advises to stay below
	MaxBuffer            uint64 // bytes in one buffer
	MaxThreadgroupMemory int    // bytes of threadgroup memory, static and dynamic together
	MaxThreads           [3]int // threads in a threadgroup, by dimension
	Cores                int    // that run threadgroups, 0 where the system does not tell
	MatrixUnits          bool   // kernels may use 8 × 8 matrices, whose factors are f32 or lose all but 10 bits behind the leading one
}

// Options choose a device. The zero value takes the first that the system lists.
type Options struct {
	Name       string // the device of this name, if not empty
	RegistryID uint64 // the device with this registry id, if not zero

	// Timeout is how long Run waits for an answer before it gives the device up as lost, five minutes
	// if zero. Systems end command buffers of a few seconds, so only a hang takes longer.
	Timeout time.Duration

	// Prebuilt, if not empty, is a folder of libraries compiled ahead of time. NewLibrary without
	// FastMath loads the one that PrebuiltName names instead of compiling, if it is there and the
	// system loads it (it refuses one that was built for a later system).
	Prebuilt string
}

// PrebuiltName names the library that stands for source: its file, without the extension .metallib,
// and a kernel without arguments that it holds besides those of source, to prove what it was
// compiled from. It is made of the SHA-256 of source.
func PrebuiltName(source string) string {
	sum := sha256.Sum256([]byte(source))
	return "turbotrellis_" + hex.EncodeToString(sum[:])
}

// CompileOptions say how source is compiled. The zero value is what every codec needs: IEEE
// arithmetic with precise division and square root. (On Metal: safe math with precise functions,
// MSL 3.0; that does not forbid contraction, which the source's own pragmas do.)
type CompileOptions struct {
	FastMath bool // let the compiler reassociate and approximate: only for tests that must see it refused
}

// A Buffer is memory that kernels read and write.
type Buffer interface {
	// Bytes is the memory itself, not a copy, where the CPU can address it: valid until Release or
	// Device.Close, and nil after. It is always nil where the memory is the device's alone.
	Bytes() []byte

	// Upload copies src to the buffer's bytes from offset on, and Download copies the bytes from
	// offset on to dst. Both work for every buffer and return when the copy is done. A range outside
	// of the buffer is ErrInvalid.
	Upload(offset int, src []byte) error
	Download(offset int, dst []byte) error

	// Len is the size that was asked for, in bytes.
	Len() int

	// Release gives the memory back. A second Release does nothing.
	Release()
}

// A Library is compiled source.
type Library interface {
	// Pipeline prepares the named kernel for dispatch. A name that the source does not have is
	// ErrNoFunction.
	Pipeline(name string) (Pipeline, error)

	// Release gives the library back; its pipelines live on. A second Release does nothing.
	Release()
}

// A Pipeline is a kernel ready for dispatch.
type Pipeline interface {
	// Name is the kernel's name in the source.
	Name() string

	// MaxThreads is the largest number of threads that a threadgroup of this kernel may have.
	MaxThreads() int

	// ExecutionWidth is the number of threads in a SIMD-group.
	ExecutionWidth() int

	// StaticThreadgroupMemory is what the kernel declares for itself, in bytes.
	StaticThreadgroupMemory() int

	// Release gives the pipeline back. A second Release does nothing.
	Release()
}

// A Binding is a buffer as a kernel sees it: from Offset to the buffer's end. Offset is in bytes
// and must suit the kernel's element type.
type Binding struct {
	Buffer Buffer
	Offset int
}

// A Dispatch is one launch of a kernel over a grid of full threadgroups.
type Dispatch struct {
	Pipeline Pipeline

	// Buffers[i] is bound to [[buffer(i)]].
	Buffers []Binding

	// Args is bound to [[buffer(len(Buffers))]] as constant bytes, fewer than 4096; the call copies
	// them. Empty Args bind nothing.
	Args []byte

	// ThreadgroupMemory[i] bytes are allotted to [[threadgroup(i)]]: positive multiples of 16.
	ThreadgroupMemory []int

	// Groups is the number of threadgroups and GroupSize the threads in each, by dimension x, y, z.
	Groups, GroupSize [3]int
}
