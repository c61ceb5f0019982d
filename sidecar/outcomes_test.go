package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/cgroup/cgrouptest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable/durabletest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/metrics"
)

// walkTool runs a shell script of the caller: $1 is the staged path of a.
const walkTool = `allow_script: true
tools:
- name: sh_run
  doc: Runs a shell script of the caller.
  trust: script
  program: {name: sh, interpreter: true}
  params:
    - {name: script, kind: text, pattern: '[ -~]+', max_length: 4096, required: true}
    - {name: a, kind: output, format: text, allow_empty: true}
  steps: [{name: run, argv: [sh, -c, 'eval "$0" && echo END', "{{script}}", {arg: "{{a}}", when: a}]}]
  verdict: {require: ['^END$']}
  limits: {wall: 1m, staging: 1MiB}
`

// trouble is what the next call meets. The zero value is none.
type trouble struct {
	create func() error        // of a group
	wait   func()              // while the tool runs
	usage  func(*cgroup.Usage) // what the kernel says
	stuck  func(sweep func())  // nothing is killed and nothing proven until sweep is called
	op     string              // method and site of a file operation, which fails once
	errno  unix.Errno
	ledger *dying // whose inject answers for the ledger
}

// walk is a served workspace, and what was heard of it.
type walk struct {
	*world
	s       *service
	tools   []string // values of the label
	client  *mcp.ClientSession
	side    string       // address of metrics and probes
	end     func() error // of the service, as by SIGTERM; it may be called again
	next    atomic.Pointer[trouble]
	answers []answer

	mu    sync.Mutex
	heard []heard           // guarded by mu
	log   map[string]string // guarded by mu: addresses, by what is there
}

// heard is one thing that the metrics were told, and that moves them.
type heard struct {
	what string
	tell func(*metrics.Sink)
}

// bearer adds a token to each request.
type bearer string

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// serve starts a service and connects a client.
func (w *world) serve(queue time.Duration) *walk {
	w.t.Helper()
	cfg, err := LoadConfig(Flags{Workspace: w.dir, Config: w.dir + ".yaml", Listen: "127.0.0.1:0", MetricsListen: "127.0.0.1:0"})
	ok(w.t, err)
	cfg.Grace, cfg.QueueTimeout = 50*time.Millisecond, queue
	shell, _ := cfg.Catalog.Tool("sh_run")
	panics := *shell
	panics.Name, panics.Parse = "sh_panics", func(adapters.Args, adapters.Run, fs.FS) adapters.Report { panic("parse") }
	cfg.Catalog, err = adapters.NewCatalog(shell, &panics)
	ok(w.t, err)
	w.cfg = cfg
	v := &walk{world: w, log: map[string]string{}}
	v.next.Store(&trouble{})
	for _, tool := range cfg.Catalog.Tools() {
		v.tools = append(v.tools, tool.Name)
	}
	v.tools = append(v.tools, "session", "run", "other")
	v.s = newService(cfg, ServeOptions{Version: "v1", Revision: "abc", Log: slog.New(slog.NewJSONHandler(v, nil))}, seams{
		fs: durabletest.Wrap(durable.OS(), v.file), sinks: []func(audit.Event){v.event}, fault: v.fault, noReaper: true,
		groups: func(g job.Groups) job.Groups { return met{g, v} },
	})
	v.s.seam.metrics = ear{v.s.seam.metrics, v}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- v.s.serve(ctx) }()
	v.end = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	w.t.Cleanup(func() { _ = v.end() }) // what it says is looked at by the test
	until(w.t, "the service serves", func() bool { return v.address("serving") != "" || len(ended) > 0 })
	if v.address("serving") == "" {
		w.t.Fatal(v.end())
	}
	v.side = v.address("metrics and probes")
	token, err := Token(cfg, false)
	ok(w.t, err)
	v.client, err = mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(context.Background(), &mcp.StreamableClientTransport{
		Endpoint: "http://" + v.address("serving"), MaxRetries: -1, DisableStandaloneSSE: true, HTTPClient: &http.Client{Transport: bearer(token)},
	}, nil)
	ok(w.t, err)
	return v
}

func (w *walk) engine() *Sidecar { return w.s.opened.Load().Sidecar }

// Write takes a line of the log.
func (w *walk) Write(line []byte) (int, error) {
	var said struct{ Msg string }
	err := json.Unmarshal(line, &said)
	what, at, _ := strings.Cut(said.Msg, " on http://")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log[what] = at
	return len(line), err
}

