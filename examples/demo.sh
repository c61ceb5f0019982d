#!/usr/bin/env bash
# The demonstration behind `make demo`: four transactions with real tools, each checked as it is shown.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/bin/eda-sidecar
root=${TMPDIR:-/tmp}
if [ "$(stat -f -c %T "$root")" = overlayfs ]; then
	root=/dev/shm
	echo "# ${TMPDIR:-/tmp} is on overlayfs, which the engine refuses as a workspace: the demo uses /dev/shm"
fi
ws=$(mktemp -d "$root/eda-sidecar-demo.XXXXXX")
trap 'rm -rf "$ws"' EXIT
cp -r examples/counter/. "$ws"
mkdir "$ws/build"
