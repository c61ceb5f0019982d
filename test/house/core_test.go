package house

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// cores decide and never wait, so that every schedule of them can be explored: no goroutine, clock, context or I/O.
var cores = []string{"sidecar/lock", "sidecar/job/outcome", "sidecar/ledger/batch", "sidecar/server/codec", "sidecar/agent/lease"}

var notInCores = []string{"sync", "sync/atomic", "time", "context", "os", "math/rand", "math/rand/v2", "golang.org/x/sys/unix", "syscall"}

// checkCore keeps the rules for the product files of one core and for its models, which run them under every schedule. It
// knows channels and maps by the declarations of fields, variables and parameters in the same package, without types.
func checkCore(files []*source) (findings []string) {
	kinds := map[string]string{} // of a declared name: chan or map
	note := func(name *ast.Ident, typ ast.Expr) {
		switch typ.(type) {
		case *ast.ChanType:
			kinds[name.Name] = "chan"
		case *ast.MapType:
			kinds[name.Name] = "map"
		}
	}
	for _, s := range files {
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				for _, name := range n.Names {
					note(name, n.Type)
				}
			case *ast.ValueSpec:
				for i, name := range n.Names {
					if note(name, n.Type); len(n.Values) == len(n.Names) {
						note(name, made(n.Values[i]))
					}
				}
			case *ast.AssignStmt:
				for i, e := range n.Lhs {
					if name, ok := e.(*ast.Ident); ok && len(n.Lhs) == len(n.Rhs) {
						note(name, made(n.Rhs[i]))
					}
				}
			}
			return true
		})
	}
	for _, s := range files {
		findings = append(findings, coreFile(s, kinds)...)
	}
	return findings
}

// made returns the type that a literal or a make names.
func made(e ast.Expr) ast.Expr {
	switch e := e.(type) {
	case *ast.CompositeLit:
		return e.Type
	case *ast.CallExpr:
		if lastName(e.Fun) == "make" {
			return e.Args[0]
		}
	}
	return nil
}

func coreFile(s *source, kinds map[string]string) (findings []string) {
	bad := func(n ast.Node, what string) {
		if s.test() {
			findings = append(findings, s.at(n, "%s in a model: what happens is the explorer's to decide", what))
		} else {
			findings = append(findings, s.at(n, "%s in a core: a core decides, a shell waits", what))
		}
	}
	for _, imp := range s.syntax.Imports {
		if p := strings.Trim(imp.Path.Value, `"`); slices.Contains(notInCores, p) {
			bad(imp, "import of "+p)
		}
	}
	for _, decl := range s.syntax.Decls {
		if d, ok := decl.(*ast.GenDecl); ok && d.Tok == token.VAR && path.Base(s.path) != "mutants_on.go" && !s.test() && !onlyErrors(d) {
			bad(d, "a package variable")
		}
	}
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			bad(n, "go")
		case *ast.SelectStmt:
			bad(n, "select")
		case *ast.SendStmt:
			bad(n, "a send")
		case *ast.UnaryExpr:
			if n.Op == token.ARROW {
				bad(n, "a receive")
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.Ident); ok && (f.Name == "close" || f.Name == "recover") {
				bad(n, f.Name)
			}
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && s.test() && slices.Contains([]string{"Fatal", "Fatalf", "FailNow", "Parallel", "Goexit"}, sel.Sel.Name) {
				bad(n, sel.Sel.Name)
			}
		case *ast.RangeStmt:
			switch kinds[lastName(n.X)] {
			case "chan":
				bad(n, "a range over a channel")
			case "map":
				if !strings.Contains(s.comment(n), "any order") {
					bad(n, "a range over a map (unless the line says why any order will do)")
				}
			}
		}
		return true
	})
	return findings
}

// onlyErrors reports whether every variable of d is a sentinel made by errors.New.
func onlyErrors(d *ast.GenDecl) bool {
	return !slices.ContainsFunc(d.Specs, func(spec ast.Spec) bool {
		v := spec.(*ast.ValueSpec)
		return len(v.Values) == 0 || slices.ContainsFunc(v.Values, func(e ast.Expr) bool {
			call, ok := e.(*ast.CallExpr)
			return !ok || lastName(call.Fun) != "New" && lastName(call.Fun) != "Errorf"
		})
	})
}

func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// guardLine matches what a file of mutants may hold, by its name: constants that are false, or variables that are bool.
var guardLine = map[string]*regexp.Regexp{
	"mutants_off.go": regexp.MustCompile(`^(?:(?://.*|package \w+|const \(|\)|)|(?:\t|const )(\w+)\s+= false(?: //.*)?)$`),
	"mutants_on.go":  regexp.MustCompile(`^(?:(?://.*|package \w+|var \(|\)|)|(?:\t|var )(\w+)\s+bool(?:\s+//.*)?)$`),
}

// checkMutants wants the same guards in both mutant files of a core, each of them in a condition of the product, and in one
// call of modeltest.Caught, which alone takes it away.
func checkMutants(files []*source) (findings []string) {
	guards := map[string]int{} // name to the number of mutant files that have it
	product, tests := "", ""
	for _, s := range files {
		allowed := guardLine[path.Base(s.path)]
		switch {
		case allowed == nil && !s.test():
			product += s.text
		case allowed == nil && s.needsTag("edamodel"):
			tests += s.text
		case allowed != nil:
			for i, line := range strings.Split(s.text, "\n") {
				if m := allowed.FindStringSubmatch(line); m == nil {
					findings = append(findings, fmt.Sprintf("%s:%d: want constants that are false in mutants_off.go, bool variables in mutants_on.go, and no more", s.path, i+1))
				} else if m[1] != "" {
					guards[m[1]]++
				}
			}
		}
	}
	for name, n := range guards {
		if n != 2 || !regexp.MustCompile(`\bif .*\b`+name+`\b`).MatchString(product) ||
			!regexp.MustCompile(`modeltest\.Caught\(t, &`+name+`,`).MatchString(tests) || len(regexp.MustCompile(`\b`+name+`\b`).FindAllString(tests, -1)) != 1 {
			findings = append(findings, name+": a guard must be in both mutant files, in a condition, and in one modeltest.Caught, which takes it away")
		}
	}
	if len(guards) == 0 {
		findings = append(findings, "a core without a guard that a test takes away")
	}
	return findings
}