func (w *walk) address(what string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log[what]
}

func (w *walk) hear(what string, tell func(*metrics.Sink)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard = append(w.heard, heard{what, tell})
}

// event hears what the sink hears, of what it counts.
func (w *walk) event(e audit.Event) {
	if slices.Contains([]audit.Kind{audit.Commit, audit.Timeout, audit.Cancel, audit.Rollback, audit.Recovered}, e.Kind) {
		w.hear("event "+string(e.Kind), func(s *metrics.Sink) { s.Event(e) })
	}
}

// ear stands before the sink, and hears what that is told of answers.
type ear struct {
	job.Metrics
	w *walk
}

func (e ear) Finished(r job.Result, t job.Times) {
	e.w.hear("answer "+string(r.Code), func(s *metrics.Sink) { s.Finished(r, t) })
	e.Metrics.Finished(r, t)
}

func (w *walk) file(op durabletest.Op, do func() error) error {
	if t := w.next.Load(); t.op == op.Method+" "+string(op.Site) && w.next.CompareAndSwap(t, &trouble{}) {
		return t.errno
	}
	return do()
}

func (w *walk) fault(point string) error {
	if d := w.next.Load().ledger; d != nil {
		return d.inject(point)
	}
	return nil
}

// at makes the ledger answer code to an operation, before its COMMIT.
func at(op string, code int) trouble {
	return trouble{ledger: &dying{o: orders{Match: op, At: "before_commit", Code: code}, armed: true}}
}

// met are groups that meet the trouble of the time when they were made.
type met struct {
	job.Groups
	w *walk
}

type metGroup struct {
	job.Group
	t *trouble
}

type metProcess struct {
	job.Process
	t *trouble
}

func (m met) Create(ctx context.Context, name string, step int, l cgroup.Limits) (job.Group, error) {
	t := m.w.next.Load()
	if t.create != nil {
		if err := t.create(); err != nil {
			return nil, err
		}
	}
	g, err := m.Groups.Create(ctx, name, step, l)
	if err != nil {
		return nil, err
	}
	return metGroup{g, t}, nil
}

func (m met) Sweep(g job.Group, proved func(cgroup.Empty)) {
	ours := g.(metGroup)
	sweep := func() { m.Groups.Sweep(ours.Group, proved) }
	if ours.t.stuck != nil {
		ours.t.stuck(sweep)
		return
	}
	sweep()
}

func (g metGroup) Start(ctx context.Context, c cgroup.Command) (job.Process, error) {
	p, err := g.Group.Start(ctx, c)
	if err != nil {
		return nil, err
	}
	return metProcess{p, g.t}, nil
}

func (g metGroup) Terminate(ctx context.Context, grace time.Duration) (cgroup.Empty, error) {
	if g.t.stuck != nil {
		return cgroup.Empty{}, &cgroup.UnprovenError{Ref: g.Ref(), Reason: cgroup.Alive}
	}
	return g.Group.Terminate(ctx, grace)
}

func (g metGroup) Usage() (cgroup.Usage, error) {
	u, err := g.Group.Usage()
	if g.t.usage != nil {
		g.t.usage(&u)
	}
	return u, err
}

func (p metProcess) Wait(ctx context.Context) (cgroup.Exit, error) {
	if p.t.wait != nil {
		p.t.wait()
	}
	return p.Process.Wait(ctx)
}

// ask calls a tool over MCP.
func (w *walk) ask(tool string, args map[string]any) answer {
	w.t.Helper()
	a := <-w.asking(tool, args)
	if a.err != nil {
		w.t.Fatal(a.err)
	}
	return a
}

// asking is ask that does not wait.
func (w *walk) asking(tool string, args map[string]any) <-chan answer {
	answers := make(chan answer, 1)
	go func() { answers <- w.tryCall(tool, args) }()
	return answers
}

func (w *walk) tryCall(tool string, args map[string]any) (a answer) {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	defer cancel()
	began := time.Now()
	res, err := w.client.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		return answer{err: err}
	}
	a.took = time.Since(began)
	b, err := json.Marshal(res.StructuredContent)
	a.err = errors.Join(err, json.Unmarshal(b, &a.Result))
	return a
}

