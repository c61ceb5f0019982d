package adapters

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	"go.yaml.in/yaml/v2"
)

// declarations reads the tools of a configuration, whose other keys belong to others.
func declarations(config string) ([]*Tool, error) {
	var doc struct {
		Tools Declarations
		Rest  map[string]any `yaml:",inline"`
	}
	if err := yaml.UnmarshalStrict([]byte(config), &doc); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return doc.Tools.Tools()
}

// declare reads one tool of a configuration.
func declare(t testing.TB, config string) *Tool {
	t.Helper()
	tools, err := declarations(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewCatalog(tools...); err != nil {
		t.Fatal(err)
	}
	return tools[0]
}

func example(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile("../examples/" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestDeclaredExamples loads each example, holds it against the schema, and compares its plan with a golden.
func TestDeclaredExamples(t *testing.T) {
	var schema jsonschema.Schema
	if err := json.Unmarshal([]byte(DeclaredSchema()), &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string]string{
		"vivado":      `{"sources":["rtl/a.v","rtl/b.v"],"top":"top","part":"xc7a35t-1","netlist":"build/top.v"}`,
		"openroad":    `{"lef":["pdk/a.lef"],"lib":"pdk/a.lib","netlist":"n.v","top":"top","def":"build/top.def"}`,
		"constraints": `{"script_file":"gen.py","sdc":"build/top.sdc"}`,
	} {
		config := example(t, name)
		tl := declare(t, config)
		a, err := decode(t, tl, args)
		if err != nil {
			t.Fatal(err)
		}
		inv, err := tl.Prepare(a)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "declared_"+name, map[string]any{"plan": inv, "input": tl.InputSchema(), "data": tl.Data})
		if err := resolved.Validate(asJSON(t, config)); err != nil {
			t.Errorf("%s: schema: %v", name, err)
		}
	}
	if resolved.Validate(asJSON(t, "tools: [{name: x, nonsense: 1}]")) == nil {
		t.Error("the schema accepts anything")
	}
}

func asJSON(t *testing.T, config string) any {
	t.Helper()
	var convert func(any) any
	convert = func(v any) any {
		switch v := v.(type) {
		case map[any]any:
			out := map[string]any{}
			for key, item := range v {
				name, ok := key.(string)
				if !ok {
					t.Fatalf("key %v", key)
				}
				out[name] = convert(item)
			}
			return out
		case []any:
			for i := range v {
				v[i] = convert(v[i])
			}
		}
		return v
	}
	var tree any
	if err := yaml.Unmarshal([]byte(config), &tree); err != nil {
		t.Fatal(err)
	}
	return convert(tree)
}

// TestDeclaredSchema: the embedded schema has the keys of the Go types, no more and no fewer, and names no kind without a validator.
func TestDeclaredSchema(t *testing.T) {
	var doc map[string]any
	if err := json.Unmarshal([]byte(DeclaredSchema()), &doc); err != nil {
		t.Fatal(err)
	}
	tools, ok := doc["properties"].(map[string]any)["tools"].(map[string]any)
	if !ok {
		t.Fatal("no tools")
	}
	compareKeys(t, "tools", reflect.TypeFor[declared](), tools["items"])
}

func compareKeys(t *testing.T, at string, typ reflect.Type, schema any) {
	t.Helper()
	s, ok := schema.(map[string]any)
	if !ok {
		t.Fatalf("%s: no schema", at)
	}
	if items, list := s["items"]; list {
		typ, schema = typ.Elem(), items
		compareKeys(t, at+"[]", typ, schema)
		return
	}
	if any, either := s["anyOf"].([]any); either {
		compareKeys(t, at, typ, any[1])
		return
	}
	props, ok := s["properties"].(map[string]any)
	if typ.Kind() != reflect.Struct || !ok {
		if typ.Kind() == reflect.Struct {
			t.Errorf("%s: the schema has no properties", at)
		}
		if kinds, listed := s["enum"].([]any); typ == reflect.TypeFor[Kind]() {
			unknown := func(k any) bool { name, text := k.(string); return !text || !Kind(name).Known() }
			if !listed || slices.ContainsFunc(kinds, unknown) {
				t.Errorf("%s: the schema lists %v, not all are kinds", at, kinds)
			}
		}
		return
	}
	for f := range typ.Fields() {
		key := strings.ToLower(f.Name)
		if tag := f.Tag.Get("yaml"); tag != "" {
			key = tag
		}
		if props[key] == nil {
			t.Errorf("%s: the schema lacks %q", at, key)
			continue
		}
		compareKeys(t, at+"."+key, f.Type, props[key])
	}
	if len(props) != typ.NumField() {
		t.Errorf("%s: the schema has %d keys, the type %d", at, len(props), typ.NumField())
	}
}

// good is a declared tool that the bad ones below are made from.
const good = `tools:
- name: x_tool
  trust: declarative
  program: {name: xprog}
  params:
  - {name: src, kind: input}
  - {name: srcs, kind: input, list: true}
  - {name: word, kind: text, pattern: '[a-z ]+'}
  - {name: out, kind: output, format: text, required: true}
  files:
  - {name: _f.tcl, language: tcl, text: "go {{src}}"}
  steps:
  - {name: s, argv: [xprog, _f.tcl, {arg: "{{word}}", when: word}]}
  verdict: {require: ['^END$']}
`

// TestDeclaredRefuses: every mistake is an ErrConfig that says where; several come together.
func TestDeclaredRefuses(t *testing.T) {
	declare(t, good)
	for _, c := range []struct{ name, old, new, want string }{
		{"unknown-key", "trust:", "trusts: 1\n  trust:", "line 3: field trusts not found"},
		{"type", "name: x_tool", "name: [x]", "line 2: cannot unmarshal"},
		{"yaml", "params:", "params: }", "line"},
		{"twice", "  trust: declarative\n", "  trust: declarative\n  trust: design\n", "already set"},
		{"name", "x_tool", "X-tool", "does not match"},
		{"trust", "declarative", "total", `trust "total"`},
		{"program-path", "{name: xprog}", "{name: /bin/xprog}", "program.name"},
		{"interpreter", "{name: xprog}", "{name: python3.11}", "interpreter: true"},
		{"env-program", "{name: xprog}", "{name: env}", "interpreter: true"},
		{"version", "{name: xprog}", "{name: xprog, version: {args: [-v], match: 'v'}}", "one group"},
		{"pattern", "'[a-z ]+'", "'[a-z'", `params "word": text needs a pattern`},
		{"no-pattern", "pattern: '[a-z ]+'", "max_length: 3", "text needs a pattern"},
		{"param-kind", "kind: text", "kind: string", `"string" is not one of`},
		{"format", "format: text", "format: gds", `"gds" is not a kind`},
		{"default", "kind: text,", "kind: text, default: A,", "params[2].default"},
		{"reserved", "name: word", "name: session_id", "is taken"},
		{"placeholder", "{{src}}", "{{sauce}}", "{{sauce}} names no parameter"},
		{"list-unspread", "{{src}}", "{{srcs}}", "a list is written {{srcs...}}"},
		{"scalar-spread", "{{src}}", "{{src...}}", "a list is written"},
		{"list-in-element", "_f.tcl, {arg", `"-I{{srcs...}}", {arg`, "whole element"},
		{"when", "when: word", "when: worm", "names no parameter"},
		{"file-name", "name: _f.tcl", "name: f.tcl", "begin with _"},
		{"file-dir", "name: _f.tcl", "name: _d/f.tcl", "begin with _"},
		{"language", "language: tcl", "language: perl", "language"},
		{"argv0", "argv: [xprog", "argv: [sh", "must begin with the program"},
		{"no-steps", "  steps:\n  - {name: s, argv: [xprog, _f.tcl, {arg: \"{{word}}\", when: word}]}\n", "", "steps: 0"},
		{"makes", "argv: [xprog,", "makes: [{path: ../x, kind: text}], argv: [xprog,", "makes"},
		{"require-pattern", "'^END$'", "'('", "verdict.require[0]"},
		{"severity", "verdict:", "diagnostics: [{severity: bad, match: x}]\n  verdict:", "severity"},
		{"group", "verdict:", "diagnostics: [{severity: error, match: '(?P<msg>x)'}]\n  verdict:", `group "msg"`},
		{"data-from", "verdict:", "data: [{name: n, from: nowhere, match: '(x)', type: int}]\n  verdict:", "data[0]"},
		{"data-type", "verdict:", "data: [{name: n, from: log, match: '(x)', type: list}]\n  verdict:", "data[0]"},
		{"limit", "verdict:", "limits: {memory: lots}\n  verdict:", "limits.memory"},
		{"wall", "verdict:", "limits: {wall: 1d}\n  verdict:", "line 14: cannot unmarshal"},
		{"wall-order", "verdict:", "limits: {wall: 2h, wall_max: 1h}\n  verdict:", "limits"},
		{"huge", "verdict:", "limits: {memory: 9999999999TiB}\n  verdict:", "limits.memory"},
	} {
		text := strings.Replace(good, c.old, c.new, 1)
		if text == good {
			t.Fatalf("%s: %q is not in the good tool", c.name, c.old)
		}
		tools, err := declarations(text)
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.want) || tools != nil {
			t.Errorf("%s: got %v, want ...%s", c.name, err, c.want)
		}
	}
	several := strings.NewReplacer("declarative", "total", "'^END$'", "'('", "{{src}}", "{{sauce}}").Replace(good)
	_, err := declarations("other: 1\n" + several + "- {name: y}\n")
	for _, want := range []string{"total", "verdict.require[0]", "{{sauce}}", "tools[1] (y)"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("several mistakes: got %v, want all of them, also %q", err, want)
		}
	}
}

