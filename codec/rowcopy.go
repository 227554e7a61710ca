package codec

import "fmt"

// RowCopy is a copy of Rows runs of Len bytes: run i goes from Src[i·SrcStep:] to Dst[i·DstStep:]. Runs do not overlap.
type RowCopy struct {
	Dst, Src         []byte
	Rows, Len        int
	DstStep, SrcStep int
}

// Validate returns ErrShape if a run lies outside of its slice, or runs of Dst overlap each other.
func (c RowCopy) Validate() error {
	if c.Rows < 0 || c.Len < 0 || c.Rows > 1 && (c.DstStep < c.Len || c.SrcStep < 0) {
		return &Error{Err: ErrShape, Tensor: "copy", Index: NoIndex, Reason: fmt.Sprintf("%d runs of %d bytes, from every %d to every %d", c.Rows, c.Len, c.SrcStep, c.DstStep)}
	}
	if c.Rows == 0 || c.Len == 0 {
		return nil
	}
	for _, side := range []struct {
		name   string
		n, per int
	}{{"source", len(c.Src), c.SrcStep}, {"destination", len(c.Dst), c.DstStep}} {
		if c.Len > side.n || c.Rows > 1 && side.per > (side.n-c.Len)/(c.Rows-1) {
			return &Error{Err: ErrShape, Tensor: "copy", Index: NoIndex, Reason: fmt.Sprintf("%s of %d bytes for %d runs of %d bytes, %d apart", side.name, side.n, c.Rows, c.Len, side.per)}
		}
	}
	return nil
}
