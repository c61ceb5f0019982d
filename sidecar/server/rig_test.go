package server_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/cgroup/cgrouptest"
	"github.com/eda-sidecar/eda-sidecar/sidecar"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/server"
)

func TestMain(m *testing.M) {
	cgroup.Child() // this binary is the probe of its own groups
	if err := cgroup.SecureProcess(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// tools are declared beside the built-in ones: a script of the caller, and a program that nobody has.
const tools = `tool_limits: {iverilog_simulate: {wall: 90s}}
tools:
- name: shell_run
  title: Run a script
  doc: Runs a shell script of the caller.
  trust: script
  program: {name: sh, interpreter: true}
  params:
    - {name: script, kind: input, ext: [.sh], doc: "The script; it gets the target."}
    - {name: out, kind: output, format: text, allow_empty: true, optional: true, doc: "Target."}
  steps:
    - {name: run, argv: [sh, "{{script}}", {arg: "{{out}}", when: out}]}
  verdict: {require: ['.']}
  limits: {wall: 1m}
- name: nobody_has
  trust: declarative
  program: {name: eda-sidecar-nobody-has-this}
  params: [{name: out, kind: output, format: text}]
  steps: [{name: run, argv: [eda-sidecar-nobody-has-this, "{{out}}"]}]
`

// Principals of the tests: their tokens are 40 times the letter.
var (
	every = []server.Capability{server.Read, server.Mutate, server.Script}
	users = map[string][]server.Capability{
		"alice": every, "bob": every, "reader": {server.Read}, "plain": {server.Read, server.Mutate}, "chief": {server.Read, server.Admin}, "master": {server.Read, server.Mutate, server.Admin},
	}
)

func principalOf(name string) server.Principal {
	return server.Principal{Name: name, Capabilities: users[name]}
}

func token(name string) string { return strings.Repeat(name[:1], 40) }

func digest(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// world is a workspace with an engine and a server on a loopback port.
type world struct {
	t        testing.TB
	dir      string
	mark     string // in the environment of everything that its tools start
	engine   *sidecar.Sidecar
	registry *job.Registry
	server   *server.Server
	url      string
	notices  chan server.Notice
}

func newWorld(t testing.TB, change ...func(*server.Options)) *world {
	t.Helper()
	cgrouptest.NeedRoot(t)
	cgrouptest.NeedCgroup2(t)
	dir, err := os.MkdirTemp("/dev/shm", "server") // syncs are no news here, and free there
	ok(t, err)
	t.Cleanup(func() { ok(t, os.RemoveAll(dir)) })
	w := &world{t: t, dir: dir, mark: "MARK_" + filepath.Base(dir), notices: make(chan server.Notice, 1000)}
	w.write("../"+filepath.Base(dir)+".yaml", tools)
	t.Cleanup(func() { ok(t, os.Remove(dir+".yaml")) })
	w.write("rtl/counter.v", "module counter(input clk, output reg [3:0] q);\n  always @(posedge clk) q <= q + 1;\nendmodule\n")
	w.write("tb.v", "module tb;\n  initial begin $display(\"hello\"); $finish; end\nendmodule\n")
	cfg, err := sidecar.LoadConfig(sidecar.Flags{Workspace: dir, Config: dir + ".yaml"})
	ok(t, err)
	cfg.Grace = 50 * time.Millisecond
	w.engine, err = sidecar.Open(t.Context(), cfg)
	ok(t, err)
	w.registry = job.NewRegistry(w.engine.Runner, job.RegistryOptions{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	var list []server.Token
	for name, capabilities := range users {
		list = append(list, server.Token{Name: name, SHA256: digest(token(name)), Capabilities: capabilities})
	}
	auth, err := server.Tokens(list)
	ok(t, err)
	o := server.Options{
		Registry: w.registry, Runner: w.engine.Runner, Catalog: cfg.Catalog, Ledger: w.engine.Ledger.Reader, Version: "test",
		Limits: server.Limits{Rate: 10_000}, // tests are impatient
		Listen: listener.Addr().String(), Auth: auth, Notify: func(n server.Notice) { w.notices <- n },
	}
	for _, f := range change {
		f(&o)
	}
	w.server, err = server.New(o)
	ok(t, err)
	w.url = "http://" + listener.Addr().String() + "/mcp"
	web := &http.Server{Handler: w.server.Handler(), ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := w.registry.Stop(ctx); err != nil {
			t.Error(err)
		}
		ok(t, web.Close())
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		w.sound()
		ok(t, w.engine.Close())
	})
	return w
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until waits for what others bring about.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("timed out: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// within is what comes on a channel, which must come.
func within[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("timed out: %s", what)
		panic("unreachable")
	}
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) write(name, text string) {
	w.t.Helper()
	ok(w.t, os.MkdirAll(filepath.Dir(w.path(name)), 0o755))
	ok(w.t, os.WriteFile(w.path(name), []byte(text), 0o644))
}

// read returns a file's text, or "absent".
func (w *world) read(name string) string {
	w.t.Helper()
	b, err := os.ReadFile(w.path(name))
	if errors.Is(err, os.ErrNotExist) {
		return "absent"
	}
	ok(w.t, err)
	return string(b)
}

// script writes a script for shell_run. What it starts carries the mark.
func (w *world) script(name, text string) string {
	w.t.Helper()
	w.write(name, "export MARK="+w.mark+"\n"+text+"\n")
	return name
}

// alive are the living processes with the mark.
func (w *world) alive() (pids []string) {
	w.t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	ok(w.t, err)
	for _, dir := range dirs {
		env, err := os.ReadFile(dir + "/environ") // it may be gone, and then it is not alive
		if err == nil && strings.Contains(string(env), w.mark) {
			pids = append(pids, filepath.Base(dir))
		}
	}
	return pids
}

// groups are those that the engine has made for this workspace and not removed.
func (w *world) groups() (left []string) {
	w.t.Helper()
	var st syscall.Stat_t
	ok(w.t, syscall.Stat(w.dir, &st))
	id := fmt.Sprintf("eda-%x", sha256.Sum256(fmt.Appendf(nil, "%d:%d", st.Dev, st.Ino)))[:len("eda-")+12]
	for _, pattern := range []string{"/sys/fs/cgroup/" + id + "/*/", "/sys/fs/cgroup/unified/" + id + "/*/"} {
		found, err := filepath.Glob(pattern)
		ok(w.t, err)
		left = append(left, found...)
	}
	return left
}

// sound fails if a process or a group is left, or if the trail does not verify.
func (w *world) sound() {
	w.t.Helper()
	if left := append(w.alive(), w.groups()...); len(left) > 0 {
		w.t.Errorf("left: %q", left)
	}
	if _, err := w.engine.Ledger.Verify(context.Background()); err != nil {
		w.t.Error(err)
	}
}

// eras are the two protocols, each by the version that a client asks for.
var eras = map[string]string{"a": "2026-07-28", "b": "2025-11-25"}

// client is a session of the SDK's own client.
type client struct {
	*mcp.ClientSession
	t        testing.TB
	progress chan *mcp.ProgressNotificationParams
	schemas  map[string]*jsonschema.Resolved // of what each tool answers
	called   map[string]bool
}

// bearer adds a token to each request.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// connect connects a client of an era over HTTP.
func (w *world) connect(era, user string) *client {
	w.t.Helper()
	return connect(w.t, era, &mcp.StreamableClientTransport{Endpoint: w.url, HTTPClient: &http.Client{Transport: bearer{token(user), http.DefaultTransport}}, DisableStandaloneSSE: true})
}

func connect(t testing.TB, era string, transport mcp.Transport) *client {
	t.Helper()
	c := &client{t: t, progress: make(chan *mcp.ProgressNotificationParams, 1000), schemas: map[string]*jsonschema.Resolved{}, called: map[string]bool{}}
	m := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { c.progress <- r.Params },
	})
	var err error
	c.ClientSession, err = m.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: eras[era]})
	ok(t, err)
	t.Cleanup(func() { _ = c.Close() }) // the server may be gone
	list, err := c.ListTools(t.Context(), nil)
	ok(t, err)
	for _, tool := range list.Tools {
		text, err := json.Marshal(tool.OutputSchema)
		ok(t, err)
		var schema jsonschema.Schema
		ok(t, json.Unmarshal(text, &schema))
		c.schemas[tool.Name], err = schema.Resolve(nil)
		ok(t, err)
	}
	return c
}

// pipe connects a client over a pair of pipes, as a program that starts the server does. Each process of the job is dead when
// the server has noticed that the pipe was closed.
func (w *world) pipe(era, user string) (c *client, closePipe func()) {
	w.t.Helper()
	in, theirOut := io.Pipe()
	theirIn, out := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- w.server.ServeStdio(w.t.Context(), in, out, principalOf(user))
	}()
	var once sync.Once
	closePipe = func() {
		once.Do(func() {
			ok(w.t, theirOut.Close())
			ok(w.t, within(w.t, "the server notices", served))
			ok(w.t, out.Close())
		})
	}
	c = connect(w.t, era, &mcp.IOTransport{Reader: theirIn, Writer: theirOut})
	w.t.Cleanup(closePipe)
	return c, closePipe
}

