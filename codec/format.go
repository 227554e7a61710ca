package codec

import "github.com/turbotrellis/turbotrellis/internal/enum"

// Format is how elements of keys or of values are stored. The zero Format is
// none.
type Format uint8

// The formats of groups. Keys are indices of an affine code with a scale and a
// zero point per group (docs/numerics.md §2), values indices of a Lloyd–Max
// table with a scale per group (§4).
const (
	Q2_0  Format = 1 + iota // 2 bits
	Q3_0                    // 3 bits
	Q4_0                    // 4 bits
	Q5_0                    // 5 bits
	Q8_0                    // 8 bits; signed where they are keys
	Uint8                   // 8 bits, unsigned; for keys only
)

// The row codes (docs/numerics.md §10): keys and values alike, rotated, with one
// scale byte per row.
const (
	R2 Format = 16 + iota // levels of 2 bits
	R3                    // levels of 3 bits
	R4                    // levels of 4 bits
	R5                    // levels of 5 bits
	T2                    // trellis of 2 bits
	T3                    // trellis of 3 bits
	T4                    // trellis of 4 bits
)

var formats = []string{Q2_0: "q2_0", Q3_0: "q3_0", Q4_0: "q4_0", Q5_0: "q5_0", Q8_0: "q8_0", Uint8: "uint8",
	R2: "r2", R3: "r3", R4: "r4", R5: "r5", T2: "t2", T3: "t3", T4: "t4"}

// aliases are other names that files and programs use for key formats, and the
// number of bits.
var aliases = map[string]Format{
	"int8": Q8_0, "int4": Q4_0, "uint4": Q4_0, "uint3": Q3_0, "int2": Q2_0, "uint2": Q2_0,
	"2": Q2_0, "3": Q3_0, "4": Q4_0, "5": Q5_0, "8": Q8_0,
}

// KeyFormats returns the formats that keys may have.
func KeyFormats() []Format {
	return append([]Format{Q8_0, Uint8, Q5_0, Q4_0, Q3_0, Q2_0}, rowFormats...)
}

// ValueFormats returns the formats that values may have.
func ValueFormats() []Format { return append([]Format{Q2_0, Q3_0, Q4_0, Q5_0, Q8_0}, rowFormats...) }

var rowFormats = []Format{R2, R3, R4, R5, T2, T3, T4}

// RowCode reports whether f is a row code.
func (f Format) RowCode() bool { return f >= R2 && f <= T4 }

// Trellis reports whether f is a row code that is a trellis.
func (f Format) Trellis() bool { return f >= T2 && f <= T4 }

// KeyFormat returns the format of keys with affine indices of so many bits, or
// ErrParams.
func KeyFormat(bits int, signed bool) (Format, error) {
	for _, f := range KeyFormats() {
		if f.Bits() == bits && f.Signed() == signed && !f.RowCode() {
			return f, nil
		}
	}
	if signed {
		return 0, paramsError("signed keys of %d bits: want 8", bits)
	}
	return 0, paramsError("unsigned keys of %d bits: want 2, 3, 4, 5 or 8", bits)
}

// ValueFormat returns the format of values with indices of so many bits, or
// ErrParams.
func ValueFormat(bits int) (Format, error) {
	for _, f := range ValueFormats() {
		if f.Bits() == bits && !f.RowCode() {
			return f, nil
		}
	}
	return 0, paramsError("values of %d bits: want 2, 3, 4, 5 or 8", bits)
}

// Bits returns the bits of an index, 0 for an unknown format.
func (f Format) Bits() int {
	switch f {
	case Q2_0, R2, T2:
		return 2
	case Q3_0, R3, T3:
		return 3
	case Q4_0, R4, T4:
		return 4
	case Q5_0, R5:
		return 5
	case Q8_0, Uint8:
		return 8
	}
	return 0
}

// Signed reports whether indices of keys are signed.
func (f Format) Signed() bool { return f == Q8_0 }

// String returns the format's name, such as q8_0.
func (f Format) String() string { return enum.String("Format", formats, int(f)) }

// MarshalText returns what String does, or an error for an unknown format.
func (f Format) MarshalText() ([]byte, error) {
	return enum.Marshal("Format", "format", formats, int(f))
}

// UnmarshalText reads the name of a format: q2_0, q3_0, q4_0, q5_0, q8_0,
// uint8, r2 to r5 or t2 to t4, one of vllm-metal's other names for the same key formats (int8, int4,
// uint4, int2, uint2), uint3, or the number of bits alone (2, 3, 4, 5, 8).
func (f *Format) UnmarshalText(text []byte) error {
	if a, ok := aliases[string(text)]; ok {
		*f = a
		return nil
	}
	i, err := enum.Unmarshal("format", formats, text)
	if err == nil {
		*f = Format(i)
	}
	return err
}
