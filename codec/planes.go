package codec

// Plane is one part of packed rows. What has planes can be cut, joined and
// reordered by rows without knowing its format.
type Plane struct {
	Name   string // codes, scales or zeros
	RowLen int    // bytes per row
	DType  DType  // type of its elements, little-endian; 0 for bytes of codes
	Data   []byte // the rows
}

// Planes returns the parts of k, in the order of its fields. Data that k does
// not have yet is nil; RowLen is what p gives.
func (k Keys) Planes(p KVParams) []Plane { return k.appendPlanes(make([]Plane, 0, 3), p) }

// Planes returns the parts of v, as for Keys.
func (v Values) Planes(p KVParams) []Plane { return v.appendPlanes(make([]Plane, 0, 3), p) }

// appendPlanes is apart from Planes, so that Planes is inlined and its slice
// need not be on the heap.
func (k Keys) appendPlanes(list []Plane, p KVParams) []Plane {
	codes, scales := p.KeyRowLen()
	if p.Keys.RowCode() {
		return append(list, Plane{"codes", codes, 0, k.Codes}, Plane{"scales", scales, 0, k.Scales})
	}
	t := p.WithDefaults().ScaleType
	return append(list, Plane{"codes", codes, 0, k.Codes}, Plane{"scales", scales, t, k.Scales}, Plane{"zeros", scales, t, k.Zeros})
}

func (v Values) appendPlanes(list []Plane, p KVParams) []Plane {
	codes, scales := p.ValueRowLen()
	t := p.WithDefaults().ScaleType
	if p.Values.RowCode() {
		t = 0
	}
	return append(list, Plane{"codes", codes, 0, v.Codes}, Plane{"scales", scales, t, v.Scales})
}
