package server

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// What an answer may hold, in characters: a model reads all of it.
const (
	answerBudget = 20_000
	textBudget   = 2_000
	resultBudget = answerBudget - textBudget // of structuredContent, encoded
	dataBudget   = resultBudget - 1_500      // of a string in it that is the answer's point
	headInline   = 2 << 10                   // bytes of the log's head
	tailInline   = 6 << 10
	listInline   = 50 // diagnostics, undeclared files
	lineInline   = 1_500
	listText     = 10  // diagnostics in the text
	logText      = 600 // characters of the text that the end of the log has at least
)

// answer is what a caller is told: exactly one of a result and that the job goes on.
type answer struct {
	result  *job.Result
	pending *pending
}

func ended(r job.Result) answer { return answer{result: &r} }

// pending is the answer while a job goes on. It has no code, so it cannot say "running, but OK".
type pending struct {
	Running bool       `json:"running"` // true
	Job     string     `json:"job_id"`
	Tool    string     `json:"tool"`
	Session string     `json:"session_id,omitempty"`
	Phase   job.State  `json:"phase"`
	Message string     `json:"message"`
	Elapsed int64      `json:"elapsed_ms"`
	Log     pendingLog `json:"log"`
	Next    string     `json:"next"` // the tool to call next
}

type pendingLog struct {
	Bytes int64  `json:"bytes"`
	Tail  string `json:"tail"`
}

// told is what can be said of a job now.
func told(h *job.Handle) answer {
	if h.Ended() {
		return ended(h.Result())
	}
	p := pendingOf(h)
	return answer{pending: &p}
}

func pendingOf(h *job.Handle) pending {
	st, req := h.Status(), h.Request()
	return pending{
		Running: true, Job: h.ID(), Tool: req.Tool.Name, Session: req.Session, Phase: st.State, Message: line(st.Message, lineInline/5),
		Elapsed: st.Elapsed.Milliseconds(), Log: pendingLog{st.LogBytes, strings.ToValidUTF8(st.LogTail, "?")}, Next: jobWait,
	}
}

// terminal is a result as it is sent: cut to the budget.
type terminal struct {
	job.Result
	Cut map[string]int64 `json:"cut,omitempty"` // how much was left out here, by member: bytes of log, elements of lists
}

// toResult is the one mapping to what MCP calls a result. An outcome, whatever it is, is never a protocol error.
func toResult(a answer) *mcp.CallToolResult {
	if p := a.pending; p != nil {
		text := fmt.Sprintf("%s goes on as job %s: %s. Call job_wait with this job_id; do not start it again.", p.Tool, p.Job, p.Message)
		b, err := encode(p)
		if err != nil {
			b = nil // cannot happen: strings and numbers
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: line(text, textBudget)}}, StructuredContent: b}
	}
	r := *a.result
	res := &mcp.CallToolResult{
		Content:           []mcp.Content{&mcp.TextContent{Text: summary(r)}},
		StructuredContent: structured(r, resultBudget),
		IsError:           r.Code != job.OK,
	}
	for _, o := range r.Outputs {
		if !o.Absent && !r.Recalled { // where a job is recalled, only its events are known
			res.Content = append(res.Content, &mcp.ResourceLink{
				URI: scheme + "jobs/" + r.Job + "/artifacts/" + o.Name, Name: o.Name, Title: line(o.Path, 200), MIMEType: mimeOf(o.Path), Size: &o.Bytes,
				Meta: mcp.Meta{"sha256": o.SHA256},
			})
		}
	}
	if r.Log.Bytes > 0 {
		res.Content = append(res.Content, &mcp.ResourceLink{URI: scheme + "jobs/" + r.Job + "/log", Name: "log", MIMEType: "text/plain", Size: &r.Log.Bytes})
	}
	return res
}

// mimeOf is the type of an output by its name; what is not known is bytes.
func mimeOf(path string) string {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".json":
		return "application/json"
	case ".v", ".sv", ".txt", ".log", ".rpt", ".vcd", ".sdc", ".def", ".blif", ".edif", ".csv":
		return "text/plain"
	}
	return "application/octet-stream"
}

