package gpu

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
)

type fakeBuffer int

func (b fakeBuffer) Bytes() []byte              { return nil }
func (b fakeBuffer) Upload(int, []byte) error   { return nil }
func (b fakeBuffer) Download(int, []byte) error { return nil }
func (b fakeBuffer) Len() int                   { return int(b) }
func (b fakeBuffer) Release()                   {}

type fakePipeline struct{}

func (fakePipeline) Name() string                 { return "kernel" }
func (fakePipeline) MaxThreads() int              { return 256 }
func (fakePipeline) ExecutionWidth() int          { return 32 }
func (fakePipeline) StaticThreadgroupMemory() int { return 1000 }
func (fakePipeline) Release()                     {}

func TestCheck(t *testing.T) {
	info := Info{MaxThreadgroupMemory: 4096, MaxThreads: [3]int{1024, 1024, 64}}
	good := func() *Dispatch {
		return &Dispatch{
			Pipeline:          fakePipeline{},
			Buffers:           []Binding{{fakeBuffer(8), 0}, {fakeBuffer(8), 7}},
			Args:              make([]byte, MaxArgs),
			ThreadgroupMemory: []int{16, 3072},
			Groups:            [3]int{1 << 20, 0, 3},
			GroupSize:         [3]int{4, 4, 16},
		}
	}
	for _, test := range []struct {
		change func(d *Dispatch)
		want   string
	}{
		{func(d *Dispatch) {}, ""},
		{func(d *Dispatch) { d.Buffers = make([]Binding, 30); fill(d) }, ""},
		{func(d *Dispatch) { d.Buffers = make([]Binding, 31); fill(d); d.Args = nil }, ""},
		{func(d *Dispatch) { d.Buffers, d.Args, d.ThreadgroupMemory = nil, nil, nil }, ""},
		{func(d *Dispatch) { d.ThreadgroupMemory = []int{3088} }, ""},
		{func(d *Dispatch) { d.Groups[0] = math.MaxUint32 / 4 }, ""},
		{func(d *Dispatch) { d.GroupSize = [3]int{256, 1, 1} }, ""},
		{func(d *Dispatch) { d.Pipeline = nil }, "no pipeline"},
		{func(d *Dispatch) { d.Buffers = make([]Binding, 31); fill(d) }, "32 buffers, more than 31"},
		{func(d *Dispatch) { d.Buffers[1].Buffer = nil }, "buffer 1 is nil"},
		{func(d *Dispatch) { d.Buffers[0].Offset = 8 }, "buffer 0: offset 8 outside of 8 bytes"},
		{func(d *Dispatch) { d.Buffers[0].Offset = -1 }, "buffer 0: offset -1 outside of 8 bytes"},
		{func(d *Dispatch) { d.Args = make([]byte, 4096) }, "4096 bytes of arguments, more than 4095"},
		{func(d *Dispatch) { d.ThreadgroupMemory = make([]int, 32) }, "32 threadgroup memory slots, more than 31"},
		{func(d *Dispatch) { d.ThreadgroupMemory[0] = 0 }, "threadgroup memory 0: 0 bytes is not a positive multiple of 16"},
		{func(d *Dispatch) { d.ThreadgroupMemory[1] = 24 }, "threadgroup memory 1: 24 bytes is not a positive multiple of 16"},
		{func(d *Dispatch) { d.ThreadgroupMemory[0] = -16 }, "threadgroup memory 0: -16 bytes is not a positive multiple of 16"},
		{func(d *Dispatch) { d.ThreadgroupMemory[0] = 32 }, "threadgroup memory 1: 3072 bytes where 3064 of 4096 are left"},
		{func(d *Dispatch) { d.ThreadgroupMemory[0] = math.MaxInt &^ 15 }, "threadgroup memory 0: "},
		{func(d *Dispatch) { d.GroupSize[2] = 0 }, "group size [4 4 0]: dimension 2 outside of 1..64"},
		{func(d *Dispatch) { d.GroupSize[2] = 65 }, "group size [4 4 65]: dimension 2 outside of 1..64"},
		{func(d *Dispatch) { d.GroupSize[0] = 5 }, "group size [5 4 16]: more than 256 threads"},
		{func(d *Dispatch) { d.Groups[1] = -1 }, "[1048576 -1 3] groups of [4 4 16]: dimension 1 outside"},
		{func(d *Dispatch) { d.Groups[0] = math.MaxUint32/4 + 1 }, "[1073741824 0 3] groups of [4 4 16]: dimension 0 outside"},
	} {
		d := good()
		test.change(d)
		err := d.Check(info)
		if test.want == "" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		var e *Error
		if !errors.As(err, &e) || e.Err != ErrInvalid || e.Op != "run" || !strings.HasPrefix(e.Detail, test.want) {
			t.Errorf("got %v, want %q", err, test.want)
		}
	}
}

func fill(d *Dispatch) {
	for i := range d.Buffers {
		d.Buffers[i].Buffer = fakeBuffer(1)
	}
}

func TestCheckCopy(t *testing.T) {
	for _, test := range []struct {
		size, offset, n int
		ok              bool
	}{
		{8, 0, 8, true}, {8, 8, 0, true}, {8, 3, 5, true}, {8, 0, 0, true},
		{8, 0, 9, false}, {8, 3, 6, false}, {8, 9, 0, false}, {8, -1, 1, false}, {8, math.MaxInt, 1, false}, {8, math.MinInt, 8, false},
	} {
		if err := CheckCopy("upload", test.size, test.offset, test.n); (err == nil) != test.ok || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

func TestEmpty(t *testing.T) {
	for groups, want := range map[[3]int]bool{{1, 1, 1}: false, {0, 1, 1}: true, {1, 0, 1}: true, {1, 1, 0}: true} {
		if got := (&Dispatch{Groups: groups}).Empty(); got != want {
			t.Errorf("%v: got %v", groups, got)
		}
	}
}

func TestError(t *testing.T) {
	for want, e := range map[string]*Error{
		"close: device is closed":                               {Op: "close", Err: ErrClosed},
		"run k: timed out: why (MTLCommandBufferErrorDomain 2)": {"run", "k", ErrTimeout, "MTLCommandBufferErrorDomain", 2, "why"},
		"open: unavailable: no Metal device":                    {Op: "open", Err: ErrUnavailable, Detail: "no Metal device"},
		"run a, b: invalid argument: buffer 0 is nil":           {Op: "run", Kernel: "a, b", Err: ErrInvalid, Detail: "buffer 0 is nil"},
	} {
		if got := fmt.Errorf("x: %w", e).Error(); got != "x: "+want || !errors.Is(fmt.Errorf("x: %w", e), e.Err) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
