//go:build metal && ((darwin && arm64) || (linux && hostmetal && (amd64 || arm64)))

package sendpurego

import (
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/turbotrellis/turbotrellis/gpu/metal/mtl"
)

// Load loads the frameworks and returns the sender, the same at every call. It fails if a library
// or one of its symbols is missing.
var Load = sync.OnceValues(load)

type sel uintptr

// sender holds objc_msgSend once for each signature.
type sender struct {
	sels [mtl.NumMessages]sel

	getClass      func(name string) mtl.ID
	registerName  func(name string) sel
	defaultDevice func() mtl.ID
	allDevices    func() mtl.ID

	void                func(mtl.ID, sel)
	voidID              func(mtl.ID, sel, mtl.ID)
	voidIDUintUint      func(mtl.ID, sel, mtl.ID, uint, uint)
	voidPointerUintUint func(mtl.ID, sel, unsafe.Pointer, uint, uint)
	voidUintUint        func(mtl.ID, sel, uint, uint)
	voidUint            func(mtl.ID, sel, uint)
	voidInt             func(mtl.ID, sel, int)
	voidBool            func(mtl.ID, sel, bool)
	voidSizeSize        func(mtl.ID, sel, mtl.Size, mtl.Size)
	id                  func(mtl.ID, sel) mtl.ID
	idUint              func(mtl.ID, sel, uint) mtl.ID
	idUintUint          func(mtl.ID, sel, uint, uint) mtl.ID
	idString            func(mtl.ID, sel, string) mtl.ID
	idID                func(mtl.ID, sel, mtl.ID) mtl.ID
	idIDError           func(mtl.ID, sel, mtl.ID, *mtl.ID) mtl.ID
	idIDIDError         func(mtl.ID, sel, mtl.ID, mtl.ID, *mtl.ID) mtl.ID
	uint                func(mtl.ID, sel) uint
	int                 func(mtl.ID, sel) int
	bool                func(mtl.ID, sel) bool
	boolSel             func(mtl.ID, sel, sel) bool
	float64             func(mtl.ID, sel) float64
	size                func(mtl.ID, sel) mtl.Size
	string              func(mtl.ID, sel) string
	pointer             func(mtl.ID, sel) unsafe.Pointer
}

func load() (mtl.Sender, error) {
	paths, err := libraries()
	if err != nil {
		return nil, err
	}
	var handles []uintptr
	for _, path := range paths {
		h, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err != nil {
			return nil, err
		}
		handles = append(handles, h)
	}
	s := &sender{}
	for _, x := range []struct {
		name  string
		funcs []any
	}{
		{"objc_getClass", []any{&s.getClass}},
		{"sel_registerName", []any{&s.registerName}},
		{"MTLCreateSystemDefaultDevice", []any{&s.defaultDevice}},
		{"MTLCopyAllDevices", []any{&s.allDevices}},
		{"objc_msgSend", []any{
			&s.void, &s.voidID, &s.voidIDUintUint, &s.voidPointerUintUint, &s.voidUintUint, &s.voidUint, &s.voidInt, &s.voidBool,
			&s.voidSizeSize, &s.id, &s.idUint, &s.idUintUint, &s.idString, &s.idID, &s.idIDError, &s.idIDIDError, &s.uint, &s.int,
			&s.bool, &s.boolSel, &s.float64, &s.string, &s.pointer,
		}},
		{sendStruct, []any{&s.size}},
	} {
		address, err := symbol(handles, x.name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(paths, ", "), err)
		}
		for _, f := range x.funcs {
			purego.RegisterFunc(f, address)
		}
	}
	for m := range s.sels {
		s.sels[m] = s.registerName(mtl.Msg(m).Message().Selector)
	}
	return s, nil
}

func symbol(handles []uintptr, name string) (uintptr, error) {
	var err error
	for _, h := range handles {
		var address uintptr
		if address, err = purego.Dlsym(h, name); err == nil {
			return address, nil
		}
	}
	return 0, err
}

