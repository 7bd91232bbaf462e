#!/usr/bin/env bash
# Brings a bare Debian 12 to a working build: packages, and in .venv libtorch and what the Python package is built and
# tested with. Needs root or sudo only when a package is missing. Quick when there is nothing to do.
# usage: tools/setup.sh [bench]      bench: what `make bench-transfer` and `make bench-engine` compare with, too
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  build-essential cmake ninja-build ccache pkg-config ca-certificates curl openssl
  libboost1.81-dev libboost-json1.81-dev libssl-dev libzstd-dev libhwy-dev libfmt-dev libspdlog-dev libcli11-dev
  libtomlplusplus-dev libgtest-dev libgmock-dev libbenchmark-dev
  rustc-web cargo-web
  clang-14 libclang-rt-14-dev clang-tidy-14 clang-format-14 clang-tools-14
  python3 python3-dev python3-venv nginx-light
)
[ "${1:-}" != bench ] || packages+=(iperf3 b3sum libdnnl-dev)
# What libtorch_cpu.so of the PyPI wheel needs, and nothing more: importing torch in Python takes 2 GB more.
wheels=(torch==2.13.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85
  nanobind==3.1.0 numpy==2.4.6 ml_dtypes==0.6.0)

installed() { [ "$(dpkg-query -W -f '${Status}' "$1" 2>/dev/null)" = "install ok installed" ]; }

missing=()
for package in "${packages[@]}"; do installed "$package" || missing+=("$package"); done
if [ ${#missing[@]} -gt 0 ]; then
  sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "setup: these packages are missing and there is no sudo: ${missing[*]}" >&2; exit 1; }
    sudo=(sudo)
  fi
  echo "setup: installing ${missing[*]}"
  # Before an update the lists may name a rustc-web that is too old.
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

stamp=.venv/installed
if [ "$(cat $stamp 2>/dev/null)" != "${wheels[*]}" ]; then
  echo "setup: fetching libtorch (540 MB) into .venv"
  [ -x .venv/bin/pip ] || /usr/bin/python3 -m venv .venv
  .venv/bin/pip install --quiet --disable-pip-version-check --no-deps "${wheels[@]}"
  echo "${wheels[*]}" > $stamp
fi
