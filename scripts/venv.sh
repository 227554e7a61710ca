#!/bin/sh
# Puts the Python packages that a file pins into DIR/venv, unless they are there: venv.sh DIR REQUIREMENTS [PIP-OPTION…]
# Python 3.11 or later. Prints DIR as an absolute path.
set -eu
mkdir -p "$1"
dir=$(cd "$1" && pwd) requirements=$2
shift 2
want=$(cat "$requirements")
if [ "$(cat "$dir/installed" 2>/dev/null)" != "$want" ]; then
	python3 -m venv "$dir/venv" >&2
	"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@" -r "$requirements" >&2
	printf '%s\n' "$want" >"$dir/installed"
fi
echo "$dir"
