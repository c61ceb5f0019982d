//go:build edamodel

package lock

import (
	"errors"
	"slices"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/internal/explore"
	"github.com/eda-sidecar/eda-sidecar/internal/explore/modeltest"
	"github.com/eda-sidecar/eda-sidecar/internal/msync"
)

// world is a table and those who use it. Whoever has keys is noted: two must not conflict.
type world struct {
	*explore.M
	*Table
	has  []Request
	beat msync.Int64 // a step while somebody has keys
	dead msync.Bool  // the tombstone of session s is durable
}

var s, x, y = Session("s"), Path([]Edge{{Name: "x"}}), Path([]Edge{{Name: "y"}})

func ask(job string, keys ...Key) Request { return Request{Owner: Owner{Job: job}, Keys: keys} }

// newWorld makes a table that must be empty at the end.
func newWorld(m *explore.M, o Options) *world {
	w := &world{M: m, Table: New(o)}
	m.Finally(func() {
		if h, q := len(w.Holders(Key{})), w.Queued(); h != 0 || q != 0 {
			m.Failf("left over: %d holders, %d waiters", h, q)
		}
	})
	return w
}

// enter notes a grant; what others do may come next. leave notes its end, which comes before the release.
func (w *world) enter(r Request) {
	for _, h := range w.has {
		if overlap(h.Keys, r.Keys) {
			w.Failf("%s is granted beside %s", r.Owner.Job, h.Owner.Job)
		}
	}
	if overlap(r.Keys, []Key{s}) && w.dead.Load() {
		w.Failf("%s is granted after the tombstone", r.Owner.Job)
	}
	w.has = append(w.has, r)
	w.beat.Add(1)
}

func (w *world) leave(r Request) {
	w.has = slices.DeleteFunc(w.has, func(h Request) bool { return h.Owner == r.Owner })
}

// alive is what a job asks after its grant.
func (w *world) alive() error {
	if w.dead.Load() {
		return ErrDestroyed
	}
	return nil
}

// use is a job that waits for its keys, has them, and lets them go. It returns why it had none.
func (w *world) use(done <-chan struct{}, r Request) error {
	r.Alive = w.alive
	release, err := w.Acquire(done, r)
	if err == nil {
		w.enter(r)
		w.leave(r)
		release()
	}
	return err
}

// must is a job that nothing keeps from its keys.
func (w *world) must(r Request) {
	if err := w.use(nil, r); err != nil {
		w.Failf("%s: %v", r.Owner.Job, err)
	}
}

// put queues a request in the body, before anything runs, for served to wait for.
func (w *world) put(r Request) *claim {
	c, err := w.enqueue(r, "")
	if err != nil {
		w.Failf("%s: %v", r.Owner.Job, err)
	}
	return c
}

// hold takes keys in the body, and returns their release.
func (w *world) hold(r Request) (release func()) {
	c := w.put(r)
	w.enter(r)
	return func() { w.leave(r); w.release(c, false) }
}

func (w *world) served(done <-chan struct{}, c *claim) error {
	err := w.await(done, c)
	if err == nil {
		r := Request{Owner: c.owner, Keys: c.keys}
		w.enter(r)
		w.leave(r)
		w.release(c, false)
	}
	return err
}

// destroy destroys session s, as the registry of jobs does.
func (w *world) destroy(tombstoned bool) {
	finish, err := w.Destroy(nil, Owner{Job: "destroy"}, s)
	if err != nil {
		w.Failf("destroy: %v", err)
	}
	r := ask("destroy", s)
	w.enter(r)
	w.dead.Store(tombstoned)
	w.leave(r)
	finish(tombstoned)
}

func crossed(m *explore.M) {
	w := newWorld(m, Options{})
	m.Go("a", func() { w.must(ask("a", Session("1"), x, y)) })
	m.Go("b", func() { w.must(ask("b", Session("2"), y, x)) })
}

// destroyed is two mutators of a session that is destroyed: each has it before, or learns that it is gone.
func destroyed(m *explore.M) {
	w := newWorld(m, Options{})
	for _, job := range []string{"a", "b"} {
		m.Go(job, func() {
			if err := w.use(nil, ask(job, s)); err != nil && !(errors.Is(err, ErrDestroyed) && w.dead.Load()) {
				m.Failf("%s: %v", job, err)
			}
		})
	}
	m.Go("destroy", func() { w.destroy(true) })
}

