//go:build !edamodel

package batch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
)

// script is a Store that does what it is told and notes every call.
type script struct {
	calls  []string
	fail   map[string]error // by call, such as "begin" or "apply b"; used up by one
	during func()           // runs inside the next Commit
}

var errIO = errors.New("input/output error")

func (s *script) call(name string) error {
	s.calls = append(s.calls, name)
	err := s.fail[name]
	delete(s.fail, name)
	return err
}

func (s *script) Begin() error      { return s.call("begin") }
func (s *script) Apply(op Op) error { return s.call(fmt.Sprint("apply ", op.Payload)) }
func (s *script) Rollback()         { _ = s.call("rollback") } // notes it; a rollback has no answer

func (s *script) Commit() error {
	if f := s.during; f != nil {
		s.during = nil
		f()
	}
	return s.call("commit")
}

func (s *script) took() string { c := strings.Join(s.calls, ", "); s.calls = nil; return c }

func op(name string, kinds ...audit.Kind) Op {
	o := Op{Payload: name}
	for _, k := range kinds {
		o.Events = append(o.Events, audit.Event{Kind: k, Job: "job-" + name})
	}
	return o
}

func put(t *testing.T, q *Queue, ops ...Op) (tickets []*Ticket) {
	t.Helper()
	for _, o := range ops {
		tk, err := q.Put(o)
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, tk)
	}
	return tickets
}

func acks(tickets []*Ticket) string {
	var all []string
	for _, t := range tickets {
		select {
		case <-t.Done():
			all = append(all, string(t.Ack()))
		default:
			all = append(all, "-"+string(t.Ack()))
		}
	}
	return strings.Join(all, " ")
}

func due(idle <-chan struct{}) bool {
	select {
	case <-idle:
		return true
	default:
		return false
	}
}

func refused(why string) error { return fmt.Errorf("%s: %w", why, ErrRefused) }
func absent(why string) error  { return fmt.Errorf("%s: %w", why, ErrAbsent) }

func TestFates(t *testing.T) {
	for _, c := range []struct {
		name           string
		fail           map[string]error
		calls, acks    string
		poisoned, sink bool
	}{
		{"durable", nil, "begin, apply a, apply b, apply c, commit", "durable durable durable", false, true},
		{"refused", map[string]error{"apply b": refused("generation")}, "begin, apply a, apply b, apply c, commit", "durable refused durable", false, true},
		{"refused_first", map[string]error{"apply a": refused("generation")}, "begin, apply a, apply b, apply c, commit", "refused durable durable", false, true},
		{"all_refused", map[string]error{"apply a": refused(""), "apply b": refused(""), "apply c": refused("")}, "begin, apply a, apply b, apply c, rollback", "refused refused refused", false, false},
		{"begin_absent", map[string]error{"begin": absent("busy")}, "begin, rollback", "absent absent absent", false, false},
		{"begin_other", map[string]error{"begin": errIO}, "begin", "absent absent absent", true, false},
		{"apply_absent", map[string]error{"apply b": absent("full")}, "begin, apply a, apply b, rollback", "absent absent absent", false, false},
		{"apply_other", map[string]error{"apply b": errIO}, "begin, apply a, apply b", "absent absent absent", true, false},
		{"refused_then_absent", map[string]error{"apply a": refused(""), "apply c": absent("")}, "begin, apply a, apply b, apply c, rollback", "refused absent absent", false, false},
		{"commit_absent", map[string]error{"commit": absent("full")}, "begin, apply a, apply b, apply c, commit, rollback", "absent absent absent", false, false},
		{"begin_moved", map[string]error{"begin": fmt.Errorf("%w: %w", ErrMoved, ErrAbsent)}, "begin, rollback", "absent absent absent", true, false},
		{"commit_moved", map[string]error{"commit": fmt.Errorf("%w: %w", ErrMoved, ErrAbsent)}, "begin, apply a, apply b, apply c, commit, rollback", "absent absent absent", true, false},
		{"commit_unknown", map[string]error{"commit": errIO}, "begin, apply a, apply b, apply c, commit", "unknown unknown unknown", true, false},
		{"commit_refused", map[string]error{"commit": refused("no such answer")}, "begin, apply a, apply b, apply c, commit", "unknown unknown unknown", true, false},
		{"refused_then_unknown", map[string]error{"apply b": refused(""), "commit": errIO}, "begin, apply a, apply b, apply c, commit", "unknown refused unknown", true, false},
	} {
		fed := 0
		s, q := &script{fail: c.fail}, New(func(audit.Event) { fed++ })
		tickets := put(t, q, op("a", audit.Allow), op("b", audit.Allow), op("c", audit.Allow))
		q.Round(s)
		if got := s.took(); got != c.calls {
			t.Errorf("%s: got %s\nwant %s", c.name, got, c.calls)
		}
		if got := acks(tickets); got != c.acks {
			t.Errorf("%s: got %s, want %s", c.name, got, c.acks)
		}
		if got := q.Poisoned() != nil; got != c.poisoned {
			t.Errorf("%s: poisoned: %v, want %v", c.name, got, c.poisoned)
		}
		for _, tk := range tickets {
			if (tk.Err() == nil) != (tk.Ack() == Durable) {
				t.Errorf("%s: %s with error %v", c.name, tk.Ack(), tk.Err())
			}
		}
		if want := strings.Count(c.acks, "durable"); fed != want {
			t.Errorf("%s: sinks saw %d events, want %d", c.name, fed, want)
		}
	}
}

