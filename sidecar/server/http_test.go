package server_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/server"
)

// body is a request's body that notices whether it is read.
type body struct {
	io.Reader
	read bool
}

func (b *body) Read(p []byte) (int, error) {
	b.read = true
	return b.Reader.Read(p)
}

// TestRefusals: what is refused before anything is done with it, and how.
func TestRefusals(t *testing.T) {
	w := newWorld(t, func(o *server.Options) { o.Limits.BodyTimeout = 300 * time.Millisecond })
	host := strings.TrimSuffix(strings.TrimPrefix(w.url, "http://"), "/mcp")
	deep := strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000)
	large := strings.Repeat("x", 1<<20)
	set := func(pairs ...string) func(*http.Request) {
		return func(r *http.Request) {
			for i := 0; i < len(pairs); i += 2 {
				r.Header.Set(pairs[i], pairs[i+1])
			}
		}
	}
	slow, never := io.Pipe()
	defer time.AfterFunc(10*time.Second, func() { _ = never.Close() }).Stop() // else a server that waits for it would hang the test
	for _, tc := range []struct {
		name   string
		text   string
		change func(*http.Request)
		status int
		want   string // in the answer
	}{
		{"good", "", nil, 200, `"code":"OK"`},
		{"good_origin", "", set("Origin", "http://"+host), 200, `"code":"OK"`},
		{"localhost", "", func(r *http.Request) { r.Host = strings.Replace(host, "127.0.0.1", "LOCALHOST", 1) }, 200, `"code":"OK"`},
		{"evil_host", "", func(r *http.Request) { r.Host = "evil.example" }, 403, "host"},
		{"other_port", "", func(r *http.Request) { r.Host = "127.0.0.1:1" }, 403, "host"},
		{"evil_origin", "", set("Origin", "http://evil.example"), 403, "origin"},
		{"null_origin", "", set("Origin", "null"), 403, "origin"},
		{"second_origin", "", func(r *http.Request) { r.Header["Origin"] = []string{"http://" + host, "http://evil.example"} }, 403, "origin"},
		{"rebound", "", func(r *http.Request) { r.Host = "evil.example"; r.Header.Set("Origin", "http://evil.example") }, 403, "host"},
		{"origin_on_get", "", func(r *http.Request) { r.Method = "GET"; r.Header.Set("Origin", "http://evil.example") }, 403, "origin"},
		{"path", "", func(r *http.Request) { r.URL.Path = "/metrics" }, 404, ""},
		{"no_token", "", func(r *http.Request) { r.Header.Del("Authorization") }, 401, "token is needed"},
		{"wrong_token", "", set("Authorization", "Bearer "+strings.Repeat("x", 40)), 401, "not valid"},
		{"other_scheme", "", set("Authorization", "Basic "+token("alice")), 401, "token is needed"},
		{"batch", " [" + message("ping", args{}) + "]", nil, 400, `-32600`},
		{"deep", deep, nil, 400, `-3`},
		{"name_twice", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":1,"\u0061":2}}`, nil, 400, `two members`},
		{"fraction", `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, nil, 400, `-32600`},
		{"no_json", `{"jsonrpc":`, nil, 400, `-32700`},
		{"empty", " ", nil, 400, `-32700`},
		{"large_declared", `{"a":"` + large + `"}`, nil, 413, `"limit_bytes":1048576`},
		{"large_chunked", `{"a":"` + large + `"}`, func(r *http.Request) { r.ContentLength = -1 }, 413, `"limit_bytes":1048576`},
		{"large_catalogue", `{"a":"` + large[:80_000] + `"}`, func(r *http.Request) { r.Header.Del("Mcp-Method") }, 413, `"limit_bytes":65536`},
		{"slow", "", func(r *http.Request) { r.Body, r.ContentLength = slow, 100 }, 408, "in time"},
		{"version", "", set("Mcp-Protocol-Version", "2099-01-01"), 400, ""},
		{"method_header", "", set("Mcp-Method", "ping"), 400, "-32"},
		{"method", message("tools/none", args{}), set("Mcp-Method", "tools/none"), 404, "-32601"},
		{"prompts", message("prompts/list", args{}), set("Mcp-Method", "prompts/list"), 404, "-32601"},
		{"whole_read", message("resources/read", args{"uri": "eda-sidecar://jobs"}), set("Mcp-Method", "resources/read", "Mcp-Name", "eda-sidecar://jobs"), 200, `"resultType":"complete"`},
		{"delete_in_era_a", "", func(r *http.Request) { r.Method = "DELETE" }, 405, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			params := args{"name": "job_list", "arguments": args{}}
			text := tc.text
			if text == "" {
				text = message("tools/call", params)
			}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url, strings.NewReader(text))
			ok(t, err)
			headers(r, "alice", "tools/call", params)
			if tc.change != nil {
				tc.change(r)
			}
			resp, err := http.DefaultClient.Do(r)
			ok(t, err)
			defer func() { _ = resp.Body.Close() }() // read
			got, err := io.ReadAll(resp.Body)
			ok(t, err)
			if resp.StatusCode != tc.status || !strings.Contains(string(got), tc.want) {
				t.Errorf("got %d %q, want %d with %q", resp.StatusCode, got, tc.status, tc.want)
			}
			if challenge := resp.Header.Get("WWW-Authenticate"); (challenge != "") != (tc.status == 401) {
				t.Errorf("WWW-Authenticate is %q", challenge)
			}
			if resp.Header.Get("Access-Control-Allow-Origin") != "" {
				t.Error("a CORS header")
			}
		})
	}
}

// TestHosts: who can reach the listener by a name of its own is answered, also where the port is a default one.
func TestHosts(t *testing.T) {
	var o server.Options
	newWorld(t, func(p *server.Options) { o = *p })
	o.Unchecked = true
	for _, tc := range []struct {
		listen  string
		allowed []string
		good    []string
		bad     []string
	}{
		{"127.0.0.2:8080", nil, []string{"127.0.0.2:8080", "localhost:8080", "127.0.0.1:8080", "[::1]:8080"}, []string{"127.0.0.2", "127.0.0.3:8080", "localhost:80", ""}},
		{"[::1]:80", nil, []string{"[::1]", "[::1]:80", "Localhost", "localhost:80", "127.0.0.1"}, []string{"::1", "localhost:8080", "evil.example", ""}},
		{"127.0.0.1:443", nil, []string{"localhost", "localhost:443"}, []string{"localhost:8443", "localhost:"}},
		{"127.0.0.1:8080", []string{"eda.example", "a.example:8443"}, []string{"EDA.example", "eda.example:443", "a.example:8443"}, []string{"a.example", "localhost:8080", "127.0.0.1:8080"}},
		{"", nil, nil, []string{"localhost", "localhost:80", ""}},
	} {
		o.Listen, o.AllowedHosts = tc.listen, tc.allowed
		s, err := server.New(o)
		ok(t, err)
		status := func(host, origin string) int {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/elsewhere", nil)
			if r.Host = host; origin != "" {
				r.Header.Set("Origin", origin)
			}
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, r)
			return w.Code
		}
		for _, host := range tc.good {
			if got := status(host, ""); got != http.StatusNotFound {
				t.Errorf("listening on %q: host %q gets %d", tc.listen, host, got)
			}
			want := http.StatusNotFound
			if tc.allowed != nil { // no loopback name: no page is trusted
				want = http.StatusForbidden
			}
			if got := status(tc.good[0], "http://"+host); got != want {
				t.Errorf("listening on %q: origin http://%s gets %d, want %d", tc.listen, host, got, want)
			}
		}
		for _, host := range tc.bad {
			if got := status(host, ""); got != http.StatusForbidden {
				t.Errorf("listening on %q: host %q gets %d", tc.listen, host, got)
			}
			if got := status(tc.listen, "http://"+host); got != http.StatusForbidden {
				t.Errorf("listening on %q: origin http://%s gets %d", tc.listen, host, got)
			}
		}
	}
}

// TestBodyOfNobody: of a request without a valid token not a byte of the body is read.
func TestBodyOfNobody(t *testing.T) {
	w := newWorld(t)
	transport := &http.Transport{ExpectContinueTimeout: time.Minute}
	defer transport.CloseIdleConnections()
	for _, user := range []string{"nobody", "alice"} {
		b := &body{Reader: strings.NewReader(message("ping", args{}))}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url, b)
		ok(t, err)
		headers(r, user, "ping", args{})
		r.Header.Set("Expect", "100-continue")
		r.ContentLength = int64(len(message("ping", args{})))
		resp, err := transport.RoundTrip(r)
		ok(t, err)
		ok(t, resp.Body.Close())
		if known := user != "nobody"; b.read != known || (resp.StatusCode != 401) != known {
			t.Errorf("%s: status %d, body read: %t", user, resp.StatusCode, b.read)
		}
	}
}

// TestOpenCalls: beyond its share a principal is turned away, and others are not.
func TestOpenCalls(t *testing.T) {
	w := newWorld(t, func(o *server.Options) { o.Limits.CallsPerPrincipal = 1 })
	script, open := w.gated("long")
	first := make(chan error, 1)
	go func() {
		resp, err := w.post(t.Context(), "alice", "tools/call", args{"name": "shell_run", "arguments": args{"session_id": "default", "script": script, "out": "build/out.txt"}})
		if err == nil {
			_, err = io.ReadAll(resp.Body)
		}
		first <- err
	}()
	until(t, "the job runs", func() bool { return len(w.registry.List(job.Who{Name: "alice"})) == 1 })
	status := func(user string) int {
		resp, err := w.post(t.Context(), user, "tools/list", args{})
		ok(t, err)
		ok(t, resp.Body.Close())
		if again := resp.Header.Get("Retry-After"); (again != "") != (resp.StatusCode == 503) {
			t.Errorf("Retry-After %q", again)
		}
		return resp.StatusCode
	}
	if a, b := status("alice"), status("bob"); a != 503 || b != 200 {
		t.Errorf("alice gets %d, bob %d", a, b)
	}
	open()
	ok(t, <-first)
	until(t, "the call has left", func() bool { return status("alice") == 200 })
}

// TestUnheardCalls: a call of era B goes on when its stream is closed, and is counted for as long.
func TestUnheardCalls(t *testing.T) {
	w := newWorld(t, func(o *server.Options) { o.Limits.CallsPerPrincipal = 2 })
	c := w.connect("b", "alice")
	script, open := w.gated("long")
	id := c.call("shell_run", args{"session_id": "default", "script": script, "out": "a.txt", "detach": true}, "").Job
	for _, n := range []string{"1", "2"} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, strings.NewReader(
			`{"jsonrpc":"2.0","id":"w`+n+`","method":"tools/call","params":{"name":"job_wait","arguments":{"job_id":"`+id+`"},"_meta":{"progressToken":1}}}`))
		ok(t, err)
		headers(r, "alice", "", args{})
		r.Header.Set("Mcp-Protocol-Version", eras["b"])
		r.Header.Set("Mcp-Session-Id", c.ID())
		resp, err := http.DefaultClient.Do(r) // returns at the first progress
		ok(t, err)
		cancel()
		ok(t, resp.Body.Close())
	}
	until(t, "the request ends", func() bool {
		a, err := c.try(t.Context(), "job_list", args{})
		return err == nil && a.Code == job.Busy
	})
	open()
	until(t, "the call ends", func() bool {
		a, err := c.try(t.Context(), "job_list", args{})
		return err == nil && a.Code == job.OK
	})
}

// TestRates: who sends too much is told when to come back, and others are not.
func TestRates(t *testing.T) {
	w := newWorld(t, func(o *server.Options) { o.Limits.Rate = 1 })
	status := func(user string) (code int, again string) {
		resp, err := w.post(t.Context(), user, "tools/list", args{})
		ok(t, err)
		ok(t, resp.Body.Close())
		return resp.StatusCode, resp.Header.Get("Retry-After")
	}
	for n, want := range []int{200, 200, 200, 429} {
		if got, again := status("alice"); got != want || (again == "1") != (want == 429) {
			t.Errorf("request %d: %d, Retry-After %q; want %d", n, got, again, want)
		}
	}
	for n := range 12 {
		want := 401
		if n >= 10 {
			want = 429
		}
		if got, again := status("nobody"); got != want || (again != "") != (want == 429) {
			t.Errorf("failure %d: %d, Retry-After %q; want %d", n, got, again, want)
		}
	}
	if got, _ := status("bob"); got != 200 {
		t.Errorf("bob gets %d", got)
	}
}

// TestSessions: MCP sessions are bounded, and one that was closed makes room.
func TestSessions(t *testing.T) {
	w := newWorld(t, func(o *server.Options) { o.Limits.SessionsPerPrincipal = 2 })
	first := w.connect("b", "alice")
	w.connect("b", "alice")
	request := func(user string) *http.Request {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url, strings.NewReader(
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`))
		ok(t, err)
		headers(r, user, "", args{})
		r.Header.Del("Mcp-Protocol-Version")
		return r
	}
	initialize := func(user string) int {
		resp, err := http.DefaultClient.Do(request(user))
		ok(t, err)
		ok(t, resp.Body.Close())
		return resp.StatusCode
	}
	if a, b := initialize("alice"), initialize("bob"); a != 503 || b != 200 {
		t.Errorf("alice gets %d, bob %d", a, b)
	}
	ok(t, first.Close())
	if a := initialize("alice"); a != 200 {
		t.Errorf("after one was closed: %d", a)
	}
	// also while the first two are being made
	began, release := make(chan struct{}), make(chan struct{})
	var two sync.WaitGroup
	for range 2 {
		r := request("plain")
		two.Go(func() { w.server.Handler().ServeHTTP(&held{httptest.NewRecorder(), began, release}, r) })
		within(t, "the answer begins", began)
	}
	third := initialize("plain")
	close(release)
	if two.Wait(); third != 503 {
		t.Errorf("beside two that are being made: %d", third)
	}
}