// waitersOfDestroyed is two waiters that were there before the destroy.
func waitersOfDestroyed(m *explore.M) {
	w := newWorld(m, Options{})
	release := w.hold(ask("holder", s))
	for _, job := range []string{"a", "b"} {
		c := w.put(ask(job, s))
		m.Go(job, func() {
			if err := w.served(nil, c); err != nil && !(errors.Is(err, ErrDestroyed) && w.dead.Load()) {
				m.Failf("%s: %v", job, err)
			}
		})
	}
	m.Go("holder", release)
	m.Go("destroy", func() { w.destroy(true) })
}

// failedTombstone is a destroy that comes to nothing: its waiters go on.
func failedTombstone(m *explore.M) {
	w := newWorld(m, Options{})
	m.Go("a", func() { w.must(ask("a", s)) })
	m.Go("b", func() { w.must(ask("b", s, x)) })
	m.Go("destroy", func() { w.destroy(false) })
}

// grantRacingCancel is a waiter that gives up just when it is granted: the one behind it must get the keys.
func grantRacingCancel(m *explore.M) {
	w := newWorld(m, Options{})
	release := w.hold(ask("holder", s))
	done := make(chan struct{})
	first, behind := w.put(ask("first", s)), w.put(ask("behind", s))
	m.Go("holder", release)
	m.Go("first", func() {
		if err := w.served(done, first); err != nil && !errors.Is(err, ErrCancelled) {
			m.Failf("first: %v", err)
		}
	})
	m.Go("behind", func() {
		if err := w.served(nil, behind); err != nil {
			m.Failf("behind: %v", err)
		}
	})
	m.Go("cancel", func() { msync.Close(done) })
}

func cancelRacingDestroy(m *explore.M) {
	w := newWorld(m, Options{})
	done := make(chan struct{})
	m.Go("job", func() {
		switch err := w.use(done, ask("job", s)); {
		case err == nil, errors.Is(err, ErrCancelled), errors.Is(err, ErrDestroyed) && w.dead.Load():
		default:
			m.Failf("job: %v", err)
		}
	})
	m.Go("cancel", func() { msync.Close(done) })
	release := w.hold(ask("holder", s))
	m.Go("destroy", func() {
		release()
		w.destroy(true)
	})
}

// twoDestroys is two destroys of one session: the second learns from the first.
func twoDestroys(m *explore.M) {
	w := newWorld(m, Options{})
	won := 0
	for _, name := range []string{"first", "second"} {
		m.Go(name, func() {
			finish, err := w.Destroy(nil, Owner{Job: name}, s)
			if err == nil {
				won++
				finish(true)
			} else if !errors.Is(err, ErrDestroyed) {
				m.Failf("%s: %v", name, err)
			}
		})
	}
	m.Finally(func() {
		if won == 0 {
			m.Failf("nobody destroyed it")
		}
	})
}

// order is a late request that conflicts with an early one, but not with the holder whom that one waits for.
func order(m *explore.M) {
	w := newWorld(m, Options{})
	release := w.hold(ask("holder", x))
	early := w.put(ask("early", x, y))
	served := false
	m.Go("holder", release)
	m.Go("early", func() {
		if err := w.served(nil, early); err != nil {
			m.Failf("early: %v", err)
		}
	})
	m.Go("late", func() {
		release, err := w.Acquire(nil, ask("late", y))
		if err != nil || early.state == waiting {
			m.Failf("late has overtaken early, or failed: %v", err)
		}
		served = true
		release()
	})
	m.Finally(func() {
		if !served {
			m.Failf("late was not served")
		}
	})
}

// giveUp is an early request that gives up, and a late one that waited for it alone.
func giveUp(m *explore.M) {
	w := newWorld(m, Options{})
	release := w.hold(ask("holder", x))
	early := w.put(ask("early", x, y))
	done, served := make(chan struct{}), make(chan struct{})
	m.Go("early", func() {
		if err := w.served(done, early); !errors.Is(err, ErrCancelled) {
			m.Failf("early: %v", err)
		}
	})
	m.Go("late", func() {
		w.must(ask("late", y))
		msync.Close(served)
	})
	m.Go("others", func() {
		msync.Close(done)
		msync.Recv(served)
		release()
	})
}

