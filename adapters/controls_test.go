package adapters

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// row returns one row of realRuns.
func row(t *testing.T, name string) realRun {
	t.Helper()
	i := slices.IndexFunc(realRuns(), func(c realRun) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("no row %q", name)
	}
	return realRuns()[i]
}

// rejects runs a row with a protection taken off, and reports whether the table sees it.
func rejects(t *testing.T, name string, spoil func(*rig, *Tool)) bool {
	t.Helper()
	c := row(t, name)
	r, tl := newRig(t, c.dir, c.files), tool(t, c.tool)
	spoil(r, tl)
	rep, faults := r.call(tl, c.args)
	return summary(rep, faults) != verdictLine{c.verdict, c.first, c.faults}
}

// TestControls takes each protection off in turn: the table of real runs must turn red.
func TestControls(t *testing.T) {
	swap := func(from, to string) func(*rig, *Tool) {
		return func(r *rig, _ *Tool) {
			r.argv = func(argv []string) []string {
				argv = slices.Clone(argv)
				for i := range argv {
					if argv[i] == from {
						argv[i] = to
					}
				}
				return argv
			}
		}
	}
	for _, c := range []struct {
		name, row string
		spoil     func(*rig, *Tool)
	}{
		{"verdict-is-exit-code", "iverilog_error_exits_0", func(_ *rig, tl *Tool) {
			tl.Parse = func(Args, Run, fs.FS) Report { return Report{Verdict: OK} }
		}},
		{"silence-is-success", "yosys_empty", func(_ *rig, tl *Tool) {
			tl.Parse = func(_ Args, run Run, _ fs.FS) Report {
				f, err := yosysMessages(run)
				if err != nil {
					t.Fatal(err)
				}
				return f.report("", nil)
			}
		}},
		{"vvp-n", "iverilog_stop", swap("-N", "-n")},
		{"output-optional", "iverilog_no_dump", func(_ *rig, tl *Tool) {
			tl.Validate = nil
			for i := range tl.Params {
				tl.Params[i].Optional = true
			}
		}},
		{"fail-on-ignored", "yosys_fail_on", func(_ *rig, tl *Tool) {
			parse := tl.Parse
			tl.Parse = func(a Args, run Run, staged fs.FS) Report {
				r := parse(a, run, staged)
				r.Verdict = OK
				return r
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if rejects(t, c.row, func(*rig, *Tool) {}) {
				t.Fatal("the row is red without the spoiling")
			}
			if !rejects(t, c.row, c.spoil) {
				t.Error("the table does not see it")
			}
		})
	}
}

// TestPlainNamesRequired shows why: yosys reads another file than the one named. The control calls the tool around Decode.
func TestPlainNamesRequired(t *testing.T) {
	files := map[string]string{"g[1].v": "module top(output a, b); assign a = 1; endmodule\n", "g1.v": "module wrong; endmodule\nmodule top; endmodule\n"}
	const args = `{"sources":["g[1].v"],"top":"top","netlist":"t.json"}`
	if _, err := decode(t, tool(t, "yosys_synth"), args); err == nil || !strings.Contains(err.Error(), `bad byte "[" at 1: rename it`) {
		t.Fatalf("got %v", err)
	}
	a, err := decode(t, tool(t, "yosys_synth"), strings.Replace(args, "g[1].v", "x.v", 1))
	if err != nil {
		t.Fatal(err)
	}
	a.values["sources"], a.ins[0].Path = []string{"g[1].v"}, "g[1].v"
	r := newRig(t, "", files)
	if err := os.Symlink(r.ws+"/g1.v", r.ws+"/.plain"); err != nil {
		t.Fatal(err)
	}
	a.ins = append(a.ins, InputArg{Name: "sources", Path: "g1.v"})
	if rep, _ := r.execute(tool(t, "yosys_synth"), a); rep.Verdict == OK {
		t.Error("yosys read the file that was named: the rule of plain names may have lost its reason")
	}
}

// TestMappingNeeded: a design that prints where it writes shows a slot to the caller, unless paths are mapped back.
func TestMappingNeeded(t *testing.T) {
	r := newRig(t, "", tb("module tb; initial begin $dumpfile(\"dump.vcd\"); $dumpvars; $error(\"see ../s0/out.vcd\"); end reg a; endmodule"))
	tl := tool(t, "iverilog_simulate")
	rep, faults := r.call(tl, `{"sources":["tb.v"],"top":"tb","wave":"w.vcd"}`)
	noLeak(t, r, rep, faults)
	if !strings.Contains(rep.Summary, "see w.vcd") {
		t.Errorf("got %q", rep.Summary)
	}
	r.run.Map = nil
	rep, _ = tl.Judge(r.args, r.inv, r.run, os.DirFS(r.job))
	if !strings.Contains(fmt.Sprint(rep), "../s0/out.vcd") {
		t.Error("the test of leaks cannot fail")
	}
}

// TestMakes: half a program is refused before the simulator starts.
func TestMakes(t *testing.T) {
	c := row(t, "iverilog_silent")
	halve := func(r *rig) {
		r.argv = func(argv []string) []string {
			if argv[0] != "iverilog" {
				return argv
			}
			return append([]string{"sh", "-c", `"$@" && truncate -s 900 _sim.vvp`, "sh"}, argv...)
		}
	}
	r := newRig(t, c.dir, c.files)
	halve(r)
	rep, faults := r.call(tool(t, c.tool), c.args)
	if rep.Verdict != Invalid || len(r.run.Exits) != 1 || len(faults) == 0 || faults[0].Output != vvpProgram {
		t.Errorf("got %+v %v after %v", rep, faults, r.run.Exits)
	}
	off := newRig(t, c.dir, c.files)
	halve(off)
	off.makes = func(Invocation, int, fs.FS) []Fault { return nil }
	off.call(tool(t, c.tool), c.args)
	if len(off.run.Exits) != 2 {
		t.Error("the control did not run the simulator on half a program")
	}
}

// logOf is a Run whose log is text.
func logOf(code int, text string) Run {
	return Run{
		Exits: []StepExit{{Name: "a"}, {Name: "b", Code: code, LogEnd: int64(len(text))}},
		Log:   func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil },
	}
}

