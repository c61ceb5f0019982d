package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// shellTool is a declared tool that runs a shell script of the caller: $1 is the staged path of a, $2 that of b.
const shellTool = `- name: sh_run
  doc: Runs a shell script of the caller.
  trust: script
  program: {name: sh, interpreter: true}
  params:
    - {name: script, kind: text, pattern: '[ -~]+', max_length: 4096, required: true}
    - {name: a, kind: output, format: text, allow_empty: true}
    - {name: b, kind: output, format: text, allow_empty: true}
  steps: [{name: run, argv: [sh, -c, 'eval "$0" && echo END', "{{script}}", {arg: "{{a}}", when: a}, {arg: "{{b}}", when: b}]}]
  verdict: {require: ['^END$']}
  limits: {wall: 1m, pids: 4096}
`

// served is a running server of a world.
type served struct {
	w         *world
	run       *running
	log       *lines
	mcp, side string // addresses: of MCP, of metrics and probes
	token     string
	stopped   sync.Once
}

// lines gathers what the server logs, line by line.
type lines struct {
	mu  sync.Mutex
	all []map[string]any // guarded by mu
	raw strings.Builder  // guarded by mu
}

func (l *lines) read(r io.Reader) {
	for s := bufio.NewScanner(r); s.Scan(); {
		var m map[string]any
		if json.Unmarshal(s.Bytes(), &m) != nil {
			m = map[string]any{"not JSON": s.Text()}
		}
		l.mu.Lock()
		l.all = append(l.all, m)
		l.raw.WriteString(s.Text() + "\n")
		l.mu.Unlock()
	}
}

// address returns the host and port of the line that begins so, or the empty string.
func (l *lines) address(begins string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.all {
		text, _ := m["msg"].(string)
		if url, ok := strings.CutPrefix(text, begins+" on "); ok {
			_, address, _ := strings.Cut(url, "://")
			return strings.TrimSuffix(address, "/mcp")
		}
	}
	return ""
}

// wrong names a key that no line may have, or the empty string.
func (l *lines) wrong() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.all {
		for key := range m {
			if !slices.Contains(strings.Fields("time level msg job_id session_id tool phase code trace_id duration_ms error"), key) {
				return key
			}
		}
	}
	return ""
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.raw.String()
}

// serving configures the shell tool.
func (w *world) serving(lines ...string) {
	w.t.Helper()
	w.config(append(append([]string{"allow_script: true", "rate_limit: 100000"}, lines...), "tools:", shellTool)...)
}

// serve starts a server on free ports and waits until it serves.
func (w *world) serve(args ...string) *served {
	w.t.Helper()
	s := w.launch(nil, args...)
	w.until("the server serves", func() bool { return s.log.address("serving") != "" || s.ended() })
	if s.ended() {
		w.t.Fatalf("the server ended: %s", s.log)
	}
	s.mcp, s.side = s.log.address("serving"), s.log.address("metrics and probes")
	token, err := os.ReadFile(w.path(".eda-sidecar/state/token"))
	if !errors.Is(err, os.ErrNotExist) { // a list of tokens was configured
		ok(w.t, err)
	}
	s.token = strings.TrimSpace(string(token))
	return s
}

// launch starts a server and waits for nothing.
func (w *world) launch(prefix []string, args ...string) *served {
	w.t.Helper()
	s := &served{w: w, log: &lines{}}
	s.run = w.command(prefix, append([]string{"serve", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"}, args...)...)
	stderr, writer, err := os.Pipe()
	ok(w.t, err)
	s.run.cmd.Stderr = writer
	s.run.start()
	ok(w.t, writer.Close())
	go func() { // ends with the server
		s.log.read(stderr)
		_ = stderr.Close() // read to its end
	}()
	w.t.Cleanup(func() { s.kill() })
	return s
}

func (s *served) ended() bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.run.pid()))
	return err != nil || strings.Contains(string(b), ") Z ")
}

// kill ends the server as a power loss would end it.
func (s *served) kill() {
	s.stopped.Do(func() {
		_ = s.run.cmd.Process.Kill() // it may have ended
		_ = s.run.cmd.Wait()         // by a signal
		s.run.stop()
	})
}

