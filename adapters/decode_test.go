package adapters

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const goodSynth = `{"sources":["rtl/top.v"],"top":"top","netlist":"build/top.json"}`

// TestDecodeRefuses: each mistake is an ArgumentError that names the argument, before anything starts.
func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct{ name, tool, args, arg, rule string }{
		{"missing", "yosys_synth", `{"sources":["a.v"],"netlist":"t.json"}`, "top", "is required"},
		{"unknown", "yosys_synth", `{"sources":["a.v"],"top":"t","netlist":"t.json","net":"x"}`, "net", `did you mean "netlist"`},
		{"null", "yosys_synth", `{"sources":["a.v"],"top":null,"netlist":"t.json"}`, "top", "want string"},
		{"not-a-list", "yosys_synth", `{"sources":"a.v","top":"t","netlist":"t.json"}`, "sources", "want a list"},
		{"empty-list", "yosys_synth", `{"sources":[],"top":"t","netlist":"t.json"}`, "sources", "0 elements"},
		{"element-type", "yosys_synth", `{"sources":["a.v",3],"top":"t","netlist":"t.json"}`, "sources", "element 1: want path"},
		{"named-twice", "yosys_synth", `{"sources":["a.v","a.v"],"top":"t","netlist":"t.json"}`, "sources", "named twice"},
		{"bool-type", "yosys_synth", `{"sources":["a.v"],"top":"t","netlist":"t.json","flatten":"yes"}`, "flatten", "want true or false"},
		{"enum", "yosys_synth", `{"sources":["a.v"],"top":"t","netlist":"t.json","target":"ice41"}`, "target", "not one of generic"},
		{"pattern", "yosys_synth", `{"sources":["a.v"],"top":"t; exec rm","netlist":"t.json"}`, "top", "does not match"},
		{"too-long", "yosys_synth", `{"sources":["a.v"],"top":"` + strings.Repeat("t", 129) + `","netlist":"t.json"}`, "top", "129 bytes long"},
		{"input-ext", "yosys_synth", `{"sources":["a.vhd"],"top":"t","netlist":"t.json"}`, "sources", "must end in .v or .sv"},
		{"output-ext", "yosys_synth", `{"sources":["a.v"],"top":"t","netlist":"t.txt"}`, "netlist", "must end in .json"},
		{"output-is-input", "yosys_synth", `{"sources":["a.v"],"top":"t","netlist":"t.json","verilog":"a.v"}`, "verilog", "is also sources"},
		{"outputs-equal", "yosys_synth", `{"sources":["a.v"],"top":"t","netlist":"t.json","stat":"t.json"}`, "stat", "is also netlist"},
		{"liberty-without-generic", "yosys_synth", `{"sources":["a.v"],"top":"t","netlist":"t.json","target":"ice40","liberty":"c.lib"}`, "liberty", "generic only"},
		{"wave-ext", "iverilog_simulate", `{"sources":["a.v"],"top":"t","wave":"t.fst"}`, "wave", "must end in .vcd"},
		{"define", "iverilog_simulate", `{"sources":["a.v"],"top":"t","defines":["A=$(id)"]}`, "defines", "does not match"},
		{"plusarg", "iverilog_simulate", `{"sources":["a.v"],"top":"t","plusargs":["-x"]}`, "plusargs", "does not match"},
		{"wave-name", "iverilog_simulate", `{"sources":["a.v"],"top":"t","wave_name":"../x.vcd"}`, "wave_name", "does not match"},
		{"view-clash", "iverilog_simulate", `{"sources":["a.v"],"data_dirs":["dump.vcd"],"top":"t","wave":"t.vcd"}`, "data_dirs", "clashes with"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tl := tool(t, c.tool)
			a, err := decode(t, tl, c.args)
			if err == nil {
				_, err = tl.Prepare(a)
			}
			var arg *ArgumentError
			if !errors.Is(err, ErrArgument) || !errors.As(err, &arg) || arg.Arg != c.arg || !strings.Contains(arg.Rule, c.rule) {
				t.Errorf("%s: got %v, want argument %q: ...%s", c.args, err, c.arg, c.rule)
			}
		})
	}
}

