package lock

import (
	"errors"
	"fmt"
	"testing"
)

// A scenario forces one order of calls and says what went wrong, if anything did. In the ordinary build every
// scenario must hold; with the tag edamodel mutants_test.go takes one guard away at a time, and the scenario named
// for it must fail.
var scenarios = map[string]func() error{
	"crossed":  crossedTargets,
	"exclude":  exclude,
	"fair":     fair,
	"handOn":   handOn,
	"giveUp":   giveUp,
	"full":     fullQueue,
	"destroy":  destroyFailsWaiters,
	"tooLate":  aliveAfterGrant,
	"survives": failedTombstone,
}

func TestScenarios(t *testing.T) {
	for name, run := range scenarios {
		t.Run(name, func(t *testing.T) {
			if err := run(); err != nil {
				t.Error(err)
			}
		})
	}
}

var (
	never  = make(chan struct{})
	always = func() chan struct{} { c := make(chan struct{}); close(c); return c }()
)

func file(names ...string) Key {
	var chain []Edge
	for i, n := range names {
		chain = append(chain, Edge{Dev: 1, Ino: uint64(i + 1), Name: n})
	}
	return Path(chain)
}

func ask(job string, keys ...Key) Request {
	return Request{Owner: Owner{Job: job, Tool: "tool-" + job}, Keys: keys}
}

// put enqueues without waiting for the decision.
func put(t *Table, r Request) *claim {
	c, err := t.enqueue(r, "")
	if err != nil {
		panic(err)
	}
	return c
}

func decided(c *claim) bool {
	select {
	case <-c.decided:
		return true
	default:
		return false
	}
}

func empty(t *Table) error {
	if n, q := len(t.Holders(Key{})), t.Queued(); n != 0 || q != 0 || t.leaked != 0 {
		return fmt.Errorf("left over: %d holders, %d waiters, %d slots", n, q, t.leaked)
	}
	return nil
}

func crossedTargets() error {
	t := New(Options{})
	a := put(t, ask("a", Session("s1"), file("x"), file("y")))
	b := put(t, ask("b", Session("s2"), file("y"), file("x")))
	if !decided(a) || decided(b) {
		return errors.New("want a granted and b waiting")
	}
	t.release(a, false)
	if !decided(b) {
		return errors.New("b was not granted when a ended")
	}
	t.release(b, false)
	t.release(b, false)
	return empty(t)
}

func exclude() error {
	t := New(Options{})
	first := put(t, ask("first", file("d")))
	for _, k := range []Key{file("d"), file("d", "f"), file("d", "e", "f")} {
		second := put(t, ask("second", k))
		if decided(second) {
			return fmt.Errorf("%v was granted beside its ancestor", k)
		}
		if err := t.await(always, second); !errors.Is(err, ErrCancelled) {
			return err
		}
	}
	beside := put(t, ask("beside", file("e"), Session("s")))
	if !decided(beside) {
		return errors.New("unrelated keys had to wait")
	}
	t.release(first, false)
	t.release(beside, false)
	return empty(t)
}

func fair() error {
	t := New(Options{})
	holder := put(t, ask("holder", file("x")))
	early := put(t, ask("early", file("x"), file("y")))
	late := put(t, ask("late", file("y")))
	if decided(late) {
		return errors.New("late overtook early, which waits for the same key")
	}
	t.release(holder, false)
	if !decided(early) || decided(late) {
		return errors.New("want early before late")
	}
	t.release(early, false)
	t.release(late, false)
	return empty(t)
}

func handOn() error {
	t := New(Options{})
	holder := put(t, ask("holder", Session("s")))
	gaveUp := put(t, ask("gaveUp", Session("s")))
	behind := put(t, ask("behind", Session("s")))
	t.release(holder, false)
	gaveUp.decided = nil // it sees its own cancel first, although it was granted
	if err := t.await(always, gaveUp); !errors.Is(err, ErrCancelled) {
		return fmt.Errorf("got %s", fmt.Sprint(err))
	}
	if !decided(behind) {
		return errors.New("the keys were lost with the one who gave up")
	}
	t.release(behind, false)
	return empty(t)
}