// summary says in words all that is needed to go on.
func summary(r job.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", r.Tool, r.Code)
	if r.Verdict != "" {
		fmt.Fprintf(&b, ", verdict %s", r.Verdict)
	}
	if text := cmp.Or(r.Message, r.Summary); text != "" {
		b.WriteString(": " + cutText(text, textBudget/4))
	}
	if r.Job != "" {
		fmt.Fprintf(&b, "\njob %s, %.1f s", r.Job, float64(r.Duration)/1000)
	}
	if r.Replayed {
		b.WriteString("\nthe answer to an earlier call with this idempotency key: nothing ran now")
	}
	if r.Recalled {
		b.WriteString("\nfrom the audit trail: log, diagnostics and data are gone, and artifact_read finds nothing; outputs are files of the workspace")
	}
	if r.Session != "" {
		fmt.Fprintf(&b, "\nsession %s", r.Session)
	}
	if r.SessionVersion > 0 { // else it has none yet, or nobody knows
		fmt.Fprintf(&b, ", version %d", r.SessionVersion)
	}
	if r.Code != job.OK {
		b.WriteString("\n" + safety(r))
		if r.Hint != "" {
			b.WriteString("\nhint: " + r.Hint)
		}
	}
	for _, o := range r.Outputs {
		if o.Absent {
			fmt.Fprintf(&b, "\n%s: not written, %s is as it was", o.Name, o.Path)
			continue
		}
		fmt.Fprintf(&b, "\n%s: %s, %d bytes, sha256 %.12s", o.Name, o.Path, o.Bytes, o.SHA256)
	}
	if r.Code == job.OK && r.Job == "" && r.Data != nil { // one of the server's own: its data is its point
		if text, err := encode(r.Data); err == nil {
			b.WriteString("\n" + cutText(string(text), textBudget/2))
		}
	}
	for i, d := range r.Diagnostics {
		if i == listText {
			fmt.Fprintf(&b, "\n%d more in diagnostics", len(r.Diagnostics)-i)
			break
		}
		fmt.Fprintf(&b, "\n%s: %s", d.Severity, where(d)+cutText(d.Message, lineInline/10))
	}
	text, log := clean(b.String()), clean(r.Log.Head+r.Log.Tail)
	if r.Code == job.OK || log == "" {
		return cutText(text, textBudget)
	}
	text = cutText(text, textBudget-logText) + "\nlog ends:\n"
	return text + lastText(log, textBudget-utf8.RuneCountInString(text))
}

// safety says what was undone, and whether a new call can do harm.
func safety(r job.Result) string {
	switch {
	case !r.WorkerTerminated:
		return "A process of the tool is NOT proven dead. Do not call again: tell the user."
	case !r.RolledBack:
		return "What has changed is NOT decided yet, and the session and targets stay locked. Do not call again: tell the user."
	case r.RetryAfter > 0:
		return fmt.Sprintf("Nothing has changed. It is safe to call again, in %d s or later.", (r.RetryAfter+999)/1000)
	}
	return "Nothing has changed. It is safe to call again."
}

func where(d adapters.Diagnostic) string {
	if d.File == "" {
		return ""
	}
	return fmt.Sprintf("%s:%d: ", d.File, d.Line)
}

// structured encodes a result within room characters. It cuts in this order, and counts what is missing: both ends of the
// log, diagnostics, undeclared files, lists of the data, then the data.
func structured(r job.Result, room int) json.RawMessage {
	t := terminal{Result: r, Cut: map[string]int64{}}
	t.Message, t.Summary = cutText(r.Message, lineInline), cutText(r.Summary, lineInline)
	head, tail, list := headInline, tailInline, listInline
	data, err := generic(r.Data)
	if err == nil {
		t.Data = data
	}
	for {
		t.cutLog(r.Log, head, tail)
		t.Diagnostics = cutList(t.Cut, "diagnostics", r.Diagnostics, list)
		t.Undeclared = cutList(t.Cut, "undeclared_files", r.Undeclared, list)
		b, err := encode(t)
		if err == nil && utf8.RuneCount(b) <= room {
			return b
		}
		switch {
		case tail > headInline/4:
			head, tail = head/2, tail/2
		case list > listText/2:
			list /= 2
		case t.Data != nil:
			if !cutData(&t.Data, t.Cut) {
				t.Data, t.Cut["data"] = nil, int64(size(r.Data))
			}
		case len(t.Outputs) > 1:
			t.Outputs = cutList(t.Cut, "outputs", r.Outputs, len(t.Outputs)/2)
		default:
			return b // cannot happen: what is left has bounds of its own, which add up to less
		}
	}
}

