// Package crash loses power at every step of jobs, in every way that a volume may lose it, and has the product recover each
// time: production jobs and publication on a volume in memory (durabletest.Strict), the production ledger in a file of
// its own, production recovery on what either keeps. What SQLite promises is an axiom here: the ledger keeps its transactions
// up to some one, all that were acknowledged among them; one whose COMMIT failed may be there or not.
// A second rig fails every operation of a job, and judges what is left by the same promises.
package crash

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/cgroup/cgrouptest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable/durabletest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/lock"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const (
	root = "/volume" // on which nothing real lies
	side = ".eda-sidecar"
)

// old is what the workspace holds before any job. A directory ends in a slash.
func old() map[string]string {
	files := map[string]string{"build/": "", "build/a": "old a", "rtl/": "", "rtl/b": "old b", "rtl/x": "old x", "sim/": ""}
	for name, content := range oldTree() {
		files["build/tree/"+name] = content
	}
	return files
}

func oldTree() map[string]string {
	return map[string]string{"": "", "one": "old one", "sub/": "", "sub/two": "old two"}
}

func newTree() map[string]string {
	return map[string]string{"": "", "one": "new one", "more/": "", "more/three": "new three"}
}

// Marks in a log. A transaction of the ledger is begun before its COMMIT; after it, it is done, or maybe.
type (
	begun  struct{}
	done   struct{ *book }
	maybe  struct{ *book } // its COMMIT failed
	answer struct {
		label string // of the job
		job.Result
	}
)

// world is a volume in memory, a ledger in a file, and an engine on both. Its log is what happened.
type world struct {
	t      testing.TB
	vol    *durabletest.Strict
	files  *txn.Workspace
	l      *ledger.Ledger
	runner *job.Runner

	mu sync.Mutex
	// guarded by mu
	fails map[durable.Site]error // once
	held  map[durable.Site]*gate
	lies  error // the answer to the COMMIT of the first job that commits
	armed bool  // its statement was seen
}

// gate holds the next operation at a site.
type gate struct{ reached, open chan struct{} }

func newWorld(t testing.TB, wrap func(durable.FS) durable.FS) *world {
	t.Helper()
	w := &world{t: t, vol: durabletest.NewStrict(), fails: map[durable.Site]error{}, held: map[durable.Site]*gate{}}
	for _, name := range slices.Sorted(maps.Keys(old())) {
		write(t, w.vol, name, old()[name])
	}
	var volume durable.FS = durabletest.Wrap(w.vol, w.hook)
	if wrap != nil {
		volume = wrap(volume)
	}
	files, err := txn.Open(volume, root, txn.Options{ToolUID: -1, ToolGID: -1, BootID: "before"})
	ok(t, err)
	dir, err := os.MkdirTemp("/dev/shm", "crash") // syncs are no news here, and free there
	ok(t, err)
	t.Cleanup(func() { ok(t, os.RemoveAll(dir)) })
	l, err := ledger.Open(t.Context(), ledger.Options{Dir: dir, Fault: w.fault})
	ok(t, err)
	w.files = files
	w.vol.Settle()
	w.mu.Lock()
	w.l = l
	w.mu.Unlock()
	w.vol.Mark(done{snapshot(t, l)})
	w.runner = job.NewRunner(files, root, l, groups{w}, lock.New(lock.Options{}), job.Options{BootID: "before", ToolUID: -1, ToolGID: -1})
	return w
}

// close does what waits, and returns the log.
func (w *world) close() []durabletest.Step {
	w.t.Helper()
	w.runner.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := w.l.Close(ctx); err != nil && w.l.Poisoned() == nil {
		w.t.Fatal(err)
	}
	return w.vol.Log()
}

// write makes a file, or of a name with a slash at its end a directory, and what leads to it.
func write(t testing.TB, vol *durabletest.Strict, name, content string) {
	t.Helper()
	h, err := vol.OpenRoot("test", "")
	ok(t, err)
	parts := strings.Split(name, "/")
	for i, part := range parts {
		at := durable.Name{Dir: h, Name: part}
		if i < len(parts)-1 {
			_ = vol.Mkdir("test", at, 0o755) // it may be there
			h, err = vol.OpenDir("test", at)
			ok(t, err)
		} else if part != "" {
			h, err = vol.Create("test", at, 0o644)
			ok(t, err)
			ok(t, vol.WriteAt("test", h, []byte(content), 0))
		}
	}
}

func (w *world) hook(op durabletest.Op, do func() error) error {
	w.mu.Lock()
	err, g := w.fails[op.Site], w.held[op.Site]
	delete(w.fails, op.Site)
	delete(w.held, op.Site)
	w.mu.Unlock()
	if g != nil {
		close(g.reached)
		<-g.open
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op.Site, err)
	}
	return do()
}

// hold holds the next operation at a site.
func (w *world) hold(site durable.Site) *gate {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := &gate{make(chan struct{}), make(chan struct{})}
	w.held[site] = g
	return g
}

