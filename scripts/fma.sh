#!/bin/sh
# Fails if the compiler fused a multiply with an add in a package whose bits
# are defined by docs/numerics.md. Fusing changes results; every product that
# feeds an add is wrapped in float32(...), which forbids it.
# fma.sh [target…]: all five unless told otherwise, side by side.
set -eu
cd "$(dirname "$0")/.."
packages="./pack ./hadamard ./lloydmax ./affine ./trellis ./codec ./codec/driver ./codec/ref ./codec/cpu ./internal/f32 ./internal/threefry ./kvcache/... ./trellis/ldlq ./model"

scan() { # name, pattern, environment…
	name=$1 pattern=$2
	shift 2
	out=$(env "$@" go build -gcflags=-S $packages 2>&1) || { echo "$out" | tail -20 >&2; return 1; }
	lines=$(printf '%s\n' "$out" | grep -c 'TEXT' || true)
	if [ "$lines" -lt 50 ]; then
		echo "fma: $name: only $lines functions in the assembly: nothing was checked" >&2
		return 1
	fi
	if printf '%s\n' "$out" | grep -E "$pattern"; then
		echo "fma: $name: fused multiply-add, see above" >&2
		return 1
	fi
	echo "fma: $name: none in $lines functions"
}

[ $# -gt 0 ] || set -- arm64 amd64.v3 s390x ppc64le riscv64
pids=""
for target in "$@"; do
	case $target in
	arm64) scan arm64 '\b(FMADD|FMSUB|FNMADD|FNMSUB)[SD]?\b' GOARCH=arm64 & ;;
	amd64.v3) scan amd64.v3 '\bVF(N?M(ADD|SUB))' GOARCH=amd64 GOAMD64=v3 & ;;
	s390x) scan s390x '\b(FMADD|FMSUB|WFMADB|WFMSDB|WFMASB|WFMSSB)S?\b' GOARCH=s390x & ;;
	ppc64le) scan ppc64le '\bFN?M(ADD|SUB)S?\b' GOARCH=ppc64le & ;;
	riscv64) scan riscv64 '\bFN?M(ADD|SUB)[SD]\b' GOARCH=riscv64 & ;;
	*) echo "fma: unknown target $target" >&2; exit 2 ;;
	esac
	pids="$pids $!"
done
failed=0
for pid in $pids; do
	wait "$pid" || failed=1
done
exit $failed
