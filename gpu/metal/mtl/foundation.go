package mtl

import "runtime"

// Pool runs f on a locked thread inside an autorelease pool. Nothing autoreleased in f may be used
// after it.
//
// Reference: https://developer.apple.com/documentation/foundation/nsautoreleasepool
func Pool(s Sender, f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pool := s.ID(s.Class("NSAutoreleasePool"), classNew)
	defer s.Void(pool, poolDrain)
	f()
}

// Object is any object: a receiver and the way to it. The zero Object is nil.
//
// Reference: https://developer.apple.com/documentation/objectivec/nsobject
type Object struct {
	s  Sender
	id ID
}

// IsNil reports whether there is no object.
func (o Object) IsNil() bool { return o.id == 0 }

// Retain takes ownership.
func (o Object) Retain() { o.s.ID(o.id, objectRetain) }

// Release gives up ownership.
func (o Object) Release() { o.s.Void(o.id, objectRelease) }

func (o Object) respondsTo(m Msg) bool { return o.s.BoolMsg(o.id, objectRespondsToSelector, m) }

func (o Object) object(m Msg) Object { return Object{o.s, o.s.ID(o.id, m)} }

func (o Object) text(m Msg) string {
	str := o.s.ID(o.id, m)
	if str == 0 {
		return ""
	}
	return o.s.String(str, stringUTF8String)
}

// nsString returns an autoreleased NSString. text has no NUL.
//
// Reference: https://developer.apple.com/documentation/foundation/nsstring
func nsString(s Sender, text string) ID {
	return s.IDString(s.Class("NSString"), stringWithUTF8String, text)
}

// NSError is why a call failed.
//
// Reference: https://developer.apple.com/documentation/foundation/nserror
type NSError struct{ Object }

func (e NSError) Domain() string               { return e.text(errorDomain) }
func (e NSError) Code() int                    { return e.s.Int(e.id, errorCode) }
func (e NSError) LocalizedDescription() string { return e.text(errorLocalizedDescription) }
