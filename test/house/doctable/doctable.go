// Package doctable keeps the tables in docs/ equal to what the code renders.
//
// A table stands between two marker lines, and nothing else stands there:
//
//	<!-- table:phases -->
//	| phase | meaning |
//	...
//	<!-- /table:phases -->
package doctable

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Check compares the table called name in file, a path relative to the root of the module, with want, exactly. With update
// it rewrites the table; the file and its two markers must exist. A blank line on either side is the renderer's of
// Markdown, and added here.
func Check(t testing.TB, update bool, file, name, want string) {
	t.Helper()
	path := filepath.Join(Root(t), filepath.FromSlash(file))
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("table %q: %v", name, err)
	}
	next, err := Replace(string(text), name, want)
	switch {
	case err != nil:
		t.Errorf("%s: %v", file, err)
	case next == string(text):
	case !update:
		t.Errorf("%s: table %q is not what the code renders (run with -update):\n%s", file, name, want)
	default:
		if err := os.WriteFile(path, []byte(next), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Replace returns text with the table called name replaced by want. The markers must be there once, in order.
func Replace(text, name, want string) (string, error) {
	begin, end := "<!-- table:"+name+" -->\n", "<!-- /table:"+name+" -->\n"
	head, rest, found := strings.Cut(text, begin)
	if !found {
		return "", fmt.Errorf("no marker %q", strings.TrimSpace(begin))
	}
	_, tail, found := strings.Cut(rest, end)
	if !found {
		return "", fmt.Errorf("no marker %q", strings.TrimSpace(end))
	}
	if n := strings.Count(text, begin) + strings.Count(text, end); n != 2 {
		return "", fmt.Errorf("%d markers of table %q, want 2", n, name)
	}
	return head + begin + "\n" + strings.TrimSpace(want) + "\n\n" + end + tail, nil
}

// Root returns the root of the module: the nearest directory above the test's that holds go.mod.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the test's directory")
		}
	}
}
