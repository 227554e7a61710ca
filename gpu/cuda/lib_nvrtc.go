//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// EnvNVRTC is the environment variable that names the file of the NVRTC to use. Unset, it is looked for by
// its usual names, in /usr/local/cuda and among the packages of Python.
const EnvNVRTC = "TURBOTRELLIS_NVRTC"

// compilers are the majors of NVRTC that take the options of compileOptions.
var compilers = []int{13, 12}

// nvrtc has the addresses of NVRTC's functions.
type nvrtc struct {
	major, minor  int
	build         string
	architectures []int

	nvrtcSymbols
}

type nvrtcSymbols struct {
	NVRTCVersion      uintptr `symbol:"nvrtcVersion"`
	GetErrorString    uintptr `symbol:"nvrtcGetErrorString"`
	NumSupportedArchs uintptr `symbol:"nvrtcGetNumSupportedArchs"`
	SupportedArchs    uintptr `symbol:"nvrtcGetSupportedArchs"`
	CreateProgram     uintptr `symbol:"nvrtcCreateProgram"`
	DestroyProgram    uintptr `symbol:"nvrtcDestroyProgram"`
	CompileProgram    uintptr `symbol:"nvrtcCompileProgram"`
	LogSize           uintptr `symbol:"nvrtcGetProgramLogSize"`
	Log               uintptr `symbol:"nvrtcGetProgramLog"`
	CUBINSize         uintptr `symbol:"nvrtcGetCUBINSize"`
	CUBIN             uintptr `symbol:"nvrtcGetCUBIN"`
	PTXSize           uintptr `symbol:"nvrtcGetPTXSize"`
	PTX               uintptr `symbol:"nvrtcGetPTX"`
}

// loadedCompiler is the NVRTC of this process.
var loadedCompiler struct {
	mu sync.Mutex
	c  *nvrtc
}

// loadCompiler opens NVRTC, of the major given or an earlier one: a driver does not load what a later
// CUDA compiled.
func loadCompiler(major int) (compiler, error) {
	loadedCompiler.mu.Lock()
	defer loadedCompiler.mu.Unlock()
	if loadedCompiler.c != nil {
		return loadedCompiler.c, nil
	}
	var reasons []error
	for _, name := range nvrtcNames(major) {
		c, err := openCompiler(name)
		if err == nil && c.major > major {
			err = fmt.Errorf("%s: NVRTC %d.%d is later than the driver's CUDA %d", name, c.major, c.minor, major)
		}
		if err == nil {
			loadedCompiler.c = c
			return c, nil
		}
		reasons = append(reasons, err)
	}
	return nil, fmt.Errorf("no NVRTC for CUDA %d: %w", major, errors.Join(reasons...))
}

// nvrtcNames are what to try, in order: the library that EnvNVRTC names and no other, or names that the
// loader knows and files that are there.
func nvrtcNames(major int) []string {
	if name := os.Getenv(EnvNVRTC); name != "" {
		return []string{name}
	}
	var names, python []string
	for _, env := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if dir := os.Getenv(env); dir != "" {
			python = append(python, dir)
		}
	}
	if path, err := exec.LookPath("python3"); err == nil {
		python = append(python, filepath.Dir(filepath.Dir(path)))
	}
	if home, err := os.UserHomeDir(); err == nil {
		python = append(python, filepath.Join(home, ".local"))
	}
	python = append(python, "/usr/local", "/usr")
	for _, m := range compilers {
		if m > major {
			continue
		}
		file := fmt.Sprintf("libnvrtc.so.%d", m)
		names = append(names, file)
		for _, pattern := range []string{"/usr/local/cuda/lib64", fmt.Sprintf("/usr/local/cuda-%d*/lib64", m)} {
			found, _ := filepath.Glob(filepath.Join(pattern, file))
			names = append(names, found...)
		}
		for _, dir := range python {
			for _, pattern := range []string{"lib", "lib/python3*/site-packages/nvidia/*/lib", "lib/python3*/dist-packages/nvidia/*/lib"} {
				found, _ := filepath.Glob(filepath.Join(dir, pattern, file))
				names = append(names, found...)
			}
		}
	}
	return names
}

