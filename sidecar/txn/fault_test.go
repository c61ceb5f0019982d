package txn

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable/durabletest"
)

// whole returns what breaks the promise that no target that existed is ever missing or partial.
func whole(t *testing.T, l *lab) (bad []string) {
	t.Helper()
	got, was, is := show(t, l.root), oldState(), newState()
	for _, p := range []string{"build/a.json", "rtl/b.v"} {
		if got[p] != was[p] && got[p] != is[p] {
			bad = append(bad, fmt.Sprintf("%s is %q", p, got[p]))
		}
	}
	oldTree := got["build/tree/one"] == was["build/tree/one"] && got["build/tree/sub/two"] == was["build/tree/sub/two"]
	newTree := got["build/tree/sub2/three"] == is["build/tree/sub2/three"]
	if oldTree == newTree {
		bad = append(bad, "build/tree is neither old nor new")
	}
	return bad
}

func differs(t *testing.T, l *lab, want map[string]string) (bad []string) {
	t.Helper()
	got := show(t, l.root)
	for p := range want {
		if got[p] != want[p] {
			bad = append(bad, fmt.Sprintf("%s is %q, want %q", p, got[p], want[p]))
		}
	}
	for p := range got {
		if _, ok := want[p]; !ok {
			bad = append(bad, p+" is left over")
		}
	}
	return bad
}

// faulted runs one straight transaction that fails at one operation, then undoes it on a healed volume, and returns every
// broken promise. fired is false once the transaction has fewer operations.
func faulted(t *testing.T, f durabletest.Fault, planner func(*Journal, Seen, Fate) Decision) (at durabletest.Op, fired bool, bad []string) {
	t.Helper()
	l := newLabIn(t, shm(t), durable.OS(), Options{BootID: "b"})
	l.seed()
	defer l.close()
	y := durabletest.NewFaulty(durable.OS(), f)
	l.w.fs, l.w.plan = y, planner
	failed, err := l.run("b2")
	if len(y.Fired()) == 0 {
		return at, false, nil
	}
	at = y.Fired()[0]
	add := func(what string, errs ...string) {
		for _, e := range errs {
			bad = append(bad, fmt.Sprintf("%s: %s", what, e))
		}
	}
	add("after the fault", whole(t, l)...)
	if err != nil && !errors.Is(err, f.Err) {
		add(failed, "the cause is lost: "+err.Error())
	}
	if f.Persistent && failed == "exchange" {
		_, _ = l.tx.Undo() // on the broken volume it may fail, but it must break nothing
		add("after an undo on the broken volume", whole(t, l)...)
	}
	l.w.fs = l.fs
	final := FateRolledBack
	switch {
	case err == nil: // the operation was for a human eye
		add("success", differs(t, l, newState())...)
		final = FateCommitted
	case failed == "exchange" || failed == "b2":
		if _, err := l.tx.Undo(); err != nil {
			add("undo", err.Error())
		}
		add("undo", differs(t, l, oldState())...)
	case l.tx == nil && l.j != nil && !f.Persistent:
		left, err := os.ReadDir(l.path(reserved + "/jobs"))
		if err != nil || len(left) != 0 {
			add("begin", fmt.Sprintf("left %v (%v)", left, err))
		}
	case l.tx != nil:
		if err := l.tx.Discard(l.proofs); err != nil {
			add("discard", err.Error())
		}
		add("discard", differs(t, l, oldState())...)
	default:
		add("begin", differs(t, l, oldState())...)
		if l.j != nil && f.Persistent { // a Begin that could not clean up behind itself: its row says discard
			if err := l.w.Trash(l.j, l.proofs, nil); err != nil {
				add("trash", err.Error())
			}
		}
	}
	l.drop()
	if l.j != nil {
		if _, err := l.w.Retire(l.j, final); err != nil {
			add("retire", err.Error())
		}
	}
	if err := l.w.EmptyTrash(); err != nil {
		add("trash", err.Error())
	}
	for _, dir := range []string{"jobs", "trash", "conflicts"} {
		left, err := os.ReadDir(l.path(reserved + "/" + dir))
		must(t, err)
		if len(left) != 0 {
			add("left over", fmt.Sprintf("%s/%s", dir, left[0].Name()))
		}
	}
	return at, true, bad
}

