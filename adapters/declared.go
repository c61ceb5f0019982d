package adapters

import (
	_ "embed" // for the schema of the configuration
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"go.yaml.in/yaml/v2"
)

// declaredSchema describes the tools list of a configuration, for editors.
//
//go:embed declared.schema.json
var declaredSchema string

// DeclaredSchema is the JSON Schema (2020-12) of one configuration file's tools list.
func DeclaredSchema() string { return declaredSchema }

// declared is one entry of tools in a configuration. The schema beside this file says what each key means.
type declared struct {
	Name    string
	Title   string
	Doc     string
	Trust   Trust
	Program struct {
		Name        string
		Interpreter bool
		Version     struct {
			Args       []string
			Match, Min string
		}
	}
	Params []declaredParam
	Limits struct {
		Wall    string
		WallMax string `yaml:"wall_max"`
		Memory  string
		Pids    int64
		Staging string
		Log     string
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
		Makes   []struct {
			Path string
			Kind Kind
		}
	}
	Verdict struct {
		OKExit                  []int `yaml:"ok_exit"`
		Require, Fail, Findings []string
	}
	Diagnostics []struct {
		Severity Severity
		Match    string
	}
	Data    []struct{ Name, From, Match, Type, Unit string }
	State   struct{ Keys []string }
	Network bool
	Seats   struct{ Name string }
}

// declaredParam is a Param in the words of a configuration.
type declaredParam struct {
	Name, Doc, Pattern string
	Kind               ParamKind
	Trust              Trust
	Required, List     bool
	Optional           bool
	Default            any
	Min, Max           int64 // count of a list, or the range of an int
	Ext, Values        []string
	MaxBytes           int64 `yaml:"max_bytes"`
	MaxLength          int   `yaml:"max_length"`
	Format             Kind
	MustContain        string `yaml:"must_contain"`
	AllowEmpty         bool   `yaml:"allow_empty"`
}

// element is one argument of a step: a string, or {arg, when}.
type element struct{ Arg, When string }

// UnmarshalYAML accepts both forms.
func (e *element) UnmarshalYAML(decode func(any) error) error {
	if err := decode(&e.Arg); err == nil {
		return nil
	}
	type plain element
	return decode((*plain)(e))
}

