package mtl

import "unsafe"

// Device is MTLDevice.
//
// Reference: https://developer.apple.com/documentation/metal/mtldevice
type Device struct{ Object }

// CreateSystemDefaultDevice returns the default device, owned by the caller, or nil.
//
// Reference: https://developer.apple.com/documentation/metal/mtlcreatesystemdefaultdevice()
func CreateSystemDefaultDevice(s Sender) Device {
	return Device{Object{s, s.CreateSystemDefaultDevice()}}
}

// CopyAllDevices returns every device. Release the array; its elements belong to it.
//
// Reference: https://developer.apple.com/documentation/metal/mtlcopyalldevices()
func CopyAllDevices(s Sender) Devices { return Devices{Object{s, s.CopyAllDevices()}} }

// Devices is an NSArray of devices.
//
// Reference: https://developer.apple.com/documentation/foundation/nsarray
type Devices struct{ Object }

func (a Devices) Count() int { return int(a.s.Uint(a.id, arrayCount)) }
func (a Devices) ObjectAtIndex(i int) Device {
	return Device{Object{a.s, a.s.IDUint(a.id, arrayObjectAtIndex, uint(i))}}
}

func (d Device) Name() string       { return d.text(deviceName) }
func (d Device) RegistryID() uint64 { return uint64(d.s.Uint(d.id, deviceRegistryID)) }

// Architecture is architecture.name, empty before macOS 14.
func (d Device) Architecture() string {
	if !d.respondsTo(deviceArchitecture) {
		return ""
	}
	a := d.object(deviceArchitecture)
	if a.IsNil() {
		return ""
	}
	return a.text(architectureName)
}

func (d Device) HasUnifiedMemory() bool { return d.s.Bool(d.id, deviceHasUnifiedMemory) }
func (d Device) RecommendedMaxWorkingSetSize() uint64 {
	return uint64(d.s.Uint(d.id, deviceRecommendedMaxWorkingSetSize))
}
func (d Device) MaxBufferLength() uint { return d.s.Uint(d.id, deviceMaxBufferLength) }
func (d Device) MaxThreadgroupMemoryLength() uint {
	return d.s.Uint(d.id, deviceMaxThreadgroupMemoryLength)
}
func (d Device) MaxThreadsPerThreadgroup() Size {
	return d.s.Size(d.id, deviceMaxThreadsPerThreadgroup)
}

// NewCommandQueue returns a queue owned by the caller, or nil.
func (d Device) NewCommandQueue() CommandQueue { return CommandQueue{d.object(deviceNewCommandQueue)} }

// ResourceStorageModeShared is MTLResourceStorageModeShared: memory that CPU and GPU both see.
//
// Reference: https://developer.apple.com/documentation/metal/mtlresourceoptions
const ResourceStorageModeShared = 0

// NewBufferWithLength returns a buffer owned by the caller, or nil.
func (d Device) NewBufferWithLength(length, options uint) Buffer {
	return Buffer{Object{d.s, d.s.IDUintUint(d.id, deviceNewBufferWithLengthOptions, length, options)}}
}

// NewLibraryWithSource compiles source, which has no NUL. The library is owned by the caller; the
// error, autoreleased, counts only when the library is nil (it carries warnings otherwise).
func (d Device) NewLibraryWithSource(source string, options CompileOptions) (Library, NSError) {
	lib, err := d.s.IDIDIDError(d.id, deviceNewLibraryWithSourceOptionsError, nsString(d.s, source), options.id)
	return Library{Object{d.s, lib}}, NSError{Object{d.s, err}}
}

// NewLibraryWithURL loads the compiled library in the file of that path, which has no NUL. The
// library is owned by the caller, or nil with an error.
func (d Device) NewLibraryWithURL(path string) (Library, NSError) {
	url := d.s.IDID(d.s.Class("NSURL"), urlFileURLWithPath, nsString(d.s, path))
	lib, err := d.s.IDIDError(d.id, deviceNewLibraryWithURLError, url)
	return Library{Object{d.s, lib}}, NSError{Object{d.s, err}}
}