// TestFaults fails every operation of a straight transaction in turn: before it, after it was done, half of a write; once
// or from there on. Targets are all old or all new, an undo on a healed volume succeeds, nothing is left over.
// Control: an undo that trusts the phase publishes.
func TestFaults(t *testing.T) {
	flavours := []durabletest.Fault{
		{Err: unix.EIO, Flavour: durabletest.Before},
		{Err: unix.EIO, Flavour: durabletest.After},
		{Err: unix.ENOSPC, Flavour: durabletest.Short},
		{Err: unix.ENOSPC, Flavour: durabletest.Before, Persistent: true},
	}
	runs, methods, open := 0, map[string]bool{}, descriptors(t)
	for _, f := range flavours {
		for f.N = 1; ; f.N++ {
			at, fired, bad := faulted(t, f, Plan)
			if !fired {
				break
			}
			if len(bad) > 0 {
				t.Errorf("%s of operation %d, %s %q at %s (persistent %v): %s", f.Flavour, f.N, at.Method, at.Name, at.Site, f.Persistent, strings.Join(bad, "; "))
			}
			methods[at.Method] = true
			runs++
		}
	}
	t.Logf("runs=%d methods=%d", runs, len(methods))
	if runs < 600 {
		t.Errorf("%d runs, want at least 600", runs)
	}
	for _, m := range []string{"OpenDir", "OpenFile", "Create", "Mkdir", "Stat", "List", "Exchange", "Move", "Chmod", "Xattr", "Lease", "ReadAt", "WriteAt", "Writeback", "Sync", "Statfs"} {
		if !methods[m] {
			t.Errorf("no %s was made to fail", m)
		}
	}
	caught := 0
	for f := flavours[0]; ; f.N++ {
		f.N = max(f.N, 1)
		_, fired, bad := faulted(t, f, trustPhase)
		if !fired {
			break
		}
		if len(bad) > 0 {
			caught++
		}
	}
	if caught == 0 {
		t.Error("control: an undo that trusts the phase passes the sweep")
	}
	t.Logf("control caught=%d", caught)
	if n := descriptors(t) - open; n != 0 {
		t.Errorf("the sweep leaked %d descriptors", n)
	}
}

// TestFaultsInUndo fails every operation of an undo in turn. Nothing is missing, and the next attempt heals.
func TestFaultsInUndo(t *testing.T) {
	runs := 0
	for _, flavour := range []durabletest.Flavour{durabletest.Before, durabletest.After} {
		for n := 1; ; n++ {
			l := newLabIn(t, shm(t), durable.OS(), Options{BootID: "b"})
			l.seed()
			l.mustRun("b2")
			y := durabletest.NewFaulty(durable.OS(), durabletest.Fault{N: n, Err: unix.ENOSPC, Flavour: flavour})
			l.w.fs = y
			_, err := l.tx.Undo()
			if len(y.Fired()) == 0 {
				break
			}
			runs++
			at := y.Fired()[0]
			if bad := whole(t, l); len(bad) > 0 {
				t.Errorf("%s of %s %q at %s: %s", flavour, at.Method, at.Name, at.Site, strings.Join(bad, "; "))
			}
			if err == nil {
				if bad := differs(t, l, oldState()); len(bad) > 0 {
					t.Errorf("%s of %s %q at %s: Undo says done: %s", flavour, at.Method, at.Name, at.Site, strings.Join(bad, "; "))
				}
			}
			if at.Method == "Sync" && err == nil {
				t.Errorf("Undo says done after a failed sync at %s", at.Site)
			}
			l.w.fs = l.fs
			if _, err := l.tx.Undo(); err != nil {
				t.Errorf("%s of %s %q at %s: second undo: %v", flavour, at.Method, at.Name, at.Site, err)
			}
			if bad := differs(t, l, oldState()); len(bad) > 0 {
				t.Errorf("%s of %s %q at %s: second undo: %s", flavour, at.Method, at.Name, at.Site, strings.Join(bad, "; "))
			}
		}
	}
	if runs < 50 {
		t.Errorf("%d runs, want at least 50", runs)
	}
	t.Logf("runs=%d", runs)
}

