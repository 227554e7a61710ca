#!/bin/sh
# Runs every fuzz target of the module for a fixed count of inputs, so that the
# cost does not depend on the machine: fuzz.sh 20000x
set -eu
cd "$(dirname "$0")/.."
count=${1:?usage: fuzz.sh COUNTx}
found=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for dir in $(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do
	for target in $(grep -h '^func Fuzz' "$dir"/*_test.go | sed 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/'); do
		found=$((found + 1))
		echo "$dir $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$count" "$dir" >"$log" 2>&1 || { cat "$log"; exit 1; }
	done
done
if [ "$found" -eq 0 ]; then
	echo "fuzz: no targets found" >&2
	exit 1
fi