// NewComputePipelineStateWithFunction returns a pipeline owned by the caller, or nil and an error.
func (d Device) NewComputePipelineStateWithFunction(f Function) (ComputePipelineState, NSError) {
	p, err := d.s.IDIDError(d.id, deviceNewComputePipelineStateWithFunctionError, f.id)
	return ComputePipelineState{Object{d.s, p}}, NSError{Object{d.s, err}}
}

// CompileOptions is MTLCompileOptions.
//
// Reference: https://developer.apple.com/documentation/metal/mtlcompileoptions
type CompileOptions struct{ Object }

// NewCompileOptions returns options owned by the caller.
func NewCompileOptions(s Sender) CompileOptions {
	return CompileOptions{Object{s, s.ID(s.Class("MTLCompileOptions"), classNew)}}
}

// LanguageVersion3_0 is MTLLanguageVersion3_0.
//
// Reference: https://developer.apple.com/documentation/metal/mtllanguageversion
const LanguageVersion3_0 = 3 << 16

func (o CompileOptions) SetLanguageVersion(v uint) {
	o.s.VoidUint(o.id, compileOptionsSetLanguageVersion, v)
}

// The values of MTLMathMode and MTLMathFloatingPointFunctions.
//
// Reference: https://developer.apple.com/documentation/metal/mtlmathmode
// Reference: https://developer.apple.com/documentation/metal/mtlmathfloatingpointfunctions
const (
	MathModeSafe                      = 0
	MathModeFast                      = 2
	MathFloatingPointFunctionsFast    = 0
	MathFloatingPointFunctionsPrecise = 1
)

// HasMathMode reports whether SetMathMode and SetMathFloatingPointFunctions exist (macOS 15).
// Without them there is SetFastMathEnabled.
func (o CompileOptions) HasMathMode() bool {
	return o.respondsTo(compileOptionsSetMathMode) && o.respondsTo(compileOptionsSetMathFloatingPointFunctions)
}
func (o CompileOptions) SetMathMode(m int) { o.s.VoidInt(o.id, compileOptionsSetMathMode, m) }
func (o CompileOptions) SetMathFloatingPointFunctions(f int) {
	o.s.VoidInt(o.id, compileOptionsSetMathFloatingPointFunctions, f)
}
func (o CompileOptions) SetFastMathEnabled(fast bool) {
	o.s.VoidBool(o.id, compileOptionsSetFastMathEnabled, fast)
}

// Library is MTLLibrary.
//
// Reference: https://developer.apple.com/documentation/metal/mtllibrary
type Library struct{ Object }

// NewFunctionWithName returns a function owned by the caller, or nil if there is none of that name,
// which has no NUL.
func (l Library) NewFunctionWithName(name string) Function {
	return Function{Object{l.s, l.s.IDID(l.id, libraryNewFunctionWithName, nsString(l.s, name))}}
}

// Function is MTLFunction.
//
// Reference: https://developer.apple.com/documentation/metal/mtlfunction
type Function struct{ Object }

// ComputePipelineState is MTLComputePipelineState.
//
// Reference: https://developer.apple.com/documentation/metal/mtlcomputepipelinestate
type ComputePipelineState struct{ Object }

func (p ComputePipelineState) MaxTotalThreadsPerThreadgroup() uint {
	return p.s.Uint(p.id, pipelineMaxTotalThreadsPerThreadgroup)
}
func (p ComputePipelineState) ThreadExecutionWidth() uint {
	return p.s.Uint(p.id, pipelineThreadExecutionWidth)
}
func (p ComputePipelineState) StaticThreadgroupMemoryLength() uint {
	return p.s.Uint(p.id, pipelineStaticThreadgroupMemoryLength)
}

// Buffer is MTLBuffer.
//
// Reference: https://developer.apple.com/documentation/metal/mtlbuffer
type Buffer struct{ Object }

// Contents is the buffer's memory, valid until the buffer goes.
func (b Buffer) Contents() unsafe.Pointer { return b.s.Pointer(b.id, bufferContents) }

