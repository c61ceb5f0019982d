package adapters

import (
	"cmp"
	_ "embed" // for the schema of the configuration
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
)

// declaredSchema describes the tools list of a configuration.
//
//go:embed declared.schema.json
var declaredSchema string

// DeclaredSchema is the JSON Schema (2020-12) of a configuration's tools list, for editors.
func DeclaredSchema() string { return declaredSchema }

// declared is one entry of tools in a configuration. The schema beside this file says what each key means.
type declared struct {
	Name, Title, Doc string
	Trust            Trust
	Program          struct {
		Name        string
		Interpreter bool
		Version     struct {
			Args       []string
			Match, Min string
		}
	}
	Params []Param
	Limits struct {
		Wall                 time.Duration
		WallMax              time.Duration `yaml:"wall_max"`
		Memory, Staging, Log string
		Pids                 int64
	}
	Env struct {
		Set  map[string]string
		Pass []string
	}
	Files []struct{ Name, Language, Text string }
	Steps []struct {
		Name    string
		Argv    []element
		Proceed []int
		Makes   []Product
	}
	Verdict struct {
		OKExit                  []int `yaml:"ok_exit"`
		Require, Fail, Findings []string
	}
	Diagnostics []struct{ Severity, Match string }
	Data        []struct{ Name, From, Match, Type, Unit string }
	State       struct{ Keys []string }
	Network     bool
}

// element is one argument of a step: a string, or {arg, when}.
type element struct{ Arg, When string }

// UnmarshalYAML accepts both forms.
func (e *element) UnmarshalYAML(decode func(any) error) error {
	if decode(&e.Arg) == nil {
		return nil
	}
	type plain element
	return decode((*plain)(e))
}

// Declarations is the tools list of a configuration file.
type Declarations []declared

