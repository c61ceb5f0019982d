# The one door to building and checking. CI calls `make lint test`.

GO      ?= go
BIN     := bin
TOOLS   := build/lint
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

# What the tests and the demo need beside Go: command or file, and the Debian package that brings it.
NEEDS := yosys:yosys iverilog:iverilog vvp:iverilog mkfs.btrfs:btrfs-progs mkfs.xfs:xfsprogs mkfs.ext4:e2fsprogs \
	losetup:mount strace:strace python3:python3 git:git gcc:gcc /usr/include/stdio.h:libc6-dev

# make is often called by users whose PATH lacks the directories of mkfs and losetup.
export PATH := $(PATH):/usr/local/sbin:/usr/sbin:/sbin

.PHONY: help deps build demo lint test e2e-mcp bench clean
help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 12

deps: ## install what tests and demo need (root, Debian); otherwise name what is missing
	@missing=; \
	for need in $(NEEDS); do \
		what=$${need%%:*}; package=$${need#*:}; \
		command -v "$$what" >/dev/null || [ -e "$$what" ] || case " $$missing " in *" $$package "*) ;; *) missing="$$missing $$package" ;; esac; \
	done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "deps: missing:$$missing (run make deps as root, or install them)" >&2; exit 1; \
	fi; \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing

build: ## build the static binary bin/eda-sidecar
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $(BIN)/eda-sidecar ./cmd/eda-sidecar

demo: deps build ## show a synthesis, a simulation, a time-out, a crash and the audit trail
	examples/demo.sh

lint: ## run every gate: first on planted faults, then on the product
	@$(GO) mod download && $(GO) mod download -C test/lint # a gate that prints a download has not passed
	@$(GO) build -C test/lint -o $(CURDIR)/$(TOOLS)/houselint .
	@$(GO) build -C test/lint -o $(CURDIR)/$(TOOLS)/ tool
	@bash test/lint/gates.sh $(TOOLS)

test: deps ## run every test; refuses skips, filters and packages without tests
	@$(GO) build -o build/runner ./test/runner && build/runner

e2e-mcp: NEEDS += npm:npm curl:curl setpriv:util-linux
e2e-mcp: deps build ## run the official MCP clients and the conformance suite against the built program (1 min, npm)
	@test/e2e/mcp/run.sh

bench: ## measure product, floors and peers side by side into docs/benchmarks.md (5 min, quiet machine)
	@$(GO) build -o build/bench/bench ./test/bench && build/bench/bench

clean: ## remove what was built
	rm -rf $(BIN) build
