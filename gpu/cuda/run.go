package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/turbotrellis/turbotrellis/gpu"
)

// CUDA's limits on a grid. Larger ones go in parts.
const (
	maxGridX  = math.MaxInt32
	maxGridYZ = 65535
)

// launchBytes is the size of what follows a kernel's arguments: six uint32.
const launchBytes = 24

// A launch is a dispatch with its parameters laid out as CUDA does: pointers and structs whose sizes are
// multiples of 8 follow each other without gaps.
type launch struct {
	*gpu.Dispatch
	parameters []byte
}

// Run launches in order on one stream and waits.
func (d *device) Run(list ...gpu.Dispatch) (time.Duration, error) {
	const op = "run"
	if err := d.enter(op); err != nil {
		return 0, err
	}
	defer d.mu.RUnlock()
	var held []*object
	defer func() {
		for _, o := range held {
			o.drop()
		}
	}()
	var work []launch
	for i := range list {
		x := &list[i]
		if err := x.Check(d.info); err != nil {
			return 0, err
		}
		var err error
		if held, err = d.hold(x, held); err != nil {
			return 0, err
		}
		l, err := prepare(x)
		if err != nil {
			return 0, err
		}
		if !x.Empty() {
			work = append(work, l)
		}
	}
	if len(work) == 0 {
		return 0, nil
	}
	var milliseconds float32
	err := d.onLane(func(l lane) error {
		if err := d.driver.Record(l.start, l.stream); err != nil {
			return err
		}
		for _, x := range work {
			if err := d.launch(x, l.stream); err != nil {
				return err
			}
		}
		return d.driver.Record(l.end, l.stream)
	}, func(l lane) (err error) {
		milliseconds, err = d.driver.Milliseconds(l.start, l.end)
		return err
	})
	if err != nil {
		return 0, d.failure(op, kernels(work), gpu.ErrFailed, err)
	}
	return time.Duration(float64(milliseconds) * float64(time.Millisecond)), nil
}

// hold keeps the objects of x alive and appends them to held. It fails if one was released, or comes from
// elsewhere.
func (d *device) hold(x *gpu.Dispatch, held []*object) ([]*object, error) {
	bad := func(err error, detail string) error {
		return &gpu.Error{Op: "run", Kernel: x.Pipeline.Name(), Err: err, Detail: detail}
	}
	p, ok := x.Pipeline.(*pipeline)
	if !ok || p.dev != d {
		return held, bad(gpu.ErrInvalid, "the pipeline is another device's")
	}
	if !p.hold() {
		return held, bad(gpu.ErrReleased, "the pipeline")
	}
	held = append(held, &p.object)
	for i := range x.Buffers {
		b, ok := x.Buffers[i].Buffer.(*buffer)
		if !ok || b.dev != d {
			return held, bad(gpu.ErrInvalid, fmt.Sprintf("buffer %d is another device's", i))
		}
		if !b.hold() {
			return held, bad(gpu.ErrReleased, fmt.Sprintf("buffer %d", i))
		}
		held = append(held, &b.object)
	}
	return held, nil
}

// prepare lays out the parameters of x, whose objects are the device's.
func prepare(x *gpu.Dispatch) (launch, error) {
	p := x.Pipeline.(*pipeline)
	bad := func(format string, args ...any) (launch, error) {
		return launch{}, &gpu.Error{Op: "run", Kernel: p.name, Err: gpu.ErrInvalid, Detail: fmt.Sprintf(format, args...)}
	}
	if len(x.ThreadgroupMemory) > 1 {
		return bad("%d slots of threadgroup memory, more than 1", len(x.ThreadgroupMemory))
	}
	if len(x.Args)%8 != 0 {
		return bad("%d bytes of arguments, not a multiple of 8", len(x.Args))
	}
	n := 8*len(x.Buffers) + len(x.Args) + launchBytes
	if p.parameters >= 0 && n != p.parameters {
		return bad("%d buffers and %d bytes of arguments are %d bytes of parameters, the kernel takes %d", len(x.Buffers), len(x.Args), n, p.parameters)
	}
	l := launch{x, make([]byte, 0, n)}
	for _, b := range x.Buffers {
		l.parameters = binary.LittleEndian.AppendUint64(l.parameters, uint64(b.Buffer.(*buffer).at)+uint64(b.Offset))
	}
	l.parameters = append(l.parameters, x.Args...)
	for _, v := range [6]int{0, 0, 0, x.Groups[0], x.Groups[1], x.Groups[2]} {
		l.parameters = binary.LittleEndian.AppendUint32(l.parameters, uint32(v))
	}
	return l, nil
}

// launch launches l, in as many parts as its grid needs.
func (d *device) launch(l launch, s stream) error {
	shared := 0
	for _, n := range l.ThreadgroupMemory {
		shared += n
	}
	origin := l.parameters[len(l.parameters)-launchBytes:]
	for z := 0; z < l.Groups[2]; z += maxGridYZ {
		for y := 0; y < l.Groups[1]; y += maxGridYZ {
			for x := 0; x < l.Groups[0]; x += maxGridX {
				binary.LittleEndian.PutUint32(origin, uint32(x))
				binary.LittleEndian.PutUint32(origin[4:], uint32(y))
				binary.LittleEndian.PutUint32(origin[8:], uint32(z))
				grid := [3]int{min(maxGridX, l.Groups[0]-x), min(maxGridYZ, l.Groups[1]-y), min(maxGridYZ, l.Groups[2]-z)}
				if err := d.driver.Launch(l.Pipeline.(*pipeline).function, grid, l.GroupSize, shared, s, l.parameters); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// kernels names what a list runs, in order, each kernel once.
func kernels(work []launch) string {
	var names []string
	seen := map[string]bool{}
	for _, x := range work {
		if n := x.Pipeline.Name(); !seen[n] {
			seen[n] = true
			names = append(names, n)
		}
	}
	return strings.Join(names, ", ")
}
