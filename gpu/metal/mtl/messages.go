package mtl

import "strings"

// Type is the C type of an argument or a result.
type Type string

// The types that occur. Enumerations and option sets count as the integer type that Apple's headers
// give them.
const (
	TypeVoid    Type = "void"
	TypeID      Type = "id"
	TypeSEL     Type = "SEL"
	TypeUint    Type = "NSUInteger"
	TypeInt     Type = "NSInteger"
	TypeUint64  Type = "uint64_t"
	TypeBool    Type = "BOOL"
	TypeDouble  Type = "double"
	TypeCString Type = "const char *"
	TypeBytes   Type = "const void *"
	TypePointer Type = "void *"
	TypeSize    Type = "MTLSize"
	TypeError   Type = "NSError **"
)

// Message describes a message: who understands it, and what it takes and returns.
type Message struct {
	Receiver string // the protocol that declares the method; "+" before a class whose class method it is; "NSObject" for all objects
	Selector string
	Return   Type
	Args     []Type
}

// Signature is the message's type in one line, like "void (id, NSUInteger, NSUInteger)".
func (m Message) Signature() string {
	args := make([]string, len(m.Args))
	for i, a := range m.Args {
		args[i] = string(a)
	}
	return string(m.Return) + " (" + strings.Join(args, ", ") + ")"
}

// Msg names a message: an index into the table of messages.
type Msg int

const (
	classNew Msg = iota
	objectRetain
	objectRelease
	objectRespondsToSelector
	poolDrain
	stringWithUTF8String
	stringUTF8String
	urlFileURLWithPath
	errorDomain
	errorCode
	errorLocalizedDescription
	arrayCount
	arrayObjectAtIndex

	deviceName
	deviceArchitecture
	architectureName
	deviceRegistryID
	deviceHasUnifiedMemory
	deviceRecommendedMaxWorkingSetSize
	deviceMaxBufferLength
	deviceMaxThreadgroupMemoryLength
	deviceMaxThreadsPerThreadgroup
	deviceNewCommandQueue
	deviceNewBufferWithLengthOptions
	deviceNewLibraryWithSourceOptionsError
	deviceNewLibraryWithURLError
	deviceNewComputePipelineStateWithFunctionError

	compileOptionsSetLanguageVersion
	compileOptionsSetFastMathEnabled
	compileOptionsSetMathMode
	compileOptionsSetMathFloatingPointFunctions

	libraryNewFunctionWithName
	pipelineMaxTotalThreadsPerThreadgroup
	pipelineThreadExecutionWidth
	pipelineStaticThreadgroupMemoryLength
	bufferContents
	queueCommandBuffer

	commandBufferComputeCommandEncoder
	commandBufferCommit
	commandBufferWaitUntilCompleted
	commandBufferStatus
	commandBufferError
	commandBufferGPUStartTime
	commandBufferGPUEndTime

	encoderSetComputePipelineState
	encoderSetBufferOffsetAtIndex
	encoderSetBytesLengthAtIndex
	encoderSetThreadgroupMemoryLengthAtIndex
	encoderDispatchThreadgroupsThreadsPerThreadgroup
	encoderEndEncoding

	// NumMessages is how many there are.
	NumMessages
)