// TestDeclaredProof: without require and without a required output nothing could prove success.
func TestDeclaredProof(t *testing.T) {
	text := strings.Replace(strings.Replace(good, "format: text, required: true", "format: text", 1), "  verdict: {require: ['^END$']}\n", "", 1)
	if _, err := declarations(text); err == nil || !strings.Contains(err.Error(), "nothing could prove success") {
		t.Errorf("got %v", err)
	}
	withOutput := strings.Replace(good, "  verdict: {require: ['^END$']}\n", "", 1)
	declare(t, withOutput)
}

// nasty are values that break out of a language's text unless they are quoted for it.
func nasty() []string {
	return []string{`a`, `a b`, `"; exit 3; "`, `[exit 3]`, `$env(HOME)`, `{`, `}`, `\`, `a\`, `'`, `é☃`, `#x`, "`id`", `\n`, `%s`, `;`, `{{word}}`}
}

// misquoted returns the values that do not come out of an interpreter as they went in, all written into one script. Python stands for
// python and json, the Tcl that is in yosys for tcl.
func misquoted(t *testing.T, language string, quoting func(string, string, ParamKind) (string, bool)) (bad []string) {
	t.Helper()
	var script strings.Builder
	script.WriteString(map[string]string{
		"tcl":    "set f [open out w]\nfconfigure $f -encoding [encoding system]\n",
		"python": "f = open('out', 'w', encoding='utf-8')\n",
		"json":   "import json\nf = open('out', 'w', encoding='utf-8')\n",
	}[language])
	line := map[string]string{"tcl": "puts $f %\n", "python": "print(%, file=f)\n", "json": "print(json.loads(r'''%'''), file=f)\n"}[language]
	for _, v := range nasty() {
		word, ok := quoting(language, v, Text)
		if !ok {
			return []string{v}
		}
		script.WriteString(strings.Replace(line, "%", word, 1))
	}
	if language == "tcl" {
		script.WriteString("close $f\n")
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "run.tcl"), script.String())
	argv := []string{"python3", "-I", "run.tcl"}
	if language == "tcl" {
		argv = []string{"yosys", "-q", "-c", "run.tcl"}
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C.UTF-8", "HOME=" + dir}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return []string{string(out)}
	}
	got, err := os.ReadFile(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Join(nasty(), "\n")+"\n", string(got)); diff != "" {
		return []string{diff}
	}
	return nil
}

