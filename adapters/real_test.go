package adapters

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func contextFor(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}

// realRun is one run of real programs, with its golden Report in testdata/golden/<name>.json.
type realRun struct {
	name, tool, dir string
	files           map[string]string
	args            string
	verdict         Verdict
	first           string // severity file:line of the first diagnostic; empty: none
	faults          string // outputs with faults, joined by blanks
}

const (
	synthArgs = `{"sources":["rtl/bad.v"],"top":"top","netlist":"build/top.json"%s}`
	simArgs   = `{"sources":["tb.v"],"top":"tb"%s}`
)

func bad(text string) map[string]string { return map[string]string{"rtl/bad.v": text + "\n"} }
func tb(text string) map[string]string  { return map[string]string{"tb.v": text + "\n"} }

func realRuns() []realRun {
	y := func(name, text, more string, v Verdict, first, faults string) realRun {
		return realRun{"yosys_" + name, "yosys_synth", "", bad(text), fmt.Sprintf(synthArgs, more), v, first, faults}
	}
	i := func(name, text, more string, v Verdict, first, faults string) realRun {
		return realRun{"iverilog_" + name, "iverilog_simulate", "", tb(text), fmt.Sprintf(simArgs, more), v, first, faults}
	}
	counter := `"sources":["rtl/counter.v","rtl/top.v"],"include_dirs":["inc"],"top":"top","netlist":"build/top.json"`
	return []realRun{
		{"yosys_counter", "yosys_synth", "test/corpus/counter", nil, `{` + counter + `,"verilog":"build/top_syn.v","stat":"build/top.stat.txt"}`, OK, "", ""},
		{"yosys_ice40", "yosys_synth", "test/corpus/counter", nil, `{` + counter + `,"target":"ice40"}`, OK, "", ""},
		{"yosys_hierarchy", "yosys_synth", "test/corpus/counter", nil, `{` + counter + `,"target":"ecp5","flatten":false,"verilog":"t.v"}`, OK, "", ""},
		{"yosys_example", "yosys_synth", "examples/counter", nil, `{` + counter + `,"target":"ice40","defines":["WIDTH=5"]}`, OK, "", ""},
		y("syntax", "module top(input a; endmodule", "", Failed, "error rtl/bad.v:1", ""),
		y("unknown_module", "module top(input a); nosuch u(a); endmodule", "", Failed, "error :0", ""),
		y("no_top", "module other(input a); endmodule", "", Failed, "error :0", ""),
		y("no_include", "`include \"nope.vh\"\nmodule top; endmodule", "", Failed, "error :0", ""),
		y("error_task", "module top(output y); generate if (1) $error(\"bad N\"); endgenerate endmodule", "", Failed, "error rtl/bad.v:1", ""),
		y("warnings", "module top(input clk, output reg q);\nalways @(posedge clk) q <= 0;\nalways @(posedge clk) q <= undeclared;\nendmodule", "", Findings, "warning rtl/bad.v:3", ""),
		y("fail_on", "module top(input clk, output reg q);\nalways @(posedge clk) q <= undeclared;\nendmodule", `,"fail_on":"warning"`, Failed, "warning rtl/bad.v:2", ""),
		y("latch", "module top(input e, d, output reg q); always @* if (e) q = d; endmodule", "", OK, "", ""),
		y("empty", "module top; endmodule", "", Invalid, "", ""),
		{
			"iverilog_example", "iverilog_simulate", "examples/counter", nil,
			`{"sources":["rtl/counter.v","rtl/top.v","tb/tb.v"],"include_dirs":["inc"],"top":"tb","wave":"build/tb.vcd","log":"build/tb.log"}`, OK, "", "",
		},
		{
			"iverilog_example_fails", "iverilog_simulate", "examples/counter", nil,
			`{"sources":["rtl/counter.v","rtl/top.v","tb/tb_fail.v"],"include_dirs":["inc"],"top":"tb","wave":"build/tb.vcd"}`, Failed, "error tb/tb_fail.v:16", "",
		},
		{"iverilog_fsm", "iverilog_simulate", "test/corpus/fsm", nil, `{"sources":["fsm.v","tb.v"],"top":"tb","wave":"build/tb.vcd"}`, OK, "", ""},
		{"iverilog_mutant", "iverilog_simulate", "test/corpus/fsm", nil, `{"sources":["fsm_mutant.v","tb.v"],"top":"tb"}`, Failed, "error tb.v:16", ""},
		{"iverilog_mem", "iverilog_simulate", "test/corpus", nil, `{"sources":["mem/rom.v"],"top":"rom"}`, OK, "", ""},
		i("mem_missing", "module tb; reg [7:0] m[0:3];\ninitial $readmemh(\"mem/none.hex\", m);\nendmodule", "", Failed, "error tb.v:2", ""),
		i("fopen_missing", "module tb; integer f;\ninitial begin f = $fopen(\"mem/none.hex\", \"r\"); $display(\"f=%0d\", f); end\nendmodule", "", OK, "", ""),
		i("syntax", "module tb; reg a;\ninitial a = ;\nendmodule", "", Failed, "error tb.v:2", ""),
		i("unknown_module", "module tb; nosuch u(); endmodule", "", Failed, "error tb.v:1", ""),
		i("no_top", "module other; endmodule", "", Failed, "error :0", ""),
		i("no_include", "`include \"nope.vh\"\nmodule tb; endmodule", "", Failed, "error tb.v:2", ""),
		i("warnings", "module tb; wire a; sub u();\nendmodule\nmodule sub(input b); endmodule", "", Findings, "warning tb.v:1", ""),
		i("error_exits_0", "module tb;\ninitial begin #3 $error(\"one %0d\", 1); $finish; end\nendmodule", "", Failed, "error tb.v:2", ""),
		i("fatal", "module tb;\ninitial $fatal(1, \"bye\");\nendmodule", "", Failed, "error tb.v:2", ""),
		i("stop", "module tb;\ninitial $stop;\nendmodule", "", Failed, "", ""),
		i("exit_3", "module tb;\ninitial $finish_and_return(3);\nendmodule", "", Failed, "", ""),
		i("assert", "module tb;\ninitial assert(0);\nendmodule", "", Failed, "error tb.v:2", ""),
		i("printed_error", "module tb; initial $display(\"ERROR: by hand\"); endmodule", "", Failed, "error :0", ""),
		i("warning_info", "module tb; initial begin $warning(\"w\"); $info(\"i\"); end endmodule", "", Findings, "warning tb.v:1", ""),
		i("no_task", "module tb;\ninitial $nosuchtask;\nendmodule", "", Failed, "error tb.v:2", ""),
		i("no_dump", "module tb; initial $display(\"x\"); endmodule", `,"wave":"build/tb.vcd","log":"l.txt"`, Invalid, "", "wave"),
		i("silent", "module tb; endmodule", `,"log":"l.txt"`, OK, "", ""),
		i("plusargs", "module tb; integer n; initial begin if (!$value$plusargs(\"n=%d\", n)) $fatal; $display(\"%0d %0d\", n, `D); end endmodule",
			`,"plusargs":["n=7"],"defines":["D=8'hff"]`, OK, "", ""),
		i("dump_elsewhere", "module tb; initial begin $dumpfile(\"/nonexistent/x.vcd\"); $dumpvars; end endmodule", "", Failed, "error :0", ""),
	}
}

