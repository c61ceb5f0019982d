package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
)

const (
	scheme     = "eda-sidecar://"
	maxPage    = 200       // events, sessions or jobs of one read
	maxLogRead = 64 << 10  // of one read of a log, encoded
	maxText    = 160 << 10 // of any other, encoded: it is a string in a message of at most 256 KiB
	maxRead    = 120 << 10 // of an output, which base64 makes a third longer, and of a page, whose quotes are escaped twice
	settled    = 300_000   // ms for which an answer that cannot change holds
)

// resource is one entry of the table of resources. A template ends in its query, whose variables are all optional.
type resource struct {
	template    string
	title, mime string
	read        func(*reading) error
}

// resources is that table. What is behind a name is looked up, never joined to a path.
func resources() []resource {
	const text = "application/json"
	return []resource{
		{"audit/events{?job,session,kind,after,limit}", "Audit events in the order of the chain", text, (*reading).events},
		{"sessions{?after}", "Your sessions", text, (*reading).sessions},
		{"sessions/{session_id}", "A session with its state", text, (*reading).session},
		{"jobs{?session,state,after}", "Your jobs, the newest first", text, (*reading).jobs},
		{"jobs/{job_id}", "Result of a job, or how far it is", text, (*reading).job},
		{"jobs/{job_id}/log{?offset,limit}", "What a job printed, also while it runs", "text/plain", (*reading).log},
		{"jobs/{job_id}/artifacts/{name}{?offset,limit}", "An output that a job published", "application/octet-stream", (*reading).artifact},
	}
}

// plain is the template without its query.
func (r resource) plain() string {
	plain, _, _ := strings.Cut(r.template, "{?")
	return plain
}

// uriKey is the key of the URI that a read of a resource is about, in its context.
type uriKey struct{}

// reading is one read of a resource.
type reading struct {
	*Server
	ctx  context.Context
	who  Principal
	vars map[string]string
	out  mcp.ReadResourceResult
}

// addResources lists the resources. A template without variables in its path is a resource of its own, too.
func (s *Server) addResources() {
	for _, r := range resources() {
		plain := r.plain()
		name := strings.NewReplacer("/{", "_", "}", "", "/", "_").Replace(plain)
		if !strings.Contains(plain, "{") {
			s.mcp.AddResource(&mcp.Resource{URI: scheme + plain, Name: name, Title: r.title, MIMEType: r.mime}, s.readResource)
		}
		if plain != r.template || strings.Contains(plain, "{") {
			s.mcp.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: scheme + r.template, Name: name, Title: r.title, MIMEType: r.mime}, s.readResource)
		}
	}
}

// errNoResource is a read of what does not exist, or is somebody else's.
var errNoResource = errors.New("resource not found")

// readResource reads the resource of the context. The SDK would not find one whose query has another order than its template,
// and its own answer to an unknown one has the code of era A alone.
func (s *Server) readResource(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	r := &reading{Server: s, ctx: ctx, who: principal(req.Extra)}
	uri, _ := ctx.Value(uriKey{}).(string) // the middleware has put it there
	err := errNoResource
	for _, res := range resources() {
		vars, ok := match(scheme+res.template, uri)
		if !ok || !r.who.May(Read) && !r.who.May(Admin) {
			continue
		}
		r.vars = vars
		r.out.Contents = []*mcp.ResourceContents{{URI: uri, MIMEType: res.mime}}
		err = res.read(r)
		break
	}
	var failed *job.Error
	code := int64(jsonrpc.CodeInvalidParams)
	switch {
	case err == nil:
		return &r.out, nil
	case errors.Is(err, errNoResource), errors.Is(err, fs.ErrNotExist), errors.Is(err, ledger.ErrNotFound), errors.As(err, &failed):
		if err = errNoResource; req.ProtocolVersion() < eraA {
			code = -32002
		}
	case !errors.Is(err, adapters.ErrArgument):
		code = jsonrpc.CodeInternalError
	}
	data, err2 := json.Marshal(map[string]string{"uri": uri})
	return nil, cmp.Or(err2, error(&jsonrpc.Error{Code: code, Message: err.Error(), Data: data}))
}

// match returns the variables of a URI that fits a template: whole segments, then a query with names of its list alone.
func match(template, uri string) (vars map[string]string, ok bool) {
	path, names, _ := strings.Cut(strings.TrimSuffix(template, "}"), "{?")
	if !strings.Contains(template, "{?") {
		path = template
	}
	given, query, _ := strings.Cut(uri, "?")
	values, err := url.ParseQuery(query)
	want, have := strings.Split(path, "/"), strings.Split(given, "/")
	if err != nil || len(want) != len(have) {
		return nil, false
	}
	vars = map[string]string{}
	for i, w := range want {
		name, isVar := strings.CutPrefix(w, "{")
		value, err := url.PathUnescape(have[i])
		switch {
		case isVar && err == nil && value != "":
			vars[strings.TrimSuffix(name, "}")] = value
		case isVar, w != have[i]:
			return nil, false
		}
	}
	for name, all := range values {
		if !slices.Contains(strings.Split(names, ","), name) || len(all) != 1 {
			return nil, false
		}
		vars[name] = all[0]
	}
	return vars, true
}

