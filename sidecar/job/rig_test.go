package job

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/cgroup/cgrouptest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/lock"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

func TestMain(m *testing.M) {
	cgroup.Child() // this binary is the probe of its own groups
	if err := cgroup.SecureProcess(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

const me = "me"

// parts are what a test puts around the real ones. Zero values leave them as they are.
type parts struct {
	fs     func(durable.FS) durable.FS
	fault  func(point string) error // of the ledger's writer
	groups hooks
	o      Options
	room   int64 // bytes that must be free
	leaks  bool  // a job is left open, with its group and its descriptors
}

// rig is a Runner on a real workspace, with a real ledger and real groups.
type rig struct {
	*Runner
	t      testing.TB
	dir    string
	parent *cgroup.Parent
}

func newRig(t *testing.T, p parts) *rig {
	t.Helper()
	cgrouptest.NeedRoot(t)
	cgrouptest.NeedCgroup2(t)
	if !p.leaks {
		cgrouptest.Invariant(t)
	}
	dir, err := os.MkdirTemp("/dev/shm", "job") // syncs are no news here, and free there
	ok(t, err)
	t.Cleanup(func() { ok(t, os.RemoveAll(dir)) })
	volume := durable.OS()
	if p.fs != nil {
		volume = p.fs(volume)
	}
	files, err := txn.Open(volume, dir, txn.Options{ToolUID: -1, ToolGID: -1, MinFreeBytes: p.room})
	ok(t, err)
	l, err := ledger.Open(t.Context(), ledger.Options{Dir: filepath.Join(dir, ".eda-sidecar", "state"), Fault: p.fault})
	ok(t, err)
	parent, err := cgroup.Open(t.Context(), cgroup.Options{Workspace: dir, NoReaper: true})
	ok(t, err)
	p.o.ToolUID, p.o.ToolGID = -1, -1
	p.o.Grace = cmp.Or(p.o.Grace, 50*time.Millisecond)
	p.o.Hidden = []string{filepath.Join(dir, ".eda-sidecar", "state")}
	r := &rig{t: t, dir: dir, parent: parent}
	r.Runner = NewRunner(files, dir, l, hooked{parent, &p.groups}, lock.New(lock.Options{}), p.o)
	if !p.leaks {
		cgrouptest.Invariant(t, parent.Capabilities().Dir)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		r.Close()
		if _, err := l.Verify(ctx); err != nil {
			t.Error(err)
		}
		ok(t, parent.Close(ctx))
		if p.leaks { // groups of a job that was left open are the next start's
			left, err := filepath.Glob(parent.Capabilities().Dir + "/*.[0-9]")
			ok(t, err)
			for _, dir := range append(left, parent.Capabilities().Dir) {
				ok(t, os.Remove(dir))
			}
		}
		if err := l.Close(ctx); err != nil && !p.leaks {
			t.Error(err)
		}
		ok(t, files.Close())
	})
	return r
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// hooks see, or replace, what jobs do with their groups. step counts from 0.
type hooks struct {
	create func(step int) error
	start  func(step int, c cgroup.Command) error
	wait   func(ctx context.Context, p *cgroup.Process) (cgroup.Exit, error)
	kill   func(g *cgroup.Group, step int) bool                       // false: nothing is killed
	empty  func(g *cgroup.Group, step int) (cgroup.Empty, error)      // the proof
	usage  func(*cgroup.Usage)                                        // what the kernel says
	remove func() bool                                                // false: it stays
	sweep  func(g *cgroup.Group, step int, proved func(cgroup.Empty)) // takes an unproven group
}

type hooked struct {
	*cgroup.Parent
	h *hooks
}

type hookedGroup struct {
	*cgroup.Group
	h    *hooks
	step int
}

type hookedProcess struct {
	*cgroup.Process
	h *hooks
}

func (p hooked) Create(ctx context.Context, job string, step int, l cgroup.Limits) (Group, error) {
	if p.h.create != nil {
		if err := p.h.create(step); err != nil {
			return nil, err
		}
	}
	g, err := p.Parent.Create(ctx, job, step, l)
	if err != nil {
		return nil, err
	}
	return hookedGroup{g, p.h, step}, nil
}

func (p hooked) Sweep(g Group, proved func(cgroup.Empty)) {
	ours := g.(hookedGroup)
	if p.h.sweep != nil {
		p.h.sweep(ours.Group, ours.step, proved)
		return
	}
	p.Parent.Sweep(ours.Group, proved)
}

func (g hookedGroup) Start(ctx context.Context, c cgroup.Command) (Process, error) {
	if g.h.start != nil {
		if err := g.h.start(g.step, c); err != nil {
			return nil, err
		}
	}
	p, err := g.Group.Start(ctx, c)
	if err != nil {
		return nil, err
	}
	return hookedProcess{p, g.h}, nil
}

func (g hookedGroup) Kill(ctx context.Context) (cgroup.Descendants, error) {
	if g.h.kill != nil && !g.h.kill(g.Group, g.step) {
		return cgroup.Descendants{}, nil
	}
	return g.Group.Kill(ctx)
}

func (g hookedGroup) WaitEmpty(ctx context.Context) (cgroup.Empty, error) {
	if g.h.empty != nil {
		return g.h.empty(g.Group, g.step)
	}
	return g.Group.WaitEmpty(ctx)
}

func (g hookedGroup) Terminate(ctx context.Context, grace time.Duration) (cgroup.Empty, error) {
	if g.h.empty != nil {
		return g.h.empty(g.Group, g.step)
	}
	return g.Group.Terminate(ctx, grace)
}

func (g hookedGroup) Usage() (cgroup.Usage, error) {
	u, err := g.Group.Usage()
	if g.h.usage != nil {
		g.h.usage(&u)
	}
	return u, err
}

func (g hookedGroup) Remove(e cgroup.Empty) {
	if g.h.remove == nil || g.h.remove() {
		g.Group.Remove(e)
	}
}

func (p hookedProcess) Wait(ctx context.Context) (cgroup.Exit, error) {
	if p.h.wait != nil {
		return p.h.wait(ctx, p.Process)
	}
	return p.Process.Wait(ctx)
}

// dead kills what is in g and proves it.
func dead(t testing.TB, g *cgroup.Group) cgroup.Empty {
	t.Helper()
	_, err := g.Kill(t.Context())
	ok(t, err)
	e, err := g.WaitEmpty(t.Context())
	ok(t, err)
	return e
}

// sh is a call of a shell script. outs are NAME=TARGET; {NAME} in the script is the staged path.
func (r *rig) sh(script string, outs ...string) Request {
	r.t.Helper()
	var all []adapters.Out
	for _, o := range outs {
		name, target, _ := strings.Cut(o, "=")
		all = append(all, adapters.Out{Name: name, Target: target})
	}
	tool, args, err := adapters.Command([]string{"sh", "-c", script}, all, false)
	ok(r.t, err)
	return Request{Tool: tool, Args: args, Digest: Digest(script), Principal: me, Script: true}
}

// with is a call of a tool of the test's own. outs are the targets of its output parameters, in their order.
func (r *rig) with(tool *adapters.Tool, outs ...string) Request {
	r.t.Helper()
	raw := map[string]json.RawMessage{}
	for i, target := range outs {
		raw[tool.Params[i].Name] = json.RawMessage(`"` + target + `"`)
	}
	args, err := tool.Decode(raw)
	ok(r.t, err)
	return Request{Tool: tool, Args: args, Digest: Digest(outs), Principal: me, Script: true}
}

// run runs a call under the test's context.
func (r *rig) run(req Request) Result {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return r.Run(ctx, req)
}

// must runs a call that has to commit, or to read to its end.
func (r *rig) must(req Request) Result {
	r.t.Helper()
	return r.want(req, OK)
}

// want runs a call that has to end with code.
func (r *rig) want(req Request, code Code) Result {
	r.t.Helper()
	res := r.run(req)
	if res.Code != code {
		r.t.Fatalf("got %s (%s), want %s; log %q", res.Code, res.Message, code, res.Log.Head)
	}
	return res
}

// write and read a file of the workspace. A file that is not there reads as "-".
func (r *rig) write(name, content string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	ok(r.t, os.MkdirAll(filepath.Dir(path), 0o755))
	ok(r.t, os.WriteFile(path, []byte(content), 0o644))
}

func (r *rig) read(name string) string {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return "-"
	}
	ok(r.t, err)
	return string(b)
}

// jobs lists the job directories that are left.
func (r *rig) jobs() (names []string) {
	r.t.Helper()
	entries, err := os.ReadDir(filepath.Join(r.dir, ".eda-sidecar", "jobs"))
	ok(r.t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// settled waits until what rides in the ledger is there.
func (r *rig) settled() {
	r.t.Helper()
	ticket, err := r.ledger.SetAgent("none")
	ok(r.t, err)
	<-ticket.Done()
	ok(r.t, ticket.Err())
}

// events are the events of a job, or with the empty id all of jobs, as written so far.
func (r *rig) events(q ledger.Query) (all []audit.Entry) {
	r.t.Helper()
	ok(r.t, r.ledger.Events(context.Background(), q, func(rec ledger.Record) error {
		e, err := audit.Decode(rec.Body)
		if !e.Kind.Housekeeping() {
			all = append(all, e)
		}
		return err
	}))
	return all
}

// kinds are the kinds of a job's events, in order.
func (r *rig) kinds(job string) string {
	r.t.Helper()
	r.settled()
	var kinds []string
	for _, e := range r.events(ledger.Query{Job: job}) {
		kinds = append(kinds, string(e.Kind))
	}
	return strings.Join(kinds, " ")
}

// order fails the test unless the job's events are these.
func (r *rig) order(job, want string) {
	r.t.Helper()
	if got := r.kinds(job); got != want {
		r.t.Errorf("events of the job: got %q, want %q", got, want)
	}
}

// key is the key of a target at the top of the workspace.
func (r *rig) key(target string) lock.Key {
	r.t.Helper()
	a, err := r.files.Admit([]txn.Spec{{Name: "a", Target: target, Kind: txn.File}})
	ok(r.t, err)
	defer a.Close()
	return PathKey(a.Chains()[0])
}

// held says what is wrong with the keys of a job that has not ended: nobody else may get its session or its target.
func (r *rig) held(target string) (findings []string) {
	r.t.Helper()
	row, err := r.OpenSession(context.Background(), me, "another")
	ok(r.t, err)
	for _, session := range []string{DefaultSession, row.ID} {
		out := target
		if session == DefaultSession {
			out = "free" // its session alone is held
		}
		req := r.sh("echo taken > {a}", "a="+out)
		req.Session = session
		if res := r.run(req); res.Code != Busy {
			findings = append(findings, "a call on "+out+" got "+string(res.Code))
		}
	}
	return findings
}

// phase is the phase of a job in the ledger; empty: no row.
func (r *rig) phase(job string) txn.Phase {
	r.t.Helper()
	row, err := r.ledger.Job(context.Background(), job)
	if errors.Is(err, ledger.ErrNotFound) {
		return ""
	}
	ok(r.t, err)
	return row.Phase
}

// until waits for cond, which another goroutine or the kernel brings about.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("timed out: %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

// alive reports whether a process is there, be it as a zombie.
func alive(pid int) bool {
	_, err := os.Stat("/proc/" + strconv.Itoa(pid))
	return err == nil
}

// events of the ways that a job can go.
const (
	committedOrder = "allow start commit"
	failedOrder    = "allow start error worker_terminated rollback"
	timeoutOrder   = "allow start timeout worker_terminated rollback"
	cancelOrder    = "allow start cancel worker_terminated rollback"
)

// script is a step that runs sh.
func script(name, text string) adapters.Step {
	return adapters.Step{Name: name, Argv: []string{"sh", "-c", text}}
}

// newTool is a tool of the test's own: its steps run sh, its outputs are files.
func newTool(outs []adapters.Param, plan func(adapters.Args) []adapters.Step) *adapters.Tool {
	return &adapters.Tool{
		Name: "test_tool", Title: "A test's tool", Doc: "Does what a test wants.", Trust: adapters.Declarative,
		Programs: []adapters.Program{{Key: "sh", Names: []string{"sh"}, Interpreter: true}}, Params: outs,
		Limits: adapters.Limits{Wall: 20 * time.Second, WallMax: time.Minute, MemoryBytes: 1 << 30, Pids: 100, StagingBytes: 64 << 20, LogBytes: 1 << 20},
		Plan:   func(a adapters.Args) (adapters.Invocation, error) { return adapters.Invocation{Steps: plan(a)}, nil },
		Parse: func(_ adapters.Args, run adapters.Run, _ fs.FS) adapters.Report {
			if slices.ContainsFunc(run.Exits, func(e adapters.StepExit) bool { return e.Code != 0 || e.Signal != "" }) {
				return adapters.Report{Verdict: adapters.Failed, Summary: "a step failed"}
			}
			return adapters.Report{Verdict: adapters.OK, Summary: "done"}
		},
	}
}

// output is an output parameter.
func output(name string, format adapters.Kind) adapters.Param {
	return adapters.Param{Name: name, Kind: adapters.Output, Format: format, Required: true, Doc: "an output"}
}
