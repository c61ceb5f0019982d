//go:build edamodel

package outcome

import (
	"testing"

	"github.com/eda-sidecar/eda-sidecar/internal/explore"
	"github.com/eda-sidecar/eda-sidecar/internal/explore/modeltest"
	"github.com/eda-sidecar/eda-sidecar/internal/msync"
)

// job is what package job does around its cell: it starts a worker, waits, proves, publishes, commits and ends.
type job struct {
	*explore.M
	cell Cell

	hangs  bool // the worker ends when it is killed, and not before
	faults bool // proof, exchange, undo and commit may fail, and death may be proven later

	killed   chan struct{}
	unproven chan struct{}
	kills    int
	aborts   []Cause // that returned true
	swapped  int     // exchanges of outputs and targets that were not undone
	released int
	end      End // that the cell must have
}

func newJob(m *explore.M) *job {
	j := &job{M: m, killed: make(chan struct{}), unproven: make(chan struct{})}
	m.Finally(j.check)
	return j
}

// abort is a thread that aborts.
func (j *job) abort(name string, cause Cause) {
	j.Go(name, func() {
		if j.cell.Abort(cause) {
			j.aborts = append(j.aborts, cause)
		}
	})
}

func (j *job) fails() bool { return j.faults && j.Choose(2) == 1 }

func (j *job) run() {
	j.cell.Hold(func() { j.released++ })
	j.end = j.work()
	j.cell.Finish(j.end)
	if j.end == Unproven {
		msync.Close(j.unproven)
	}
}

// work is steps 6 to 11 of a call.
func (j *job) work() End {
	if !j.cell.Register(func() { j.kills++; msync.Close(j.killed) }) {
		return RolledBack
	}
	if j.hangs {
		msync.Recv(j.killed)
	}
	if j.fails() {
		return Unproven
	}
	j.cell.Unregister()
	if !j.cell.BeginPublish() {
		return RolledBack
	}
	j.swapped++
	if j.fails() { // an exchange, or the commit, in a way that is known
		if j.fails() { // the undo
			return Undecided
		}
		j.swapped--
		return RolledBack
	}
	if j.fails() { // the commit, in a way that nobody knows
		return InDoubt
	}
	return Committed
}

// check looks at a job that has ended.
func (j *job) check() {
	aborted := j.cell.Aborted()
	switch end := j.cell.End(); {
	case len(j.aborts) > 0 && j.swapped != 0:
		j.Failf("published though an abort won")
	case len(j.aborts) > 1:
		j.Failf("%d aborts won", len(j.aborts))
	case len(j.aborts) == 1 && aborted != j.aborts[0], len(j.aborts) == 0 && aborted != None:
		j.Failf("aborted by %d, and the aborts that won are %d", aborted, j.aborts)
	case end != j.end:
		j.Failf("ended as %d, want %d", end, j.end)
	case end == Committed && j.swapped != 1:
		j.Failf("committed after %d publications", j.swapped)
	case end.final() && j.released != 1, !end.final() && j.released != 0:
		j.Failf("the end is %d, and the keys were released %d times", end, j.released)
	case j.kills > 1:
		j.Failf("killed %d times", j.kills)
	}
}

func completionRacingCancel(m *explore.M) {
	j := newJob(m)
	m.Go("job", j.run)
	j.abort("cancel", Cancelled)
}

func completionRacingAll(m *explore.M) {
	j := newJob(m)
	m.Go("job", j.run)
	j.abort("cancel", Cancelled)
	j.abort("deadline", Deadline)
	j.abort("destroy", Destroyed)
}

func hungWorker(m *explore.M) {
	j := newJob(m)
	j.hangs = true
	m.Go("job", j.run)
	j.abort("cancel", Cancelled)
	j.abort("deadline", Deadline)
}

