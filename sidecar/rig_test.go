package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/cgroup/cgrouptest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

func TestMain(m *testing.M) {
	cgroup.Child() // this binary is the probe of its own groups
	if err := cgroup.SecureProcess(); err != nil {
		panic(err)
	}
	if text := os.Getenv(childEnv); text != "" {
		childMain(text)
	}
	os.Exit(m.Run())
}

const me = "me"

// world is a workspace, and engines on it one after another.
type world struct {
	t    testing.TB
	dir  string
	cfg  Config
	mark string // in the command line of everything that its tools start
}

func newWorld(t testing.TB) *world {
	t.Helper()
	cgrouptest.NeedRoot(t)
	cgrouptest.NeedCgroup2(t)
	dir, err := os.MkdirTemp("/dev/shm", "sidecar") // syncs are no news here, and free there
	ok(t, err)
	w := &world{t: t, dir: dir, mark: filepath.Base(dir)}
	w.cfg, err = LoadConfig(Flags{Workspace: dir})
	ok(t, err)
	w.cfg.QueueTimeout = 100 * time.Millisecond
	w.cfg.Grace = 50 * time.Millisecond
	t.Cleanup(func() {
		if pids := w.alive(); len(pids) > 0 {
			t.Errorf("alive: %v", pids)
			for _, pid := range pids { // found by the mark: ours
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone
			}
		}
		ok(t, os.RemoveAll(dir))
	})
	return w
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until waits for cond, which another process or the kernel brings about.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("timed out: %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

// alive lists the living processes of the world's tools.
func (w *world) alive() (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is well-formed
	for _, file := range all {
		text, err := os.ReadFile(file) // it may be gone, and then it is not alive
		var pid int
		if err == nil && strings.Contains(string(text), w.mark+" tool") {
			if _, err := fmt.Sscanf(file, "/proc/%d/", &pid); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// engine is an open Sidecar of a world.
type engine struct {
	*Sidecar
	w *world
}

// open opens an engine that must open, and do what a dry run says. It is closed by the test, or after it.
func (w *world) open() *engine {
	w.t.Helper()
	dry, err := DryRun(context.Background(), w.cfg)
	ok(w.t, err)
	s, err := w.try(seams{})
	ok(w.t, err)
	for i := range dry {
		dry[i].If = ""
	}
	if done := s.Recovered; !reflect.DeepEqual(dry, done) && len(dry)+len(done) > 0 {
		w.t.Errorf("a dry run said %+v, recovery did %+v", dry, done)
	}
	e := &engine{s, w}
	w.t.Cleanup(func() { _ = s.Close() }) // it may be closed
	return e
}

func (w *world) try(seam seams) (*Sidecar, error) {
	seam.noReaper = true
	if seam.fs == nil {
		seam.fs = durable.OS()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return open(ctx, w.cfg, seam)
}

// close closes an engine in order: its trail verifies, and no group is left.
func (e *engine) close() {
	e.w.t.Helper()
	if _, err := e.Ledger.Verify(context.Background()); err != nil {
		e.w.t.Error(err)
	}
	dir := e.groups.Capabilities().Dir
	ok(e.w.t, e.Close())
	if entries, err := os.ReadDir(dir); !errors.Is(err, os.ErrNotExist) {
		e.w.t.Errorf("groups left: %v %v", entries, err)
	}
}

// request is a call of a shell script. outs are NAME=TARGET.
func (w *world) request(script string, outs ...string) job.Request {
	w.t.Helper()
	return request(w.t, ": "+w.mark+" tool\n"+script, outs)
}

func request(t testing.TB, script string, outs []string) job.Request {
	var all []adapters.Out
	for _, o := range outs {
		name, target, _ := strings.Cut(o, "=")
		all = append(all, adapters.Out{Name: name, Target: target})
	}
	tool, args, err := adapters.Command([]string{"sh", "-c", script}, all, false)
	if t != nil {
		ok(t, err)
	} else if err != nil {
		panic(err)
	}
	return job.Request{Tool: tool, Args: args, Digest: job.Digest(script), Principal: me, RequestID: "r1", Script: true}
}

// want runs a script that must end with code.
func (e *engine) want(code job.Code, script string, outs ...string) job.Result {
	e.w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	res := e.Runner.Run(ctx, e.w.request(script, outs...))
	if res.Code != code {
		e.w.t.Fatalf("got %s (%s), want %s; log %q", res.Code, res.Message, code, res.Log.Head)
	}
	return res
}

func (w *world) write(name, content string) {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	ok(w.t, os.MkdirAll(filepath.Dir(path), 0o755))
	ok(w.t, os.WriteFile(path, []byte(content), 0o644))
}

// read reads a file of the workspace. One that is not there reads as "-".
func (w *world) read(name string) string {
	w.t.Helper()
	b, err := os.ReadFile(filepath.Join(w.dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return "-"
	}
	ok(w.t, err)
	return strings.TrimSpace(string(b))
}

// side lists a directory of .eda-sidecar.
func (w *world) side(name string) (names []string) {
	w.t.Helper()
	entries, err := os.ReadDir(filepath.Join(w.dir, ".eda-sidecar", name))
	ok(w.t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// snapshot describes everything in the workspace but what each start writes: ledger and owner lock.
func (w *world) snapshot() string {
	w.t.Helper()
	var all strings.Builder
	ok(w.t, filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(path, w.dir)
		if rel == "/.eda-sidecar/state" || rel == "/.eda-sidecar/owner.lock" || rel == "/.eda-sidecar/trash" { // the probe's place
			return skip(d)
		}
		info, err := d.Info()
		if err == nil && d.Type().IsRegular() {
			fmt.Fprintln(&all, rel, info.Size(), info.ModTime().UnixNano(), info.Sys().(*syscall.Stat_t).Ino)
		} else {
			fmt.Fprintln(&all, rel)
		}
		return err
	}))
	return all.String()
}

func skip(d fs.DirEntry) error {
	if d.IsDir() {
		return fs.SkipDir
	}
	return nil
}

// kinds are the kinds of a job's events, in order.
func (e *engine) kinds(id string) string {
	e.w.t.Helper()
	ticket, err := e.Ledger.SetAgent("none") // what rides comes with it
	ok(e.w.t, err)
	<-ticket.Done()
	var kinds []string
	ok(e.w.t, e.Ledger.Events(context.Background(), ledger.Query{Job: id}, func(r ledger.Record) error {
		kinds = append(kinds, r.Kind)
		return nil
	}))
	return strings.Join(kinds, " ")
}

// recovered is the data of a job's recovered event.
func (e *engine) recovered(id string) map[string]any {
	e.w.t.Helper()
	return e.data(id, audit.Recovered)
}

// data is that of a job's event of a kind, the last one.
func (e *engine) data(id string, kind audit.Kind) map[string]any {
	e.w.t.Helper()
	var data map[string]any
	ok(e.w.t, e.Ledger.Events(context.Background(), ledger.Query{Job: id, Kind: kind}, func(r ledger.Record) error {
		entry, err := audit.Decode(r.Body)
		data = entry.Data
		return err
	}))
	return data
}

// row is the phase of a job, "" for none.
func (e *engine) phase(id string) txn.Phase {
	e.w.t.Helper()
	row, err := e.Ledger.Job(context.Background(), id)
	if errors.Is(err, ledger.ErrNotFound) {
		return ""
	}
	ok(e.w.t, err)
	return row.Phase
}

// only returns the one recovered job that there must be.
func (e *engine) only() Recovered {
	e.w.t.Helper()
	if len(e.Recovered) != 1 {
		e.w.t.Fatalf("recovered %+v, want one job", e.Recovered)
	}
	return e.Recovered[0]
}

// again opens an engine once more: it must find nothing to do, and change nothing. Then it must commit the calls.
func (w *world) again(calls ...job.Request) {
	w.t.Helper()
	before := w.snapshot()
	e := w.open()
	if len(e.Recovered) > 0 || w.snapshot() != before {
		w.t.Errorf("a second start recovered %+v\nbefore:\n%s\nafter:\n%s", e.Recovered, before, w.snapshot())
	}
	for _, req := range calls {
		if res := e.Runner.Run(context.Background(), req); res.Code != job.OK {
			w.t.Errorf("the next call: %s %s", res.Code, res.Message)
		}
	}
	e.close()
}

const childEnv = "EDA_SIDECAR_TEST_CHILD"

// orders are what a re-executed test binary does: one call on a workspace, until it dies.
type orders struct {
	Dir    string
	Script string
	Outs   []string
	Die    string // fs | commit | wait | recover | recover_commit: at which operations
	N      int    // of them, from 1; 0: it lives, and says how many there were
	After  bool   // the operation
	Copy   string // instead of dying: the state directory is copied there
	Match  string // fault: the COMMIT behind a statement that holds this, or the statement itself
	At     string // before_commit | after_commit | statement
	Code   int    // of SQLite
}

// report is what a child says before it ends.
type report struct {
	Result, Second job.Result // the second call is on the same target
	Ops            []string
}

// alone orders parallel tests: a process on its way to exec has our descriptors, and so the owner lock of an engine, and
// files that are open for writing.
var alone sync.Mutex

// child runs orders to their end, and returns the report of a child that lived.
func (w *world) child(o orders) (rep report, died bool) {
	w.t.Helper()
	o.Dir = w.dir
	text, err := json.Marshal(o)
	ok(w.t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+string(text), "GORACE=atexit_sleep_ms=0") // no second at each exit under the race detector
	var stderr strings.Builder
	cmd.Stderr = &stderr
	var stdout strings.Builder
	cmd.Stdout = &stdout
	alone.Lock()
	err = cmd.Start()
	alone.Unlock()
	ok(w.t, err)
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return rep, true
	}
	if err != nil {
		w.t.Fatalf("child: %v\n%s", err, stderr.String())
	}
	ok(w.t, json.Unmarshal([]byte(stdout.String()), &rep))
	return rep, false
}

// sqlite is an error as the driver gives it.
type sqlite int

func (e sqlite) Error() string { return fmt.Sprintf("sqlite %d", int(e)) }
func (e sqlite) Code() int     { return int(e) }

var legalOrders = []string{
	"", "allow recovered rollback", "allow start recovered rollback", "recovered rollback", "allow start commit", "allow start commit recovered",
}

// legal says whether a killed job's events are in an order that it can have left.
func legal(kinds string) bool { return slices.Contains(legalOrders, kinds) }
