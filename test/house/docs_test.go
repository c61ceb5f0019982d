package house

import (
	"fmt"
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/test/house/doctable"
)

// tables are the tables of docs/ that this package can render. Package main compares its own with doctable.Check.
var tables = []struct {
	file, name string
	render     func(t *testing.T, files []*source) string
}{
	{"docs/audit.md", "orders", func(*testing.T, []*source) string { return audit.Table() }},
	{"docs/audit.md", "kinds", constants("sidecar/audit", "Kind", "kind")},
	{"docs/journal.md", "phases", constants("sidecar/txn", "Phase", "phase")},
	{"docs/journal.md", "document", fields("sidecar/txn", "Journal")},
	{"docs/journal.md", "output", fields("sidecar/txn", "Output")},
	{"docs/journal.md", "identity", fields("sidecar/txn", "FileID")},
	{"docs/protocol.md", "result", fields("sidecar/job", "Result")},
	{"docs/protocol.md", "output", fields("sidecar/job", "Published")},
	{"docs/protocol.md", "log", fields("sidecar/job", "Log")},
	{"docs/mcp.md", "conformance", expectedFailures},
}

// constants renders the constants of a string type, with their comments, in the order of the source.
func constants(dir, typ, title string) func(*testing.T, []*source) string {
	return func(t *testing.T, files []*source) string {
		var rows strings.Builder
		for _, s := range files {
			if s.dir != dir || s.test() {
				continue
			}
			ast.Inspect(s.syntax, func(n ast.Node) bool {
				if v, ok := n.(*ast.ValueSpec); ok && v.Type != nil && lastName(v.Type) == typ && len(v.Values) == 1 {
					if lit, ok := v.Values[0].(*ast.BasicLit); ok {
						fmt.Fprintf(&rows, "| `%s` | %s |\n", strings.Trim(lit.Value, `"`), strings.TrimSpace(v.Comment.Text()))
					}
				}
				return true
			})
		}
		if rows.Len() == 0 {
			t.Errorf("%s has no constants of type %s", dir, typ)
		}
		return "| " + title + " | meaning |\n|---|---|\n" + rows.String()
	}
}

// fields renders the fields of a struct as JSON names them, with their comments, in the order of the source.
func fields(dir, typ string) func(*testing.T, []*source) string {
	return func(t *testing.T, files []*source) string {
		var rows strings.Builder
		for _, s := range files {
			if s.dir != dir || s.test() {
				continue
			}
			ast.Inspect(s.syntax, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok || spec.Name.Name != typ {
					return true
				}
				for _, f := range spec.Type.(*ast.StructType).Fields.List {
					if f.Comment == nil {
						t.Errorf("%s.%s.%v has no comment for its table", dir, typ, f.Names)
					}
					name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
					fmt.Fprintf(&rows, "| `%s` | %s |\n", name, strings.ReplaceAll(strings.TrimSpace(f.Comment.Text()), "|", "or"))
				}
				return false
			})
		}
		if rows.Len() == 0 {
			t.Errorf("%s has no struct %s", dir, typ)
		}
		return "| field | meaning |\n|---|---|\n" + rows.String()
	}
}

// expectedFailures renders the scenarios of the conformance suite that do not apply, by their reasons.
func expectedFailures(t *testing.T, _ []*source) string {
	var reasons []string
	scenarios := map[string][]string{}
	for line := range strings.Lines(tree(t)["test/e2e/mcp/expected.yml"]) {
		if entry, ok := strings.CutPrefix(line, "  - "); ok {
			scenario, reason, _ := strings.Cut(strings.TrimSpace(entry), " # ")
			if scenarios[reason] == nil {
				reasons = append(reasons, reason)
			}
			scenarios[reason] = append(scenarios[reason], "`"+scenario+"`")
		}
	}
	if len(reasons) == 0 {
		t.Error("no scenario is expected to fail")
	}
	var rows strings.Builder
	for _, reason := range reasons {
		fmt.Fprintf(&rows, "| %s | %s |\n", reason, strings.Join(scenarios[reason], " "))
	}
	return "| why | scenarios that do not apply |\n|---|---|\n" + rows.String()
}

