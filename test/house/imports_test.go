package house

import (
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// graph says who may import whom: in "a < b", b may import a, and nothing that no row allows. NONE is nothing.
const graph = `
NONE < internal/explore, internal/strictjson, cgroup/internal/witness, adapters, sidecar/durable, sidecar/session, sidecar/audit
cgroup/internal/witness < cgroup
cgroup, cgroup/internal/witness < cgroup/cgrouptest
sidecar/durable < sidecar/durable/durabletest
internal/explore < internal/explore/modeltest
internal/explore < internal/msync
internal/strictjson < sidecar/audit, sidecar/session, sidecar/txn, sidecar/server/codec
internal/msync < sidecar/lock, sidecar/job/outcome, sidecar/ledger/batch, sidecar/server/codec, sidecar/agent/lease
sidecar/job/outcome < sidecar/job
sidecar/ledger/batch < sidecar/ledger
sidecar/server/codec < sidecar/server
sidecar/agent/lease < sidecar/agent
sidecar/audit < sidecar/ledger/batch
sidecar/durable, cgroup < sidecar/txn
sidecar/durable, cgroup < sidecar/agent
sidecar/session, sidecar/audit, sidecar/txn < sidecar/ledger
sidecar/audit, sidecar/job < sidecar/metrics
adapters, cgroup, sidecar/lock, sidecar/session, sidecar/txn, sidecar/audit, sidecar/ledger < sidecar/job
sidecar/job, adapters, sidecar/audit, sidecar/session, sidecar/ledger < sidecar/server
EVERYTHING < sidecar, cmd/eda-sidecar
sidecar < cmd/eda-sidecar
`

// planned are packages of the graph that nobody has written yet. Writing one strikes it from this list.
var planned = []string{
	"sidecar/agent", "sidecar/agent/lease",
}

// testOnly are packages that test files alone may import.
var testOnly = []string{"cgroup/cgrouptest", "sidecar/durable/durabletest", "internal/explore/modeltest"}

// edges parses graph: package to the packages that it may import.
func edges() map[string][]string {
	allowed := map[string][]string{}
	for row := range strings.Lines(strings.TrimSpace(graph)) {
		from, to, _ := strings.Cut(strings.TrimSpace(row), " < ")
		for b := range strings.SplitSeq(to, ", ") {
			allowed[b] = append(allowed[b], strings.Split(from, ", ")...)
		}
	}
	return allowed
}

func checkImports(files []*source) (findings []string) {
	allowed := edges()
	for _, s := range files {
		for _, imp := range s.syntax.Imports {
			if imp.Name != nil && imp.Name.Name == "." {
				findings = append(findings, s.at(imp, "dot-import: names without a source cannot be checked"))
			}
		}
		if !s.product() {
			continue
		}
		may, known := allowed[s.dir]
		if !known {
			findings = append(findings, s.at(s.syntax, "package %s is not in the import graph of test/house", s.dir))
		}
		for _, imp := range s.syntax.Imports {
			p, own := strings.CutPrefix(strings.Trim(imp.Path.Value, `"`), module+"/")
			switch every := slices.Contains(may, "EVERYTHING"); {
			case !own:
			case slices.Contains(testOnly, p):
				findings = append(findings, s.at(imp, "%s is for test files alone", p))
			case p == "internal/explore" && s.dir == "internal/msync" && !s.needsTag("edamodel"):
				findings = append(findings, s.at(imp, "the explorer must not be linked into the product: tag edamodel"))
			case slices.Contains(may, p), every && p != "sidecar" && !strings.HasPrefix(p, "internal/") && !strings.HasPrefix(p, "test/"):
			default:
				findings = append(findings, s.at(imp, "%s must not import %s: imports point down; it may import %q", s.dir, p, may))
			}
		}
	}
	return findings
}

// ban says that names of a package, or the whole import, are for some directories alone.
type ban struct {
	pkg   string         // import path; a path below it is banned, too
	names *regexp.Regexp // names in it; nil: the import itself
	allow []string       // directories, with what is below them
	tests bool           // test files must obey, too
	why   string
}

var (
	// pure are the functions and conversions of unix and syscall that enter no kernel.
	pure    = regexp.MustCompile(`^(Errno|Signal|Major|Minor|Mkdev|ByteSliceToString|ErrnoName|SignalName|SignalNum)$`)
	nowhere []string
)

var bans = []ban{
	{"os/exec", nil, []string{"cgroup", "sidecar/agent"}, false, "only cgroup starts processes: no other start is contained"},
	{"os", regexp.MustCompile(`^(StartProcess|FindProcess)$`), []string{"cgroup", "sidecar/agent"}, false, "only cgroup starts and signals processes"},
	{"os", regexp.MustCompile(`^(Rename|Remove)$`), []string{"sidecar/durable", "cgroup"}, false, "only durable renames and removes (cgroup: its groups): every other way skips an fsync or an identity check"},
	{"os", regexp.MustCompile(`^RemoveAll$`), []string{"sidecar/durable", "cgroup", "cmd/eda-sidecar"}, false, "only durable removes (cmd: its temporary copies of an example)"},
	{"os", regexp.MustCompile(`^(WriteFile|Create)$`), []string{"sidecar/durable", "cgroup"}, false, "only durable writes files: write, fsync, close, rename, fsync of both directories"},
	{"os", regexp.MustCompile(`^(Getenv|LookupEnv|Environ|ExpandEnv|Setenv|Unsetenv|Clearenv)$`), []string{"cmd/eda-sidecar", "internal/explore/modeltest"}, false, "only cmd reads the environment, into one Config (modeltest: the schedule to replay)"},
	{"golang.org/x/sys/unix", nil, []string{"cgroup", "sidecar/durable", "sidecar/agent", "cmd/eda-sidecar"}, false, "raw system calls stay in three packages and the set-up of main"},
	{"syscall", nil, []string{"cgroup", "sidecar/durable", "sidecar/agent", "cmd/eda-sidecar"}, false, "raw system calls stay in three packages and the set-up of main"},
	{"github.com/containerd/cgroups", nil, []string{"cgroup"}, true, "only cgroup touches cgroupfs"},
	{"modernc.org/sqlite", nil, []string{"sidecar/ledger"}, true, "one ledger, one commit point: nobody else speaks SQL"},
	{"database/sql", nil, []string{"sidecar/ledger"}, true, "one ledger, one commit point: nobody else speaks SQL"},
	{module + "/adapters", regexp.MustCompile(`^Command$`), []string{"cmd/eda-sidecar"}, false, "a command from a command line is cmd's alone"},
	{"github.com/prometheus/client_golang", nil, []string{"sidecar/metrics"}, false, "no counter elsewhere: counters come from durable events"},
	{"github.com/modelcontextprotocol/go-sdk", nil, []string{"sidecar/server", "cmd/eda-sidecar"}, false, "MCP shapes are known in one place, and to the call command"},
	{"log", nil, []string{"cmd/eda-sidecar", "sidecar", "sidecar/server"}, false, "libraries return errors or emit events; they do not log"},
	{"github.com/sirupsen/logrus", nil, nowhere, false, "the house logs by slog"},
	{"time", regexp.MustCompile(`^Sleep$`), nowhere, true, "wait for an event, bounded; a sleep is a guess"},
}

// below reports whether dir is one of dirs or lies below one. The directory sidecar stands for itself alone.
func below(dir string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return dir == d || d != "sidecar" && strings.HasPrefix(dir, d+"/") })
}

