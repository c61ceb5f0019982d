package adapters

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Program is something that must be installed: how to find it, and how to ask its version. The engine does both.
type Program struct {
	Key         string   // what Step.Argv[0] says
	Names       []string // executables, in the order to look them up in PATH
	VersionArgs []string // nil: no version is asked
	Match       string   // RE2 with one group, the version, on the program's combined output
	Min         string   // oldest that is supported; empty: any
	Tested      string   // newest that the suite has run with; empty: not said
	Interpreter bool     // runs the text of a caller or of the config: sh, python3, tclsh
}

// Version is what a program answered. Newer says that the suite has not seen it yet: a warning, no fault.
type Version struct {
	Text  string
	Newer bool
}

// ParseVersion judges the answer to VersionArgs. It returns ErrVersionUnreadable, or ErrTooOld with both versions; the Version
// that was found is valid beside ErrTooOld.
func (p Program) ParseVersion(output string) (Version, error) {
	if p.VersionArgs == nil {
		return Version{}, nil
	}
	re, err := regexp.Compile(p.Match)
	if err != nil || re.NumSubexp() != 1 {
		return Version{}, fmt.Errorf("internal error: program %q: pattern %q", p.Key, p.Match)
	}
	found := re.FindStringSubmatch(output)
	if found == nil || found[1] == "" {
		return Version{}, fmt.Errorf("program %q: %w", p.Key, ErrVersionUnreadable)
	}
	v := Version{Text: found[1], Newer: p.Tested != "" && CompareVersions(found[1], p.Tested) > 0}
	if p.Min != "" && CompareVersions(v.Text, p.Min) < 0 {
		return v, fmt.Errorf("program %q: version %s is %w: %s is needed", p.Key, v.Text, ErrTooOld, p.Min)
	}
	return v, nil
}

// CompareVersions compares dotted versions number by number (0.9 < 0.23 < 0.23.1) and returns -1, 0 or 1. What follows the
// digits of a part (10a, 1-rc2) is ignored.
func CompareVersions(a, b string) int {
	x, y := numbers(a), numbers(b)
	for len(x) < len(y) {
		x = append(x, 0)
	}
	for len(y) < len(x) {
		y = append(y, 0)
	}
	return slices.Compare(x, y)
}

// numbers returns what the parts of a version begin with. No digits, or too many, are 0: that ranks lowest.
func numbers(version string) (all []int) {
	for part := range strings.SplitSeq(version, ".") {
		end := strings.IndexFunc(part+".", func(r rune) bool { return r < '0' || r > '9' })
		all = append(all, number(part[:end]))
	}
	return all
}
