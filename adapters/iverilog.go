package adapters

import (
	"bytes"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"
)

// simData is the data of iverilog_simulate. A pointer is null where the simulator does not say: 11.0 prints nothing for $finish.
type simData struct {
	Errors   int      `json:"errors" jsonschema:"errors of compiler and simulation, without fatals"`
	Warnings int      `json:"warnings" jsonschema:"warnings of compiler and simulation"`
	Fatals   int      `json:"fatals" jsonschema:"$fatal calls"`
	Infos    int      `json:"infos" jsonschema:"$info calls"`
	Stopped  *bool    `json:"stopped" jsonschema:"whether $stop ended the simulation; null: not known"`
	Finished *bool    `json:"finished" jsonschema:"whether $finish ended the simulation; null: not known"`
	Waves    []string `json:"waves" jsonschema:"wave files that the simulation opened"`
}

const vvpProgram = "_sim.vvp"

func iverilogSimulate() *Tool {
	return &Tool{
		Name: "iverilog_simulate", Title: "Simulate Verilog with Icarus",
		Doc: "Compiles a Verilog test bench with Icarus Verilog and runs it. " +
			"Fails on $error, $fatal, $stop, a file that $readmemh, $readmemb, $writememh or $dumpfile cannot open, or a line that begins with the word ERROR (not ERRORS or ERROR_COUNT); " +
			"a $fopen that fails is silent: it returns 0 to the design. " +
			"Writes the waves that the design dumps, and what it prints, on request. The design runs: it can open files. Findings are warnings.",
		Trust: Design, LogIsEvidence: true,
		Programs: []Program{
			{Key: "iverilog", Names: []string{"iverilog"}, VersionArgs: []string{"-V"}, Match: `(?m)^Icarus Verilog version (\d+\.\d+)`, Min: "11.0", Tested: "11.0"},
			{Key: "vvp", Names: []string{"vvp"}, VersionArgs: []string{"-V"}, Match: `(?m)^Icarus Verilog runtime version (\d+\.\d+)`, Min: "11.0", Tested: "11.0"},
		},
		Limits: Limits{Wall: 5 * time.Minute, WallMax: 12 * time.Hour, MemoryBytes: 4 << 30, Pids: 64, StagingBytes: 8 << 30, LogBytes: 64 << 20},
		Data:   dataSchema[simData](),
		Params: []Param{
			sourcesParam(), includeDirsParam(),
			{Name: "data_dirs", Kind: InputDir, List: true, Doc: `Directories of files that the design opens, such as memory images. Example: ["mem"].`},
			topParam(),
			{Name: "std", Kind: Enum, Enum: []string{"2005", "2005-sv", "2009", "2012"}, Default: "2012", Doc: "Language generation. Example: 2005."},
			definesParam(),
			{
				Name: "plusargs", Kind: Text, List: true, Pattern: identifier + `(=[A-Za-z0-9_./,:+-]*)?`,
				Doc: `Arguments for $test$plusargs and $value$plusargs, without the plus. Example: ["cycles=100"].`,
			},
			{
				Name: "wave_name", Kind: Text, Default: "dump.vcd", Pattern: `[A-Za-z0-9][A-Za-z0-9_.-]*`, MaxLength: 128,
				Doc: "The name that the design gives to $dumpfile. Example: dump.vcd.",
			},
			// VCD only: vvp writes FST through tmpfile(), which opens /tmp whatever TMPDIR says, and tools have no /tmp.
			{Name: "wave", Kind: Output, Format: KindVCD, Doc: "Target of the waves, .vcd. The design must call $dumpfile and $dumpvars. Example: build/tb.vcd."},
			{Name: "log", Kind: Output, Format: KindFile, AllowEmpty: true, Doc: "Target of what the simulation prints. Example: build/tb.log."},
		},
		Plan: planSimulate, Validate: validateSimulate, Parse: parseSimulate,
	}
}

// planSimulate compiles, then runs. vvp gets -N, with which $stop exits 1; -n would turn $stop into success (measured).
func planSimulate(a Args) (Invocation, error) {
	compile := slices.Concat([]string{"iverilog", "-g" + a.Text("std"), "-s", a.Text("top"), "-Wall"},
		prefixed("-I", a.InputDirs("include_dirs")), prefixed("-D", a.Texts("defines")), []string{"-o", vvpProgram}, a.Inputs("sources"))

	run := []string{"vvp", "-N"}
	if slot := a.Staged("log"); slot != "" {
		run = append(run, "-l"+slot)
	}
	run = append(run, vvpProgram)
	run = append(run, prefixed("+", a.Texts("plusargs"))...)
	inv := Invocation{Steps: []Step{
		{Name: "compile", Argv: compile, Makes: []Product{{vvpProgram, KindVVP}}},
		{Name: "simulate", Argv: run},
	}}
	if _, ok := a.Output("wave"); ok {
		inv.Collect = []Collect{{Output: "wave", From: a.Text("wave_name")}}
	}
	return inv, nil
}

// validateSimulate says why waves are missing: nothing else tells a caller.
func validateSimulate(a Args, staged fs.FS) []Fault {
	if _, ok := a.Output("wave"); !ok {
		return nil
	}
	if _, err := fs.Stat(staged, jobPath(a.Staged("wave"))); err == nil {
		return nil
	}
	return []Fault{{"wave", fmt.Errorf("%w: the design must call $dumpfile(%q) and $dumpvars", ErrMissing, a.Text("wave_name"))}}
}

