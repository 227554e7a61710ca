#!/bin/sh
# Compares reader.py and feedback.py with turbotrellis on a spread of files: check.sh BUILDDIR
# Python 3.11 or later; numpy, pinned in requirements.txt, goes into BUILDDIR.
set -eu
export PYTHONDONTWRITEBYTECODE=1
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
"$dir/venv/bin/python" "$here/cases.py" "$dir/turbotrellis" "$dir/files"
"$dir/venv/bin/python" "$here/reader.py" check "$dir/files"
"$dir/venv/bin/python" "$here/feedback.py" "$dir/turbotrellis"
rm -rf "$dir/files"