// TestSecondUndoSyncs: an undo that was cut short before its barrier has put names back, not made them durable; the next
// one finds nothing to move, and must sync all the same.
func TestSecondUndoSyncs(t *testing.T) {
	l := newLab(t, durable.OS(), Options{})
	l.seed()
	l.mustRun("exchange")
	broken := durabletest.Wrap(durable.OS(), func(op durabletest.Op, do func() error) error {
		if op.Site == "txn.undo.sync" {
			return unix.EIO
		}
		return do()
	})
	l.w.fs = broken
	if _, err := l.tx.Undo(); !errors.Is(err, unix.EIO) {
		t.Fatalf("Undo on a volume that does not sync = %v, want EIO", err)
	}
	c := durabletest.NewCounting(durable.OS())
	l.w.fs = c
	d, err := l.tx.Undo()
	must(t, err)
	if !d.Only(ActRetire) {
		t.Errorf("second undo = %+v, want nothing to do", d)
	}
	if n := c.Count("Sync", "txn.undo.sync"); n != 4 { // jobs/<job>, the root (new/ is gone), build, rtl
		t.Errorf("second undo synced %d directories, want 4", n)
	}
	l.is(oldState())
}

// TestUndoShares: jobs share one sync of each directory, and one that failed stays the answer: whose directories it left out
// nobody knows.
func TestUndoShares(t *testing.T) {
	l := newLab(t, durable.OS(), Options{})
	l.seed()
	l.mustRun("exchange")
	c := durabletest.NewCounting(durable.OS())
	l.w.fs = c
	u := l.w.NewUndo()
	apply := func() {
		seen, err := l.w.Observe(l.tx.j)
		must(t, err)
		must(t, u.Apply(l.tx.j, Plan(l.tx.j, seen, FateOpen)))
	}
	apply()
	apply()
	if n := c.Count("Sync", "txn.undo.sync"); n != 0 {
		t.Errorf("%d syncs before Sync", n)
	}
	must(t, u.Sync())
	if n := c.Count("Sync", "txn.undo.sync"); n != 6 { // as of one: jobs/<job>, the root, build, rtl, and two that are gone
		t.Errorf("synced %d directories, want 6", n)
	}
	l.is(oldState())
	apply()
	l.w.fs = durabletest.Wrap(durable.OS(), func(durabletest.Op, func() error) error { return unix.EIO })
	failed := u.Sync()
	l.w.fs = durable.OS()
	apply()
	if again := u.Sync(); !errors.Is(failed, ErrSync) || !errors.Is(again, ErrSync) {
		t.Errorf("a sync that fails: %v, the next one: %v", failed, again)
	}
}

// TestBarrierFailureIsFinal: a failed sync in B1 or B2 is not tried again: as many syncs as when all goes well.
// Control: a volume that tries again behind the transaction's back is seen.
func TestBarrierFailureIsFinal(t *testing.T) {
	syncs := func(fail durable.Site, retry int) (string, int, error) {
		l := newLab(t, durable.OS(), Options{})
		l.seed()
		var n atomic.Int64
		l.w.fs = durabletest.Wrap(durable.OS(), func(op durabletest.Op, do func() error) error {
			if op.Method != "Sync" || !strings.HasPrefix(string(op.Site), "txn.b") {
				return do()
			}
			n.Add(1)
			if op.Site != fail {
				return do()
			}
			n.Add(int64(retry))
			return unix.EIO
		})
		failed, err := l.run("b2")
		return failed, int(n.Load()), err
	}
	_, all, err := syncs("none", 0)
	must(t, err)
	for site, want := range map[durable.Site]string{
		"txn.b1.output": "b1", "txn.b1.job": "b1", "txn.b1.jobs": "b1", "txn.b1.member": "b1", "txn.b2.job": "b2", "txn.b2.parent": "b2",
	} {
		count := map[string]int{"b1": all - 6, "b2": all}[want]
		failed, n, err := syncs(site, 0)
		if failed != want || !errors.Is(err, unix.EIO) || n != count {
			t.Errorf("sync fails at %s: %s = %v after %d syncs, want %s, EIO, %d", site, failed, err, n, want, count)
		}
	}
	if _, n, err := syncs("txn.b2.job", 1); n == all || err == nil {
		t.Errorf("control: a second try is not seen (%d syncs, %v)", n, err)
	}
}
