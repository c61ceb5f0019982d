package house

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// checkSource keeps the rules that one file can break.
func checkSource(s *source) (findings []string) {
	var inFunc *ast.FuncDecl
	for _, decl := range s.syntax.Decls {
		inFunc, _ = decl.(*ast.FuncDecl)
		if inFunc != nil && inFunc.Name.Name == "init" && inFunc.Recv == nil {
			findings = append(findings, s.at(inFunc, "init(): what happens on import cannot be read in main"))
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				findings = append(findings, s.goroutine(n, inFunc)...)
			case *ast.CallExpr:
				sel, ok := n.Fun.(*ast.SelectorExpr)
				if !ok {
					break
				}
				if sel.Sel.Name == "Go" && len(n.Args) == 1 { // sync.WaitGroup, errgroup.Group
					findings = append(findings, s.goroutine(n, inFunc)...)
				}
				if x, ok := sel.X.(*ast.Ident); ok && s.test() && strings.HasPrefix(sel.Sel.Name, "Skip") && slices.Contains([]string{"t", "b", "tb", "f", "rt"}, x.Name) {
					findings = append(findings, s.at(n, "%s.%s: what did not run proved nothing; a missing need is t.Fatal", x.Name, sel.Sel.Name))
				}
				findings = append(findings, s.call(n, sel, inFunc)...)
			}
			return true
		})
	}
	for _, group := range s.syntax.Comments {
		if unfinished.MatchString(group.Text()) {
			findings = append(findings, s.at(group, "unfinished work is no part of a tree: finish it, or leave it out"))
		}
	}
	return findings
}

