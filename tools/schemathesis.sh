#!/usr/bin/env bash
# Holds a running server to docs/openapi.yaml: tools/schemathesis.sh serve|store URL [flags of `schemathesis run`]
# What its head `main` leads to is asked for by name, so that more is answered than 404. Installs schemathesis into
# build/schemathesis at the first call.
set -euo pipefail
cd "$(dirname "$0")/.."

kind=$1 url=$2
shift 2
version=4.32.5
venv=build/schemathesis
if [ "$(cat $venv/installed 2>/dev/null)" != "$version" ]; then
  /usr/bin/python3 -m venv $venv
  $venv/bin/pip install --quiet --disable-pip-version-check "schemathesis==$version"
  echo "$version" > $venv/installed
fi

case $kind in
  serve) routes='^/' ;;
  store) routes='^/(weft/v1/|health$|metrics$)' ;;
  *) echo "$0: expected serve or store, not $kind" >&2; exit 2 ;;
esac

/usr/bin/python3 - "$url" > $venv/config.toml <<'PYTHON'
import json, sys, urllib.request
def get(path):
    with urllib.request.urlopen(sys.argv[1] + "/weft/v1" + path, timeout=30) as answer:
        return json.load(answer)
id = get("/heads/main")["id"]
digests = [entry["digest"] for entry in get(f"/versions/{id}/manifest")["tensors"][:4]]
for name, values in {"ids": [id], "digests": digests, "heads": ["main"], "packs": [0]}.items():
    print(f"[dictionaries.{name}]\nvalues = {json.dumps(values)}")
print("[parameters]")
for place, name in {"path.id": "ids", "body.id": "ids", "path.digest": "digests", "path.name": "heads", "path.n": "packs"}.items():
    print(f'"{place}" = {{ dictionary = "{name}", probability = 0.7 }}')
# A poll would last for as long as the file allows.
print('[[operations]]\ninclude-path = "/weft/v1/heads/{name}"\ninclude-method = "GET"\nparameters = { "query.wait" = 1 }')
PYTHON

# Requests that the file allows get one of the answers that it lists, and no others do harm. What is named stays to the end.
check() {
  (cd $venv && bin/schemathesis --config-file config.toml run ../../docs/openapi.yaml --url "$url" --request-timeout 30 \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance "$@")
}
check --include-path-regex "$routes" --exclude-method DELETE "$@"
check --include-path-regex "$routes" --exclude-method-regex 'GET|PUT|POST' "$@"