// number is a variable that is one, at most most; most if it is absent.
func (r *reading) number(name string, most int64) (int64, error) {
	text := r.vars[name]
	if text == "" {
		return most, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, &adapters.ArgumentError{Arg: name, Rule: fmt.Sprintf("want a number from 0 to %d", most)}
	}
	return min(n, most), nil
}

// json answers with v, whose longest lists and maps are cut to the budget; member cut says how much is missing.
func (r *reading) json(v any) error {
	data, err := generic(v)
	cut := map[string]int64{}
	for size(data) > maxText && cutData(&data, cut) {
		if object, ok := data.(map[string]any); ok {
			object["cut"] = cut
		}
	}
	text, err2 := encode(data)
	r.out.Contents[0].Text = string(text)
	return errors.Join(err, err2)
}

// errEnough ends a walk over events.
var errEnough = errors.New("enough")

func (r *reading) events() error {
	after, err := r.number("after", 1<<62)
	limit, err2 := r.number("limit", maxPage)
	if limit == 0 && err2 == nil { // an empty page has no end to go on from
		err2 = &adapters.ArgumentError{Arg: "limit", Rule: fmt.Sprintf("want a number from 1 to %d", maxPage)}
	}
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	q := ledger.Query{Job: r.vars["job"], Session: r.vars["session"], Kind: audit.Kind(r.vars["kind"]), Principal: r.who.Name}
	if r.vars["after"] != "" {
		q.After = after
	}
	if r.who.May(Admin) {
		q.Principal = ""
	}
	page := struct {
		Events []json.RawMessage `json:"events"`
		Next   int64             `json:"next_after,omitempty"`
	}{Events: []json.RawMessage{}}
	size := 0
	err = r.o.Ledger.Events(r.ctx, q, func(rec ledger.Record) error {
		if int64(len(page.Events)) >= limit || size > maxRead {
			return errEnough
		}
		page.Events, page.Next = append(page.Events, rec.Line()), rec.Seq
		size += len(rec.Body)
		return nil
	})
	if err == nil {
		page.Next = 0 // no more
	} else if !errors.Is(err, errEnough) {
		return err
	}
	return r.json(page)
}

func (r *reading) sessions() error {
	d, err := r.Server.sessions(r.ctx, r.who, r.vars["after"], maxPage, maxRead)
	return cmp.Or(err, r.json(d))
}

func (r *reading) session() error {
	row, err := r.Server.session(r.ctx, r.who, r.vars["session_id"])
	if err != nil {
		return err
	}
	return r.json(viewSessions([]ledger.Session{row}, true)[0])
}

func (r *reading) jobs() error {
	return r.json(r.Server.jobs(r.who, r.vars["session"], r.vars["state"], r.vars["after"], maxPage, maxRead))
}

func (r *reading) find() *job.Handle { return r.o.Registry.Find(r.who.asks(), r.vars["job_id"]) }

func (r *reading) job() error {
	a := answer{}
	if h := r.find(); h != nil {
		a = told(h)
	} else if res, err := r.o.Registry.Recall(r.ctx, r.who.asks(), r.vars["job_id"]); err == nil {
		a = ended(res)
	} else {
		return err
	}
	if a.pending != nil {
		return r.json(a.pending)
	}
	r.out.TTLMs = settled
	r.out.Contents[0].Text = string(structured(*a.result, resultBudget))
	return nil
}

func (r *reading) log() error { return r.part(maxLogRead, (*job.Handle).Log) }

func (r *reading) artifact() error {
	return r.part(maxRead, func(h *job.Handle, offset, limit int64) (job.Part, error) {
		return h.Output(r.vars["name"], offset, limit)
	})
}

// part reads bytes of an output or a log: text where they are, else a blob.
func (r *reading) part(most int64, read func(h *job.Handle, offset, limit int64) (job.Part, error)) error {
	h := r.find()
	if h == nil {
		return errNoResource
	}
	offset, err := r.number("offset", 1<<50)
	limit, err2 := r.number("limit", most)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	if r.vars["offset"] == "" {
		offset = 0
	}
	p, err := read(h, offset, limit)
	if err != nil {
		return err
	}
	c := r.out.Contents[0]
	c.Meta = mcp.Meta{"bytes": p.Size, "stale": p.Gone}
	if !utf8.Valid(p.Bytes) || len(p.Bytes) == 0 { // an empty text would be left out: clients demand one of both
		c.Blob = append([]byte{}, p.Bytes...)
		return nil
	}
	for c.Text = string(p.Bytes); size(c.Text) > int(min(most*4/3, maxText)); {
		c.Text = firstText(c.Text, len(c.Text)*3/4)
	}
	return nil
}