type args = map[string]any

// answer is what a call gave back.
type answer struct {
	*mcp.CallToolResult
	job.Result
	running bool
	next    string
	cut     map[string]int
	text    string
	raw     json.RawMessage
}

func decode(t testing.TB, r *mcp.CallToolResult) (a answer) {
	t.Helper()
	raw, err := json.Marshal(r.StructuredContent)
	ok(t, err)
	var known struct {
		job.Result
		Running bool           `json:"running"`
		Next    string         `json:"next"`
		Cut     map[string]int `json:"cut"`
	}
	ok(t, json.Unmarshal(raw, &known))
	a = answer{CallToolResult: r, Result: known.Result, running: known.Running, next: known.Next, cut: known.Cut, raw: raw}
	if text, isText := r.Content[0].(*mcp.TextContent); isText {
		a.text = text.Text
	}
	return a
}

// try calls a tool; the error is one of the protocol, or of ctx.
func (c *client) try(ctx context.Context, tool string, arguments args) (answer, error) {
	c.t.Helper()
	r, err := c.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		return answer{}, err
	}
	c.called[tool] = true
	if schema := c.schemas[tool]; schema != nil { // else the tool is hidden from this client
		if err := schema.Validate(r.StructuredContent); err != nil {
			c.t.Errorf("%s answers what its schema forbids: %v\n%v", tool, err, r.StructuredContent)
		}
	}
	a := decode(c.t, r)
	if n := utf8.RuneCountInString(a.text) + utf8.RuneCount(a.raw); n > 20_000 || utf8.RuneCountInString(a.text) > 2_000 {
		c.t.Errorf("%s answers with %d characters", tool, n)
	}
	if a.IsError != (a.Code != "" && a.Code != job.OK) || a.running != (a.Code == "") {
		c.t.Errorf("%s: isError %t, running %t, code %q", tool, a.IsError, a.running, a.Code)
	}
	return a, nil
}

// call calls a tool, which must be answered with code; "" is pending.
func (c *client) call(tool string, arguments args, code job.Code) answer {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	a, err := c.try(ctx, tool, arguments)
	ok(c.t, err)
	if a.Code != code {
		c.t.Fatalf("%s %v: got %s, want %q", tool, arguments, a.raw, code)
	}
	return a
}

// data decodes the data of an answer.
func (a answer) data(t testing.TB, into any) {
	t.Helper()
	b, err := json.Marshal(a.Data)
	ok(t, err)
	ok(t, json.Unmarshal(b, into))
}