// Tools builds what is declared. It returns every mistake, each an ErrConfig with its path, and no tool beside an error.
func (all Declarations) Tools() ([]*Tool, error) {
	var errs []error
	tools := make([]*Tool, 0, len(all))
	for i := range all {
		d := &declaration{declared: &all[i], params: map[string]*Param{}}
		tools = append(tools, d.build())
		for _, m := range d.mistakes {
			errs = append(errs, fmt.Errorf("%w: tools[%d] (%s): %s", ErrConfig, i, d.Name, m))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return tools, nil
}

// declaration builds one Tool and collects what is wrong with it.
type declaration struct {
	*declared
	params   map[string]*Param
	mistakes []string
}

func (d *declaration) bad(format string, args ...any) {
	d.mistakes = append(d.mistakes, fmt.Sprintf(format, args...))
}

func (d *declaration) build() *Tool {
	t := &Tool{
		Name: d.Name, Title: d.Title, Doc: d.Doc, Trust: d.Trust, State: d.State.Keys, StateFiles: len(d.State.Keys) > 0,
		Network: d.Network, PassEnv: d.Env.Pass, Programs: []Program{d.program()}, Limits: d.limits(),
		Params: d.Params,
	}
	if t.Doc == "" {
		t.Doc = "Runs " + d.Program.Name + ", as the configuration declares."
	}
	for i := range t.Params {
		p := &t.Params[i]
		if d.params[p.Name] = p; p.Doc == "" {
			p.Doc = strings.ReplaceAll(p.Name, "_", " ") + "."
		}
		p.Required = p.Required || p.List && p.Min > 0
		if p.Default != nil {
			text, err := json.Marshal(p.Default)
			if err == nil {
				p.Default, err = p.decode(text)
			}
			if err != nil {
				d.bad("params[%d].default: %v", i, err)
			}
		}
	}
	t.Plan = d.plan() // finds out what a call cannot leave out
	rules := d.rules()
	t.Data, t.Parse, t.LogIsEvidence = rules.schema(), rules.parse, len(rules.verdict) > 0
	d.mistakes = append(d.mistakes, t.mistakes()...)
	proof := func(p Param) bool { return p.Kind == Output && p.Required && !p.Optional }
	if len(d.Verdict.Require) == 0 && !slices.ContainsFunc(t.Params, proof) {
		d.bad("verdict: neither require nor a required output: nothing could prove success")
	}
	return t
}

// interpreter matches programs that run text; a version in the name does not count.
var interpreter = regexp.MustCompile(`^(sh|bash|dash|ash|zsh|ksh|csh|tcsh|fish|env|busybox|python|perl|ruby|lua|node|awk|gawk|mawk|tclsh|wish|expect|php)[0-9.]*$`)

func (d *declaration) program() Program {
	v := d.Program.Version
	p := Program{Key: d.Program.Name, Names: []string{d.Program.Name}, VersionArgs: v.Args, Match: v.Match, Min: v.Min, Interpreter: d.Program.Interpreter}
	if !plainName.MatchString(p.Key) {
		d.bad("program.name: %q is not a plain name that PATH can be searched for", p.Key)
	}
	if interpreter.MatchString(p.Key) && !p.Interpreter {
		d.bad("program.name: %q is an interpreter: say interpreter: true, and trust: script if a caller's text is executed", p.Key)
	}
	if re := d.pattern("program.version.match", v.Match); v.Args != nil && re.NumSubexp() != 1 {
		d.bad("program.version.match: needs one group, the version")
	}
	return p
}

func (d *declaration) limits() Limits {
	l := d.Limits
	size := func(key, text string) int64 {
		n, err := ParseSize(text)
		if err != nil {
			d.bad("limits.%s: %v", key, err)
		}
		return n
	}
	wall := cmp.Or(l.Wall, 10*time.Minute)
	return Limits{
		Wall: wall, WallMax: cmp.Or(l.WallMax, max(wall, 24*time.Hour)), Pids: cmp.Or(l.Pids, 64),
		MemoryBytes:  size("memory", cmp.Or(l.Memory, "4GiB")),
		StagingBytes: size("staging", cmp.Or(l.Staging, "4GiB")),
		LogBytes:     size("log", cmp.Or(l.Log, "64MiB")),
	}
}

// ParseSize reads a number of bytes as configurations write it: 512, 64KiB, 32MiB, 8GiB, 1TiB.
func ParseSize(text string) (int64, error) {
	digits, shift := text, 0
	for i, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if d, ok := strings.CutSuffix(text, unit); ok {
			digits, shift = d, 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > 1<<62>>shift {
		return 0, fmt.Errorf("size %q: want bytes, or a number with KiB, MiB, GiB or TiB", text)
	}
	return n << shift, nil
}

// pattern compiles a pattern of the configuration.
func (d *declaration) pattern(key, text string) *regexp.Regexp {
	re, err := regexp.Compile(text)
	if err != nil {
		d.bad("%s: %v", key, err)
		return regexp.MustCompile(``)
	}
	return re
}

// placeholder is {{param}}, or {{param...}} for all elements of a list.
var placeholder = regexp.MustCompile(`\{\{([a-z][a-z0-9_]*)(\.\.\.)?\}\}`)

// checkText checks the placeholders of one text. A parameter that has no default and is used without a when of its own is required.
func (d *declaration) checkText(where, text, when string) {
	for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
		switch p := d.params[m[1]]; {
		case p == nil:
			d.bad("%s: %s names no parameter", where, m[0])
		case p.List != (m[2] != ""):
			d.bad("%s: %s: a list is written {{%s...}}, and nothing else is", where, m[0], p.Name)
		case !p.List && p.Default == nil && when != p.Name:
			p.Required = true
		}
	}
}

// plan checks files and steps now, and returns the pure function that fills the placeholders in.
func (d *declaration) plan() func(Args) (Invocation, error) {
	for i, f := range d.Files {
		if !strings.HasPrefix(f.Name, "_") || !plainName.MatchString(f.Name) {
			d.bad("files[%d].name: %q must be plain and begin with _", i, f.Name)
		}
		if !slices.Contains([]string{"tcl", "yosys", "spice", "json", "python", "none"}, f.Language) {
			d.bad("files[%d].language: %q is not one of tcl, yosys, spice, json, python, none", i, f.Language)
		}
		d.checkText(fmt.Sprintf("files[%d]", i), f.Text, "")
	}
	for i, s := range d.Steps {
		if len(s.Argv) == 0 || s.Argv[0] != (element{Arg: d.Program.Name}) {
			d.bad("steps[%d].argv: must begin with the program, %q", i, d.Program.Name)
		}
		for n, e := range s.Argv {
			where := fmt.Sprintf("steps[%d].argv[%d]", i, n)
			if e.When != "" && d.params[e.When] == nil {
				d.bad("%s.when: %q names no parameter", where, e.When)
			}
			if strings.Contains(e.Arg, "...}}") && placeholder.FindString(e.Arg) != e.Arg {
				d.bad("%s: a list must be the whole element", where)
			}
			d.checkText(where, e.Arg, e.When)
		}
		for _, m := range s.Makes {
			if plainPath(strings.TrimPrefix(m.Path, "_")) != nil || !m.Kind.Known() {
				d.bad("steps[%d].makes: %q of kind %q: want a plain path in work/ and a known kind", i, m.Path, m.Kind)
			}
		}
	}
	if n := len(d.Steps); n < 1 || n > 5 {
		d.bad("steps: %d; from 1 to 5 are allowed", n)
	}
	var env []string
	for _, name := range slices.Sorted(maps.Keys(d.Env.Set)) {
		env = append(env, name+"="+d.Env.Set[name])
	}
	return func(a Args) (inv Invocation, err error) {
		for _, f := range d.Files {
			text, err := d.fill(a, f.Text, f.Language)
			if err != nil {
				return Invocation{}, err
			}
			inv.Files = append(inv.Files, File{f.Name, text})
		}
		for _, s := range d.Steps {
			step := Step{Name: s.Name, Env: env, Proceed: s.Proceed, Makes: s.Makes}
			if step.Proceed == nil {
				step.Proceed = d.Verdict.OKExit
			}
			if step.Argv, err = d.argv(a, s.Argv); err != nil {
				return Invocation{}, err
			}
			inv.Steps = append(inv.Steps, step)
		}
		return inv, nil
	}
}

// argv fills the elements in: one element is one argument, a list is many. What a caller begins an argument with is no option.
func (d *declaration) argv(a Args, elements []element) (argv []string, err error) {
	for _, e := range elements {
		if e.When != "" && !a.Has(e.When) {
			continue
		}
		words := []string{""}
		if name, list := strings.CutSuffix(e.Arg, "...}}"); list {
			words = a.Texts(strings.TrimPrefix(name, "{{"))
		} else if words[0], err = d.fill(a, e.Arg, "argv"); err != nil {
			return nil, err
		}
		for _, word := range words {
			if strings.HasPrefix(word, "-") && strings.HasPrefix(e.Arg, "{{") {
				return nil, badArg(strings.Trim(e.Arg, "{.}"), "%q would be an option to the program", word)
			}
		}
		argv = append(argv, words...)
	}
	return argv, nil
}

// fill replaces the placeholders of a text, each value quoted for the language.
func (d *declaration) fill(a Args, text, language string) (string, error) {
	var errs []error
	glue := " "
	if language == "json" || language == "python" {
		glue = ", "
	}
	out := placeholder.ReplaceAllStringFunc(text, func(hole string) string {
		name := strings.TrimSuffix(strings.Trim(hole, "{}"), "...")
		words := a.spelled(*d.params[name])
		for i, v := range words {
			word, ok := quote(language, v, d.params[name].Kind)
			if !ok {
				errs = append(errs, badArg(name, "%q is not plain, and %s has no safe quoting", v, language))
			}
			words[i] = word
		}
		return strings.Join(words, glue)
	})
	return out, errors.Join(errs...)
}

// spelled returns the words that a parameter's value is written in.
func (a Args) spelled(p Param) []string {
	v := a.values[p.Name]
	switch {
	case v == nil:
		return nil
	case p.Kind == Output:
		return []string{a.Staged(p.Name)}
	case p.Kind == Int || p.Kind == Bool:
		return []string{fmt.Sprint(v)}
	}
	return a.Texts(p.Name)
}

// quote writes one value into a text of the language, or returns false if nothing makes it harmless there.
// Tcl: double quotes; braces would break on unbalanced ones and on a last backslash. yosys and spice have no quoting at all.
func quote(language, v string, kind ParamKind) (string, bool) {
	switch language {
	case "argv":
		return v, true
	case "tcl":
		return `"` + regexp.MustCompile(`[\\"$\[\]{}]`).ReplaceAllString(v, `\$0`) + `"`, true
	case "json", "python":
		if kind == Bool && language == "python" {
			return strings.ToUpper(v[:1]) + v[1:], true
		}
		if kind == Int || kind == Bool {
			return v, true
		}
		text, err := json.Marshal(v) // its escapes are also Python's
		return string(text), err == nil
	}
	return v, regexp.MustCompile(`^[A-Za-z0-9_./][A-Za-z0-9_./-]*$`).MatchString(v)
}

// rules judge a declared tool's run by line patterns.
type rules struct{ verdict, diagnostics, data []lineRule }

// lineRule is one pattern. use is require, fail or findings, a severity, or the type of a value; in is an output or log.
type lineRule struct {
	use, in, name, unit string
	re                  *regexp.Regexp
}

func (d *declaration) rules() (r rules) {
	verdict := func(use string, texts []string) {
		for i, text := range texts {
			r.verdict = append(r.verdict, lineRule{use: use, re: d.pattern(fmt.Sprintf("verdict.%s[%d]", use, i), text)})
		}
	}
	verdict("require", d.Verdict.Require)
	verdict("fail", d.Verdict.Fail)
	verdict("findings", d.Verdict.Findings)
	for i, g := range d.Diagnostics {
		if !slices.Contains([]Severity{Error, Warning, Info}, Severity(g.Severity)) {
			d.bad("diagnostics[%d].severity: %q is not error, warning or info", i, g.Severity)
		}
		re := d.pattern(fmt.Sprintf("diagnostics[%d].match", i), g.Match)
		for _, group := range re.SubexpNames() {
			if !slices.Contains([]string{"", "file", "line", "col", "code", "message"}, group) {
				d.bad("diagnostics[%d].match: group %q is not file, line, col, code or message", i, group)
			}
		}
		r.diagnostics = append(r.diagnostics, lineRule{use: g.Severity, re: re})
	}
	for i, v := range d.Data {
		re := d.pattern(fmt.Sprintf("data[%d].match", i), v.Match)
		p := d.params[v.From]
		if !toolName.MatchString(v.Name) || re.NumSubexp() != 1 || dataTypes()[v.Type] == "" || v.From != "log" && (p == nil || p.Kind != Output) {
			d.bad("data[%d]: want a name, from log or an output, one group in match, type int, float, string or bool", i)
		}
		r.data = append(r.data, lineRule{use: v.Type, in: v.From, name: v.Name, unit: v.Unit, re: re})
	}
	return r
}

func dataTypes() map[string]string {
	return map[string]string{"int": "integer", "float": "number", "string": "string", "bool": "boolean"}
}

// schema describes Data: every value may be null, when its pattern matched nothing.
func (r rules) schema() *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{}}
	for _, d := range r.data {
		s.Properties[d.name] = &jsonschema.Schema{Types: []string{"null", dataTypes()[d.use]}, Description: d.unit}
	}
	return s
}

