//go:build !(darwin || linux)

package atomicfile

import "errors"

func renameNew(_, _ string) error { return errors.ErrUnsupported }

func exchange(_, _ string) error { return errors.ErrUnsupported }

func mounted(string) bool { return false }