// CommandQueue is MTLCommandQueue.
//
// Reference: https://developer.apple.com/documentation/metal/mtlcommandqueue
type CommandQueue struct{ Object }

// CommandBuffer returns an autoreleased command buffer, or nil.
func (q CommandQueue) CommandBuffer() CommandBuffer {
	return CommandBuffer{q.object(queueCommandBuffer)}
}

// CommandBuffer is MTLCommandBuffer.
//
// Reference: https://developer.apple.com/documentation/metal/mtlcommandbuffer
type CommandBuffer struct{ Object }

// ComputeCommandEncoder returns an autoreleased encoder whose dispatches run one after another, or
// nil.
func (c CommandBuffer) ComputeCommandEncoder() ComputeCommandEncoder {
	return ComputeCommandEncoder{c.object(commandBufferComputeCommandEncoder)}
}
func (c CommandBuffer) Commit()             { c.s.Void(c.id, commandBufferCommit) }
func (c CommandBuffer) WaitUntilCompleted() { c.s.Void(c.id, commandBufferWaitUntilCompleted) }

// CommandBufferStatusCompleted is the value of MTLCommandBufferStatus after success.
//
// Reference: https://developer.apple.com/documentation/metal/mtlcommandbufferstatus
const CommandBufferStatusCompleted = 4

func (c CommandBuffer) Status() uint { return c.s.Uint(c.id, commandBufferStatus) }

// The domain and some values of MTLCommandBufferError.
//
// Reference: https://developer.apple.com/documentation/metal/mtlcommandbuffererror
const (
	CommandBufferErrorDomain        = "MTLCommandBufferErrorDomain"
	CommandBufferErrorInternal      = 1
	CommandBufferErrorTimeout       = 2
	CommandBufferErrorPageFault     = 3
	CommandBufferErrorAccessRevoked = 4
	CommandBufferErrorOutOfMemory   = 8
)

// Error is nil after success.
func (c CommandBuffer) Error() NSError { return NSError{c.object(commandBufferError)} }

// GPUStartTime and GPUEndTime are host times in seconds, valid after the wait.
func (c CommandBuffer) GPUStartTime() float64 { return c.s.Float64(c.id, commandBufferGPUStartTime) }
func (c CommandBuffer) GPUEndTime() float64   { return c.s.Float64(c.id, commandBufferGPUEndTime) }

// ComputeCommandEncoder is MTLComputeCommandEncoder.
//
// Reference: https://developer.apple.com/documentation/metal/mtlcomputecommandencoder
type ComputeCommandEncoder struct{ Object }

func (e ComputeCommandEncoder) SetComputePipelineState(p ComputePipelineState) {
	e.s.VoidID(e.id, encoderSetComputePipelineState, p.id)
}
func (e ComputeCommandEncoder) SetBuffer(b Buffer, offset, index uint) {
	e.s.VoidIDUintUint(e.id, encoderSetBufferOffsetAtIndex, b.id, offset, index)
}

// SetBytes copies data, which is not empty and shorter than 4 KiB.
func (e ComputeCommandEncoder) SetBytes(data []byte, index uint) {
	e.s.VoidPointerUintUint(e.id, encoderSetBytesLengthAtIndex, unsafe.Pointer(unsafe.SliceData(data)), uint(len(data)), index)
}

// SetThreadgroupMemoryLength takes a multiple of 16.
func (e ComputeCommandEncoder) SetThreadgroupMemoryLength(length, index uint) {
	e.s.VoidUintUint(e.id, encoderSetThreadgroupMemoryLengthAtIndex, length, index)
}
func (e ComputeCommandEncoder) DispatchThreadgroups(groups, threadsPerThreadgroup Size) {
	e.s.VoidSizeSize(e.id, encoderDispatchThreadgroupsThreadsPerThreadgroup, groups, threadsPerThreadgroup)
}
func (e ComputeCommandEncoder) EndEncoding() { e.s.Void(e.id, encoderEndEncoding) }
