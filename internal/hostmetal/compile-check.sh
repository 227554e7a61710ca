#!/bin/sh
# compile-check.sh SOURCE.metal...: checks Metal sources against the shim library with
# clang, the way libhostmetal.so compiles them (safe math), and prints its diagnostics.
# To compile one to a shared object: build/hostmetal/hostmetal-cc -o OUT.so SOURCE.metal
set -e
here=$(cd "$(dirname "$0")" && pwd)
make -s -C "$here" "$(cd "$here/../.." && pwd)/build/hostmetal/hostmetal-cc" >&2
bad=0
for source in "$@"; do
	"$here/../../build/hostmetal/hostmetal-cc" "$source" || bad=1
done
exit $bad
