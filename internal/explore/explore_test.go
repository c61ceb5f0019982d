package explore_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/internal/explore"
)

// cell is a modelled variable, for builds without internal/msync's.
type cell struct{ v int }

func (c *cell) do(name string, ready func() bool, f func() any) {
	op := &explore.Op{Name: name, On: [2]any{c}, Read: name == "Load", Do: func(int) (any, explore.Order) {
		order := map[string]explore.Order{"Load": explore.Acquire, "Store": explore.Release, "Lock": explore.Acquire, "Unlock": explore.Release}
		return f(), order[name]
	}}
	if ready != nil {
		op.Ready = func(int) bool { return ready() }
	}
	if strings.HasSuffix(name, "ock") {
		op.Blocked = func() bool { return c.v == 1 }
	}
	explore.Do(op)
}

func (c *cell) load() (v int) { c.do("Load", nil, func() any { v = c.v; return v }); return v }
func (c *cell) store(v int)   { c.do("Store", nil, func() any { c.v = v; return nil }) }
func (c *cell) lock() {
	c.do("Lock", func() bool { return c.v == 0 }, func() any { c.v = 1; return nil })
}
func (c *cell) unlock() { c.do("Unlock", nil, func() any { c.v = 0; return nil }) }

// lostUpdate is two threads that add one by a load and a store.
func lostUpdate(m *explore.M) {
	var c cell
	for _, name := range []string{"first", "second"} {
		m.Go(name, func() { c.store(c.load() + 1) })
	}
	m.Finally(func() {
		if v := c.load(); v != 2 {
			m.Failf("want 2, got %d", v)
		}
	})
}

func crossed(m *explore.M) {
	var a, b cell
	m.Go("ab", func() { a.lock(); defer a.unlock(); b.lock(); b.unlock() })
	m.Go("ba", func() { b.lock(); defer b.unlock(); a.lock(); a.unlock() })
}

// two is a model of two threads that only load.
func two(f func(m *explore.M, c *cell)) func(*explore.M) {
	return func(m *explore.M) {
		var c cell
		m.Go("a", func() { c.load(); f(m, &c) })
		m.Go("b", func() { c.load() })
	}
}

// forgetful is a model whose n-th execution performs one more operation if the n-th of odd says so.
func forgetful(odd func(n int) bool) func(*explore.M) {
	n := 0
	return func(m *explore.M) {
		n++
		add := odd(n)
		var c cell
		m.Go("a", func() {
			if add {
				c.store(0)
			}
			c.load()
			c.load()
		})
		m.Go("b", func() { c.load() })
	}
}

func strayOperation(m *explore.M) {
	two(func(_ *explore.M, c *cell) {
		over := make(chan struct{})
		go func() { defer close(over); c.load() }()
		<-over
	})(m)
}

func silentStray(m *explore.M) {
	two(func(*explore.M, *cell) {
		over := make(chan struct{})
		go close(over)
		<-over
	})(m)
}

func secondRun(n int) bool { return n%2 == 0 }

