#!/usr/bin/env bash
# Builds llama.cpp into a folder, from the sources inside the PyPI package llama-cpp-python: six minutes on two cores, once.
# usage: tools/llama_cpp.sh DIR      afterwards DIR/build/bin has llama-batched-bench and llama-server
set -euo pipefail
mkdir -p "$1"
dir=$(cd "$1" && pwd)
version=0.3.36
bin=$dir/build/bin
[ -x "$bin/llama-batched-bench" ] && [ -x "$bin/llama-server" ] && exit 0
echo "llama_cpp: building $version in $dir (some six minutes)"
if [ ! -d "$dir/src/vendor/llama.cpp" ]; then
  [ -x "$dir/venv/bin/pip" ] || /usr/bin/python3 -m venv "$dir/venv"
  "$dir/venv/bin/pip" download -q --disable-pip-version-check --no-deps --no-binary llama-cpp-python -d "$dir" "llama-cpp-python==$version"
  mkdir -p "$dir/src"
  tar xzf "$dir"/llama_cpp_python-*.tar.gz -C "$dir/src" --strip-components=1
fi
cmake -S "$dir/src/vendor/llama.cpp" -B "$dir/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF \
  -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF > "$dir/cmake.log"
ninja -C "$dir/build" -j "${JOBS:-$(nproc)}" llama-batched-bench llama-server > "$dir/ninja.log"
