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

// checkCore keeps the rules for the product files of one core. It knows channels and maps by the declarations of fields,
// variables and parameters in the same package, without types.
func checkCore(files []*source) (findings []string) {
	kinds := map[string]string{} // of a declared name: chan or map
	for _, s := range files {
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			var names []*ast.Ident
			var typ ast.Expr
			switch n := n.(type) {
			case *ast.Field:
				names, typ = n.Names, n.Type
			case *ast.ValueSpec:
				names, typ = n.Names, n.Type
			}
			for _, name := range names {
				switch typ.(type) {
				case *ast.ChanType:
					kinds[name.Name] = "chan"
				case *ast.MapType:
					kinds[name.Name] = "map"
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

func coreFile(s *source, kinds map[string]string) (findings []string) {
	bad := func(n ast.Node, what string) {
		findings = append(findings, s.at(n, "%s in a core: a core decides, a shell waits", what))
	}
	for _, imp := range s.syntax.Imports {
		if p := strings.Trim(imp.Path.Value, `"`); slices.Contains(notInCores, p) {
			bad(imp, "import of "+p)
		}
	}
	for _, decl := range s.syntax.Decls {
		if d, ok := decl.(*ast.GenDecl); ok && d.Tok == token.VAR && path.Base(s.path) != "mutants_on.go" && !onlyErrors(d) {
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

// checkMutants wants the same guards in both mutant files of a core, each of them in a condition of the product, and in a
// test, of the build that has mutants, that takes it away.
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
		if n != 2 || !regexp.MustCompile(`\bif .*\b`+name+`\b`).MatchString(product) || !regexp.MustCompile(`\b`+name+`\b`).MatchString(tests) {
			findings = append(findings, name+": a guard must be in both mutant files, in a condition, and in a test that takes it away")
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
		report(t, checkCore(slices.DeleteFunc(slices.Clone(byCore[dir]), (*source).test)))
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
		{"range_map", "sidecar/lock/a.go", `type t struct { m map[int]int }; func (x t) f() { for range x.m {} }`, "range over a map"},
		{"variable", "sidecar/lock/a.go", `var n int`, "a package variable"},
		{"good", "sidecar/lock/a.go", `import "errors"; var ErrBusy = errors.New("busy"); type t struct { m map[int]int; s []int }
			func (x t) f() (n int) { for range x.s { n++ }
			for range x.m { n++ } // a sum: any order
			return n }`, ""},
	})
	const off, on = "package x\nconst skip = false", "package x\nvar skip bool"
	const use, caught = "package x\nfunc f() { if !skip { f() } }", "//go:build edamodel\n\npackage x\nvar p = &skip"
	for _, tt := range []struct{ name, off, on, use, test, want string }{
		{"good", off, on, use, caught, ""},
		{"true", "package x\nconst skip = true", on, use, caught, "constants that are false"},
		{"not_bool", off, "package x\nvar skip int", use, caught, "bool variables"},
		{"missing", off, "package x", use, caught, "in both mutant files"},
		{"function", off + "\nfunc g() {}", on, use, caught, "and no more"},
		{"none", "package x", "package x", use, caught, "a core without"},
		{"unused", off, on, "package x\nfunc f() {}", caught, "in a condition"},
		{"no_control", off, on, use, "//go:build edamodel\n\npackage x", "takes it away"},
		{"control_never_built", off, on, use, "package x\nvar p = &skip", "takes it away"},
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
