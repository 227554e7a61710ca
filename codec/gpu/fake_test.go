package gpu

import (
	"encoding/binary"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/internal/f32"
	"github.com/turbotrellis/turbotrellis/pack"
	"github.com/turbotrellis/turbotrellis/shaders"
)

// fakeDevice is a device in Go memory that runs the canary, and of other kernels
// remembers the dispatches: planning can be looked at on any platform.
type fakeDevice struct {
	info    gpu.Info
	threads int                             // of every pipeline
	limit   map[string]int                  // of some kernels
	width   int                             // of SIMD-groups
	status  []uint32                        // what encoders find
	private bool                            // buffers other than those of NewShared have no Bytes
	canary  func(i int, word uint32) uint32 // changes a word of the canary's answer
	fail    func(list []gpu.Dispatch) error // of Run
	sources []string                        // compiled
	mu      sync.Mutex                      // of the rest
	ran     []gpu.Dispatch                  // but for the canary
	live    map[*fakeObject]struct{}        // not released
	buffers int                             // made
	lost    error                           // what every call returns until Reset
	resets  int
}

type fakeObject struct {
	d       *fakeDevice
	data    []byte
	name    string
	private bool
	shared  bool // from NewShared
	gone    bool // taken by Reset
}

func newFake() *fakeDevice {
	return &fakeDevice{
		info:    gpu.Info{Driver: "fake", Name: "Fake", MaxBuffer: 1 << 30, WorkingSet: 1 << 30, MaxThreadgroupMemory: 32 << 10, MaxThreads: [3]int{1024, 1024, 64}},
		threads: 1024, width: 32, live: map[*fakeObject]struct{}{},
	}
}

func (d *fakeDevice) open() (gpu.Device, error) { return d, nil }

func (d *fakeDevice) Lost() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lost != nil
}

// Reset takes everything but shared buffers.
func (d *fakeDevice) Reset() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lost = nil
	d.resets++
	for o := range d.live {
		if !o.shared {
			delete(d.live, o)
			o.gone = true
		}
	}
	return nil
}

func (d *fakeDevice) Info() gpu.Info { return d.info }

func (d *fakeDevice) object(name string, n int) *fakeObject {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := &fakeObject{d: d, name: name, data: make([]byte, n)}
	d.live[o] = struct{}{}
	return o
}

func (o *fakeObject) Release() {
	o.d.mu.Lock()
	defer o.d.mu.Unlock()
	delete(o.d.live, o)
	o.data = nil
}

func (o *fakeObject) Bytes() []byte {
	if o.private {
		return nil
	}
	return o.data
}

// usable says what a call with o meets.
func (o *fakeObject) usable(op string) error {
	o.d.mu.Lock()
	defer o.d.mu.Unlock()
	if o.gone {
		return &gpu.Error{Op: op, Err: gpu.ErrReleased}
	}
	return o.d.lost
}

func (o *fakeObject) Upload(offset int, src []byte) error {
	if err := o.usable("upload"); err != nil {
		return err
	}
	if err := gpu.CheckCopy("upload", len(o.data), offset, len(src)); err != nil {
		return err
	}
	copy(o.data[offset:], src)
	return nil
}

func (o *fakeObject) Download(offset int, dst []byte) error {
	if err := o.usable("download"); err != nil {
		return err
	}
	if err := gpu.CheckCopy("download", len(o.data), offset, len(dst)); err != nil {
		return err
	}
	copy(dst, o.data[offset:])
	return nil
}

func (o *fakeObject) Len() int                     { return len(o.data) }
func (o *fakeObject) Name() string                 { return o.name }
func (o *fakeObject) ExecutionWidth() int          { return o.d.width }
func (o *fakeObject) StaticThreadgroupMemory() int { return 0 }

func (o *fakeObject) MaxThreads() int {
	if n, ok := o.d.limit[o.name]; ok {
		return n
	}
	return o.d.threads
}

func (o *fakeObject) Pipeline(name string) (gpu.Pipeline, error) { return o.d.object(name, 0), nil }