// fullQueue has room for one, who gives up and comes again.
func fullQueue(m *explore.M) {
	w := newWorld(m, Options{MaxQueue: 1})
	release := w.hold(ask("holder", s))
	done := make(chan struct{})
	m.Go("holder", release)
	m.Go("job", func() {
		if err := w.use(done, ask("job", s)); err != nil && !errors.Is(err, ErrCancelled) {
			m.Failf("job: %v", err)
		}
		w.must(ask("again", s))
	})
	m.Go("cancel", func() { msync.Close(done) })
}

// busy has room for one, and two come.
func busy(m *explore.M) {
	w := newWorld(m, Options{MaxQueue: 1})
	release := w.hold(ask("holder", s))
	refused := 0
	for _, job := range []string{"a", "b"} {
		m.Go(job, func() {
			var full *BusyError
			if err := w.use(nil, ask(job, s)); errors.As(err, &full) {
				refused++
			} else if err != nil {
				m.Failf("%s: %v", job, err)
			}
		})
	}
	m.Go("holder", release)
	m.Finally(func() {
		if refused == 2 {
			m.Failf("both were refused, with room for one")
		}
	})
}

// unproven is a holder whose death is proven late, by whoever comes first.
func unproven(m *explore.M) {
	w := newWorld(m, Options{})
	release := w.hold(ask("holder", s))
	m.Go("sweep", release)
	m.Go("undo", release)
	m.Go("next", func() { w.must(ask("next", s)) })
}

func TestCrossed(t *testing.T)             { modeltest.Holds(t, crossed) }
func TestDestroyed(t *testing.T)           { modeltest.Holds(t, destroyed) }
func TestWaitersOfDestroyed(t *testing.T)  { modeltest.Holds(t, waitersOfDestroyed) }
func TestFailedTombstone(t *testing.T)     { modeltest.Holds(t, failedTombstone) }
func TestGrantRacingCancel(t *testing.T)   { modeltest.Holds(t, grantRacingCancel) }
func TestCancelRacingDestroy(t *testing.T) { modeltest.Holds(t, cancelRacingDestroy) }
func TestTwoDestroys(t *testing.T)         { modeltest.Holds(t, twoDestroys) }
func TestOrder(t *testing.T)               { modeltest.Holds(t, order) }
func TestGiveUp(t *testing.T)              { modeltest.Holds(t, giveUp) }
func TestFullQueue(t *testing.T)           { modeltest.Holds(t, fullQueue) }
func TestBusy(t *testing.T)                { modeltest.Holds(t, busy) }
func TestUnproven(t *testing.T)            { modeltest.Holds(t, unproven) }

func TestGrantOverlap(t *testing.T) {
	modeltest.Caught(t, &grantOverlap, explore.Invariant, "is granted beside", crossed)
}

func TestSkipDestroyedRecheck(t *testing.T) {
	modeltest.Caught(t, &skipDestroyedRecheck, explore.Invariant, "is granted after the tombstone", destroyed)
}

func TestFailOnlyFirstWaiter(t *testing.T) {
	modeltest.Caught(t, &failOnlyFirstWaiter, explore.Invariant, "is granted after the tombstone", waitersOfDestroyed)
}

func TestLoseHandOn(t *testing.T) {
	modeltest.Caught(t, &loseHandOn, explore.Deadlock, `"behind" waits in First`, grantRacingCancel)
}

func TestForgetBehind(t *testing.T) {
	modeltest.Caught(t, &forgetBehind, explore.Deadlock, `"late" waits in First`, giveUp)
}

func TestOvertake(t *testing.T) {
	modeltest.Caught(t, &overtake, explore.Invariant, "late has overtaken early", order)
}

func TestSlotLeak(t *testing.T) {
	modeltest.Caught(t, &slotLeak, explore.Invariant, "again: the queue is full", fullQueue)
}