var marker = regexp.MustCompile(`<!-- table:(\S+) -->`)

// TestTables compares each table, and wants every marker in docs/ to be compared by somebody.
func TestTables(t *testing.T) {
	files := load(t)
	var checked strings.Builder
	for _, s := range files {
		if s.test() {
			checked.WriteString(s.text)
		}
	}
	for _, table := range tables {
		doctable.Check(t, *update, table.file, table.name, table.render(t, files))
	}
	for name, text := range tree(t) {
		if filepath.Ext(name) == ".md" {
			report(t, unchecked(name, text, checked.String()))
		}
	}
}

// unchecked returns the tables of a document that no test compares with the code.
func unchecked(name, text, tests string) (findings []string) {
	for _, m := range marker.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(tests, fmt.Sprintf("%q, %q", name, m[1])) {
			findings = append(findings, fmt.Sprintf("%s: no test compares table %q: want %q, %q in its arguments", name, m[1], name, m[1]))
		}
	}
	return findings
}

func TestUncheckedControl(t *testing.T) {
	const text = "<!-- table:" + "t -->\n"
	if got := unchecked("docs/x.md", text, `Check(t, false, "docs/x.md", "u", "")`); len(got) != 1 {
		t.Errorf("another table's check was taken for it: %q", got)
	}
	if got := unchecked("docs/x.md", text, `Check(t, false, "docs/x.md", "t", "")`); len(got) != 0 {
		t.Errorf("got %q", got)
	}
}

// block is a console block of a document: what is typed after "$ ", and what is then printed. A line "..." stands for any
// lines. A command that fails prints "exit status N" below its output.
type block struct {
	commands []string
	want     string // as session prints it
}

// blocks returns those that follow a line <!-- run -->.
func blocks(text string) (found []block, err error) {
	for i, part := range strings.Split(text, "<!-- run -->\n") {
		if i == 0 {
			continue
		}
		body, ok := strings.CutPrefix(strings.TrimLeft(part, "\n"), "```console\n")
		body, _, closed := strings.Cut(body, "```\n")
		if !ok || !closed || !strings.HasPrefix(body, "$ ") {
			return nil, fmt.Errorf("<!-- run --> %d is not followed by a console block that begins with a command", i)
		}
		var b block
		for line := range strings.Lines(body) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				b.commands = append(b.commands, strings.TrimSpace(command))
			}
			b.want += line
		}
		found = append(found, b)
	}
	return found, nil
}