func TestPoison(t *testing.T) {
	s, q := &script{fail: map[string]error{"commit": errIO}}, New()
	var late []*Ticket
	s.during = func() { late = put(t, q, op("late")) }
	first := put(t, q, op("a"))
	if idle := q.Round(s); !due(idle) {
		t.Fatal("what was put meanwhile waits for ever")
	}
	s.took()
	q.Round(s)
	if calls := s.took(); calls != "" {
		t.Errorf("statements after the poison: %s", calls)
	}
	if got := acks(append(first, late...)); got != "unknown absent" || !errors.Is(late[0].Err(), ErrPoisoned) || !errors.Is(late[0].Err(), errIO) {
		t.Errorf("got %s, %v", got, late[0].Err())
	}
	if _, err := q.Put(op("b")); !errors.Is(err, ErrPoisoned) || !errors.Is(err, errIO) {
		t.Errorf("got %v, want ErrPoisoned and its cause", err)
	}
	q.Poison(errors.New("a second reason"))
	if !errors.Is(q.Poisoned(), errIO) {
		t.Errorf("the first reason is gone: %v", q.Poisoned())
	}
	q.Close()
	if q.Round(s) != nil || s.took() != "" {
		t.Error("a poisoned queue does not end in silence")
	}
}

// TestPoisonFromOutside is a checkpoint that failed while operations waited.
func TestPoisonFromOutside(t *testing.T) {
	s, q := &script{}, New()
	rider := op("r")
	rider.Ride = true
	waiting := put(t, q, rider)
	idle := q.Round(s)
	q.Poison(errIO)
	if !due(idle) {
		t.Fatal("the writer is not woken")
	}
	q.Round(s)
	if acks(waiting) != "absent" || s.took() != "" {
		t.Errorf("got %s, %s", acks(waiting), s.took())
	}
}

