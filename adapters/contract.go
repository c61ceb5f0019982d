package adapters

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
)

// Trust says whose code a tool runs, and so which capability a caller needs. It is about intent, not a security boundary.
type Trust string

// The degrees of trust, from the least demanding.
const (
	Declarative Trust = "declarative" // arguments and data only
	Design      Trust = "design"      // the user's design runs, and can open files or start processes
	Script      Trust = "script"      // the caller hands over text in the tool's own language
)

// Tool is one MCP tool: what an adapter knows, as data and four pure functions. It is immutable once it is in a Catalog.
type Tool struct {
	Name          string             // ^[a-z][a-z0-9_]{0,31}$, the program first
	Title         string             // for people, a few words
	Doc           string             // <= 1,000 bytes; the first sentence <= 120 and complete; says units, side effects, what "findings" means
	Trust         Trust              // the least that a call needs; an argument can raise it (TrustOf)
	Programs      []Program          // what must be installed; Step.Argv[0] is a Key of these
	Params        []Param            // in the order of the documentation
	Limits        Limits             // defaults, and the ceiling of the wall time
	State         []string           // keys of the session's vars that Report.State may set; {"*"}: any
	StateFiles    bool               // the engine puts the clone of vars into work/_state.json (0444); Judge reads work/_state.next.json
	Data          *jsonschema.Schema // of Report.Data; nil: none
	Deterministic bool               // equal inputs give equal bytes, volatile ranges of the kinds aside
	LogIsEvidence bool               // the verdict is counted from the log: a cut log is ErrLogCut
	AllEntries    bool               // the view links every plain top-level entry of the workspace, not just those of inputs
	Network       bool               // TCP allowed
	PassEnv       []string           // names copied from the engine's environment if the host config allows them too

	Plan     func(Args) (Invocation, error)     // pure: same Args, same Invocation
	Progress func(line []byte) (Progress, bool) // may be nil; must not keep line
	Validate func(Args, fs.FS) []Fault          // beyond the kinds' own validators; may be nil
	Parse    func(Args, Run, fs.FS) Report      // also for failed and cut runs
}

// Limits bound one call of a tool.
type Limits struct {
	Wall         time.Duration // default deadline, counted from the start of the first group
	WallMax      time.Duration // ceiling of what a caller may ask for
	MemoryBytes  int64
	Pids         int64
	StagingBytes int64 // everything the job writes
	LogBytes     int64
}

// Invocation is what a call makes of its arguments.
type Invocation struct {
	Files   []File    // written into work/ before the first step, 0644
	Steps   []Step    // 1..5, one after another, each in its own group
	Collect []Collect // moved into slots after the last step
}

// File is a driver script that the adapter generates. Its name begins with "_", so no input can clash with it.
type File struct{ Name, Content string }

// Step is one process. Its cwd is work/, its stdin /dev/null.
type Step struct {
	Name    string    // for the log and the exits
	Argv    []string  // Argv[0] is the Key of a Program, resolved by the engine at its start; never a path from a caller (Command aside)
	Env     []string  // NAME=value, added to the base environment
	Proceed []int     // exit codes after which the next step may run; nil: 0 alone
	Makes   []Product // validated by CheckMakes before the next step starts
}

// MayProceed reports whether the next step may run after this exit code.
func (s Step) MayProceed(code int) bool {
	if s.Proceed == nil {
		return code == 0
	}
	return slices.Contains(s.Proceed, code)
}

// Product is an intermediate file: Path is relative to work/.
type Product struct {
	Path string
	Kind Kind
}

// Collect says that the tool wrote the output under a name of its own: the engine renames work/From to the output's slot.
// From may be absent: the output is then missing, and said to be.
type Collect struct{ Output, From string }

// StepExit is how one step ended.
type StepExit struct {
	Name   string
	Code   int    // meaningful if Signal is empty
	Signal string // such as SIGKILL; empty: exited
	OOM    bool   // the kernel killed for memory in the step's group
	LogEnd int64  // offset in the job's log at which the step's output ended, its Separator excluded
}

// Failed reports whether the step ended otherwise than by an exit that its Step lets pass.
func (e StepExit) Failed(s Step) bool { return e.Signal != "" || e.OOM || !s.MayProceed(e.Code) }

