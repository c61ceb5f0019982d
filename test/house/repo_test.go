package house

import (
	"debug/elf"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/test/house/doctable"
)

// Limits of the product, design section 6: what a stranger downloads, and whom they must trust.
const (
	maxBinaryBytes = 28 << 20 // stripped
	maxModules     = 60       // in go list -deps of the binary
)

// build makes the binary as the Makefile does.
func build(t *testing.T, path string) {
	t.Helper()
	t.Setenv("CGO_ENABLED", "0")
	run(t, doctable.Root(t), "go", "build", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", path, "./cmd/eda-sidecar")
}

func TestBinary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "eda-sidecar")
	build(t, path)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("NOTE binary: %.1f MiB", float64(info.Size())/(1<<20))
	report(t, checkBinary(t, path, maxBinaryBytes))
	if len(checkBinary(t, path, 1<<10)) != 1 {
		t.Error("control: a limit of 1 KiB is kept")
	}
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if got := checkBinary(t, shell, maxBinaryBytes); len(got) != 1 {
		t.Errorf("control: a dynamic binary passes: %q", got)
	}
}

func checkBinary(t *testing.T, path string, limit int64) (findings []string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > limit {
		findings = append(findings, fmt.Sprintf("the binary has %d bytes, limit %d", info.Size(), limit))
	}
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		findings = append(findings, "the binary is not static")
	}
	return findings
}

