#!/bin/sh
# Runs every test of a finished build: the Python ones, then the C++ ones; both even if the first fail.
#   scripts/test.sh BUILD_DIR JOBS
set -u
cd "$(dirname "$0")/.."
build_dir=$1
jobs=$2
status=0
FOSCAR_BIN="$PWD/$build_dir/bin/foscar" .venv/bin/python -m pytest -q tests || status=1
"$build_dir/python-env/bin/python" -m pytest -q tests/python || status=1
ctest --test-dir "$build_dir" --output-on-failure --no-tests=error -j "$jobs" || status=1
exit $status