// script are the arguments of a call of the shell tool; without a session and a target it is a read.
func (w *world) script(session, text string, more ...any) map[string]any {
	args := map[string]any{"script": ": " + w.mark + " tool; " + text}
	if session != "" {
		args["session_id"], args["a"] = session, "a"
	}
	for pair := range slices.Chunk(more, 2) {
		args[pair[0].(string)] = pair[1]
	}
	return args
}

// take notes an answer, which must have this code.
func (w *walk) take(a answer, want job.Code, f far) answer {
	w.t.Helper()
	if a.Code != want {
		w.t.Fatalf("%s: got %s (%s), want %s; log %q", a.Tool, a.Code, a.Message, want, a.Log.Head)
	}
	a.far = f
	w.answers = append(w.answers, a)
	return a
}

// meets is a call of the shell tool that meets trouble.
func (w *walk) meets(t trouble, args map[string]any, want job.Code, f far) answer {
	w.t.Helper()
	w.next.Store(&t)
	defer w.next.Store(&trouble{})
	return w.take(w.ask("sh_run", args), want, f)
}

// call is meets without trouble.
func (w *walk) call(args map[string]any, want job.Code, f far) answer {
	w.t.Helper()
	return w.meets(trouble{}, args, want, f)
}

// session is an operation on a session that is counted.
func (w *walk) session(tool string, args map[string]any, want job.Code) string {
	w.t.Helper()
	a := w.ask(tool, args)
	a.Tool = job.SessionTool
	return w.take(a, want, 0).Session
}

// detached starts a call that goes on until it is ended, and returns its id once its tool runs.
func (w *walk) detached(session string, more ...any) string {
	w.t.Helper()
	runs := make(chan struct{})
	w.next.Store(&trouble{wait: sync.OnceFunc(func() { close(runs) })})
	defer w.next.Store(&trouble{})
	a := w.ask("sh_run", w.script(session, "echo new > $1; sleep 300", append(more, "detach", true)...))
	if a.Job == "" || a.Code != "" {
		w.t.Fatalf("detached: %+v", a.Result)
	}
	<-runs
	return a.Job
}

// direct is a call past the server, with what a client cannot ask for.
func (w *walk) direct(req job.Request, want job.Code, f far) answer {
	w.t.Helper()
	return w.take(answer{Result: w.s.opened.Load().registry.Start(req).Result()}, want, f)
}

// get reads a page of metrics and probes.
func (w *walk) get(path string) (status int, body string) {
	w.t.Helper()
	r, err := http.Get("http://" + w.side + path)
	ok(w.t, err)
	defer func() { _ = r.Body.Close() }() // read below
	b, err := io.ReadAll(r.Body)
	ok(w.t, err)
	return r.StatusCode, string(b)
}

// outcomesEnv tells a re-executed TestOutcomes the workspace of the first process.
const outcomesEnv = "EDA_SIDECAR_TEST_OUTCOMES"

// walked is what the first process leaves to the next one.
type walked struct {
	Session string
	Codes   []job.Code
}

// TestOutcomes walks one of every outcome, each by its own cause, and compares the whole page of metrics with the trail
// and the answers: in a process that is killed with a poisoned ledger and three open jobs, and in the next one, which
// recovers them and is drained.
func TestOutcomes(t *testing.T) {
	if dir := os.Getenv(outcomesEnv); dir != "" {
		(&world{t: t, dir: dir, mark: filepath.Base(dir)}).first()
		return
	}
	cgrouptest.Invariant(t)
	w := newWorld(t)
	w.write("a", "old")
	w.write("dir/b", "old")
	w.write("../"+w.mark+".yaml", walkTool)
	t.Cleanup(func() { ok(t, os.Remove(w.dir+".yaml")) })
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^TestOutcomes$")
	child.Env = append(os.Environ(), outcomesEnv+"="+w.dir)
	said, err := child.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the first process: %v\n%s", err, said)
	}
	var before walked
	ok(t, json.Unmarshal([]byte(w.read("walked")), &before))
	if n := len(w.alive()); n != 2 {
		t.Errorf("%d tools outlived the first process, want the running one and the one that was not proven dead", n)
	}
	next := w.serve(time.Minute)
	next.drained(before.Session)
	codes := append(before.Codes, next.codes()...)
	for _, c := range job.Codes() {
		if !slices.Contains(codes, c.Code) {
			t.Errorf("no call ended with %s", c.Code)
		}
	}
}