// stop ends the server in order and returns its exit status.
func (s *served) stop() int {
	s.w.t.Helper()
	s.stopped.Do(func() {
		ok(s.w.t, s.run.cmd.Process.Signal(syscall.SIGTERM))
		_ = s.run.cmd.Wait() // its status is returned
		s.run.stop()
	})
	return s.run.cmd.ProcessState.ExitCode()
}

// get reads one page of metrics and probes.
func (s *served) get(path string) (status int, body string) {
	s.w.t.Helper()
	r, err := http.Get("http://" + s.side + path)
	ok(s.w.t, err)
	defer func() { _ = r.Body.Close() }() // read below
	b, err := io.ReadAll(r.Body)
	ok(s.w.t, err)
	return r.StatusCode, string(b)
}

// connect returns a client of the server.
func (s *served) connect(o *mcp.ClientOptions) *mcp.ClientSession {
	s.w.t.Helper()
	c, err := s.dial(o)
	ok(s.w.t, err)
	s.w.t.Cleanup(func() { _ = c.Close() }) // the server may be gone
	return c
}

func (s *served) dial(o *mcp.ClientOptions) (*mcp.ClientSession, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o).Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: "http://" + s.mcp + "/mcp", HTTPClient: &http.Client{Transport: bearer(s.token)}, MaxRetries: -1, DisableStandaloneSSE: true,
	}, nil)
}

// answered is the structured answer of a tool.
type toolAnswer struct {
	job.Result
	Running bool   `json:"running"`
	State   string `json:"phase"`
}

// ask calls a tool and decodes its answer. An error is one of the protocol, or of the way.
func ask(ctx context.Context, c *mcp.ClientSession, tool string, args map[string]any) (a toolAnswer, err error) {
	res, err := c.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		return a, err
	}
	b, err := json.Marshal(res.StructuredContent)
	if err == nil {
		err = json.Unmarshal(b, &a)
	}
	return a, err
}

// must asks, and fails the test for any error.
func (s *served) must(c *mcp.ClientSession, tool string, args map[string]any) toolAnswer {
	s.w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 55*time.Second)
	defer cancel()
	a, err := ask(ctx, c, tool, args)
	if err != nil {
		s.w.t.Fatalf("%s: %v; the server says: %s", tool, err, s.log)
	}
	return a
}

// session opens a session of this name.
func (s *served) session(c *mcp.ClientSession, name string) string {
	s.w.t.Helper()
	a := s.must(c, "session_open", map[string]any{"name": name})
	if a.Code != job.OK || a.Session == "" {
		s.w.t.Fatalf("session_open: %+v", a.Result)
	}
	return a.Session
}

// script is a call of the shell tool in a session; targets are of a and b.
func (w *world) script(session, text string, targets ...string) map[string]any {
	args := map[string]any{"script": "export MARK=" + w.mark + "; " + text, "session_id": session}
	for i, target := range targets {
		args[string(rune('a'+i))] = target
	}
	return args
}

// rss is the resident memory of the server, bytes: now, and at its peak.
func (s *served) rss() (now, peak int64) {
	s.w.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.run.pid()))
	ok(s.w.t, err)
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "VmRSS":
			now = kib << 10
		case "VmHWM":
			peak = kib << 10
		}
	}
	return now, peak
}

// descriptors and threads of the server.
func (s *served) counts() (fds, threads int) {
	s.w.t.Helper()
	for name, n := range map[string]*int{"fd": &fds, "task": &threads} {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", s.run.pid(), name))
		ok(s.w.t, err)
		*n = len(entries)
	}
	return fds, threads
}

