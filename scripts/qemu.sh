#!/bin/sh
# Runs the tests of the packages that define bytes on other architectures under
# qemu-user: little-endian with fused multiply-adds, and big-endian. Their
# expected values are the same files and constants as everywhere.
# qemu.sh [arch…]: arm64 and s390x unless told otherwise.
set -eu
cd "$(dirname "$0")/.."
packages="./pack ./hadamard ./lloydmax/... ./affine ./internal/f32 ./internal/threefry ./internal/safetensors ./codec ./codec/ref ./kvcache"
[ $# -gt 0 ] || set -- arm64 s390x
for arch in "$@"; do
	case $arch in
	arm64) qemu=qemu-aarch64-static ;;
	386) qemu=qemu-i386-static ;;
	*) qemu=qemu-$arch-static ;;
	esac
	if ! command -v "$qemu" >/dev/null; then
		echo "qemu: $qemu is not installed (Debian: qemu-user-static)" >&2
		exit 1
	fi
	echo "qemu: $arch"
	GOARCH=$arch CGO_ENABLED=0 go test -short -exec "$qemu" $packages
	# Viterbi is slow to emulate: the tests that compare bits, not those that
	# search for optimal paths, measure distortion or kill processes.
	GOARCH=$arch CGO_ENABLED=0 go test -short -exec "$qemu" -run 'Vector|Pack|Row|Scale|Refit|Decode|OneMAD|Tie|Directory' ./trellis/...
done
