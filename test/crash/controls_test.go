package crash

import (
	"errors"
	"path"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable/durabletest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// trace is what happened in a world.
type trace struct {
	t       *testing.T
	vol     *durabletest.Strict
	log     []durabletest.Step
	jobs    map[string]string // ids by label
	answers string
}

// control is what a product without one protection would have done: the log of the product itself, changed as if a sync
// had been left out, or something had not been waited for. The volume and the ledger cannot tell the difference.
type control struct {
	name, reason, workload string
	edit                   func(*trace) []durabletest.Step
}

func controls() []control {
	skip := func(sites ...durable.Site) func(*trace) []durabletest.Step {
		return func(tr *trace) []durabletest.Step {
			return slices.DeleteFunc(slices.Clone(tr.log), func(s durabletest.Step) bool {
				return s.Method == "Sync" && slices.Contains(sites, s.Site)
			})
		}
	}
	return []control{
		{"skipDataSync", zeroLength, "ioerr", skip("txn.b1.output")},
		{"skipMemberSync", zeroLength, "tree", skip("txn.b1.member")},
		{"skipTreeSync", partial, "tree", skip("txn.b1.output")},
		{"skipJobDirSync", missing, "ioerr", skip("txn.b1.job")},
		{"skipJobsDirSync", mixed, "ioerr", skip("txn.b1.jobs")},
		{"skipTargetDirSync", mixed, "three", skip("txn.b2.parent", "txn.b2.job")},
		{"skipUndoSync", mixed, "recovery", skip("txn.undo.sync")},
		{"commitBeforeTargets", mixed, "three", commitBeforeTargets},
		{"mkdirBeforeRow", leftOver, "three", mkdirBeforeRow},
		{"exchangeBeforeIntent", mixed, "ioerr", exchangeBeforeIntent},
		{"unlockEarly", conflict, "three", unlockEarly},
		{"ackBeforeCommit", lost, "three", ackBeforeCommit},
		{"splitCommit", mixed, "three", splitCommit},
		{"commitAfterPoison", lost, "three", commitAfterPoison},
	}
}

// find returns the first step from i on that is one.
func (tr *trace) find(i int, is func(durabletest.Step) bool) int {
	tr.t.Helper()
	n := slices.IndexFunc(tr.log[i:], is)
	if n < 0 {
		tr.t.Fatal("the log has no such step")
	}
	return i + n
}

// reached is where a job's row came into a phase: the marks before and after that COMMIT.
func (tr *trace) reached(label string, phase txn.Phase) (before, after int) {
	tr.t.Helper()
	after = tr.find(0, func(s durabletest.Step) bool {
		d, ok := s.Mark.(done)
		return ok && d.jobs[tr.jobs[label]].Phase == phase
	})
	for before = after; tr.log[before].Mark != (begun{}); {
		before--
	}
	return before, after
}

func (tr *trace) answered(label string) int {
	tr.t.Helper()
	return tr.find(0, func(s durabletest.Step) bool { a, ok := s.Mark.(answer); return ok && a.label == label })
}

// moved is the log with some of its steps elsewhere: before the one that is at to.
func (tr *trace) moved(to int, steps ...int) (log []durabletest.Step) {
	for i, s := range tr.log {
		if i == to {
			for _, n := range steps {
				log = append(log, tr.log[n])
			}
		}
		if !slices.Contains(steps, i) {
			log = append(log, s)
		}
	}
	return log
}

// commitBeforeTargets commits one beside its second barrier.
func commitBeforeTargets(tr *trace) []durabletest.Step {
	before, after := tr.reached("one", txn.Committed)
	var syncs []int
	for i := before - 1; len(syncs) == 0 || tr.log[i].Method == "Sync"; i-- {
		if tr.log[i].Method == "Sync" {
			syncs = append(syncs, i)
		}
	}
	return tr.moved(after+1, syncs...)
}

// mkdirBeforeRow makes a job's directory, and what is in it, before its row is durable.
func mkdirBeforeRow(tr *trace) []durabletest.Step {
	before, after := tr.reached("one", txn.WorkerRunning)
	var steps []int
	for i := after + 1; tr.log[i].Site != "test"; i++ {
		steps = append(steps, i)
	}
	return tr.moved(before, steps...)
}

// exchangeBeforeIntent lets one publish after its barrier, but does not wait for the ledger.
func exchangeBeforeIntent(tr *trace) []durabletest.Step {
	before, after := tr.reached("one", txn.PublishingOutputs)
	var steps []int
	for i := after + 1; tr.log[i].Method == "Sync"; i++ {
		steps = append(steps, i)
	}
	return tr.moved(before, append(steps, tr.find(after, func(s durabletest.Step) bool { return s.Method == "Exchange" }))...)
}

// unlockEarly lets three in before the rollback of two is durable.
func unlockEarly(tr *trace) []durabletest.Step {
	id := tr.jobs["two"]
	_, from := tr.reached("two", txn.RolledBack)
	_, publishing := tr.reached("two", txn.PublishingOutputs)
	_, to := tr.reached("three", txn.Committed)
	log, was := slices.Clone(tr.log), tr.log[publishing].Mark.(done)
	for i := from; i <= to; i++ {
		if d, ok := log[i].Mark.(done); ok {
			b := d.copy(nil)
			b.jobs[id], b.orders[id] = was.jobs[id], was.orders[id]
			log[i] = durabletest.Step{Mark: done{b}}
		}
	}
	return slices.Delete(log, tr.answered("two"), tr.answered("two")+1)
}

// ackBeforeCommit answers before the COMMIT.
func ackBeforeCommit(tr *trace) []durabletest.Step {
	before, _ := tr.reached("one", txn.Committed)
	return tr.moved(before, tr.answered("one"))
}

// splitCommit makes the phase durable in a transaction of its own, before session and event.
func splitCommit(tr *trace) []durabletest.Step {
	before, after := tr.reached("one", txn.Committed)
	half := tr.log[after].Mark.(done).copy(nil)
	last := before
	for ; ; last-- {
		if d, ok := tr.log[last].Mark.(done); ok {
			half.sessions, half.orders = d.sessions, d.orders
			break
		}
	}
	return slices.Insert(slices.Clone(tr.log), before, durabletest.Step{Mark: begun{}}, durabletest.Step{Mark: done{half}})
}

// commitAfterPoison goes on after a COMMIT that failed: no later one can be relied on, as the kernel may have dropped what the
// failed sync did not write.
func commitAfterPoison(tr *trace) []durabletest.Step {
	_, after := tr.reached("one", txn.Committed)
	log := slices.Clone(tr.log)
	for i := after; i < len(log); i++ {
		if d, ok := log[i].Mark.(done); ok {
			log[i] = durabletest.Step{Mark: maybe(d)}
		}
	}
	return slices.Delete(log, tr.answered("one"), tr.answered("one")+1)
}

func says(findings, reason string) bool { return strings.Contains(findings, reason+": ") }

// movingAside publishes by moving the old file aside, and the new one in.
type movingAside struct{ durable.FS }

func (m movingAside) Exchange(site durable.Site, staged, target durable.Name) error {
	aside := durable.Name{Dir: target.Dir, Name: target.Name + ".aside"}
	return errors.Join(m.Move(site, target, aside), m.Move(site, staged, target), m.Move(site, aside, staged))
}

// trusting tells recovery that every target is as the phase of its job lets expect, without a look.
type trusting struct {
	durable.FS
	b    *book
	jobs map[durable.Handle]string
}

func (f *trusting) OpenDir(site durable.Site, at durable.Name) (durable.Handle, error) {
	h, err := f.FS.OpenDir(site, at)
	if site == "txn.observe.job" && err == nil {
		f.jobs[h] = at.Name
	}
	return h, err
}

func (f *trusting) Stat(site durable.Site, at durable.Name) (durable.Stat, error) {
	for id, row := range f.b.jobs {
		j, err := txn.DecodeJournal(row.Doc)
		if err != nil || row.Phase != txn.PublishingOutputs {
			continue
		}
		for _, o := range j.Outputs {
			switch {
			case site == "txn.observe.target" && at.Name == path.Base(o.Target):
				return stat(*o.New)
			case site == "txn.observe.staged" && f.jobs[at.Dir] == id && at.Name == path.Base(o.Staged):
				return stat(o.Old)
			}
		}
	}
	return f.FS.Stat(site, at)
}

func stat(id txn.FileID) (durable.Stat, error) {
	if !id.Exists {
		return durable.Stat{}, unix.ENOENT
	}
	return durable.Stat{Type: durable.Type(id.Type), Ino: id.Ino, Btime: id.Btime, Size: id.Size, Mtime: id.MtimeNS, Mode: id.Mode}, nil
}
