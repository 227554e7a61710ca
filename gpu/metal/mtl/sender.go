// Package mtl has the objects of Apple's Metal framework that a compute program needs, one Go type
// each, with Apple's names. They hold no policy: each method is one message. How a message travels
// is a Sender's business, and the only thing in which the drivers differ.
//
// # Ownership
//
// As in Objective-C without ARC: what a method whose name begins with New (or Create, Copy) returns
// is owned by the caller, who must Release it; everything else is autoreleased and lives until the
// surrounding Pool ends. Call every method inside a Pool.
package mtl

import "unsafe"

// ID is an Objective-C object or class. It is an address that the Go garbage collector does not
// follow.
type ID uintptr

// Size is MTLSize.
//
// Reference: https://developer.apple.com/documentation/metal/mtlsize
type Size struct{ Width, Height, Depth uint64 }

// A Sender sends messages. It has one method for each signature that occurs in the table of
// messages, named after the return type and then the argument types; o is the receiver, never zero.
// An NSError ** argument comes back as the second result, zero when the callee left it alone. All
// methods are safe for concurrent use.
type Sender interface {
	// Class is objc_getClass: zero if there is no such class.
	Class(name string) ID
	// CreateSystemDefaultDevice is MTLCreateSystemDefaultDevice: zero if there is no device, else
	// owned by the caller.
	CreateSystemDefaultDevice() ID
	// CopyAllDevices is MTLCopyAllDevices: an NSArray owned by the caller, or zero.
	CopyAllDevices() ID

	Void(o ID, m Msg)
	VoidID(o ID, m Msg, a ID)
	VoidIDUintUint(o ID, m Msg, a ID, b, c uint)
	VoidPointerUintUint(o ID, m Msg, a unsafe.Pointer, b, c uint) // the callee does not keep a
	VoidUintUint(o ID, m Msg, a, b uint)
	VoidUint(o ID, m Msg, a uint)
	VoidInt(o ID, m Msg, a int)
	VoidBool(o ID, m Msg, a bool)
	VoidSizeSize(o ID, m Msg, a, b Size)

	ID(o ID, m Msg) ID
	IDUint(o ID, m Msg, a uint) ID
	IDUintUint(o ID, m Msg, a, b uint) ID
	IDString(o ID, m Msg, a string) ID // a C string, without a NUL inside
	IDID(o ID, m Msg, a ID) ID
	IDIDError(o ID, m Msg, a ID) (ID, ID)
	IDIDIDError(o ID, m Msg, a, b ID) (ID, ID)

	Uint(o ID, m Msg) uint
	Int(o ID, m Msg) int
	Bool(o ID, m Msg) bool
	BoolMsg(o ID, m Msg, a Msg) bool // a stands for its selector
	Float64(o ID, m Msg) float64
	Size(o ID, m Msg) Size
	String(o ID, m Msg) string // a copy of the C string returned
	Pointer(o ID, m Msg) unsafe.Pointer
}