// Declared reads the tools list of a configuration file; its other top-level keys belong to others. It returns every mistake, each an
// ErrConfig with its line where YAML or the text gives one, and no tool beside an error.
func Declared(config []byte) ([]*Tool, error) {
	var doc struct {
		Tools []declared
		Rest  map[string]any `yaml:",inline"`
	}
	var errs []error
	var types *yaml.TypeError
	if err := yaml.UnmarshalStrict(config, &doc); errors.As(err, &types) {
		for _, e := range types.Errors {
			errs = append(errs, fmt.Errorf("%w: %s", ErrConfig, e))
		}
	} else if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	tools := make([]*Tool, 0, len(doc.Tools))
	for i := range doc.Tools {
		b := &declaration{declared: &doc.Tools[i]}
		tools = append(tools, b.build())
		for _, m := range b.mistakes {
			errs = append(errs, fmt.Errorf("%w: %stools[%d] (%s): %s", ErrConfig, lineOf(config, i, m.near), i, doc.Tools[i].Name, m.text))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return tools, nil
}

// lineOf finds tool i of a list in block style, and in it the first line that holds near: "line 12: ", or nothing if it cannot be told.
func lineOf(config []byte, i int, near string) string {
	at, inTools, seen, indent := 0, false, -1, -1
	for n, line := range strings.Split(string(config), "\n") {
		text := strings.TrimSpace(line)
		inTools = inTools || strings.HasPrefix(line, "tools:")
		depth := len(line) - len(strings.TrimLeft(line, " "))
		if inTools && strings.HasPrefix(text, "- ") && (indent < 0 || depth == indent) {
			indent = depth
			seen++
		}
		if seen == i && at == 0 {
			at = n + 1
		}
		if seen == i && near != "" && strings.Contains(line, near) {
			at = n + 1
			break
		}
	}
	if at == 0 {
		return ""
	}
	return fmt.Sprintf("line %d: ", at)
}

// declaration builds one Tool and collects what is wrong with it.
type declaration struct {
	*declared
	params   map[string]Param
	mistakes []struct{ near, text string }
}

func (b *declaration) bad(near, format string, args ...any) {
	b.mistakes = append(b.mistakes, struct{ near, text string }{near, fmt.Sprintf(format, args...)})
}

func (b *declaration) build() *Tool {
	t := &Tool{
		Name: b.Name, Title: b.Title, Doc: b.Doc, Trust: b.Trust, State: b.State.Keys, StateFiles: len(b.State.Keys) > 0,
		Network: b.Network || b.Seats.Name != "", Seats: b.Seats.Name, PassEnv: b.Env.Pass, Programs: []Program{b.program()}, Limits: b.limits(),
	}
	if t.Doc == "" {
		t.Doc = "Runs " + b.Program.Name + ", as the configuration declares."
	}
	b.params = map[string]Param{}
	for i, d := range b.Params {
		p := d.param()
		if p.Default != nil {
			text, err := json.Marshal(p.Default)
			if err == nil {
				p.Default, err = p.decode(text)
			}
			if err != nil {
				b.bad("name: "+p.Name, "params[%d].default: %v", i, err)
			}
		}
		p.Required = p.Required || p.List && p.Min > 0
		b.params[p.Name] = p
	}
	t.Plan = b.plan() // finds out what a call cannot leave out
	for _, d := range b.Params {
		t.Params = append(t.Params, b.params[d.Name])
	}
	rules := b.rules()
	t.Data, t.Parse, t.LogIsEvidence = rules.schema(), rules.parse, len(rules.verdict) > 0
	for _, err := range t.wellFormed() {
		text := strings.TrimPrefix(err.Error(), fmt.Sprintf("%v: %q: ", ErrConfig, t.Name))
		near := ""
		if _, rest, ok := strings.Cut(text, `params "`); ok {
			near, _, _ = strings.Cut("name: "+rest, `"`)
		}
		b.bad(near, "%s", text)
	}
	proof := func(p Param) bool { return p.Kind == Output && p.Required && !p.Optional }
	if len(b.Verdict.Require) == 0 && !slices.ContainsFunc(t.Params, proof) {
		b.bad("verdict:", "verdict: neither require nor a required output: nothing could prove success")
	}
	return t
}

func (d declaredParam) param() Param {
	p := Param{Name: d.Name, Doc: d.Doc, Kind: d.Kind, Trust: d.Trust, Required: d.Required, List: d.List, Optional: d.Optional, Default: d.Default,
		Ext: d.Ext, Enum: d.Values, MaxBytes: d.MaxBytes, MaxLength: d.MaxLength, Format: d.Format, MustContain: d.MustContain, AllowEmpty: d.AllowEmpty, Pattern: d.Pattern}
	if p.Doc == "" {
		p.Doc = strings.ReplaceAll(d.Name, "_", " ") + "."
	}
	if p.Kind == Int {
		p.Least, p.Most = d.Min, d.Max
	} else {
		p.Min, p.Max = int(d.Min), int(d.Max)
	}
	return p
}

// interpreter matches programs that run text; a version in the name does not count.
const interpreter = `^(sh|bash|dash|ash|zsh|ksh|csh|tcsh|fish|env|busybox|python|perl|ruby|lua|node|awk|gawk|mawk|tclsh|wish|expect|php)[0-9.]*$`

func (b *declaration) program() Program {
	v := b.Program.Version
	p := Program{Key: b.Program.Name, Names: []string{b.Program.Name}, VersionArgs: v.Args, Match: v.Match, Min: v.Min, Interpreter: b.Program.Interpreter}
	if plainComponent(p.Key) != nil {
		b.bad("program:", "program.name: %q is not a plain name that PATH can be searched for", p.Key)
	}
	if regexp.MustCompile(interpreter).MatchString(p.Key) && !p.Interpreter {
		b.bad("program:", "program.name: %q is an interpreter: say interpreter: true, and trust: script if a caller's text is executed", p.Key)
	}
	if re := b.pattern("program.version.match", v.Match); v.Args != nil && re.NumSubexp() != 1 {
		b.bad("program:", "program.version.match: needs one group, the version")
	}
	return p
}

func (b *declaration) limits() Limits {
	l := b.Limits
	size := func(key, text string, unset int64) int64 {
		n, err := parseSize(text)
		if text == "" {
			return unset
		}
		if err != nil {
			b.bad("limits:", "limits.%s: %v", key, err)
		}
		return n
	}
	wall := func(key, text string, unset time.Duration) time.Duration {
		d, err := time.ParseDuration(text)
		if text == "" {
			return unset
		}
		if err != nil {
			b.bad("limits:", "limits.%s: %v", key, err)
		}
		return d
	}
	out := Limits{MemoryBytes: size("memory", l.Memory, 4<<30), StagingBytes: size("staging", l.Staging, 4<<30), LogBytes: size("log", l.Log, 64<<20), Pids: l.Pids}
	out.Wall = wall("wall", l.Wall, 10*time.Minute)
	out.WallMax = wall("wall_max", l.WallMax, max(out.Wall, 24*time.Hour))
	if out.Pids == 0 {
		out.Pids = 64
	}
	return out
}

// parseSize reads 4096, 64KiB, 32MiB, 8GiB or 1TiB, in bytes.
func parseSize(text string) (int64, error) {
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
func (b *declaration) pattern(key, text string) *regexp.Regexp {
	re, err := regexp.Compile(text)
	if err != nil {
		b.bad(text, "%s: %v", key, err)
		return regexp.MustCompile(``)
	}
	return re
}

// placeholder is {{param}}, or {{param...}} for all elements of a list.
func placeholder() *regexp.Regexp { return regexp.MustCompile(`\{\{([a-z][a-z0-9_]*)(\.\.\.)?\}\}`) }

// checkText checks the placeholders of one text. A parameter that has no default and is used without a when of its own (given) is required.
func (b *declaration) checkText(near, where, text, given string) {
	for _, m := range placeholder().FindAllStringSubmatch(text, -1) {
		p, ok := b.params[m[1]]
		switch {
		case !ok:
			b.bad(m[0], "%s: %s names no parameter", where, m[0])
		case p.List != (m[2] != ""):
			b.bad(m[0], "%s: %s: a list is written {{%s...}}, and nothing else is", where, m[0], p.Name)
		case !p.List && p.Default == nil && given != p.Name:
			p.Required = true
			b.params[p.Name] = p
		}
	}
}

// plan checks files and steps now, and returns the pure function that fills the placeholders in.
func (b *declaration) plan() func(Args) (Invocation, error) {
	for i, f := range b.Files {
		where := fmt.Sprintf("files[%d]", i)
		if !strings.HasPrefix(f.Name, "_") || plainComponent(f.Name) != nil {
			b.bad(f.Name, "%s.name: %q must be plain and begin with _", where, f.Name)
		}
		if !slices.Contains([]string{"tcl", "yosys", "spice", "json", "python", "none"}, f.Language) {
			b.bad(f.Name, "%s.language: %q is not one of tcl, yosys, spice, json, python, none", where, f.Language)
		}
		b.checkText(f.Name, where, f.Text, "")
	}
	for i, s := range b.Steps {
		where := fmt.Sprintf("steps[%d]", i)
		if len(s.Argv) == 0 || s.Argv[0].Arg != b.Program.Name || s.Argv[0].When != "" {
			b.bad("steps:", "%s.argv: must begin with the program, %q", where, b.Program.Name)
		}
		for n, e := range s.Argv {
			where := fmt.Sprintf("%s.argv[%d]", where, n)
			if _, ok := b.params[e.When]; e.When != "" && !ok {
				b.bad(e.When, "%s.when: %q names no parameter", where, e.When)
			}
			if list := strings.Contains(e.Arg, "...}}"); list && placeholder().FindString(e.Arg) != e.Arg {
				b.bad(e.Arg, "%s: a list must be the whole element", where)
			}
			b.checkText(e.Arg, where, e.Arg, e.When)
		}
		for _, m := range s.Makes {
			if plainPath(strings.TrimPrefix(m.Path, "_")) != nil || !m.Kind.Known() {
				b.bad(m.Path, "%s.makes: %q of kind %q: want a plain path in work/ and a known kind", where, m.Path, m.Kind)
			}
		}
	}
	if n := len(b.Steps); n < 1 || n > 5 {
		b.bad("steps:", "steps: %d; from 1 to 5 are allowed", n)
	}
	var env []string
	for _, name := range slices.Sorted(maps.Keys(b.Env.Set)) {
		env = append(env, name+"="+b.Env.Set[name])
	}
	return func(a Args) (inv Invocation, err error) {
		for _, f := range b.Files {
			text, err := b.fill(a, f.Text, f.Language)
			if err != nil {
				return Invocation{}, err
			}
			inv.Files = append(inv.Files, File{f.Name, text})
		}
		for _, s := range b.Steps {
			step := Step{Name: s.Name, Env: env, Proceed: s.Proceed}
			if step.Proceed == nil {
				step.Proceed = b.Verdict.OKExit
			}
			if step.Argv, err = b.argv(a, s.Argv); err != nil {
				return Invocation{}, err
			}
			for _, m := range s.Makes {
				step.Makes = append(step.Makes, Product{m.Path, m.Kind})
			}
			inv.Steps = append(inv.Steps, step)
		}
		return inv, nil
	}
}

// argv fills the elements in: one element is one argument, a list is many.
func (b *declaration) argv(a Args, elements []element) ([]string, error) {
	var argv []string
	for _, e := range elements {
		if e.When != "" && !a.Has(e.When) {
			continue
		}
		if name, ok := strings.CutSuffix(e.Arg, "...}}"); ok {
			argv = append(argv, a.Texts(strings.TrimPrefix(name, "{{"))...)
			continue
		}
		arg, err := b.fill(a, e.Arg, "argv")
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(arg, "-") && strings.HasPrefix(e.Arg, "{{") {
			return nil, badArg(strings.Trim(e.Arg, "{}"), "%q would be an option to the program", arg)
		}
		argv = append(argv, arg)
	}
	return argv, nil
}

// fill replaces the placeholders of a text, each value quoted for the language.
func (b *declaration) fill(a Args, text, language string) (string, error) {
	var errs []error
	out := placeholder().ReplaceAllStringFunc(text, func(hole string) string {
		name := strings.TrimSuffix(strings.Trim(hole, "{}"), "...")
		var words []string
		for _, v := range a.spelled(b.params[name]) {
			word, ok := quote(language, v, b.params[name].Kind)
			if !ok {
				errs = append(errs, badArg(name, "%q is not plain, and %s has no safe quoting", v, language))
			}
			words = append(words, word)
		}
		if language == "json" || language == "python" {
			return strings.Join(words, ", ")
		}
		return strings.Join(words, " ")
	})
	return out, errors.Join(errs...)
}

// spelled returns the words that a parameter's value is written in.
func (a Args) spelled(p Param) []string {
	switch v := a.values[p.Name].(type) {
	case []string:
		return v
	case int64:
		return []string{strconv.FormatInt(v, 10)}
	case bool:
		return []string{strconv.FormatBool(v)}
	case string:
		if p.Kind == Output {
			return []string{a.Staged(p.Name)}
		}
		return []string{v}
	}
	return nil
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
type rules struct {
	verdict     []lineRule // use: require, fail or findings
	diagnostics []lineRule // use: a severity
	data        []lineRule // use: the type; in: an output's name, or log
}

type lineRule struct {
	use, in, name, unit string
	re                  *regexp.Regexp
}

func (b *declaration) rules() (r rules) {
	for _, v := range []struct {
		use   string
		texts []string
	}{{"require", b.Verdict.Require}, {"fail", b.Verdict.Fail}, {"findings", b.Verdict.Findings}} {
		for i, text := range v.texts {
			r.verdict = append(r.verdict, lineRule{use: v.use, re: b.pattern(fmt.Sprintf("verdict.%s[%d]", v.use, i), text)})
		}
	}
	for i, d := range b.Diagnostics {
		if !slices.Contains([]Severity{Error, Warning, Info}, d.Severity) {
			b.bad("diagnostics:", "diagnostics[%d].severity: %q is not error, warning or info", i, d.Severity)
		}
		re := b.pattern(fmt.Sprintf("diagnostics[%d].match", i), d.Match)
		for _, group := range re.SubexpNames()[1:] {
			if !slices.Contains([]string{"file", "line", "col", "code", "message"}, group) {
				b.bad(d.Match, "diagnostics[%d].match: group %q is not file, line, col, code or message", i, group)
			}
		}
		r.diagnostics = append(r.diagnostics, lineRule{use: string(d.Severity), re: re})
	}
	for i, d := range b.Data {
		re := b.pattern(fmt.Sprintf("data[%d].match", i), d.Match)
		p, known := b.params[d.From]
		if !toolName.MatchString(d.Name) || re.NumSubexp() != 1 || !slices.Contains([]string{"int", "float", "string", "bool"}, d.Type) ||
			d.From != "log" && (!known || p.Kind != Output) {
			b.bad("name: "+d.Name, "data[%d]: want a name, from log or an output, one group in match, type int, float, string or bool", i)
		}
		r.data = append(r.data, lineRule{use: d.Type, in: d.From, name: d.Name, unit: d.Unit, re: re})
	}
	return r
}

// schema describes Data: every value may be null, when its pattern matched nothing.
func (r rules) schema() *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{}}
	types := map[string]string{"int": "integer", "float": "number", "string": "string", "bool": "boolean"}
	for _, d := range r.data {
		s.Properties[d.name] = &jsonschema.Schema{Types: []string{"null", types[d.use]}, Description: d.unit}
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
		name := jobPath(a.Staged(o.Name))
		if err == nil && slices.ContainsFunc(r.data, func(d lineRule) bool { return d.in == o.Name }) {
			err = eachFileLine(staged, name, func(line []byte) { r.take(data, o.Name, line) })
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

// take keeps what a line says of the data that comes from in. What cannot be read as its type stays null.
func (r rules) take(data map[string]any, in string, line []byte) {
	for _, d := range r.data {
		if d.in != in {
			continue
		}
		m := d.re.FindSubmatch(line)
		if m == nil {
			continue
		}
		data[d.name] = nil
		text := string(m[1])
		if n, err := strconv.ParseInt(text, 10, 64); d.use == "int" && err == nil {
			data[d.name] = n
		} else if x, err := strconv.ParseFloat(text, 64); d.use == "float" && err == nil && !math.IsNaN(x) && !math.IsInf(x, 0) {
			data[d.name] = x
		} else if b, err := strconv.ParseBool(text); d.use == "bool" && err == nil {
			data[d.name] = b
		} else if d.use == "string" {
			data[d.name] = text[:min(len(text), maxMessage)]
		}
	}
}

// diagnosed makes a diagnostic of the named groups; without a message group the whole line is the message.
func diagnosed(d lineRule, m [][]byte) Diagnostic {
	out := Diagnostic{Severity: Severity(d.use), Message: string(m[0])}
	for i, group := range d.re.SubexpNames() {
		switch group {
		case "file":
			out.File = string(m[i])
		case "line":
			out.Line = number(m[i])
		case "col":
			out.Column = number(m[i])
		case "code":
			out.Code = string(m[i])
		case "message":
			out.Message = string(m[i])
		}
	}
	return out
}
