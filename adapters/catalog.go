package adapters

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Catalog is the table of tools that a sidecar offers: immutable, sorted by name.
type Catalog struct{ tools []*Tool }

// NewCatalog makes a catalog of the built-in tools and the declared ones. It returns all mistakes: a tool that is not well formed,
// a name that is there twice.
func NewCatalog(declared ...*Tool) (*Catalog, error) {
	c := &Catalog{tools: append(builtin(), declared...)}
	slices.SortStableFunc(c.tools, func(a, b *Tool) int { return cmp.Compare(a.Name, b.Name) })
	var errs []error
	for i, t := range c.tools {
		wrong := t.mistakes()
		if i > 0 && c.tools[i-1].Name == t.Name {
			wrong = append(wrong, "the name is taken")
		}
		for _, w := range wrong {
			errs = append(errs, fmt.Errorf("%w: %q: %s", ErrConfig, t.Name, w))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c, nil
}

// builtin is the explicit table.
func builtin() []*Tool {
	return []*Tool{
		yosysSynth(),
		iverilogSimulate(),
	}
}

// Tools returns the tools, sorted by name.
func (c *Catalog) Tools() []*Tool { return slices.Clone(c.tools) }

// Tool returns the tool of this name, or nil and a hint for people: the nearest name.
func (c *Catalog) Tool(name string) (t *Tool, hint string) {
	var names []string
	for _, t := range c.tools {
		if t.Name == name {
			return t, ""
		}
		names = append(names, t.Name)
	}
	return nil, nearest(name, names)
}

// mistakes checks what the other parts rely on, so that a declared tool cannot be less than a built-in.
func (t *Tool) mistakes() (all []string) {
	bad := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if !toolName.MatchString(t.Name) {
		bad("the name does not match %s", toolName)
	}
	if first, _, _ := strings.Cut(t.Doc, ". "); t.Doc == "" || len(first) > 120 || len(t.Doc) > 1000 {
		bad("doc: 1 to 1000 bytes, the first sentence at most 120")
	}
	switch t.Trust {
	case Declarative, Design, Script:
	default:
		bad("trust %q is not declarative, design or script", t.Trust)
	}
	if len(t.Programs) == 0 || t.Plan == nil || t.Parse == nil {
		bad("it has no program, plan or parse")
	}
	if l := t.Limits; l.Wall < time.Second || l.WallMax < l.Wall || l.MemoryBytes <= 0 || l.Pids <= 0 || l.StagingBytes <= 0 || l.LogBytes <= 0 {
		bad("limits: wall time at least 1s and at most its ceiling, all others above zero")
	}
	seen := map[string]bool{failOn().Name: true}
	for _, p := range t.Params {
		if seen[p.Name] || reserved(p.Name) {
			bad("params %q: the name is taken", p.Name)
		}
		seen[p.Name] = true
		if err := p.wellFormed(); err != nil {
			bad("params %q: %v", p.Name, err)
		}
	}
	return all
}

// reserved are the arguments that the server itself takes from a call.
func reserved(name string) bool {
	return slices.Contains([]string{"session_id", "timeout_s", "wait_seconds", "detach", "idempotency_key"}, name)
}

func (p Param) wellFormed() error {
	switch {
	case !toolName.MatchString(p.Name):
		return fmt.Errorf("the name does not match %s", toolName)
	case p.Doc == "":
		return errors.New("doc is missing")
	case p.List && p.Kind != Input && p.Kind != InputDir && p.Kind != Text:
		return fmt.Errorf("%s cannot be a list", p.Kind)
	case p.List && (p.Min < 0 || p.Max < 0 || p.Min > p.maxCount()) || p.MaxLength < 0 || p.MaxBytes < 0:
		return errors.New("min, max, max_length or max_bytes")
	case p.Required && p.Default != nil:
		return errors.New("required, and a default")
	}
	return p.wellFormedKind()
}

func (p Param) wellFormedKind() error {
	switch p.Kind {
	case Input, InputDir, Bool:
		return nil
	case Output:
		if !p.Format.Known() {
			return fmt.Errorf("format %q is not a kind", p.Format)
		}
		return nil
	case Text:
		if _, err := regexp.Compile(`\A(?:` + p.Pattern + `)\z`); err != nil || p.Pattern == "" {
			return fmt.Errorf("text needs a pattern, and %q is none", p.Pattern)
		}
		return nil
	case Enum:
		if len(p.Enum) == 0 {
			return errors.New("enum without values")
		}
		return nil
	case Int:
		if p.Min > p.Max {
			return errors.New("the least value is above the most")
		}
		return nil
	}
	return fmt.Errorf("kind %q is not one of input, input_dir, output, text, enum, int, bool", p.Kind)
}