// String says the exit in words, such as "simulate: exit 1".
func (e StepExit) String() string {
	switch {
	case e.OOM:
		return e.Name + ": out of memory"
	case e.Signal != "":
		return e.Name + ": " + e.Signal
	}
	return fmt.Sprintf("%s: exit %d", e.Name, e.Code)
}

// Separator is the line that the engine writes into the log after a step, newline included.
func (e StepExit) Separator() string { return "-- " + e.String() + " --\n" }

// Run is a finished process tree as Judge sees it.
type Run struct {
	Exits        []StepExit                    // of the steps that started, in order
	Log          func() (io.ReadCloser, error) // the job's log from its first byte
	LogTruncated bool                          // the log hit its cap
	Cut          bool                          // ended by deadline, cancel or limit: diagnostics only, nothing is validated
	Map          *Mapper                       // maps paths back in everything that leaves; nil: no mapping
}

// Verdict is an adapter's judgement of a finished tool.
type Verdict string

// The verdicts.
const (
	OK       Verdict = "ok"
	Findings Verdict = "findings" // the work was done, and there is something to look at: published
	Failed   Verdict = "failed"   // TOOL_FAILED
	Invalid  Verdict = "invalid"  // OUTPUT_INVALID
)

// Severity grades a diagnostic.
type Severity string

// The severities, from the worst.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
	Info    Severity = "info"
)

// Diagnostic is one message of a tool. File is workspace-relative, or empty; Line and Column count from 1, 0 is unknown.
type Diagnostic struct {
	Severity Severity `json:"severity"`
	File     string   `json:"file,omitempty"`
	Line     int      `json:"line,omitempty"`
	Column   int      `json:"column,omitempty"`
	Code     string   `json:"code,omitempty"`
	Message  string   `json:"message"` // <= 1 KiB, valid UTF-8
}

// Report is the judgement: Judge bounds it (200 diagnostics, errors first; 64 KiB of data; 64 KiB of state).
type Report struct {
	Verdict     Verdict          `json:"verdict"`
	Summary     string           `json:"summary"` // one line
	Diagnostics []Diagnostic     `json:"diagnostics,omitempty"`
	Counts      map[Severity]int `json:"counts,omitempty"` // complete, also beyond the 200
	Data        any              `json:"data,omitempty"`
	State       json.RawMessage  `json:"state,omitempty"` // merge patch (RFC 7396) on the session's vars
}

// Progress is one step forward of a running tool. Percent is 1..100; 0 is not known.
type Progress struct {
	Percent int
	Message string
}

// TrustOf is what this call needs: the tool's floor, raised by the arguments that are given.
func (t *Tool) TrustOf(a Args) Trust {
	rank := []Trust{Declarative, Design, Script}
	need := t.Trust
	for _, p := range t.Params {
		if p.Trust != "" && a.given[p.Name] && slices.Index(rank, p.Trust) > slices.Index(rank, need) {
			need = p.Trust
		}
	}
	return need
}

// Mutates reports the effect of this call: true if it names an output or its tool declares state.
func (t *Tool) Mutates(a Args) bool { return len(a.outs) > 0 || len(t.State) > 0 }

// Prepare plans the call and checks the plan: 1..5 steps, programs that the tool names, plain names, no clash in the view.
// It returns an ErrArgument if the arguments do not go together, and an internal error if the adapter is wrong.
func (t *Tool) Prepare(a Args) (Invocation, error) {
	inv, err := t.Plan(a)
	if err != nil {
		return Invocation{}, fmt.Errorf("plan %q: %w", t.Name, err)
	}
	if n := len(inv.Steps); n < 1 || n > 5 {
		return Invocation{}, fmt.Errorf("internal error: plan %q: %d steps", t.Name, n)
	}
	own := map[string]bool{}
	for _, f := range inv.Files {
		if !strings.HasPrefix(f.Name, "_") || !plainName.MatchString(strings.TrimPrefix(f.Name, "_")) {
			return Invocation{}, fmt.Errorf("internal error: plan %q: file %q", t.Name, f.Name)
		}
		own[f.Name] = true
	}
	for _, s := range inv.Steps {
		known := func(p Program) bool { return len(s.Argv) > 0 && p.Key == s.Argv[0] }
		if !slices.ContainsFunc(t.Programs, known) {
			return Invocation{}, fmt.Errorf("internal error: plan %q: step %q runs no program of the tool", t.Name, s.Name)
		}
		for _, p := range s.Makes {
			own[p.Path] = true
		}
	}
	for _, c := range inv.Collect {
		own[c.From] = true
	}
	for _, in := range a.AllInputs() {
		if first, _, _ := strings.Cut(in.Path, "/"); own[first] {
			return Invocation{}, fmt.Errorf("plan %q: %w", t.Name, badArg(in.Name, "%q clashes with the tool's own file %q", in.Path, first))
		}
	}
	return inv, nil
}