// parse reads the log, then the outputs that data comes from. ok needs every require and no fail.
func (r rules) parse(a Args, run Run, staged fs.FS) Report {
	f := &findings{}
	data, seen := map[string]any{}, make([]string, len(r.verdict))
	for _, d := range r.data {
		data[d.name] = nil
	}
	err := run.eachLine(func(_ int, line []byte) {
		for i, v := range r.verdict {
			if seen[i] == "" && v.re.Match(line) {
				seen[i] = "line: " + string(line[:min(len(line), maxMessage)])
			}
		}
		for _, d := range r.diagnostics {
			if m := d.re.FindSubmatch(line); m != nil {
				f.add(diagnosed(d, m))
				break
			}
		}
		r.take(data, "log", line)
	})
	for _, o := range a.outs {
		if err == nil && slices.ContainsFunc(r.data, func(d lineRule) bool { return d.in == o.Name }) {
			err = eachFileLine(staged, jobPath(a.Staged(o.Name)), func(line []byte) { r.take(data, o.Name, line) })
		}
	}
	rep := Report{Verdict: OK, Summary: "done", Diagnostics: f.list(), Counts: f.counts, Data: data}
	if f.counts[Error] > 0 {
		rep.Verdict, rep.Summary = Findings, f.errors[0].Message
	}
	for i, v := range r.verdict {
		switch {
		case v.use == "findings" && seen[i] != "" && rep.Verdict == OK:
			rep.Verdict, rep.Summary = Findings, seen[i]
		case v.use == "fail" && seen[i] != "":
			rep.fail(seen[i])
		case v.use == "require" && seen[i] == "":
			rep.fail("no line matches " + v.re.String())
		}
	}
	if err != nil && !errors.Is(err, ErrMissing) {
		rep.fail(err.Error())
	}
	return rep
}