// TestServe drives a server from its start to its end: token, call, metrics, probes, a second command beside it, drain.
func TestServe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serving()
	s := w.serve()
	c := s.connect(nil)
	session := s.session(c, "one")
	if a := s.must(c, "sh_run", w.script(session, "echo new > $1", "build/a.v")); a.Code != job.OK || a.SessionVersion != 2 {
		t.Errorf("got %+v", a.Result)
	}
	w.is("build/a.v", "new\n")
	if a := w.do("call", "sh_run", "script=echo newer > $1", "a=build/a.v", "--server", "http://"+s.mcp, "--json", "--session", session); a.exit != 0 || a.Code != job.OK {
		t.Errorf("call --server: %v", a)
	}
	w.is("build/a.v", "newer\n")
	for path, want := range map[string]string{"/livez": "ok\n", "/startupz": "ok\n", "/readyz": "ok\n", "/readyz?verbose": "[+] agent ok\n[+] containment ok\n[+] recovery ok\n[+] ledger ok\n[+] workspace ok\n[+] serving ok\nok\n"} {
		if status, body := s.get(path); status != http.StatusOK || body != want {
			t.Errorf("%s: %d %q", path, status, body)
		}
	}
	for _, args := range [][]string{{"run", "--", "true"}, {"recover"}, {"recover", "--dry-run"}, {"call", "session_show"}, {"serve", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"}} {
		if a := w.do(args...); a.exit != exitRetry || !strings.Contains(a.err, "call --server http://"+s.mcp) {
			t.Errorf("%q beside a server: %v", args, a)
		}
	}
	if a := w.do("doctor"); a.exit != 0 || !strings.Contains(a.out, "ready serving") || !strings.Contains(a.out, "0 jobs running, 0 queued") {
		t.Errorf("doctor beside a server: %v", a)
	}
	for name, token := range map[string]string{"none": "", "another": strings.Repeat("0", 64), "short": s.token[1:]} {
		if _, err := (&served{w: w, mcp: s.mcp, token: token}).dial(nil); err == nil || !strings.Contains(err.Error(), "Unauthorized") {
			t.Errorf("token %s: %v", name, err)
		}
	}
	if log := s.log.String(); strings.Contains(log, s.token) || s.log.wrong() != "" {
		t.Errorf("the log (%s): %s", s.log.wrong(), log)
	}
	if a := w.do("drain", "--wait"); a.exit != 0 || a.out != "draining: 0 jobs running, 0 queued, 0 not proven dead\n" {
		t.Errorf("drain: %v", a)
	}
	if a := w.do("call", "session_open", "--server", "http://"+s.mcp); a.exit != exitRetry {
		t.Errorf("a call of a drained server: %v", a)
	}
	if status, body := s.get("/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "[-] serving: drained") {
		t.Errorf("readiness of a drained server: %d %q", status, body)
	}
	if a := w.do("doctor"); a.exit != exitNoSupport || !strings.Contains(a.out, "FAIL ready serving") {
		t.Errorf("doctor beside a drained server: %v", a)
	}
	if exit := s.stop(); exit != 0 {
		t.Errorf("exit %d: %s", exit, s.log)
	}
	if a := w.do("drain"); a.exit != exitUsage || !strings.Contains(a.err, "no server runs there") {
		t.Errorf("drain without a server: %v", a)
	}
	w.sound()
}

// TestKeyAcrossKill: a call that committed under a key, and whose answer went with the server, is not made again.
func TestKeyAcrossKill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serving()
	s := w.serve()
	args := w.script("default", "echo new >> $1", "build/a.v")
	args["idempotency_key"] = "once"
	first := s.must(s.connect(nil), "sh_run", args)
	s.kill()
	w.write("build/a.v", "edited\n")
	s = w.serve()
	c := s.connect(nil)
	if again := s.must(c, "sh_run", args); first.Code != job.OK || again.Code != job.OK || again.Job != first.Job || !again.Replayed || !again.Recalled {
		t.Errorf("got %+v, then %+v", first.Result, again.Result)
	}
	w.is("build/a.v", "edited\n")
	args["idempotency_key"] = "twice"
	if a := s.must(c, "sh_run", args); a.Code != job.OK || a.Job == first.Job {
		t.Errorf("with another key: %+v", a.Result)
	}
	s.stop()
	w.sound()
}

