package adapters

import (
	"fmt"
	"regexp"
	"strconv"
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
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(x), len(y)) {
		m, n := part(x, i), part(y, i)
		if m != n {
			if m < n {
				return -1
			}
			return 1
		}
	}
	return 0
}

func part(parts []string, i int) int {
	if i >= len(parts) {
		return 0
	}
	end := 0
	for end < len(parts[i]) && parts[i][end] >= '0' && parts[i][end] <= '9' {
		end++
	}
	n, err := strconv.Atoi(parts[i][:end])
	if err != nil {
		return 0 // no digits, or too many: ranks lowest
	}
	return n
}
