#!/bin/sh
# Compares reader.py and feedback.py with turbotrellis on a spread of files: check.sh BUILDDIR
# Python 3.11 or later; numpy, pinned in requirements.txt, goes into BUILDDIR.
set -eu
export PYTHONDONTWRITEBYTECODE=1
here=$(cd "$(dirname "$0")" && pwd)
dir=$("$here/../../../scripts/venv.sh" "$1" "$here/requirements.txt")
(cd "$here" && go build -o "$dir/turbotrellis" ../../../cmd/turbotrellis)
rm -rf "$dir/files"
"$dir/venv/bin/python" "$here/cases.py" "$dir/turbotrellis" "$dir/files"
"$dir/venv/bin/python" "$here/reader.py" check "$dir/files"
"$dir/venv/bin/python" "$here/feedback.py" "$dir/turbotrellis"
rm -rf "$dir/files"