func TestOrders(t *testing.T) {
	s, q := &script{}, New()
	round := func(want string, ops ...Op) []*Ticket {
		t.Helper()
		tickets := put(t, q, ops...)
		q.Round(s)
		if got := acks(tickets); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		return tickets
	}
	round("durable durable", op("a", audit.Allow), op("a", audit.Start)) // stepped in apply order, within one round
	tickets := round("refused", op("a", audit.Rollback))
	if !errors.Is(tickets[0].Err(), audit.ErrOrder) || !errors.Is(tickets[0].Err(), ErrRefused) {
		t.Errorf("got %v", tickets[0].Err())
	}
	if got := s.took(); got != "begin, apply a, apply a, commit, begin, rollback" {
		t.Errorf("an illegal event reached the store: %s", got)
	}
	// an operation that is refused half-way leaves no half of its events in the order
	round("refused", op("a", audit.Error, audit.Commit))
	// a commit that is absent was never: the undo is legal
	s.fail = map[string]error{"commit": absent("full")}
	round("absent", op("a", audit.Commit))
	round("durable", op("a", audit.Error, audit.Rollback))
	round("refused", op("a", audit.Start)) // its end is remembered by forgetting it
	// one that the store refused was never, though its neighbours are durable
	round("durable durable", op("b", audit.Allow, audit.Start), op("c", audit.Allow))
	s.fail = map[string]error{"apply b": refused("generation")}
	round("refused durable", op("b", audit.Commit), op("c", audit.Error))
	round("durable", op("b", audit.Error, audit.WorkerTerminated, audit.Rollback))
	if len(q.orders) != 1 {
		t.Errorf("orders are left: %v", q.orders)
	}
	last := op("c", audit.WorkerTerminated)
	last.Last = true
	round("durable", last)
	if len(q.orders) != 0 {
		t.Errorf("orders are left: %v", q.orders)
	}
}

func TestNumbersAndKnown(t *testing.T) {
	var fed []string
	s, q := &script{}, New(func(e audit.Event) { fed = append(fed, fmt.Sprint(e.Kind, e.N)) })
	known := op("a", audit.Recovered, audit.Rollback)
	known.Known = map[string]audit.Order{"job-a": {State: audit.Started, N: 2}, "job-b": {State: audit.Unproven, N: 4}}
	mine := op("b", audit.WorkerTerminated, audit.Rollback)
	tickets := put(t, q, Op{Payload: "opened", Events: []audit.Event{{Kind: audit.LedgerOpened}}}, known, mine)
	given := known.Events[0].N
	q.Round(s)
	if got := fmt.Sprint(acks(tickets), fed, given, known.Events[0].N); got != "durable durable durable[ledger.opened0 recovered3 rollback4 worker_terminated5 rollback6] 0 0" {
		t.Errorf("got %s", got)
	}
	if len(q.orders) != 0 {
		t.Errorf("orders are left: %v", q.orders)
	}
	// what is live is believed before what the caller read
	put(t, q, op("c", audit.Allow, audit.Start))
	q.Round(s)
	stale := op("c", audit.Finish)
	stale.Known = map[string]audit.Order{"job-c": {}}
	if tk := put(t, q, stale); q.Round(s) == nil || acks(tk) != "durable" {
		t.Errorf("got %s, %v", acks(tk), tk[0].Err())
	}
}

func TestSinks(t *testing.T) {
	s := &script{fail: map[string]error{"commit": absent("full")}}
	var seen []string
	var tickets []*Ticket
	q := New(func(e audit.Event) {
		if len(s.calls) == 0 || s.calls[len(s.calls)-1] != "commit" {
			t.Error("a sink was fed before the COMMIT")
		}
		if !strings.HasPrefix(acks(tickets[len(tickets)-1:]), "-") {
			t.Error("an answer was given before the sinks were fed")
		}
		seen = append(seen, string(e.Kind))
	})
	tickets = put(t, q, op("a", audit.Allow))
	q.Round(s)
	if seen != nil {
		t.Errorf("sinks saw %v of a failed COMMIT", seen)
	}
	tickets = put(t, q, op("a", audit.Allow, audit.Start), op("a", audit.Timeout))
	q.Round(s)
	if !slices.Equal(seen, []string{"allow", "start", "timeout"}) {
		t.Errorf("got %v", seen)
	}
}