func (d *fakeDevice) NewBuffer(n int) (gpu.Buffer, error) {
	if n <= 0 || uint64(n) > d.info.MaxBuffer {
		return nil, &gpu.Error{Op: "new buffer", Err: gpu.ErrOutOfMemory}
	}
	d.mu.Lock()
	d.buffers++
	d.mu.Unlock()
	o := d.object("", n)
	o.private = d.private
	return o, nil
}

func (d *fakeDevice) NewShared(n int) (gpu.Buffer, error) {
	b, err := d.NewBuffer(n)
	if err == nil {
		b.(*fakeObject).private, b.(*fakeObject).shared = false, true
	}
	return b, err
}

// contents is the memory of a buffer, private or not.
func contents(b gpu.Buffer) []byte { return b.(*fakeObject).data }

func (d *fakeDevice) NewLibrary(source string, _ gpu.CompileOptions) (gpu.Library, error) {
	d.mu.Lock()
	d.sources = append(d.sources, source)
	d.mu.Unlock()
	return d.object("library", 0), nil
}

func (d *fakeDevice) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.live)
	return nil
}

func (d *fakeDevice) Run(list ...gpu.Dispatch) (time.Duration, error) {
	for i := range list {
		if err := list[i].Check(d.info); err != nil {
			return 0, err
		}
	}
	if d.fail != nil {
		if err := d.fail(list); err != nil {
			return 0, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lost != nil {
		return 0, d.lost
	}
	for _, x := range list {
		if x.Pipeline.(*fakeObject).gone {
			return 0, &gpu.Error{Op: "run", Err: gpu.ErrReleased}
		}
		for _, b := range x.Buffers {
			if b.Buffer.(*fakeObject).gone {
				return 0, &gpu.Error{Op: "run", Err: gpu.ErrReleased}
			}
		}
	}
	for _, x := range list {
		if x.Pipeline.Name() == "canary" {
			d.answer(contents(x.Buffers[0].Buffer), contents(x.Buffers[1].Buffer))
			continue
		}
		v, _ := shaders.Lookup(x.Pipeline.Name())
		for i, p := range v.Params {
			if p.Name == "status" && d.status != nil && strings.Contains(v.Op, "encode") {
				for j, w := range d.status {
					binary.LittleEndian.PutUint32(contents(x.Buffers[i].Buffer)[4*j:], w)
				}
			}
		}
		d.ran = append(d.ran, x)
	}
	return 0, nil
}

// answer does the canary's arithmetic as docs/numerics.md wants it.
func (d *fakeDevice) answer(in, out []byte) {
	_, args := shaders.CanaryInput()
	put := func(i int, w uint32) {
		if d.canary != nil {
			w = d.canary(i, w)
		}
		binary.LittleEndian.PutUint32(out[4*i:], w)
	}
	at := func(i int) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(in[4*i:])) }
	n := int(args.Count)
	tree := make([]float32, 32)
	for i := range n {
		x, y, z := at(3*i), at(3*i+1), at(3*i+2)
		if i < len(tree) {
			tree[i] = x
		}
		sum := x + z
		product := float32(x * y)
		for j, v := range []float32{sum + z, product + z, x / y, f32.Sqrt(float32(math.Abs(float64(x)))), f32.Rint(x)} {
			put(8*i+j, math.Float32bits(v))
		}
		put(8*i+5, uint32(pack.ToF16(x)))
		put(8*i+6, math.Float32bits(pack.FromF16(uint16(math.Float32bits(x)))))
		put(8*i+7, math.Float32bits(f32.FMA(x, y, z)))
	}
	sum := f32.TreeSum(tree)
	for lane := range 32 {
		put(8*n+lane, math.Float32bits(sum))
	}
	put(8*n+32, uint32(d.width))
	put(8*n+33, 2*args.Subnormal)
}

// decodeArgs reads an argument struct.
func decodeArgs(b []byte, to any) error {
	_, err := binary.Decode(b, binary.LittleEndian, to)
	return err
}
