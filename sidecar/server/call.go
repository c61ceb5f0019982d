package server

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/session"
)

const (
	// closeTimeout bounds session_close, which waits for a running job.
	closeTimeout = 45 * time.Second
	// cancelTimeout bounds job_cancel; the job's own bounds of its kill and undo are shorter.
	cancelTimeout = 30 * time.Second
)

// call is one call of a tool: a goroutine's own.
type call struct {
	*Server
	ctx      context.Context // ends when the caller is gone or cancels
	tool     *tool
	who      Principal
	request  string                     // id of the caller's request
	raw      map[string]json.RawMessage // as given
	args     adapters.Args
	progress progress
	client   *mcpClient // nil: of no MCP session that a DELETE can end
}

// handler answers the calls of one tool: the same way for each, and never with an error, which the SDK would send as one of
// the protocol. Nor does it ever validate.
func (s *Server) handler(t *tool) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		c := &call{Server: s, ctx: ctx, tool: t, who: principal(req.Extra), progress: newProgress(req)}
		if req.Extra != nil {
			c.request = req.Extra.Header.Get(requestID)
		}
		leave, ok := s.running.enter(c.who.Name) // by now, or soon, nobody may wait for it: era B goes on without its stream
		if !ok {
			r := job.Failed(t.name, &job.Error{Code: job.Busy, Err: errors.New("too many calls go on")})
			r.RetryAfter = 5000
			return toResult(ended(r)), nil
		}
		defer leave()
		if id := req.Session.ID(); id != "" {
			var end context.CancelFunc
			c.ctx, end = context.WithCancel(ctx)
			defer end()
			c.client = s.clients.get(id, c.who.Name)
			defer context.AfterFunc(c.client.ctx, end)()
		}
		return toResult(c.do(req.Params.Arguments)), nil
	}
}

// do decodes, authorises and runs the call.
func (c *call) do(arguments json.RawMessage) answer {
	c.raw = map[string]json.RawMessage{}
	if len(arguments) > 0 {
		if err := json.Unmarshal(arguments, &c.raw); err != nil {
			return c.failed(fmt.Errorf("%w: the arguments are not an object", adapters.ErrArgument))
		}
	}
	var err error
	if c.args, err = c.tool.params.Decode(c.raw); err != nil {
		return c.failed(err)
	}
	if err := c.denied(); err != nil { // recorded, like every refusal of somebody who is known
		t := c.tool.eda
		if t == nil {
			t = &adapters.Tool{Name: c.tool.name}
		}
		h := c.o.Registry.Start(job.Request{Tool: t, Principal: c.who.Name, RequestID: c.request, Refused: &job.Error{Code: job.Denied, Err: err}})
		return ended(h.Result())
	}
	return c.tool.run(c)
}

// denied says which capability the caller lacks for this call. What hands over code is the job's to deny.
func (c *call) denied() error {
	need := c.tool.needs
	if t := c.tool.eda; t != nil {
		need = []Capability{Read}
		if t.Mutates(c.args) {
			need = []Capability{Mutate}
		}
	}
	if slices.ContainsFunc(need, c.who.May) {
		return nil
	}
	return fmt.Errorf("the call needs the capability %q", need[0])
}

// failed answers a call that came to nothing.
func (c *call) failed(err error) answer { return ended(job.Failed(c.tool.name, err)) }

// ok answers a call that ran no program.
func (c *call) ok(data any, session ledger.Session) answer {
	r := job.Failed(c.tool.name, errors.New(""))
	r.Code, r.Message, r.Hint, r.RolledBack = job.OK, "", "", false
	r.Data, r.Session, r.SessionVersion = data, session.ID, session.Generation
	return ended(r)
}

func (c *call) wrong(arg, rule string) answer {
	return c.failed(&adapters.ArgumentError{Arg: arg, Rule: rule})
}

