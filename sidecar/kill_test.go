package sidecar

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// the call that is killed: two targets that exist, in two directories, and a new one in a directory to be made.
const killedScript = "echo new > {a}; echo new > {b}; echo new > {c}"

func killedOuts() []string { return []string{"a=a", "b=dir/b", "c=made/c"} }

func (w *world) targets() string { return w.read("a") + " " + w.read("dir/b") + " " + w.read("made/c") }

const (
	allOld = "old old -"
	allNew = "new new new"
)

// whole is the oracle for a workspace after recovery: all targets are old or all are new, as the ledger and the session
// say, and nothing is left over. acknowledged is what the dead process had promised.
func (w *world) whole(e *engine, acknowledged bool) (findings []string) {
	w.t.Helper()
	check := func(ok bool, format string, args ...any) {
		if !ok {
			findings = append(findings, fmt.Sprintf(format, args...))
		}
	}
	ctx := context.Background()
	generation := int64(0)
	row, err := e.Ledger.SessionByName(ctx, me, job.DefaultSession)
	if err == nil {
		generation = row.Generation
	} else if !errors.Is(err, ledger.ErrNotFound) {
		w.t.Fatal(err)
	}
	want := map[int64]string{0: allOld, 1: allNew}[generation]
	check(w.targets() == want, "targets %q with a session of generation %d", w.targets(), generation)
	check(!acknowledged || generation == 1, "an acknowledged commit is gone")
	open, err := e.Ledger.OpenJobs(ctx)
	check(err == nil && len(open) == 0, "open: %+v %v", open, err)
	_, err = e.Ledger.Verify(ctx)
	check(err == nil, "verify: %v", err)
	for _, name := range w.side("jobs") {
		check(e.phase(name) == txn.Committed, "left %s, phase %q", name, e.phase(name))
	}
	check(len(w.side("conflicts")) == 0, "conflicts %v", w.side("conflicts"))
	check(len(w.alive()) == 0, "alive: %v", w.alive())
	jobs := map[string]bool{}
	ok(w.t, e.Ledger.Events(ctx, ledger.Query{}, func(r ledger.Record) error {
		if r.Job != "" {
			jobs[r.Job] = true
		}
		return nil
	}))
	for id := range jobs {
		check(legal(e.kinds(id)), "events of %s: %s", id, e.kinds(id))
	}
	return findings
}

// killed kills a fresh world's call as ordered, and recovers. It returns what the state was before recovery.
func killed(t *testing.T, o orders) (before string) {
	t.Helper()
	w := newWorld(t)
	w.write("a", "old")
	w.write("dir/b", "old")
	o.Script, o.Outs = ": "+w.mark+" tool\n"+killedScript, killedOuts()
	rep, died := w.child(o)
	if died != (o.N > 0) {
		t.Fatalf("the child died: %t; it said %+v", died, rep)
	}
	before = w.targets()
	for _, target := range []string{"a", "dir/b"} { // before recovery, too, whoever looks sees a whole file
		if got := w.read(target); got != "old" && got != "new" {
			t.Errorf("before recovery %s holds %q", target, got)
		}
	}
	alone.Lock()
	defer alone.Unlock()
	e := w.open()
	for _, f := range w.whole(e, rep.Result.Code == job.OK) {
		t.Error(f)
	}
	e.close()
	w.again(w.request(killedScript, killedOuts()...)) // nothing is locked
	return before
}

// TestKilledAnywhere kills a process before and after every operation on files that publishes, after each third of the
// others of one call, and before and after every COMMIT, and recovers twice. The control is the state before recovery: some of these must be a mix.
func TestKilledAnywhere(t *testing.T) {
	w := newWorld(t)
	w.write("a", "old")
	w.write("dir/b", "old")
	o := orders{Script: killedScript, Outs: killedOuts(), Die: "fs"}
	rep, _ := w.child(o)
	if rep.Result.Code != job.OK || len(rep.Ops) < 20 {
		t.Fatalf("the way of the call: %+v", rep)
	}
	type point struct {
		orders
		name string
	}
	var points []point
	for n, op := range rep.Ops {
		for _, after := range []bool{false, true} {
			publishes := strings.Contains(op, " txn.seal.") || strings.Contains(op, " txn.b1.") || strings.Contains(op, " txn.b2.") || strings.Contains(op, " txn.publish.")
			if !after && !publishes || after && !publishes && n%3 > 0 {
				continue // before is as after the one before; of the many that make the job directory each third will do
			}
			points = append(points, point{orders{Die: "fs", N: n + 1, After: after}, fmt.Sprintf("%02d_%s_%t", n+1, strings.ReplaceAll(op, " ", "_"), after)})
		}
	}
	for n := range 6 { // three COMMITs, before and after each
		points = append(points, point{orders{Die: "commit", N: n + 1}, fmt.Sprintf("commit_%d", n+1)})
	}
	var mu sync.Mutex
	mixed, old, new_ := 0, 0, 0
	t.Run("points", func(t *testing.T) {
		for _, p := range points {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				before := killed(t, p.orders)
				mu.Lock()
				defer mu.Unlock()
				switch before {
				case allOld:
					old++
				case allNew:
					new_++
				default:
					mixed++
				}
			})
		}
	})
	t.Logf("NOTE %d points: before recovery %d old, %d new, %d mixed", len(points), old, new_, mixed)
	if len(points) < 40 || mixed == 0 || old == 0 || new_ == 0 {
		t.Error("control: the kills did not hit publication")
	}
}

