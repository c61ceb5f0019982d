package cgroup

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// world is a Parent with a workspace and one job directory, as the engine would lay it out.
type world struct {
	t                  testing.TB
	p                  *Parent
	ws, job, work, s0  string
	target, state, log string
	mark               string // in the environment of everything that the world's tools start
	next               int
}

func newWorld(t testing.TB, o Options) *world {
	t.Helper()
	w := &world{t: t, ws: t.TempDir(), mark: "MARK=" + uuid.NewString()}
	w.job = filepath.Join(w.ws, stateName, "jobs", "j")
	w.work, w.s0 = filepath.Join(w.job, "work"), filepath.Join(w.job, "s0")
	w.target, w.state, w.log = filepath.Join(w.ws, "target"), filepath.Join(w.ws, stateName, "state"), filepath.Join(w.job, "log")
	for _, d := range []string{w.work, w.s0, filepath.Join(w.ws, "sub")} {
		ok(t, os.MkdirAll(d, 0o755))
	}
	for _, f := range []string{w.target, w.state, filepath.Join(w.ws, "sub", "input")} {
		ok(t, os.WriteFile(f, []byte("old"), 0o644))
	}
	w.open(o)
	return w
}

// open opens the world's Parent (again), and closes it after the test.
func (w *world) open(o Options) {
	w.t.Helper()
	o.Workspace, o.NoReaper = w.ws, true
	if refusedClone3() {
		invariant(w.t)
	}
	p, err := Open(context.Background(), o)
	ok(w.t, err)
	invariant(w.t, p.caps.Dir)
	w.t.Cleanup(func() { w.close(p) })
	if want := map[bool]Entry{false: EntryClone3, true: EntryShim}[refusedClone3()]; p.caps.Entry != want {
		w.t.Fatalf("entry is %q, want %q: %+v", p.caps.Entry, want, p.caps)
	}
	w.p = p
}

func (w *world) close(p *Parent) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	ok(w.t, p.Close(ctx))
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func closeIt(t testing.TB, c io.Closer) {
	t.Helper()
	ok(t, c.Close())
}

func deadline(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func (w *world) create() *Group {
	w.t.Helper()
	w.next++
	g, err := w.p.Create(context.Background(), "job", w.next, Limits{})
	ok(w.t, err)
	w.t.Cleanup(func() { // whatever the test did
		_, err := g.Kill(context.Background())
		ok(w.t, err)
		e, err := g.WaitEmpty(context.Background())
		ok(w.t, err)
		g.Remove(e)
	})
	return g
}

func (w *world) command(args ...string) Command {
	return Command{
		Path: selfExe, Args: append([]string{villainName}, args...), Dir: w.work, Linger: NoLinger,
		Env:     append(BaseEnv(filepath.Join(w.job, "tmp"), "/usr/bin:/bin"), w.mark),
		Sandbox: Sandbox{Job: []string{w.work, w.s0}, Workspace: w.ws, UID: -1, GID: -1},
	}
}

// start starts a villain in a group of its own.
func (w *world) start(args ...string) (*Group, *Process) {
	w.t.Helper()
	g := w.create()
	p, err := g.Start(context.Background(), w.command(args...))
	ok(w.t, err)
	return g, p
}

// run lets a villain run to its end and returns its lines of output.
func (w *world) run(c Command) []string {
	w.t.Helper()
	g := w.create()
	p, err := g.Start(context.Background(), c)
	ok(w.t, err)
	exit, err := p.Wait(deadline(w.t, 20*time.Second))
	ok(w.t, err)
	w.prove(g)
	out := p.Output().Head
	if exit.Code != 0 || bytes.Contains(out, []byte("villain:")) {
		w.t.Fatalf("%v: %+v, output %q", c.Args, exit, out)
	}
	return slices.Collect(strings.FieldsFuncSeq(string(out), func(r rune) bool { return r == '\n' }))
}

func (w *world) prove(g *Group) Empty {
	w.t.Helper()
	_, err := g.Kill(context.Background())
	ok(w.t, err)
	e, err := g.WaitEmpty(context.Background())
	ok(w.t, err)
	if !e.Proves(g.Ref()) {
		w.t.Fatalf("%+v does not prove %+v", e, g.Ref())
	}
	return e
}

// until waits for cond, which the kernel brings about.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("timed out: %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

// printed waits for a line of output.
func printed(t testing.TB, p *Process, line string) {
	t.Helper()
	until(t, "output "+line, func() bool { return slices.Contains(strings.Split(string(p.Output().Head), "\n"), line) })
}

// marked lists the living processes with mark in their environment.
func (w *world) marked() (pids []int) {
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	ok(w.t, err)
	for _, file := range all {
		env, err := os.ReadFile(file) // it may be gone, and then it is not alive
		if err == nil && strings.Contains("\x00"+string(env), "\x00"+w.mark+"\x00") {
			pid, err := strconv.Atoi(strings.Split(file, "/")[2])
			ok(w.t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

func (g *Group) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.descendantsLocked().Count
}

func refusedClone3() bool { return os.Getenv("EDA_TEST_REFUSE_CLONE3") != "" }

func killAll(t testing.TB, pids []int) {
	for _, pid := range pids { // found by their mark: ours
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
			t.Error(err)
		}
	}
}
