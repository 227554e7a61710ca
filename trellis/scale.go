package trellis

// InvRMS returns f32(1/lutRMS) of the code values of all states (docs/numerics.md §6).
func InvRMS(values []float32) float32 { return invRMS(values) }

// RefitFactor returns α of docs/numerics.md §6: what the Refit rule multiplies the first scale by at K bits a
// weight, K from 1 to 8.
func RefitFactor(K int) float32 { return refitFactor[K] }
