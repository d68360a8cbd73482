#!/bin/sh
# Builds the wheel of the Python package on top of a finished build, and an environment in which it is installed.
#   scripts/python_package.sh BUILD_DIR
# Leaves BUILD_DIR/wheels/foscar-*.whl and BUILD_DIR/python-env: a clean environment that first gets the wheel alone
# (the package must work without torch), then what tests/python needs.
set -eu
cd "$(dirname "$0")/.."
build_dir=$1
env_dir=$build_dir/python-env
pip="-m pip --quiet --disable-pip-version-check"

# The library that was just built goes into the wheel; only the bindings are compiled. Without the note that an earlier
# run of the wheel's builder left, it takes the build tree as it is instead of clearing its settings.
rm -rf "$build_dir/wheels" "$build_dir/.skbuild-info.json"
# shellcheck disable=SC2086
.venv/bin/python $pip wheel . --no-deps --no-build-isolation -w "$build_dir/wheels" -C build-dir="$build_dir" \
  -C cmake.define.FOSCAR_BUILD_PYTHON=ON

if ! cmp -s tests/python/requirements.txt "$env_dir/installed-requirements.txt"; then
  rm -rf "$env_dir"
  python3 -m venv "$env_dir"
  # shellcheck disable=SC2086
  "$env_dir/bin/python" $pip install "$build_dir"/wheels/*.whl
  "$env_dir/bin/python" tests/python/check_without_torch.py
  # shellcheck disable=SC2086
  "$env_dir/bin/python" $pip install -r tests/python/requirements.txt
  cp tests/python/requirements.txt "$env_dir/installed-requirements.txt"
else
  # shellcheck disable=SC2086
  "$env_dir/bin/python" $pip install --no-deps --force-reinstall "$build_dir"/wheels/*.whl
fi
