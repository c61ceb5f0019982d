#!/bin/bash
# Every lint gate: first on testdata/bad, where each must reject its planted fault and say so, then on the product and on
# this module, once per set of build tags. Run by `make lint`, which builds the tools into the directory $1.
#
# A gate is passed by status 0 AND no output: gofumpt -l and deadcode exit 0 with findings. On the bad data a status
# alone proves nothing either (a tool that cannot start fails, too): the finding must be printed.
set -euo pipefail
tools=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
export GOFLAGS=-buildvcs=false
unset GODEBUG
passed=0 failed=0

verdict() { # verdict ok|bad WHAT: count it; what is bad shows its output
	if [[ $1 == ok ]]; then passed=$((passed + 1)); else
		failed=$((failed + 1))
		printf -- '--- %s (status %s)\n%s\n' "$2" "$status" "$out"
	fi
}

is_clean() { # is_clean COMMAND...: status 0 and no output; leaves both in $status and $out
	status=0
	out=$("$@" 2>&1) || status=$?
	[[ $status == 0 && -z $out ]]
}

clean() { # clean NAME COMMAND...
	if is_clean "${@:2}"; then verdict ok "$1"; else verdict bad "$1"; fi
}

rejects() { # rejects NAME EXPECTED COMMAND...: not clean, and the output names the planted fault
	if ! is_clean "${@:3}" && grep -qE -- "$2" <<<"$out"; then verdict ok "$1"; else verdict bad "control of $1: want $2"; fi
}

# verify is go mod verify as a gate: it prints one line on success.
verify() { go mod verify | sed '/^all modules verified$/d'; }

# verify_tampered runs verify with a module cache in which one extracted file was changed.
verify_tampered() (
	cache=$(mktemp -d) && trap 'rm -rf "$cache"' EXIT
	real=$(go env GOMODCACHE)
	mkdir -p "$cache/golang.org/x" "$cache/cache/download/golang.org/x/sys"
	cp -r "$real/golang.org/x/sys@v0.50.0" "$cache/golang.org/x/"
	cp -r "$real/cache/download/golang.org/x/sys/@v" "$cache/cache/download/golang.org/x/sys/"
	chmod -R u+w "$cache" && echo tampered >>"$cache/golang.org/x/sys@v0.50.0/README.md"
	GOMODCACHE=$cache GOPROXY=off GOFLAGS=-mod=mod GONOSUMDB='*' verify
)

vetted() { go vet -vettool="$tools/houselint" "$@"; }

# --- controls: every gate must reject the planted fault
cd "$here/testdata/bad"
rejects vet 'vet/vet.go:.*wrong type' go vet ./vet
rejects 'vet -tags' 'tagged/model.go:.*wrong type' go vet -tags edamodel ./tagged
rejects 'vet with an unknown pattern' 'directory not found' vetted ./absent
rejects fix '^-func Any' go fix -diff ./fix
rejects gofumpt '^gofumpt/gofumpt.go$' "$tools/gofumpt" -l .
rejects unused 'unused/unused.go:.*neverRead is unused' "$tools/staticcheck" -checks U1000 ./...
rejects deadcode 'deadcode/deadcode.go:.*unreachable func: Unreached' "$tools/deadcode" -test ./...
rejects tidy '^-require golang.org/x/sys' go mod tidy -diff
rejects 'verify' 'sys v0.50.0: dir has been modified' verify_tampered
houselint=$(vetted ./house 2>&1 || true)
while read -r file want; do
	rejects "houselint $file" "house/$file.go:[0-9]+:[0-9]+: .*$want" echo "$houselint"
done <<'FAULTS'
staticcheck calling strings.Replace with n == 0
simple should use
errcheck unchecked error
in_test unchecked error
errorf non-wrapping format verb
errorlint comparing with ==
exhaustive missing cases in expression switch
mapliteral missing keys in map
durationcheck Multiplication of durations
nilness nil dereference
unusedwrite unused write to field
blankerr without a reason on the line
rawduration untyped constant 5
FAULTS
cd "$here/../.."

# --- the product, once per set of build tags that some file asks for; then this module
for tag in '' edamodel edafault; do
	if [[ -n $tag ]] && ! grep -rlE --include='*.go' --exclude-dir=testdata "^//go:build (.*[^!])?$tag" . >/dev/null; then
		echo "lint: no file asks for the tag $tag"
		continue
	fi
	clean "vet ${tag}" go vet -tags "$tag" ./...
	clean "fix ${tag}" go fix -diff -tags "$tag" ./...
	clean "houselint ${tag}" vetted -tags "$tag" ./...
	clean "unused ${tag}" "$tools/staticcheck" -checks U1000 -tags "$tag" ./...
	clean "deadcode ${tag}" "$tools/deadcode" -test -tags "$tag" ./...
done
clean gofumpt "$tools/gofumpt" -l .
clean tidy go mod tidy -diff
clean verify verify
cd "$here"
clean 'lint module: vet' go vet ./...
clean 'lint module: fix' go fix -diff ./...
clean 'lint module: houselint' vetted ./...
clean 'lint module: tidy' go mod tidy -diff
clean 'lint module: verify' verify

echo "lint: $passed gates passed, $failed failed"
[[ $failed == 0 ]]
