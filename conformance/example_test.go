package conformance_test

import (
	"context"
	"fmt"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/conformance"
)

// mine is a backend under test: the reference, but that Unrotate is off by a
// sign.
type mine struct{ ref.Backend }

func (mine) Name() string { return "mine" }

func (b mine) KV(p codec.KVParams) (driver.KV, error) {
	kv, err := b.Backend.KV(p)
	return mineKV{kv}, err
}

type mineKV struct{ driver.KV }

func (k mineKV) Unrotate(dst, x codec.Tensor) (saturated int, err error) {
	saturated, err = k.KV.Unrotate(dst, x)
	dst.Data[dst.DType.Size()-1] ^= 0x80 // where a little-endian float has its sign
	return saturated, err
}

// A program checks a backend where it runs. In a test, conftest.Run does the
// same in one line.
func ExampleRun() {
	report := conformance.Run(context.Background(), driver.New(mine{}), conformance.Options{
		Filter: "Unrotate(vd=64,dtype=f32,layout=dense,data=normal,in-place=false)",
	})
	fmt.Println(report.Cases, "case,", report.Failed, "failed")
	fmt.Println(report.Err() != nil)
	fmt.Println(report.Failures[0].Operand, report.Failures[0].Index, report.Failures[0].Stage)
	// Output:
	// 1 case, 1 failed
	// true
	// dst values 0 unrotate
}