// first is the first process. It ends by SIGKILL, unless something is wrong.
func (w *world) first() {
	v := w.serve(100 * time.Millisecond)
	_, text := v.get("/metrics")
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if len(problems) > 0 || err != nil {
		w.t.Errorf("lint: %v %v", problems, err)
	}
	v.agrees("at the start", nil)
	session := v.live()
	v.poisoned()
	left, err := json.Marshal(walked{session, v.codes()})
	ok(w.t, err)
	w.write("walked", string(left))
	if !w.t.Failed() {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // of itself
		select {}
	}
}

func (w *walk) codes() (codes []job.Code) {
	for _, a := range w.answers {
		codes = append(codes, a.Code)
	}
	return codes
}

// live walks what a healthy engine can meet, in a session that goes on.
func (w *walk) live() (main string) {
	w.t.Helper()
	one := int64(1)
	main = w.session("session_open", map[string]any{"name": "main"}, job.OK)
	other := w.session("session_open", nil, job.OK)
	ran, changed := atKeys|atKill, atKeys|atKill|atPublish
	w.call(w.script(main, "echo new > $1"), job.OK, changed|atCommit)
	if a := w.call(w.script(main, "setsid sleep 300 & echo newer > $1"), job.OK, changed|atCommit); a.DescendantsKilled != 1 {
		w.t.Errorf("%d descendants atKill", a.DescendantsKilled)
	}
	w.call(w.script("", "true"), job.OK, atKill)
	w.call(w.script("", "false"), job.ToolFailed, atKill)
	w.call(w.script("", "sleep 300", "timeout_s", 1), job.ToolTimeout, atKill)
	w.call(w.script(main, "false"), job.ToolFailed, ran)
	w.call(w.script(main, "true"), job.OutputInvalid, ran)
	w.call(w.script(main, "head -c 3000000 /dev/zero > $1"), job.OutputLimit, ran)
	w.call(w.script(main, "echo new > $1; sleep 300", "timeout_s", 1), job.ToolTimeout, ran)
	w.call(w.script(uuid.NewString(), "true"), job.SessionNotFound, 0)
	w.call(w.script(main, "true", "a", "dir"), job.InvalidArgument, 0)
	if a := w.ask("sh_run", map[string]any{"a": "../b"}); a.Code != job.InvalidArgument || a.Job != "" { // no call of the tool, so it counts nowhere
		w.t.Errorf("a call without its script: %+v", a.Result)
	}
	if a := w.ask("session_open", map[string]any{"name": "main"}); a.Session != main { // nor is this one
		w.t.Errorf("a session that is there: %+v", a.Result)
	}

	id := w.detached(main)
	w.call(w.script(main, "true"), job.Busy, atKeys)
	w.take(w.ask("job_cancel", map[string]any{"job_id": id}), job.CodeCancelled, ran)
	id = w.detached(other)
	w.session("session_close", map[string]any{"session_id": other, "force": true}, job.OK)
	w.take(w.ask("job_wait", map[string]any{"job_id": id}), job.CodeCancelled, ran)
	w.call(w.script(other, "true"), job.SessionDestroyed, 0)

	w.meets(trouble{wait: func() { w.write("a", "theirs") }}, w.script(main, "echo new > $1"), job.OutputConflict, changed)
	w.meets(trouble{usage: func(u *cgroup.Usage) { u.OOMKills = &one }}, w.script(main, "echo new > $1"), job.OutOfMemory, ran)
	w.meets(trouble{usage: func(u *cgroup.Usage) { u.PidsMax = &one }}, w.script(main, "false"), job.ProcessLimit, ran)
	w.meets(trouble{op: "Mkdir txn.mkdir", errno: unix.ENOSPC}, w.script(main, "echo new > $1"), job.WorkspaceFull, ran)
	w.meets(trouble{op: "Exchange txn.publish.exchange", errno: unix.EIO}, w.script(main, "echo new > $1"), job.PublishFailed, changed)
	w.meets(trouble{create: func() error { return unix.EROFS }}, w.script(main, "echo new > $1"), job.ContainmentUnavailable, atKeys)
	w.meets(at(publishOp, full), w.script(main, "echo new > $1"), job.AuditUnavailable, changed)
	w.take(w.ask("sh_panics", w.script(main, "echo new > $1")), job.Internal, ran)
	command, args, err := adapters.Command([]string{"true"}, nil, false)
	ok(w.t, err)
	w.direct(job.Request{Tool: command, Args: args, Principal: me}, job.Denied, 0)
	missing, args, err := adapters.Command([]string{"no-such-program"}, nil, false)
	ok(w.t, err)
	w.direct(job.Request{Tool: missing, Args: args, Principal: me, Script: true}, job.ToolNotInstalled, 0)
	w.direct(job.Request{Tool: &adapters.Tool{Name: "forgotten"}, Principal: me, Refused: &job.Error{Code: job.Denied, Err: errors.New("it may not")}}, job.Denied, 0)
	w.agrees("after the walk", nil)

	var sweep func()
	w.meets(trouble{stuck: func(f func()) { sweep = f }}, w.script(main, "sleep 300", "timeout_s", 1), job.TerminationUnproven, atKeys)
	w.agrees("while a job is not proven dead", map[string]float64{"unproven_jobs": 1})
	sweep()
	until(w.t, "the proof", func() bool { return w.s.opened.Load().registry.Counts().Unproven == 0 })
	w.agrees("after the proof", nil)
	for _, finding := range w.dropped(nil) {
		w.t.Errorf("control: %s", finding)
	}
	return main
}