// messages is every message that this package sends.
var messages = [NumMessages]Message{
	classNew:                  {"+NSObject", "new", TypeID, nil},
	objectRetain:              {"NSObject", "retain", TypeID, nil},
	objectRelease:             {"NSObject", "release", TypeVoid, nil},
	objectRespondsToSelector:  {"NSObject", "respondsToSelector:", TypeBool, []Type{TypeSEL}},
	poolDrain:                 {"NSAutoreleasePool", "drain", TypeVoid, nil},
	stringWithUTF8String:      {"+NSString", "stringWithUTF8String:", TypeID, []Type{TypeCString}},
	stringUTF8String:          {"NSString", "UTF8String", TypeCString, nil},
	urlFileURLWithPath:        {"+NSURL", "fileURLWithPath:", TypeID, []Type{TypeID}},
	errorDomain:               {"NSError", "domain", TypeID, nil},
	errorCode:                 {"NSError", "code", TypeInt, nil},
	errorLocalizedDescription: {"NSError", "localizedDescription", TypeID, nil},
	arrayCount:                {"NSArray", "count", TypeUint, nil},
	arrayObjectAtIndex:        {"NSArray", "objectAtIndex:", TypeID, []Type{TypeUint}},

	deviceName:                             {"MTLDevice", "name", TypeID, nil},
	deviceArchitecture:                     {"MTLDevice", "architecture", TypeID, nil}, // macOS 14
	architectureName:                       {"MTLArchitecture", "name", TypeID, nil},   // macOS 14
	deviceRegistryID:                       {"MTLDevice", "registryID", TypeUint64, nil},
	deviceHasUnifiedMemory:                 {"MTLDevice", "hasUnifiedMemory", TypeBool, nil},
	deviceRecommendedMaxWorkingSetSize:     {"MTLDevice", "recommendedMaxWorkingSetSize", TypeUint64, nil},
	deviceMaxBufferLength:                  {"MTLDevice", "maxBufferLength", TypeUint, nil},
	deviceMaxThreadgroupMemoryLength:       {"MTLDevice", "maxThreadgroupMemoryLength", TypeUint, nil},
	deviceMaxThreadsPerThreadgroup:         {"MTLDevice", "maxThreadsPerThreadgroup", TypeSize, nil},
	deviceNewCommandQueue:                  {"MTLDevice", "newCommandQueue", TypeID, nil},
	deviceNewBufferWithLengthOptions:       {"MTLDevice", "newBufferWithLength:options:", TypeID, []Type{TypeUint, TypeUint}},
	deviceNewLibraryWithSourceOptionsError: {"MTLDevice", "newLibraryWithSource:options:error:", TypeID, []Type{TypeID, TypeID, TypeError}},
	deviceNewLibraryWithURLError:           {"MTLDevice", "newLibraryWithURL:error:", TypeID, []Type{TypeID, TypeError}},
	deviceNewComputePipelineStateWithFunctionError: {
		"MTLDevice", "newComputePipelineStateWithFunction:error:", TypeID, []Type{TypeID, TypeError}},

	compileOptionsSetLanguageVersion:            {"MTLCompileOptions", "setLanguageVersion:", TypeVoid, []Type{TypeUint}},
	compileOptionsSetFastMathEnabled:            {"MTLCompileOptions", "setFastMathEnabled:", TypeVoid, []Type{TypeBool}},
	compileOptionsSetMathMode:                   {"MTLCompileOptions", "setMathMode:", TypeVoid, []Type{TypeInt}},                   // macOS 15
	compileOptionsSetMathFloatingPointFunctions: {"MTLCompileOptions", "setMathFloatingPointFunctions:", TypeVoid, []Type{TypeInt}}, // macOS 15

	libraryNewFunctionWithName:            {"MTLLibrary", "newFunctionWithName:", TypeID, []Type{TypeID}},
	pipelineMaxTotalThreadsPerThreadgroup: {"MTLComputePipelineState", "maxTotalThreadsPerThreadgroup", TypeUint, nil},
	pipelineThreadExecutionWidth:          {"MTLComputePipelineState", "threadExecutionWidth", TypeUint, nil},
	pipelineStaticThreadgroupMemoryLength: {"MTLComputePipelineState", "staticThreadgroupMemoryLength", TypeUint, nil},
	bufferContents:                        {"MTLBuffer", "contents", TypePointer, nil},
	queueCommandBuffer:                    {"MTLCommandQueue", "commandBuffer", TypeID, nil},

	commandBufferComputeCommandEncoder: {"MTLCommandBuffer", "computeCommandEncoder", TypeID, nil},
	commandBufferCommit:                {"MTLCommandBuffer", "commit", TypeVoid, nil},
	commandBufferWaitUntilCompleted:    {"MTLCommandBuffer", "waitUntilCompleted", TypeVoid, nil},
	commandBufferStatus:                {"MTLCommandBuffer", "status", TypeUint, nil},
	commandBufferError:                 {"MTLCommandBuffer", "error", TypeID, nil},
	commandBufferGPUStartTime:          {"MTLCommandBuffer", "GPUStartTime", TypeDouble, nil},
	commandBufferGPUEndTime:            {"MTLCommandBuffer", "GPUEndTime", TypeDouble, nil},

	encoderSetComputePipelineState: {"MTLComputeCommandEncoder", "setComputePipelineState:", TypeVoid, []Type{TypeID}},
	encoderSetBufferOffsetAtIndex:  {"MTLComputeCommandEncoder", "setBuffer:offset:atIndex:", TypeVoid, []Type{TypeID, TypeUint, TypeUint}},
	encoderSetBytesLengthAtIndex:   {"MTLComputeCommandEncoder", "setBytes:length:atIndex:", TypeVoid, []Type{TypeBytes, TypeUint, TypeUint}},
	encoderSetThreadgroupMemoryLengthAtIndex: {
		"MTLComputeCommandEncoder", "setThreadgroupMemoryLength:atIndex:", TypeVoid, []Type{TypeUint, TypeUint}},
	encoderDispatchThreadgroupsThreadsPerThreadgroup: {
		"MTLComputeCommandEncoder", "dispatchThreadgroups:threadsPerThreadgroup:", TypeVoid, []Type{TypeSize, TypeSize}},
	encoderEndEncoding: {"MTLCommandEncoder", "endEncoding", TypeVoid, nil},
}

// Message returns what m stands for. A Sender looks the selectors of 0 <= m < NumMessages up once.
func (m Msg) Message() Message { return messages[m] }

func (m Msg) String() string { return messages[m].Receiver + " " + messages[m].Selector }
