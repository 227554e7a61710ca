package atomicfile

import "golang.org/x/sys/unix"

func renameNew(from, to string) error {
	return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
}

func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

// mounted reports whether the kernel says that path is the root of a mount, bind mounts included.
func mounted(path string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &st)
	return err == nil && st.Attributes_mask&st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
