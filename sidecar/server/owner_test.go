package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// resource reads a resource; the error is one of the protocol.
func (c *client) resource(uri string) (*mcp.ResourceContents, error) {
	r, err := c.ReadResource(c.t.Context(), &mcp.ReadResourceParams{URI: uri})
	if err != nil {
		return nil, err
	}
	return r.Contents[0], nil
}

// events returns the kinds of the events that a query shows, and the query for those behind them.
func (c *client) events(query string) (kinds []string, next int64) {
	c.t.Helper()
	r, err := c.resource("eda-sidecar://audit/events" + query)
	ok(c.t, err)
	var page struct {
		Events []struct {
			Type string
			Data map[string]any
		}
		Next int64 `json:"next_after"`
	}
	ok(c.t, json.Unmarshal([]byte(r.Text), &page))
	for _, e := range page.Events {
		kinds = append(kinds, strings.TrimPrefix(e.Type, "io.eda-sidecar."))
	}
	return kinds, page.Next
}

// TestAdmin: who has admin sees and ends what is others', as far as its other capabilities go, and the events name it.
func TestAdmin(t *testing.T) {
	w := newWorld(t)
	alice, chief, master := w.connect("a", "alice"), w.connect("a", "chief"), w.connect("b", "master")
	session := alice.call("session_open", args{"name": "one"}, job.OK).Session
	script, _ := w.gated("long")
	id := alice.call("shell_run", args{"session_id": session, "script": script, "out": "a.txt", "detach": true}, "").Job
	chief.call("job_wait", args{"job_id": id, "wait_seconds": 0}, "")
	chief.call("session_close", args{"session_id": session}, job.Denied)
	for _, call := range []struct{ tool, resource string }{{"job_list", "jobs"}, {"session_show", "sessions"}} {
		a := chief.call(call.tool, args{}, job.OK)
		r, err := chief.resource("eda-sidecar://" + call.resource)
		if ok(t, err); !strings.Contains(string(a.raw), `"owner":"alice"`) || !strings.Contains(r.Text, `"owner":"alice"`) {
			t.Errorf("%s: %s, %s", call.tool, a.raw, r.Text)
		}
	}
	if a := master.call("job_cancel", args{"job_id": id}, job.CodeCancelled); !strings.Contains(a.Message, "master cancelled") {
		t.Errorf("got %q", a.Message)
	}
	master.call("shell_run", args{"session_id": session, "script": script, "out": "a.txt"}, job.Denied) // it hands over code
	master.call("yosys_synth", args{"session_id": session, "sources": []string{"rtl/counter.v"}, "top": "counter", "netlist": "c.json"}, job.SessionNotFound)
	master.call("session_close", args{"session_id": session}, job.OK)
	r, err := alice.resource("eda-sidecar://audit/events?session=" + session)
	if ok(t, err); strings.Count(r.Text, `"by":"master"`) != 2 || !strings.Contains(r.Text, "master cancelled the call") {
		t.Errorf("alice's events: %s", r.Text)
	}
}

