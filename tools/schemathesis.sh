#!/usr/bin/env bash
# Holds a running server to docs/openapi.yaml: tools/schemathesis.sh http://127.0.0.1:8000 [flags of `schemathesis run`]
# Installs schemathesis into build/schemathesis at the first call.
set -euo pipefail
cd "$(dirname "$0")/.."

url=$1
shift
version=4.32.5
venv=build/schemathesis
if [ "$(cat $venv/installed 2>/dev/null)" != "$version" ]; then
  /usr/bin/python3 -m venv $venv
  $venv/bin/pip install --quiet --disable-pip-version-check "schemathesis==$version"
  echo "$version" > $venv/installed
fi
# Requests that the file allows get one of the answers that it lists, and no others do harm.
exec $venv/bin/schemathesis run docs/openapi.yaml --url "$url" \
  --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance "$@"
