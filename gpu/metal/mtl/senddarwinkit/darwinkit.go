//go:build metal && cgo && !purego && ((darwin && arm64) || (linux && hostmetal && darwinkit && (amd64 || arm64)))

package senddarwinkit

// #cgo darwin LDFLAGS: -framework Metal -framework CoreGraphics
// void *MTLCreateSystemDefaultDevice(void);
// void *MTLCopyAllDevices(void);
import "C"

import (
	"sync"
	"unsafe"

	"github.com/progrium/darwinkit/macos/metal"
	"github.com/progrium/darwinkit/objc"

	"github.com/turbotrellis/turbotrellis/gpu/metal/mtl"
)

// Load returns the sender, the same at every call.
var Load = sync.OnceValues(load)

type sender struct {
	sels [mtl.NumMessages]objc.Selector
}

func load() (mtl.Sender, error) {
	s := &sender{}
	for m := range s.sels {
		s.sels[m] = objc.RegisterSelectorName(mtl.Msg(m).Message().Selector)
	}
	return s, nil
}

// send sends m to o with three arguments, none standing for those that m does not have.
//
// Fewer would do, if not for https://github.com/progrium/darwinkit/issues/286: objc.Call makes a
// slice of len(params)+2 argument types that libffi keeps the address of. Since Go 1.25 the
// compiler may place such a slice of up to 32 bytes on the stack, which moves when it grows. With
// three arguments it has 40 bytes. A callee does not notice surplus arguments: they are in
// registers, or above those that it reads. T has 8 bytes or is void or a larger structure: libffi
// writes whole registers, which would overrun a bool. darwinkit's methods over objc.Call, which
// send shorter messages, are not for use.
func send[T any](s *sender, o mtl.ID, m mtl.Msg, a, b, c any) T {
	return objc.Call[T](object(o), s.sels[m], a, b, c)
}

// none is an argument that the callee does not read.
const none = uintptr(0)

// object is id as darwinkit holds it.
func object(id mtl.ID) objc.Object { return objc.ObjectFrom(*(*unsafe.Pointer)(unsafe.Pointer(&id))) }

func (s *sender) Class(name string) mtl.ID { return mtl.ID(uintptr(objc.GetClass(name).Ptr())) }

// CreateSystemDefaultDevice calls what darwinkit has no binding for. A program without an app
// bundle gets no default device unless CoreGraphics is linked.
func (s *sender) CreateSystemDefaultDevice() mtl.ID {
	return mtl.ID(uintptr(C.MTLCreateSystemDefaultDevice()))
}
func (s *sender) CopyAllDevices() mtl.ID { return mtl.ID(uintptr(C.MTLCopyAllDevices())) }

func (s *sender) Void(o mtl.ID, m mtl.Msg)             { send[objc.Void](s, o, m, none, none, none) }
func (s *sender) VoidID(o mtl.ID, m mtl.Msg, a mtl.ID) { send[objc.Void](s, o, m, a, none, none) }
func (s *sender) VoidIDUintUint(o mtl.ID, m mtl.Msg, a mtl.ID, b, c uint) {
	send[objc.Void](s, o, m, a, b, c)
}
func (s *sender) VoidPointerUintUint(o mtl.ID, m mtl.Msg, a unsafe.Pointer, b, c uint) {
	send[objc.Void](s, o, m, a, b, c)
}
func (s *sender) VoidUintUint(o mtl.ID, m mtl.Msg, a, b uint) {
	send[objc.Void](s, o, m, a, b, none)
}
func (s *sender) VoidUint(o mtl.ID, m mtl.Msg, a uint) { send[objc.Void](s, o, m, a, none, none) }
func (s *sender) VoidInt(o mtl.ID, m mtl.Msg, a int)   { send[objc.Void](s, o, m, a, none, none) }
func (s *sender) VoidBool(o mtl.ID, m mtl.Msg, a bool) { send[objc.Void](s, o, m, a, none, none) }
func (s *sender) VoidSizeSize(o mtl.ID, m mtl.Msg, a, b mtl.Size) {
	send[objc.Void](s, o, m, metal.Size(a), metal.Size(b), none)
}

func (s *sender) ID(o mtl.ID, m mtl.Msg) mtl.ID { return send[mtl.ID](s, o, m, none, none, none) }
func (s *sender) IDUint(o mtl.ID, m mtl.Msg, a uint) mtl.ID {
	return send[mtl.ID](s, o, m, a, none, none)
}
func (s *sender) IDUintUint(o mtl.ID, m mtl.Msg, a, b uint) mtl.ID {
	return send[mtl.ID](s, o, m, a, b, none)
}

// IDString does not pass a Go string, which darwinkit would make an NSString of.
func (s *sender) IDString(o mtl.ID, m mtl.Msg, a string) mtl.ID {
	text := append([]byte(a), 0)
	return send[mtl.ID](s, o, m, unsafe.Pointer(unsafe.SliceData(text)), none, none)
}
func (s *sender) IDID(o mtl.ID, m mtl.Msg, a mtl.ID) mtl.ID {
	return send[mtl.ID](s, o, m, a, none, none)
}
func (s *sender) IDIDError(o mtl.ID, m mtl.Msg, a mtl.ID) (r, e mtl.ID) {
	r = send[mtl.ID](s, o, m, a, unsafe.Pointer(&e), none)
	return r, e
}
func (s *sender) IDIDIDError(o mtl.ID, m mtl.Msg, a, b mtl.ID) (r, e mtl.ID) {
	r = send[mtl.ID](s, o, m, a, b, unsafe.Pointer(&e))
	return r, e
}

func (s *sender) Uint(o mtl.ID, m mtl.Msg) uint { return send[uint](s, o, m, none, none, none) }
func (s *sender) Int(o mtl.ID, m mtl.Msg) int   { return send[int](s, o, m, none, none, none) }

// Bool looks at the register's low byte: a BOOL leaves the rest undefined.
func (s *sender) Bool(o mtl.ID, m mtl.Msg) bool {
	return uint8(send[uint](s, o, m, none, none, none)) != 0
}
func (s *sender) BoolMsg(o mtl.ID, m mtl.Msg, a mtl.Msg) bool {
	return uint8(send[uint](s, o, m, s.sels[a], none, none)) != 0
}
func (s *sender) Float64(o mtl.ID, m mtl.Msg) float64 {
	return send[float64](s, o, m, none, none, none)
}
func (s *sender) Size(o mtl.ID, m mtl.Msg) mtl.Size {
	return mtl.Size(send[metal.Size](s, o, m, none, none, none))
}

// String does not ask for a Go string, which darwinkit would take from an NSString.
func (s *sender) String(o mtl.ID, m mtl.Msg) string {
	return C.GoString((*C.char)(s.Pointer(o, m)))
}
func (s *sender) Pointer(o mtl.ID, m mtl.Msg) unsafe.Pointer {
	return send[unsafe.Pointer](s, o, m, none, none, none)
}
