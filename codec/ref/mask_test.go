package ref_test

import (
	"fmt"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/ref"
)

// The rows that allow nothing, counted from bits set by hand.
func TestMaskEmptyRows(t *testing.T) {
	logits := codec.NewTensor(codec.F32, 4, 40)
	mask := codec.Bitmask{Rows: 4, Words: 2, Stride: 3, Data: make([]byte, 4*(3*3+2))}
	mask.Data[0] = 1       // row 0: token 0
	mask.Data[12+5] = 0x01 // row 1: bit 40, beyond the vocabulary
	mask.Data[24+4] = 0x80 // row 2: token 39
	mask.Data[12+8] = 0xff // between rows
	empty, err := ref.New().Mask(logits, logits, mask)
	if err != nil || fmt.Sprint(empty) != "[1 3]" {
		t.Error(empty, err)
	}
}
