package vectortest

import (
	"strings"
	"testing"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/internal/vectors"
)

// runRowCodes compares every row code of one head dimension, as keys and as values, and the centre of rows 4 to 15.
func runRowCodes(t *testing.T, b codec.Backend, base string, take func(string) vectors.Tensor) {
	x := tensor(t, take(base+".x"))
	rows, d := x.Shape[0], x.Dim()
	centre := codec.Centre{Mean: tensor(t, take(base+".centre.mu")), Gain: tensor(t, take(base+".centre.gain"))}
	usual, err := codec.NewCentre(codec.Tensor{DType: x.DType, Shape: []int{rows - 4, d}, Data: x.Data[4*d*4:]})
	check(t, err)
	same(t, "mean", usual.Mean.Data, take(base+".centre.mu"))
	same(t, "gain", usual.Gain.Data, take(base+".centre.gain"))
	for _, f := range []codec.Format{codec.R2, codec.R3, codec.R4, codec.R5, codec.T2, codec.T3, codec.T4} {
		name := base + "." + strings.NewReplacer("r", "levels", "t", "trellis").Replace(f.String())
		for _, centred := range []bool{false, true} {
			if centred {
				name += ".centred"
			}
			kv, err := b.KV(codec.KVParams{HeadDim: d, Keys: f, Values: f, CentreKeys: centred, CentreValues: centred})
			served(t, err)
			var k codec.Keys
			var v codec.Values
			if centred {
				k.Centre, v.Centre = centre, centre
			}
			check(t, kv.EncodeKeys(&k, x))
			check(t, kv.EncodeValues(&v, x))
			same(t, name+".scales of keys", k.Scales, take(name+".scales"))
			same(t, name+".codes of keys", k.Codes, take(name+".codes"))
			same(t, name+".scales of values", v.Scales, take(name+".scales"))
			same(t, name+".codes of values", v.Codes, take(name+".codes"))
			outK, outV := codec.NewTensor(codec.F32, x.Shape...), codec.NewTensor(codec.F32, x.Shape...)
			check(t, kv.Decode(outK, outV, k, v))
			same(t, name+", keys", outK.Data, take(name+".decoded"))
			same(t, name+", values", outV.Data, take(name+".decoded"))
			if !centred {
				check(t, kv.DecodeRotated(outK, outV, k, v))
				same(t, name+", rotated keys", outK.Data, take(name+".rotated"))
				same(t, name+", rotated values", outV.Data, take(name+".rotated"))
			}
		}
	}
}
