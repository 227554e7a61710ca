#!/bin/sh
# Puts NVRTC, pinned in nvrtc.txt, into a folder and prints the library's path: nvrtc.sh DIR
# It is NVIDIA's package on PyPI; no GPU or driver is needed to compile with it.
set -eu
want=$(cd "$(dirname "$0")" && cat nvrtc.txt)
lib="$1/nvidia/cu13/lib/libnvrtc.so.13"
if [ ! -e "$lib" ] || [ "$(cat "$1/installed" 2>/dev/null)" != "$want" ]; then
	rm -rf "$1"
	python3 -m venv "$1/venv" >&2
	"$1/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
		--target "$1" -r "$(dirname "$0")/nvrtc.txt" >&2
	rm -rf "$1/venv"
	printf '%s\n' "$want" >"$1/installed"
fi
echo "$lib"
