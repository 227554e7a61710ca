#!/bin/sh
# Fails if the compiler fused a multiply with an add in a package whose bits
# are defined by docs/numerics.md. Fusing changes results; every product that
# feeds an add is wrapped in float32(...), which forbids it.
set -eu
cd "$(dirname "$0")/.."
packages="./pack ./hadamard ./lloydmax ./affine ./trellis ./codec ./codec/ref ./internal/f32 ./internal/threefry ./kvcache ./trellis/ldlq ./model"

scan() { # name, pattern, environment…
	name=$1 pattern=$2
	shift 2
	out=$(env "$@" go build -gcflags=-S $packages 2>&1) || { echo "$out" | tail -20; exit 1; }
	lines=$(printf '%s\n' "$out" | grep -c 'TEXT' || true)
	if [ "$lines" -lt 50 ]; then
		echo "fma: $name: only $lines functions in the assembly: nothing was checked" >&2
		exit 1
	fi
	if printf '%s\n' "$out" | grep -E "$pattern"; then
		echo "fma: $name: fused multiply-add, see above" >&2
		exit 1
	fi
	echo "fma: $name: none in $lines functions"
}
scan arm64 '\b(FMADD|FMSUB|FNMADD|FNMSUB)[SD]?\b' GOARCH=arm64
scan amd64.v3 '\bVF(N?M(ADD|SUB))' GOARCH=amd64 GOAMD64=v3
scan s390x '\b(FMADD|FMSUB|WFMADB|WFMSDB|WFMASB|WFMSSB)S?\b' GOARCH=s390x
scan ppc64le '\bFN?M(ADD|SUB)S?\b' GOARCH=ppc64le
scan riscv64 '\bFN?M(ADD|SUB)[SD]\b' GOARCH=riscv64