// TestRealRuns runs yosys 0.23 and Icarus 11.0 on each design and compares verdict, first diagnostic, faults and the whole Report.
func TestRealRuns(t *testing.T) {
	for _, c := range realRuns() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.dir, c.files)
			rep, faults := r.call(tool(t, c.tool), c.args)
			if got := summary(rep, faults); got != (verdictLine{c.verdict, c.first, c.faults}) {
				t.Errorf("got %+v, want %+v\nsummary %s\nlog %s", got, verdictLine{c.verdict, c.first, c.faults}, rep.Summary, r.log())
			}
			golden(t, c.name, masked(t, rep))
			if resolved, err := tool(t, c.tool).Data.Resolve(nil); err != nil || rep.Data != nil && resolved.Validate(rep.Data) != nil {
				t.Errorf("data %v is not of the tool's schema (%v)", rep.Data, err)
			}
			noLeak(t, r, rep, faults)
		})
	}
}

// verdictLine is what each row of the table says.
type verdictLine struct {
	verdict       Verdict
	first, faults string
}

func summary(rep Report, faults []Fault) verdictLine {
	v := verdictLine{verdict: rep.Verdict}
	if len(rep.Diagnostics) > 0 {
		d := rep.Diagnostics[0]
		v.first = fmt.Sprintf("%s %s:%d", d.Severity, d.File, d.Line)
	}
	var names []string
	for _, f := range faults {
		if len(names) == 0 || names[len(names)-1] != f.Output {
			names = append(names, f.Output)
		}
	}
	v.faults = strings.Join(names, " ")
	return v
}

