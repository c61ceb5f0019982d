package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/server"
)

// villain leaves its session and its parent, ignores SIGTERM, and writes to its target for as long as it lives.
const villain = `trap '' TERM
setsid sh -c 'trap "" TERM; (while :; do echo more >> "$1"; sleep 0.01; done) & (setsid sh -c "while :; do sleep 1; done" &)' sh "$1" &
while :; do sleep 1; done`

// staged waits until a job writes to its first slot.
func (w *world) staged() {
	w.t.Helper()
	until(w.t, "the tool writes", func() bool {
		found, err := filepath.Glob(w.path(".eda-sidecar/jobs/*/s0/*"))
		ok(w.t, err)
		return len(found) > 0
	})
}

// post sends one message of era A as a client would that knows no SDK.
func (w *world) post(ctx context.Context, user, method string, params map[string]any) (*http.Response, error) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, strings.NewReader(message(method, params)))
	ok(w.t, err)
	headers(r, user, method, params)
	return http.DefaultClient.Do(r)
}

func message(method string, params map[string]any) string {
	params["_meta"] = map[string]any{"io.modelcontextprotocol/protocolVersion": eras["a"], "io.modelcontextprotocol/clientCapabilities": map[string]any{}}
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": "r-7", "method": method, "params": params})
	if err != nil {
		panic(err)
	}
	return string(body)
}

func headers(r *http.Request, user, method string, params map[string]any) {
	for name, value := range map[string]string{
		"Authorization": "Bearer " + token(user), "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": eras["a"], "Mcp-Method": method,
	} {
		r.Header.Set(name, value)
	}
	if name, isCall := params["name"].(string); isCall {
		r.Header.Set("Mcp-Name", name)
	}
}

// TestCancel: however an era cancels, every process of the call is dead before the caller can know, and nothing has changed.
func TestCancel(t *testing.T) {
	for _, tc := range []struct {
		name   string
		cancel func(w *world, arguments args) // calls, waits until the tool writes, and cancels
	}{
		{"a_stream_closed", func(w *world, arguments args) {
			ctx, cancel := context.WithCancel(w.t.Context())
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				resp, err := w.post(ctx, "alice", "tools/call", map[string]any{"name": "shell_run", "arguments": arguments})
				if err == nil {
					_, err = io.ReadAll(resp.Body)
				}
				if !errors.Is(err, context.Canceled) {
					w.t.Errorf("answered: %v", err)
				}
			}()
			w.staged()
			cancel()
			<-gone
		}},
		{"b_notification", func(w *world, arguments args) {
			c := w.connect("b", "alice")
			ctx, cancel := context.WithCancel(w.t.Context())
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				if _, err := c.try(ctx, "shell_run", arguments); !errors.Is(err, context.Canceled) {
					w.t.Errorf("answered: %v", err)
				}
			}()
			w.staged()
			cancel()
			<-gone
		}},
		{"b_delete", func(w *world, arguments args) {
			c := w.connect("b", "alice")
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				_, _ = c.try(w.t.Context(), "shell_run", arguments) // it may be answered, or not
			}()
			w.staged()
			w.end(c)
			if left := w.alive(); len(left) > 0 {
				w.t.Errorf("alive when DELETE is answered: %q", left)
			}
			within(w.t, "the call ends", gone)
		}},
		{"job_cancel", func(w *world, arguments args) {
			c := w.connect("b", "alice")
			arguments["detach"] = true
			id := c.call("shell_run", arguments, "").Job
			w.staged()
			if a := c.call("job_cancel", args{"job_id": id}, job.CodeCancelled); len(w.alive()) > 0 || !a.RolledBack {
				w.t.Errorf("alive at the answer: %q; %s", w.alive(), a.raw)
			}
		}},
		{"pipe_closed", func(w *world, arguments args) {
			c, closePipe := w.pipe("b", "alice")
			gone := make(chan error, 1)
			go func() {
				_, err := c.try(w.t.Context(), "shell_run", arguments)
				gone <- err
			}()
			w.staged()
			closePipe()
			if err := within(w.t, "the call ends", gone); err == nil {
				w.t.Error("answered")
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			w.write("build/out.txt", "old\n")
			tc.cancel(w, args{"session_id": "default", "script": w.script("villain.sh", villain), "out": "build/out.txt"})
			h := w.registry.List(job.Who{Name: "alice"})[0]
			select {
			case <-h.Done():
			case <-time.After(20 * time.Second):
				t.Fatalf("the job goes on: %+v", h.Status())
			}
			if left := append(w.alive(), w.groups()...); len(left) > 0 {
				t.Errorf("at the end there is %q", left)
			}
			if r := h.Result(); r.Code != job.CodeCancelled || !r.RolledBack || !r.WorkerTerminated {
				t.Errorf("got %+v", r)
			}
			if got := w.read("build/out.txt"); got != "old\n" {
				t.Errorf("the target holds %q", got)
			}
			w.connect("a", "alice").call("shell_run", args{"session_id": "default", "script": w.script("next.sh", "echo new > $1; echo done"), "out": "build/out.txt"}, job.OK)
		})
	}
}

