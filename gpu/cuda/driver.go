package cuda

import (
	"errors"
	"fmt"
)

// Handles and addresses of the driver's.
type (
	context   uintptr
	module    uintptr
	function  uintptr
	stream    uintptr
	event     uintptr
	devicePtr uint64
)

// driver is what a device calls of libcuda: each method is the CUDA driver function that its comment
// names. Every error is a *callError. All methods from Alloc on work on the context that is current on
// the calling thread.
type driver interface {
	Version() (int, error)                              // cuDriverGetVersion: 1000·major + 10·minor
	Devices() (int, error)                              // cuDeviceGetCount
	DeviceName(dev int) (string, error)                 // cuDeviceGetName
	DeviceMemory(dev int) (uint64, error)               // cuDeviceTotalMem
	DeviceAttribute(dev int, a attribute) (int, error)  // cuDeviceGetAttribute
	NewContext(dev int) (context, error)                // cuCtxCreate, current nowhere
	DestroyContext(context) error                       // cuCtxDestroy
	Push(context) error                                 // cuCtxPushCurrent
	Pop() error                                         // cuCtxPopCurrent
	HostMemory(n int) ([]byte, error)                   // zeroed pages of the process's own
	FreeHostMemory([]byte)                              //
	Alloc(n int) (devicePtr, error)                     // cuMemAlloc
	Free(devicePtr) error                               // cuMemFree
	Register(mem []byte) (devicePtr, error)             // cuMemHostRegister, cuMemHostGetDevicePointer
	Unregister(mem []byte) error                        // cuMemHostUnregister
	Clear(at devicePtr, n int, s stream) error          // cuMemsetD8Async
	Upload(to devicePtr, from []byte, s stream) error   // cuMemcpyHtoDAsync
	Download(to []byte, from devicePtr, s stream) error // cuMemcpyDtoHAsync
	LoadModule(image []byte) (module, error)            // cuModuleLoadData
	UnloadModule(module) error                          // cuModuleUnload
	Function(m module, name string) (function, error)   // cuModuleGetFunction
	FunctionAttribute(f function, a funcAttribute) (int, error)
	SetFunctionAttribute(f function, a funcAttribute, value int) error
	ParameterBytes(f function) (int, error) // by cuFuncGetParamInfo; -1 from drivers without it
	NewStream() (stream, error)             // cuStreamCreate, non-blocking
	DestroyStream(stream) error             // cuStreamDestroy
	Synchronize(stream) error               // cuStreamSynchronize
	NewEvent() (event, error)               // cuEventCreate
	DestroyEvent(event) error               // cuEventDestroy
	Record(event, stream) error             // cuEventRecord
	Milliseconds(start, end event) (float32, error)
	Launch(f function, grid, block [3]int, shared int, s stream, parameters []byte) error // cuLaunchKernel
}

// attribute is a CUdevice_attribute.
type attribute int

const (
	attrMaxThreads      attribute = 1
	attrMaxBlockX       attribute = 2
	attrMaxBlockY       attribute = 3
	attrMaxBlockZ       attribute = 4
	attrWarpSize        attribute = 10
	attrMultiprocessors attribute = 16
	attrIntegrated      attribute = 18
	attrPCIBus          attribute = 33
	attrPCIDevice       attribute = 34
	attrPCIDomain       attribute = 50
	attrMajor           attribute = 75
	attrMinor           attribute = 76
	attrMaxSharedMemory attribute = 97 // of a block that asks for it
)

// funcAttribute is a CUfunction_attribute.
type funcAttribute int

const (
	funcMaxThreads       funcAttribute = 0
	funcStaticShared     funcAttribute = 1
	funcMaxDynamicShared funcAttribute = 8
)

// callError is a CUresult other than CUDA_SUCCESS.
type callError struct {
	call string // "cuMemAlloc"
	code int
	text string // the name and description that the driver has for it
}

func (e *callError) Error() string { return fmt.Sprintf("%s: %s", e.call, e.text) }

// Results that mean more than that a call failed.
const (
	resultInvalidValue = 1
	resultOutOfMemory  = 2
	resultNotFound     = 500
)

// endsContext reports whether no call on the context succeeds after err.
func endsContext(err error) bool {
	var e *callError
	if !errors.As(err, &e) {
		return false
	}
	switch e.code {
	case 214, // uncorrectable ECC error
		220, // uncorrectable NVLink error
		226, // contained error
		700, // illegal address
		702, // launch timeout
		709, // context is destroyed
		710, // device-side assertion
		714, // hardware stack error
		715, // illegal instruction
		716, // misaligned address
		717, // invalid address space
		718, // invalid program counter
		719: // launch failure
		return true
	}
	return false
}

// compiler is what a device calls of NVRTC.
type compiler interface {
	Version() (major, minor int)
	Build() string        // tells this library from others of the version
	Architectures() []int // that it compiles for: 75 is compute capability 7.5

	// Compile compiles CUDA C++ to machine code, or to PTX with an option -arch=compute_…. The log is
	// the compiler's text.
	Compile(source string, options []string) (image []byte, log string, err error)
}
