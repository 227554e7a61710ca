//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Name is the driver's name, empty if it was not compiled in.
const Name = driverName

// load opens the CUDA driver and an NVRTC that suits it.
func load() (driver, compiler, error) {
	d, err := loadDriver()
	if err != nil {
		return nil, nil, err
	}
	version, err := d.Version()
	if err != nil {
		return nil, nil, err
	}
	c, err := loadCompiler(version / 1000)
	if err != nil {
		return nil, nil, err
	}
	return d, c, nil
}

// libcuda has the addresses of the driver's functions, each under its symbol.
type libcuda struct {
	Init                 uintptr `symbol:"cuInit"`
	GetErrorName         uintptr `symbol:"cuGetErrorName"`
	GetErrorString       uintptr `symbol:"cuGetErrorString"`
	DriverGetVersion     uintptr `symbol:"cuDriverGetVersion"`
	DeviceGetCount       uintptr `symbol:"cuDeviceGetCount"`
	DeviceGet            uintptr `symbol:"cuDeviceGet"`
	DeviceGetName        uintptr `symbol:"cuDeviceGetName"`
	DeviceTotalMem       uintptr `symbol:"cuDeviceTotalMem_v2"`
	DeviceGetAttribute   uintptr `symbol:"cuDeviceGetAttribute"`
	CtxCreate            uintptr `symbol:"cuCtxCreate_v2"`
	CtxDestroy           uintptr `symbol:"cuCtxDestroy_v2"`
	CtxPushCurrent       uintptr `symbol:"cuCtxPushCurrent_v2"`
	CtxPopCurrent        uintptr `symbol:"cuCtxPopCurrent_v2"`
	MemAlloc             uintptr `symbol:"cuMemAlloc_v2"`
	MemFree              uintptr `symbol:"cuMemFree_v2"`
	MemHostRegister      uintptr `symbol:"cuMemHostRegister_v2"`
	MemHostUnregister    uintptr `symbol:"cuMemHostUnregister"`
	MemHostDevicePointer uintptr `symbol:"cuMemHostGetDevicePointer_v2"`
	MemsetD8Async        uintptr `symbol:"cuMemsetD8Async"`
	MemcpyHtoDAsync      uintptr `symbol:"cuMemcpyHtoDAsync_v2"`
	MemcpyDtoHAsync      uintptr `symbol:"cuMemcpyDtoHAsync_v2"`
	ModuleLoadData       uintptr `symbol:"cuModuleLoadData"`
	ModuleUnload         uintptr `symbol:"cuModuleUnload"`
	ModuleGetFunction    uintptr `symbol:"cuModuleGetFunction"`
	FuncGetAttribute     uintptr `symbol:"cuFuncGetAttribute"`
	FuncSetAttribute     uintptr `symbol:"cuFuncSetAttribute"`
	FuncGetParamInfo     uintptr `symbol:"cuFuncGetParamInfo" from:"12.4"`
	StreamCreate         uintptr `symbol:"cuStreamCreate"`
	StreamDestroy        uintptr `symbol:"cuStreamDestroy_v2"`
	StreamSynchronize    uintptr `symbol:"cuStreamSynchronize"`
	EventCreate          uintptr `symbol:"cuEventCreate"`
	EventDestroy         uintptr `symbol:"cuEventDestroy_v2"`
	EventRecord          uintptr `symbol:"cuEventRecord"`
	EventElapsedTime     uintptr `symbol:"cuEventElapsedTime"`
	LaunchKernel         uintptr `symbol:"cuLaunchKernel"`
}

// symbols fills a struct of addresses. A symbol with a tag "from" may be absent.
func symbols(handle uintptr, table any) error {
	v := reflect.ValueOf(table).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		p, err := purego.Dlsym(handle, f.Tag.Get("symbol"))
		if err != nil && f.Tag.Get("from") == "" {
			return err
		}
		v.Field(i).SetUint(uint64(p))
	}
	return nil
}

// dlopen opens a library.
func dlopen(name string) (uintptr, error) {
	runtime.LockOSThread() // the loader's message is the thread's
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL)
}

var loadDriver = sync.OnceValues(func() (*libcuda, error) {
	handle, err := dlopen("libcuda.so.1")
	if err != nil {
		return nil, fmt.Errorf("no CUDA driver: %w", err)
	}
	l := &libcuda{}
	if err := symbols(handle, l); err != nil {
		return nil, fmt.Errorf("libcuda.so.1: %w", err)
	}
	if err := l.call("cuInit", l.Init, 0); err != nil {
		return nil, err
	}
	return l, nil
})