// cutLog keeps what fits of both ends of the log.
func (t *terminal) cutLog(l job.Log, head, tail int) {
	l.Head, l.Tail = strings.ToValidUTF8(l.Head, "?"), strings.ToValidUTF8(l.Tail, "?")
	if all := l.Head + l.Tail; len(all) > head+tail {
		l.Head, l.Tail = firstText(all, head), strings.ToValidUTF8(all[len(all)-tail:], "")
		l.Truncated, t.Cut["log"] = true, max(l.Bytes-int64(len(l.Head)+len(l.Tail)), 1)
	}
	t.Log = l
}

func cutList[T any](cut map[string]int64, name string, list []T, most int) []T {
	if len(list) <= most {
		return list
	}
	cut[name] = int64(len(list) - most)
	return list[:most]
}

// generic is v as JSON values, which can be cut whatever they mean.
func generic(v any) (g any, err error) {
	if v == nil {
		return nil, nil
	}
	b, err := encode(v)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return g, d.Decode(&g)
}

// mapSize is how many members make an object a map, which can be cut, and not a thing with fields.
const mapSize = 32

// cutData halves the longest list or map of generic data, and counts what is missing. False: none is left to cut.
func cutData(data *any, cut map[string]int64) bool {
	var name string
	longest, halve := 1, func() int64 { return 0 }
	var walk func(at string, v any, set func(any))
	walk = func(at string, v any, set func(any)) {
		switch v := v.(type) {
		case []any:
			for i, inner := range v {
				walk(at, inner, func(short any) { v[i] = short })
			}
			if len(v) > longest {
				name, longest = at, len(v)
				halve = func() int64 { set(v[:len(v)/2]); return int64(len(v) - len(v)/2) }
			}
		case map[string]any:
			for key, inner := range v {
				walk(at+"."+key, inner, func(short any) { v[key] = short })
			}
			if len(v) > max(longest, mapSize) {
				name, longest = at, len(v)
				halve = func() int64 {
					excess := slices.Sorted(maps.Keys(v))[len(v)/2:]
					maps.DeleteFunc(v, func(key string, _ any) bool { return slices.Contains(excess, key) })
					return int64(len(excess))
				}
			}
		}
	}
	walk("data", *data, func(short any) { *data = short })
	n := halve()
	if n > 0 {
		cut[name] += n
	}
	return n > 0
}

// encode is v as JSON. Controls are escaped in it, and nothing else needs to be.
func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// size is how many characters v has as JSON.
func size(v any) int {
	b, err := encode(v)
	if err != nil {
		return 0 // what does not encode is not sent
	}
	return utf8.RuneCount(b)
}

// clean makes text harmless for a terminal: UTF-8 whose controls, but for new lines and tabs, are written as \x1b.
func clean(text string) string {
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(text, "?") {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			fmt.Fprintf(&b, `\x%02x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// line is a bounded piece of what a tool may have said.
func line(text string, most int) string { return cutText(clean(text), most) }

// printable drops what is not.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return -1
}

// cutText keeps the first characters of text, most at the most.
func cutText(text string, most int) string {
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most-1]) + "…"
}

// firstText keeps the first bytes, up to the border of a rune.
func firstText(text string, most int) string {
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

// lastText keeps the last characters.
func lastText(text string, most int) string {
	runes := []rune(text)
	return string(runes[max(0, len(runes)-most):])
}
