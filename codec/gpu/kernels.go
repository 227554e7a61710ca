package gpu

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/turbotrellis/turbotrellis/gpu"
	"github.com/turbotrellis/turbotrellis/shaders"
)

// simdWidth is the SIMD-group that every kernel is written for.
const simdWidth = 32

// kernels compiles a kernel when it is first needed, and keeps its pipeline. Different kernels compile at the same
// time.
type kernels struct {
	dev       gpu.Device
	info      gpu.Info
	source    func(kernels ...shaders.Variant) string
	families  bool              // compile a whole family when one of it is needed
	libraries lazy[gpu.Library] // families, by name
	pipelines lazy[gpu.Pipeline]
}

// reset forgets every pipeline: the device has lost them.
func (k *kernels) reset() {
	k.libraries.reset()
	k.pipelines.reset()
}

// A kernel is a variant ready for dispatch.
type kernel struct {
	shaders.Variant
	pipeline gpu.Pipeline
	declined string // why more special ones were passed over
	product  string // of products, the order and the type of the weights
}

func (k *kernels) get(v shaders.Variant) (kernel, error) {
	p, err := k.pipelines.get(v.Name, func() (gpu.Pipeline, error) { return k.build(v) })
	return kernel{Variant: v, pipeline: p}, err
}

// build compiles a kernel: alone, or with its family.
func (k *kernels) build(v shaders.Variant) (gpu.Pipeline, error) {
	if k.families {
		l, err := k.libraries.get(v.Family, func() (gpu.Library, error) { return k.compile(shaders.Family(v.Family)...) })
		if err != nil {
			return nil, err
		}
		return l.Pipeline(v.Name)
	}
	l, err := k.compile(v)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	return l.Pipeline(v.Name)
}

func (k *kernels) compile(list ...shaders.Variant) (gpu.Library, error) {
	source := k.source(list...)
	if !strings.Contains(source, layout()) {
		return nil, fmt.Errorf("%s and its family have another version of the argument structs than this program", list[0].Name)
	}
	return k.dev.NewLibrary(source, gpu.CompileOptions{})
}

// named returns the kernel of that name.
func (k *kernels) named(name string) (kernel, error) {
	for _, v := range variants() {
		if v.Name == name {
			return k.get(v)
		}
	}
	return kernel{}, fmt.Errorf("%w named %s", errNoKernel, name)
}

var (
	variants = sync.OnceValue(shaders.Variants)
	layout   = sync.OnceValue(shaders.Layout)
)

var errNoKernel = errors.New("no kernel")

// wholeSIMD declines a kernel that the device cannot run in whole SIMD-groups.
func wholeSIMD(k kernel) error {
	switch {
	case k.pipeline.ExecutionWidth() != simdWidth:
		return fmt.Errorf("SIMD-groups of %d threads", k.pipeline.ExecutionWidth())
	case k.pipeline.MaxThreads() < simdWidth:
		return fmt.Errorf("threadgroups of %d threads", k.pipeline.MaxThreads())
	}
	return nil
}

// launchRow lays a kernel that was picked for it over n rows.
func (e *engine) launchRow(k kernel, dim, n int) shaders.RowPlan {
	if k.Launch == shaders.Lanes {
		return shaders.RowPlan{Grid: shaders.LaneGrid(n, k.pipeline.MaxThreads())}
	}
	l, err := shaders.RowLaunch(dim, n, k.pipeline.MaxThreads(), e.kernels.room(k))
	if err != nil {
		panic(errors.Join(errors.New("codec/gpu: launch of an accepted kernel"), err))
	}
	return l
}

// wide reports, as the kernels read it, whether four elements can be stored at once.
func wide(v shaders.View) uint32 {
	if v.S3 == 1 && (v.Base|v.S0|v.S1|v.S2)&3 == 0 {
		return 1
	}
	return 0
}
