package driver_test

import (
	"context"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/codec/driver"
	"github.com/turbotrellis/turbotrellis/codec/ref"
	"github.com/turbotrellis/turbotrellis/conformance/conftest"
	"github.com/turbotrellis/turbotrellis/trellis"
)

// third is a backend as someone else would write it: all of it is in this file. It takes the reference's arithmetic
// a row at a time, through the driver interfaces, and has nothing but what driver.Backend asks for.
type third struct{ ref ref.Backend }

func (third) Name() string     { return "third" }
func (third) Feed() codec.Feed { return codec.Feed{Bytes: 1 << 10, Calls: 1} }
func (third) Close() error     { return nil }

func (b third) KV(p codec.KVParams) (driver.KV, error) {
	kv, err := b.ref.KV(p)
	return &thirdKV{kv, p}, err
}

func (b third) Trellis(p trellis.Params) (driver.Trellis, error) {
	t, err := b.ref.Trellis(p)
	return &thirdTrellis{t, p}, err
}

type thirdKV struct {
	driver.KV
	p codec.KVParams
}

// row returns row r of x as a tensor.
func row(x codec.Tensor, r int) codec.Tensor {
	at, step := x.RowOffset(r)
	return codec.Tensor{DType: x.DType, Shape: []int{1, x.Dim()}, Stride: []int{0, step}, Data: x.Data[at*x.DType.Size():]}
}

func rows(planes []codec.Plane, r int) [3][]byte {
	var out [3][]byte
	for i, p := range planes {
		out[i] = p.Data[r*p.RowLen:][:p.RowLen]
	}
	return out
}

func (k *thirdKV) keys(x codec.Keys, r int) codec.Keys {
	p := rows(x.Planes(k.p), r)
	return codec.Keys{Shape: []int{1, k.p.HeadDim}, Codes: p[0], Scales: p[1], Zeros: p[2]}
}

func (k *thirdKV) values(x codec.Values, r int) codec.Values {
	p := rows(x.Planes(k.p), r)
	return codec.Values{Shape: []int{1, k.p.ValueHeadDim}, Codes: p[0], Scales: p[1]}
}

// each encodes the rows of x and counts findings over all of them.
func each(x codec.Tensor, encode func(r int, x codec.Tensor) (driver.Found, error)) (driver.Found, error) {
	all := driver.Nothing
	for r := range x.Rows() {
		found, err := encode(r, row(x, r))
		if err != nil {
			return all, err
		}
		if found.NonFinite != driver.None && all.NonFinite == driver.None {
			all.NonFinite = r*x.Dim() + found.NonFinite
		}
		if found.Overflow != driver.None && all.Overflow == driver.None {
			all.Overflow = r*x.Dim() + found.Overflow
		}
	}
	return all, nil
}

func (k *thirdKV) EncodeKeys(dst codec.Keys, x codec.Tensor) (driver.Found, error) {
	return each(x, func(r int, x codec.Tensor) (driver.Found, error) { return k.KV.EncodeKeys(k.keys(dst, r), x) })
}

func (k *thirdKV) EncodeValues(dst codec.Values, x codec.Tensor) (driver.Found, error) {
	return each(x, func(r int, x codec.Tensor) (driver.Found, error) { return k.KV.EncodeValues(k.values(dst, r), x) })
}

func (k *thirdKV) DecodeKeys(dst codec.Tensor, x codec.Keys) (saturated int, err error) {
	for r := range dst.Rows() {
		n, err := k.KV.DecodeKeys(row(dst, r), k.keys(x, r))
		if saturated += n; err != nil {
			return saturated, err
		}
	}
	return saturated, nil
}

func (k *thirdKV) DecodeValues(dst codec.Tensor, x codec.Values, rotated bool) (saturated int, err error) {
	for r := range dst.Rows() {
		n, err := k.KV.DecodeValues(row(dst, r), k.values(x, r), rotated)
		if saturated += n; err != nil {
			return saturated, err
		}
	}
	return saturated, nil
}

func (k *thirdKV) Decode(dstK, dstV codec.Tensor, x codec.Keys, v codec.Values, rotated bool) (int, error) {
	n, err := k.DecodeKeys(dstK, x)
	if err != nil {
		return n, err
	}
	m, err := k.DecodeValues(dstV, v, rotated)
	return n + m, err
}

type thirdTrellis struct {
	driver.Trellis
	p trellis.Params
}

func (t *thirdTrellis) EncodeBlocks(ctx context.Context, states []uint16, x codec.Tensor) (driver.Found, error) {
	return each(x, func(r int, x codec.Tensor) (driver.Found, error) {
		return t.Trellis.EncodeBlocks(ctx, states[r*t.p.T:][:t.p.T], x)
	})
}

func TestThirdBackend(t *testing.T) {
	conftest.Run(t, "third", func() (codec.Backend, error) { return driver.New(third{}), nil })
}
