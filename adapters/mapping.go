package adapters

import (
	"slices"
	"strings"
)

// Mapper turns the paths that a tool saw back into those that the caller knows: slots into targets, the job directory and the
// workspace into workspace-relative paths. Longest first, and only at name boundaries. A nil Mapper maps nothing.
type Mapper struct{ rules []rule }

// rule replaces from by to. A prefix is followed by more of the name, a whole name is not.
type rule struct {
	from, to string
	prefix   bool
}

// NewMapper maps for one job. Both directories are absolute and clean; jobDir is beneath workspace.
func NewMapper(a Args, jobDir, workspace string) *Mapper {
	m := &Mapper{}
	for _, o := range a.outs {
		slot := a.staged[o.Index]
		m.rules = append(m.rules, rule{slot, o.Target, false}, rule{jobDir + "/" + jobPath(slot), o.Target, false})
	}
	m.rules = append(m.rules,
		rule{jobDir + "/work/", "", true}, rule{jobDir + "/work/", ".", false}, rule{jobDir + "/work", ".", false},
		rule{workspace + "/", "", true}, rule{workspace + "/", ".", false}, rule{workspace, ".", false})
	slices.SortStableFunc(m.rules, func(a, b rule) int { return len(b.from) - len(a.from) })
	return m
}

// String maps one string.
func (m *Mapper) String(s string) string {
	if m == nil {
		return s
	}
	var out strings.Builder
	from := 0 // what is before it is in out
	for at := 0; at < len(s); at++ {
		if r, ok := m.match(s, at); ok {
			out.WriteString(s[from:at] + r.to)
			from = at + len(r.from)
			at = from - 1
		}
	}
	out.WriteString(s[from:])
	return out.String()
}

// match returns the rule for the path that begins at this byte.
func (m *Mapper) match(s string, at int) (rule, bool) {
	if s[at] != '/' && s[at] != '.' || !begins(s, at) { // all rules begin with one of the two
		return rule{}, false
	}
	for _, r := range m.rules {
		if rest, ok := strings.CutPrefix(s[at:], r.from); ok && r.prefix != ends(rest) {
			return r, true
		}
	}
	return rule{}, false
}

// begins reports whether a path can begin at this byte: after no name, or after an option of one letter.
func begins(s string, at int) bool {
	before := func(n int) byte {
		if at < n {
			return ' '
		}
		return s[at-n]
	}
	if !isName(before(1)) {
		return true
	}
	return isWord(before(1)) && before(2) == '-' && !isName(before(3))
}

// ends reports whether a path ends before rest: a full stop that no name follows is the sentence's.
func ends(rest string) bool {
	if len(rest) == 0 || !isName(rest[0]) {
		return true
	}
	return rest[0] == '.' && (len(rest) == 1 || !isName(rest[1]))
}

// isName reports whether c goes on with a path. Bytes of non-ASCII letters do.
func isName(c byte) bool { return isWord(c) || c == '.' || c == '-' || c == '/' || c >= 0x80 }
