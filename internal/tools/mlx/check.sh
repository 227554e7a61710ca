#!/bin/sh
# Compares affine encode and decode with MLX and mlx-lm: check.sh BUILDDIR
# Python 3.11 or later on Linux; the packages of requirements.txt go into BUILDDIR.
set -eu
export PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
want=$(cat "$here/requirements.txt")
if [ "$(cat "$dir/installed" 2>/dev/null)" != "$want" ]; then
	python3 -m venv "$dir/venv"
	"$dir/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
	printf '%s\n' "$want" >"$dir/installed"
fi
(cd "$here" && go build -o "$dir/turbotrellis" ../../../cmd/turbotrellis)
rm -rf "$dir/files"
mkdir "$dir/files"
"$dir/venv/bin/python" "$here/check.py" "$dir/turbotrellis" "$dir/files"
rm -rf "$dir/files"
