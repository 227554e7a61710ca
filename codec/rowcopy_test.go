package codec_test

import (
	"errors"
	"math"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
)

func TestRowCopyValidate(t *testing.T) {
	b := make([]byte, 10)
	for name, c := range map[string]struct {
		copy codec.RowCopy
		ok   bool
	}{
		"nothing":         {codec.RowCopy{}, true},
		"fits":            {codec.RowCopy{Dst: b, Src: b, Rows: 3, Len: 2, DstStep: 4, SrcStep: 4}, true},
		"one":             {codec.RowCopy{Dst: b, Src: b, Rows: 1, Len: 10}, true},
		"repeated source": {codec.RowCopy{Dst: b, Src: b[:2], Rows: 3, Len: 2, DstStep: 2}, true},
		"short source":    {codec.RowCopy{Dst: b, Src: b[:9], Rows: 3, Len: 2, DstStep: 4, SrcStep: 4}, false},
		"short":           {codec.RowCopy{Dst: b[:9], Src: b, Rows: 3, Len: 2, DstStep: 4, SrcStep: 4}, false},
		"overlap":         {codec.RowCopy{Dst: b, Src: b, Rows: 3, Len: 2, DstStep: 1, SrcStep: 4}, false},
		"negative":        {codec.RowCopy{Dst: b, Src: b, Rows: -1, Len: 2}, false},
		"backwards":       {codec.RowCopy{Dst: b, Src: b, Rows: 2, Len: 2, DstStep: 2, SrcStep: -2}, false},
		"wraps":           {codec.RowCopy{Dst: b, Src: b, Rows: math.MaxInt / 2, Len: 2, DstStep: 4, SrcStep: 4}, false},
	} {
		if err := c.copy.Validate(); (err == nil) != c.ok || err != nil && !errors.Is(err, codec.ErrShape) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
