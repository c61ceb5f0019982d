package adapters

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
)

// Bounds of a Report, in bytes where nothing else is said. Source: design of the reply's budget.
const (
	maxDiagnostics = 200
	maxMessage     = 1 << 10
	maxData        = 64 << 10
	maxState       = 64 << 10
	maxList        = 256 // elements of a list in Data once the whole is too large
)

// nextState is what a process writes to change the session's vars, in work/.
const nextState = "_state.next.json"

// readNextState returns the merge patch that the processes left in work/, or nil. Package session is stricter about what is in it.
func readNextState(staged fs.FS) (json.RawMessage, error) {
	name := jobPath(nextState)
	err := checkFile(staged, name, want{kind: KindFile})
	if errors.Is(err, ErrMissing) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	text, err := readSmall(staged, name, maxState)
	var patch map[string]json.RawMessage // an empty one changes nothing
	if err == nil && (json.Unmarshal(text, &patch) != nil || patch == nil) {
		err = notWhole("not a JSON object")
	}
	return text, err
}

// open opens a staged file; it returns ErrMissing if there is none.
func open(staged fs.FS, name string) (fs.File, error) {
	f, err := staged.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrMissing
	}
	return f, err
}

// readSmall reads a staged file of at most limit bytes.
func readSmall(staged fs.FS, name string, limit int64) ([]byte, error) {
	f, err := open(staged, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = notWhole("larger than %d bytes", limit)
	}
	return text, err
}

// eachLine calls fn for every line of the log, cut to 64 KiB, with the number of the step that printed it.
func (r Run) eachLine(fn func(step int, line []byte)) error {
	log, err := r.Log()
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	defer func() { _ = log.Close() }() // opened for reading
	return scanLines(log, func(at int64, line []byte) {
		step := 0
		for step < len(r.Exits)-1 && at >= r.Exits[step].LogEnd {
			step++
		}
		fn(step, line)
	})
}

// scanLines calls fn with the offset of each line, and the line without its newline.
func scanLines(r io.Reader, fn func(at int64, line []byte)) error {
	s := newSource(r)
	for {
		at := s.offset
		line, whole := s.line()
		if line == nil && !whole {
			return s.below.err
		}
		fn(at, bytes.TrimSuffix(line, []byte("\r")))
	}
}

// eachFileLine calls fn for every line of a staged file.
func eachFileLine(staged fs.FS, name string, fn func(line []byte)) error {
	f, err := open(staged, name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading
	return scanLines(f, func(_ int64, line []byte) { fn(line) })
}

// findings collects diagnostics: errors first, at most maxDiagnostics, all of them counted.
type findings struct {
	errors, others []Diagnostic
	counts         map[Severity]int
	last           *Diagnostic // the diagnostic that a continuation belongs to; nil: it was dropped
}

func (f *findings) add(d Diagnostic) {
	if f.counts == nil {
		f.counts = make(map[Severity]int)
	}
	f.counts[d.Severity]++
	d.Message = strings.Clone(d.Message[:min(len(d.Message), maxMessage)])
	list := &f.others
	if d.Severity == Error {
		list = &f.errors
	}
	f.last = nil
	if len(*list) < maxDiagnostics {
		*list = append(*list, d)
		f.last = &(*list)[len(*list)-1]
	}
}

// more adds a continuation line to the last diagnostic.
func (f *findings) more(text string) {
	if f.last != nil && len(f.last.Message) < maxMessage {
		f.last.Message += " " + text
	}
}

// list returns the diagnostics, errors first.
func (f *findings) list() []Diagnostic {
	all := slices.Concat(f.errors, f.others)
	return all[:min(len(all), maxDiagnostics)]
}

// report is the common part of every Parse: findings if there are warnings, failed if there are errors.
func (f *findings) report(summary string, data any) Report {
	r := Report{Verdict: OK, Summary: summary, Diagnostics: f.list(), Counts: f.counts, Data: data}
	switch {
	case f.counts[Error] > 0:
		r.fail(f.errors[0].Message)
	case f.counts[Warning] > 0:
		r.Verdict = Findings
	}
	return r
}

// bounded maps every string of the report back and cuts what is too large.
func (r Report) bounded(m *Mapper) Report {
	clean := func(s string, limit int) string {
		s = strings.ToValidUTF8(m.String(s), "\uFFFD")
		return strings.ToValidUTF8(s[:min(len(s), limit)], "") // no half of a character at the end
	}
	r.Summary = clean(r.Summary, maxMessage)
	for i := range r.Diagnostics {
		d := &r.Diagnostics[i]
		d.File, d.Message = clean(d.File, maxMessage), clean(d.Message, maxMessage)
	}
	if r.Data == nil {
		return r
	}
	encoded, err := json.Marshal(r.Data)
	var tree any
	if err == nil {
		err = json.Unmarshal(encoded, &tree)
	}
	if err != nil {
		r.Data = nil
		r.fail("internal error: data: " + err.Error())
		return r
	}
	r.Data = mapTree(tree, m, len(encoded) > maxData)
	if encoded, err = json.Marshal(r.Data); err != nil || len(encoded) > maxData {
		r.Data = map[string]any{"data_bytes_total": len(encoded)}
	}
	return r
}

// mapTree maps the strings of a JSON value back; with cut, lists lose what is beyond maxList, and say how much there was.
func mapTree(v any, m *Mapper, cut bool) any {
	switch v := v.(type) {
	case string:
		return m.String(v)
	case []any:
		for i := range v {
			v[i] = mapTree(v[i], m, cut)
		}
		return v
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, item := range v {
			item = mapTree(item, m, cut)
			if list, ok := item.([]any); ok && cut && len(list) > maxList {
				out[key+"_total"], item = len(list), list[:maxList]
			}
			out[m.String(key)] = item
		}
		return out
	}
	return v
}