// end sends a client's DELETE: its own Close would wait for its calls first.
func (w *world) end(c *client) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodDelete, w.url, nil)
	ok(w.t, err)
	headers(r, "alice", "", args{})
	r.Header.Set("Mcp-Protocol-Version", eras["b"])
	r.Header.Set("Mcp-Session-Id", c.ID())
	resp, err := http.DefaultClient.Do(r)
	ok(w.t, err)
	ok(w.t, resp.Body.Close())
	if resp.StatusCode != http.StatusNoContent {
		w.t.Errorf("DELETE is answered with %d", resp.StatusCode)
	}
}

// TestDelete: DELETE ends what its MCP session started and waits for, also what was handed over: but nothing that was to be
// detached, nobody else's, and no wait for them.
func TestDelete(t *testing.T) {
	w := newWorld(t)
	c, other := w.connect("b", "alice"), w.connect("b", "alice")
	start := func(c *client, name string, more args) string {
		script, _ := w.gated(name)
		a := args{"session_id": c.call("session_open", args{"name": name}, job.OK).Session, "script": script, "out": name + ".txt", "wait_seconds": 0}
		maps.Copy(a, more)
		return c.call("shell_run", a, "").Job
	}
	handed, detached, others := start(c, "handed", nil), start(c, "detached", args{"detach": true}), start(other, "others", nil)
	waits := make(chan struct{})
	go func() {
		defer close(waits)
		p := &mcp.CallToolParams{Name: "job_wait", Arguments: args{"job_id": detached}}
		p.SetProgressToken("token")
		_, _ = c.CallTool(t.Context(), p) // as above
	}()
	within(t, "the wait has begun", c.progress)
	began := time.Now()
	w.end(c)
	within(t, "the wait ends", waits)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("DELETE took %v", took)
	}
	if h := w.registry.Find(job.Who{Name: "alice"}, handed); !h.Ended() || h.Result().Code != job.CodeCancelled {
		t.Errorf("what was handed over: %+v", h.Status())
	}
	for _, id := range []string{detached, others} {
		if a := other.call("job_wait", args{"job_id": id, "wait_seconds": 0}, ""); a.Job != id {
			t.Errorf("got %s", a.raw)
		}
	}
}

// TestIdempotencyKey: however often a call is sent with its key, and whoever of its callers goes away, it happens once.
func TestIdempotencyKey(t *testing.T) {
	for era := range eras {
		t.Run(era, func(t *testing.T) {
			w := newWorld(t)
			script, open := w.gated("long")
			call := args{"session_id": "default", "script": script, "out": "out.txt", "idempotency_key": "k:1"}
			first, second, third := w.connect(era, "alice"), w.connect(era, "alice"), w.connect("b", "alice")
			ctx, cancel := context.WithCancel(t.Context())
			answers := make(chan answer, 2)
			for _, c := range []*client{first, second} {
				go func() {
					ctx := ctx
					if c == second {
						ctx = t.Context()
					}
					a, _ := c.try(ctx, "shell_run", call) // the first one's is an error
					answers <- a
				}()
			}
			until(t, "the job runs", func() bool {
				l := w.registry.List(job.Who{Name: "alice"})
				return len(l) == 1 && l[0].Status().LogBytes > 0
			})
			call["wait_seconds"] = 0
			id := third.call("shell_run", call, "").Job
			w.end(third)
			cancel()
			if a := within(t, "the cancelled call ends", answers); a.CallToolResult != nil {
				t.Errorf("the first answer is %s", a.raw)
			}
			open()
			if a := within(t, "the other call ends", answers); a.Code != job.OK || a.Job != id || a.Replayed {
				t.Errorf("got %s", a.raw)
			}
			c := w.connect(era, "alice")
			delete(call, "wait_seconds")
			if a := c.call("shell_run", call, job.OK); a.Job != id || !a.Replayed || !strings.Contains(a.text, "idempotency key") {
				t.Errorf("got %s, text %s", a.raw, a.text)
			}
			call["out"] = "other.txt"
			c.call("shell_run", call, job.InvalidArgument)
			if w.connect(era, "bob").call("shell_run", call, job.OK).Replayed {
				t.Error("bob has alice's answer")
			}
			if n := len(w.registry.List(job.Who{Name: "alice"})); n != 2 { // and the refused one
				t.Errorf("%d jobs", n)
			}
			read := args{"script": w.script("read.sh", "echo done"), "idempotency_key": "k:1"}
			once := c.call("shell_run", read, job.OK).Job
			if c.call("shell_run", read, job.OK).Job == once {
				t.Error("a read was replayed")
			}
		})
	}
}

