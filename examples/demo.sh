#!/usr/bin/env bash
# The demonstration behind `make demo`: six transactions with real tools, two of them over MCP, each checked as it is shown.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/bin/eda-sidecar

step() { printf '\n== %s\n' "$*"; }
shown() { # prints the command as one would type it, then runs it
	local word line='$ eda-sidecar'
	for word in "$@"; do
		case $word in *[\[\]\"\ \>\&]*) line+=" '$word'" ;; *) line+=" $word" ;; esac
	done
	echo "$line"
	"$bin" "$@"
}
sum() { sha256sum <"$ws/$1" | cut -c1-64; }
must() { "$@" || { echo "demo: FAILED: $*" >&2; exit 1; }; }
fails_with() { # STATUS ARG...: the command must end with exactly this status
	local want=$1 got=0
	shift
	shown "$@" || got=$?
	must [ "$got" = "$want" ]
	echo "(exit status $got)"
}

root=${TMPDIR:-/tmp}
if [ "$(stat -f -c %T "$root")" = overlayfs ]; then
	root=/dev/shm
	echo "# ${TMPDIR:-/tmp} is on overlayfs, which the engine refuses as a workspace: the demo uses /dev/shm"
fi
ws=$(mktemp -d "$root/eda-sidecar-demo.XXXXXX")
trap 'rm -rf "$ws"' EXIT
cp -r examples/counter/. "$ws"
cd "$ws"

if ! "$bin" doctor >doctor.txt 2>&1; then
	# An ordinary user on a systemd machine gets a delegated scope of his own.
	if [ "$(id -u)" != 0 ] && [ -z "${EDA_SIDECAR_DEMO_SCOPE:-}" ] && command -v systemd-run >/dev/null; then
		echo '$ systemd-run --user --scope -p Delegate=yes examples/demo.sh'
		rm -rf "$ws"
		EDA_SIDECAR_DEMO_SCOPE=1 exec systemd-run --user --scope --quiet -p Delegate=yes "$OLDPWD/examples/demo.sh"
	fi
	cat doctor.txt
	exit 69
fi
design=('sources:=["rtl/counter.v","rtl/top.v"]' 'include_dirs:=["inc"]')

step "1. a synthesis commits: netlist, session state and audit record together"
shown call yosys_synth "${design[@]}" top=top target=ice40 netlist=build/top.json
must [ -s build/top.json ]

step "2. a simulation commits its waveform"
shown call iverilog_simulate 'sources:=["rtl/counter.v","rtl/top.v","tb/tb.v"]' 'include_dirs:=["inc"]' top=tb wave=build/tb.vcd
must [ -s build/tb.vcd ]

step "3. a simulation that never ends: killed, proven dead, the old waveform untouched"
before=$(sum build/tb.vcd)
fails_with 124 call iverilog_simulate 'sources:=["rtl/counter.v","rtl/top.v","tb/hang.v"]' 'include_dirs:=["inc"]' top=hang wave=build/tb.vcd --timeout 2s
must [ "$(sum build/tb.vcd)" = "$before" ]
echo "build/tb.vcd is as it was: sha256 ${before:0:12}"

step "4. kill -9 of the engine while the tool runs: the next start kills, proves and rolls back"
before=$(sum build/top.json)
echo '$ eda-sidecar run --out netlist=build/top.json -- sh -c "... setsid sleep 1000 & echo half >{netlist}; sleep 1000"   # then kill -9'
"$bin" run --out netlist=build/top.json -- sh -c 'setsid sleep 1000 & echo half >{netlist}; sleep 1000' >engine.txt 2>&1 &
engine=$!
until "$bin" audit --json | grep -q 'eda-sidecar.allow.*"tool":"run"'; do kill -0 "$engine"; done
until [ -n "$(find .eda-sidecar/jobs -path '*/s0/out.json' -size +0c)" ]; do kill -0 "$engine"; done
kill -9 "$engine"
wait "$engine" 2>/dev/null || true
shown recover --dry-run
shown recover
must [ "$(sum build/top.json)" = "$before" ]
echo "build/top.json is as it was: sha256 ${before:0:12}"

step "5. a server for MCP clients: two sessions at once, one synthesis, one simulation; then a drain"
echo '$ eda-sidecar serve --listen 127.0.0.1:0 --metrics-listen 127.0.0.1:0'
"$bin" serve --listen 127.0.0.1:0 --metrics-listen 127.0.0.1:0 2>serve.txt &
server=$!
until grep -q 'serving on' serve.txt; do kill -0 "$server"; done
url=$(sed -nE 's|.*serving on (http://[^/]*)/mcp.*|\1|p' serve.txt)
port=$(sed -nE 's|.*metrics and probes on http://[^:]*:([0-9]+).*|\1|p' serve.txt)
opened() { shown call --server "$url" session_open name="$1"; }
session() { "$bin" call --server "$url" session_open name="$1" --json | sed -nE 's/^  "session_id": "(.*)",?$/\1/p'; }
opened a
opened b
a=$(session a) b=$(session b)
shown call --server "$url" --session "$a" yosys_synth "${design[@]}" top=top target=ecp5 netlist=build/ecp5.json &
one=$!
shown call --server "$url" --session "$b" iverilog_simulate 'sources:=["rtl/counter.v","rtl/top.v","tb/tb.v"]' 'include_dirs:=["inc"]' top=tb wave=build/b.vcd
wait "$one"
must [ -s build/ecp5.json ]
must [ -s build/b.vcd ]
exec 3<>"/dev/tcp/127.0.0.1/$port"
printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
grep -E '^eda_sidecar_commits_total.* [1-9]' <&3 >commits.txt
exec 3>&-
cat commits.txt
must [ "$(wc -l <commits.txt)" = 3 ] # two sessions were opened
fails_with 75 recover
shown drain --wait
kill -TERM "$server"
must wait "$server"

step "6. the evidence: every job has a legal order of events, and the chain is whole"
shown audit
shown audit verify
orders=$("$bin" audit --json | sed -nE 's/.*"type":"io\.eda-sidecar\.([a-z_.]+)".*"execution_job_id":"([^"]+)".*/\2 \1/p' | awk '{o[$1] = o[$1] " " $2} END {for (j in o) print o[j]}' | sort)
want=$(sort <<'ORDERS'
 allow commit
 allow commit
 allow start commit
 allow start commit
 allow start commit
 allow start commit
 allow start timeout worker_terminated rollback
 allow recovered rollback
ORDERS
)
must [ "${orders// start recovered/ recovered}" = "$want" ]
left=$({ find /proc -maxdepth 2 -name cwd -lname "$ws/.eda-sidecar/*" 2>/dev/null || true; } | wc -l) # processes vanish while find looks
echo "processes left of this workspace: $left"
must [ "$left" = 0 ]
printf '\ndemo: 6 transactions, all as promised\n'
