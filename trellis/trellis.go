// Package trellis is the weight codec: bitshift trellis-coded quantization
// with computed codes (QTIP, arXiv:2406.11235), V = 1. It holds the codes, the
// Viterbi encoder with tail-biting, the packed blocks with random access, and
// the coding of rows and matrices. docs/numerics.md §6 is its arithmetic.
//
// A state has L bits. Each weight shifts K new bits, its symbol, into the state
// from below; the state's code value times the row's scale is the weight:
//
//	state_t  = (state_{t-1}·2^K + b_t) mod 2^L
//	weight_t = f(state_t) · scale
//
// A block of T weights is T·K/32 uint32 words. Symbol b_t sits at bit
// (T−1−t)·K, so time runs downwards, and state_t is the L bits that start there
// and wrap around the block:
//
//	bit   0        K                    (T−1)·K
//	     [b_{T−1}][b_{T−2}] …  [b_1]   [b_0]     then b_{T−1} again
//
// The wrap is what tail-biting pays for: the first states of a block take their
// upper bits from its last symbols, and every state can be read on its own.
//
// This is the definition, scalar and straight-line; the faster encoders and
// decoders elsewhere give the same bits. Every function returns the same bits
// on every GOARCH.
package trellis

import (
	"errors"
	"fmt"

	"github.com/turbotrellis/turbotrellis/internal/enum"
	"github.com/turbotrellis/turbotrellis/internal/fault"
)

// What is wrong with an input, by class. The errors returned wrap one of these
// and say more. The first four are codec's of the same names.
var (
	ErrParams        = fault.ErrParams
	ErrShape         = fault.ErrShape
	ErrNonFinite     = fault.ErrNonFinite
	ErrScaleOverflow = fault.ErrScaleOverflow
	ErrIndex         = errors.New("index out of range")
	ErrNotTailBiting = errors.New("states have no packed form")
	ErrSampleRange   = errors.New("sample beyond ±2^60")
)

// ValueError names the input value that could not be coded. Err is
// ErrNonFinite, ErrSampleRange or ErrScaleOverflow; Index counts from the start
// of the slice that was passed, and for ErrScaleOverflow is the row's first
// element.
type ValueError struct {
	Index int
	Value float32
	Err   error
}

func (e *ValueError) Error() string {
	if e.Err == ErrScaleOverflow {
		return fmt.Sprintf("the scale of the row at %d, %v, overflows f16", e.Index, e.Value)
	}
	return fmt.Sprintf("value %d is %v: %v", e.Index, e.Value, e.Err)
}

// Unwrap returns the class.
func (e *ValueError) Unwrap() error { return e.Err }

// Policy says what an encoder stores for data that the format cannot hold. Here
// that is the scale of a row of zeros; package codec has more.
type Policy uint8

const (
	// Finite stores 0, so that the row decodes to exact zeros.
	Finite Policy = iota
	// Compat stores 1, as the implementation that the format comes from does;
	// the row then decodes to the code's values nearest zero.
	Compat
)

var policies = []string{Finite: "finite", Compat: "compat"}

// String returns finite or compat.
func (p Policy) String() string { return enum.String("Policy", policies, int(p)) }

// MarshalText returns what String does, or an error for an unknown policy.
func (p Policy) MarshalText() ([]byte, error) {
	return enum.Marshal("Policy", "policy", policies, int(p))
}

// UnmarshalText reads finite or compat.
func (p *Policy) UnmarshalText(text []byte) error {
	i, err := enum.Unmarshal("policy", policies, text)
	if err == nil {
		*p = Policy(i)
	}
	return err
}

// ScaleRule says how a row's scale is chosen. The format does not depend on it.
type ScaleRule uint8

const (
	// RMS matches the row's root mean square to the code's.
	RMS ScaleRule = iota
	// Refit codes with the RMS scale times a constant for each K, then stores
	// the least-squares scale for the states found.
	Refit
)

var scaleRules = []string{RMS: "rms", Refit: "refit"}

// String returns rms or refit.
func (r ScaleRule) String() string { return enum.String("ScaleRule", scaleRules, int(r)) }

// MarshalText returns what String does, or an error for an unknown rule.
func (r ScaleRule) MarshalText() ([]byte, error) {
	return enum.Marshal("ScaleRule", "scale rule", scaleRules, int(r))
}

// UnmarshalText reads rms or refit.
func (r *ScaleRule) UnmarshalText(text []byte) error {
	i, err := enum.Unmarshal("scale rule", scaleRules, text)
	if err == nil {
		*r = ScaleRule(i)
	}
	return err
}

// maxT bounds the block so that T·K stays far inside an int everywhere.
const maxT = 1 << 24

// Params selects a trellis. The zero value is not valid, so that no field is
// ever filled in silently: start from DefaultParams.
type Params struct {
	L    int  // bits of a state, K+1 to 16
	K    int  // bits of a symbol, that is bits a weight, 1 to 8
	T    int  // weights in a block: a multiple of 32/gcd(32, K)
	Code Code // zero value: OneMAD

	// FreeEnds leaves both ends of a block's path free, where the default is a
	// tail-biting path. Free-ended states cost less and cannot be packed.
	FreeEnds bool

	Policy Policy    // zero value: Finite
	Scale  ScaleRule // zero value: RMS
}

// DefaultParams returns the usual trellis at k bits a weight: L = 12, T = 256,
// code 1mad, tail-biting, finite policy, RMS scale.
func DefaultParams(k int) Params { return Params{L: 12, K: k, T: 256} }

// Validate reports the first field that is out of its range, as an ErrParams
// or, for Code, an ErrUnknownCode.
func (p Params) Validate() error {
	switch {
	case p.K < 1 || p.K > 8:
		return fault.New(ErrParams, "K = %d, want 1 to 8", p.K)
	case p.L <= p.K || p.L > maxL:
		return fault.New(ErrParams, "L = %d with K = %d, want %d to %d", p.L, p.K, p.K+1, maxL)
	case p.T < 1 || p.T > maxT || p.T*p.K%32 != 0:
		return fault.New(ErrParams, "T = %d with K = %d, want a multiple of %d up to %d", p.T, p.K, 32/gcd(32, p.K), maxT)
	case p.Policy > Compat:
		return fault.New(ErrParams, "%v is not a policy", p.Policy)
	case p.Scale > Refit:
		return fault.New(ErrParams, "%v is not a scale rule", p.Scale)
	}
	return p.Code.validate()
}

// ZeroScale returns the stored scale of a row of zeros, as binary16 bits: 0, or
// 1 under Compat.
func (p Params) ZeroScale() uint16 {
	if p.Policy == Compat {
		return 0x3c00
	}
	return 0
}

// BlockWords returns the number of uint32 words of a packed block, T·K/32.
func (p Params) BlockWords() int { return p.T * p.K / 32 }

// stateMask is 2^L − 1.
func (p Params) stateMask() uint32 { return 1<<p.L - 1 }

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