// oddNames are names that some program reads as something else. TestOddNames is TestControlPlainNames' suite.
func oddNames() map[string]int { // the first bad byte
	return map[string]int{
		"a b.v": 1, `a"b.v`: 1, "g[1].v": 1, "a*.v": 1, "a;b.v": 1, "a$b.v": 1, "a#b.v": 1, "-a.v": 0, "rtl/-a.v": 4, ".a.v": 0, "rtl/.a.v": 4,
		"é.v": 0, "a\\b.v": 1, "a%b.v": 1, "a:b.v": 1, "a'b.v": 1, "{a}.v": 0, "a`b.v": 1, "+a.v": 0, "@a.v": 0, "~a.v": 0, "_run.v": 0, "a|b.v": 1,
	}
}

// acceptedOdd returns the odd names that check accepts, or whose first bad byte it does not name.
func acceptedOdd(check func(string) error) (bad []string) {
	for name, at := range oddNames() {
		if err := check(name); err == nil || !strings.Contains(err.Error(), fmt.Sprintf(" at %d: rename it", at)) {
			bad = append(bad, fmt.Sprintf("%q: %v", name, err))
		}
	}
	return bad
}

func TestOddNames(t *testing.T) {
	if bad := acceptedOdd(plainPath); bad != nil {
		t.Errorf("odd inputs: %s", strings.Join(bad, "\n"))
	}
	if bad := acceptedOdd(func(string) error { return nil }); len(bad) != len(oddNames()) {
		t.Error("the test of odd names cannot fail")
	}
	for _, name := range []string{"", "/etc/x.v", "../x.v", "a/../b.v", "a//b.v", "./a.v", "a/", ".eda-sidecar/x.v", strings.Repeat("a", 1023) + ".v"} {
		if plainPath(name) == nil || relative(name) == nil {
			t.Errorf("%q is accepted", name)
		}
	}
	for name := range oddNames() { // as a target each is good
		if err := relative("build/" + name); err != nil {
			t.Errorf("target %q: %v", name, err)
		}
	}
}

// TestControlCharacters: each, in each kind of text, with its place.
func TestControlCharacters(t *testing.T) {
	odd := []string{"\u2028", "\u2029", "\u202e", "\u2066", "\u200f", "\u0085", "\x7f", "\ufffd"}
	for c := range 0x20 {
		odd = append(odd, string(rune(c)))
	}
	for _, c := range odd {
		for _, arg := range []string{"netlist", "top", "sources", "defines", "verilog"} {
			args := map[string]any{"sources": []string{"a.v"}, "top": "t", "netlist": "t.json", "defines": []string{"A"}, "verilog": "t.v"}
			if v, ok := args[arg].(string); ok {
				args[arg] = "ab" + c + v
			} else {
				args[arg] = []string{"ab" + c + "x.v"}
			}
			text, err := json.Marshal(args)
			if err != nil {
				t.Fatal(err)
			}
			_, err = decode(t, tool(t, "yosys_synth"), string(text))
			if err == nil || !strings.Contains(err.Error(), "at byte 2") || !strings.Contains(err.Error(), `"`+arg+`"`) {
				t.Errorf("%s with %q: got %v, want the place", arg, c, err)
			}
		}
	}
}

// TestDecodeJoins: all mistakes at once, in the order of the parameters.
func TestDecodeJoins(t *testing.T) {
	_, err := decode(t, tool(t, "yosys_synth"), `{"sources":["a b.v"],"flatten":1,"netlist":"t","x":1}`)
	var got []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		got = append(got, strings.SplitN(line, `"`, 3)[1])
	}
	if want := []string{"sources", "top", "flatten", "netlist", "x"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestArgs(t *testing.T) {
	a, err := decode(t, tool(t, "yosys_synth"), `{"sources":["rtl/a.v","b.v"],"include_dirs":["rtl/inc"],"top":"t","netlist":"x y/t.json","stat":"s.weird ext"}`)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"b.v", "rtl"}, a.Links()); diff != "" {
		t.Error(diff)
	}
	want := []OutputArg{
		{Index: 0, Name: "netlist", Target: "x y/t.json", Kind: KindYosysJSON, MustContain: "t", MakeParents: true},
		{Index: 1, Name: "stat", Target: "s.weird ext", Kind: KindText, MustContain: "Number of cells", MakeParents: true},
	}
	if diff := cmp.Diff(want, a.Outputs()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]InputArg{{"sources", "rtl/a.v", false, 64 << 20}, {"sources", "b.v", false, 64 << 20}, {"include_dirs", "rtl/inc", true, 64 << 20}}, a.AllInputs()); diff != "" {
		t.Error(diff)
	}
	if a.Staged("netlist") != "../s0/out.json" || a.Staged("stat") != "../s1/out" || a.Staged("verilog") != "" {
		t.Errorf("staged %q %q %q", a.Staged("netlist"), a.Staged("stat"), a.Staged("verilog"))
	}
	if !a.Bool("flatten") || a.Text("target") != "generic" || a.Has("liberty") || !a.Has("target") {
		t.Error("defaults are not filled in")
	}
	defer func() {
		if recover() == nil {
			t.Error("a plan without slots must not pass")
		}
	}()
	_ = a.Bind(nil).Staged("netlist")
}

