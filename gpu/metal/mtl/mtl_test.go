package mtl

import (
	"strings"
	"testing"
)

func TestMessages(t *testing.T) {
	seen := map[Msg]string{}
	bySelector := map[string]string{}
	for m := range NumMessages {
		x := m.Message()
		if x.Receiver == "" || x.Selector == "" || x.Return == "" {
			t.Errorf("message %d is incomplete: %+v", m, x)
		}
		if n := strings.Count(x.Selector, ":"); n != len(x.Args) {
			t.Errorf("%v takes %d arguments, its selector %d", m, len(x.Args), n)
		}
		for n, s := range seen {
			if s == m.String() {
				t.Errorf("messages %d and %d are both %v", m, n, m)
			}
		}
		seen[m] = m.String()
		// A selector has one signature whoever receives it: senders keep selectors, not methods.
		if sig, ok := bySelector[x.Selector]; ok && sig != x.Signature() {
			t.Errorf("%s is %s and %s", x.Selector, sig, x.Signature())
		}
		bySelector[x.Selector] = x.Signature()
	}
	if got := encoderSetBufferOffsetAtIndex.Message().Signature(); got != "void (id, NSUInteger, NSUInteger)" {
		t.Error(got)
	}
}