func TestQuoting(t *testing.T) {
	identity := func(_, v string, _ ParamKind) (string, bool) { return v, true }
	for _, language := range []string{"tcl", "python", "json"} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			if bad := misquoted(t, language, quote); bad != nil {
				t.Errorf("%q", bad)
			}
			if misquoted(t, language, identity) == nil {
				t.Error("the test of quoting cannot fail")
			}
		})
	}
	for _, language := range []string{"yosys", "spice", "none"} {
		for _, v := range nasty()[1:] {
			if word, ok := quote(language, v, Text); ok {
				t.Errorf("%s: %q passes as %q", language, v, word)
			}
		}
		if _, ok := quote(language, "../s0/out.v", Output); !ok {
			t.Errorf("%s: a slot is refused", language)
		}
	}
}

// TestDeclaredPlan fills placeholders, drops elements, spreads lists, and refuses a value that would become an option.
func TestDeclaredPlan(t *testing.T) {
	tl := declare(t, `tools:
- name: x_tool
  trust: script
  program: {name: xprog}
  params:
  - {name: srcs, kind: input, list: true}
  - {name: n, kind: int, min: 0, max: 9}
  - {name: b, kind: bool, default: false}
  - {name: word, kind: text, pattern: '.*'}
  - {name: words, kind: text, list: true, pattern: '.*'}
  - {name: out, kind: output, format: text}
  files:
  - {name: _f.tcl, language: tcl, text: 'f [list {{srcs...}}] {{out}} {{b}}'}
  - {name: _f.py, language: python, text: '[{{srcs...}}] {{b}}'}
  - {name: _f.json, language: json, text: '[{{srcs...}}, {{b}}]'}
  steps:
  - {name: s, argv: [xprog, "{{srcs...}}", {arg: "-n={{n}}", when: n}, {arg: "{{word}}", when: word}, "{{words...}}"], makes: [{path: a.txt, kind: text}]}
  - {name: t, argv: [xprog], proceed: [0, 3]}
  env: {set: {B: "2", A: "1"}}
  verdict: {ok_exit: [0, 7]}
`)
	a, err := decode(t, tl, `{"srcs":["a.v","d/b.v"],"n":3,"out":"o.txt"}`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := tl.Prepare(a)
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"A=1", "B=2"}
	want := Invocation{
		Files: []File{{"_f.tcl", `f [list "a.v" "d/b.v"] "../s0/out.txt" "false"`}, {"_f.py", `["a.v", "d/b.v"] False`}, {"_f.json", `["a.v", "d/b.v", false]`}},
		Steps: []Step{
			{Name: "s", Argv: []string{"xprog", "a.v", "d/b.v", "-n=3"}, Env: env, Proceed: []int{0, 7}, Makes: []Product{{"a.txt", KindText}}},
			{Name: "t", Argv: []string{"xprog"}, Env: env, Proceed: []int{0, 3}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, args := range []string{`{"word":"-rf","out":"o.txt"}`, `{"words":["a","-rf"],"out":"o.txt"}`} {
		a, err = decode(t, tl, args)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tl.Prepare(a); !errors.Is(err, ErrArgument) || !strings.Contains(err.Error(), "would be an option") {
			t.Errorf("%s: got %v", args, err)
		}
	}
}

const pyTool = `tools:
- name: py_check
  trust: script
  program: {name: python3, interpreter: true}
  params:
  - {name: script, kind: input, ext: [.py]}
  - {name: out, kind: output, format: text, must_contain: good}
  steps: [{name: run, argv: [python3, -I, "{{script}}", "{{out}}"]}]
  verdict: {require: ['^END$'], fail: ['^FATAL'], findings: ['^NOTE']}
  diagnostics:
  - {severity: error, match: '^(?P<file>\S+):(?P<line>\d+):(?P<col>\d+): (?P<code>E\d+) (?P<message>.*)$'}
  - {severity: warning, match: '^NOTE (?P<message>.*)$'}
  data:
  - {name: area, from: log, match: '^area (\S+)$', type: float, unit: um2}
  - {name: count, from: out, match: '^good (\d+)$', type: int}
  - {name: flag, from: log, match: '^flag (\w+)$', type: bool}
  state: {keys: [k]}
`

// TestDeclaredVerdicts runs a script through the declared tool: exit codes, patterns, outputs and state.
func TestDeclaredVerdicts(t *testing.T) {
	const whole = "import sys\nopen(sys.argv[1], 'w').write('good 1\\ngood 2\\n')\n"
	for _, c := range []struct {
		name, script  string
		verdict       Verdict
		first, faults string
		state         string
	}{
		{"ok", whole + "print('area 1e3'); print('area 2.5'); print('flag true'); open('_state.next.json','w').write('{\"k\": 2}'); print('END')", OK, "", "", `{"k": 2}`},
		{"no-end", whole, Failed, "", "", ""},
		{"fail-line", whole + "print('FATAL: x'); print('END')", Failed, "", "", ""},
		{"findings", whole + "print('NOTE look'); print('END')", Findings, "warning :0", "", ""},
		{"diagnostic", whole + "print('a/b.x:3:7: E12 wrong thing'); print('END')", Findings, "error a/b.x:3", "", ""},
		{"exit-1", whole + "print('END'); sys.exit(1)", Failed, "", "", ""},
		{"no-output", "print('END')", Invalid, "", "out", ""},
		{"other-output", "import sys\nopen(sys.argv[1], 'w').write('bad\\n')\nprint('END')", Invalid, "", "out", ""},
		{"bad-state", whole + "open('_state.next.json','w').write('[1]'); print('END')", Invalid, "", nextState, ""},
		{"null-state", whole + "open('_state.next.json','w').write('null'); print('END')", Invalid, "", nextState, ""},
		{"empty-state", whole + "open('_state.next.json','w').write('{}'); print('END')", OK, "", "", "{}"},
		{"linked-state", whole + "import os; os.symlink('s.py', '_state.next.json'); print('END')", Invalid, "", nextState, ""},
		{"big-state", whole + "open('_state.next.json','w').write('{\"k\": \"' + 'x'*70000 + '\"}'); print('END')", Invalid, "", nextState, ""},
		{"state-but-failed", whole + "open('_state.next.json','w').write('{\"k\": 2}'); sys.exit(2)", Failed, "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "", map[string]string{"s.py": c.script})
			rep, faults := r.call(declare(t, pyTool), `{"script":"s.py","out":"o.txt"}`)
			if got, want := summary(rep, faults), (verdictLine{c.verdict, c.first, c.faults}); got != want || string(rep.State) != c.state {
				t.Errorf("got %+v state %s, want %+v %s\n%s\n%s", got, rep.State, want, c.state, rep.Summary, r.log())
			}
			if c.name == "ok" {
				if diff := cmp.Diff(map[string]any{"area": 2.5, "count": 2.0, "flag": true}, rep.Data); diff != "" {
					t.Error(diff)
				}
			}
			noLeak(t, r, rep, faults)
		})
	}
}

// TestConstraintsExample runs the README's demonstration.
func TestConstraintsExample(t *testing.T) {
	r := newRig(t, "examples/counter", nil)
	rep, faults := r.call(declare(t, example(t, "constraints")), `{"script_file":"gen.py","sdc":"build/top.sdc","period_ns":8}`)
	if rep.Verdict != OK || faults != nil || string(rep.State) != `{"constraints": {"period_ns": 8}}` {
		t.Errorf("got %+v %v\n%s", rep, faults, r.log())
	}
}
