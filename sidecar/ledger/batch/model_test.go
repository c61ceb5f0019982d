//go:build edamodel

package batch

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/internal/explore"
	"github.com/eda-sidecar/eda-sidecar/internal/explore/modeltest"
	"github.com/eda-sidecar/eda-sidecar/internal/msync"
	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
)

// world is a queue with its writer, and the store beneath, which knows what became of each operation.
type world struct {
	*explore.M
	q       *Queue
	commits []error // COMMIT answers with one of them, if it holds
	holding string  // this operation; empty: any
	refuse  string  // the operation that Apply refuses

	began   bool
	applied []string // in this transaction
	fate    map[string]Ack
	last    map[byte]string // operation of each putter
	unknown bool            // a COMMIT proved nothing
	seen    map[string]int  // events, by operation
	tickets map[string]*Ticket
}

var (
	errAbsent  = fmt.Errorf("full: %w", ErrAbsent)
	errUnknown = errors.New("input/output error")
)

// newWorld starts the writer. The answers of COMMIT are those given, or always well.
func newWorld(m *explore.M, commits ...error) *world {
	w := &world{M: m, commits: commits, fate: map[string]Ack{}, last: map[byte]string{}, seen: map[string]int{}, tickets: map[string]*Ticket{}}
	w.q = New(w.sink)
	m.Go("writer", func() {
		for idle := w.q.Round(w); idle != nil; idle = w.q.Round(w) {
			msync.Recv(idle)
		}
	})
	return w
}

// statement is any of the store's; none is sent after a COMMIT that proved nothing.
func (w *world) statement(name string, begins bool) {
	if w.unknown {
		w.Failf("%s after an unknown COMMIT", name)
	}
	if w.began != begins {
		w.Failf("%s, and a transaction is open: %t", name, w.began)
	}
}

// Begin, Apply, Commit and Rollback make the world a Store.
func (w *world) Begin() error {
	w.statement("BEGIN", false)
	w.began, w.applied = true, nil
	return nil
}

func (w *world) Apply(op Op) error {
	w.statement("a statement", true)
	name := op.Payload.(string)
	if w.fate[name] != "" || name <= w.last[name[0]] {
		w.Failf("%s is applied after %s, and was %q", name, w.last[name[0]], w.fate[name])
	}
	w.last[name[0]], w.fate[name] = name, Absent
	if name == w.refuse {
		w.fate[name] = Refused
		return ErrRefused
	}
	w.applied = append(w.applied, name)
	return nil
}

func (w *world) Commit() (err error) {
	w.statement("COMMIT", true)
	w.began = false
	if len(w.commits) > 0 && (w.holding == "" || slices.Contains(w.applied, w.holding)) {
		err = w.commits[w.Choose(len(w.commits))]
	}
	ack := Durable
	switch {
	case errors.Is(err, ErrAbsent):
		ack, w.began = Absent, true // until the rollback
	case err != nil:
		ack, w.unknown = Unknown, true
	}
	for _, name := range w.applied {
		w.fate[name] = ack
	}
	return err
}

func (w *world) Rollback() {
	w.statement("ROLLBACK", true)
	w.began = false
}

func (w *world) sink(e audit.Event) {
	if w.fate[e.RequestID] != Durable {
		w.Failf("a sink has seen %s, which is not durable", e.RequestID)
	}
	w.seen[e.RequestID]++
}

func op(name string, kinds ...audit.Kind) Op {
	o := Op{Payload: name}
	for _, k := range kinds {
		o.Events = append(o.Events, audit.Event{Kind: k, Job: "job of " + name[:1], RequestID: name})
	}
	return o
}

// put puts operations, of which errors but ErrClosed and ErrPoisoned are mistakes, and waits for their answers.
func (w *world) put(ops ...Op) (acks []Ack) {
	var waits []*Ticket
	for _, o := range ops {
		t, err := w.q.Put(o)
		switch {
		case err == nil:
			w.tickets[o.Payload.(string)] = t
		case errors.Is(err, ErrClosed), errors.Is(err, ErrPoisoned) && w.unknown:
		default:
			w.Failf("put %v: %v", o.Payload, err)
		}
		waits = append(waits, t)
	}
	for i, t := range waits {
		if t == nil {
			acks = append(acks, "")
			continue
		}
		msync.Recv(t.Done())
		acks = append(acks, w.answered(ops[i], t))
	}
	return acks
}

// answered compares an answer, as soon as it is there, with what the store knows.
func (w *world) answered(o Op, t *Ticket) Ack {
	name, events := o.Payload.(string), 0
	if t.ack == Durable {
		events = len(o.Events)
	}
	if want := cmp.Or(w.fate[name], Absent); t.ack != want || (t.err == nil) != (want == Durable) {
		w.Failf("%s is %s (%v), want %s", name, t.ack, t.err, want)
	}
	if w.seen[name] != events {
		w.Failf("%s is %s, and the sinks have seen %d of its events", name, t.ack, w.seen[name])
	}
	return t.ack
}

// allow is an operation that begins a job's order.
func allow(name string) Op { return op(name, audit.Allow) }

func ride(o Op) Op { o.Ride = true; return o }

// putRacingRound is one putter, whose second operation may come while the first is written.
func putRacingRound(m *explore.M) {
	w := newWorld(m)
	m.Go("a", func() {
		w.put(allow("a1"), op("a2"))
		w.q.Close()
	})
}