func openCompiler(name string) (*nvrtc, error) {
	if filepath.IsAbs(name) {
		// Its other half, which the loader does not look for beside it.
		builtins, _ := filepath.Glob(filepath.Join(filepath.Dir(name), "libnvrtc-builtins.so.*"))
		for _, b := range builtins {
			_, _ = dlopen(b)
		}
	}
	handle, err := dlopen(name)
	if err != nil {
		return nil, err
	}
	n := &nvrtc{}
	if err := symbols(handle, &n.nvrtcSymbols); err != nil {
		return nil, err
	}
	var major, minor int32
	if err := n.call("nvrtcVersion", n.NVRTCVersion, uintptr(unsafe.Pointer(&major)), uintptr(unsafe.Pointer(&minor))); err != nil {
		return nil, err
	}
	n.major, n.minor = int(major), int(minor)
	var count int32
	if err := n.call("nvrtcGetNumSupportedArchs", n.NumSupportedArchs, uintptr(unsafe.Pointer(&count))); err != nil {
		return nil, err
	}
	archs := make([]int32, max(count, 1))
	if err := n.call("nvrtcGetSupportedArchs", n.SupportedArchs, uintptr(unsafe.Pointer(&archs[0]))); err != nil {
		return nil, err
	}
	for _, a := range archs[:count] {
		n.architectures = append(n.architectures, int(a))
	}
	n.build = build()
	return n, nil
}

// build tells the file that NVRTC was loaded from: nvrtcVersion does not tell one release of a minor version
// from another. The beginning and the end of the file hold its build's identity and sizes.
func build() string {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(maps)) {
		_, path, ok := strings.Cut(strings.TrimSpace(line), "/")
		if !ok || !strings.HasPrefix(filepath.Base(path), "libnvrtc.so") {
			continue
		}
		if id, err := fileIdentity("/" + path); err == nil {
			return id
		}
	}
	return ""
}

func fileIdentity(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	const part = 64 << 10
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, at := range []int64{0, max(0, size-part)} {
		if _, err := io.Copy(h, io.NewSectionReader(f, at, part)); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d bytes, %x", size, h.Sum(nil)[:8]), nil
}

func (n *nvrtc) Version() (major, minor int) { return n.major, n.minor }
func (n *nvrtc) Build() string               { return n.build }
func (n *nvrtc) Architectures() []int        { return n.architectures }

// call calls a function of NVRTC.
//
//go:uintptrescapes
func (n *nvrtc) call(name string, fn uintptr, args ...uintptr) error {
	r, _, _ := purego.SyscallN(fn, args...)
	if int32(r) == 0 {
		return nil
	}
	text, _, _ := purego.SyscallN(n.GetErrorString, uintptr(uint32(r)))
	return fmt.Errorf("%s: %s", name, goString(*(**byte)(unsafe.Pointer(&text))))
}

func (n *nvrtc) Compile(source string, options []string) (image []byte, log string, err error) {
	var program uintptr
	if err := n.call("nvrtcCreateProgram", n.CreateProgram, uintptr(unsafe.Pointer(&program)),
		uintptr(unsafe.Pointer(cString(source))), uintptr(unsafe.Pointer(cString("program_source"))), 0, 0, 0); err != nil {
		return nil, "", err
	}
	defer func() {
		err = errors.Join(err, n.call("nvrtcDestroyProgram", n.DestroyProgram, uintptr(unsafe.Pointer(&program))))
	}()
	list := make([]*byte, len(options))
	for i, o := range options {
		list[i] = cString(o)
	}
	failed := n.call("nvrtcCompileProgram", n.CompileProgram, program, uintptr(len(list)), uintptr(unsafe.Pointer(unsafe.SliceData(list))))
	text, err := n.read("nvrtcGetProgramLog", program, n.LogSize, n.Log)
	log = strings.TrimRight(string(text), "\x00\n")
	if failed != nil || err != nil {
		return nil, log, errors.Join(failed, err)
	}
	if slices.ContainsFunc(options, func(o string) bool { return strings.HasPrefix(o, "-arch=compute_") }) {
		image, err = n.read("nvrtcGetPTX", program, n.PTXSize, n.PTX)
	} else {
		image, err = n.read("nvrtcGetCUBIN", program, n.CUBINSize, n.CUBIN)
	}
	return image, log, err
}

// read calls a pair of functions that give the size of a result and the result.
func (n *nvrtc) read(name string, program, size, get uintptr) ([]byte, error) {
	var bytes uint64
	if err := n.call(name+"Size", size, program, uintptr(unsafe.Pointer(&bytes))); err != nil || bytes == 0 {
		return nil, err
	}
	b := make([]byte, bytes)
	return b, n.call(name, get, program, uintptr(unsafe.Pointer(&b[0])))
}