// TestPlanTwice: Plan is pure.
func TestPlanTwice(t *testing.T) {
	for _, c := range realRuns() {
		tl := tool(t, c.tool)
		a, err := decode(t, tl, c.args)
		if err != nil {
			t.Fatal(err)
		}
		first, err1 := tl.Prepare(a)
		second, err2 := tl.Prepare(a)
		if err1 != nil || err2 != nil || !reflect.DeepEqual(first, second) {
			t.Errorf("%s: %v %v\n%v\n%v", c.name, err1, err2, first, second)
		}
	}
}

// TestTools compares what a caller sees of each tool with its golden, and checks that the schema accepts what Decode accepts.
func TestTools(t *testing.T) {
	c, err := NewCatalog()
	if err != nil {
		t.Fatal(err)
	}
	for _, tl := range c.Tools() {
		golden(t, "tool_"+tl.Name, map[string]any{"title": tl.Title, "doc": tl.Doc, "input": tl.InputSchema(), "data": tl.Data})
		if _, err := tl.Data.Resolve(nil); err != nil {
			t.Errorf("%s: data: %v", tl.Name, err)
		}
	}
	for _, row := range realRuns() {
		resolved, err := tool(t, row.tool).InputSchema().Resolve(nil)
		if err != nil {
			t.Fatal(err)
		}
		var args any
		if err := json.Unmarshal([]byte(row.args), &args); err != nil {
			t.Fatal(err)
		}
		if err := resolved.Validate(args); err != nil {
			t.Errorf("%s: %v", row.name, err)
		}
	}
	for _, bad := range []string{
		`{}`, `{"sources":[],"top":"t","netlist":"t.json"}`, `{"sources":["a.v"],"top":"t-","netlist":"t.json"}`,
		`{"sources":["a.v"],"top":"t","netlist":"t.json","x":1}`, `{"sources":["a.v"],"top":"t","netlist":"t.json","target":"x"}`,
	} {
		var args any
		if err := json.Unmarshal([]byte(bad), &args); err != nil {
			t.Fatal(err)
		}
		resolved, err := tool(t, "yosys_synth").InputSchema().Resolve(nil)
		if err != nil || resolved.Validate(args) == nil {
			t.Errorf("the schema accepts %s (%v)", bad, err)
		}
	}
}

// TestCatalog refuses tools that the other parts could not rely on.
func TestCatalog(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*Tool)
		want  string
	}{
		{"taken", func(*Tool) {}, "the name is taken"},
		{"name", func(t *Tool) { t.Name = "Yosys" }, "does not match"},
		{"doc", func(t *Tool) { t.Doc = strings.Repeat("x", 200) }, "doc"},
		{"trust", func(t *Tool) { t.Trust = "full" }, "trust"},
		{"no-plan", func(t *Tool) { t.Plan = nil }, "plan"},
		{"limits", func(t *Tool) { t.Limits.Pids = 0 }, "limits"},
		{"reserved", func(t *Tool) { t.Params[0].Name = "session_id" }, "is taken"},
		{"text-without-pattern", func(t *Tool) { t.Params[2].Pattern = "" }, "pattern"},
		{"kind", func(t *Tool) { t.Params[2].Kind = "path" }, "not one of"},
		{"format", func(t *Tool) { t.Params[7].Format = "gds" }, "not a kind"},
	} {
		tl := yosysSynth()
		c.spoil(tl)
		if _, err := NewCatalog(tl); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want ...%s", c.name, err, c.want)
		}
	}
}