// twoPutters is two, of which a COMMIT fails all or none.
func twoPutters(m *explore.M) {
	w := newWorld(m, nil, errAbsent)
	over := make(chan struct{})
	m.Go("a", func() {
		w.put(allow("a1"))
		msync.Close(over)
	})
	m.Go("b", func() {
		w.put(allow("b1"))
		msync.Recv(over)
		w.q.Close()
	})
}

// idleWakeUp is a writer that idles: riders wait for a flush or for company, and nobody waits for ever.
func idleWakeUp(m *explore.M) {
	w := newWorld(m)
	over := make(chan struct{})
	m.Go("a", func() {
		rider := ride(allow("a1"))
		t, err := w.q.Put(rider)
		if err != nil {
			m.Failf("put: %v", err)
		}
		w.q.Flush()
		msync.Recv(t.Done())
		w.answered(rider, t)
		msync.Close(over)
	})
	m.Go("b", func() {
		w.put(ride(allow("b1")), op("b2", audit.Start))
		msync.Recv(over)
		w.q.Close()
	})
}

// refusedAmongRiders is one operation that is refused between two that are not.
func refusedAmongRiders(m *explore.M) {
	w := newWorld(m)
	w.refuse = "b1"
	over := make(chan struct{})
	m.Go("a", func() {
		if acks := w.put(ride(allow("a1")), op("a2", audit.Start)); acks[0] != Durable || acks[1] != Durable {
			m.Failf("a is %v beside one that was refused", acks)
		}
		msync.Close(over)
	})
	m.Go("b", func() {
		if acks := w.put(allow("b1")); acks[0] != Refused {
			m.Failf("b1 is %v", acks)
		}
		msync.Recv(over)
		w.q.Close()
	})
}

// absentThenUndo is a commit that is not done: its undo is legal.
func absentThenUndo(m *explore.M) {
	w := newWorld(m, nil, errAbsent)
	w.holding = "a2"
	m.Go("a", func() {
		w.put(op("a1", audit.Allow, audit.Start))
		if acks := w.put(op("a2", audit.Commit)); acks[0] == Absent {
			if undo := w.put(op("a3", audit.Error, audit.Rollback)); undo[0] != Durable {
				m.Failf("the undo is %s", undo[0])
			}
		}
		w.q.Close()
	})
	m.Go("b", func() { w.put(op("b1")) })
}

// unknownLatches is a COMMIT that proves nothing: nothing is sent after it.
func unknownLatches(m *explore.M) {
	w := newWorld(m, nil, errUnknown)
	over := make(chan struct{})
	m.Go("a", func() {
		w.put(allow("a1"))
		w.put(op("a2", audit.Start))
		msync.Close(over)
	})
	m.Go("b", func() {
		w.put(allow("b1"))
		msync.Recv(over)
		w.q.Close()
	})
}

// closeRacingPut is an operation that is done or refused at once.
func closeRacingPut(m *explore.M) {
	w := newWorld(m)
	for _, name := range []string{"a1", "b1"} {
		m.Go(name[:1], func() {
			if acks := w.put(ride(allow(name))); acks[0] != Durable && w.tickets[name] != nil {
				m.Failf("%s is %v", name, acks)
			}
		})
	}
	m.Go("close", w.q.Close)
}

func TestPutRacingRound(t *testing.T)     { modeltest.Holds(t, putRacingRound) }
func TestTwoPutters(t *testing.T)         { modeltest.Holds(t, twoPutters) }
func TestIdleWakeUp(t *testing.T)         { modeltest.Holds(t, idleWakeUp) }
func TestRefusedAmongRiders(t *testing.T) { modeltest.Holds(t, refusedAmongRiders) }
func TestAbsentThenUndo(t *testing.T)     { modeltest.Holds(t, absentThenUndo) }
func TestUnknownLatches(t *testing.T)     { modeltest.Holds(t, unknownLatches) }
func TestCloseRacingPut(t *testing.T)     { modeltest.Holds(t, closeRacingPut) }

func TestLoseWakeup(t *testing.T) {
	modeltest.Caught(t, &loseWakeup, explore.Deadlock, `"writer" waits in Recv`, putRacingRound)
}

func TestFailOnlyFirst(t *testing.T) {
	modeltest.Caught(t, &failOnlyFirst, explore.Invariant, "is durable (<nil>), want absent", twoPutters)
}

func TestAckLateRider(t *testing.T) {
	modeltest.Caught(t, &ackLateRider, explore.Invariant, "a2 is durable (<nil>), want absent", putRacingRound)
}

func TestSinkBeforeDurable(t *testing.T) {
	modeltest.Caught(t, &sinkBeforeDurable, explore.Invariant, "a sink has seen a1, which is not durable", twoPutters)
}

func TestAutomatonNotRestored(t *testing.T) {
	modeltest.Caught(t, &automatonNotRestored, explore.Invariant, "a3 is refused", absentThenUndo)
}

func TestRefuseWholeBatch(t *testing.T) {
	modeltest.Caught(t, &refuseWholeBatch, explore.Invariant, "is refused", refusedAmongRiders)
}

func TestCommitAfterPoison(t *testing.T) {
	modeltest.Caught(t, &commitAfterPoison, explore.Invariant, "BEGIN after an unknown COMMIT", unknownLatches)
}
