package gpu

import (
	"fmt"
	"math"
	"slices"

	"github.com/turbotrellis/turbotrellis/codec"
	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
)

// copiesPerRun bounds the dispatches of one command buffer.
const copiesPerRun = 4096

// Copy copies runs of bytes within memory from Alloc, with kernels that the device runs in the order of the list. No
// copy may read what another of the same call writes. Memory from elsewhere is codec.ErrShape; nothing has been
// copied then. It returns codec.ErrClosed after Close.
func (b *Backend) Copy(list ...codec.RowCopy) error {
	e := b.engine
	if e.memory.isClosed() {
		return e.closed()
	}
	j := e.newJob()
	defer j.release()
	for i, c := range list {
		err := c.Validate()
		if err == nil && c.Rows > 0 && c.Len > 0 {
			err = j.copyRows(c)
		}
		if err != nil {
			return e.failed(fmt.Errorf("copy %d of %d: %w", i, len(list), err))
		}
	}
	for part := range slices.Chunk(j.list, copiesPerRun) {
		if _, err := e.dev.Run(part...); err != nil {
			return e.failed(err)
		}
	}
	return nil
}

// copyRows adds the dispatch of c: elements are as large as every address allows.
func (j *job) copyRows(c codec.RowCopy) error {
	dst, to, ok := j.e.memory.find(c.Dst)
	src, from, there := j.e.memory.find(c.Src)
	if !ok || !there {
		return &codec.Error{Err: codec.ErrShape, Tensor: "copy", Index: codec.NoIndex, Reason: "not within memory of this backend"}
	}
	size := 4
	for all := to | from | c.Len | c.DstStep | c.SrcStep; all%size != 0; {
		size /= 2
	}
	k, err := j.e.kernels.pick(need{op: "copy", size: size})
	if err != nil {
		return err
	}
	x := shaders.View{Base: int64(from / size), S2: int64(c.SrcStep / size), S3: 1}
	y := shaders.View{Base: int64(to / size), S2: int64(c.DstStep / size), S3: 1}
	if uint64(c.Len/size) > math.MaxUint32 || uint64(c.Rows) > math.MaxUint32 {
		return fmt.Errorf("%d runs of %d bytes", c.Rows, c.Len)
	}
	args := shaders.CopyArgs{X: x, Y: y, N1: 1, N2: uint32(c.Rows), Rows: uint32(c.Rows), Dim: uint32(c.Len / size)}
	j.add(k, c.Rows, shaders.ElementGrid(c.Len/size, c.Rows, k.pipeline.MaxThreads()), 0, &args, gpu.Binding{Buffer: src}, gpu.Binding{Buffer: dst})
	return nil
}
