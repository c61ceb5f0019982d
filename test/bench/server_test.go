package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/eda-sidecar/eda-sidecar/test/bench/sample"
)

// TestMain is the bare server, too, when the benchmark starts this program under its name.
func TestMain(m *testing.M) {
	if os.Args[0] == "bare-server" {
		fmt.Fprintln(os.Stderr, "bare server:", bare())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// bare serves one tool that does nothing by the SDK alone, each era at its path, and prints where.
func bare() error {
	s := mcp.NewServer(&mcp.Implementation{Name: "bare", Version: "1"}, nil)
	s.AddTool(&mcp.Tool{Name: "noop", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil
	})
	for path, o := range map[string]*mcp.StreamableHTTPOptions{"/A": {Stateless: true, PropagateRequestCancellation: true}, "/B": {}} {
		http.Handle(path, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, o))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "serving on http://"+l.Addr().String())
	return (&http.Server{ReadHeaderTimeout: time.Second}).Serve(l)
}

// versions are the protocol's revisions of the two eras.
var versions = map[string]string{"A": "2026-07-28", "B": "2025-11-25"}

// process is a server in a process of its own.
type process struct {
	b         *testing.B
	cmd       *exec.Cmd
	mcp, side string // URLs: of MCP, of metrics
}

// launch starts a server, and returns when it has told all URLs that are to be filled in, by the words before them.
func launch(b *testing.B, c *exec.Cmd, told map[string]*string) {
	stderr, err := c.StderrPipe()
	ok(b, err)
	ok(b, c.Start())
	b.Cleanup(func() {
		ok(b, c.Process.Signal(syscall.SIGTERM))
		_ = c.Wait() // the bare one ends by the signal
	})
	var said strings.Builder
	for log := bufio.NewScanner(stderr); len(told) > 0; said.WriteString(log.Text() + "\n") {
		if !log.Scan() {
			b.Fatalf("%s ended before it served: %s", c.Path, said.String())
		}
		for words, url := range told {
			if m := regexp.MustCompile(words + ` on (http://[0-9.:]+)`).FindStringSubmatch(log.Text()); m != nil {
				*url = m[1]
				delete(told, words)
			}
		}
	}
	go func() { _, _ = io.Copy(io.Discard, stderr) }() // ends with the process
}

// tools are those of the benchmarks: a read that starts a small program, and a script of the caller that may write a.
const tools = `allow_script: true
rate_limit: 1000000
grace: 1ms
drain_timeout: 1ms
tools:
- name: echo_run
  doc: Says END.
  trust: declarative
  program: {name: echo, interpreter: true}
  steps: [{name: run, argv: [echo, END]}]
  verdict: {require: ['^END$']}
- name: sh_run
  doc: Runs a shell script of the caller.
  trust: script
  program: {name: sh, interpreter: true}
  params:
    - {name: script, kind: text, pattern: '[ -~]+', max_length: 4096, required: true}
    - {name: a, kind: output, format: text}
  steps: [{name: run, argv: [sh, -c, 'eval "$0" && echo END', "{{script}}", {arg: "{{a}}", when: a}]}]
  verdict: {require: ['^END$']}
  limits: {wall: 5m, pids: 4096}
`

// serve starts the built program on a workspace of its own.
func serve(b *testing.B) *process {
	dir, state, config := b.TempDir(), b.TempDir(), filepath.Join(b.TempDir(), "config.yaml")
	ok(b, os.Mkdir(filepath.Join(dir, "build"), 0o755))
	ok(b, os.Chmod(state, 0o700))
	ok(b, os.WriteFile(filepath.Join(state, "token"), []byte(token), 0o600))
	ok(b, os.WriteFile(config, []byte(tools), 0o644))
	p := &process{b: b}
	p.cmd = exec.Command(program(b), "serve", "-w", dir, "--state-dir", state, "--config", config, "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
	launch(b, p.cmd, map[string]*string{"serving": &p.mcp, "metrics and probes": &p.side})
	p.mcp += "/mcp"
	return p
}

// token is that of the servers; the bare one wants none.
const token = "0000000000000000000000000000000000000000"

// bearer adds the token to each request.
type bearer struct{ http.Transport }

// RoundTrip implements http.RoundTripper.
func (t *bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return t.Transport.RoundTrip(r)
}

// connect returns a client that speaks to an endpoint in an era.
func connect(b *testing.B, endpoint, era string) *mcp.ClientSession {
	c, err := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(b.Context(), &mcp.StreamableClientTransport{
		Endpoint: endpoint, HTTPClient: &http.Client{Transport: &bearer{http.Transport{MaxIdleConnsPerHost: 256}}}, MaxRetries: -1, DisableStandaloneSSE: true,
	}, &mcp.ClientSessionOptions{ProtocolVersion: versions[era]})
	ok(b, err)
	if got := c.InitializeResult().ProtocolVersion; got != versions[era] {
		b.Fatalf("%s speaks %s, want %s", endpoint, got, versions[era])
	}
	b.Cleanup(func() { _ = c.Close() }) // it sends what the server needs no more
	return c
}

// answer is what the benchmarks read of a result.
type answer struct {
	Code    string `json:"code"`
	Job     string `json:"job_id"`
	Session string `json:"session_id"`
	Log     struct {
		Tail string `json:"tail"`
	} `json:"log"`
}

// ask calls a tool. It may be called by any goroutine, so it panics where want, a code, is not what comes.
func ask(ctx context.Context, c *mcp.ClientSession, want, tool string, args map[string]any) (a answer) {
	res, err := c.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		panic(err)
	}
	if text, err := json.Marshal(res.StructuredContent); err != nil || json.Unmarshal(text, &a) != nil || a.Code != want {
		panic(fmt.Sprintf("%s: code %q, want %q: %s, %v", tool, a.Code, want, text, err))
	}
	return a
}

// sessions opens n sessions.
func sessions(ctx context.Context, c *mcp.ClientSession, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = ask(ctx, c, "OK", "session_open", map[string]any{"name": fmt.Sprint("s", i)}).Session
	}
	return ids
}

