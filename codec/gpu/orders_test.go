//go:build metal && hostmetal

package gpu

import (
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/conformance"
	"github.com/turbotrellis/turbotrellis/conformance/conftest"
)

// The short form of the conformance suite under 2 orders of threads, 16 with
// TURBOTRELLIS_LONG, with subnormals flushed in every other one. TestOrders runs
// every kernel in more.
func TestConformanceOrders(t *testing.T) {
	b := start(t, Options{})
	defer hostmetal.seed(0)
	defer hostmetal.ftz(1)
	orders := 2
	if long() {
		orders = 16
	}
	cases := 0
	for seed := range orders {
		hostmetal.seed(uint64(seed + 1))
		hostmetal.ftz(int32(seed % 2))
		r := conformance.Run(t.Context(), b, conformance.Options{Form: conformance.Short, Complete: true})
		if err := r.Err(); err != nil {
			t.Errorf("order %d, flushing %t: %v", seed+1, seed%2 == 1, err)
		}
		cases += r.Cases
	}
	t.Logf("%d cases in %d orders", cases, orders)
}

// The short form again, and the normal one with TURBOTRELLIS_LONG, on tensors and packed data in the device's own memory: at the
// alignment and with the strides that each case has.
func TestConformanceOwned(t *testing.T) {
	if !long() {
		t.Setenv(conftest.EnvForm, conformance.Short.String())
	}
	var s spy
	b := start(t, Options{exact: true}, s.wrap)
	conftest.Run(t, deviceName, func() (codec.Backend, error) { return owner{b}, nil })
	if s.kernels["copy_1"] == 0 {
		t.Error("the suite does not meet copy_1")
	}
	if n := hostmetal.misuses(); n != 0 {
		t.Error(hostmetal.last())
	}
}

// owner is a backend that moves the operands of each call into its memory first.
type owner struct{ *Backend }

func (o owner) KV(p codec.KVParams) (codec.KV, error) {
	kv, err := o.Backend.KV(p)
	if err != nil {
		return nil, err
	}
	return ownerKV{kv, o.Backend}, nil
}

type ownerKV struct {
	codec.KV
	b *Backend
}

// moved is a call's operands in the backend's memory.
type moved struct {
	b    *Backend
	all  [][]byte
	back []func()
}

// bytes moves data, at the same alignment.
func (m *moved) bytes(data []byte, output bool) []byte {
	if len(data) == 0 {
		return data
	}
	skew := int(address(data) % 16)
	all, err := m.b.Alloc(skew + len(data))
	if err != nil {
		panic(err)
	}
	m.all = append(m.all, all)
	copy(all[skew:], data)
	if output {
		m.back = append(m.back, func() { copy(data, all[skew:]) })
	}
	return all[skew:]
}

func (m *moved) tensor(t codec.Tensor, output bool) codec.Tensor {
	t.Data = m.bytes(t.Data, output)
	return t
}

func (m *moved) keys(k codec.Keys) codec.Keys {
	k.Codes, k.Scales, k.Zeros = m.bytes(k.Codes, false), m.bytes(k.Scales, false), m.bytes(k.Zeros, false)
	return k
}

func (m *moved) values(v codec.Values) codec.Values {
	v.Codes, v.Scales = m.bytes(v.Codes, false), m.bytes(v.Scales, false)
	return v
}

// room moves the memory of a packed operand: what was given, its capacity whole.
// It goes back as long as what was made of it.
func (m *moved) room(dst *[]byte) {
	given := *dst
	whole := m.bytes(given[:cap(given)], false)
	if len(whole) > 0 {
		*dst = whole[:len(given):len(whole)]
	}
	m.back = append(m.back, func() {
		made := *dst
		if cap(given) >= len(made) {
			*dst = given[:len(made)]
			copy(*dst, made)
		} else {
			*dst = append([]byte(nil), made...)
		}
	})
}

// do runs f and moves the outputs back.
func (m *moved) do(f func() error) error {
	err := f()
	for _, g := range m.back {
		g()
	}
	for _, all := range m.all {
		if err := m.b.Free(all); err != nil {
			panic(err)
		}
	}
	return err
}

func (o ownerKV) EncodeKeys(dst *codec.Keys, x codec.Tensor) error {
	m := moved{b: o.b}
	for _, d := range []*[]byte{&dst.Codes, &dst.Scales, &dst.Zeros} {
		m.room(d)
	}
	return m.do(func() error { return o.KV.EncodeKeys(dst, m.tensor(x, false)) })
}

func (o ownerKV) EncodeValues(dst *codec.Values, x codec.Tensor) error {
	m := moved{b: o.b}
	for _, d := range []*[]byte{&dst.Codes, &dst.Scales} {
		m.room(d)
	}
	return m.do(func() error { return o.KV.EncodeValues(dst, m.tensor(x, false)) })
}

func (o ownerKV) DecodeKeys(dst codec.Tensor, k codec.Keys) error {
	m := moved{b: o.b}
	return m.do(func() error { return o.KV.DecodeKeys(m.tensor(dst, true), m.keys(k)) })
}

func (o ownerKV) DecodeValues(dst codec.Tensor, v codec.Values) error {
	m := moved{b: o.b}
	return m.do(func() error { return o.KV.DecodeValues(m.tensor(dst, true), m.values(v)) })
}

func (o ownerKV) DecodeValuesRotated(dst codec.Tensor, v codec.Values) error {
	m := moved{b: o.b}
	return m.do(func() error { return o.KV.DecodeValuesRotated(m.tensor(dst, true), m.values(v)) })
}

func (o ownerKV) Decode(dstK, dstV codec.Tensor, k codec.Keys, v codec.Values) error {
	m := moved{b: o.b}
	return m.do(func() error { return o.KV.Decode(m.tensor(dstK, true), m.tensor(dstV, true), m.keys(k), m.values(v)) })
}

func (o ownerKV) DecodeRotated(dstK, dstV codec.Tensor, k codec.Keys, v codec.Values) error {
	m := moved{b: o.b}
	return m.do(func() error {
		return o.KV.DecodeRotated(m.tensor(dstK, true), m.tensor(dstV, true), m.keys(k), m.values(v))
	})
}

func (o ownerKV) Unrotate(dst, x codec.Tensor) error {
	m := moved{b: o.b}
	to := m.tensor(dst, true)
	from := to
	if len(x.Data) == 0 || len(dst.Data) == 0 || address(x.Data) != address(dst.Data) { // else in place
		from = m.tensor(x, false)
	}
	return m.do(func() error { return o.KV.Unrotate(to, from) })
}
