// Package cuda implements gpu.Device on NVIDIA GPUs. It compiles kernels with NVRTC and launches them through
// the CUDA driver; both libraries are opened at run time, by purego, and nothing is linked. Build with the
// tag cuda on linux/amd64 or linux/arm64.
//
// # Kernels
//
// NewLibrary takes CUDA C++, as shaders.CUDASource prints it. A kernel is an extern "C" function whose
// parameters are a pointer for each buffer, then the arguments of the dispatch, if there are some, by value,
// then six uint32: where this part of the grid begins (x, y, z, in threadgroups) and the size of the whole.
// Args have to be a multiple of 8 bytes. Threadgroup memory, of which there is one slot, is the dynamic
// shared memory of the launch.
//
// # Memory
//
// NewBuffer allocates device memory, whose Bytes are nil. NewShared allocates memory of the process, locked
// and mapped for the device, which reads and writes it over the bus.
//
// # Failures that end a context
//
// A kernel that touches memory that is not there, or runs into the driver's time limit, ends its CUDA
// context. That call and all later ones return gpu.ErrLost until Reset, which asks the driver for a new context.
// The driver may refuse: 580.159.04 opened none after an illegal access, a misaligned one and a trap, for no
// device, until the process had ended. Reset is then ErrLost, too. Shared memory keeps its contents either way.
package cuda

import (
	"errors"
	"fmt"

	"github.com/turbotrellis/turbotrellis/gpu"
)

// Options choose a device. The zero value takes the first that the driver lists, which
// CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER decide.
type Options struct {
	Name   string // only devices of this name, if not empty
	Number int    // the device of this number, from 0, among all or those of the name

	// FlushSubnormals compiles kernels to flush f32 subnormals to zero. No bit of a codec's output depends
	// on it; tests set it.
	FlushSubnormals bool
}

// Open opens the device that o chooses, in a CUDA context of its own. It fails with gpu.ErrUnavailable,
// saying why, where the tag was not set, where the driver or NVRTC is not installed, where there is no
// such device, and where NVRTC does not compile for it.
func Open(o Options) (gpu.Device, error) {
	d, c, err := load()
	if err != nil {
		return nil, unavailable("open", err)
	}
	return open(d, c, userCache(), o)
}

// List describes the devices in the order of their numbers. It fails with gpu.ErrUnavailable like Open; no
// device at all is an empty list.
func List() ([]gpu.Info, error) {
	d, _, err := load()
	if err != nil {
		return nil, unavailable("list", err)
	}
	return list(d)
}

func unavailable(op string, err error) error {
	e := &gpu.Error{Op: op, Err: gpu.ErrUnavailable, Detail: err.Error()}
	var call *callError
	if errors.As(err, &call) {
		e.Domain, e.Code = errorDomain, call.code
	}
	return e
}

func list(d driver) ([]gpu.Info, error) {
	n, err := d.Devices()
	if err != nil {
		return nil, unavailable("list", err)
	}
	var infos []gpu.Info
	for i := range n {
		info, _, err := describe(d, i)
		if err != nil {
			return nil, unavailable("list", err)
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// describe returns what a device says of itself, and its compute capability, 90 for 9.0.
func describe(d driver, dev int) (info gpu.Info, capability int, err error) {
	name, err := d.DeviceName(dev)
	if err != nil {
		return gpu.Info{}, 0, err
	}
	memory, err := d.DeviceMemory(dev)
	if err != nil {
		return gpu.Info{}, 0, err
	}
	at := func(a attribute) int {
		v, e := d.DeviceAttribute(dev, a)
		if err == nil {
			err = e
		}
		return v
	}
	capability = 10*at(attrMajor) + at(attrMinor)
	info = gpu.Info{
		Driver:       driverName,
		Name:         name,
		Architecture: fmt.Sprintf("sm_%d", capability),
		// The bus address, and a bit that keeps it from zero.
		RegistryID:           1<<40 | uint64(at(attrPCIDomain))<<16 | uint64(at(attrPCIBus))<<8 | uint64(at(attrPCIDevice)),
		WorkingSet:           memory,
		MaxBuffer:            memory,
		MaxThreadgroupMemory: at(attrMaxSharedMemory),
		MaxThreads:           [3]int{min(at(attrMaxBlockX), at(attrMaxThreads)), at(attrMaxBlockY), at(attrMaxBlockZ)},
		Cores:                at(attrMultiprocessors),
		MatrixUnits:          capability >= 80, // mma with tf32
	}
	return info, capability, err
}

const driverName = "cuda"

// open opens the device that o chooses.
func open(d driver, c compiler, files cache, o Options) (gpu.Device, error) {
	n, err := d.Devices()
	if err != nil {
		return nil, unavailable("open", err)
	}
	found := 0
	for i := range n {
		info, capability, err := describe(d, i)
		if err != nil {
			return nil, unavailable("open", err)
		}
		if o.Name != "" && o.Name != info.Name {
			continue
		}
		if found != o.Number {
			found++
			continue
		}
		arch, err := architecture(c, capability)
		if err != nil {
			return nil, unavailable("open", fmt.Errorf("%s: %w", info.Name, err))
		}
		context, err := d.NewContext(i)
		if err != nil {
			return nil, unavailable("open", fmt.Errorf("%s: %w", info.Name, err))
		}
		return &device{
			driver: d, compiler: c, files: files, number: i, arch: arch, flush: o.FlushSubnormals, info: info,
			context: context, live: map[*object]struct{}{},
		}, nil
	}
	what := "CUDA devices"
	if o.Name != "" {
		what += fmt.Sprintf(" named %q", o.Name)
	}
	return nil, unavailable("open", fmt.Errorf("no device %d: there are %d %s", o.Number, found, what))
}
