#!/bin/sh
# Compares affine encode and decode with MLX and mlx-lm: check.sh BUILDDIR
# Python 3.11 or later on Linux; the packages of requirements.txt go into BUILDDIR.
set -eu
export PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
here=$(cd "$(dirname "$0")" && pwd)
dir=$("$here/../../../scripts/venv.sh" "$1" "$here/requirements.txt")
(cd "$here" && go build -o "$dir/turbotrellis" ../../../cmd/turbotrellis)
rm -rf "$dir/files"
mkdir "$dir/files"
"$dir/venv/bin/python" "$here/check.py" "$dir/turbotrellis" "$dir/files"
rm -rf "$dir/files"
