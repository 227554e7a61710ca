package snapshot

import (
	"regexp"
	"strings"

	"github.com/turbotrellis/turbotrellis/internal/safetensors"
)

// The names in a prompt cache of mlx-lm (save_prompt_cache): tensor N.0 has the keys of layer N, N.1 its values, and
// the metadata 1.N names the class of its cache.
var (
	promptKeyNames   = regexp.MustCompile(`^\d+\.(0)$`)
	promptValueNames = regexp.MustCompile(`^\d+\.(1)$`)
)

// promptClasses are the classes of caches whose first two arrays are keys and values of floating point.
var promptClasses = map[string]bool{"KVCache": true, "RotatingKVCache": true, "ConcatenateKVCache": true, "ChunkedKVCache": true}

// isPromptCache reports whether f is a prompt cache with a layer of keys and values.
func isPromptCache(f *safetensors.File) bool {
	for key, class := range f.Metadata() {
		if n, ok := strings.CutPrefix(key, "1."); ok && promptClasses[class] {
			_, keys := f.Lookup(n + ".0")
			_, values := f.Lookup(n + ".1")
			if keys && values {
				return true
			}
		}
	}
	return false
}

// promptLayer reports whether the tensors of a prompt cache whose names begin with before, the layer's number and a
// dot, are keys and values.
func promptLayer(f *safetensors.File, before string) bool {
	return promptClasses[f.Metadata()["1."+strings.TrimSuffix(before, ".")]]
}