// TestPure: the package imports nothing that could start, wait or look at the machine.
func TestPure(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		seen++
		text, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		tree, err := parser.ParseFile(token.NewFileSet(), f.Name(), text, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, imp := range tree.Imports {
			if path, err := strconv.Unquote(imp.Path.Value); err != nil || slices.Contains([]string{"os", "os/exec", "net", "syscall", "unsafe", "math/rand", "log", "log/slog", "sync"}, path) {
				t.Errorf("%s imports %s", f.Name(), path)
			}
		}
		for _, call := range []string{"time.Now", "time.Sleep", "\tgo func", "func init()"} {
			if strings.Contains(string(text), call) {
				t.Errorf("%s holds %q", f.Name(), call)
			}
		}
	}
	if seen < 15 {
		t.Errorf("saw %d files", seen)
	}
}

func TestVersions(t *testing.T) {
	p := yosysProgram()
	for _, c := range []struct {
		name, out, text string
		newer           bool
		want            error
	}{
		{"real", "Yosys 0.23 (git sha1 7ce5011c24b)\n", "0.23", false, nil},
		{"newer", "Yosys 0.45+11 (git sha1 x)\n", "0.45", true, nil},
		{"older", "Yosys 0.9 (git sha1 1979e0b)\n", "0.9", false, ErrTooOld},
		{"unreadable", "Segmentation fault\n", "", false, ErrVersionUnreadable},
		{"empty", "", "", false, ErrVersionUnreadable},
	} {
		v, err := p.ParseVersion(c.out)
		if v.Text != c.text || v.Newer != c.newer || !errors.Is(err, c.want) {
			t.Errorf("%s: got %+v, %v", c.name, v, err)
		}
	}
	for _, c := range []struct {
		a, b string
		want int
	}{{"0.9", "0.23", -1}, {"11.0", "11.0", 0}, {"0.23.1", "0.23", 1}, {"8.3.105", "8.3.99", 1}, {"v1", "1", -1}} {
		if got := CompareVersions(c.a, c.b); got != c.want {
			t.Errorf("%s against %s: got %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestCommand(t *testing.T) {
	for _, c := range []struct {
		name, want string
		argv       []string
		outs       []Out
	}{
		{"nothing", "absolute path or a name", nil, nil},
		{"relative", "absolute path or a name", []string{"./x"}, nil},
		{"unused", "no argument holds {out}", []string{"sh"}, []Out{{Name: "out", Target: "a"}}},
		{"twice", "names two outputs", []string{"sh", "{out}"}, []Out{{Name: "out", Target: "a"}, {Name: "out", Target: "b"}}},
		{"bad-name", "no name for an output", []string{"sh", "{o-}"}, []Out{{Name: "o-", Target: "a"}}},
		{"bad-target", "absolute", []string{"sh", "{out}"}, []Out{{Name: "out", Target: "/a"}}},
	} {
		if _, _, err := Command(c.argv, c.outs, false); !errors.Is(err, ErrArgument) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want ...%s", c.name, err, c.want)
		}
	}
	r := newRig(t, "", nil)
	script := `printf '{"k":1}' > _state.next.json; echo '{print} {other}' > "$1"; cp "$1" {copy}`
	tl, a, err := Command([]string{"sh", "-c", script, "x", "{out}"}, []Out{{Name: "out", Target: "odd name$"}, {Name: "copy", Target: "c.txt"}}, true)
	if err != nil {
		t.Fatal(err)
	}
	rep, faults := r.execute(tl, bind(a))
	if rep.Verdict != OK || faults != nil || string(rep.State) != `{"k":1}` || !tl.Mutates(a) || tl.TrustOf(a) != Script {
		t.Errorf("got %+v, %v, log %s", rep, faults, r.log())
	}
	text, err := os.ReadFile(r.job + "/s1/out.txt")
	if err != nil || string(text) != "{print} {other}\n" {
		t.Errorf("got %q, %v: only declared names are replaced", text, err)
	}
}
