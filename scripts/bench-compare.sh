#!/usr/bin/env bash
# Runs the benchmarks of codec/cpu beside the yardsticks in C, in turns on one core, and prints the medians of
# what each reached and of the ratios that docs/performance.md holds against the goals.
#
#	scripts/bench-compare.sh [rounds]
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

CC=${CC:-gcc}
cc() { "$CC" -ffp-contract=off "$@" scripts/bench/yardstick.c -lm; }
cc -O2 -march=native -fno-tree-vectorize -fno-tree-slp-vectorize -o "$dir/scalar"
cc -O3 -march=native -o "$dir/auto"
hand=
if "$CC" -march=native -dM -E - </dev/null | grep -q __AVX512VNNI__; then
	cc -O3 -march=native -mprefer-vector-width=512 -DHAND -o "$dir/hand"
	hand=hand
fi
go test -c -o "$dir/default.test" ./codec/cpu
GOEXPERIMENT=simd go test -c -o "$dir/simd.test" ./codec/cpu

pin=$(command -v taskset >/dev/null && echo "taskset -c 1" || true)
yardstick() { $pin "$dir/$1" 0.03 | sed "s/^/$1 /"; }
benchmark() {
	$pin "$dir/$1.test" -test.run '^$' -test.cpu 1 -test.benchtime 50ms -test.bench 'Keys|Values|Trellis|Blocks' |
		awk -v b="$1" '/^Benchmark/ {for (i = 1; i < NF; i++) if ($(i+1) == "M/s") print b, substr($1, 10), $i}'
}
for ((i = 0; i < rounds; i++)); do
	yardstick scalar
	yardstick auto
	[ -z "$hand" ] || yardstick hand
	benchmark default
	benchmark simd
done >"$dir/rates"

echo "$(date -u +%F), $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), $(go env GOVERSION), $("$CC" -dumpfullversion)"
awk '
function median(list,  n, a, i, j, t) {
	n = split(list, a, " ")
	for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++) if (a[i]+0 > a[j]+0) { t = a[i]; a[i] = a[j]; a[j] = t }
	return n ? a[int((n + 1) / 2)] : 0
}
function ratio(a, b) { return a && b ? sprintf("%.2f", a / b) : "-" }
{
	column = $1; op = $2
	if (split(op, p, "/level=") == 2) { op = p[1]; column = $1 "-" p[2]; if (!(op in seen)) { seen[op]; ops[++n] = op } }
	rate[column, op] = rate[column, op] " " $3
}
END {
	printf "%-40s %9s %9s %9s %9s %9s %9s | %s\n", "M/s of CPU time", "gcc-O2", "gcc-O3", "hand", "default", "avx2", "avx512", "default/O2 avx2/O3 avx512/O3 avx512/hand"
	for (i = 1; i <= n; i++) {
		op = ops[i]
		s = median(rate["scalar", op]); a = median(rate["auto", op]); h = median(rate["hand", op])
		d = median(rate["default-scalar", op]); v2 = median(rate["simd-avx2", op]); v5 = median(rate["simd-avx512", op])
		printf "%-40s %9.3f %9.3f %9.3f %9.3f %9.3f %9.3f | %s %s %s %s\n", op, s, a, h, d, v2, v5, ratio(d, s), ratio(v2, a), ratio(v5, a), ratio(v5, h)
	}
}' "$dir/rates"
