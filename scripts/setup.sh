#!/bin/sh
# Installs what the project needs and is not there yet. Called by the Makefile; safe to call again at any time.
#   scripts/setup.sh system   compilers and libraries, through apt
#   scripts/setup.sh python   the test environment in .venv
# Without root nothing is installed: the script names what is missing and how to get it, and exits 1.
set -eu
cd "$(dirname "$0")/.."

system_packages() {
  missing=""
  for tool in g++:g++ cmake:cmake ninja:ninja-build make:make python3:python3; do
    command -v "${tool%%:*}" >/dev/null 2>&1 || missing="$missing ${tool#*:}"
  done
  header() {  # header FILE PACKAGE
    for dir in /usr/include /usr/local/include /usr/include/"$(uname -m)"-linux-gnu; do
      if [ -e "$dir/$1" ]; then return; fi
    done
    missing="$missing $2"
  }
  header CLI/CLI.hpp libcli11-dev
  header fmt/format.h libfmt-dev
  header nlohmann/json.hpp nlohmann-json3-dev
  header gtest/gtest.h libgtest-dev
  python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || missing="$missing python3-venv"
  missing="${missing# }"
  if [ -z "$missing" ]; then return 0; fi

  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "Missing on this machine: $missing" >&2
    echo "Install them as root, on Debian:  apt-get update && apt-get install -y $missing" >&2
    exit 1
  fi
  echo "Installing with apt: $missing"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  # shellcheck disable=SC2086  # one word per package
  apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

python_environment() {
  requirements=tests/requirements.txt
  stamp=.venv/installed-requirements.txt
  if [ -x .venv/bin/python ] && cmp -s "$requirements" "$stamp"; then return 0; fi
  echo "Setting up the Python test environment in .venv"
  python3 -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r "$requirements"
  cp "$requirements" "$stamp"
}

case "${1:-}" in
  system) system_packages ;;
  python) python_environment ;;
  *)
    echo "usage: scripts/setup.sh system|python" >&2
    exit 2
    ;;
esac
