package adapters

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

// ParamKind is what a parameter's value is.
type ParamKind string

// The kinds of parameter.
const (
	Input    ParamKind = "input"     // a regular file beneath the workspace
	InputDir ParamKind = "input_dir" // a directory beneath the workspace, declared so that it appears in the view
	Output   ParamKind = "output"    // a target path
	Text     ParamKind = "text"      // a string with a pattern and a maximum length
	Enum     ParamKind = "enum"
	Int      ParamKind = "int"
	Bool     ParamKind = "bool"
)

// Param is one argument of a tool; a configuration writes it with the same words.
type Param struct {
	Name     string
	Kind     ParamKind
	Doc      string // unit, allowed values, an example
	Trust    Trust  // of a call that gives it; empty: the tool's
	Required bool
	Default  any  // string, []string, int64 or bool; nil: none
	List     bool // of Input, InputDir and Text

	Min, Max int64    // count of a list (Max 0: 256), or the range of an Int, inclusive
	Ext      []string // of Input, with the dot; nil: any
	MaxBytes int64    `yaml:"max_bytes"` // of Input; 0: 64 MiB

	Format      Kind   // of Output
	Holds       string // of Output: name of the parameter whose text the output must hold (the top module)
	MustContain string `yaml:"must_contain"` // of Output: text that it must hold
	AllowEmpty  bool   `yaml:"allow_empty"`  // of Output
	Optional    bool   // of Output: the tool may leave it out

	Pattern   string   // of Text: RE2, matched against the whole
	MaxLength int      `yaml:"max_length"` // of Text, bytes; 0: 256
	Enum      []string // of Enum
}

// InputArg is one input that a call names. Path is workspace-relative, clean and plain.
type InputArg struct {
	Name     string
	Path     string
	Dir      bool
	MaxBytes int64
}

// OutputArg is one output that a call names, in the order of its slots: Index i is slot s<i>.
// Missing parents of Target are to be made (MakeParents is true for every tool of this package).
type OutputArg struct {
	Index       int
	Name        string
	Target      string // workspace-relative and clean; may have any name that holds no control character
	Kind        Kind
	MustContain string
	Optional    bool // may be missing in staging: the target then stays as it is
	AllowEmpty  bool
	MakeParents bool
}

// Args are the validated arguments of one call. Only Decode and Command make them; they are immutable and may be copied.
type Args struct {
	values map[string]any // string, []string, int64 or bool, defaults filled in
	given  map[string]bool
	ins    []InputArg
	outs   []OutputArg
	staged []string
}

// Has reports whether the parameter has a value, given or default.
func (a Args) Has(name string) bool { _, ok := a.values[name]; return ok }

// Text returns a text or enum, or the empty string.
func (a Args) Text(name string) string { s, _ := a.values[name].(string); return s } // absent: empty

// Texts returns the texts of a list, or the one text of a parameter that is none; nil if there is no value.
func (a Args) Texts(name string) []string {
	switch v := a.values[name].(type) {
	case []string:
		return slices.Clone(v)
	case string:
		return []string{v}
	}
	return nil
}

// Int returns an int, or 0.
func (a Args) Int(name string) int64 { n, _ := a.values[name].(int64); return n } // absent: 0

// Bool returns a bool, or false.
func (a Args) Bool(name string) bool { b, _ := a.values[name].(bool); return b } // absent: false

// Inputs returns the paths of an input parameter as the tool is to be told them: workspace-relative, the same from work/.
func (a Args) Inputs(name string) []string { return a.Texts(name) }

// InputDirs returns the paths of an input_dir parameter.
func (a Args) InputDirs(name string) []string { return a.Inputs(name) }

// Output returns the target of an output, and whether the call names it.
func (a Args) Output(name string) (target string, ok bool) {
	for _, o := range a.outs {
		if o.Name == name {
			return o.Target, true
		}
	}
	return "", false
}

// Staged returns the path at which the tool writes an output, relative to work/ (../s0/out.json), or the empty string
// if the call does not name it. It panics before Bind: a plan without slots would write beside them.
func (a Args) Staged(name string) string {
	for _, o := range a.outs {
		if o.Name == name {
			if len(a.staged) != len(a.outs) {
				panic("internal error: adapters: output " + name + " is not bound to a slot")
			}
			return a.staged[o.Index]
		}
	}
	return ""
}

// Bind returns the arguments with a slot for each output: staged[i] is for Outputs()[i], relative to work/.
func (a Args) Bind(staged []string) Args {
	a.staged = slices.Clone(staged)
	return a
}

// Outputs returns the outputs that the call names, by slot.
func (a Args) Outputs() []OutputArg { return slices.Clone(a.outs) }

// AllInputs returns every input and input directory that the call names, in the order of the parameters.
func (a Args) AllInputs() []InputArg { return slices.Clone(a.ins) }

