package atomicfile

import "golang.org/x/sys/unix"

func renameNew(from, to string) error {
	return unix.RenamexNp(from, to, unix.RENAME_EXCL)
}

func exchange(a, b string) error {
	return unix.RenamexNp(a, b, unix.RENAME_SWAP)
}

func mounted(string) bool { return false }