func giveUp() error {
	t := New(Options{MaxQueue: 1})
	holder := put(t, ask("holder", Session("s")))
	for range 3 {
		if _, err := t.Acquire(always, ask("w", Session("s"))); !errors.Is(err, ErrCancelled) {
			return fmt.Errorf("got %s", fmt.Sprint(err))
		}
	}
	t.release(holder, false)
	return empty(t)
}

func fullQueue() error {
	t := New(Options{MaxQueue: 3, MaxPerSession: 2})
	s, x := Session("s"), file("x")
	holder := put(t, ask("holder", s, x))
	w1, w2 := put(t, ask("w1", s)), put(t, ask("w2", s))
	var busy *BusyError
	if _, err := t.Acquire(never, ask("w3", s)); !errors.As(err, &busy) || busy.Queued != 2 || busy.Holder.Tool != "tool-holder" {
		return fmt.Errorf("third waiter of the session: got %s", fmt.Sprint(err))
	}
	w4 := put(t, ask("w4", x))
	if _, err := t.Acquire(never, ask("w5", x)); !errors.As(err, &busy) || busy.Queued != 3 {
		return fmt.Errorf("fourth waiter of the table: got %s", fmt.Sprint(err))
	}
	release, err := t.Acquire(never, ask("free", file("free")))
	if err != nil {
		return fmt.Errorf("keys that nobody holds, beside a full queue: %w", err)
	}
	release()
	for _, c := range []*claim{holder, w1, w2, w4} {
		t.release(c, false)
	}
	return empty(t)
}

func destroyFailsWaiters() error {
	t := New(Options{})
	s := Session("s")
	holder := put(t, ask("holder", s))
	w1, w2 := put(t, ask("w1", s)), put(t, ask("w2", s, file("x")))
	d, err := t.enqueue(Request{Owner: Owner{Job: "d"}, Keys: []Key{s}}, "s")
	if err != nil || decided(d) {
		return fmt.Errorf("the destroy must wait for the holder: %s", fmt.Sprint(err))
	}
	t.release(holder, false)
	if !decided(d) || decided(w1) {
		return errors.New("the destroy must come before the waiters")
	}
	t.release(d, true)
	for _, w := range []*claim{w1, w2} {
		if err := t.await(never, w); !errors.Is(err, ErrDestroyed) {
			return fmt.Errorf("waiter: got %s", fmt.Sprint(err))
		}
	}
	return empty(t)
}

func aliveAfterGrant() error {
	t := New(Options{})
	r := ask("late", Session("s"))
	r.Alive = func() error { return ErrDestroyed }
	release, err := t.Acquire(never, r)
	if !errors.Is(err, ErrDestroyed) {
		return fmt.Errorf("a session that died before the request came: got %s", fmt.Sprint(err))
	}
	if release != nil {
		return errors.New("a release beside an error")
	}
	return empty(t)
}

func failedTombstone() error {
	t := New(Options{})
	s := Session("s")
	finish, err := t.Destroy(never, Owner{Job: "d"}, s)
	if err != nil {
		return err
	}
	w := put(t, ask("w", s))
	finish(false)
	if err := t.await(never, w); err != nil {
		return fmt.Errorf("the session lives on, yet: %w", err)
	}
	t.release(w, false)
	return empty(t)
}

func TestKeysWithoutAName(t *testing.T) {
	if (Key{}).conflicts(Key{}) || file("x").conflicts(Key{}) || Session("s").conflicts(file("x")) {
		t.Error("the zero key, or keys of two sorts, conflict")
	}
}

// BenchmarkAcquire is the uncontended way in and out with ten keys.
func BenchmarkAcquire(b *testing.B) {
	table := New(Options{})
	keys := []Key{Session("s")}
	for i := range 9 {
		keys = append(keys, file("a", "b", "c", fmt.Sprint(i)))
	}
	for b.Loop() {
		release, err := table.Acquire(never, Request{Keys: keys})
		if err != nil {
			b.Fatal(err)
		}
		release()
	}
}
