#!/bin/sh
# Builds the conformance suite for other targets, runs it there on every backend
# that runs, and compares the digests of all that the reference gave.
#
# targets.sh [target…]: all of them unless told otherwise. CONFORMANCE_FORM is
# the form of the suite, short unless set. Nothing is installed: what a target
# needs and is not there is an error that names it.
set -eu
cd "$(dirname "$0")/.."
all="amd64-v1 amd64-v3 race 386 arm64 riscv64 ppc64le s390x wasip1"
[ $# -gt 0 ] || set -- $all
CONFORMANCE_FORM=${CONFORMANCE_FORM:-short}
CGO_ENABLED=0
export CONFORMANCE_FORM CGO_ENABLED

need() {
	command -v "$1" >/dev/null || { echo "targets: $target needs $1 (Debian: $2)" >&2; exit 1; }
}

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for target in "$@"; do
	build="" flags="" exec=""
	case $target in
	amd64-v1) build="GOARCH=amd64 GOAMD64=v1" ;;
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
	if ! (cd conformance && $exec "$out/$target" -test.run '^(TestBackends|TestVector)' -test.v) >"$out/log" 2>&1; then
		grep -v '^=== RUN' "$out/log" | tail -40 >&2
		echo "targets: $target fails" >&2
		exit 1
	fi
	sum=$(sed -n 's/.* ref: [a-z]* form, \([0-9]* cases, reference [0-9a-f]*\)$/\1/p' "$out/log")
	[ -n "$sum" ] || { echo "targets: $target ran no case" >&2; exit 1; }
	echo "$target: $sum"
	[ -n "${first:-}" ] || first=$sum
	if [ "$sum" != "$first" ]; then
		echo "targets: $target gives other bits than $1" >&2
		exit 1
	fi
done