func TestCores(t *testing.T) {
	byCore := map[string][]*source{}
	for _, s := range load(t) {
		if slices.Contains(cores, s.dir) {
			byCore[s.dir] = append(byCore[s.dir], s)
		}
	}
	for _, dir := range cores {
		if len(byCore[dir]) == 0 && slices.Contains(planned, dir) {
			continue
		}
		report(t, checkCore(slices.DeleteFunc(slices.Clone(byCore[dir]), func(s *source) bool { return s.test() && path.Base(s.path) != "model_test.go" })))
		for _, f := range checkMutants(byCore[dir]) {
			t.Errorf("%s: %s", dir, f)
		}
	}
}

func TestCoreControls(t *testing.T) {
	one := func(s *source) []string { return checkCore([]*source{s}) }
	controls(t, one, []control{
		{"import", "sidecar/lock/a.go", `import "sync/atomic"`, "import of sync/atomic"},
		{"clock", "sidecar/lock/a.go", `import "time"`, "import of time"},
		{"go", "sidecar/lock/a.go", `func f() { go f() }`, "go in a core"},
		{"select", "sidecar/lock/a.go", `func f() { select {} }`, "select in a core"},
		{"send", "sidecar/lock/a.go", `func f(c chan int) { c <- 1 }`, "a send"},
		{"receive", "sidecar/lock/a.go", `func f(c chan int) { <-c }`, "a receive"},
		{"close", "sidecar/lock/a.go", `func f(c chan int) { close(c) }`, "close in a core"},
		{"recover", "sidecar/lock/a.go", `func f() { recover() }`, "recover in a core"},
		{"range_chan", "sidecar/lock/a.go", `type t struct { c chan int }; func (x t) f() { for range x.c {} }`, "range over a channel"},
		{"range_map_made", "sidecar/lock/a.go", `func f() { m := make(map[int]int); for range m {} }`, "range over a map"},
		{"range_map_literal", "sidecar/lock/model_test.go", `func f() { m := map[int]int{}; for range m {} }`, "range over a map"},
		{"go_in_model", "sidecar/lock/model_test.go", `func f() { go f() }`, "go in a model"},
		{"receive_in_model", "sidecar/lock/model_test.go", `func f(c chan int) { <-c }`, "a receive in a model"},
		{"fatal_in_model", "sidecar/lock/model_test.go", `import "testing"; func f(t *testing.T) { t.Fatal() }`, "Fatal in a model"},
		{"parallel", "sidecar/lock/model_test.go", `import "testing"; func f(t *testing.T) { t.Parallel() }`, "Parallel in a model"},
		{"clock_in_model", "sidecar/lock/model_test.go", `import "time"`, "import of time in a model"},
		{"range_map", "sidecar/lock/a.go", `type t struct { m map[int]int }; func (x t) f() { for range x.m {} }`, "range over a map"},
		{"variable", "sidecar/lock/a.go", `var n int`, "a package variable"},
		{"good", "sidecar/lock/a.go", `import "errors"; var ErrBusy = errors.New("busy"); type t struct { m map[int]int; s []int }
			func (x t) f() (n int) { for range x.s { n++ }
			for range x.m { n++ } // a sum: any order
			return n }`, ""},
	})
	const off, on = "package x\nconst skip = false", "package x\nvar skip bool"
	const use, caught = "package x\nfunc f() { if !skip { f() } }", "//go:build edamodel\n\npackage x\nfunc f() { modeltest.Caught(t, &skip, 1) }"
	for _, tt := range []struct{ name, off, on, use, test, want string }{
		{"good", off, on, use, caught, ""},
		{"true", "package x\nconst skip = true", on, use, caught, "constants that are false"},
		{"not_bool", off, "package x\nvar skip int", use, caught, "bool variables"},
		{"missing", off, "package x", use, caught, "in both mutant files"},
		{"function", off + "\nfunc g() {}", on, use, caught, "and no more"},
		{"none", "package x", "package x", use, caught, "a core without"},
		{"unused", off, on, "package x\nfunc f() {}", caught, "in a condition"},
		{"no_control", off, on, use, "//go:build edamodel\n\npackage x", "takes it away"},
		{"control_never_built", off, on, use, "package x\nfunc f() { modeltest.Caught(t, &skip, 1) }", "takes it away"},
		{"taken_by_hand", off, on, use, caught + "\nfunc g() { skip = true }", "takes it away"},
		{"not_caught", off, on, use, "//go:build edamodel\n\npackage x\nfunc g() { skip = true }", "takes it away"},
	} {
		var files []*source
		for name, text := range map[string]string{"mutants_off.go": tt.off, "mutants_on.go": tt.on, "a.go": tt.use, "a_test.go": tt.test} {
			s, err := parse("x/"+name, text)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, s)
		}
		if found := strings.Join(checkMutants(files), "\n"); tt.want == "" && found != "" || !strings.Contains(found, tt.want) {
			t.Errorf("%s: found %q, want %q", tt.name, found, tt.want)
		}
	}
}
