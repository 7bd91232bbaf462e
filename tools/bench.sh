#!/usr/bin/env bash
# Runs the benchmarks, or those named. Each ends with a line `BENCH {json}`.
# usage: tools/bench.sh [kernels|push ...]
set -euo pipefail
cd "$(dirname "$0")/.."
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(kernels push)
for name in "${names[@]}"; do
  echo "== bench $name"
  if [ "$name" = kernels ]; then
    build/release/bin/kernels_bench --benchmark_repetitions=5 --benchmark_report_aggregates_only=true
  else
    /usr/bin/python3 "bench/${name}_bench.py"
  fi
done
