package batch

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/eda-sidecar/eda-sidecar/internal/msync"
	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
)

// Bounds of what may wait. Half of either wakes the writer even if all of it only rides.
const (
	maxOps   = 4096
	maxBytes = 16 << 20
)

// Ack is what became of an operation.
type Ack string

// The answers. The zero value: none yet.
const (
	Durable Ack = "durable" // a COMMIT that held it returned OK
	Refused Ack = "refused" // this operation alone was not done
	Absent  Ack = "absent"  // its transaction was not done
	Unknown Ack = "unknown" // its COMMIT failed in a way that proves nothing: only a restart can tell
)

// Op is one operation: all of it becomes durable in one transaction, or none of it.
type Op struct {
	Events  []audit.Event
	Payload any                    // for the Store alone
	Bytes   int                    // what it counts against the bound of the queue
	Ride    bool                   // does not wake the writer: durable with the next transaction, or after Flush
	Last    bool                   // its jobs will have no further event, so their orders are forgotten
	Known   map[string]audit.Order // orders from before this process, for jobs that the queue does not hold
}

// Store is one transaction at a time. Apply undoes what it did if it returns an error that wraps ErrRefused.
type Store interface {
	Begin() error
	Apply(Op) error
	Commit() error
	Rollback()
}

// Ticket is the promise of an answer to one Put.
type Ticket struct {
	q    *Queue
	done chan struct{}
	// owned by Round
	op      Op
	refused error // why this operation alone was not done
	// guarded by q.mu
	ack Ack
	err error
}

// Done is closed once the answer is there. Every ticket is answered once, also when the ledger is poisoned or closed.
func (t *Ticket) Done() <-chan struct{} { return t.done }

// Ack returns the answer; before Done it is empty.
func (t *Ticket) Ack() Ack {
	t.q.mu.Lock()
	defer t.q.mu.Unlock()
	return t.ack
}

// Err returns why the answer is not Durable; nil if it is, and before Done.
func (t *Ticket) Err() error {
	t.q.mu.Lock()
	defer t.q.mu.Unlock()
	return t.err
}

// Queue gathers operations for one writer. Sinks are fixed at creation.
type Queue struct {
	sinks []func(audit.Event)
	// owned by whoever calls Round
	orders map[string]audit.Order // of jobs that may go on
	// guarded by mu
	mu      msync.Mutex
	waiting []*Ticket
	bytes   int
	wake    chan struct{} // closed: a round is due
	due     bool          // wake is closed
	closed  bool
	poison  error
}

// New returns an empty queue. sinks are called by Round, in order, with each event once it is durable.
func New(sinks ...func(audit.Event)) *Queue {
	return &Queue{sinks: sinks, orders: map[string]audit.Order{}, wake: make(chan struct{})}
}

// Put adds an operation. It cannot be withdrawn: who gives up puts the opposite behind it.
// The error is ErrFull, ErrPoisoned or ErrClosed.
func (q *Queue) Put(op Op) (*Ticket, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.poison != nil:
		return nil, fmt.Errorf("put: %w: %w", ErrPoisoned, q.poison)
	case q.closed:
		return nil, fmt.Errorf("put: %w", ErrClosed)
	case len(q.waiting) >= maxOps || q.bytes+op.Bytes > maxBytes:
		return nil, fmt.Errorf("put: %d operations of %d bytes wait: %w", len(q.waiting), q.bytes, ErrFull)
	}
	t := &Ticket{q: q, op: op, done: make(chan struct{})}
	q.waiting, q.bytes = append(q.waiting, t), q.bytes+op.Bytes
	if !op.Ride || len(q.waiting) >= maxOps/2 || q.bytes >= maxBytes/2 {
		q.wakeLocked()
	}
	return t, nil
}

// Flush makes a round due for what only rides.
func (q *Queue) Flush() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) > 0 {
		q.wakeLocked()
	}
}

// Close lets no further operation in. What waits is still done; then Round returns nil.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.wakeLocked()
}

// Poison makes every operation fail from now on: err is why the ledger cannot be trusted. The first one stays.
func (q *Queue) Poison(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.poison == nil {
		q.poison = err
	}
	q.wakeLocked()
}

// Poisoned returns why the ledger was poisoned, or nil.
func (q *Queue) Poisoned() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.poison
}

func (q *Queue) wakeLocked() {
	if !q.due {
		q.due = true
		msync.Close(q.wake)
	}
}

