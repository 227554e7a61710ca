package cuda

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"

	"github.com/turbotrellis/turbotrellis/gpu"
)

// architecture returns the value of -arch for a device of compute capability cc (90 is 9.0): its machine
// code, or where the compiler does not know it, PTX of the latest that it knows, which the driver compiles.
func architecture(c compiler, cc int) (string, error) {
	known := c.Architectures()
	if slices.Contains(known, cc) {
		return fmt.Sprintf("sm_%d", cc), nil
	}
	best := 0
	for _, a := range known {
		if a < cc {
			best = max(best, a)
		}
	}
	if best == 0 {
		major, minor := c.Version()
		return "", fmt.Errorf("NVRTC %d.%d does not compile for compute capability %d.%d", major, minor, cc/10, cc%10)
	}
	return fmt.Sprintf("compute_%d", best), nil
}

// compileOptions returns NVRTC's options: those of shaders/cuda.h, and no cache. NVRTC's own cache on
// disk, which is there from 12.9 on, gives code compiled with one -ftz or -prec-div for another (13.0.88).
func compileOptions(c compiler, arch string, flush bool, o gpu.CompileOptions) []string {
	options := []string{"-arch=" + arch, "-std=c++20", "-default-device"}
	if o.FastMath {
		options = append(options, "-use_fast_math", "-D__FAST_MATH__=1")
	} else {
		options = append(options, "-fmad=false", "-prec-div=true", "-prec-sqrt=true", fmt.Sprintf("-ftz=%t", flush))
	}
	if major, minor := c.Version(); major > 12 || major == 12 && minor >= 9 {
		options = append(options, "-no-cache")
	}
	return options
}

// place is how NVRTC names one, file(line); elsewhere it is file:line.
var place = regexp.MustCompile(`(?m)^(\S+)\((\d+)\): `)

// compile compiles source, or takes what was compiled from it before.
func compile(c compiler, files cache, source string, options []string) ([]byte, error) {
	key := cacheKey(c, source, options)
	if image, ok := files.get(key); ok {
		return image, nil
	}
	image, log, err := c.Compile(source, options)
	if err != nil {
		return nil, &gpu.Error{Op: "compile", Err: gpu.ErrCompile, Detail: fmt.Sprintf("NVRTC: %v\n%s", err, place.ReplaceAllString(log, "$1:$2: "))}
	}
	files.put(key, image)
	return image, nil
}

func cacheKey(c compiler, source string, options []string) string {
	major, minor := c.Version()
	sum := sha256.Sum256(fmt.Appendf(nil, "NVRTC %d.%d %q %q\n%s", major, minor, c.Build(), options, source))
	return hex.EncodeToString(sum[:])
}