// take keeps what a line says of the data that comes from in. What cannot be read as its type is null.
func (r rules) take(data map[string]any, in string, line []byte) {
	for _, d := range r.data {
		m := d.re.FindSubmatch(line)
		if d.in != in || m == nil {
			continue
		}
		text := string(m[1][:min(len(m[1]), maxMessage)])
		var v any = text
		var err error
		switch d.use {
		case "int":
			v, err = strconv.ParseInt(text, 10, 64)
		case "bool":
			v, err = strconv.ParseBool(text)
		case "float":
			v, err = strconv.ParseFloat(text, 64)
		}
		if _, invalid := json.Marshal(v); err != nil || invalid != nil { // such as NaN
			v = nil
		}
		data[d.name] = v
	}
}

// diagnosed makes a diagnostic of the named groups; without a message group the whole line is the message.
func diagnosed(d lineRule, m [][]byte) Diagnostic {
	group := func(name string) string {
		if i := d.re.SubexpIndex(name); i >= 0 {
			return string(m[i])
		}
		return ""
	}
	out := Diagnostic{Severity: Severity(d.use), File: group("file"), Line: number(group("line")), Column: number(group("col")), Code: group("code"), Message: group("message")}
	if out.Message == "" {
		out.Message = string(m[0])
	}
	return out
}