// start runs an EDA tool as a job.
func (c *call) start() answer {
	t := c.tool.eda
	req := job.Request{
		Tool: t, Args: c.args, Session: c.args.Text("session_id"), Principal: c.who.Name, Script: c.who.May(Script),
		RequestID: c.request, Timeout: time.Duration(c.args.Int("timeout_s")) * time.Second,
	}
	if req.Session == "" && t.Mutates(c.args) {
		return c.wrong("session_id", "is required, as the call names an output: session_open returns one")
	}
	if t.Mutates(c.args) && c.args.Has("idempotency_key") { // what changes nothing may run again
		same := maps.Clone(c.raw)
		for _, name := range []string{"idempotency_key", "wait_seconds", "detach"} { // how it waits is no part of a call
			delete(same, name)
		}
		req.Key = job.Key{SHA256: job.Digest(c.args.Text("idempotency_key")), Args: job.Digest(same)}
	}
	own := maps.Clone(c.raw) // the same digest from wherever the tool is called
	for _, p := range append(common(adapters.Limits{}, false), keyParam()) {
		delete(own, p.Name)
	}
	req.Digest = job.Digest(own)
	h := c.o.Registry.Start(req)
	defer h.Abandon() // nothing, once the job is handed over or has ended
	defer context.AfterFunc(c.ctx, func() { h.Abandon() })()
	if c.client != nil && !c.args.Bool("detach") {
		c.clients.add(c.client, h)
	}
	if !c.args.Bool("detach") && c.await(h, c.wait()) {
		return ended(h.Result())
	}
	if c.ctx.Err() != nil {
		h.Abandon() // before Detach
	}
	if !h.Detach() {
		return ended(h.Result()) // a caller that is gone hears nothing before the job's end either
	}
	keep(c.ctx, h)
	return told(h)
}

func (c *call) wait() time.Duration { return time.Duration(c.args.Int("wait_seconds")) * time.Second }

// await waits for the end of a job, for d, or until the caller is gone. It sends the progress meanwhile, so none comes
// after the answer.
func (c *call) await(h *job.Handle, d time.Duration) (done bool) {
	timer, tick := time.NewTimer(d), time.NewTicker(progressEvery)
	defer timer.Stop()
	defer tick.Stop()
	for {
		select {
		case <-h.Done():
			return true
		case <-tick.C:
			c.progress.send(c.ctx, h.Status())
			continue
		case <-timer.C:
		case <-c.ctx.Done():
		}
		return h.Ended()
	}
}

// find is the caller's job that an argument names, or nil: an unknown one and somebody else's look the same.
func (c *call) find() *job.Handle { return c.o.Registry.Find(c.who.asks(), c.args.Text("job_id")) }

// recall answers for a job that the registry does not know: from its events, if it was the caller's.
func (c *call) recall() answer {
	r, err := c.o.Registry.Recall(c.ctx, c.who.asks(), c.args.Text("job_id"))
	if err != nil {
		return c.failed(err)
	}
	return ended(r)
}

func (c *call) jobWait() answer {
	h := c.find()
	if h == nil {
		return c.recall()
	}
	c.await(h, c.wait())
	return told(h)
}

func (c *call) jobCancel() answer {
	h := c.find()
	if h == nil {
		return c.recall()
	}
	h.CancelBy(c.who.Name)
	c.await(h, cancelTimeout)
	return told(h)
}

// jobsData is the data of job_list.
type jobsData struct {
	Jobs []jobView `json:"jobs" jsonschema:"the newest first"`
	Next string    `json:"next_cursor,omitempty" jsonschema:"argument cursor for the next page; absent on the last"`
}

type jobView struct {
	Job     string    `json:"job_id" jsonschema:"id"`
	Owner   string    `json:"owner" jsonschema:"whose it is"`
	Tool    string    `json:"tool" jsonschema:"what it runs"`
	Session string    `json:"session_id,omitempty" jsonschema:"where it works"`
	Phase   job.State `json:"phase" jsonschema:"what it does"`
	Message string    `json:"message" jsonschema:"the same for people"`
	Elapsed int64     `json:"elapsed_ms" jsonschema:"since the call"`
}

func (c *call) jobList() answer {
	return c.ok(c.jobs(c.who, c.args.Text("session_id"), c.args.Text("state"), c.args.Text("cursor"), int(c.args.Int("limit")), dataBudget), ledger.Session{})
}