// call calls a function of the driver.
//
//go:uintptrescapes
func (l *libcuda) call(name string, fn uintptr, args ...uintptr) error {
	r, _, _ := purego.SyscallN(fn, args...)
	code := int32(r)
	if code == 0 {
		return nil
	}
	var id, text *byte
	purego.SyscallN(l.GetErrorName, uintptr(uint32(code)), uintptr(unsafe.Pointer(&id)))
	purego.SyscallN(l.GetErrorString, uintptr(uint32(code)), uintptr(unsafe.Pointer(&text)))
	return &callError{name, int(code), fmt.Sprintf("%s, %s", goString(id), goString(text))}
}

// goString copies a C string.
func goString(p *byte) string {
	if p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

// cString is a copy of s with a NUL behind it.
func cString(s string) *byte { return unsafe.SliceData(append([]byte(s), 0)) }

// pages is the address of memory from HostMemory.
func pages(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

func (l *libcuda) Version() (int, error) {
	var v int32
	err := l.call("cuDriverGetVersion", l.DriverGetVersion, uintptr(unsafe.Pointer(&v)))
	return int(v), err
}

func (l *libcuda) Devices() (int, error) {
	var n int32
	err := l.call("cuDeviceGetCount", l.DeviceGetCount, uintptr(unsafe.Pointer(&n)))
	return int(n), err
}

// device returns the CUdevice of a number.
func (l *libcuda) device(number int) (uintptr, error) {
	var d int32
	err := l.call("cuDeviceGet", l.DeviceGet, uintptr(unsafe.Pointer(&d)), uintptr(number))
	return uintptr(d), err
}

func (l *libcuda) DeviceName(dev int) (string, error) {
	d, err := l.device(dev)
	if err != nil {
		return "", err
	}
	name := make([]byte, 256)
	err = l.call("cuDeviceGetName", l.DeviceGetName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)-1), d)
	return goString(&name[0]), err
}

func (l *libcuda) DeviceMemory(dev int) (uint64, error) {
	d, err := l.device(dev)
	if err != nil {
		return 0, err
	}
	var n uint64
	err = l.call("cuDeviceTotalMem", l.DeviceTotalMem, uintptr(unsafe.Pointer(&n)), d)
	return n, err
}

func (l *libcuda) DeviceAttribute(dev int, a attribute) (int, error) {
	d, err := l.device(dev)
	if err != nil {
		return 0, err
	}
	var v int32
	err = l.call("cuDeviceGetAttribute", l.DeviceGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), d)
	return int(v), err
}

func (l *libcuda) NewContext(dev int) (context, error) {
	d, err := l.device(dev)
	if err != nil {
		return 0, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var c context
	const flags = 0 // the driver decides how to wait
	if err := l.call("cuCtxCreate", l.CtxCreate, uintptr(unsafe.Pointer(&c)), flags, d); err != nil {
		return 0, err
	}
	return c, l.Pop()
}

func (l *libcuda) DestroyContext(c context) error {
	return l.call("cuCtxDestroy", l.CtxDestroy, uintptr(c))
}

func (l *libcuda) Push(c context) error {
	return l.call("cuCtxPushCurrent", l.CtxPushCurrent, uintptr(c))
}

func (l *libcuda) Pop() error {
	var c context
	return l.call("cuCtxPopCurrent", l.CtxPopCurrent, uintptr(unsafe.Pointer(&c)))
}

func (l *libcuda) HostMemory(n int) ([]byte, error) {
	return syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
}

func (l *libcuda) FreeHostMemory(mem []byte) { _ = syscall.Munmap(mem) }

func (l *libcuda) Alloc(n int) (devicePtr, error) {
	var p devicePtr
	err := l.call("cuMemAlloc", l.MemAlloc, uintptr(unsafe.Pointer(&p)), uintptr(n))
	return p, err
}

func (l *libcuda) Free(p devicePtr) error { return l.call("cuMemFree", l.MemFree, uintptr(p)) }

func (l *libcuda) Register(mem []byte) (devicePtr, error) {
	const portable, mapped = 1, 2
	if err := l.call("cuMemHostRegister", l.MemHostRegister, pages(mem), uintptr(len(mem)), portable|mapped); err != nil {
		return 0, err
	}
	var p devicePtr
	if err := l.call("cuMemHostGetDevicePointer", l.MemHostDevicePointer, uintptr(unsafe.Pointer(&p)), pages(mem), 0); err != nil {
		return 0, errors.Join(err, l.Unregister(mem))
	}
	return p, nil
}

func (l *libcuda) Unregister(mem []byte) error {
	return l.call("cuMemHostUnregister", l.MemHostUnregister, pages(mem))
}

func (l *libcuda) Clear(p devicePtr, n int, s stream) error {
	return l.call("cuMemsetD8Async", l.MemsetD8Async, uintptr(p), 0, uintptr(n), uintptr(s))
}

// Upload and Download are given Go memory, which stays until the caller has waited for s.

func (l *libcuda) Upload(to devicePtr, from []byte, s stream) error {
	return l.call("cuMemcpyHtoDAsync", l.MemcpyHtoDAsync, uintptr(to), uintptr(unsafe.Pointer(unsafe.SliceData(from))), uintptr(len(from)), uintptr(s))
}

func (l *libcuda) Download(to []byte, from devicePtr, s stream) error {
	return l.call("cuMemcpyDtoHAsync", l.MemcpyDtoHAsync, uintptr(unsafe.Pointer(unsafe.SliceData(to))), uintptr(from), uintptr(len(to)), uintptr(s))
}

func (l *libcuda) LoadModule(image []byte) (module, error) {
	image = append(image[:len(image):len(image)], 0) // PTX is a C string
	var m module
	err := l.call("cuModuleLoadData", l.ModuleLoadData, uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&image[0])))
	return m, err
}