// TestWholeLogIsRead: an error after any amount of output counts. The control reads the head alone.
func TestWholeLogIsRead(t *testing.T) {
	text := strings.Repeat("tick\n", 200_000) + "ERROR: tb.v:9: late\n"
	run := logOf(0, text)
	if rep := parseSimulate(Args{}, run, nil); rep.Verdict != Failed || rep.Diagnostics[0].Line != 9 {
		t.Errorf("got %+v", rep)
	}
	run.Log = func() (io.ReadCloser, error) {
		return io.NopCloser(io.LimitReader(strings.NewReader(text), 64<<10)), nil
	}
	if rep := parseSimulate(Args{}, run, nil); rep.Verdict != OK {
		t.Error("the test of late errors cannot fail")
	}
}

// TestPrintedError: a line that begins with the word ERROR fails a simulation, however it goes on; other words do not.
func TestPrintedError(t *testing.T) {
	said := func(line string) Report { return parseSimulate(Args{}, logOf(0, "tick\n"+line+"\ntick\n"), nil) }
	for _, line := range []string{"ERROR", "ERROR x", "ERROR!", "ERROR(3)", "ERROR:", "ERROR: tb.v:3: x", "ERROR\t7"} {
		if rep := said(line); rep.Verdict != Failed || len(rep.Diagnostics) != 1 || rep.Diagnostics[0].Severity != Error {
			t.Errorf("%q: got %+v", line, rep)
		}
	}
	for _, line := range []string{"ERRORS: 0", "ERROR_COUNT: 0", "ERRORLESS", "no ERROR", " ERROR: indented", "error: x", "0 ERRORS"} {
		if rep := said(line); rep.Verdict != OK || len(rep.Diagnostics) != 0 {
			t.Errorf("%q: got %+v", line, rep)
		}
	}
}

// TestLogCut: what the log's cap took may have been an error, so a clean verdict counted from it is none.
func TestLogCut(t *testing.T) {
	c := row(t, "iverilog_silent")
	r := newRig(t, c.dir, c.files)
	r.run.LogTruncated = true
	tl := tool(t, c.tool)
	rep, faults := r.call(tl, c.args)
	if rep.Verdict != Invalid || !slices.ContainsFunc(faults, func(f Fault) bool { return errors.Is(f, ErrLogCut) }) {
		t.Errorf("got %+v %v", rep, faults)
	}
	tl.LogIsEvidence = false // the control
	if rep, _ := tl.Judge(r.args, r.inv, r.run, os.DirFS(r.job)); rep.Verdict != OK {
		t.Errorf("control: got %+v", rep)
	}
}

// allocated is how many bytes fn allocates in all.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// endless gives n times the same byte.
type endless struct{ n int }

func (e *endless) Read(p []byte) (int, error) {
	if e.n == 0 {
		return 0, io.EOF
	}
	p = p[:min(len(p), e.n)]
	for i := range p {
		p[i] = 'x'
	}
	e.n -= len(p)
	return len(p), nil
}

