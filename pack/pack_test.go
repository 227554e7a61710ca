package pack

import (
	"bytes"
	"testing"
)

func TestPackWorkedExample(t *testing.T) {
	src := []byte{5, 2, 7, 1, 0, 6, 3, 4}
	want := []byte{0xd5, 0x03, 0x8f}
	got, err := AppendPack(nil, src, 3)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("AppendPack = %x, %v; want %x", got, err, want)
	}
	back, err := AppendUnpack(nil, got, len(src), 3)
	if err != nil || !bytes.Equal(back, src) {
		t.Fatalf("AppendUnpack = %x, %v; want %x", back, err, src)
	}
}