// TestKeepAlive: a client that gives up on an answer without headers hears of a job that prints nothing.
func TestKeepAlive(t *testing.T) {
	for era := range eras {
		for _, pause := range []time.Duration{20 * time.Millisecond, time.Hour} {
			t.Run(fmt.Sprint(era, "_", pause), func(t *testing.T) {
				w := newWorld(t, func(o *server.Options) { o.Limits.KeepAlive = pause })
				impatient := http.DefaultTransport.(*http.Transport).Clone()
				impatient.ResponseHeaderTimeout = 500 * time.Millisecond
				defer impatient.CloseIdleConnections()
				c := connect(t, era, &mcp.StreamableClientTransport{Endpoint: w.url, HTTPClient: &http.Client{Transport: bearer{token("alice"), impatient}}, MaxRetries: -1})
				a, err := c.try(t.Context(), "shell_run", args{"session_id": "default", "script": w.script("silent.sh", "sleep 1.2; echo new > $1; echo done"), "out": "out.txt"})
				if alive := pause < time.Second; (err == nil && a.Code == job.OK) != alive {
					t.Errorf("code %q, %v", a.Code, err)
				}
			})
		}
	}
}

// gated is a script that ends when the gate is opened, and what opens it.
func (w *world) gated(name string) (script string, open func()) {
	w.t.Helper()
	gate := name + ".gate"
	script = w.script(name+".sh", fmt.Sprintf("echo begun; while [ ! -e %s ]; do sleep 0.02; done; echo new > $1; echo done", w.path(gate)))
	return script, func() { w.write(gate, "") }
}

// TestLongCall: a call that is not done in time hands its job over, which then outlives it.
func TestLongCall(t *testing.T) {
	for era := range eras {
		t.Run(era, func(t *testing.T) {
			w := newWorld(t)
			script, open := w.gated("long")
			first := w.connect(era, "alice")
			a := first.call("shell_run", args{"session_id": "default", "script": script, "out": "build/out.txt", "wait_seconds": 1}, "")
			if a.next != "job_wait" || a.Job == "" || !strings.Contains(a.text, a.Job) {
				t.Errorf("pending: %s, text %q", a.raw, a.text)
			}
			c := w.connect(era, "alice")
			c.call("job_wait", args{"job_id": a.Job, "wait_seconds": 0}, "")
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if _, err := c.try(ctx, "job_wait", args{"job_id": a.Job}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a wait that is given up: %v", err)
			}
			until(t, "the tool prints", func() bool {
				var part artifact
				c.call("artifact_read", args{"job_id": a.Job, "name": "log"}, job.OK).data(t, &part)
				return part.Content == "begun\n"
			})
			open()
			for range 2 {
				if done := c.call("job_wait", args{"job_id": a.Job}, job.OK); done.Job != a.Job || len(done.Outputs) != 1 {
					t.Errorf("got %s", done.raw)
				}
			}
			if got := w.read("build/out.txt"); got != "new\n" {
				t.Errorf("the target holds %q", got)
			}
			script, open = w.gated("detached")
			b := c.call("shell_run", args{"session_id": "default", "script": script, "out": "build/two.txt", "detach": true}, "")
			open()
			c.call("job_wait", args{"job_id": b.Job}, job.OK)
		})
	}
}