// Links returns the first components of all inputs, sorted, each once: what the view links.
func (a Args) Links() []string {
	first := map[string]bool{}
	for _, in := range a.ins {
		head, _, _ := strings.Cut(in.Path, "/")
		first[head] = true
	}
	return slices.Sorted(maps.Keys(first))
}

// failOn is the parameter that every tool has beside its own.
func failOn() Param {
	return Param{
		Name: "fail_on", Kind: Enum, Enum: []string{"none", "error", "warning"}, Default: "none",
		Doc: "Which findings make the call fail, so that nothing is published: none, error, or warning (any finding). Example: warning.",
	}
}

// Params are what a call may give: of a tool, or of anything else that takes its arguments as one JSON object.
type Params []Param

// Arguments are the tool's own parameters and the common one.
func (t *Tool) Arguments() Params { return append(slices.Clone(t.Params), failOn()) }

// Decode validates the arguments of a call, without those that are the server's own.
func (t *Tool) Decode(raw map[string]json.RawMessage) (Args, error) { return t.Arguments().Decode(raw) }

// Decode validates the members of one object. All mistakes are joined, in the order of the parameters, each an
// *ArgumentError. Nothing is looked up: paths are checked for syntax only.
func (all Params) Decode(raw map[string]json.RawMessage) (Args, error) {
	a := Args{values: map[string]any{}, given: map[string]bool{}}
	var errs []error
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
		value, given := raw[p.Name]
		if !given {
			if p.Required {
				errs = append(errs, badArg(p.Name, "is required: %s", p.Doc))
			} else if p.Default != nil {
				a.values[p.Name] = p.Default
			}
			continue
		}
		v, err := p.decode(value)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		a.values[p.Name], a.given[p.Name] = v, true
	}
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		if !slices.Contains(names, name) {
			errs = append(errs, badArg(name, "unknown; %s", nearest(name, names)))
		}
	}
	errs = append(errs, a.place(all)...)
	return a, errors.Join(errs...)
}

// place lists inputs and outputs, and refuses outputs that name an input or each other.
func (a *Args) place(params []Param) (errs []error) {
	taken := map[string]string{}
	for _, p := range params {
		if p.Kind != Input && p.Kind != InputDir {
			continue
		}
		for _, in := range a.Inputs(p.Name) {
			a.ins = append(a.ins, InputArg{Name: p.Name, Path: in, Dir: p.Kind == InputDir, MaxBytes: p.maxBytes()})
			taken[in] = p.Name
		}
	}
	for _, p := range params {
		target := a.Text(p.Name)
		if p.Kind != Output || target == "" {
			continue
		}
		if by, clash := taken[target]; clash {
			errs = append(errs, badArg(p.Name, "%q is also %s; an output needs a path of its own", target, by))
		}
		taken[target] = p.Name
		o := OutputArg{Index: len(a.outs), Name: p.Name, Target: target, Kind: p.Format, MustContain: p.MustContain, Optional: p.Optional, AllowEmpty: p.AllowEmpty, MakeParents: true}
		if p.Holds != "" {
			o.MustContain = a.Text(p.Holds)
		}
		a.outs = append(a.outs, o)
	}
	return errs
}

func (p Param) maxBytes() int64 { return cmp.Or(p.MaxBytes, 64<<20) }
func (p Param) maxCount() int64 { return cmp.Or(p.Max, 256) }
func (p Param) maxLength() int  { return cmp.Or(p.MaxLength, 256) }

func (p Param) decode(raw json.RawMessage) (any, error) {
	if !p.List {
		return p.scalar(raw, "")
	}
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil || items == nil {
		return nil, badArg(p.Name, "want a list; each element: %s", p.noun())
	}
	if int64(len(items)) < p.Min || int64(len(items)) > p.maxCount() {
		return nil, badArg(p.Name, "%d elements; from %d to %d are allowed", len(items), p.Min, p.maxCount())
	}
	list := make([]string, 0, len(items))
	for i, item := range items {
		v, err := p.scalar(item, fmt.Sprintf("element %d: ", i))
		if err != nil {
			return nil, err
		}
		s, _ := v.(string) // lists are of strings
		if p.Kind != Text && slices.Contains(list, s) {
			return nil, badArg(p.Name, "element %d: %q is named twice", i, s)
		}
		list = append(list, s)
	}
	return list, nil
}

func (p Param) noun() string {
	return map[ParamKind]string{Int: "integer", Bool: "true or false", Input: "path", InputDir: "path", Output: "path", Text: "string", Enum: "string"}[p.Kind]
}

