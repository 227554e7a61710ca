package codec

// Order says in which order a product may be summed.
type Order uint8

const (
	// Exact is the order of docs/numerics.md §7, the same for every number of rows, layout, format and backend.
	Exact Order = iota
	// Fast also allows matrix units and fused multiply-adds: the f32 sum then lies within
	// 2·(In + 2)·2^-24·Σ|x·w| of the exact one. A backend may still use the order of §7.
	Fast
)

// String returns exact or fast.
func (o Order) String() string {
	if o == Fast {
		return "fast"
	}
	return "exact"
}

// ProductOptions say how a matrix is multiplied. The zero value is the usual choice.
type ProductOptions struct {
	// Weights is the type to which decoded trellis weights are rounded before they are multiplied; 0 means the
	// type of x. Affine weights are in their own type already, whatever it says.
	Weights DType
	Order   Order
}