// session types the commands into one shell in dir, and returns the block as it looks afterwards.
func session(t *testing.T, dir string, b block) string {
	t.Helper()
	var script strings.Builder
	script.WriteString("exec 2>&1\n")
	for _, c := range b.commands {
		fmt.Fprintf(&script, "printf '%%s\\n' %s\n{ %s\n} || echo \"exit status $?\"\n", quote("$ "+c), c)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script.String())
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("bash: %v", err)
	}
	return string(out)
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// volatile is what differs from run to run: ids, digests, times, durations, temporary directories.
var volatile = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{64}\b|\b\d{4}-\d\d-\d\dT[0-9:.]+Z?|\b\d+(\.\d+)?(ns|µs|ms|s)\b|/(tmp|dev/shm)/[\w./-]+`)

// like reports whether got looks like want: equal up to what is volatile, and to lines "..." in want.
func like(want, got string) bool {
	pattern := regexp.QuoteMeta(volatile.ReplaceAllString(want, "<>"))
	pattern = strings.ReplaceAll(pattern, "\n\\.\\.\\.\n", "\n(?:.*\n)*")
	return regexp.MustCompile(`^` + pattern + `$`).MatchString(volatile.ReplaceAllString(got, "<>"))
}

// TestConsole runs the marked blocks of README.md and HACKING.md in a directory that looks like a checkout after make build.
func TestConsole(t *testing.T) {
	root := doctable.Root(t)
	for _, name := range []string{"README.md", "docs/HACKING.md"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			t.Logf("NOTE %s does not exist yet", name)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		all, err := blocks(string(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, b := range all {
			if got := session(t, checkout(t, root), b); !like(b.want, got) {
				t.Errorf("%s shows\n%s\nand this happens:\n%s", name, b.want, got)
			}
		}
	}
}

// checkout returns a new directory with links to everything in root, and a binary of its own.
func checkout(t *testing.T, root string) string {
	t.Helper()
	dir := t.TempDir()
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "bin" && e.Name() != "build" {
			if err := os.Symlink(filepath.Join(root, e.Name()), filepath.Join(dir, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	build(t, filepath.Join(dir, "bin", "eda-sidecar"))
	return dir
}

func TestConsoleControls(t *testing.T) {
	const head = "text\n```console\n$ false\n```\n<!-- run -->\n```console\n"
	for _, tt := range []struct {
		name, body string
		holds      bool
	}{
		{"good", "$ echo a; echo b >&2\na\nb\n$ (exit 3)\nexit status 3\n", true},
		{"continues", "$ x=1\n$ echo $x\n1\n", true},
		{"volatile", "$ echo took 1.5s, job 01890a5d-ac96-774b-bcce-b302099a8057\ntook 22ms, job 01890a5d-ac96-774b-bcce-b302099a8058\n", false},
		{"elided", "$ seq 5\n1\n...\n5\n", true},
		{"other_output", "$ echo a\nb\n", false},
		{"missing_output", "$ echo a\n", false},
		{"more_output", "$ true\na\n", false},
		{"hidden_failure", "$ false\n", false},
		{"wrong_elision", "$ seq 5\n1\n...\n6\n", false},
	} {
		all, err := blocks(head + tt.body + "```\n")
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: %d blocks, %v", tt.name, len(all), err)
		}
		got := session(t, t.TempDir(), all[0])
		if tt.name == "volatile" { // what is typed is the same in both, so it is compared here only
			if !like("took 22ms, job 01890a5d-ac96-774b-bcce-b302099a8058\n", "took 1.5s, job 01890a5d-ac96-774b-bcce-b302099a8057\n") {
				t.Errorf("volatile: ids and durations are compared")
			}
			continue
		}
		if like(all[0].want, got) != tt.holds {
			t.Errorf("%s: holds = %t\n%s", tt.name, !tt.holds, got)
		}
	}
	for _, bad := range []string{"<!-- run -->\ntext\n", "<!-- run -->\n```go\nx\n```\n", "<!-- run -->\n```console\noutput\n```\n"} {
		if _, err := blocks(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

var testNames = regexp.MustCompile("`(Test\\w+|\\w+\\.txtar)`")

// TestNamedTestsExist wants every test that README.md names to be there.
func TestNamedTestsExist(t *testing.T) {
	var all strings.Builder
	for _, s := range load(t) {
		if s.test() {
			all.WriteString(s.text)
		}
	}
	for name := range tree(t) {
		all.WriteString(name + "\n")
	}
	text := tree(t)["README.md"]
	named := testNames.FindAllStringSubmatch(text, -1)
	if len(named) < 20 {
		t.Errorf("README.md names %d tests only", len(named))
	}
	report(t, nowhereNamed(named, all.String()))
	if got := nowhereNamed([][]string{{"", "TestOfNothing"}}, all.String()); len(got) != 1 {
		t.Errorf("control: a test that does not exist was found: %q", got)
	}
}

func nowhereNamed(named [][]string, text string) (findings []string) {
	for _, m := range named {
		if !strings.Contains(text, "func "+m[1]+"(") && !strings.Contains(text, "test/scripts/"+m[1]+"\n") {
			findings = append(findings, "README.md names "+m[1]+", which does not exist")
		}
	}
	return findings
}