// scalar decodes one value; at says which element of a list it is.
func (p Param) scalar(raw json.RawMessage, at string) (any, error) {
	switch p.Kind {
	case Bool:
		switch string(raw) {
		case "true":
			return true, nil
		case "false":
			return false, nil
		}
	case Int:
		digits, _ := strings.CutSuffix(string(raw), ".0")
		if n, err := strconv.ParseInt(digits, 10, 64); err == nil {
			if n < p.Min || n > p.Max {
				return nil, badArg(p.Name, "%d; from %d to %d is allowed", n, p.Min, p.Max)
			}
			return n, nil
		}
	case Input, InputDir, Output, Text, Enum:
		var s *string
		if err := json.Unmarshal(raw, &s); err == nil && s != nil {
			if err := p.text(*s); err != nil {
				return nil, badArg(p.Name, "%s%v", at, err)
			}
			return *s, nil
		}
	}
	return nil, badArg(p.Name, "%swant %s", at, p.noun())
}

// text checks a string.
func (p Param) text(s string) error {
	if err := noControls(s); err != nil {
		return err
	}
	switch p.Kind {
	case Input, InputDir:
		if err := plainPath(s); err != nil {
			return err
		}
		return hasExt(s, p.Ext)
	case Output:
		if err := relative(s); err != nil { // tools see only its slot, so any name is good
			return err
		}
		return hasExt(s, p.Format.Exts())
	case Text:
		if len(s) > p.maxLength() {
			return fmt.Errorf("%d bytes long, at most %d are allowed", len(s), p.maxLength())
		}
		if !matchWhole(p.Pattern, s) {
			return fmt.Errorf("%q does not match %s", s, p.Pattern)
		}
	case Enum:
		if !slices.Contains(p.Enum, s) {
			return fmt.Errorf("%q is not one of %s", s, strings.Join(p.Enum, ", "))
		}
	case Int, Bool:
		return errors.New("not a string")
	}
	return nil
}

// compiled are the patterns that matchWhole has met, which are the catalogue's: compiling one costs more than the rest of a
// call's decoding.
var compiled atomic.Pointer[map[string]*regexp.Regexp]

// matchWhole matches the whole of s; the pattern compiled when the tool entered its Catalog.
func matchWhole(pattern, s string) bool {
	known := map[string]*regexp.Regexp{}
	if all := compiled.Load(); all != nil {
		known = *all
	}
	re := known[pattern]
	if re == nil {
		var err error
		if re, err = regexp.Compile(`\A(?:` + pattern + `)\z`); err != nil {
			return false
		}
		more := maps.Clone(known)
		more[pattern] = re
		compiled.Store(&more) // what another call stores meanwhile is lost, and compiled again
	}
	return re.MatchString(s)
}

// noControls refuses what can hide in a terminal, a log or a script: C0, C1, DEL, line separators, bidi overrides, and text
// that is not UTF-8 (U+FFFD is what a decoder makes of it).
func noControls(s string) error {
	for i, r := range s {
		switch {
		case r == utf8.RuneError:
			return fmt.Errorf("invalid UTF-8 or U+FFFD at byte %d", i)
		case r < 0x20, r >= 0x7f && r < 0xa0, r == 0x2028, r == 0x2029, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0x200e, r == 0x200f, r == 0x061c:
			return fmt.Errorf("control character %U at byte %d", r, i)
		}
	}
	return nil
}

// relative checks the syntax that all paths share.
func relative(s string) error {
	switch {
	case len(s) > 1024:
		return fmt.Errorf("%d bytes long, a path has at most 1024", len(s))
	case strings.HasPrefix(s, "/"):
		return fmt.Errorf("%q is absolute; paths are relative to the workspace", s)
	case !fs.ValidPath(s) || s == ".":
		return fmt.Errorf("%q: a path has no empty, \".\" or \"..\" component", s)
	case s == ".eda-sidecar" || strings.HasPrefix(s, ".eda-sidecar/"):
		return fmt.Errorf("%q belongs to the sidecar", s)
	}
	return nil
}

// plainName is one component of a plain path; plainPrefix is as much of a path as is plain.
var (
	plainName   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
	plainPrefix = regexp.MustCompile(`^(?:[A-Za-z0-9_][A-Za-z0-9_.-]*/?)*`)
)

// plainPath checks the path of an input, which tools see as it is. Source: design of the view; yosys globs inside quotes,
// make gives characters a meaning, a leading dash is an option to all.
func plainPath(s string) error {
	if err := relative(s); err != nil {
		return err
	}
	at := len(plainPrefix.FindString(s))
	if strings.HasPrefix(s, "_") {
		at = 0
	}
	if at < len(s) {
		return fmt.Errorf("%q: bad byte %q at %d: rename it (letters, digits, and _ . - after the first; a path that begins with _ is the adapter's own)", s, s[at:at+1], at)
	}
	return nil
}

// PlainName reports whether the view may link this top-level entry of the workspace: plain, and not one of the adapters' own names.
func PlainName(name string) bool { return !strings.Contains(name, "/") && plainPath(name) == nil }

func hasExt(s string, exts []string) error {
	if len(exts) == 0 || slices.Contains(exts, strings.ToLower(path.Ext(s))) {
		return nil
	}
	return fmt.Errorf("%q: its name must end in %s", s, strings.Join(exts, " or "))
}