func TestWake(t *testing.T) {
	s, q := &script{}, New()
	idle := q.Round(s)
	if due(idle) || s.took() != "" {
		t.Fatal("an empty queue is due")
	}
	q.Flush()
	if due(idle) {
		t.Error("Flush of nothing is due")
	}
	rider := op("r")
	rider.Ride = true
	riding := put(t, q, rider)
	if due(idle) || q.Round(s) != idle || s.took() != "" {
		t.Error("a rider alone makes a round due")
	}
	q.Flush()
	if !due(idle) {
		t.Error("Flush does not make the rider due")
	}
	if idle = q.Round(s); due(idle) || acks(riding) != "durable" {
		t.Errorf("after the round: due %v, %s", due(idle), acks(riding))
	}
	riding = put(t, q, rider)
	tickets := append(riding, put(t, q, op("a"))...)
	if !due(idle) {
		t.Error("an awaited operation does not wake")
	}
	var late []*Ticket
	s.during = func() { late = put(t, q, op("late")) }
	s.took()
	idle = q.Round(s)
	if acks(tickets) != "durable durable" || acks(late) != "-" || s.took() != "begin, apply r, apply a, commit" {
		t.Errorf("got %s and %s", acks(tickets), acks(late))
	}
	if !due(idle) {
		t.Fatal("what was put during the COMMIT waits for ever")
	}
	if idle = q.Round(s); acks(late) != "durable" || due(idle) {
		t.Errorf("got %s", acks(late))
	}
}

func TestClose(t *testing.T) {
	s, q := &script{}, New()
	idle := q.Round(s)
	rider := op("r")
	rider.Ride = true
	tickets := put(t, q, rider)
	q.Close()
	if _, err := q.Put(op("a")); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	if !due(idle) {
		t.Error("Close does not wake")
	}
	if q.Round(s) != nil || acks(tickets) != "durable" {
		t.Errorf("the last round: %s", acks(tickets))
	}
	q.Close() // again is nothing
	if q.Round(s) != nil {
		t.Error("a closed and empty queue goes on")
	}
}

func TestBounds(t *testing.T) {
	q := New()
	rider := Op{Ride: true}
	for range maxOps/2 - 1 {
		put(t, q, rider)
	}
	if due(q.wake) {
		t.Error("a queue of few riders is due")
	}
	put(t, q, rider)
	if !due(q.wake) {
		t.Error("a queue half full of riders is not due")
	}
	for range maxOps / 2 {
		put(t, q, rider)
	}
	if _, err := q.Put(rider); !errors.Is(err, ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
	q.Round(&script{})
	put(t, q, Op{Bytes: maxBytes})
	if _, err := q.Put(Op{Bytes: 1}); !errors.Is(err, ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
	q.Round(&script{})
	put(t, q, Op{Bytes: maxBytes})
}

// TestRace lets many putters meet one writer: each ticket is answered once, and the store saw put order.
func TestRace(t *testing.T) {
	const putters, each = 8, 200
	s, q := &script{}, New(func(audit.Event) {})
	var putting, writing sync.WaitGroup
	writing.Go(func() {
		for idle := q.Round(s); idle != nil; idle = q.Round(s) {
			<-idle
		}
	})
	for p := range putters {
		putting.Go(func() {
			for i := range each {
				o := op(fmt.Sprintf("%d-%04d", p, i), audit.Allow)
				o.Last = true
				o.Ride = i%3 == 0
				tk, err := q.Put(o)
				if err != nil {
					t.Error(err)
					return
				}
				if i%7 == 0 {
					q.Flush()
					<-tk.Done()
					if tk.Ack() != Durable {
						t.Error(tk.Ack(), tk.Err())
					}
				}
			}
		})
	}
	putting.Wait()
	q.Close()
	ended := make(chan struct{})
	go func() { writing.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("the writer does not end")
	}
	applied := map[string][]string{}
	for _, call := range s.calls {
		if name, ok := strings.CutPrefix(call, "apply "); ok {
			p, _, _ := strings.Cut(name, "-")
			applied[p] = append(applied[p], name)
		}
	}
	for p, names := range applied {
		if len(names) != each || !slices.IsSorted(names) {
			t.Errorf("putter %s: %d operations, sorted %v", p, len(names), slices.IsSorted(names))
		}
	}
	if len(applied) != putters {
		t.Errorf("%d putters", len(applied))
	}
}