// simulation is the state of reading one log. The forms of the lines are those of ivl and vvp, measured with 11.0.
type simulation struct {
	findings
	data  simData
	exits []StepExit
}

func parseSimulate(_ Args, run Run, _ fs.FS) Report {
	s := &simulation{exits: run.Exits, data: simData{Waves: []string{}}}
	err := run.eachLine(func(step int, line []byte) {
		if step == 0 {
			s.compiled(string(line[:min(len(line), 2*maxMessage)]))
		} else {
			s.ran(line[:min(len(line), 2*maxMessage)])
		}
	})
	last := StepExit{Code: -1} // of the simulator
	if len(run.Exits) == 2 && run.Exits[1].Signal == "" {
		last = run.Exits[1]
	}
	if s.data.Stopped == nil && last.Code == 0 {
		s.data.Stopped = new(false) // with -N, $stop exits 1
	}
	s.data.Errors, s.data.Warnings, s.data.Infos = s.counts[Error]-s.data.Fatals, s.counts[Warning], s.counts[Info]
	r := s.report(fmt.Sprintf("simulation ended; %d errors, %d warnings", s.counts[Error], s.data.Warnings), s.data)
	switch {
	case err != nil:
		r.fail(err.Error())
	case s.data.Stopped != nil && *s.data.Stopped:
		r.fail("$stop was reached")
	case last.Code == 1:
		r.fail("exit 1 without an error: $stop was reached, or $finish_and_return(1)")
	}
	return r
}

// place splits "file:line: rest", which both programs write; without it file is empty and rest the whole line.
func place(text string) (file string, line int, rest string) {
	file, after, _ := strings.Cut(text, ":")
	digits, rest, ok := strings.Cut(after, ":")
	n := number(digits)
	if !ok || file == "" || n == 0 || strings.ContainsAny(file, " \t") {
		return "", 0, text
	}
	return file, n, strings.TrimPrefix(rest, " ")
}

// compiled reads a line of iverilog: [place] [word: ] text, or a continuation, which begins with a colon of its own.
func (s *simulation) compiled(line string) {
	file, n, text := place(line)
	text = strings.TrimSpace(text)
	for _, colon := range []string{": ", "...: "} {
		if more, ok := strings.CutPrefix(text, colon); ok {
			s.more(strings.TrimSpace(more))
			return
		}
	}
	for word, severity := range map[string]Severity{"error: ": Error, "sorry: ": Error, "warning: ": Warning} {
		if message, ok := strings.CutPrefix(text, word); ok {
			s.add(Diagnostic{Severity: severity, File: file, Line: n, Message: message})
			return
		}
	}
	if file == "" {
		s.last = nil
		return
	}
	severity := Info // "syntax error" and "Include file ... not found" have a place and no word
	if len(s.exits) == 0 || s.exits[0].Code != 0 {
		severity = Error
	}
	s.add(Diagnostic{Severity: severity, File: file, Line: n, Message: text})
}

// ran reads a line of vvp: WORD: [place] text, then the time on a line of its own.
func (s *simulation) ran(line []byte) {
	word, rest, said := bytes.Cut(line, []byte(":"))
	rest = bytes.TrimPrefix(rest, []byte(" "))
	switch string(word) {
	case "FATAL", "ERROR", "WARNING", "INFO":
		if said {
			s.message(string(word), string(rest))
			return
		}
	case "VCD info", "LXT info", "LXT2 info":
		name, ok := strings.CutPrefix(string(rest), "dumpfile ")
		if name, opened := strings.CutSuffix(name, " opened for output."); ok && opened && len(s.data.Waves) < maxList {
			s.data.Waves = append(s.data.Waves, name)
		}
		return
	}
	after, alarm := bytes.CutPrefix(line, []byte("ERROR"))
	switch {
	case alarm && (len(after) == 0 || !isWord(after[0])): // what test benches print by hand; ERRORS and ERROR_COUNT are other words
		s.add(Diagnostic{Severity: Error, Message: string(line)})
	case bytes.HasPrefix(line, []byte("   ")) && bytes.Contains(line, []byte(" Time: ")) && bytes.Contains(line, []byte(" Scope: ")):
		s.more("(" + strings.Replace(strings.Replace(strings.TrimSpace(string(line)), "Time:", "time", 1), "Scope:", "in", 1) + ")")
		s.last = nil
	case bytes.Contains(line, []byte(": Error: ")):
		if file, n, text := place(string(line)); file != "" {
			s.add(Diagnostic{Severity: Error, File: file, Line: n, Message: strings.TrimPrefix(text, "Error: ")})
		}
	case bytes.Contains(line, []byte(" called at ")):
		switch _, _, text := place(string(line)); {
		case strings.HasPrefix(text, "$stop"):
			s.data.Stopped = new(true)
		case strings.HasPrefix(text, "$finish"):
			s.data.Finished = new(true)
		}
	case bytes.Contains(line, []byte("Unable to open")):
		s.add(Diagnostic{Severity: Error, Message: string(line)})
	}
}

func (s *simulation) message(word, text string) {
	d := Diagnostic{Severity: Error}
	d.File, d.Line, d.Message = place(text)
	switch {
	case word == "FATAL":
		d.Code = "fatal"
		s.data.Fatals++
	case strings.Contains(text, "Unable to open"):
	case word == "WARNING":
		d.Severity = Warning
	case word == "INFO":
		d.Severity = Info
	}
	s.add(d)
}
