package adapters

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

// FuzzDecode: no panic; what is accepted gives a plan, twice the same, and a script of plain words.
func FuzzDecode(f *testing.F) {
	for _, c := range realRuns() {
		f.Add(c.args)
	}
	for name := range oddNames() {
		text, err := json.Marshal(map[string]any{"sources": []string{name}, "top": name, "netlist": name + ".json", "defines": []string{"A=" + name}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	plain := regexp.MustCompile(`^[A-Za-z0-9_.$/=' +\n-]*$`)
	f.Fuzz(func(t *testing.T, args string) {
		var raw map[string]json.RawMessage
		if json.Unmarshal([]byte(args), &raw) != nil {
			return
		}
		for _, tl := range builtin() {
			a, err := tl.Decode(raw)
			if err != nil {
				if !errors.Is(err, ErrArgument) {
					t.Fatalf("%v is no ErrArgument", err)
				}
				continue
			}
			a = bind(a)
			first, err1 := tl.Prepare(a)
			second, err2 := tl.Prepare(a)
			if (err1 == nil) != (err2 == nil) || !reflect.DeepEqual(first, second) {
				t.Fatalf("two plans differ: %v %v", err1, err2)
			}
			if err1 != nil {
				if !errors.Is(err1, ErrArgument) {
					t.Fatal(err1)
				}
				continue
			}
			for _, file := range first.Files {
				if !plain.MatchString(file.Content) {
					t.Fatalf("script %q", file.Content)
				}
			}
			for _, o := range a.Outputs() {
				if noControls(o.Target) != nil || relative(o.Target) != nil {
					t.Fatalf("target %q", o.Target)
				}
			}
		}
	})
}

// FuzzParse: no panic, bounded diagnostics, and never ok for a failed exit or a run without evidence.
func FuzzParse(f *testing.F) {
	f.Add([]byte("ERROR: tb.v:2: x\n       Time: 3 Scope: tb\n"), 0)
	f.Add([]byte("rtl/a.v:3: Warning: w\n    more\nERROR: Module `\\x' not found\n"), 1)
	f.Add([]byte("tb.v:1: syntax error\nI give up.\n\xff\x00"), 2)
	f.Add([]byte("VCD info: dumpfile dump.vcd opened for output.\n"), 0)
	f.Fuzz(func(t *testing.T, log []byte, code int) {
		for _, tl := range builtin() {
			a, err := tl.Decode(map[string]json.RawMessage{"sources": []byte(`["a.v"]`), "top": []byte(`"t"`), "netlist": []byte(`"t.json"`)})
			if err != nil { // iverilog has no netlist
				a, err = tl.Decode(map[string]json.RawMessage{"sources": []byte(`["a.v"]`), "top": []byte(`"t"`)})
			}
			if err != nil {
				t.Fatal(err)
			}
			a = bind(a)
			inv, err := tl.Prepare(a)
			if err != nil {
				t.Fatal(err)
			}
			run := Run{Log: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(log)), nil }}
			for _, s := range inv.Steps {
				run.Exits = append(run.Exits, StepExit{Name: s.Name, LogEnd: int64(len(log) / 2)})
			}
			run.Exits[len(run.Exits)-1].Code = code
			rep, _ := tl.Judge(a, inv, run, fstest.MapFS{})
			if rep.Verdict == OK || rep.Verdict == Findings || code != 0 && rep.Verdict != Failed {
				t.Fatalf("exit %d and no output: %+v", code, rep)
			}
			if len(rep.Diagnostics) > maxDiagnostics {
				t.Fatalf("%d diagnostics", len(rep.Diagnostics))
			}
			for _, d := range rep.Diagnostics {
				if len(d.Message) > maxMessage+8 || d.Line < 0 || !json.Valid(mustJSON(t, d)) {
					t.Fatalf("diagnostic %+v", d)
				}
			}
		}
	})
}

func mustJSON(t *testing.T, v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// FuzzValidators: no panic; the answer does not depend on the blocks; what json accepts encoding/json accepts too.
func FuzzValidators(f *testing.F) {
	for _, text := range []string{
		`{"modules":{"top":{}}}`, "module t; endmodule\n", "$enddefinitions $end\n#1\n1!\n", "#! vvp\n:ivl_version \"\";\n:file_names 0;\n",
		`[1e5,"\u0041",{"a":null}]`, "text é\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, w := range []want{{kind: KindJSON}, {kind: KindYosysJSON, mustContain: "top"}, {kind: KindVerilog}, {kind: KindVVP}, {kind: KindVCD}, {kind: KindText, mustContain: "te"}} {
			if len(text) == 0 {
				return
			}
			big, small := validate(w, text, false), validate(w, text, true)
			if (big == nil) != (small == nil) {
				t.Fatalf("%s: %v, in small blocks %v", w.kind, big, small)
			}
			if w.kind == KindJSON && big == nil && !json.Valid(text) {
				t.Fatalf("not JSON: %q", text)
			}
		}
	})
}

// FuzzDeclared: no panic; what loads is a whole tool.
func FuzzDeclared(f *testing.F) {
	f.Add(good)
	f.Add(pyTool)
	for _, name := range []string{"vivado", "openroad", "constraints"} {
		f.Add(example(f, name))
	}
	f.Add("tools: [{steps: [{argv: [{arg: '{{a...}}'}]}], params: [{name: a, kind: int, default: 1e99}]}]")
	f.Fuzz(func(t *testing.T, config string) {
		tools, err := declarations(config)
		if err != nil {
			if !errors.Is(err, ErrConfig) || tools != nil {
				t.Fatalf("%v, %v", tools, err)
			}
			return
		}
		for _, tl := range tools {
			if errs := tl.mistakes(); errs != nil {
				t.Fatal(errs)
			}
			if _, err := tl.InputSchema().Resolve(nil); err != nil && !strings.Contains(err.Error(), "regexp") {
				t.Fatal(err)
			}
		}
	})
}

// FuzzMapper: no slot is left at a name's boundary.
func FuzzMapper(f *testing.F) {
	for in := range mappings() {
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in string) {
		m := testMapper(t)
		want := m.String(in)
		if strings.Contains(" "+want+" ", " ../s0/out.json ") || strings.Contains(" "+want, " /ws/x/") {
			t.Fatalf("%q -> %q", in, want)
		}
	})
}
