#!/bin/sh
# Links the tests of packages for another platform: link.sh GOOS GOARCH TAGS PACKAGE…
set -eu
cd "$(dirname "$0")/.."
export GOOS=$1 GOARCH=$2 CGO_ENABLED=0
tags=$3
shift 3
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
go test -c -tags "$tags" -o "$out/" "$@"
n=$(ls "$out" | wc -l)
if [ "$n" -eq 0 ]; then
	echo "link: no test was linked" >&2
	exit 1
fi
echo "link: $n test programs for $GOOS/$GOARCH with tags $tags"