func (s *sender) Class(name string) mtl.ID          { return s.getClass(name) }
func (s *sender) CreateSystemDefaultDevice() mtl.ID { return s.defaultDevice() }
func (s *sender) CopyAllDevices() mtl.ID            { return s.allDevices() }

func (s *sender) Void(o mtl.ID, m mtl.Msg)             { s.void(o, s.sels[m]) }
func (s *sender) VoidID(o mtl.ID, m mtl.Msg, a mtl.ID) { s.voidID(o, s.sels[m], a) }
func (s *sender) VoidIDUintUint(o mtl.ID, m mtl.Msg, a mtl.ID, b, c uint) {
	s.voidIDUintUint(o, s.sels[m], a, b, c)
}
func (s *sender) VoidPointerUintUint(o mtl.ID, m mtl.Msg, a unsafe.Pointer, b, c uint) {
	s.voidPointerUintUint(o, s.sels[m], a, b, c)
}
func (s *sender) VoidUintUint(o mtl.ID, m mtl.Msg, a, b uint)     { s.voidUintUint(o, s.sels[m], a, b) }
func (s *sender) VoidUint(o mtl.ID, m mtl.Msg, a uint)            { s.voidUint(o, s.sels[m], a) }
func (s *sender) VoidInt(o mtl.ID, m mtl.Msg, a int)              { s.voidInt(o, s.sels[m], a) }
func (s *sender) VoidBool(o mtl.ID, m mtl.Msg, a bool)            { s.voidBool(o, s.sels[m], a) }
func (s *sender) VoidSizeSize(o mtl.ID, m mtl.Msg, a, b mtl.Size) { s.voidSizeSize(o, s.sels[m], a, b) }

func (s *sender) ID(o mtl.ID, m mtl.Msg) mtl.ID             { return s.id(o, s.sels[m]) }
func (s *sender) IDUint(o mtl.ID, m mtl.Msg, a uint) mtl.ID { return s.idUint(o, s.sels[m], a) }
func (s *sender) IDUintUint(o mtl.ID, m mtl.Msg, a, b uint) mtl.ID {
	return s.idUintUint(o, s.sels[m], a, b)
}
func (s *sender) IDString(o mtl.ID, m mtl.Msg, a string) mtl.ID { return s.idString(o, s.sels[m], a) }
func (s *sender) IDID(o mtl.ID, m mtl.Msg, a mtl.ID) mtl.ID     { return s.idID(o, s.sels[m], a) }
func (s *sender) IDIDError(o mtl.ID, m mtl.Msg, a mtl.ID) (r, e mtl.ID) {
	r = s.idIDError(o, s.sels[m], a, &e)
	return r, e
}
func (s *sender) IDIDIDError(o mtl.ID, m mtl.Msg, a, b mtl.ID) (r, e mtl.ID) {
	r = s.idIDIDError(o, s.sels[m], a, b, &e)
	return r, e
}

func (s *sender) Uint(o mtl.ID, m mtl.Msg) uint { return s.uint(o, s.sels[m]) }
func (s *sender) Int(o mtl.ID, m mtl.Msg) int   { return s.int(o, s.sels[m]) }
func (s *sender) Bool(o mtl.ID, m mtl.Msg) bool { return s.bool(o, s.sels[m]) }
func (s *sender) BoolMsg(o mtl.ID, m mtl.Msg, a mtl.Msg) bool {
	return s.boolSel(o, s.sels[m], s.sels[a])
}
func (s *sender) Float64(o mtl.ID, m mtl.Msg) float64        { return s.float64(o, s.sels[m]) }
func (s *sender) Size(o mtl.ID, m mtl.Msg) mtl.Size          { return s.size(o, s.sels[m]) }
func (s *sender) String(o mtl.ID, m mtl.Msg) string          { return s.string(o, s.sels[m]) }
func (s *sender) Pointer(o mtl.ID, m mtl.Msg) unsafe.Pointer { return s.pointer(o, s.sels[m]) }