// faults lets everything fail, and the sweep prove death after all.
func faults(m *explore.M) {
	j := newJob(m)
	j.faults = true
	m.Go("job", j.run)
	j.abort("cancel", Cancelled)
	gaveUp := make(chan struct{})
	m.Go("sweep", func() {
		if msync.First(j.unproven, gaveUp) == 0 && j.Choose(2) == 0 {
			j.end = RolledBack
			j.cell.Finish(RolledBack)
		}
	})
	m.Go("shutdown", func() { msync.Close(gaveUp) })
}

// controlledWindow forces one window: the cancel comes while the worker registers, the worker then reports success.
func controlledWindow(m *explore.M) {
	j := newJob(m)
	begun, cancelled := make(chan struct{}), make(chan struct{})
	held := map[string]int{"worker": 1, "group": 1, "connection": 1, "locks": 1, "staging": 1}
	m.Go("job", func() {
		j.cell.Hold(func() { j.released++; held["locks"]-- })
		msync.Close(begun)
		registered := j.cell.Register(func() { j.kills++ })
		msync.Recv(cancelled)
		held["worker"]-- // it returns, with success
		if registered {
			j.cell.Unregister()
		}
		held["group"]--
		if j.end = RolledBack; j.cell.BeginPublish() {
			j.swapped++
			j.end = Committed
		}
		held["staging"]--
		j.cell.Finish(j.end)
		held["connection"]--
	})
	m.Go("cancel", func() {
		msync.Recv(begun)
		if j.cell.Abort(Cancelled) {
			j.aborts = append(j.aborts, Cancelled)
		}
		msync.Close(cancelled)
	})
	m.Finally(func() {
		if j.cell.Aborted() != Cancelled {
			m.Failf("the result is not cancelled")
		}
		for _, what := range []string{"worker", "group", "connection", "locks", "staging"} {
			if held[what] != 0 {
				m.Failf("%s: %d left", what, held[what])
			}
		}
	})
}

// lateAnswer is a commit whose answer comes while the job gives up waiting for it.
func lateAnswer(m *explore.M) {
	j := newJob(m)
	j.cell.Hold(func() { j.released++ })
	j.cell.BeginPublish()
	j.swapped, j.end = 1, Committed
	m.Go("job", func() { j.cell.Finish(InDoubt) })
	m.Go("late", func() { j.cell.Finish(Committed) })
	j.abort("cancel", Cancelled)
}

// handOver is a caller that leaves while its job is handed over, and ends.
func handOver(m *explore.M) {
	j := newJob(m)
	handed := false
	m.Go("job", j.run)
	var c Caller
	m.Go("handler", func() { handed = c.Detach() })
	m.Go("caller", func() {
		if c.Abandon(&j.cell, Cancelled) {
			j.aborts = append(j.aborts, Cancelled)
		}
	})
	m.Finally(func() {
		if handed && j.cell.Aborted() != None {
			m.Failf("handed over, and cancelled when its caller left")
		}
		if left := c.word.Load() == abandoned; left == handed {
			m.Failf("handed over: %t, abandoned: %t", handed, left)
		}
	})
}

// callers are two callers of a job that ends when it is killed, and not before. The second comes late, and may be handed it.
func callers(m *explore.M) {
	j := newJob(m)
	j.hangs = true
	m.Go("job", j.run)
	gone := func(aborted bool) {
		if aborted {
			j.aborts = append(j.aborts, Cancelled)
		}
	}
	m.Go("first", func() {
		var c Caller
		gone(c.Abandon(&j.cell, Cancelled))
	})
	m.Go("second", func() {
		var c Caller
		if !j.cell.Join() {
			return
		}
		if j.Choose(2) == 0 {
			gone(c.Abandon(&j.cell, Cancelled))
			return
		}
		c.Detach()
		if j.cell.Aborted() != None {
			m.Failf("it ended with the other caller")
		}
		gone(c.Disown(&j.cell, Cancelled))
	})
}

