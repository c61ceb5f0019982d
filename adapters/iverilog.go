package adapters

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
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
			"Fails on $error, $fatal, $stop, a file that cannot be opened, or a line that begins with ERROR. " +
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
			{Name: "plusargs", Kind: Text, List: true, Pattern: identifier + `(=[A-Za-z0-9_./,:+-]*)?`,
				Doc: `Arguments for $test$plusargs and $value$plusargs, without the plus. Example: ["cycles=100"].`},
			{Name: "wave_name", Kind: Text, Default: "dump.vcd", Pattern: `[A-Za-z0-9][A-Za-z0-9_.-]*`, MaxLength: 128,
				Doc: "The name that the design gives to $dumpfile. Example: dump.vcd."},
			{Name: "wave_format", Kind: Enum, Enum: []string{"vcd", "fst"}, Doc: "Format of the waves; left out: what wave's extension says, or vcd. Example: fst."},
			{Name: "wave", Kind: Output, Format: KindWave, Doc: "Target of the waves, .vcd or .fst. The design must call $dumpfile and $dumpvars. Example: build/tb.vcd."},
			{Name: "log", Kind: Output, Format: KindFile, AllowEmpty: true, Doc: "Target of what the simulation prints. Example: build/tb.log."},
		},
		Plan: planSimulate, Validate: validateSimulate, Parse: parseSimulate,
	}
}

// planSimulate compiles, then runs. vvp gets -N, with which $stop exits 1; -n would turn $stop into success (measured).
func planSimulate(a Args) (Invocation, error) {
	compile := []string{"iverilog", "-g" + a.Text("std"), "-s", a.Text("top"), "-Wall"}
	for _, dir := range a.InputDirs("include_dirs") {
		compile = append(compile, "-I"+dir)
	}
	for _, d := range a.Texts("defines") {
		compile = append(compile, "-D"+d)
	}
	compile = append(append(compile, "-o", vvpProgram), a.Inputs("sources")...)

	format, err := waveFormat(a)
	if err != nil {
		return Invocation{}, err
	}
	run := []string{"vvp", "-N"}
	if slot := a.Staged("log"); slot != "" {
		run = append(run, "-l"+slot)
	}
	run = append(run, vvpProgram)
	if format == "fst" {
		run = append(run, "-fst")
	}
	for _, p := range a.Texts("plusargs") {
		run = append(run, "+"+p)
	}
	inv := Invocation{Steps: []Step{
		{Name: "compile", Argv: compile, Makes: []Product{{vvpProgram, KindVVP}}},
		{Name: "simulate", Argv: run},
	}}
	if _, ok := a.Output("wave"); ok {
		inv.Collect = []Collect{{Output: "wave", From: a.Text("wave_name")}}
	}
	return inv, nil
}