// TestServeEnds gives running jobs their time at SIGTERM, cancels them after it, and ends queued ones at once.
func TestServeEnds(t *testing.T) {
	t.Parallel()
	for _, patient := range []bool{true, false} {
		t.Run(fmt.Sprintf("patient=%v", patient), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			timeout := "drain_timeout: 1m"
			if !patient {
				timeout = "drain_timeout: 10ms"
			}
			w.serving(timeout, "grace: 50ms")
			w.write("go", "")
			s := w.serve()
			c := s.connect(nil)
			session := s.session(c, "one")
			type ended struct {
				a   toolAnswer
				err error
			}
			results := make(chan ended, 2)
			start := func(script string) {
				go func() {
					ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
					defer cancel()
					a, err := ask(ctx, c, "sh_run", w.script(session, script, "build/a.v"))
					results <- ended{a, err}
				}()
			}
			start("setsid sleep 1000 & trap '' TERM; echo new > $1; while [ ! -s " + w.path("go") + " ]; do :; done")
			w.until("the first writes", w.staged)
			start("echo never > $1")
			w.until("the second waits", func() bool { return strings.Contains(page(s, "/metrics"), "eda_sidecar_jobs_queued 1\n") })
			ok(t, s.run.cmd.Process.Signal(syscall.SIGTERM))
			if r := <-results; r.err != nil || r.a.Code != job.ShuttingDown {
				t.Errorf("the queued one: %+v, %v", r.a.Result, r.err)
			}
			if patient {
				w.write("go", "now")
			}
			want, text := job.OK, "new\n"
			if !patient {
				want, text = job.ShuttingDown, "old\n"
			}
			if r := <-results; r.err != nil || r.a.Code != want || !r.a.WorkerTerminated {
				t.Errorf("the running one: %+v, %v", r.a.Result, r.err)
			}
			if exit := s.stop(); exit != 0 {
				t.Errorf("exit %d: %s", exit, s.log)
			}
			w.is("build/a.v", text)
			w.sound()
		})
	}
}

// TestDrainRunning: a server with a job left says that it drains, not that it is drained, and still shows what was done.
func TestDrainRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serving("grace: 50ms")
	s := w.serve()
	c := s.connect(nil)
	session := s.session(c, "one")
	a := s.must(c, "sh_run", with(w.script(session, "echo new > $1; while [ ! -s "+w.path("go")+" ]; do sleep 0.1; done", "build/a.v"), "detach", true))
	w.until("the tool writes", w.staged)
	drain := w.do("drain", "--json")
	var said struct {
		Running int
		Waiting []any
		Checks  []map[string]any
	}
	ok(t, json.Unmarshal([]byte(drain.out), &said))
	last := said.Checks[len(said.Checks)-1]
	if drain.exit != exitRetry || said.Running != 1 || said.Waiting == nil || last["name"] != "serving" || last["ok"] != false || last["reason"] != "draining" {
		t.Errorf("drain --json: %v", drain)
	}
	if status, body := s.get("/readyz"); status != http.StatusServiceUnavailable || body != "[-] serving: draining\n\n" {
		t.Errorf("readiness: %d %q", status, body)
	}
	if a := w.do("call", "session_show", "--server", "http://"+s.mcp); a.exit != 0 {
		t.Errorf("a look at a server that drains: %v", a)
	}
	w.write("go", "now")
	if a := w.do("drain", "--wait"); a.exit != 0 {
		t.Errorf("drain --wait: %v", a)
	}
	if _, body := s.get("/readyz"); body != "[-] serving: drained\n\n" {
		t.Errorf("readiness: %q", body)
	}
	if end := s.must(c, "job_wait", map[string]any{"job_id": a.Job}); end.Code != job.OK {
		t.Errorf("the job: %+v", end.Result)
	}
	if exit := s.stop(); exit != 0 {
		t.Errorf("exit %d: %s", exit, s.log)
	}
	w.sound()
}

func page(s *served, path string) string {
	_, body := s.get(path)
	return body
}

// TestServeRefusals are starts that must not be: each ends with 2 and names its key.
func TestServeRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	taken := newWorld(t)
	taken.serving()
	s := taken.serve()
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"beyond-loopback", []string{"--listen", "0.0.0.0:0"}, "listen"},
		{"no-port", []string{"--listen", "127.0.0.1"}, "listen"},
		{"name", []string{"--listen", "example.org:80"}, "listen"},
		{"port", []string{"--metrics-listen", "127.0.0.1:99999"}, "metrics_listen"},
		{"one-address", []string{"--listen", "127.0.0.1:18080", "--metrics-listen", "127.0.0.1:18080"}, "metrics_listen"},
		{"taken", []string{"--listen", s.mcp, "--metrics-listen", "127.0.0.1:0"}, "listen"},
		{"taken-metrics", []string{"--listen", "127.0.0.1:0", "--metrics-listen", s.side}, "metrics_listen"},
		{"auth", []string{"--auth", "none"}, "auth"},
		{"both", []string{"--stdio", "--listen", "127.0.0.1:0"}, "--listen"},
		{"argument", []string{"now"}, "now"},
	} {
		if a := w.do(append([]string{"serve"}, c.args...)...); a.exit != exitUsage || !strings.Contains(a.err, c.want) || a.out != "" {
			t.Errorf("%s: %v", c.name, a)
		}
	}
	if names := w.list("."); !slices.Equal(names, []string{"build"}) {
		t.Errorf("a refused start left %q", names)
	}
	// a token that others can read
	u := newWorld(t)
	ok(t, os.MkdirAll(u.path(".eda-sidecar/state"), 0o700))
	ok(t, os.WriteFile(u.path(".eda-sidecar/state/token"), []byte(strings.Repeat("0", 64)), 0o644))
	if a := u.do("serve", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"); a.exit != exitUsage || !strings.Contains(a.err, "0600") {
		t.Errorf("a token that others can read: %v", a)
	}
	s.stop()
}