// poisoned ends with a commit in doubt, a job that is not proven dead, and one that runs.
func (w *walk) poisoned() {
	w.t.Helper()
	var sessions [4]string
	for i := range sessions {
		sessions[i] = w.session("session_open", nil, job.OK)
	}
	w.meets(trouble{stuck: func(func()) {}}, w.script(sessions[0], "sleep 300", "timeout_s", 1, "a", "b"), job.TerminationUnproven, atKeys)
	w.detached(sessions[1], "a", "c")
	w.rest()
	w.meets(at(commitOp, ioerr), w.script(sessions[2], "echo doubtful > $1"), job.CommitInDoubt, atKeys|atKill|atPublish|atCommit)
	w.call(w.script(sessions[3], "echo new > $1", "a", "d"), job.AuditUnavailable, atKeys|atKill)
	w.session("session_open", map[string]any{"name": "refused"}, job.AuditUnavailable)
	w.agrees("with a poisoned ledger", map[string]float64{"unproven_jobs": 1, "undecided_jobs": 1, "jobs_running": 1, "ledger_poisoned": 1, `ready{check="ledger"}`: 0})
	if status, body := w.get("/readyz"); status != http.StatusServiceUnavailable || !strings.HasPrefix(body, "[-] ledger: ") || strings.Count(body, "\n") != 2 {
		w.t.Errorf("readiness with a poisoned ledger: %d %q", status, body)
	}
}

// drained is the next process: it has recovered what the one before left open, and ends by a drain.
func (w *walk) drained(main string) {
	w.t.Helper()
	if n := w.ends(); n["recovered"] != 3 || len(w.alive()) > 0 {
		w.t.Errorf("recovered %v, alive: %v", n, w.alive())
	}
	w.agrees("after recovery", nil)
	runs := make(chan struct{})
	w.next.Store(&trouble{wait: sync.OnceFunc(func() { close(runs) })})
	running := w.asking("sh_run", w.script(main, "echo new > $1; sleep 300"))
	<-runs
	w.next.Store(&trouble{})
	queued := w.asking("sh_run", w.script(main, "echo newer > $1"))
	registry := w.s.opened.Load().registry
	until(w.t, "a queued call", func() bool { return registry.Counts().Queued == 1 })
	w.agrees("with a running and a queued call", map[string]float64{"jobs_running": 1, "jobs_queued": 1})
	_, err := Ask(context.Background(), w.cfg, true)
	ok(w.t, err)
	w.take(<-queued, job.ShuttingDown, atKeys)
	command, args, err := adapters.Command([]string{"true"}, nil, false)
	ok(w.t, err)
	w.direct(job.Request{Tool: command, Args: args, Principal: me, Script: true}, job.ShuttingDown, 0)
	w.agrees("while it drains", map[string]float64{"jobs_running": 1, `ready{check="serving"}`: 0})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ok(w.t, registry.Stop(ctx))
	w.take(<-running, job.ShuttingDown, atKeys|atKill)
	w.agrees("after it", map[string]float64{`ready{check="serving"}`: 0})
	for _, finding := range w.dropped(map[string]float64{`ready{check="serving"}`: 0}) {
		w.t.Errorf("control: %s", finding)
	}
	ok(w.t, w.client.Close())
	ok(w.t, w.end())
}
