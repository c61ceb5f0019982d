package house

import (
	"go/ast"
	"maps"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/test/house/doctable"
)

// primitives are the methods that must cost a core no call.
var primitives = []string{"Lock", "Unlock", "Load", "Store", "Swap", "CompareAndSwap"}

// called returns the primitives that a file calls, but for those that a guard's branch alone calls: the ordinary build has none.
func called(s *source, guards []string) []string {
	names := map[string]bool{}
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			guarded := false
			ast.Inspect(n.Cond, func(c ast.Node) bool {
				id, ok := c.(*ast.Ident)
				guarded = guarded || ok && slices.Contains(guards, id.Name)
				return true
			})
			if guarded {
				n.Body = &ast.BlockStmt{}
			}
		case *ast.CallExpr:
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && slices.Contains(primitives, sel.Sel.Name) {
				names[sel.Sel.Name] = true
			}
		}
		return true
	})
	return slices.Sorted(maps.Keys(names))
}

// TestInlining wants the compiler to inline every primitive that a core uses, though it imports msync alone.
func TestInlining(t *testing.T) {
	guards, used := map[string][]string{}, map[string][]string{}
	files := load(t)
	for _, s := range files {
		if path.Base(s.path) == "mutants_off.go" {
			for line := range strings.Lines(s.text) {
				if m := guardLine["mutants_off.go"].FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil && m[1] != "" {
					guards[s.dir] = append(guards[s.dir], m[1])
				}
			}
		}
	}
	for _, s := range files {
		if slices.Contains(cores, s.dir) && !s.test() {
			used[s.dir] = append(used[s.dir], called(s, guards[s.dir])...)
		}
	}
	if len(used) < 4 {
		t.Fatalf("%d cores", len(used))
	}
	for dir, names := range used {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-gcflags=-m", "./"+dir)
		cmd.Dir = doctable.Root(t)
		said, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("build %s: %v\n%s", dir, err, said)
		}
		for _, name := range names {
			if !inlined(string(said), name) {
				t.Errorf("%s: %s is not inlined: internal/msync must bring it", dir, name)
			}
		}
	}
	if inlined("./cell.go:1:2: inlining call to msync.Close\n./cell.go:3:4: can inline (*Cell).Load", "Load") {
		t.Error("control: what is no call of a primitive counts")
	}
}

// inlined reports whether the compiler says that it inlined a method of sync or sync/atomic.
func inlined(said, name string) bool {
	return regexp.MustCompile(`inlining call to (sync|atomic)\.\(\*\S+( \{.*\}\])?\)\.` + name + `\b`).MatchString(said)
}