// page is what a list begins with, at most limit and room characters of it as JSON but at least one, and whether it goes on.
// A cursor is made of its end: what is cut behind that would be lost.
func page[T any](list []T, limit, room int) (first []T, more bool) {
	for i, v := range list {
		if room -= size(v) + 1; i == limit || i > 0 && room < 0 {
			return list[:i], true
		}
	}
	return list, false
}

// jobs is a page of the jobs that a principal may ask for, behind the cursor.
func (s *Server) jobs(who Principal, session, state, cursor string, limit, room int) (d jobsData) {
	views := []jobView{}
	list := s.o.Registry.List(who.asks())
	if i := slices.IndexFunc(list, func(h *job.Handle) bool { return h.ID() == cursor }); i >= 0 {
		list = list[i+1:]
	}
	for _, h := range list {
		v := view(h)
		if session != "" && v.Session != session || state != "" && (v.Phase == job.StateDone) != (state == "done") {
			continue
		}
		if views = append(views, v); len(views) > limit {
			break
		}
	}
	var more bool
	if d.Jobs, more = page(views, limit, room); more {
		d.Next = d.Jobs[len(d.Jobs)-1].Job
	}
	return d
}

func view(h *job.Handle) jobView {
	st, req := h.Status(), h.Request()
	v := jobView{Job: h.ID(), Owner: req.Principal, Tool: req.Tool.Name, Session: h.Session(), Phase: st.State, Message: line(st.Message, 120), Elapsed: st.Elapsed.Milliseconds()}
	if st.State == job.StateDone {
		v.Session = h.Result().Session
	}
	return v
}

// sessionsData is the data of the tools about sessions.
type sessionsData struct {
	Sessions []sessionView `json:"sessions" jsonschema:"what the call was about"`
	Next     string        `json:"next_cursor,omitempty" jsonschema:"argument cursor for the next page; absent on the last"`
}

type sessionView struct {
	ID      string         `json:"session_id" jsonschema:"id"`
	Owner   string         `json:"owner" jsonschema:"whose it is"`
	Name    string         `json:"name,omitempty" jsonschema:"name; absent: none"`
	Version int64          `json:"session_version" jsonschema:"how often it was committed to"`
	Updated time.Time      `json:"updated_at" jsonschema:"of the last commit"`
	State   *session.State `json:"state,omitempty" jsonschema:"what the session remembers; of a single session"`
}

func viewSessions(rows []ledger.Session, state bool) (views []sessionView) {
	views = []sessionView{}
	for i, r := range rows {
		v := sessionView{ID: r.ID, Owner: r.Owner, Name: r.Name, Version: r.Generation, Updated: r.UpdatedAt}
		if state {
			v.State = &rows[i].State
		}
		views = append(views, v)
	}
	return views
}

func (c *call) sessionOpen() answer {
	row, err := c.o.Registry.OpenSession(c.ctx, c.who.Name, c.args.Text("name"))
	if err != nil {
		return c.failed(err)
	}
	return c.ok(sessionsData{Sessions: viewSessions([]ledger.Session{row}, false)}, row)
}

func (c *call) sessionShow() answer {
	if c.args.Has("session_id") {
		row, err := c.session(c.ctx, c.who, c.args.Text("session_id"))
		if err != nil {
			return c.failed(err)
		}
		return c.ok(sessionsData{Sessions: viewSessions([]ledger.Session{row}, true)}, row)
	}
	d, err := c.sessions(c.ctx, c.who, c.args.Text("cursor"), int(c.args.Int("limit")), dataBudget)
	if err != nil {
		return c.failed(err)
	}
	return c.ok(d, ledger.Session{})
}

// session is a session that a principal may ask for, by id; "default" names its own default one.
func (s *Server) session(ctx context.Context, who Principal, id string) (ledger.Session, error) {
	if id != job.DefaultSession {
		return s.o.Runner.Session(ctx, who.asks(), id)
	}
	row, err := s.o.Ledger.SessionByName(ctx, who.Name, id)
	if err != nil {
		return row, fmt.Errorf("use session %q: %w", id, err)
	}
	return row, nil
}