func checkBans(files []*source) (findings []string) {
	for _, s := range files {
		for _, b := range bans {
			if below(s.dir, b.allow) || !b.tests && !s.product() {
				continue
			}
			for _, imp := range s.syntax.Imports {
				p := strings.Trim(imp.Path.Value, `"`)
				if b.names == nil && (p == b.pkg || strings.HasPrefix(p, b.pkg+"/")) && entersKernel(s, p) {
					findings = append(findings, s.at(imp, "import of %s: %s", p, b.why))
				}
			}
			s.selectors(func(n *ast.SelectorExpr, pkg, name string) {
				// a test binary as its own misbehaving tool
				inChild := s.test() && (strings.HasPrefix(path.Base(s.path), "villain") || strings.Contains(s.comment(n), "re-executed"))
				if b.names != nil && pkg == b.pkg && b.names.MatchString(name) && !inChild {
					findings = append(findings, s.at(n, "%s.%s: %s", path.Base(pkg), name, b.why))
				}
			})
		}
	}
	return findings
}

// entersKernel reports whether s calls a function of unix or syscall; types and numbers of errors and signals are free.
func entersKernel(s *source, imported string) (calls bool) {
	if imported != "syscall" && imported != "golang.org/x/sys/unix" {
		return true
	}
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
				x, ok := sel.X.(*ast.Ident)
				calls = calls || ok && s.imports[x.Name] == imported && !pure.MatchString(sel.Sel.Name)
			}
		}
		return true
	})
	return calls
}

func TestImports(t *testing.T) {
	files := load(t)
	report(t, checkImports(files))
	report(t, checkBans(files))
	seen := map[string]bool{}
	for _, s := range files {
		seen[s.dir] = seen[s.dir] || s.product()
	}
	for dir := range edges() {
		if is := slices.Contains(planned, dir); seen[dir] == is {
			t.Errorf("package %s: exists = %t, planned = %t: a package of the graph either exists or is planned", dir, seen[dir], is)
		}
	}
}