var unfinished = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b|(?i)not ` + `implemented`)

// call keeps the rules about single calls of the standard library.
func (s *source) call(n *ast.CallExpr, sel *ast.SelectorExpr, in *ast.FuncDecl) []string {
	x, ok := sel.X.(*ast.Ident)
	if !ok {
		return nil
	}
	name := path.Base(s.imports[x.Name]) + "." + sel.Sel.Name
	switch name {
	case "strings.TrimLeft", "strings.TrimRight", "bytes.TrimLeft", "bytes.TrimRight":
		lit, ok := n.Args[len(n.Args)-1].(*ast.BasicLit)
		cutset, err := "", error(nil)
		if ok {
			cutset, err = strconv.Unquote(lit.Value)
		}
		if !ok || err != nil || utf8.RuneCountInString(cutset) != 1 {
			return []string{s.at(n, "%s takes a set of characters, not a word: use Cut, CutPrefix or CutSuffix", name)}
		}
	case "os.Exit", "log.Fatal", "log.Fatalf", "log.Fatalln", "cobra.CheckErr":
		if !s.test() && (s.syntax.Name.Name != "main" || in == nil || in.Name.Name != "main" || name != "os.Exit") {
			return []string{s.at(n, "%s ends the process past every defer: only os.Exit, only in func main", name)}
		}
	case "syscall.Exit", "unix.Exit":
		if !s.test() && s.dir != "cgroup" {
			return []string{s.at(n, "%s: only cgroup's shim and probe end without unwinding", name)}
		}
	}
	return nil
}

// sequential are the packages that start no goroutine, with the functions that are excused.
var sequential = map[string]string{
	"adapters": "", "sidecar/txn": "", "sidecar/lock": "", "sidecar/session": "", "sidecar/audit": "", "sidecar/durable": "Barrier",
}

func (s *source) goroutine(n ast.Node, in *ast.FuncDecl) []string {
	excused, listed := sequential[s.dir]
	if !listed || s.test() || in != nil && in.Name.Name == excused {
		return nil
	}
	return []string{s.at(n, "a goroutine in %s, which has none", s.dir)}
}

// headings are those of every package document, in this order.
var headings = []string{"Guarantees", "Not guaranteed", "Concurrency", "Failure", "Testing", "Sources"}

// checkPackageDoc wants the document of a product package in doc.go (or in its only file), with every heading.
func checkPackageDoc(dir string, files []*source) (findings []string) {
	var doc *source
	for _, s := range files {
		if s.syntax.Doc == nil {
			continue
		}
		if doc != nil {
			findings = append(findings, s.at(s.syntax, "a second package document, after %s", doc.path))
		}
		doc = s
	}
	if doc == nil {
		return append(findings, dir+": no package document: doc.go with "+strings.Join(headings, ", "))
	}
	if len(files) > 1 && path.Base(doc.path) != "doc.go" && !slices.Contains(testOnly, dir) {
		findings = append(findings, doc.path+": the package document belongs in doc.go")
	}
	text := doc.syntax.Doc.Text()
	if first, ok := strings.CutPrefix(text, "Package "+doc.syntax.Name.Name+" "); (!ok || first == "") && !strings.HasPrefix(text, "Command "+path.Base(dir)+" ") {
		findings = append(findings, doc.path+": the document must begin with the package's name")
	}
	if slices.Contains(testOnly, dir) {
		return findings // a few constructors for tests need no chapters
	}
	for _, h := range headings {
		before, after, found := strings.Cut(text, "\n# "+h+"\n")
		if next, _, _ := strings.Cut(after, "\n# "); !found || strings.TrimSpace(next) == "" {
			findings = append(findings, doc.path+": no heading # "+h+" with text below it, in its place")
			continue
		}
		text = text[len(before)+1:]
	}
	return findings
}

// checkExported wants a comment on every exported name, beginning with it; constants and variables may share one.
func checkExported(s *source) (findings []string) {
	need := func(name *ast.Ident, docs ...*ast.CommentGroup) {
		if !name.IsExported() {
			return
		}
		for _, d := range docs {
			if d.Text() != "" {
				return
			}
		}
		findings = append(findings, s.at(name, "%s is exported and has no comment that begins with its name", name.Name))
	}
	begins := func(name *ast.Ident, doc *ast.CommentGroup) {
		if !strings.HasPrefix(doc.Text(), name.Name+" ") && !strings.HasPrefix(doc.Text(), name.Name+":") && !strings.HasPrefix(doc.Text(), name.Name+",") {
			doc = nil
		}
		need(name, doc)
	}
	for _, decl := range s.syntax.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			wraps := d.Recv != nil && slices.Contains(testOnly, s.dir) // methods of an interface that has its documents elsewhere
			if !wraps && (d.Recv == nil || ast.IsExported(receiver(d.Recv.List[0].Type))) {
				begins(d.Name, d.Doc)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					if doc := spec.Doc; doc == nil && d.Lparen == token.NoPos {
						begins(spec.Name, d.Doc)
					} else {
						begins(spec.Name, doc)
					}
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						need(name, spec.Doc, spec.Comment, d.Doc)
					}
				}
			}
		}
	}
	return findings
}

// receiver returns the name of a method's receiver type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func TestSources(t *testing.T) {
	packages := map[string][]*source{}
	production, tests := 0, 0
	for _, s := range load(t) {
		report(t, checkSource(s))
		if s.test() {
			tests += strings.Count(s.text, "\n")
			continue
		}
		report(t, checkExported(s))
		if s.product() {
			packages[s.dir] = append(packages[s.dir], s)
			production += strings.Count(s.text, "\n")
		}
	}
	for dir, files := range packages {
		report(t, checkPackageDoc(dir, files))
	}
	t.Logf("NOTE production lines: %d in %d packages, test lines: %d", production, len(packages), tests)
}

func TestSourceControls(t *testing.T) {
	controls(t, checkSource, []control{
		{"init", "sidecar/a.go", `func init() {}`, "init()"},
		{"init_in_tests", "sidecar/a_test.go", `func init() {}`, "init()"},
		{"method_init", "sidecar/a.go", `type t int; func (t) init() {}`, ""},
		{"exit", "sidecar/a.go", `import "os"; func f() { os.Exit(1) }`, "only in func main"},
		{"exit_beside_main", "cmd/eda-sidecar/a.go", `package main; import "os"; func f() { os.Exit(1) }`, "only in func main"},
		{"exit_in_literal", "cmd/eda-sidecar/a.go", `package main; import "os"; var f = func() { os.Exit(1) }`, "only in func main"},
		{"fatal", "cmd/eda-sidecar/a.go", `package main; import "log"; func main() { log.Fatal(1) }`, "past every defer"},
		{"check_err", "cmd/eda-sidecar/a.go", `package main; import "github.com/spf13/cobra"; func main() { cobra.CheckErr(nil) }`, "past every defer"},
		{"exit_in_main", "cmd/eda-sidecar/a.go", `package main; import "os"; func main() { os.Exit(1) }`, ""},
		{"raw_exit", "sidecar/agent/a.go", `import "syscall"; func f() { syscall.Exit(1) }`, "without unwinding"},
		{"raw_exit_of_the_shim", "cgroup/a.go", `import "golang.org/x/sys/unix"; func f() { unix.Exit(1) }`, ""},
		{"go", "sidecar/txn/a.go", `func f() { go f() }`, "a goroutine in sidecar/txn"},
		{"wait_group", "adapters/a.go", `import "sync"; func f() { var w sync.WaitGroup; w.Go(f) }`, "a goroutine in adapters"},
		{"go_in_durable", "sidecar/durable/a.go", `func f() { go f() }`, "a goroutine in sidecar/durable"},
		{"go_in_barrier", "sidecar/durable/a.go", `func Barrier() { go f() }; func f() {}`, ""},
		{"go_elsewhere", "sidecar/job/a.go", `func f() { go f() }`, ""},
		{"go_in_tests", "sidecar/txn/a_test.go", `func f() { go f() }`, ""},
		{"cutset", "adapters/a.go", `import "strings"; var x = strings.TrimLeft("ab", "ab")`, "set of characters"},
		{"cutset_variable", "adapters/a_test.go", `import "bytes"; func f(b []byte, c string) []byte { return bytes.TrimRight(b, c) }`, "set of characters"},
		{"cutset_renamed", "adapters/a.go", `import s "strings"; var x = s.TrimRight("ab", "ab")`, "set of characters"},
		{"cutset_of_one", "adapters/a.go", `import "strings"; var x = strings.TrimLeft("ab", "\t")`, ""},
		{"skip", "adapters/a_test.go", `import "testing"; func Test(t *testing.T) { t.Skip("no yosys") }`, "t.Fatal"},
		{"skip_now", "adapters/a_test.go", `import "testing"; func f(tb testing.TB) { if true { tb.SkipNow() } }`, "t.Fatal"},
		{"unfinished", "adapters/a.go", "// TO" + "DO(x): all.\nvar x int", "unfinished"},
		{"stub", "adapters/a.go", "func f() {\n\t// Not " + "implemented yet.\n}", "unfinished"},
	})
	controls(t, checkExported, []control{
		{"func", "a/a.go", "func F() {}", "F is exported"},
		{"other_name", "a/a.go", "// G does.\nfunc F() {}", "F is exported"},
		{"prefix_of_name", "a/a.go", "// Fast does.\nfunc F() {}", "F is exported"},
		{"method", "a/a.go", "// T is.\ntype T[P any] struct{}\nfunc (t *T[P]) M() {}", "M is exported"},
		{"wrapper", "cgroup/cgrouptest/a.go", "// T is.\ntype T struct{}\n\nfunc (t *T) M() {}", ""},
		{"type_in_group", "a/a.go", "// T and U are.\ntype (\n\tT int\n)", "T is exported"},
		{"constant", "a/a.go", "const C = 1", "C is exported"},
		{"good", "a/a.go", "// F does.\nfunc F() {}\n\n// The limits.\nconst (\n\tA = 1\n\tB = 2\n)\n\n// T is.\ntype T int\n\n// M does.\nfunc (T) M() {}\n\ntype u int\n\nfunc (u) N() {}", ""},
	})
	const good = "// Package x does.\n//\n// # Guarantees\n//\n// a\n//\n// # Not guaranteed\n//\n// b\n//\n// # Concurrency\n//\n// c\n//\n// # Failure\n//\n// d\n//\n// # Testing\n//\n// e\n//\n// # Sources\n//\n// f\npackage x\n"
	doc := func(s *source) []string { return checkPackageDoc(s.dir, []*source{s}) }
	cases := []control{{"doc", "x/doc.go", good, ""}, {"no_doc", "x/doc.go", "package x", "no package document"}, {"name", "x/doc.go", strings.Replace(good, "Package x", "Package y", 1), "begin with the package's name"}}
	for _, h := range headings {
		cases = append(cases, control{"without_" + h, "x/doc.go", strings.Replace(good, "# "+h+"\n", "# Other\n", 1), "# " + h})
	}
	cases = append(cases,
		control{"empty_heading", "x/doc.go", strings.Replace(good, "//\n// c\n", "", 1), "# Concurrency"},
		control{"order", "x/doc.go", strings.NewReplacer("# Failure", "# Testing", "# Testing", "# Failure").Replace(good), "# Testing"})
	controls(t, doc, cases)
	s, err := parse("x/a.go", good)
	if err != nil {
		t.Fatal(err)
	}
	if found := checkPackageDoc("x", []*source{s, s}); len(found) != 2 {
		t.Errorf("two documents outside doc.go: found %q", found)
	}
}