// sessions is a page of the sessions that a principal may ask for, behind the cursor.
func (s *Server) sessions(ctx context.Context, who Principal, cursor string, limit, room int) (d sessionsData, err error) {
	owner := who.Name
	if who.May(Admin) {
		owner = "" // everybody
	}
	rows, err := s.o.Ledger.Sessions(ctx, owner, cursor, limit+1)
	if err != nil {
		return d, err
	}
	var more bool
	if d.Sessions, more = page(viewSessions(rows, false), limit, room); more {
		d.Next = d.Sessions[len(d.Sessions)-1].ID
	}
	return d, nil
}

func (c *call) sessionClose() answer {
	ctx, cancel := context.WithTimeout(c.ctx, closeTimeout)
	defer cancel()
	row, err := c.session(ctx, c.who, c.args.Text("session_id"))
	if err == nil {
		err = c.o.Registry.CloseSession(ctx, c.who.asks(), row.ID, c.args.Bool("force"))
	}
	switch {
	case err != nil && ctx.Err() != nil && c.ctx.Err() == nil:
		return c.failed(&job.Error{Code: job.Busy, Op: "close the session", Err: fmt.Errorf("its job still runs after %v: wait, or close it by force", closeTimeout)})
	case err != nil:
		return c.failed(err)
	}
	return c.ok(sessionsData{Sessions: []sessionView{}}, row)
}

// artifactMax is how many bytes of an artifact one answer holds at most.
const artifactMax = 16_000

// artifactData is the data of artifact_read.
type artifactData struct {
	Name     string `json:"name" jsonschema:"of the output, or log"`
	Offset   int64  `json:"offset" jsonschema:"of the first byte in content"`
	Bytes    int64  `json:"bytes" jsonschema:"size of the whole"`
	Encoding string `json:"encoding" jsonschema:"of content: text or base64"`
	Content  string `json:"content" jsonschema:"the bytes from offset on"`
	Next     int64  `json:"next_offset,omitempty" jsonschema:"where to read on; absent at the end"`
	Stale    bool   `json:"stale,omitempty" jsonschema:"the file is no longer what the job published; of a log: only its two ends are left"`
}

func (c *call) artifactRead() answer {
	h := c.find()
	if h == nil {
		return c.wrong("job_id", "you have no job of this id whose files are known; files are in the workspace")
	}
	d := artifactData{Name: c.args.Text("name"), Offset: c.args.Int("offset"), Encoding: c.args.Text("encoding")}
	p, err := h.Output(d.Name, d.Offset, c.args.Int("limit"))
	if errors.Is(err, fs.ErrNotExist) && d.Name == "log" { // unless an output has that name
		p, err = h.Log(d.Offset, c.args.Int("limit"))
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c.wrong("name", fmt.Sprintf("there is no %q of this job; its outputs are in its result", d.Name))
	case err != nil:
		return c.failed(err)
	}
	n := len(p.Bytes)
	for d.Content = d.encode(p.Bytes); size(d.Content) > dataBudget; d.Content = d.encode(p.Bytes[:n]) {
		n = n * 3 / 4
	}
	n = min(n, d.whole(p.Bytes[:n]))
	d.Content = d.encode(p.Bytes[:n])
	if d.Bytes, d.Stale = p.Size, p.Gone; d.Offset+int64(n) < p.Size {
		d.Next = d.Offset + int64(n)
	}
	return c.ok(d, ledger.Session{})
}

func (d *artifactData) encode(b []byte) string {
	if d.Encoding == "base64" {
		return base64.StdEncoding.EncodeToString(b)
	}
	return string(b)
}

// whole is how much of b to send: of text nothing of a last rune that is cut, so that the next read begins with it.
func (d *artifactData) whole(b []byte) int {
	for cut := 1; d.Encoding == "text" && cut < utf8.UTFMax && cut < len(b); cut++ {
		if tail := b[len(b)-cut:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return len(b) - cut
			}
			break
		}
	}
	return len(b)
}