// TestForgottenJob: the outcome of a job that the registry has forgotten is still told, to its owner.
func TestForgottenJob(t *testing.T) {
	w := newWorld(t, func(o *server.Options) { o.Registry = job.NewRegistry(o.Runner, job.RegistryOptions{MaxFinished: 1}) })
	c := w.connect("a", "alice")
	script := w.script("a.sh", "echo new > $1; echo done")
	var ids []string
	for _, name := range []string{"1", "2"} {
		ids = append(ids, c.call("shell_run", args{"session_id": "default", "script": script, "out": name + ".txt"}, job.OK).Job)
	}
	for _, tool := range []string{"job_wait", "job_cancel"} {
		if a := c.call(tool, args{"job_id": ids[0]}, job.OK); !a.Recalled || a.Outputs[0].Path != "1.txt" || !strings.Contains(a.text, "audit trail") {
			t.Errorf("%s: %s", tool, a.raw)
		}
	}
	for i, want := range []int{1, 3} { // a link for the output and one for the log, if they can be read
		a := c.call("job_wait", args{"job_id": ids[i]}, job.OK)
		if len(a.Content) != want {
			t.Errorf("%d contents: %s", len(a.Content), a.raw)
		}
		for _, content := range a.Content[1:] {
			link, isLink := content.(*mcp.ResourceLink)
			if !isLink {
				t.Errorf("got %+v", content)
			} else if _, err := c.resource(link.URI); err != nil {
				t.Errorf("%s: %v", link.URI, err)
			}
		}
	}
	if r, err := c.resource("eda-sidecar://jobs/" + ids[0]); err != nil || !strings.Contains(r.Text, `"recalled":true`) {
		t.Errorf("got %+v, %v", r, err)
	}
	w.connect("a", "bob").call("job_wait", args{"job_id": ids[0]}, job.InvalidArgument)
}

// unread is a client that is gone when its answer is written.
type unread struct{ *httptest.ResponseRecorder }

func (unread) Write([]byte) (int, error) { return 0, errors.New("gone") }

// TestUnheardHandOver: a caller that cannot have learnt the job's id does not leave the job behind.
func TestUnheardHandOver(t *testing.T) {
	w := newWorld(t, func(o *server.Options) { o.AllowedHosts = []string{"here"} })
	script, _ := w.gated("long")
	params := map[string]any{"name": "shell_run", "arguments": args{"session_id": "default", "script": script, "out": "build/out.txt", "wait_seconds": 0}}
	r := httptest.NewRequest(http.MethodPost, "http://here/mcp", strings.NewReader(message("tools/call", params)))
	headers(r, "alice", "tools/call", params)
	w.server.Handler().ServeHTTP(unread{httptest.NewRecorder()}, r)
	list := w.registry.List(job.Who{Name: "alice"})
	if len(list) != 1 {
		t.Fatalf("%d jobs", len(list))
	}
	select {
	case <-list[0].Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the job goes on")
	}
	if got := list[0].Result().Code; got != job.CodeCancelled {
		t.Errorf("got %s", got)
	}
}

// TestProgress: messages come while the job waits and runs, their numbers grow, and none comes after the answer.
func TestProgress(t *testing.T) {
	for era := range eras {
		t.Run(era, func(t *testing.T) {
			w := newWorld(t)
			c := w.connect(era, "alice")
			first, openFirst := w.gated("first")
			c.call("shell_run", args{"session_id": "default", "script": first, "out": "build/a.txt", "detach": true}, "")
			until(t, "the first one runs", func() bool { return w.registry.List(job.Who{Name: "alice"})[0].Status().LogBytes > 0 })
			second, openSecond := w.gated("second")
			answered := make(chan error, 1)
			go func() {
				p := &mcp.CallToolParams{Name: "shell_run", Arguments: args{"session_id": "default", "script": second, "out": "build/b.txt"}}
				p.SetProgressToken("token")
				_, err := c.CallTool(t.Context(), p)
				answered <- err
			}()
			last := 0.0
			for _, want := range []struct {
				message string
				then    func()
			}{{"queued behind job ", openFirst}, {"running shell_run", openSecond}} {
				p := within(t, "progress", c.progress)
				if p.Progress <= last || !strings.HasPrefix(p.Message, want.message) || p.ProgressToken != "token" {
					t.Errorf("got %+v after %v, want %q", p, last, want.message)
				}
				last = p.Progress
				want.then()
			}
			ok(t, within(t, "the answer", answered))
			c.call("job_list", args{}, job.OK) // whatever was on its way is here now
			if len(c.progress) > 0 {
				t.Errorf("after the answer: %+v", <-c.progress)
			}
		})
	}
}

// TestBudget: a tool that prints 1 GiB has a short answer. (That every answer is short is checked by every call.)
func TestBudget(t *testing.T) {
	w := newWorld(t)
	c := w.connect("a", "alice")
	a := c.call("shell_run", args{"script": w.script("flood.sh", `head -c 1073741824 /dev/zero | tr '\0' '\033'`)}, job.OutputLimit)
	if a.Log.Bytes != 1<<30 || !a.Log.Truncated || a.cut["log"] == 0 {
		t.Errorf("log of %d bytes, truncated %t, cut %v", a.Log.Bytes, a.Log.Truncated, a.cut)
	}
	c.call("artifact_read", args{"job_id": a.Job, "name": "log", "offset": 1 << 20}, job.OK)
}
