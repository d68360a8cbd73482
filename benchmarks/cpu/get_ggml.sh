#!/bin/sh
# Unpacks the sources of ggml, as the Python package llama-cpp-python carries them, into build/ggml, and prints that path for
#   cmake --preset cpu -DFOSCAR_BUILD_BENCHMARKS=ON -DFOSCAR_GGML_SOURCE=...
# Needs pip and the package scikit-build-core in the same environment (pip asks the package's build system for its metadata).
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
target=build/ggml
if [ ! -e $target/CMakeLists.txt ]; then
  mkdir -p build/llama-cpp-python
  "$python" -m pip download -q --no-deps --no-binary :all: -d build/llama-cpp-python llama-cpp-python >&2
  tar xzf build/llama-cpp-python/*.tar.gz -C build/llama-cpp-python
  mv build/llama-cpp-python/*/vendor/llama.cpp/ggml $target
  rm -r build/llama-cpp-python
fi
echo "$PWD/$target"