func TestFailures(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config explore.Config
		body   func(*explore.M)
		kind   explore.Kind
		reason string
	}{
		{"deadlock", explore.Config{}, crossed, explore.Deadlock, `"ab" waits in Lock, "ba" waits in Lock`},
		{"deadlock_sleep", explore.Config{Mode: explore.Sleep}, crossed, explore.Deadlock, "waits"},
		{"deadlock_dfs", explore.Config{Mode: explore.DFS}, crossed, explore.Deadlock, "waits"},
		{"invariant", explore.Config{}, lostUpdate, explore.Invariant, "want 2, got 1"},
		{"invariant_in_thread", explore.Config{}, two(func(m *explore.M, _ *cell) { m.Failf("no") }), explore.Invariant, "no"},
		{"invariant_of_a_choice", explore.Config{}, two(func(m *explore.M, _ *cell) {
			if m.Choose(2)+m.Choose(3) == 3 {
				m.Failf("3")
			}
		}), explore.Invariant, "3"},
		{"panic", explore.Config{}, two(func(*explore.M, *cell) { panic("oh") }), explore.Panic, `"a": oh`},
		{"panic_in_body", explore.Config{}, func(*explore.M) { panic("oh") }, explore.Panic, "the body: oh"},
		{"panic_finally", explore.Config{}, func(m *explore.M) { two(func(*explore.M, *cell) {})(m); m.Finally(func() { panic("oh") }) }, explore.Panic, "Finally: oh"},
		{"one_thread", explore.Config{}, func(m *explore.M) { m.Go("a", func() {}) }, explore.Limit, "1 threads, want 2 to 8"},
		{"steps", explore.Config{MaxSteps: 50}, two(func(_ *explore.M, c *cell) {
			for c.load() == 0 {
			}
		}), explore.Limit, "more than 50 steps"},
		{"schedules", explore.Config{MaxSchedules: 2, Mode: explore.DFS}, lostUpdate, explore.Invariant, "want 2"},
		{"schedules_all", explore.Config{MaxSchedules: 2, Mode: explore.DFS}, two(func(*explore.M, *cell) {}), "", ""},
		{"schedules_limit", explore.Config{MaxSchedules: 2, Mode: explore.DFS}, two(func(_ *explore.M, c *cell) { c.store(1) }), explore.Limit, "2 schedules are not all"},
		{"twice", explore.Config{}, forgetful(secondRun), explore.Nondeterminism, "did something else when it ran again"},
		{"prefix", explore.Config{Twice: 1, Mode: explore.DFS}, forgetful(func(n int) bool { return n > 2 }), explore.Nondeterminism, "not what it was"},
		{"stray", explore.Config{}, strayOperation, explore.Stray, "an operation by a goroutine"},
		{"silent_stray", explore.Config{}, silentStray, explore.Stray, "a goroutine was started"},
		{"go_in_thread", explore.Config{}, two(func(m *explore.M, _ *cell) { m.Go("c", func() {}) }), explore.Panic, "Go outside the body"},
		{"wait_in_body", explore.Config{}, func(*explore.M) { c := cell{v: 1}; c.lock() }, explore.Panic, "would wait"},
		{"choose_in_body", explore.Config{}, func(m *explore.M) { m.Choose(2) }, explore.Panic, "or branch"},
		{"choose_of_none", explore.Config{}, two(func(m *explore.M, _ *cell) { m.Choose(0) }), explore.Panic, "want 1 to 64"},
		{"nested", explore.Config{}, two(func(*explore.M, *cell) { explore.Explore(explore.Config{}, lostUpdate) }), explore.Panic, "within another"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := explore.Explore(tt.config, tt.body)
			if tt.kind == "" {
				if r.Failure != nil || !r.Complete {
					t.Errorf("got %v", r.Failure)
				}
				return
			}
			if r.Failure == nil || r.Complete || r.Failure.Kind != tt.kind || !strings.Contains(r.Failure.Reason, tt.reason) {
				t.Errorf("want %s with %q, got %v", tt.kind, tt.reason, r.Failure)
			}
		})
	}
}

func TestCounts(t *testing.T) {
	for mode, want := range map[explore.Mode]string{explore.DFS: "6 0", explore.Sleep: "4 0", explore.DPOR: "4 0"} {
		r := explore.Explore(explore.Config{Mode: mode}, func(m *explore.M) {
			var c cell
			for _, name := range []string{"a", "b"} {
				m.Go(name, func() { c.store(c.load()) })
			}
		})
		if got := fmt.Sprint(r.Schedules, r.Pruned); got != want || !r.Complete || r.MaxDepth != 4 || r.Threads != 2 {
			t.Errorf("%s: got %s, want %s: %+v", mode, got, want, r)
		}
	}
}