// held is a client to which nothing can be written before it is released.
type held struct {
	*httptest.ResponseRecorder
	began   chan<- struct{}
	release <-chan struct{}
}

func (h *held) Write(b []byte) (int, error) {
	select {
	case h.began <- struct{}{}:
		<-h.release
	case <-h.release:
	}
	return h.ResponseRecorder.Write(b)
}

// TestPanic: a panic in a request is its answer, and the server goes on.
func TestPanic(t *testing.T) {
	w := newWorld(t, func(o *server.Options) { o.Ledger = nil })
	for era := range eras {
		c := w.connect(era, "alice")
		c.call("session_show", args{}, job.Internal)
		if _, err := c.resource("eda-sidecar://audit/events"); err == nil || !strings.Contains(err.Error(), "internal error") {
			t.Errorf("got %v", err)
		}
		c.call("job_list", args{}, job.OK)
	}
}

// TestDrain: a server that drains takes no new calls, and still answers for the old ones.
func TestDrain(t *testing.T) {
	w := newWorld(t)
	c := w.connect("b", "alice")
	script, open := w.gated("long")
	id := c.call("shell_run", args{"session_id": "default", "script": script, "out": "build/out.txt", "detach": true}, "").Job
	w.server.Drain()
	for _, tool := range []string{"session_open", "shell_run", "none"} {
		if _, err := c.try(t.Context(), tool, nil); err == nil {
			t.Errorf("%s is answered while the server drains", tool)
		}
		c = w.connect("b", "alice") // a refusal ends a client's session
	}
	open()
	c.call("job_wait", args{"job_id": id}, job.OK)
	c.call("job_list", nil, job.OK)
	c.call("session_show", nil, job.OK)
	c.call("artifact_read", args{"job_id": id, "name": "out"}, job.OK)
}