// waveFormat is what the simulator is to write. It keeps the name dump.vcd also for FST (measured), so the target's extension decides.
func waveFormat(a Args) (string, error) {
	format := a.Text("wave_format")
	target, ok := a.Output("wave")
	if !ok {
		return format, nil
	}
	ext := strings.ToLower(strings.TrimPrefix(path.Ext(target), "."))
	if format != "" && format != ext {
		return "", badArg("wave_format", "is %s, and wave ends in .%s", format, ext)
	}
	return ext, nil
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

// simPatterns are the lines of iverilog and vvp. Source: ivl and vvp of Icarus Verilog, measured with 11.0.
type simPatterns struct {
	compile, continued, run, load, wave, time, called *regexp.Regexp
}

func newSimPatterns() simPatterns {
	return simPatterns{
		compile:   regexp.MustCompile(`^(?:(\S[^:]*):(\d+): )?(?:(error|warning|sorry): )?(.+)$`),
		continued: regexp.MustCompile(`^(?:\S[^:]*:\d+)? *(?:: {2,}|: \.\.\.: |\.\.\.: )(.*)$`),
		run:       regexp.MustCompile(`^(FATAL|ERROR|WARNING|INFO): (?:(\S[^:]*):(\d+): )?(.*)$`),
		load:      regexp.MustCompile(`^(\S[^:]*):(\d+): Error: (.*)$`),
		wave:      regexp.MustCompile(`^(?:VCD|FST|LXT2?) info: dumpfile (\S+) opened for output\.$`),
		time:      regexp.MustCompile(`^ +Time: (\d+) +Scope: (\S+)$`),
		called:    regexp.MustCompile(`^\S[^:]*:\d+: (\$stop|\$finish)(?:\(\d\))? called at `),
	}
}

// simulation is the state of reading one log.
type simulation struct {
	findings
	simPatterns
	data    simData
	exits   []StepExit
	stopped bool // printed
}

func parseSimulate(_ Args, run Run, _ fs.FS) Report {
	s := &simulation{simPatterns: newSimPatterns(), exits: run.Exits, data: simData{Waves: []string{}}}
	err := run.eachLine(func(step int, line []byte) {
		line = line[:min(len(line), 4*maxMessage)]
		if step == 0 {
			s.compiled(line)
		} else {
			s.ran(string(line))
		}
	})
	s.data.Errors, s.data.Warnings, s.data.Infos = s.counts[Error]-s.data.Fatals, s.counts[Warning], s.counts[Info]
	s.judgeStop()
	r := s.report(fmt.Sprintf("simulation ended; %d errors, %d warnings", s.counts[Error], s.data.Warnings), s.data)
	switch {
	case err != nil:
		r.fail(err.Error())
	case s.stopped:
		r.fail("$stop was reached")
	case len(run.Exits) == 2 && run.Exits[1].Signal == "" && run.Exits[1].Code == 1 && r.Verdict != Failed:
		r.fail("exit 1 without an error: $stop was reached, or $finish_and_return(1)")
	}
	return r
}

// judgeStop fills in what the exit says: with -N exit 0 means that $stop was not reached.
func (s *simulation) judgeStop() {
	if s.stopped {
		s.data.Stopped = new(true)
	} else if len(s.exits) == 2 && s.exits[1].Signal == "" && s.exits[1].Code == 0 {
		s.data.Stopped = new(false)
	}
}

// compiled reads a line of iverilog. Its messages have a place, or the word alone ("error: Unable to find the root module").
func (s *simulation) compiled(line []byte) {
	if c := s.continued.FindSubmatch(line); c != nil {
		s.more(strings.TrimSpace(string(c[1])))
		return
	}
	m := s.compile.FindSubmatch(line)
	if m == nil || len(m[2]) == 0 && len(m[3]) == 0 {
		s.last = nil
		return
	}
	d := Diagnostic{File: string(m[1]), Line: number(m[2]), Message: string(m[4])}
	switch string(m[3]) {
	case "error", "sorry":
		d.Severity = Error
	case "warning":
		d.Severity = Warning
	default: // "syntax error" and "Include file ... not found" have a place and no word
		d.Severity = Info
		if s.exits == nil || s.exits[0].Code != 0 {
			d.Severity = Error
		}
	}
	s.add(d)
}

// ran reads a line of vvp.
func (s *simulation) ran(line string) {
	if m := s.time.FindStringSubmatch(line); m != nil {
		s.more("(time " + m[1] + " in " + m[2] + ")")
		s.last = nil
		return
	}
	if m := s.run.FindStringSubmatch(line); m != nil {
		d := Diagnostic{Severity: Error, File: m[2], Line: number([]byte(m[3])), Message: m[4]}
		switch m[1] {
		case "FATAL":
			d.Code = "fatal"
			s.data.Fatals++
		case "WARNING":
			d.Severity = Warning
		case "INFO":
			d.Severity = Info
		}
		if strings.Contains(m[4], "Unable to open") {
			d.Severity = Error
		}
		s.add(d)
		return
	}
	if m := s.load.FindStringSubmatch(line); m != nil {
		s.add(Diagnostic{Severity: Error, File: m[1], Line: number([]byte(m[2])), Message: m[3]})
	} else if m := s.wave.FindStringSubmatch(line); m != nil && len(s.data.Waves) < maxList {
		s.data.Waves = append(s.data.Waves, m[1])
	} else if m := s.called.FindStringSubmatch(line); m != nil {
		s.stopped = s.stopped || m[1] == "$stop"
		if m[1] == "$finish" {
			s.data.Finished = new(true)
		}
	} else if strings.Contains(line, "Unable to open") {
		s.add(Diagnostic{Severity: Error, Message: line})
	}
}
