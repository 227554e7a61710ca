package gpu

import (
	"errors"
	"time"

	"github.com/turbotrellis/turbotrellis/gpu"
)

// discrete is a device whose memory the CPU does not address: buffers of the device that it wraps, without
// their Bytes, but for those of NewShared.
type discrete struct{ gpu.Device }

type privateBuffer struct{ gpu.Buffer }

func (privateBuffer) Bytes() []byte { return nil }

func asDiscrete(d gpu.Device) (gpu.Device, error) { return discrete{d}, nil }

func (d discrete) NewBuffer(n int) (gpu.Buffer, error) {
	b, err := d.Device.NewBuffer(n)
	if err != nil {
		return nil, err
	}
	return privateBuffer{b}, nil
}

func (d discrete) NewShared(n int) (gpu.Buffer, error) { return d.Device.NewShared(n) }

func (d discrete) Run(list ...gpu.Dispatch) (time.Duration, error) {
	own := make([]gpu.Dispatch, len(list))
	for i, x := range list {
		bindings := make([]gpu.Binding, len(x.Buffers))
		for k, at := range x.Buffers {
			if at.Buffer == nil {
				return 0, errors.New("no buffer")
			}
			if p, ok := at.Buffer.(privateBuffer); ok {
				at.Buffer = p.Buffer
			}
			bindings[k] = at
		}
		x.Buffers = bindings
		own[i] = x
	}
	return d.Device.Run(own...)
}
