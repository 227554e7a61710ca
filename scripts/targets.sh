#!/bin/sh
# Runs, on other targets, the tests of the packages that define bytes and the
# conformance suite on every backend that runs there, and compares the digest of
# all that the reference gave with this machine's.
#
# targets.sh [target…]: all of them unless told otherwise. CONFORMANCE_FORM is
# the form of the suite, short unless set. Nothing is installed: what a target
# needs and is not there is an error that names it.
set -eu
cd "$(dirname "$0")/.."
all="amd64-v3 race 386 arm64 riscv64 ppc64le s390x wasip1"
[ $# -gt 0 ] || set -- $all
CONFORMANCE_FORM=${CONFORMANCE_FORM:-short}
CGO_ENABLED=0
export CONFORMANCE_FORM CGO_ENABLED
# What the suite does not reach, and where bytes have an order. The others are slow
# there: TURBOTRELLIS_LONG adds them.
packages="./pack ./affine ./internal/safetensors ./codec ./codec/driver ./kvcache/block"
if [ -n "${TURBOTRELLIS_LONG:-}" ]; then
	packages="$packages ./hadamard ./lloydmax/... ./internal/f32 ./internal/threefry ./codec/ref ./codec/cpu ./kvcache/..."
fi
# Viterbi is slow to emulate: the tests that compare bits, not those that search
# for optimal paths, measure distortion or kill processes.
slow="./trellis/... ./model ./kvcache/snapshot"
bits='Vector|Pack|Row|Scale|Refit|Decode|OneMAD|Tie|Directory|RealCache'
# What the suite has done already, and a measurement of distortion.
skip='^(TestThirdBackend|TestVectorProxyLoss)$'
[ -z "${TURBOTRELLIS_LONG:-}" ] || skip='^$'

need() {
	command -v "$1" >/dev/null || { echo "targets: $target needs $1 (Debian: $2)" >&2; exit 1; }
}

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# suite EXEC: runs the suite's program and prints its cases and digest.
suite() {
	if ! (cd conformance && $1 "$out/$target" -test.run '^(TestBackends|TestVector)' -test.v) >"$out/log" 2>&1; then
		grep -v '^=== RUN' "$out/log" | tail -40 >&2
		echo "targets: $target fails" >&2
		exit 1
	fi
	sum=$(sed -n 's/.* ref: [a-z]* form, \([0-9]* cases, reference [0-9a-f]*\)$/\1/p' "$out/log")
	[ -n "$sum" ] || { echo "targets: $target ran no case" >&2; exit 1; }
	echo "$target: $sum"
}

target=here
go test -c -o "$out/here" ./conformance
suite ""
here=$sum
for target in "$@"; do
	build="" flags="" exec=""
	case $target in
	amd64-v3) build="GOARCH=amd64 GOAMD64=v3" ;;
	race) build="CGO_ENABLED=1" flags="-race" ;;
	386) build="GOARCH=386" ;; # an amd64 kernel runs it
	arm64) build="GOARCH=arm64" exec=qemu-aarch64-static ;;
	riscv64 | ppc64le | s390x) build="GOARCH=$target" exec=qemu-$target-static ;;
	wasip1)
		build="GOOS=wasip1 GOARCH=wasm" exec="node --no-warnings $PWD/scripts/wasi.mjs"
		need node nodejs
		;;
	*) echo "targets: unknown target $target: want one of $all" >&2; exit 2 ;;
	esac
	case $exec in qemu-*) need "$exec" qemu-user-static ;; esac
	env $build go test $flags -c -o "$out/$target" ./conformance
	suite "$exec"
	if [ "$sum" != "$here" ]; then
		echo "targets: $target gives other bits than this machine" >&2
		exit 1
	fi
	rm "$out/$target"
	case $target in race | wasip1) continue ;; esac # make race; wasip1 has no processes
	env $build go test -short ${exec:+-exec "$exec"} -skip "$skip" $packages
	env $build go test -short ${exec:+-exec "$exec"} -run "$bits" -skip "$skip" $slow
done