// TestKilledInRecovery kills the recovery of a call that was killed in the midst of its publication, and recovers again.
func TestKilledInRecovery(t *testing.T) {
	half := func(t *testing.T) *world {
		w := newWorld(t)
		w.write("a", "old")
		w.write("dir/b", "old")
		_, died := w.child(orders{Script: killedScript, Outs: killedOuts(), Die: "fs", N: w.exchange(), After: true})
		if !died || w.targets() == allOld || w.targets() == allNew {
			t.Fatalf("died: %t, targets %q", died, w.targets())
		}
		return w
	}
	var points []orders
	for _, class := range []string{"recover", "recover_commit"} {
		rep, _ := half(t).child(orders{Die: class})
		if len(rep.Ops) < 3 {
			t.Fatalf("%s: %v", class, rep.Ops)
		}
		for n := range rep.Ops {
			points = append(points, orders{Die: class, N: n + 1}, orders{Die: class, N: n + 1, After: true})
		}
	}
	for _, o := range points {
		t.Run(fmt.Sprint(o.Die, o.N, o.After), func(t *testing.T) {
			t.Parallel()
			w := half(t)
			if _, died := w.child(o); !died {
				t.Fatal("the recovery lived")
			}
			alone.Lock()
			defer alone.Unlock()
			e := w.open()
			for _, f := range w.whole(e, false) {
				t.Error(f)
			}
			e.close()
			w.again()
		})
	}
}

// exchange is the number of the second exchange among the operations of the killed call.
func (w *world) exchange() int {
	w.t.Helper()
	other := newWorld(w.t)
	other.write("a", "old")
	other.write("dir/b", "old")
	rep, _ := other.child(orders{Script: killedScript, Outs: killedOuts(), Die: "fs"})
	n := 0
	for i, op := range rep.Ops {
		if strings.HasPrefix(op, "Exchange txn.publish") {
			if n++; n == 1 {
				return i + 1
			}
		}
	}
	w.t.Fatalf("no exchange in %v", rep.Ops)
	return 0
}

// TestKilledWhileRunning leaves a villain alive: recovery kills it before anything is decided.
func TestKilledWhileRunning(t *testing.T) {
	for _, read := range []bool{false, true} {
		w := newWorld(t)
		w.write("a", "old")
		o := orders{Script: ": " + w.mark + " tool\ntrap '' TERM HUP; echo new > {a}; echo running; while :; do echo more >> {a}; done", Outs: []string{"a=a"}, Die: "wait", N: 1}
		if read {
			o.Script, o.Outs = ": "+w.mark+" tool\necho running; while :; do sleep 1; done", nil
		}
		if _, died := w.child(o); !died {
			t.Fatal("the child lived")
		}
		if len(w.alive()) == 0 {
			t.Fatal("control: no villain is alive")
		}
		e := w.open()
		if pids := w.alive(); len(pids) > 0 || w.read("a") != "old" {
			t.Errorf("after recovery %v are alive, target %.10q", pids, w.read("a"))
		}
		jobs := map[string]bool{}
		ok(t, e.Ledger.Events(t.Context(), ledger.Query{}, func(r ledger.Record) error {
			jobs[r.Job] = true
			return nil
		}))
		delete(jobs, "")
		if len(jobs) != 1 {
			t.Errorf("jobs %v", jobs)
		}
		for id := range jobs {
			if got := e.kinds(id); read && got != "allow recovered" && got != "allow start recovered" || !read && got != "allow recovered rollback" && got != "allow start recovered rollback" {
				t.Errorf("read %t: events %q", read, got)
			}
			if data := e.recovered(id); data["proof"] != "read" || data["resolution"] != "discarded" {
				t.Errorf("recovered %v", data)
			}
		}
		if trash, err := filepath.Glob(w.dir + "/.eda-sidecar/trash/r-*"); err != nil || (len(trash) == 1) != read || len(w.side("jobs")) > 0 {
			t.Errorf("read %t: trash %v, jobs %v", read, trash, w.side("jobs"))
		}
		e.close()
		w.again()
	}
}