// fail makes the next operation at a site fail.
func (w *world) fail(site durable.Site, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fails[site] = err
}

func (w *world) wait(what string, c <-chan struct{}) {
	w.t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		w.t.Fatalf("timed out: %s", what)
	}
}

// sqlite is an error as the driver gives it.
type sqlite int

func (e sqlite) Error() string { return fmt.Sprintf("sqlite %d", int(e)) }
func (e sqlite) Code() int     { return int(e) }

// fault notes every COMMIT, and what the ledger holds after it.
func (w *world) fault(point string) error {
	w.mu.Lock()
	l, lies := w.l, w.lies
	if strings.HasPrefix(point, "after ") && strings.Contains(point, "SET phase = 'committed'") {
		w.armed = lies != nil
	}
	armed := w.armed
	w.mu.Unlock()
	switch {
	case l == nil: // it is being opened
	case point == "before COMMIT":
		w.vol.Mark(begun{})
	case point == "after COMMIT" && armed:
		w.mu.Lock()
		w.armed, w.lies = false, nil
		w.mu.Unlock()
		w.vol.Mark(maybe{snapshot(w.t, l)})
		return lies
	case point == "after COMMIT":
		w.vol.Mark(done{snapshot(w.t, l)})
	}
	return nil
}

// start runs a job of a principal, by its label, and marks its answer.
func (w *world) start(label, principal string, targets ...string) <-chan struct{} {
	tool := &adapters.Tool{
		Name: "tool", Title: "A test's tool", Doc: "Writes its outputs.", Trust: adapters.Declarative,
		Programs: []adapters.Program{{Key: "sh", Names: []string{"sh"}, Interpreter: true}},
		Limits:   adapters.Limits{Wall: time.Minute, WallMax: time.Minute, MemoryBytes: 1 << 30, Pids: 9, StagingBytes: 1 << 20, LogBytes: 1 << 20},
		Parse: func(adapters.Args, adapters.Run, fs.FS) adapters.Report {
			return adapters.Report{Verdict: adapters.OK, Summary: "done"}
		},
	}
	raw := map[string]json.RawMessage{}
	for i, target := range targets {
		name := fmt.Sprintf("o%d", i)
		raw[name] = json.RawMessage(`"` + target + `"`)
		// Validators look where nothing is: this volume has no path. What is optional may be missing to them.
		tool.Params = append(tool.Params, adapters.Param{Name: name, Kind: adapters.Output, Format: adapters.KindFile, Doc: "an output", Optional: true})
	}
	tool.Plan = func(a adapters.Args) (adapters.Invocation, error) {
		argv := []string{"sh", label}
		for i := range targets {
			argv = append(argv, a.Staged(fmt.Sprintf("o%d", i)))
		}
		return adapters.Invocation{Steps: []adapters.Step{{Name: "sh", Argv: argv}}}, nil
	}
	args, err := tool.Decode(raw)
	ok(w.t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		res := w.runner.Run(context.Background(), job.Request{Tool: tool, Args: args, Digest: job.Digest(targets), Principal: principal, RequestID: label, Script: true})
		w.vol.Mark(answer{label, res})
	}()
	return ended
}

// content is what the job of a label writes as output i.
func content(label string, i int) string { return fmt.Sprintf("new %s %d", label, i) }

// groups start nothing: the tool is a function here, which writes its outputs and is dead.
type groups struct{ w *world }

type group struct {
	ref cgroup.Ref
	w   *world
}

type process struct{}

func (g groups) Create(_ context.Context, name string, step int, _ cgroup.Limits) (job.Group, error) {
	return group{cgrouptest.Ref(fmt.Sprintf("%s.%d", name, step)), g.w}, nil
}
func (groups) Sweep(job.Group, func(cgroup.Empty)) {}
func (groups) Capabilities() cgroup.Capabilities   { return cgroup.Capabilities{LandlockABI: 7} }

func (g group) Start(_ context.Context, c cgroup.Command) (job.Process, error) {
	for i, out := range c.Args[2:] {
		name, _ := strings.CutPrefix(path.Join(c.Dir, out), root+"/")
		write(g.w.t, g.w.vol, name, content(c.Args[1], i))
	}
	return process{}, nil
}

func (g group) Ref() cgroup.Ref { return g.ref }

func (g group) Kill(context.Context) (cgroup.Descendants, error) { return cgroup.Descendants{}, nil }

func (g group) Terminate(context.Context, time.Duration) (cgroup.Empty, error) {
	return cgrouptest.Empty(g.ref), nil
}

func (g group) WaitEmpty(context.Context) (cgroup.Empty, error) { return cgrouptest.Empty(g.ref), nil }
func (g group) Usage() (cgroup.Usage, error)                    { return cgroup.Usage{}, nil }
func (g group) Remove(cgroup.Empty)                             {}

func (process) PID() int              { return 1 }
func (process) Output() cgroup.Output { return cgroup.Output{} }
func (process) Wait(context.Context) (cgroup.Exit, error) {
	return cgroup.Exit{At: time.Now()}, nil
}
