package adapters

import (
	"bytes"
	"io"
	"slices"
)

// Mapper turns the paths that a tool saw back into those that the caller knows: slots into targets, the job directory and the
// workspace into workspace-relative paths. Longest first, and only at name boundaries. A nil Mapper maps nothing.
type Mapper struct {
	rules     []rule
	workspace string // every rule begins with it, or with ../s
	hold      int    // the longest rule, in bytes
}

// rule replaces from by to. A prefix is followed by more of the name, a whole name is not.
type rule struct {
	from, to string
	prefix   bool
}

// NewMapper maps for one job. Both directories are absolute and clean; jobDir is beneath workspace.
func NewMapper(a Args, jobDir, workspace string) *Mapper {
	m := &Mapper{workspace: workspace}
	for _, o := range a.outs {
		slot := a.staged[o.Index]
		m.rules = append(m.rules, rule{slot, o.Target, false}, rule{jobDir + "/" + jobPath(slot), o.Target, false})
	}
	m.rules = append(m.rules,
		rule{jobDir + "/work/", "", true}, rule{jobDir + "/work/", ".", false}, rule{jobDir + "/work", ".", false},
		rule{workspace + "/", "", true}, rule{workspace + "/", ".", false}, rule{workspace, ".", false})
	slices.SortStableFunc(m.rules, func(a, b rule) int { return len(b.from) - len(a.from) })
	m.hold = len(m.rules[0].from)
	return m
}

// lookBehind is how many bytes before a name decide whether it begins there: -I/ws/inc.v has an option in front.
const lookBehind = 3

// String maps one string.
func (m *Mapper) String(s string) string {
	if m == nil {
		return s
	}
	out, _ := m.rewrite(nil, []byte(s), 0, true)
	return string(out)
}

// Reader maps what r gives, also across the borders of its blocks.
func (m *Mapper) Reader(r io.Reader) io.Reader {
	if m == nil {
		return r
	}
	return &mappedReader{m: m, r: r, block: make([]byte, 64<<10)}
}

// mappedReader keeps in `in` the context of what was mapped, and what has to wait for the next block.
type mappedReader struct {
	m     *Mapper
	r     io.Reader
	block []byte
	in    []byte
	from  int // first byte of in that is not yet mapped
	out   []byte
	at    int // first byte of out that is not yet given
	err   error
}

// Read implements io.Reader.
func (r *mappedReader) Read(p []byte) (int, error) {
	for r.at == len(r.out) {
		if r.err != nil {
			return 0, r.err
		}
		var n int
		n, r.err = r.r.Read(r.block)
		r.in = append(r.in, r.block[:n]...)
		var done int
		r.out, done = r.m.rewrite(r.out[:0], r.in, r.from, r.err != nil)
		r.at = 0
		drop := max(done-lookBehind, 0)
		r.in, r.from = append(r.in[:0], r.in[drop:]...), done-drop
	}
	n := copy(p, r.out[r.at:])
	r.at += n
	return n, nil
}

// rewrite appends the mapped in[from:] to out and returns up to where it came: all of it at the end of the text, otherwise so far
// that no name that may go on in the next block is touched.
func (m *Mapper) rewrite(out, in []byte, from int, end bool) ([]byte, int) {
	stop := len(in)
	if !end {
		stop = max(len(in)-m.hold-2, from) // a name, and two bytes that decide whether it ends there
	}
	slot, abs := from-1, from-1 // where the next name may begin, by its first bytes
	for {
		slot, abs = next(in, "../s", from, slot), next(in, m.workspace, from, abs)
		at := min(slot, abs)
		if at >= stop {
			break
		}
		out = append(out, in[from:at]...)
		if r, ok := m.match(in, at); ok {
			out, from = append(out, r.to...), at+len(r.from)
		} else {
			out, from = append(out, in[at]), at+1
		}
	}
	if from < stop {
		out, from = append(out, in[from:stop]...), stop
	}
	return out, from
}

// next returns the first place of text at or after from: known, if that is not behind; len(in) if there is none.
func next(in []byte, text string, from, known int) int {
	if known >= from {
		return known
	}
	if i := bytes.Index(in[from:], []byte(text)); i >= 0 {
		return from + i
	}
	return len(in)
}

func (m *Mapper) match(in []byte, at int) (rule, bool) {
	if !begins(in, at) {
		return rule{}, false
	}
	for _, r := range m.rules {
		if bytes.HasPrefix(in[at:], []byte(r.from)) && r.prefix != ends(in[at+len(r.from):]) {
			return r, true
		}
	}
	return rule{}, false
}

// begins reports whether a path can begin at this byte: after no name, or after an option of one letter.
func begins(in []byte, at int) bool {
	before := func(n int) byte {
		if at < n {
			return ' '
		}
		return in[at-n]
	}
	if !isName(before(1)) {
		return true
	}
	return isWord(before(1)) && before(2) == '-' && !isName(before(3))
}

// ends reports whether a path ends before rest: a full stop that no name follows is the sentence's.
func ends(rest []byte) bool {
	if len(rest) == 0 || !isName(rest[0]) {
		return true
	}
	return rest[0] == '.' && (len(rest) == 1 || !isName(rest[1]))
}

// isName reports whether c goes on with a path. Bytes of non-ASCII letters do.
func isName(c byte) bool { return isWord(c) || c == '.' || c == '-' || c == '/' || c >= 0x80 }
