//go:build !edamodel

package lock

import (
	"errors"
	"fmt"
	"sync"
	"testing"
)

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
func put(t *testing.T, table *Table, r Request) (release func()) {
	t.Helper()
	c, err := table.enqueue(r, "")
	if err != nil {
		t.Fatal(err)
	}
	return func() { table.release(c, false) }
}

func empty(t *testing.T, table *Table) {
	t.Helper()
	if n, q := len(table.Holders(Key{})), table.Queued(); n != 0 || q != 0 {
		t.Errorf("left over: %d holders, %d waiters", n, q)
	}
}

func TestOverlap(t *testing.T) {
	for _, tt := range []struct {
		name string
		a, b Key
		want bool
	}{
		{"same", file("d"), file("d"), true},
		{"child", file("d"), file("d", "f"), true},
		{"deep", file("d"), file("d", "e", "f"), true},
		{"beside", file("d"), file("e"), false},
		{"cousins", file("d", "f"), file("d", "g"), false},
		{"same_session", Session("s"), Session("s"), true},
		{"two_sessions", Session("s"), Session("t"), false},
		{"two_sorts", Session("d"), file("d"), false},
		{"nothing", Key{}, Key{}, false},
		{"nothing_and_a_file", Key{}, file("d"), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			table := New(Options{})
			for _, keys := range [][2]Key{{tt.a, tt.b}, {tt.b, tt.a}} {
				release := put(t, table, ask("first", keys[0]))
				done := never
				if tt.want {
					done = always
				}
				second, err := table.Acquire(done, ask("second", keys[1]))
				if tt.want != errors.Is(err, ErrCancelled) {
					t.Errorf("%v beside %v: %v", keys[1], keys[0], err)
				}
				if err == nil {
					second()
				}
				release()
			}
			empty(t, table)
		})
	}
}

func TestBounds(t *testing.T) {
	table := New(Options{MaxQueue: 3, MaxPerSession: 2})
	s, x := Session("s"), file("x")
	var all []func()
	for _, r := range []Request{ask("holder", s, x), ask("w1", s), ask("w2", s)} {
		all = append(all, put(t, table, r))
	}
	var busy *BusyError
	if _, err := table.Acquire(never, ask("w3", s)); !errors.As(err, &busy) || busy.Queued != 2 || busy.Holder.Tool != "tool-holder" {
		t.Errorf("third waiter of the session: got %v", err)
	}
	all = append(all, put(t, table, ask("w4", x)))
	if _, err := table.Acquire(never, ask("w5", x)); !errors.As(err, &busy) || busy.Queued != 3 {
		t.Errorf("fourth waiter of the table: got %v", err)
	}
	if holder, ahead := table.Waiting("w2"); holder.Job != "holder" || ahead != 1 {
		t.Errorf("got %v, %d ahead", holder, ahead)
	}
	release, err := table.Acquire(never, ask("free", file("free")))
	if err != nil {
		t.Fatalf("keys that nobody holds, beside a full queue: %v", err)
	}
	for _, release := range append(all, release) {
		release()
	}
	empty(t, table)
}

// TestRace shows the race detector what models cannot: that plain fields are under the mutex.
func TestRace(t *testing.T) {
	table := New(Options{})
	var jobs sync.WaitGroup
	holds := 0 // guarded by the session's key
	for i := range 8 {
		jobs.Go(func() {
			for k := range 100 {
				done := never
				if k%5 == 0 {
					done = always
				}
				release, err := table.Acquire(done, ask(fmt.Sprint(i), Session("s"), file("f", fmt.Sprint(k%2))))
				if err == nil {
					holds++
					release()
				} else if !errors.Is(err, ErrCancelled) {
					t.Error(err)
				}
				table.Holders(Session("s"))
				table.Waiting("0")
			}
		})
	}
	jobs.Go(func() {
		for range 50 {
			finish, err := table.Destroy(never, Owner{Job: "d"}, Session("s"))
			if err != nil {
				t.Error(err)
				return
			}
			finish(false)
		}
	})
	jobs.Wait()
	if holds < 640 {
		t.Errorf("%d of 640 calls that could wait had the keys", holds)
	}
	empty(t, table)
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