// readRacingCancel is a job that has nothing to publish.
func readRacingCancel(m *explore.M) {
	j := newJob(m)
	j.end = Read
	var over msync.Bool
	m.Go("job", func() {
		j.cell.Hold(func() { j.released++ })
		j.cell.Finish(Read)
		over.Store(true)
	})
	m.Go("cancel", func() {
		late := over.Load()
		if j.cell.Abort(Cancelled) {
			if j.aborts = append(j.aborts, Cancelled); late {
				m.Failf("aborted after the end")
			}
		}
	})
}

// drain is two calls that come while the gate is drained.
func drain(m *explore.M) {
	var g Gate
	var idle msync.Bool
	for _, name := range []string{"first", "second"} {
		m.Go(name, func() {
			if !g.Enter() {
				return
			}
			if idle.Load() {
				m.Failf("%s is inside after the drain", name)
			}
			g.Leave()
		})
	}
	m.Go("drain", func() {
		msync.Recv(g.Drain())
		idle.Store(true)
	})
}

func TestCompletionRacingCancel(t *testing.T) { modeltest.Holds(t, completionRacingCancel) }
func TestCompletionRacingAll(t *testing.T)    { modeltest.Holds(t, completionRacingAll) }
func TestHungWorker(t *testing.T)             { modeltest.Holds(t, hungWorker) }
func TestFaults(t *testing.T)                 { modeltest.Holds(t, faults) }
func TestControlledWindow(t *testing.T)       { modeltest.Holds(t, controlledWindow) }
func TestLateAnswer(t *testing.T)             { modeltest.Holds(t, lateAnswer) }
func TestHandOver(t *testing.T)               { modeltest.Holds(t, handOver) }
func TestCallers(t *testing.T)                { modeltest.Holds(t, callers) }
func TestReadRacingCancel(t *testing.T)       { modeltest.Holds(t, readRacingCancel) }
func TestDrain(t *testing.T)                  { modeltest.Holds(t, drain) }

func TestSkipCancelGuard(t *testing.T) {
	modeltest.Caught(t, &skipCancelGuard, explore.Deadlock, `"job" waits in Recv`, hungWorker)
}

func TestSkipFinalCheck(t *testing.T) {
	modeltest.Caught(t, &skipFinalCheck, explore.Invariant, "published though an abort won", controlledWindow)
}

func TestCheckThenActPublish(t *testing.T) {
	modeltest.Caught(t, &checkThenActPublish, explore.Invariant, "published though an abort won", completionRacingCancel)
}

func TestCheckThenActAbort(t *testing.T) {
	modeltest.Caught(t, &checkThenActAbort, explore.Invariant, "published though an abort won", completionRacingCancel)
}

func TestHandleOutsideLock(t *testing.T) {
	modeltest.Caught(t, &handleOutsideLock, explore.Deadlock, `"job" waits in Recv`, hungWorker)
}

func TestAbortAfterEnd(t *testing.T) {
	modeltest.Caught(t, &abortAfterEnd, explore.Invariant, "aborted after the end", readRacingCancel)
}

func TestReleaseTwice(t *testing.T) {
	modeltest.Caught(t, &releaseTwice, explore.Invariant, "ended as", lateAnswer)
}

func TestReleaseUnproven(t *testing.T) {
	modeltest.Caught(t, &releaseUnproven, explore.Invariant, "released 1 times", faults)
}

func TestSkipReleaseOnFinal(t *testing.T) {
	modeltest.Caught(t, &skipReleaseOnFinal, explore.Invariant, "released 0 times", faults)
}

func TestDetachWithoutCAS(t *testing.T) {
	modeltest.Caught(t, &detachWithoutCAS, explore.Invariant, "handed over", handOver)
}

func TestAbandonWithFirst(t *testing.T) {
	modeltest.Caught(t, &abandonWithFirst, explore.Invariant, "with the other caller", callers)
}

func TestJoinTheAbandoned(t *testing.T) {
	modeltest.Caught(t, &joinTheAbandoned, explore.Invariant, "with the other caller", callers)
}

func TestGateAddAfterDrain(t *testing.T) {
	modeltest.Caught(t, &gateAddAfterDrain, explore.Invariant, "inside after the drain", drain)
}