// script starts a script that prints READY, detached, and returns its job once it has.
func script(ctx context.Context, c *mcp.ClientSession, session, text, target string) string {
	id := ask(ctx, c, "", "sh_run", map[string]any{"script": text, "session_id": session, "a": target, "detach": true}).Job
	for !strings.Contains(ask(ctx, c, "", "job_wait", map[string]any{"job_id": id, "wait_seconds": 0}).Log.Tail, "READY") {
		continue // each look is a call
	}
	return id
}

// metric reads a series of the server that has no labels.
func (p *process) metric(name string) float64 {
	r, err := http.Get(p.side + "/metrics")
	ok(p.b, err)
	text, err := io.ReadAll(r.Body)
	ok(p.b, err)
	ok(p.b, r.Body.Close())
	_, rest, _ := strings.Cut(string(text), "\n"+name+" ")
	value, _, _ := strings.Cut(rest, "\n")
	v, err := strconv.ParseFloat(value, 64)
	ok(p.b, err)
	return v
}

// MiB is the server's resident memory.
func (p *process) MiB() float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	ok(p.b, err)
	var kib float64
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	_, err = fmt.Sscan(rest, &kib)
	ok(p.b, err)
	return kib / 1024
}

// BenchmarkCall is what one call costs: of a tool that reads a session, beside one that does nothing on a bare server of the
// same SDK, and of a tool that starts a program, beside what that may cost.
func BenchmarkCall(b *testing.B) {
	p, m, plain := serve(b), sample.Modes{}, ""
	launch(b, &exec.Cmd{Path: "/proc/self/exe", Args: []string{"bare-server"}}, map[string]*string{"serving": &plain})
	ours, theirs := map[string]*mcp.ClientSession{}, map[string]*mcp.ClientSession{}
	for era := range versions {
		ours[era], theirs[era] = connect(b, p.mcp, era), connect(b, plain+"/"+era, era)
	}
	show := map[string]any{"session_id": sessions(b.Context(), ours["A"], 1)[0]}
	for i := 0; b.Loop(); i++ {
		for era := range versions {
			m.Time("show-"+era, func() { ask(b.Context(), ours[era], "OK", "session_show", show) })
			m.Time("noop-"+era, func() {
				_, err := theirs[era].CallTool(b.Context(), &mcp.CallToolParams{Name: "noop"})
				ok(b, err)
			})
		}
		m.Time("read", func() { ask(b.Context(), ours["A"], "OK", "echo_run", nil) })
		m.Time("exec", func() { ok(b, exec.Command("/bin/echo", "END").Run()) })
		m["allowed"] = append(m["allowed"], m["show-A"][i]+5*time.Millisecond+m["exec"][i]*3/2)
	}
	m.Report(b)
}

