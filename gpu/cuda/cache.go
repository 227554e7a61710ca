package cuda

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// EnvCache is the environment variable that names the folder for compiled kernels. Unset, it is
// turbotrellis/cuda in the user's cache folder; "off" keeps none.
const EnvCache = "TURBOTRELLIS_CUDA_CACHE"

const (
	cacheBytes  = 256 << 20 // of all entries together
	cacheMagic  = "turbotrellis cuda 1\n"
	cacheSuffix = ".kernels"
	cacheTemp   = "new-" // what the names of entries begin with while they are written
)

// cache keeps compiled kernels in a folder, one file for each key: cacheMagic, the SHA-256 of the image, the
// image. Entries appear whole, by a rename. An entry that does not match its sum counts as absent. Nothing
// that goes wrong in the folder is an error: then kernels are compiled.
type cache struct {
	dir   string // "" keeps nothing
	limit int64  // the oldest entries go when all exceed it
}

func userCache() cache {
	dir := os.Getenv(EnvCache)
	switch dir {
	case "off":
		return cache{}
	case "":
		user, err := os.UserCacheDir()
		if err != nil {
			return cache{}
		}
		dir = filepath.Join(user, "turbotrellis", "cuda")
	}
	return cache{dir, cacheBytes}
}

func (c cache) path(key string) string { return filepath.Join(c.dir, key+cacheSuffix) }

func (c cache) get(key string) ([]byte, bool) {
	if c.dir == "" {
		return nil, false
	}
	data, err := os.ReadFile(c.path(key))
	if err != nil {
		return nil, false
	}
	data, ok := bytes.CutPrefix(data, []byte(cacheMagic))
	if !ok || len(data) <= sha256.Size {
		return nil, false
	}
	image := data[sha256.Size:]
	if sum := sha256.Sum256(image); !bytes.Equal(sum[:], data[:sha256.Size]) {
		return nil, false
	}
	now := time.Now()
	_ = os.Chtimes(c.path(key), now, now) // the oldest is the one not used for longest
	return image, true
}

func (c cache) put(key string, image []byte) {
	if c.dir == "" || os.MkdirAll(c.dir, 0o700) != nil {
		return
	}
	f, err := os.CreateTemp(c.dir, cacheTemp)
	if err != nil {
		return
	}
	sum := sha256.Sum256(image)
	_, err = f.Write(slices.Concat([]byte(cacheMagic), sum[:], image))
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), c.path(key))
	}
	if err != nil {
		os.Remove(f.Name())
		return
	}
	c.prune()
}

// prune removes the oldest entries until the rest is within the limit, and what was left half written.
func (c cache) prune() {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return
	}
	var files []fs.FileInfo
	var total int64
	for _, e := range entries {
		info, err := e.Info()
		switch {
		case err != nil || !info.Mode().IsRegular():
		case strings.HasPrefix(e.Name(), cacheTemp) && time.Since(info.ModTime()) > time.Hour:
			os.Remove(filepath.Join(c.dir, e.Name()))
		case strings.HasSuffix(e.Name(), cacheSuffix):
			files = append(files, info)
			total += info.Size()
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), strings.Compare(a.Name(), b.Name()))
	})
	for _, f := range files {
		if total <= c.limit {
			break
		}
		if os.Remove(filepath.Join(c.dir, f.Name())) == nil {
			total -= f.Size()
		}
	}
}
