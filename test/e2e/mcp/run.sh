#!/bin/bash
# The official MCP clients and the conformance suite against the built program. Run by `make e2e-mcp`, which has built it.
# Node comes from npm, too: the clients need a newer one than Debian has. The last line is `N passed, N failed`.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../../.."
trap 'echo "0 passed, 1 failed"' ERR

work=$PWD/build/e2e-mcp
mkdir -p "$work"
if ! cmp -s "$here/package-lock.json" "$work/installed.json"; then
	cp "$here"/package*.json "$work"
	npm ci --prefix "$work" --ignore-scripts --no-audit --no-fund --loglevel=error
	cp "$here/package-lock.json" "$work/installed.json"
fi
cp "$here"/*.mjs "$here/expected.yml" "$work"
node=$(echo "$work"/node_modules/node-linux-*/bin/node)
"$node" --version
go test -c -o "$work/conformance" ./sidecar/server

trap - ERR # from here on the reporter has the last line
export EDA_ROOT=$PWD EDA_SCRATCH
EDA_SCRATCH=$(mktemp -d /dev/shm/eda-e2e.XXXXXX) # /tmp may be an overlay, which the program refuses
trap 'rm -rf "$EDA_SCRATCH"' EXIT
"$node" --test --test-concurrency=2 --test-timeout=120000 --test-reporter="$work/reporter.mjs" "$work"/*.test.mjs
