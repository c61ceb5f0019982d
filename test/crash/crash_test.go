package crash

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/cgroup/cgrouptest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable/durabletest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/session"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// three runs three jobs. One publishes over two files in two directories and makes a third with its directory. Beside it
// two fails in its second barrier, after its exchanges, and is undone. Three follows it on its targets and in its
// session, while what one published waits for its barrier. Who goes when is fixed.
func three(w *world) {
	const lookup, barrier = "txn.publish.lookup", "txn.b2.job"
	published := w.hold(lookup)
	one := w.start("one", "p", "build/a", "rtl/b", "made/c")
	w.wait("one to be sealed", published.reached)
	other := w.hold(lookup)
	two := w.start("two", "q", "rtl/x", "sim/y")
	w.wait("two to be sealed", other.reached)
	late := w.hold(barrier)
	close(published.open)
	w.wait("one to have published", late.reached)
	w.fail("txn.b2.parent", unix.EIO)
	close(other.open)
	w.wait("the end of two", two)
	third := w.hold(lookup)
	three := w.start("three", "q", "rtl/x", "sim/y")
	w.wait("three to be sealed", third.reached)
	close(late.open)
	w.wait("the end of one", one)
	close(third.open)
	w.wait("the end of three", three)
}

// alone runs one job.
func alone(w *world) { w.wait("the end of one", w.start("one", "p", "build/a", "rtl/b", "made/c")) }

// tree publishes a directory and a file. Jobs have no outputs that are directories: it goes the way of a job by hand.
func tree(w *world) {
	await := func(ticket *ledger.Ticket, err error) error {
		if err != nil {
			return err
		}
		<-ticket.Done()
		return ticket.Err()
	}
	t, ref := w.t, cgrouptest.Ref("tree.0")
	proofs := []cgroup.Empty{cgrouptest.Empty(ref)}
	event := func(k audit.Kind) audit.Event {
		return audit.Event{Kind: k, Job: "tree", Session: "s", Tool: "tool", Principal: "p", RequestID: "tree"}
	}
	a, err := w.files.Admit([]txn.Spec{
		{Name: "o0", Target: "build/tree", Kind: txn.Tree}, {Name: "o1", Target: "rtl/b", Kind: txn.File},
	})
	ok(t, err)
	defer a.Close()
	j := &txn.Journal{
		Version: 1, Job: "tree", Session: "s", Tool: "tool", Principal: "p", RequestID: "tree", LandlockABI: 7, BootID: "before", Groups: []cgroup.Ref{ref},
		NewGen: 1, CreatedDirs: a.CreatedDirs(), Outputs: a.Outputs("tree"),
	}
	ok(t, await(w.l.Begin(j, event(audit.Allow))))
	tx, err := w.files.Begin(j, a, txn.BeginOptions{})
	ok(t, err)
	for name, content := range newTree() {
		write(t, w.vol, side+"/jobs/tree/s0/out/"+name, content)
	}
	write(t, w.vol, side+"/jobs/tree/s1/out", content("tree", 1))
	found, err := tx.Inspect(proofs, txn.Quotas{})
	ok(t, err)
	j, err = tx.Seal()
	ok(t, err)
	ticket, err := w.l.Publishing(j, event(audit.Start))
	ok(t, tx.SyncStaged(proofs, func() error { return await(ticket, err) }))
	ok(t, tx.Exchange(proofs))
	ok(t, tx.SyncTargets())
	artifacts := map[string]session.Artifact{}
	for _, o := range found.Outputs {
		artifacts[j.Outputs[o.Index].Target] = session.Artifact{SHA256: o.SHA256, Bytes: o.Bytes, Job: "tree"}
	}
	state, err := session.State{}.Apply(session.Delta{Artifacts: artifacts})
	ok(t, err)
	ok(t, await(w.l.Commit("tree", ledger.Session{ID: "s", Owner: "p", Name: "default", State: state}, event(audit.Commit))))
	w.vol.Mark(answer{"tree", job.Result{Job: "tree", Code: job.OK}})
	ok(t, await(w.l.Settled("tree")))
	ok(t, tx.Close())
}

// run runs a workload in a world of its own.
func run(t *testing.T, workload func(*world), wrap func(durable.FS) durable.FS, lies error) *trace {
	t.Helper()
	w := newWorld(t, wrap)
	w.lies = lies
	workload(w)
	tr := &trace{t: t, vol: w.vol, log: w.close(), jobs: map[string]string{}}
	for _, s := range tr.log {
		if a, ok := s.Mark.(answer); ok {
			tr.jobs[a.label] = a.Job
			tr.answers += fmt.Sprintf("%s %s %t, ", a.label, a.Code, a.RolledBack)
		}
	}
	return tr
}