// TestDependencies keeps docs/dependencies.txt: every module, and for each direct one what it saves, costs, and who keeps it.
func TestDependencies(t *testing.T) {
	root := doctable.Root(t)
	const format = "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{if not .Indirect}} direct{{end}}{{end}}{{end}}"
	list := func(args ...string) map[string]bool {
		set := map[string]bool{}
		for line := range strings.Lines(run(t, root, "go", append([]string{"list", "-deps", "-f", format}, args...)...)) {
			set[strings.TrimSpace(line)] = true
		}
		return set
	}
	linked := list("./cmd/eda-sidecar")
	tests := list("-test", "./...")
	for m := range linked {
		delete(tests, m)
	}
	if len(linked) == 0 || len(linked) > maxModules {
		t.Errorf("%d modules in the binary, limit %d", len(linked), maxModules)
	}
	t.Logf("NOTE modules: %d in the binary, %d more in tests", len(linked), len(tests))
	path := filepath.Join(root, "docs", "dependencies.txt")
	old, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	next, findings := dependencies(string(old), slices.Sorted(maps.Keys(linked)), slices.Sorted(maps.Keys(tests)))
	if *update {
		if err := os.WriteFile(path, []byte(next), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if next != string(old) {
		findings = append(findings, "docs/dependencies.txt is not what go list says (run with -update), want:\n"+next)
	}
	report(t, findings)
}

// dependencies renders the golden with the reasons that old gives; a direct module without one is a finding.
func dependencies(old string, linked, tests []string) (text string, findings []string) {
	reasons := map[string]string{}
	for line := range strings.Lines(old) {
		module, reason, _ := strings.Cut(strings.TrimSpace(line), ": ")
		path, _, _ := strings.Cut(module, " ")
		reasons[path] = reason
	}
	for i, part := range [][]string{linked, tests} {
		text += []string{"# In the binary. Direct ones carry a reason: what it saves, what it costs, who keeps it.\n", "\n# In tests alone.\n"}[i]
		for _, module := range part {
			module, direct := strings.CutSuffix(module, " direct")
			path, _, _ := strings.Cut(module, " ")
			switch reason := reasons[path]; {
			case !direct:
				text += module + "\n"
			case reason == "":
				findings = append(findings, path+": a direct dependency without a reason in docs/dependencies.txt")
				fallthrough
			default:
				text += module + ": " + reason + "\n"
			}
		}
	}
	return text, findings
}

func TestDependencyControls(t *testing.T) {
	linked, tests := []string{"a v1 direct", "b v2"}, []string{"c v3"}
	good, _ := dependencies("a v0: saves much\n", linked, tests)
	if !strings.Contains(good, "a v1: saves much\nb v2\n\n# In tests alone.\nc v3\n") {
		t.Errorf("got %s", good)
	}
	for name, bad := range map[string]string{
		"dropped":   strings.Replace(good, "b v2\n", "", 1),
		"added":     good + "d v4\n",
		"version":   strings.Replace(good, "c v3", "c v4", 1),
		"no_reason": strings.Replace(good, ": saves much", "", 1),
	} {
		if next, findings := dependencies(bad, linked, tests); next == bad && len(findings) == 0 {
			t.Errorf("%s: accepted", name)
		}
	}
}

// local are words that only mean something where a commit was written: directories of a workplace, hosts of registries.
var local = absolute(`/work/(main|shared|\.library)\b`, `/tmp/bash_`+`jobs`, `([a-z]+\.)?proxy\.`+`golang\.org`, `sum\.`+`golang\.org`, `registry\.`+`npmjs`, `(deb|security)\.`+`debian\.org`, `pypi\.`+`org`)

// absolute matches any of the patterns where it does not go on a relative path.
func absolute(patterns ...string) *regexp.Regexp {
	return regexp.MustCompile(`(?m)(^|[^\w>})./-]|//)(` + strings.Join(patterns, "|") + `)`)
}

// topLevel is the fixed layout of the repository.
var topLevel = strings.Fields("cmd sidecar cgroup adapters internal deploy helm test docs examples .ci go.mod go.sum Dockerfile README.md HACKING.md LICENSE Makefile .gitignore")

// checkFile keeps the rules for the text of every file.
func checkFile(name, text, root string) (findings []string) {
	here := local
	if strings.Count(root, "/") > 1 { // where this checkout lies
		here = regexp.MustCompile(local.String() + "|" + absolute(regexp.QuoteMeta(root)+`\b`).String())
	}
	if found := here.FindString(text); found != "" {
		findings = append(findings, fmt.Sprintf("%s: %q means something on one machine alone", name, found))
	}
	if found := unfinished.FindString(text); found != "" && !strings.HasPrefix(name, "LICENSE") {
		findings = append(findings, fmt.Sprintf("%s: %q: finish it, or leave it out", name, found))
	}
	if top, _, _ := strings.Cut(name, "/"); !slices.Contains(topLevel, top) {
		findings = append(findings, name+": the top level is fixed, and has no place for it")
	}
	return findings
}

func TestTree(t *testing.T) {
	for name, text := range tree(t) {
		report(t, checkFile(name, text, doctable.Root(t)))
	}
	for name, text := range map[string]string{
		"README.md": "see /work/" + "shared/design", "Dockerfile": "ENV GOPROXY=https://proxy." + "golang.org", "docs/a.md": "TO" + "DO: write",
		"scratch/x": "", "docs/b.md": "in /src/checkout/docs",
	} {
		if found := checkFile(name, text, "/src/checkout"); len(found) != 1 {
			t.Errorf("control %s: found %q", name, found)
		}
	}
	if found := checkFile("docs/a.md", "jobs/<job>/work/main.v, a/src/checkout", "/src/checkout"); len(found) != 0 {
		t.Errorf("found %q", found)
	}
}

// doors are the lines by which CI reaches the gates: without one of them the gates are there, and nobody calls them.
var doors = map[string][]string{
	"Makefile": {"\ntest: deps", "go build -o build/runner ./test/runner && build/runner\n", "\nlint:", "bash test/lint/gates.sh", "test/e2e/mcp/run.sh\n"},
	".ci/run":  {"set -euo pipefail\n", "make deps", "make lint", "make test", "make e2e-mcp"},
}

func checkDoors(files map[string]string) (findings []string) {
	for name, lines := range doors {
		for _, line := range lines {
			if !strings.Contains(strings.ReplaceAll(files[name], "$(GO)", "go"), line) {
				findings = append(findings, fmt.Sprintf("%s must contain %q", name, line))
			}
		}
		if strings.Contains(files[name], "ALLOW_"+"SKIP") {
			findings = append(findings, name+": must not allow a skip")
		}
	}
	return findings
}

func TestDoors(t *testing.T) {
	files := tree(t)
	report(t, checkDoors(files))
	for name := range doors {
		cut := maps.Clone(files)
		cut[name] = strings.NewReplacer("runner", "", "gates.sh", "", "make lint", "", "make test", "", "e2e", "").Replace(files[name]) + "X_ALLOW_" + "SKIP=1"
		if found := checkDoors(cut); len(found) != 4 {
			t.Errorf("control %s: found %q", name, found)
		}
	}
}