// TestOwnership: what is another's looks the same as what does not exist.
func TestOwnership(t *testing.T) {
	w := newWorld(t)
	const unknown = "01920000-0000-7000-8000-000000000000"
	for era := range eras {
		alice, bob := w.connect(era, "alice"), w.connect(era, "bob")
		session := alice.call("session_open", args{"name": era}, job.OK).Session
		script := w.script("a.sh", "echo new > $1; echo done")
		id := alice.call("shell_run", args{"session_id": session, "script": script, "out": era + ".txt"}, job.OK).Job
		for _, call := range []struct {
			tool      string
			arguments args
		}{
			{"job_wait", args{"job_id": id}},
			{"job_cancel", args{"job_id": id}},
			{"artifact_read", args{"job_id": id, "name": "out"}},
			{"artifact_read", args{"job_id": id, "name": "log"}},
			{"session_show", args{"session_id": session}},
			{"session_close", args{"session_id": session}},
			{"shell_run", args{"session_id": session, "script": script, "out": "other.txt"}},
		} {
			foreign, err := bob.try(t.Context(), call.tool, call.arguments)
			ok(t, err)
			real := ""
			for name, value := range call.arguments {
				if value == id || value == session {
					real, call.arguments[name] = fmt.Sprint(value), unknown
				}
			}
			none, err := bob.try(t.Context(), call.tool, call.arguments)
			ok(t, err)
			if want := strings.ReplaceAll(none.Message, unknown, real); foreign.Code != none.Code || foreign.Message != want || foreign.Code == job.OK {
				t.Errorf("%s: of another's %s %q, of none %s %q", call.tool, foreign.Code, foreign.Message, none.Code, want)
			}
		}
		for _, uri := range []string{"jobs/%s", "jobs/%s/log", "jobs/%s/artifacts/out", "sessions/%s"} {
			uri = "eda-sidecar://" + uri
			real := id
			if strings.Contains(uri, "sessions") {
				real = session
			}
			if _, err := alice.resource(fmt.Sprintf(uri, real)); err != nil {
				t.Errorf("%s: %v", uri, err)
			}
			for _, id := range []string{real, unknown} {
				var failure *jsonrpc.Error
				want := map[string]int64{"a": jsonrpc.CodeInvalidParams, "b": -32002}[era]
				if _, err := bob.resource(fmt.Sprintf(uri, id)); !errors.As(err, &failure) || failure.Code != want || failure.Message != "resource not found" {
					t.Errorf("%s: got %v, want code %d", uri, err, want)
				}
			}
		}
		if kinds, _ := bob.events("?job=" + id); kinds != nil {
			t.Errorf("bob sees %q", kinds)
		}
		if kinds, _ := alice.events("?job=" + id); !slices.Equal(kinds, []string{"allow", "start", "commit"}) {
			t.Errorf("alice sees %q", kinds)
		}
		if kinds, _ := w.connect(era, "chief").events("?job=" + id); len(kinds) != 3 {
			t.Errorf("who may see all sees %q", kinds)
		}
		var jobs struct{ Jobs []any }
		bob.call("job_list", args{"state": "done", "session_id": session}, job.OK).data(t, &jobs)
		if len(jobs.Jobs) != 0 {
			t.Errorf("bob lists %v", jobs)
		}
	}
}

// TestForeignSession: an MCP session of era B is its opener's alone.
func TestForeignSession(t *testing.T) {
	w := newWorld(t)
	c := w.connect("b", "alice")
	for user, want := range map[string]int{"alice": 202, "bob": 403} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url, strings.NewReader(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"none"}}`))
		ok(t, err)
		headers(r, user, "", args{})
		r.Header.Set("Mcp-Protocol-Version", eras["b"])
		r.Header.Set("Mcp-Session-Id", c.ID())
		resp, err := http.DefaultClient.Do(r)
		ok(t, err)
		ok(t, resp.Body.Close())
		if resp.StatusCode != want {
			t.Errorf("%s gets %d, want %d", user, resp.StatusCode, want)
		}
	}
}

// TestDenied: a lack of a capability is an answer, and recorded.
func TestDenied(t *testing.T) {
	w := newWorld(t)
	w.script("a.sh", "echo done")
	for _, tc := range []struct {
		user, tool string
		arguments  args
		want       string
	}{
		{"reader", "yosys_synth", args{"session_id": "default", "sources": []string{"rtl/counter.v"}, "top": "counter", "netlist": "a.json"}, `capability "mutate"`},
		{"reader", "session_open", args{}, `capability "mutate"`},
		{"plain", "shell_run", args{"script": "a.sh"}, `capability "script"`},
	} {
		c := w.connect("a", tc.user)
		a := c.call(tc.tool, tc.arguments, job.Denied)
		if !strings.Contains(a.Message, tc.want) {
			t.Errorf("%s: %q", tc.tool, a.Message)
		}
		w.connect("a", "alice").call("session_open", args{}, job.OK) // a denial costs no sync: it goes with the next event
		if kinds, _ := c.events("?kind=deny&job=" + a.Job); len(kinds) != 1 {
			t.Errorf("%s: events %q", tc.tool, kinds)
		}
	}
}

// TestEvents: the query may have any order, and pages add up.
func TestEvents(t *testing.T) {
	w := newWorld(t)
	c := w.connect("b", "alice")
	for i := range 3 {
		c.call("session_open", args{"name": fmt.Sprint(i)}, job.OK)
	}
	a := c.call("shell_run", args{"session_id": "default", "script": w.script("a.sh", "echo x > $1; echo done"), "out": "a.txt"}, job.OK)
	all, next := c.events("")
	if len(all) != 9 || next != 0 {
		t.Errorf("%d events, next %d", len(all), next)
	}
	var paged []string
	for after := int64(0); ; {
		kinds, next := c.events(fmt.Sprintf("?limit=4&after=%d", after))
		if paged = append(paged, kinds...); next == 0 {
			break
		}
		after = next
	}
	if !slices.Equal(paged, all) {
		t.Errorf("in pages %q, at once %q", paged, all)
	}
	if kinds, _ := c.events("?session=" + a.Session + "&job=" + a.Job); len(kinds) != 3 {
		t.Errorf("in another order: %q", kinds)
	}
	r, err := c.resource("eda-sidecar://audit/events?kind=commit&job=" + a.Job)
	ok(t, err)
	if !strings.Contains(r.Text, `"request_id":"`) || strings.Contains(r.Text, `"request_id":""`) {
		t.Errorf("no request id in %s", r.Text)
	}
	for _, bad := range []string{"?job=a&job=b", "?jobs=a", "?limit=x", "?limit=0", "/", "?limit=-1"} {
		if r, err := c.resource("eda-sidecar://audit/events" + bad); err == nil {
			t.Errorf("%s is answered with %s", bad, r.Text)
		}
	}
}

