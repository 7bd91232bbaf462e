#!/usr/bin/env bash
# `make chaos`: the faults of `make test` many times over, 10,000 connections, a million simulated schedules where asked,
# and schemathesis against both servers. usage: tools/chaos.sh [ROUNDS]     ROUNDS: default 10
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/build/release/bin
export WEFT_SOURCE_DIR=$PWD WEFT_BINARY_DIR=$PWD/build/release PYTHONPATH=$PWD/tests PYTHONDONTWRITEBYTECODE=1
export WEFT_CHAOS_ROUNDS=${1:-10} WEFT_CHAOS_SEED=${WEFT_CHAOS_SEED:-$RANDOM} WEFT_CHAOS_CONNECTIONS=10000
ulimit -n "$(ulimit -H -n)"

/usr/bin/python3 tests/fixtures/fixtures.py build/release/fixtures
echo "== faults, seed $WEFT_CHAOS_SEED, $WEFT_CHAOS_ROUNDS rounds"
/usr/bin/python3 tests/faults_test.py -v
/usr/bin/python3 tests/store_faults_test.py -v
echo '== tensors past 2 and 4 GiB'
/usr/bin/python3 tests/large_test.py -v

echo "== simulator"
"$bin/weft-sim" --schedules "${WEFT_CHAOS_SCHEDULES:-100000}" --seed "$WEFT_CHAOS_SEED"

work=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; rm -rf "$work"' EXIT

against() {  # against serve|store COMMAND...
  echo "== schemathesis, weft $1"
  "${@:2}" 2> "$work/log" &
  server=$!
  for _ in $(seq 300); do
    url=$(sed -n 's/^listening on //p' "$work/log")
    [ -z "$url" ] || break
    sleep 0.1
  done
  if [ "$1" = store ]; then "$bin/weft" push build/release/fixtures/P_llama --to "$url" --head main; fi
  tools/schemathesis.sh "$1" "$url" --max-examples 20
  kill -0 $server || { cat "$work/log"; exit 1; }
  kill $server
  wait $server || true
}
against serve "$bin/weft" serve build/release/fixtures/P_llama --port 0
against store "$bin/weft" store "$work/store" --port 0
echo 'chaos: passed'
