#!/usr/bin/env bash
# What a change must pass beside `make test`: format, layers, lints, and the tests under sanitizers.
# usage: tools/check.sh [STEP ...]      steps: format layers lint neon tidy asan tsan fuzz (default: all)
set -euo pipefail
cd "$(dirname "$0")/.."
export CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$PWD
jobs=${JOBS:-$(nproc)}
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(format layers lint neon asan tsan fuzz tidy)

build() {  # build PRESET TARGET...
  [ -f "build/$1/build.ninja" ] || cmake --preset "$1"
  ninja -C "build/$1" -j "$jobs" "${@:2}"
}

step_format() { git ls-files '*.h' '*.cc' | xargs clang-format-14 --dry-run --Werror; }

step_layers() { /usr/bin/python3 tools/check_layers.py; }

step_lint() {
  /usr/bin/python3 tools/check_banned.py
  [ -f build/tsan/build.ninja ] || cmake --preset tsan  # Clang's compile commands
  /usr/bin/python3 tools/check_coroutines.py build/tsan
}

# The kernels compile for ARM. Without the cross compiler (Debian: g++-aarch64-linux-gnu) this is left out.
step_neon() {
  command -v aarch64-linux-gnu-g++ > /dev/null || { echo "no aarch64-linux-gnu-g++: left out"; return; }
  git ls-files 'src/weft/kernels/*.cc' ':(exclude)*_test.cc' |
    xargs -P "$jobs" -n 1 aarch64-linux-gnu-g++ -std=c++20 -O1 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror \
      '-DHWY_DISABLED_TARGETS=HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128' -Isrc -idirafter /usr/include -c -o /dev/null
}

step_tidy() {
  [ -f build/tsan/build.ninja ] || cmake --preset tsan
  git ls-files 'src/*.cc' 'apps/*.cc' ':(exclude)src/weft/trainer/*' ':(exclude)*_test.cc' ':(exclude)apps/weft/train*.cc' ':(exclude)src/weft/app/train.cc' |
    xargs -P "$jobs" -n 4 clang-tidy-14 -p build/tsan --quiet --warnings-as-errors='*'
}

step_asan() {
  build asan all
  # libtorch and the Rust library keep what they allocate once; only leaks of ours count, and those the tests of
  # each module without them find.
  ASAN_OPTIONS=detect_leaks=1:suppressions= LSAN_OPTIONS=suppressions=$PWD/tools/lsan.supp \
    ctest --test-dir build/asan --output-on-failure -j "$jobs" -LE no_sanitizer
}

step_tsan() {
  build tsan all
  ctest --test-dir build/tsan --output-on-failure -j "$jobs" -LE no_sanitizer
}

step_fuzz() {
  build fuzz fuzzers
  for target in build/fuzz/bin/*_fuzz; do
    name=$(basename "$target" _fuzz)
    mkdir -p "build/fuzz/corpus/$name"
    echo "fuzz: $name, 20 s"
    "$target" -max_total_time=20 -timeout=5 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=0 \
      "build/fuzz/corpus/$name" "fuzz/seeds/$name"
  done
}

for step in "${steps[@]}"; do
  echo "== $step"
  "step_$step"
done
echo "check: ${steps[*]}: passed"