// TestPages: however long what is listed is, nothing falls between two pages.
func TestPages(t *testing.T) {
	w := newWorld(t)
	var all sync.WaitGroup
	want := make([]string, 520)
	for i := range want {
		all.Go(func() {
			row, err := w.engine.Runner.OpenSession(context.Background(), "alice", strings.Repeat(`"`, 125)+fmt.Sprintf("%03d", i))
			if want[i] = row.ID; err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	slices.Sort(want)
	c := w.connect("a", "alice")
	type list struct {
		Sessions []struct {
			ID string `json:"session_id"`
		}
		Next string `json:"next_cursor"`
		Cut  any
	}
	for name, read := range map[string]func(after string) (p list){
		"tool": func(after string) (p list) {
			arguments := args{}
			if after != "" {
				arguments["cursor"] = after
			}
			a := c.call("session_show", arguments, job.OK)
			a.data(t, &p)
			if len(a.cut) > 0 {
				p.Cut = a.cut
			}
			return p
		},
		"resource": func(after string) (p list) {
			if after != "" {
				after = "?after=" + after
			}
			r, err := c.resource("eda-sidecar://sessions" + after)
			ok(t, err)
			ok(t, json.Unmarshal([]byte(r.Text), &p))
			return p
		},
	} {
		var got []string
		for after := ""; ; {
			p := read(after)
			for _, s := range p.Sessions {
				got = append(got, s.ID)
			}
			if p.Cut != nil {
				t.Errorf("%s: a page is cut: %v", name, p.Cut)
			}
			if after = p.Next; after == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: in pages %d sessions, want %d", name, len(got), len(want))
		}
	}
}

// TestResources: what is listed can be read.
func TestResources(t *testing.T) {
	w := newWorld(t)
	c := w.connect("a", "alice")
	a := c.call("shell_run", args{"session_id": "default", "script": w.script("a.sh", `echo abc > $1; printf '\377x\n'`), "out": "a.txt"}, job.OK)
	list, err := c.ListResources(t.Context(), nil)
	ok(t, err)
	templates, err := c.ListResourceTemplates(t.Context(), nil)
	ok(t, err)
	var uris []string
	for _, r := range list.Resources {
		uris = append(uris, r.URI)
	}
	for _, r := range templates.ResourceTemplates {
		uri, _, _ := strings.Cut(r.URITemplate, "{?")
		uris = append(uris, strings.NewReplacer("{session_id}", a.Session, "{job_id}", a.Job, "{name}", "out").Replace(uri))
	}
	if len(uris) != 10 {
		t.Errorf("%d resources: %q", len(uris), uris)
	}
	for _, content := range a.Content {
		if link, isLink := content.(*mcp.ResourceLink); isLink {
			uris = append(uris, link.URI)
		}
	}
	for _, uri := range uris {
		r, err := c.resource(uri)
		if err != nil || len(r.Text)+len(r.Blob) == 0 {
			t.Errorf("%s: %v, %v", uri, r, err)
		}
	}
	r, err := c.resource("eda-sidecar://jobs/" + a.Job + "/artifacts/out?limit=1&offset=1")
	if err != nil || r.Text != "b" {
		t.Errorf("got %+v, %v", r, err)
	}
	r, err = c.resource("eda-sidecar://jobs/" + a.Job + "/log?limit=2")
	if err != nil || string(r.Blob) != "\xffx" {
		t.Errorf("got %+v, %v", r, err)
	}
	for _, empty := range []string{"/log?limit=0", "/log?offset=100000", "/artifacts/out?offset=4", "/artifacts/out?limit=0"} {
		if r, err := c.resource("eda-sidecar://jobs/" + a.Job + empty); err != nil || r.Blob == nil || len(r.Text)+len(r.Blob) > 0 {
			t.Errorf("%s: %+v, %v", empty, r, err)
		}
	}
	for _, bad := range []string{"eda-sidecar://jobs/" + a.Job + "/artifacts/..%2f..%2flog", "eda-sidecar://jobs//log", "file:///etc/passwd", "eda-sidecar://jobs/" + a.Job + "/artifacts/none"} {
		if r, err := c.resource(bad); err == nil {
			t.Errorf("%s is answered with %+v", bad, r)
		}
	}
}

// TestOtherTransports: a pipe, in either era, and memory.
func TestOtherTransports(t *testing.T) {
	w := newWorld(t)
	for era := range eras {
		c, closePipe := w.pipe(era, "alice")
		c.call("session_open", args{"name": "piped"}, job.OK)
		if kinds, _ := c.events(""); len(kinds) == 0 {
			t.Error("no events")
		}
		closePipe()
	}
	transport, err := w.server.Connect(context.Background(), principalOf("alice"))
	ok(t, err)
	c := connect(t, "a", transport)
	if a := c.call("session_open", args{"name": "piped"}, job.OK); a.Session == "" {
		t.Error(a.text)
	}
	ok(t, c.Close())
}

// TestPipe: what no message may be is answered, and the pipe goes on.
func TestPipe(t *testing.T) {
	w := newWorld(t)
	in, theirs := io.Pipe()
	lines, out := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- w.server.ServeStdio(ctx, in, out, principalOf("alice")) }()
	defer time.AfterFunc(30*time.Second, func() { _ = lines.CloseWithError(context.DeadlineExceeded) }).Stop() // else it would wait for ever
	answers := bufio.NewReader(lines)
	large := strings.Repeat("x", 500_000)
	call := func(id int, name string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"session_open","arguments":{"name":%q}}}`, id, name)
	}
	for _, step := range []struct{ send, want string }{
		{call(1, large), `"id":1,"error":{"code":-32600,"message":"message of 500`},
		{`{"jsonrpc":"2.0","id":2,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, `"id":2,"result":{`},
		{`{"jsonrpc":"2.0","method":"notifications/initialized"}`, ""},
		{call(3, large), `"code":"INVALID_ARGUMENT"`},
		{`{"jsonrpc":`, `"id":null,"error":{"code":-32700`},
		{"[" + call(4, "x") + "]", `"id":null,"error":{"code":-32600`},
		{`{"jsonrpc":"1.0","id":5,"method":"ping"}`, `"error":{"code":-3`},
		{call(6, large+large+large), `"id":6,"error":{"code":-32600`},
		{call(7, "piped"), `"code":"OK"`},
	} {
		_, err := io.WriteString(theirs, step.send+"\n")
		ok(t, err)
		if step.want == "" {
			continue
		}
		line, err := answers.ReadString('\n')
		ok(t, err)
		if !strings.Contains(line, step.want) || !json.Valid([]byte(line)) {
			t.Errorf("%.100s: got %.300s, want %s", step.send, line, step.want)
		}
	}
	cancel()
	ok(t, within(t, "the server ends, though the client is still there", served))
	ok(t, theirs.Close())
}

// TestBrokenPipe: a client that does not read any more is gone.
func TestBrokenPipe(t *testing.T) {
	w := newWorld(t)
	in, theirs := io.Pipe()
	lines, out := io.Pipe()
	ok(t, lines.Close())
	served := make(chan error, 1)
	go func() { served <- w.server.ServeStdio(t.Context(), in, out, principalOf("alice")) }()
	_, err := io.WriteString(theirs, "{\n")
	ok(t, err)
	ok(t, within(t, "the server notices", served))
	ok(t, theirs.Close())
}

// TestTokensAreNowhere: no token reaches what others can read.
func TestTokensAreNowhere(t *testing.T) {
	w := newWorld(t)
	w.connect("a", "alice").call("session_open", args{"name": "x"}, job.OK)
	resp, err := w.post(t.Context(), "nobody", "ping", args{})
	ok(t, err)
	said, err := io.ReadAll(resp.Body)
	ok(t, err)
	events, err := w.connect("b", "chief").resource("eda-sidecar://audit/events")
	ok(t, err)
	var text strings.Builder
	text.WriteString(string(said) + events.Text)
	for len(w.notices) > 0 {
		text.WriteString(fmt.Sprintf("%+v", <-w.notices))
	}
	if !strings.Contains(text.String(), "request without a valid token") {
		t.Error("no notice of a wrong token")
	}
	for _, user := range []string{"alice", "nobody", "chief"} {
		if strings.Contains(text.String(), token(user)) {
			t.Errorf("the token of %s is in %s", user, text.String())
		}
	}
}