// TestLongLine: one line of 32 MiB costs no more memory than a short one. The control keeps whole lines.
func TestLongLine(t *testing.T) {
	const line, limit = 32 << 20, 4 << 20
	run := logOf(0, "")
	run.Log = func() (io.ReadCloser, error) { return io.NopCloser(&endless{line}), nil }
	if got := allocated(func() { parseSimulate(Args{}, run, nil) }); got > limit {
		t.Errorf("%d bytes for a line of %d", got, line)
	}
	control := allocated(func() {
		if _, err := bufio.NewReader(&endless{line}).ReadBytes('\n'); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
	if control <= limit {
		t.Errorf("the test of long lines cannot fail: %d", control)
	}
}

// TestBounds: 200 diagnostics, errors first, all counted; long messages and large data are cut, and say so.
func TestBounds(t *testing.T) {
	text := strings.Repeat("WARNING: tb.v:1: w\n", 500) + strings.Repeat("ERROR: tb.v:2: "+strings.Repeat("e", 5000)+"\n", 3)
	rep := parseSimulate(Args{}, logOf(0, text), nil).bounded(nil)
	if len(rep.Diagnostics) != 200 || rep.Diagnostics[0].Severity != Error || rep.Diagnostics[3].Severity != Warning || rep.Counts[Warning] != 500 || rep.Counts[Error] != 3 {
		t.Errorf("%d diagnostics, counts %v", len(rep.Diagnostics), rep.Counts)
	}
	if n := len(rep.Diagnostics[0].Message); n > maxMessage {
		t.Errorf("a message of %d bytes", n)
	}
	binary := Report{Diagnostics: []Diagnostic{{Message: strings.Repeat("\xffa", maxMessage)}}}.bounded(nil).Diagnostics[0].Message
	if len(binary) > maxMessage || !utf8.ValidString(binary) {
		t.Errorf("a message of %d bytes, UTF-8 = %t", len(binary), utf8.ValidString(binary))
	}
	var waves []string
	for range 3000 {
		waves = append(waves, strings.Repeat("w", 30))
	}
	rep = Report{Data: map[string]any{"waves": waves}}.bounded(nil)
	data, ok := rep.Data.(map[string]any)
	if list, isList := data["waves"].([]any); !ok || !isList || len(list) != maxList || data["waves_total"] != 3000 {
		t.Errorf("data %.200v", rep.Data)
	}
}

// TestCut: after a deadline there are diagnostics, and no state.
func TestCut(t *testing.T) {
	tl := tool(t, "yosys_synth")
	a, err := decode(t, tl, goodSynth)
	if err != nil {
		t.Fatal(err)
	}
	run := logOf(0, "rtl/top.v:3: Warning: late\n")
	run.Exits, run.Cut = []StepExit{{Name: "synth", Signal: "SIGKILL", LogEnd: 27}}, true
	inv, err := tl.Prepare(a)
	if err != nil {
		t.Fatal(err)
	}
	rep, faults := tl.Judge(a, inv, run, os.DirFS(t.TempDir()))
	if rep.Verdict != Failed || faults != nil || rep.State != nil || len(rep.Diagnostics) != 1 {
		t.Errorf("got %+v %v", rep, faults)
	}
}

// TestProgress reads yosys' headings and nothing else.
func TestProgress(t *testing.T) {
	for line, want := range map[string]string{
		"5.3.2. Executing OPT_EXPR pass (perform const folding).": "5.3.2. Executing OPT_EXPR pass (perform const folding)",
		"1. Executing Verilog-2005 frontend: rtl/top.v":           "1. Executing Verilog-2005 frontend: rtl/top.v",
		"x. Executing": "", "": "", ". Executing x": "", "2. Printing statistics.": "",
	} {
		if p, ok := yosysProgress([]byte(line)); p.Message != want || ok != (want != "") {
			t.Errorf("%q: got %q, %v", line, p.Message, ok)
		}
	}
}

// TestNewerSimulators: Icarus 12 and later print where $finish and $stop were called.
func TestNewerSimulators(t *testing.T) {
	rep := parseSimulate(Args{}, logOf(0, "tb.v:7: $finish called at 100 (1s)\n"), nil)
	if d, ok := rep.Data.(simData); !ok || rep.Verdict != OK || d.Finished == nil || !*d.Finished {
		t.Errorf("got %+v", rep)
	}
	rep = parseSimulate(Args{}, logOf(1, "tb.v:7: $stop called at 100 (1s)\n"), nil)
	if d, ok := rep.Data.(simData); !ok || rep.Verdict != Failed || rep.Summary != "$stop was reached" || d.Stopped == nil || !*d.Stopped {
		t.Errorf("got %+v", rep)
	}
}