// TestTokens: what is wrong with a list is said.
func TestTokens(t *testing.T) {
	good := strings.Repeat("a", 64)
	for _, tc := range []struct {
		name string
		list []server.Token
		want string
	}{
		{"empty", nil, "no token that is valid"},
		{"plain_text", []server.Token{{Name: "a", SHA256: "secret"}}, "64 hex"},
		{"twice", []server.Token{{Name: "a", SHA256: good}, {Name: "b", SHA256: strings.ToUpper(good)}}, "twice"},
		{"nameless", []server.Token{{SHA256: good}}, "name"},
		{"capability", []server.Token{{Name: "a", SHA256: good, Capabilities: []server.Capability{"root"}}}, "capability"},
		{"expired", []server.Token{{Name: "a", SHA256: good, NotAfter: time.Unix(1, 0)}}, "no token that is valid"},
	} {
		if _, err := server.Tokens(tc.list); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.want)
		}
	}
	old := server.Token{Name: "old", SHA256: digest(token("old")), NotAfter: time.Unix(1, 0)}
	short := server.Token{Name: "short", SHA256: digest("short")}
	auth, err := server.Tokens([]server.Token{old, short, {Name: "good", SHA256: digest(token("good"))}})
	ok(t, err)
	for text, want := range map[string]string{token("old"): "", "short": "", token("good"): "good", "": ""} {
		if p, err := auth(http.Header{"Authorization": {"bearer " + text}}); p.Name != want || (err == nil) != (want != "") {
			t.Errorf("token %q is of %q, %v", text, p.Name, err)
		}
	}
	p, err := server.Local(server.Read, server.Mutate)(http.Header{})
	if text, _ := json.Marshal(p); err != nil || string(text) != `{"Name":"local","Capabilities":["read","mutate"]}` { // a struct of strings
		t.Errorf("local is %s, %v", text, err)
	}
}
