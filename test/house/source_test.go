// Package house keeps the rules of the repository that a machine can keep: who may import whom, what may be called where, what
// a package must say of itself, what the documents must show. Each rule is data, carries its reason, and has a negative
// control: source that the same checker must reject.
package house

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/test/house/doctable"
)

const module = "github.com/eda-sidecar/eda-sidecar"

var update = flag.Bool("update", false, "rewrite goldens and tables")

// source is one Go file of the main module, parsed whatever its build tags are.
type source struct {
	path    string // relative to the root, with slashes
	dir     string
	text    string
	syntax  *ast.File
	fset    *token.FileSet
	imports map[string]string // local name to path
}

func (s *source) test() bool    { return strings.HasSuffix(s.path, "_test.go") }
func (s *source) product() bool { return !s.test() && !strings.HasPrefix(s.path, "test/") }

// needsTag reports whether the file is built only with tag.
func (s *source) needsTag(tag string) bool {
	return strings.HasPrefix(s.text, "//go:build "+tag+"\n") || strings.Contains(s.text, "\n//go:build "+tag+"\n")
}

func (s *source) at(n ast.Node, format string, args ...any) string {
	return fmt.Sprintf("%s:%d: %s", s.path, s.fset.Position(n.Pos()).Line, fmt.Sprintf(format, args...))
}

// comment returns the text of the comment on the line of n; empty without one.
func (s *source) comment(n ast.Node) string {
	line := strings.Split(s.text, "\n")[s.fset.Position(n.Pos()).Line-1]
	_, text, _ := strings.Cut(line, "// ")
	return text
}

// parse makes a source of text, as if it stood at name.
func parse(name, text string) (*source, error) {
	s := &source{path: name, dir: path.Dir(name), text: text, fset: token.NewFileSet(), imports: map[string]string{}}
	var err error
	if s.syntax, err = parser.ParseFile(s.fset, name, text, parser.ParseComments|parser.SkipObjectResolution); err != nil {
		return nil, err
	}
	for _, imp := range s.syntax.Imports {
		p, err := strconv.Unquote(imp.Path.Value)
		if err != nil {
			return nil, err
		}
		local := path.Base(p)
		if strings.HasPrefix(local, "v") && len(local) == 2 { // .../rand/v2
			local = path.Base(path.Dir(p))
		}
		if imp.Name != nil {
			local = imp.Name.Name
		}
		s.imports[local] = p
	}
	return s, nil
}

// selectors calls f for each name that is taken from an imported package, such as os.Exit.
func (s *source) selectors(f func(n *ast.SelectorExpr, pkg, name string)) {
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && s.imports[x.Name] != "" {
				f(sel, s.imports[x.Name], sel.Sel.Name)
			}
		}
		return true
	})
}

// load parses every Go file of the main module but testdata and nested modules.
func load(t *testing.T) []*source {
	t.Helper()
	root := doctable.Root(t)
	var all []*source
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, nested := os.Stat(filepath.Join(p, "go.mod"))
			if p != root && (nested == nil || slices.Contains([]string{"testdata", ".git", "build", "bin"}, d.Name())) {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(p) != ".go" {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		s, err := parse(filepath.ToSlash(rel), string(text))
		all = append(all, s)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("%d Go files below %s: the walk sees too little", len(all), root)
	}
	return all
}

// tree returns the text of every file that is, or may be, committed.
func tree(t *testing.T) map[string]string {
	t.Helper()
	root := doctable.Root(t)
	files := map[string]string{}
	for name := range strings.SplitSeq(run(t, root, "git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"), "\x00") {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err == nil && !bytes.Contains(text, []byte{0}) { // a deleted file is still listed; a binary one has no words
			files[name] = string(text)
		}
	}
	if len(files) < 20 {
		t.Fatalf("git lists %d files", len(files))
	}
	return files
}

// run returns the standard output of a command that must succeed.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, &stderr)
	}
	return string(out)
}

func report(t *testing.T, findings []string) {
	t.Helper()
	for _, f := range findings {
		t.Error(f)
	}
}