// masked hides hashes, which change with the program's build.
func masked(t *testing.T, rep Report) any {
	t.Helper()
	text, err := json.Marshal(rep)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := json.Unmarshal(regexp.MustCompile(`"sha256":"[0-9a-f]{64}"`).ReplaceAll(text, []byte(`"sha256":"(sha256)"`)), &tree); err != nil {
		t.Fatal(err)
	}
	return tree
}

// noLeak fails if a path of the job is in anything that a caller sees.
func noLeak(t *testing.T, r *rig, rep Report, faults []Fault) {
	t.Helper()
	text, err := json.Marshal([]any{rep, fmt.Sprint(faults)})
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"../s0", "/s0/", r.ws, "0197a"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("%q leaks: %s", secret, text)
		}
	}
}

func (r *rig) log() string {
	text, err := os.ReadFile(filepath.Join(r.job, "log"))
	if err != nil {
		r.t.Fatal(err)
	}
	return string(text)
}

// TestOddTargets: a target may have any name; tools see slots, callers see the target. Another workspace and job give equal bytes.
func TestOddTargets(t *testing.T) {
	var plain []byte
	for i, target := range []string{"top.json", "a b/c.json", `q"u'o;t$e#[1]{x}.json`, "-rf.json", "é☃.json", strings.Repeat("n", 195) + ".json"} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			r := newRig(t, "test/corpus/counter", nil)
			name, err := json.Marshal(target)
			if err != nil {
				t.Fatal(err)
			}
			rep, faults := r.call(tool(t, "yosys_synth"), fmt.Sprintf(
				`{"sources":["rtl/counter.v","rtl/top.v"],"include_dirs":["inc"],"top":"top","target":"ice40","netlist":%s}`, name))
			var state struct{ Netlist struct{ Path string } }
			if err := json.Unmarshal(rep.State, &state); err != nil || rep.Verdict != OK || faults != nil || state.Netlist.Path != target {
				t.Fatalf("got %+v %v %v", rep, faults, err)
			}
			noLeak(t, r, rep, faults)
			text, err := os.ReadFile(filepath.Join(r.job, "s0/out.json"))
			if err != nil {
				t.Fatal(err)
			}
			if plain == nil {
				plain = text
			}
			if !bytes.Equal(plain, text) {
				t.Error("the same design gave other bytes")
			}
		})
	}
}

// TestSimulationLog: the log output is what the design printed.
func TestSimulationLog(t *testing.T) {
	c := row(t, "iverilog_example")
	r := newRig(t, c.dir, c.files)
	r.call(tool(t, c.tool), c.args)
	text, err := os.ReadFile(filepath.Join(r.job, "s1/out.log"))
	if err != nil || !strings.Contains(string(text), "PASS: led is 25 after 100 clocks\n") {
		t.Errorf("got %q, %v", text, err)
	}
}
