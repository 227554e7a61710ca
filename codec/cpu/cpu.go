// Package cpu is the backend for CPUs: the bits of codec/ref at the speed of the machine, in portable Go.
//
// The kernels work on blocks of elements whose sizes the compiler knows, replace divisions by comparisons with
// exact thresholds, and choose without branches; docs/performance.md has the figures. Built with
// GOEXPERIMENT=simd for amd64, the hot ones also exist as vector kernels, chosen at run time by what the
// processor has. Every level gives the same bytes.
//
// Rows are shared out among one pool of workers per Backend. Results do not depend on their number.
package cpu

import (
	"fmt"
	"os"
	"runtime"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// Env is the environment variable that names the highest level that Open may use.
const Env = "TURBOTRELLIS_CPU"

// Level is a set of instructions that kernels use. A higher level includes the lower ones.
type Level uint8

const (
	// Scalar is portable Go.
	Scalar Level = 1 + iota
	// AVX2 is 256-bit vectors on amd64.
	AVX2
	// AVX512 is 512-bit vectors on amd64: the extensions F, BW, CD, DQ and VL.
	AVX512
)

var levelNames = [...]string{Scalar: "scalar", AVX2: "avx2", AVX512: "avx512"}

// String returns scalar, avx2 or avx512.
func (l Level) String() string {
	if l >= Scalar && int(l) < len(levelNames) {
		return levelNames[l]
	}
	return fmt.Sprintf("Level(%d)", uint8(l))
}

// ParseLevel returns the level of that name.
func ParseLevel(name string) (Level, error) {
	for l := Scalar; int(l) < len(levelNames); l++ {
		if levelNames[l] == name {
			return l, nil
		}
	}
	return 0, &codec.Error{Err: codec.ErrParams, Index: codec.NoIndex,
		Reason: fmt.Sprintf("unknown level %q of the cpu backend: want scalar, avx2 or avx512", name)}
}

// Levels returns the levels that this program was built with and that this machine runs, lowest first.
func Levels() []Level {
	var ls []Level
	for l := Scalar; l <= best(); l++ {
		ls = append(ls, l)
	}
	return ls
}

// Options configures a Backend.
type Options struct {
	// Workers is the most goroutines that work on one call, the caller's included; 0 means GOMAXPROCS.
	// All calls of a Backend share Workers−1 helpers.
	Workers int
	// Level is the highest level to use; 0 means the best that this machine runs.
	Level Level
}

// Backend is the CPU backend.
type Backend struct {
	codec.Backend
	level   Level
	workers int
}

// New returns the backend. It does not read the environment.
func New(o Options) *Backend {
	d := newDriver(o)
	return &Backend{Backend: driver.New(d), level: d.level, workers: d.pool.size}
}

// Open returns the backend with the highest level that Env allows, all that the machine runs where it is
// unset or empty. It is codec.ErrParams for Env to name no level.
func Open() (*Backend, error) {
	var o Options
	if name := os.Getenv(Env); name != "" {
		l, err := ParseLevel(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", Env, err)
		}
		o.Level = l
	}
	return New(o), nil
}

// Level returns the level of the kernels.
func (b *Backend) Level() Level { return b.level }

// Workers returns the most goroutines that work on one call.
func (b *Backend) Workers() int { return b.workers }

// backend implements driver.Backend.
type backend struct {
	level    Level
	pool     *pool
	products *productKernels // or nil
}

func newDriver(o Options) *backend {
	level := best()
	if o.Level != 0 {
		level = min(level, o.Level)
	}
	n := o.Workers
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
	}
	b := &backend{level, newPool(n), productKernelsFor(level)}
	// Where Close is not called, the helpers end when neither the backend nor a codec of it is left.
	runtime.AddCleanup(b, (*pool).stop, b.pool)
	return b
}

func (*backend) Name() string { return "cpu" }

// Feed asks for calls large enough to be shared out, one after the other.
func (b *backend) Feed() codec.Feed { return codec.Feed{Bytes: b.pool.size << 20, Calls: 1} }

func (b *backend) KV(p codec.KVParams) (driver.KV, error) { return newKV(b, p) }

func (b *backend) Trellis(p trellis.Params) (driver.Trellis, error) { return newTrellis(b, p) }

func (b *backend) Close() error {
	b.pool.stop()
	return nil
}
