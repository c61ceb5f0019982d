package adapters

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Out is one output of a command that an operator typed: --out NAME=TARGET.
type Out struct {
	Name       string // ^[A-Za-z_][A-Za-z0-9_]*$; {NAME} in an argument is the staged path
	Target     string // workspace-relative
	AllowEmpty bool
}

// Command makes the tool of `run`, and its arguments: argv as it is, {NAME} replaced by the staged path of that output. Only cmd calls it.
// argv[0] may be any absolute path or any name in PATH, sh included, since the operator typed it. With session the command may
// change any of the session's vars through _state.next.json. All mistakes are joined, each an ErrArgument.
func Command(argv []string, outs []Out, session bool) (*Tool, Args, error) {
	if len(argv) == 0 || argv[0] == "" || !strings.HasPrefix(argv[0], "/") && strings.Contains(argv[0], "/") {
		return nil, Args{}, badArg("command", "want an absolute path or a name in PATH first")
	}
	t := &Tool{
		Name: "run", Title: "Run a command", Doc: "Runs a command that the operator typed. Its outputs are files of any content.",
		Trust: Script, AllEntries: true, StateFiles: session,
		Programs: []Program{{Key: argv[0], Names: []string{argv[0]}}},
		Limits:   Limits{Wall: 10 * time.Minute, WallMax: 24 * time.Hour, MemoryBytes: 8 << 30, Pids: 512, StagingBytes: 8 << 30, LogBytes: 64 << 20},
		Parse:    func(Args, Run, fs.FS) Report { return Report{Verdict: OK, Summary: "exit 0"} },
	}
	if session {
		t.State = []string{"*"}
	}
	raw := map[string]json.RawMessage{}
	var errs []error
	for _, o := range outs {
		target, err := json.Marshal(o.Target)
		used := slices.ContainsFunc(argv[1:], func(arg string) bool { return strings.Contains(arg, "{"+o.Name+"}") })
		switch {
		case err != nil || !regexp.MustCompile(`^`+identifier+`$`).MatchString(o.Name) || o.Name == failOn().Name:
			errs = append(errs, badArg(o.Name, "is no name for an output: want letters, digits and _"))
		case raw[o.Name] != nil:
			errs = append(errs, badArg(o.Name, "names two outputs"))
		case !used:
			errs = append(errs, badArg(o.Name, "no argument holds {%s}: the command could not know where to write", o.Name))
		}
		raw[o.Name] = target
		t.Params = append(t.Params, Param{Name: o.Name, Kind: Output, Format: KindFile, AllowEmpty: o.AllowEmpty, Required: true, Doc: "an output"})
	}
	t.Plan = func(a Args) (Invocation, error) {
		var pairs []string
		for _, o := range a.outs {
			pairs = append(pairs, "{"+o.Name+"}", a.Staged(o.Name))
		}
		full, slots := slices.Clone(argv), strings.NewReplacer(pairs...)
		for i := range full[1:] {
			full[i+1] = slots.Replace(full[i+1])
		}
		return Invocation{Steps: []Step{{Name: path.Base(argv[0]), Argv: full}}}, nil
	}
	a, err := t.Decode(raw)
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, Args{}, fmt.Errorf("run: %w", err)
	}
	return t, a, nil
}
