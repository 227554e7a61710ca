#!/bin/bash
# Removes each barrier of the shaders in turn and says what sees it, on an NVIDIA GPU:
# cuda-barriers.sh TESTPROGRAM, the tests of codec/gpu built with -tags cuda.
#
# "bits": TestBarrier's results differ. "racecheck": compute-sanitizer reports a hazard. A barrier that neither
# sees is listed, and fails the run unless UNSEEN, the number of those known, allows for it: docs/cuda.md.
set -u
test=$1
export REQUIRE_BACKENDS=cuda
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# barriers counts those of a family.
barriers() {
	TURBOTRELLIS_TEST_BARRIER=$1:999 "$test" -test.run '^TestBarrier$' | sed -n 's/.*there are \([0-9]*\) barriers.*/\1/p' | head -1
}
# common.metal's stand first in every family; hadamard, which has no others, serves for them.
common=$(barriers hadamard)
cases=$(seq -f 'hadamard:%.0f' 0 $((common - 1)))
for family in trellis product matrix; do
	cases="$cases $(seq -f "$family:%.0f" "$common" $(($(barriers $family) - 1)))"
done
one() {
	TURBOTRELLIS_TEST_BARRIER=$1 "$test" -test.run '^TestBarrier$' -test.v >"$dir/$1" 2>&1
	bits=$?
	TURBOTRELLIS_TEST_BARRIER=$1 compute-sanitizer --tool racecheck --error-exitcode 9 "$test" -test.run '^TestBarrier$' -test.v >"$dir/$1.race" 2>&1
	hazards=$(grep -o 'RACECHECK SUMMARY: [0-9]*' "$dir/$1.race" | grep -o '[0-9]*$')
	what=$(grep -oh '[a-z]*\.metal:[0-9]*: threadgroup_barrier.*' "$dir/$1" "$dir/$1.race" | head -1)
	seen=""
	[ "$bits" -ne 0 ] && seen=" bits"
	[ "${hazards:-0}" -gt 0 ] && seen="$seen racecheck($hazards)"
	grep -q 'no barrier was removed\|there are [0-9]* barriers\|SKIP' "$dir/$1" && seen=" NOT RUN"
	echo "$1 ${what:-?}:${seen:- unseen}"
}
export -f one
export dir test
printf '%s\n' $cases | xargs -P "${JOBS:-4}" -I{} bash -c 'one {}' | sort -V | tee "$dir/all"
unseen=$(grep -c ': unseen$\|NOT RUN' "$dir/all")
echo "$(wc -l <"$dir/all") barriers, $unseen unseen"
[ "$unseen" -le "${UNSEEN:-0}" ]