func TestImportControls(t *testing.T) {
	check := func(s *source) []string { return append(checkImports([]*source{s}), checkBans([]*source{s})...) }
	controls(t, check, []control{
		{"upwards", "sidecar/txn/a.go", `import "` + module + `/sidecar/ledger"`, "must not import sidecar/ledger"},
		{"sideways", "adapters/a.go", `import "` + module + `/cgroup"`, "must not import cgroup"},
		{"core_of_another", "sidecar/session/a.go", `import "` + module + `/sidecar/job/outcome"`, "must not import"},
		{"to_main_assembly", "sidecar/job/a.go", `import "` + module + `/sidecar"`, "must not import sidecar"},
		{"internal_of_everything", "sidecar/a.go", `import "` + module + `/internal/msync"`, "must not import internal/msync"},
		{"unknown_package", "sidecar/helpers/a.go", ``, "not in the import graph"},
		{"dot", "sidecar/txn/a_test.go", `import . "os"`, "dot-import"},
		{"test_only", "sidecar/txn/a.go", `import "` + module + `/cgroup/cgrouptest"`, "test files alone"},
		{"test_only_by_assembly", "sidecar/a.go", `import "` + module + `/sidecar/durable/durabletest"`, "test files alone"},
		{"explorer_linked", "internal/msync/a.go", `import "` + module + `/internal/explore"`, "must not be linked"},
		{"exec", "sidecar/job/a.go", `import "os/exec"`, "only cgroup starts"},
		{"exec_renamed", "sidecar/job/a.go", `import x "os/exec"`, "only cgroup starts"},
		{"start", "sidecar/job/a.go", `import "os"; var _ = os.StartProcess`, "os.StartProcess"},
		{"signal", "sidecar/job/a.go", `import "syscall"; func f() { syscall.Kill(1, 9) }`, "raw system calls"},
		{"rename", "sidecar/txn/a.go", `import os "os"; func f() { os.Rename("a", "b") }`, "only durable renames"},
		{"rename_aliased", "sidecar/txn/a.go", `import o "os"; func f() { o.Rename("a", "b") }`, "only durable renames"},
		{"create", "sidecar/txn/a.go", `import "os"; func f() { os.Create("a") }`, "only durable writes"},
		{"environment", "sidecar/a.go", `import "os"; var _ = os.Getenv("A")`, "only cmd reads"},
		{"cgroups", "sidecar/job/a_test.go", `import "github.com/containerd/cgroups/v3/cgroup2"`, "only cgroup touches"},
		{"sql", "sidecar/job/a.go", `import _ "modernc.org/sqlite"`, "nobody else speaks SQL"},
		{"command", "sidecar/job/a.go", `import "` + module + `/adapters"; var _ = adapters.Command`, "cmd's alone"},
		{"counter", "sidecar/job/a.go", `import "github.com/prometheus/client_golang/prometheus"`, "no counter elsewhere"},
		{"mcp", "sidecar/job/a.go", `import "github.com/modelcontextprotocol/go-sdk/mcp"`, "MCP shapes"},
		{"slog", "sidecar/job/a.go", `import "log/slog"`, "do not log"},
		{"sleep", "sidecar/job/a_test.go", `import "time"; func f() { time.Sleep(1) }`, "a sleep is a guess"},
		{"sleep_of_a_product", "cgroup/a.go", `import "time"; func f() { time.Sleep(1) } // re-executed`, "a sleep is a guess"},
		{"down", "sidecar/txn/a.go", `import "` + module + `/sidecar/durable"`, ""},
		{"assembly", "sidecar/a.go", `import ("log/slog"; "` + module + `/cgroup"; "` + module + `/sidecar/server")`, ""},
		{"child", "cgroup/a_test.go", `import "time"; func f() { time.Sleep(1) } // in the re-executed child`, ""},
		{"errno", "sidecar/job/a.go", `import "golang.org/x/sys/unix"; var _ = unix.Errno(unix.ENOSPC)`, ""},
		{"model", "internal/msync/m.go", "//go:build edamodel\n\npackage x; import _ \"" + module + `/internal/explore"`, ""},
	})
}

// control is source that a checker must reject with a finding that contains want, or accept where want is empty.
type control struct{ name, path, text, want string }

func controls(t *testing.T, check func(*source) []string, all []control) {
	t.Helper()
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			text := c.text
			if !strings.Contains(text, "package ") {
				text = "package x\n" + text
			}
			s, err := parse(c.path, text)
			if err != nil {
				t.Fatal(err)
			}
			found := strings.Join(check(s), "\n")
			if c.want == "" && found != "" || c.want != "" && !strings.Contains(found, c.want) {
				t.Errorf("%s\nfound %q, want %q", text, found, c.want)
			}
		})
	}
}