// BenchmarkJobs is whole calls of 1, 8 and 64 sessions at once that publish one file of 4 KiB, and the same script started
// plainly, as often at once, its file synced and renamed.
func BenchmarkJobs(b *testing.B) {
	const calls, text = 64, `printf "%4095s\n" x > $1`
	p, dir := serve(b), b.TempDir()
	c := connect(b, p.mcp, "A")
	ids := sessions(b.Context(), c, calls)
	parent, err := os.Open(dir)
	ok(b, err)
	careful := func(name string) {
		path := filepath.Join(dir, name)
		ok(b, exec.Command("sh", "-c", `eval "$0" && echo END`, text, path+".tmp").Run())
		f, err := os.Open(path + ".tmp")
		ok(b, err)
		ok(b, f.Sync())
		ok(b, f.Close())
		ok(b, os.Rename(path+".tmp", path))
		ok(b, parent.Sync())
	}
	took := map[string]time.Duration{}
	for b.Loop() {
		for _, n := range []int{1, 8, 64} {
			for mode, one := range map[string]func(int){
				"jobs": func(s int) {
					ask(b.Context(), c, "OK", "sh_run", map[string]any{"script": text, "session_id": ids[s], "a": fmt.Sprint("build/", s)})
				},
				"floor": func(s int) { careful(fmt.Sprint(s)) },
			} {
				began := time.Now()
				var all sync.WaitGroup
				for s := range n {
					all.Go(func() {
						for range calls / n {
							one(s)
						}
					})
				}
				all.Wait()
				took[fmt.Sprintf("%s-%d", mode, n)] += time.Since(began)
			}
		}
	}
	for mode, d := range took {
		b.ReportMetric(float64(b.N*calls)/d.Seconds(), mode+"-per-s")
	}
}

// BenchmarkCancel cancels a tool of ten processes that hear no SIGTERM: from the call to its answer, without what the kill
// took, and that, from the kill to the proof.
func BenchmarkCancel(b *testing.B) {
	p, m := serve(b), sample.Modes{}
	c := connect(b, p.mcp, "A")
	session := sessions(b.Context(), c, 1)[0]
	kills := func() time.Duration {
		return time.Duration(p.metric("eda_sidecar_kill_duration_seconds_sum") * float64(time.Second))
	}
	for b.Loop() {
		id := script(b.Context(), c, session, `trap "" TERM; for i in 1 2 3 4 5 6 7 8 9; do sleep 1000 & done; echo READY; wait`, "build/a")
		before, began := kills(), time.Now()
		ask(b.Context(), c, "CANCELLED", "job_cancel", map[string]any{"job_id": id})
		answered := time.Since(began)
		kill := kills() - before
		m["kill"], m["beyond"] = append(m["kill"], kill), append(m["beyond"], answered-kill)
	}
	m.Report(b)
}

// BenchmarkLoad is the server's memory when nothing is asked of it, with 64 jobs, and with 200 calls that wait for them, and
// how fast it then answers a ping.
func BenchmarkLoad(b *testing.B) {
	const jobs, waits, pings = 64, 200, 500
	for b.Loop() {
		p, m := serve(b), sample.Modes{}
		idle := p.MiB()
		c, pinger := connect(b, p.mcp, "A"), connect(b, p.mcp, "B")
		ping := func(mode string) {
			for range pings {
				m.Time(mode, func() { ok(b, pinger.Ping(b.Context(), nil)) })
			}
		}
		ids := sessions(b.Context(), c, jobs)
		for i, session := range ids {
			ids[i] = script(b.Context(), c, session, "echo READY; exec sleep 1000", fmt.Sprint("build/", i))
		}
		running := p.MiB()
		ping("alone")
		before := p.metric("go_goroutines")
		ctx, leave := context.WithCancel(b.Context())
		var all sync.WaitGroup
		for i := range waits {
			all.Go(func() {
				_, err := c.CallTool(ctx, &mcp.CallToolParams{Name: "job_wait", Arguments: map[string]any{"job_id": ids[i%jobs], "wait_seconds": 50}})
				if ctx.Err() == nil {
					panic(fmt.Sprintf("job_wait did not wait: %v", err))
				}
			})
		}
		for p.metric("go_goroutines") < before+waits {
			continue // each look is a request
		}
		ping("ping")
		waiting := p.MiB()
		leave()
		all.Wait()
		m.Report(b)
		for what, v := range map[string]float64{"idle-MiB": idle, "jobs-MiB": running, "waits-MiB": waiting, "KiB-a-wait": (waiting - running) * 1024 / waits} {
			b.ReportMetric(v, what)
		}
	}
}