// TestServeStdio serves one client on standard input and output. What a tool or the program prints elsewhere never gets
// there, and the end of input ends everything.
func TestServeStdio(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serving("grace: 20ms")
	r := w.command(nil, "serve", "--stdio")
	in, err := r.cmd.StdinPipe()
	ok(t, err)
	r.cmd.Stdout = nil
	out, err := r.cmd.StdoutPipe()
	ok(t, err)
	r.start()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	defer cancel()
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, &mcp.IOTransport{Reader: out, Writer: in}, nil)
	ok(t, err)
	a, err := ask(ctx, c, "session_open", map[string]any{"name": "one"})
	ok(t, err)
	session := a.Session
	a, err = ask(ctx, c, "sh_run", w.script(session, "echo new > $1; echo tool >&1; echo tool >&2; read line; echo got $line", "build/a.v"))
	ok(t, err)
	if a.Code != job.OK || !strings.Contains(a.Log.Head, "got\n") {
		t.Errorf("got %+v", a.Result)
	}
	a, err = ask(ctx, c, "sh_run", with(w.script(session, "setsid sleep 1000 & trap '' TERM; echo never > $1; while :; do sleep 1; done", "build/a.v"), "detach", true))
	ok(t, err)
	if !a.Running || a.Job == "" {
		t.Errorf("got %+v", a)
	}
	w.until("the tool runs", func() bool { return len(w.marked()) > 1 })
	ok(t, in.Close())
	if end := r.wait(); end.exit != 0 {
		t.Errorf("exit %d: %s", end.exit, end.err)
	}
	w.is("build/a.v", "new\n")
	w.ordered(a.Job, "allow", "start", "cancel", "worker_terminated", "rollback")
	w.sound()
}

// TestServeStdioGone ends a server whose client is gone without having read its answers, or that is told to end meanwhile.
func TestServeStdioGone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		leave func(in, out io.Closer, r *running)
	}{
		{"unread_end_of_input", func(in, _ io.Closer, _ *running) { ok(t, in.Close()) }},
		{"unread_sigterm", func(_, _ io.Closer, r *running) { r.signal(syscall.SIGTERM) }},
		{"broken_output", func(_, out io.Closer, _ *running) { ok(t, out.Close()) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r := w.command(nil, "serve", "--stdio")
			in, err := r.cmd.StdinPipe()
			ok(t, err)
			out, writer, err := os.Pipe()
			ok(t, err)
			defer func() { _ = out.Close() }() // it may be closed
			_, err = unix.FcntlInt(out.Fd(), unix.F_SETPIPE_SZ, 4096)
			ok(t, err)
			r.cmd.Stdout = writer
			r.start()
			ok(t, writer.Close())
			_, err = io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`+"\n"+
				`{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n"+strings.Repeat(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`+"\n", 10))
			ok(t, err)
			w.until("the first answer is there", func() bool {
				n, err := unix.IoctlGetInt(int(out.Fd()), unix.TIOCINQ) // FIONREAD: pipe(7)
				return err == nil && n > 0
			})
			began := time.Now()
			c.leave(in, out, r)
			if end := r.wait(); end.exit != 0 || time.Since(began) > 20*time.Second {
				t.Errorf("exit %d after %v: %s", end.exit, time.Since(began), end.err)
			}
			w.sound()
		})
	}
}