func (l *libcuda) UnloadModule(m module) error {
	return l.call("cuModuleUnload", l.ModuleUnload, uintptr(m))
}

func (l *libcuda) Function(m module, name string) (function, error) {
	var f function
	err := l.call("cuModuleGetFunction", l.ModuleGetFunction, uintptr(unsafe.Pointer(&f)), uintptr(m), uintptr(unsafe.Pointer(cString(name))))
	return f, err
}

func (l *libcuda) FunctionAttribute(f function, a funcAttribute) (int, error) {
	var v int32
	err := l.call("cuFuncGetAttribute", l.FuncGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(f))
	return int(v), err
}

func (l *libcuda) SetFunctionAttribute(f function, a funcAttribute, value int) error {
	return l.call("cuFuncSetAttribute", l.FuncSetAttribute, uintptr(f), uintptr(a), uintptr(value))
}

func (l *libcuda) ParameterBytes(f function) (int, error) {
	if l.FuncGetParamInfo == 0 {
		return -1, nil
	}
	end := 0
	for i := 0; ; i++ {
		var offset, size uint64
		err := l.call("cuFuncGetParamInfo", l.FuncGetParamInfo, uintptr(f), uintptr(i), uintptr(unsafe.Pointer(&offset)), uintptr(unsafe.Pointer(&size)))
		if e, ok := err.(*callError); ok && e.code == resultInvalidValue {
			return end, nil // there are i of them
		}
		if err != nil {
			return 0, err
		}
		end = int(offset + size)
	}
}

func (l *libcuda) NewStream() (stream, error) {
	const nonBlocking = 1 // no order with the default stream
	var s stream
	err := l.call("cuStreamCreate", l.StreamCreate, uintptr(unsafe.Pointer(&s)), nonBlocking)
	return s, err
}

func (l *libcuda) DestroyStream(s stream) error {
	return l.call("cuStreamDestroy", l.StreamDestroy, uintptr(s))
}

func (l *libcuda) Synchronize(s stream) error {
	return l.call("cuStreamSynchronize", l.StreamSynchronize, uintptr(s))
}

func (l *libcuda) NewEvent() (event, error) {
	var e event
	err := l.call("cuEventCreate", l.EventCreate, uintptr(unsafe.Pointer(&e)), 0)
	return e, err
}

func (l *libcuda) DestroyEvent(e event) error {
	return l.call("cuEventDestroy", l.EventDestroy, uintptr(e))
}

func (l *libcuda) Record(e event, s stream) error {
	return l.call("cuEventRecord", l.EventRecord, uintptr(e), uintptr(s))
}

func (l *libcuda) Milliseconds(start, end event) (float32, error) {
	var ms float32
	err := l.call("cuEventElapsedTime", l.EventElapsedTime, uintptr(unsafe.Pointer(&ms)), uintptr(start), uintptr(end))
	return ms, err
}

// launchExtra is the array of void* that cuLaunchKernel takes as extra.
type launchExtra struct {
	bufferPointer uintptr // CU_LAUNCH_PARAM_BUFFER_POINTER
	buffer        *byte
	bufferSize    uintptr // CU_LAUNCH_PARAM_BUFFER_SIZE
	size          *uintptr
	end           uintptr // CU_LAUNCH_PARAM_END
}

func (l *libcuda) Launch(f function, grid, block [3]int, shared int, s stream, parameters []byte) error {
	size := uintptr(len(parameters))
	extra := &launchExtra{1, unsafe.SliceData(parameters), 2, &size, 0}
	return l.call("cuLaunchKernel", l.LaunchKernel, uintptr(f), uintptr(grid[0]), uintptr(grid[1]), uintptr(grid[2]),
		uintptr(block[0]), uintptr(block[1]), uintptr(block[2]), uintptr(shared), uintptr(s), 0, uintptr(unsafe.Pointer(extra)))
}