// Round does everything that waits in one transaction, if a round is due, and answers it. It returns the channel that
// is closed when the next round is due, possibly already, or nil once the queue is closed and empty. Only one
// goroutine may call it.
func (q *Queue) Round(s Store) (idle <-chan struct{}) {
	round, poison := q.take()
	if len(round) > 0 {
		q.run(s, round, poison)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if loseWakeup {
		q.due, q.wake = false, make(chan struct{})
	}
	if q.closed && len(q.waiting) == 0 {
		return nil
	}
	return q.wake
}

// take empties the queue if a round is due. Whatever is put from here on makes the next one due.
func (q *Queue) take() (round []*Ticket, poison error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.due {
		return nil, nil
	}
	round = q.waiting
	q.waiting, q.bytes = nil, 0
	q.due, q.wake = false, make(chan struct{})
	return round, q.poison
}

// run does one round and answers it. Nothing that was put meanwhile has a part in it.
func (q *Queue) run(s Store, round []*Ticket, poison error) {
	ack, err := Absent, fmt.Errorf("%w: %w", ErrPoisoned, poison)
	orders := maps.Clone(q.orders)
	if poison == nil || commitAfterPoison {
		ack, err = q.transact(s, round, orders)
	}
	if ack == Durable || automatonNotRestored {
		q.orders = orders
	}
	if ackLateRider {
		late, _ := q.take() // the poison is known below
		round = append(round, late...)
	}
	for i, t := range round {
		t.settle(ack, err)
		if failOnlyFirst && i > 0 {
			t.settle(Durable, nil)
		}
		if t.refused == nil && ack == Durable {
			q.feed(t) // before the answer: whoever has it finds it counted
		}
		t.op = Op{} // whoever keeps the ticket need not keep the operation
		msync.Close(t.done)
	}
}

// transact applies the round and commits it. An operation that is refused is marked; for all others the answer counts.
func (q *Queue) transact(s Store, round []*Ticket, orders map[string]audit.Order) (Ack, error) {
	if err := s.Begin(); err != nil {
		return q.absent(s, err)
	}
	applied := 0
	for _, t := range round {
		err := t.apply(s, orders)
		if err != nil && !errors.Is(err, ErrRefused) {
			return q.absent(s, err)
		}
		if err != nil && refuseWholeBatch {
			return Refused, err
		}
		if t.refused = err; err == nil {
			applied++
		}
	}
	if applied == 0 {
		s.Rollback() // no fsync for nothing
		return Absent, nil
	}
	if sinkBeforeDurable {
		for _, t := range round {
			q.feed(t)
		}
	}
	if err := s.Commit(); errors.Is(err, ErrAbsent) {
		return q.absent(s, err)
	} else if err != nil {
		q.Poison(err)
		return Unknown, err
	}
	return Durable, nil
}

// absent ends a transaction that is not in the ledger. If the store does not say so there is no further statement, not
// even a rollback.
func (q *Queue) absent(s Store, err error) (Ack, error) {
	known := errors.Is(err, ErrAbsent)
	if known {
		s.Rollback()
	}
	if !known || errors.Is(err, ErrMoved) {
		q.Poison(err)
	}
	return Absent, err
}

// apply steps the orders of the operation's jobs and has the store apply it. orders change only if both agree.
func (t *Ticket) apply(s Store, orders map[string]audit.Order) (err error) {
	op, mine := t.op, map[string]audit.Order{}
	op.Events = slices.Clone(op.Events)
	for i := range op.Events {
		e := &op.Events[i]
		if e.Kind.Housekeeping() {
			continue
		}
		o := latest(e.Job, mine, orders, op.Known)
		if o, err = o.Next(e.Kind); err != nil {
			return fmt.Errorf("job %q: %w: %w", e.Job, ErrRefused, err)
		}
		e.N, mine[e.Job] = o.N, o
	}
	if err := s.Apply(op); err != nil {
		return err
	}
	for job := range op.Known { // in any order: the jobs differ
		orders[job] = latest(job, orders, op.Known)
	}
	for job, o := range mine { // in any order: the jobs differ
		if orders[job] = o; o.Ended() || op.Last {
			delete(orders, job)
		}
	}
	t.op.Events = op.Events
	return nil
}

// latest returns the job's order from the first of the maps that holds it.
func latest(job string, from ...map[string]audit.Order) audit.Order {
	for _, m := range from {
		if o, ok := m[job]; ok {
			return o
		}
	}
	return audit.Order{}
}

// settle writes the answer; a refused operation keeps its own.
func (t *Ticket) settle(ack Ack, err error) {
	t.q.mu.Lock()
	defer t.q.mu.Unlock()
	if t.ack, t.err = ack, err; t.refused != nil {
		t.ack, t.err = Refused, t.refused
	}
}

func (q *Queue) feed(t *Ticket) {
	for _, e := range t.op.Events {
		for _, sink := range q.sinks {
			sink(e)
		}
	}
}