// TestReplay wants the schedule of a failure to fail again, and a trace to say who did what, where, with what result.
func TestReplay(t *testing.T) {
	f := explore.Explore(explore.Config{}, lostUpdate).Failure
	r := explore.Explore(explore.Config{Replay: f.Schedule}, lostUpdate)
	if r.Failure == nil || r.Failure.String() != f.String() || !slices.Equal(r.Trace, f.Trace) {
		t.Errorf("got %v, want %s", r.Failure, f)
	}
	trace := regexp.MustCompile(`:\d+`).ReplaceAllString(f.String(), ":N")
	const want = `invariant: want 2, got 1
schedule 0.1.1.0
  1  0 first        Load #1 = 0                        explore_test.go:N
  2  1 second       Load #1 = 0                        explore_test.go:N
  3  1 second       Store #1                           explore_test.go:N
  4  0 first        Store #1                           explore_test.go:N`
	if trace != want {
		t.Errorf("got\n%s\nwant\n%s", trace, want)
	}
	chosen := two(func(m *explore.M, _ *cell) {
		if m.Choose(3) == 2 {
			m.Failf("2")
		}
	})
	if s := explore.Explore(explore.Config{}, chosen).Failure.Schedule; s != "0.0:2" {
		t.Errorf("got the schedule %s", s)
	}
	for _, tt := range []struct{ schedule, want string }{
		{"0", ""}, // goes on by the first choice
		{"1.0.0:1", ""},
		{"1.0.0:2", "2"},
		{"1.0.0:3", "step 3: thread 0 has no case 3"},
		{"1.1", "step 2: there is no thread 1 that could go on"},
		{"7", "step 1: there is no thread 7 that could go on"},
		{"0.x", "invalid syntax"},
	} {
		r := explore.Explore(explore.Config{Replay: tt.schedule}, chosen)
		if f := r.Failure; tt.want == "" && f != nil || tt.want != "" && (f == nil || !strings.Contains(f.Reason, tt.want)) || r.Complete {
			t.Errorf("%s: got %v, want %q", tt.schedule, r.Failure, tt.want)
		}
	}
	r = explore.Explore(explore.Config{Replay: explore.Explore(explore.Config{}, crossed).Failure.Schedule}, crossed)
	if last := r.Trace[len(r.Trace)-1]; !regexp.MustCompile(`^ +1 ba +waits in Lock #\d +explore_test.go:\d+$`).MatchString(last) {
		t.Errorf("got %s", last)
	}
}

func TestAccess(t *testing.T) {
	for _, tt := range []struct {
		name        string
		left, right func(m *explore.M, c *cell, access func(write bool))
		race        bool
	}{
		{"bare", access(true), access(false), true},
		{"reads", access(false), access(false), false},
		{"locked", locked(true), locked(true), false},
		{"half_locked", locked(true), access(false), true},
		{"handed_over", handOver, takeOver, false},
		{"handed_over_early", handOverEarly, takeOver, true},
		{"load_before_store", loadAfterAccess, storeBeforeAccess, true}, // ordered for the search, not for memory
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := explore.Explore(explore.Config{}, func(m *explore.M) {
				var c cell
				var plain int
				touch := func(write bool) { m.Access(&plain, "plain", write) }
				touch(true)
				m.Go("left", func() { tt.left(m, &c, touch) })
				m.Go("right", func() { tt.right(m, &c, touch) })
				m.Finally(func() { touch(true) })
			})
			if is := r.Failure != nil && r.Failure.Kind == explore.Race && strings.Contains(r.Failure.Reason, "plain"); is != tt.race {
				t.Errorf("got %v", r.Failure)
			}
		})
	}
}

type side = func(m *explore.M, c *cell, touch func(write bool))

func access(write bool) side {
	return func(_ *explore.M, _ *cell, touch func(bool)) { touch(write) }
}

func locked(write bool) side {
	return func(_ *explore.M, c *cell, touch func(bool)) { c.lock(); touch(write); c.unlock() }
}

func handOver(_ *explore.M, c *cell, touch func(bool))      { touch(true); c.store(1) }
func handOverEarly(_ *explore.M, c *cell, touch func(bool)) { c.store(1); touch(true) }

func takeOver(_ *explore.M, c *cell, touch func(bool)) {
	if c.load() == 1 {
		touch(false)
	}
}

func loadAfterAccess(_ *explore.M, c *cell, touch func(bool))   { touch(true); c.load() }
func storeBeforeAccess(_ *explore.M, c *cell, touch func(bool)) { c.store(1); touch(true) }

func TestOutside(t *testing.T) {
	defer func() {
		if r := fmt.Sprint(recover()); !strings.Contains(r, "Load outside an exploration") {
			t.Errorf("got %s", r)
		}
	}()
	new(cell).load()
}