// recoveries are those of the states that hold all that was done when a target changed.
func recoveries(t *testing.T, tr *trace) (all []*trace) {
	var now *book
	for i, s := range tr.log {
		if d, ok := s.Mark.(done); ok {
			now = d.book
		}
		if s.Method != "Exchange" && s.Method != "Move" || !strings.HasPrefix(string(s.Site), "txn.publish.") && !strings.HasPrefix(string(s.Site), "txn.undo.") {
			continue
		}
		var disk *durabletest.Strict
		for _, disk = range tr.vol.Losses(tr.log[:i+1], i, quiet) {
		}
		disk.Mark(done{now})
		_, err := restart(disk, now.copy(disk), nil)
		ok(t, err)
		all = append(all, &trace{t: t, vol: disk, log: disk.Log()})
	}
	return all
}

// TestStrict loses power everywhere in two workloads, in two whose commit is in doubt, and in recoveries. Then it takes away one
// protection after another: each must break the promise that it is for.
func TestStrict(t *testing.T) {
	total, known, traces := 0, map[key]bool{}, map[string]*trace{}
	for _, c := range []struct {
		name     string
		workload func(*world)
		commit   error // the answer to COMMIT
		answers  string
	}{
		{"three", three, nil, "two PUBLISH_FAILED true, one OK false, three OK false, "},
		{"tree", tree, nil, "tree OK false, "},
		{"ioerr", alone, sqlite(10 | 4<<8), "one COMMIT_IN_DOUBT false, "},
		{"nomem", alone, sqlite(7), "one COMMIT_IN_DOUBT false, "},
	} {
		tr := run(t, c.workload, nil, c.commit)
		if traces[c.name] = tr; tr.answers != c.answers {
			t.Fatalf("%s: answers %q, want %q", c.name, tr.answers, c.answers)
		}
		states, findings := sweep(t, tr.vol, tr.log, 0, known, "", nil)
		for _, f := range findings[:min(len(findings), 5)] {
			t.Errorf("%s: %s", c.name, f)
		}
		t.Logf("%s: %d steps, %d states, %d of them break a promise", c.name, len(tr.log), states, len(findings))
		total += states
	}
	if total < 1000 {
		t.Errorf("%d states, want at least 1000", total)
	}
	undo := 0 // of recoveries that power is lost in
	for _, name := range []string{"three", "tree"} {
		for _, tr := range recoveries(t, traces[name]) {
			states, findings := sweep(t, tr.vol, tr.log, 0, known, "", nil)
			for _, f := range findings[:min(len(findings), 5)] {
				t.Errorf("recovery of %s: %s", name, f)
			}
			undo += states
			traces["recovery"] = tr
		}
	}
	t.Logf("recoveries: %d states", undo)
	total += undo
	caught := func(name, reason string, tr *trace, log []durabletest.Step, first int, seen map[key]bool, recovery func(durable.FS, *book) durable.FS) {
		states, findings := sweep(t, tr.vol, log, first, seen, reason, recovery)
		if len(findings) == 0 || !says(findings[len(findings)-1], reason) {
			t.Errorf("control %s: %d more states, and none broke a promise as %q: %.400q", name, states, reason, findings[:min(len(findings), 3)])
			return
		}
		t.Logf("control %s: %d more states, then %.160s", name, states, findings[len(findings)-1])
	}
	for _, c := range controls() {
		tr := traces[c.workload]
		log := c.edit(tr)
		first := 0
		for first < len(log) && log[first].N == first+1 { // up to here as it was
			first++
		}
		caught(c.name, c.reason, tr, log, first, known, nil)
	}
	aside := run(t, alone, func(fs durable.FS) durable.FS { return movingAside{fs} }, nil)
	caught("moveAside", missing, aside, aside.log, 0, known, nil)
	// The answer FULL means that nothing was done, which here is not true, as it would not be of an error that is misread so.
	absent := run(t, alone, nil, sqlite(13))
	caught("ioerrAsAbsent, nomemAsAbsent", lost, absent, absent.log, 0, known, nil)
	trust := func(fs durable.FS, b *book) durable.FS { return &trusting{fs, b, map[durable.Handle]string{}} }
	caught("trustPhase", mixed, traces["ioerr"], traces["ioerr"].log, 0, map[key]bool{}, trust)
	if !t.Failed() {
		fmt.Printf("RIG crash states=%d violations=0 controls=all\n", total)
	}
}