// CheckMakes validates what step i of the invocation must have made, before step i+1 may start. staged is rooted at the job directory.
func (inv Invocation) CheckMakes(i int, staged fs.FS) []Fault {
	var faults []Fault
	for _, p := range inv.Steps[i].Makes {
		if err := checkFile(staged, path.Join("work", p.Path), want{kind: p.Kind}); err != nil {
			faults = append(faults, Fault{p.Path, err})
		}
	}
	return faults
}

// Judge validates the outputs in staging, then parses the run. staged is rooted at the job directory (s0/, work/).
// The verdict is Parse's; a fault makes it invalid unless the tool itself has failed, so that ok needs both.
func (t *Tool) Judge(a Args, inv Invocation, run Run, staged fs.FS) (Report, []Fault) {
	r := t.Parse(a, run, staged)
	exited := true // as the plan lets it
	for i, e := range run.Exits {
		if i >= len(inv.Steps) || e.Failed(inv.Steps[i]) {
			exited = false
			r.fail(e.String())
		}
	}
	var faults []Fault
	if exited && !run.Cut {
		faults = t.check(a, inv, run, staged)
		if len(run.Exits) < len(inv.Steps) && len(faults) == 0 {
			r.fail(fmt.Sprintf("%d of %d steps ran", len(run.Exits), len(inv.Steps)))
		}
	}
	if r.Verdict == Findings && severe(r.Counts, a.Text("fail_on")) {
		r.fail("fail_on is " + a.Text("fail_on") + ", and there are findings: " + r.Summary)
	}
	if t.StateFiles && exited && !run.Cut {
		state, err := readNextState(staged)
		if err != nil {
			faults = append(faults, Fault{nextState, err})
		}
		r.State = state
	}
	if len(faults) > 0 && r.Verdict != Failed {
		r.Verdict, r.Summary = Invalid, faults[0].Error()
	}
	if r.Verdict == Failed || r.Verdict == Invalid || run.Cut {
		r.State = nil
	}
	return r.bounded(run.Map), faults
}

// check runs the tool's own validators, then those of the kinds.
func (t *Tool) check(a Args, inv Invocation, run Run, staged fs.FS) []Fault {
	var faults []Fault
	for i := range min(len(run.Exits), len(inv.Steps)) {
		faults = append(faults, inv.CheckMakes(i, staged)...)
	}
	if t.Validate != nil {
		faults = append(faults, t.Validate(a, staged)...)
	}
	for _, o := range a.outs {
		if slices.ContainsFunc(faults, func(f Fault) bool { return f.Output == o.Name }) {
			continue // the tool's own word is closer
		}
		err := checkFile(staged, jobPath(a.Staged(o.Name)), want{kind: o.Kind, mustContain: o.MustContain, allowEmpty: o.AllowEmpty})
		if err != nil && !(o.Optional && errors.Is(err, ErrMissing)) {
			faults = append(faults, Fault{o.Name, err})
		}
	}
	if t.LogIsEvidence && run.LogTruncated {
		faults = append(faults, Fault{"log", ErrLogCut})
	}
	return faults
}

// fail makes the verdict failed; the first reason stays the summary.
func (r *Report) fail(reason string) {
	if r.Verdict != Failed {
		r.Verdict, r.Summary = Failed, reason
	}
}

// severe reports whether findings of these counts fail a call with this fail_on.
func severe(counts map[Severity]int, failOn string) bool {
	return failOn == "warning" || failOn == "error" && counts[Error] > 0
}

// jobPath turns a path as the tool sees it, from work/, into one from the job directory.
func jobPath(fromWork string) string { return path.Join("work", fromWork) }

// toolName is what a tool, and in lower case a parameter, may be called.
var toolName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)
