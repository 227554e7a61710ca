package metal

import (
	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/trellis"
)

func newTrellis(_ *Backend, p trellis.Params) (codec.Trellis, error) {
	if err := p.Validate(); err != nil {
		return nil, codec.TrellisError("", err)
	}
	return nil, unsupported("the weight codec")
}