// TestServeFlood: connections are bounded, those of clients and those of probes apart, and one that is closed makes room.
func TestServeFlood(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.serve()
	before, _ := s.rss()
	open := func(address string, n int) (all []net.Conn) {
		for range n {
			c, err := net.Dial("tcp", address)
			ok(t, err)
			t.Cleanup(func() { _ = c.Close() }) // it may be closed
			_, err = fmt.Fprintf(c, "GET /livez HTTP/1.1\r\nHost: %s\r\n\r\n", address)
			ok(t, err)
			all = append(all, c)
		}
		return all
	}
	answered := func(c net.Conn, patience time.Duration) bool {
		ok(t, c.SetReadDeadline(time.Now().Add(patience)))
		_, err := c.Read(make([]byte, 1))
		return err == nil
	}
	for address, most := range map[string]int{s.mcp: 1024, s.side: 64} {
		all := open(address, most)
		for _, c := range all {
			if !answered(c, 20*time.Second) {
				t.Fatalf("%s: of %d connections one is not answered", address, most)
			}
		}
		other := map[string]string{s.mcp: s.side, s.side: s.mcp}[address]
		probe := open(other, 1)[0]
		if !answered(probe, 20*time.Second) {
			t.Errorf("with %s flooded, %s does not answer", address, other)
		}
		last := open(address, 1)[0]
		if answered(last, 500*time.Millisecond) {
			t.Errorf("%s answers more than %d connections", address, most)
		}
		ok(t, all[0].Close())
		if !answered(last, 20*time.Second) {
			t.Errorf("%s: a connection was closed, and made no room", address)
		}
		if most == 1024 {
			if now, _ := s.rss(); now-before > 64<<20 {
				t.Errorf("%d MiB for %d connections", (now-before)>>20, most)
			}
		}
		for _, c := range append(all[1:], probe, last) {
			ok(t, c.Close())
		}
	}
	if exit := s.stop(); exit != 0 {
		t.Errorf("exit %d: %s", exit, s.log)
	}
	w.sound()
}

// TestServeLogs: what the HTTP server of the standard library has to say is a line of JSON, too.
func TestServeLogs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.launch([]string{"prlimit", "--nofile=96"})
	w.until("the server serves", func() bool { return s.log.address("serving") != "" })
	for range 100 {
		c, err := net.Dial("tcp", s.log.address("serving"))
		ok(t, err)
		t.Cleanup(func() { _ = c.Close() }) // it may be closed
	}
	w.until("the server complains", func() bool { return strings.Contains(s.log.String(), "too many open files") })
	if key := s.log.wrong(); key != "" {
		t.Errorf("the log has %s: %s", key, s.log)
	}
	if exit := s.stop(); exit != 0 {
		t.Errorf("exit %d: %s", exit, s.log)
	}
}

// TestServerLost: a client whose server dies under it says that it does not know, and how to learn it; one that finds no
// server says that.
func TestServerLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serving("grace: 20ms")
	s := w.serve()
	url := "http://" + s.mcp
	c := s.connect(nil)
	session := s.session(c, "one")
	caller := w.command(nil, "call", "sh_run", "--server", url, "--session", session, "script=export MARK="+w.mark+"; echo never > $1; while :; do sleep 1; done", "a=build/a.v").start()
	w.until("the tool writes", w.staged)
	w.until("the job was handed over, which call does after a second", func() bool {
		var list struct {
			Data struct {
				Jobs []struct {
					Session string `json:"session_id"`
					Elapsed int64  `json:"elapsed_ms"`
				} `json:"jobs"`
			} `json:"data"`
		}
		res, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "job_list", Arguments: map[string]any{"session_id": session}})
		ok(t, err)
		b, err := json.Marshal(res.StructuredContent)
		ok(t, errors.Join(err, json.Unmarshal(b, &list)))
		return len(list.Data.Jobs) == 1 && list.Data.Jobs[0].Session == session && list.Data.Jobs[0].Elapsed > 1300
	})
	s.kill()
	a := caller.wait()
	if a.exit != exitInternal || !strings.Contains(a.err, "job_wait job_id=") {
		t.Errorf("the server died: %v", a)
	}
	if a := w.do("call", "session_show", "--server", url); a.exit != exitRetry || !strings.Contains(a.err, "is the server running") {
		t.Errorf("no server: %v", a)
	}
	if found := w.recovered(); len(found) != 1 || !strings.Contains(a.err, found[0].Job) {
		t.Errorf("recovered %+v; %s", found, a.err)
	}
	w.is("build/a.v", "old\n")
	w.sound()
}
