package cgroup

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

const (
	full  = "populated 1\nfrozen 0\n"
	clear = "populated 0\nfrozen 0\n"
)

// script is a cgroupfs that does what the kernel may do. Time is synctest's.
type script struct {
	mu     sync.Mutex
	texts  []string // what each look reads; the last one stays
	errs   []error  // likewise
	looks  int
	kills  []time.Duration // since begin
	begin  time.Time
	onKill func(n int) // after write n, from 1
	killed error       // what kill answers
	left   []Survivor
}

func (s *script) events() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.looks
	s.looks++
	var err error
	if len(s.errs) > 0 {
		err = s.errs[min(i, len(s.errs)-1)]
	}
	return s.texts[min(i, len(s.texts)-1)], err
}

func (s *script) kill() error {
	s.mu.Lock()
	s.kills = append(s.kills, time.Since(s.begin))
	n, onKill := len(s.kills), s.onKill
	s.mu.Unlock()
	if onKill != nil {
		onKill(n)
	}
	return s.killed
}

func (s *script) set(texts ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.texts, s.looks = texts, 0
}

func (s *script) wait(d time.Duration)  { <-time.After(d) }
func (s *script) survivors() []Survivor { return s.left }

// scripted returns a group whose kernel is s.
func scripted(s *script) *Group {
	s.begin = time.Now()
	return &Group{p: &Parent{}, ref: Ref{Path: "/g", Inode: 7}, joining: -1, kernel: s}
}

// Mutants of the proof: each must be wrong on some script.
var mutantProvers = map[string]func(text string, err error, listed int) bool{
	"list_of_processes": func(_ string, _ error, listed int) bool { return listed == 0 }, // cgroup.procs hides exiting tasks
	"error_is_empty":    func(text string, err error, _ int) bool { return err != nil || strings.Contains(text, "populated 0") },
	"loose_parser":      func(text string, err error, _ int) bool { return err == nil && !strings.Contains(text, "populated 1") },
	"single_check":      func(string, error, int) bool { return true }, // the kill returned nil, once is enough
}

func TestProof(t *testing.T) {
	for _, c := range []struct {
		name    string
		texts   []string
		errs    []error
		left    []Survivor
		killed  error
		want    How // "" = unproven
		reason  UnprovenReason
		fooling []string // mutants that take the first look for a proof
	}{
		{name: "empty_at_once", texts: []string{clear}, want: "read"},
		{name: "late", texts: []string{full, full, full, clear}, want: "read", fooling: []string{"list_of_processes", "single_check"}},
		{name: "never", texts: []string{full}, reason: Alive, fooling: []string{"list_of_processes", "single_check"}},
		{name: "other_keys", texts: []string{"new_key 5\n" + clear}, want: "read"},
		{name: "removed", texts: []string{""}, errs: []error{unix.ENODEV}, want: "removed"},
		{name: "io_error", texts: []string{""}, errs: []error{unix.EIO}, reason: Unreadable, fooling: []string{"error_is_empty", "list_of_processes", "single_check"}},
		{name: "no_access", texts: []string{""}, errs: []error{unix.EACCES}, reason: Unreadable, fooling: []string{"error_is_empty", "list_of_processes", "single_check"}},
		{name: "error_with_text", texts: []string{clear}, errs: []error{io.ErrUnexpectedEOF}, reason: Unreadable, fooling: []string{"error_is_empty", "list_of_processes", "single_check"}},
		{name: "error_goes_away", texts: []string{"", full, clear}, errs: []error{unix.EIO, nil}, want: "read", fooling: []string{"error_is_empty", "list_of_processes", "single_check"}},
		{name: "nothing", texts: []string{""}, reason: Unreadable, fooling: []string{"loose_parser", "list_of_processes", "single_check"}},
		{name: "short", texts: []string{"populated 0\nfroz"}, reason: Unreadable, fooling: []string{"error_is_empty", "loose_parser", "list_of_processes", "single_check"}},
		{name: "cut_number", texts: []string{"frozen 0\npopulated 0"}, reason: Unreadable, fooling: []string{"error_is_empty", "loose_parser", "list_of_processes", "single_check"}},
		{name: "no_key", texts: []string{"frozen 0\n"}, reason: Unreadable, fooling: []string{"loose_parser", "list_of_processes", "single_check"}},
		{name: "unknown_value", texts: []string{"populated 2\nfrozen 0\n"}, reason: Unreadable, fooling: []string{"loose_parser", "list_of_processes", "single_check"}},
		{name: "twice", texts: []string{"populated 0\n" + full}, reason: Unreadable, fooling: []string{"error_is_empty", "list_of_processes", "single_check"}},
		{name: "in_state_D", texts: []string{full}, left: []Survivor{{PID: 5, State: "S"}, {PID: 6, State: "D"}}, reason: Uninterruptible},
		{name: "kill_refused", texts: []string{full}, killed: unix.EACCES, reason: KillRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{texts: c.texts, errs: c.errs, left: c.left, killed: c.killed}
				g := scripted(s)
				_, err := g.Kill(context.Background())
				if !errors.Is(err, c.killed) {
					t.Errorf("kill: %v", err)
				}
				begin := time.Now()
				e, err := g.WaitEmpty(context.Background())
				var u *UnprovenError
				if c.want != "" {
					if err != nil || e.How() != c.want || !e.Proves(g.ref) {
						t.Fatalf("proof %+v, %v; want %s", e, err, c.want)
					}
				} else if !errors.As(err, &u) || !errors.Is(err, ErrUnproven) || u.Reason != c.reason || e != (Empty{}) {
					t.Fatalf("proof %+v, %v; want %s", e, err, c.reason)
				} else if d := time.Since(begin); d < killTimeout || d > killTimeout+time.Second || u.Waited < killTimeout {
					t.Errorf("gave up after %v", d)
				}
				for name, proves := range mutantProvers { // the control: what the mutant makes of the first look
					var firstErr error
					if len(c.errs) > 0 {
						firstErr = c.errs[0]
					}
					truth := c.want != "" && len(c.texts) == 1
					fooled := proves(c.texts[0], firstErr, 0) && !truth
					if c.fooling != nil && fooled != slices.Contains(c.fooling, name) {
						t.Errorf("mutant %s fooled: %v", name, fooled)
					}
				}
			})
		})
	}
}

// One write of cgroup.kill misses a child that was forked during it, and does not bind who comes later.
func TestKillIsWrittenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{texts: []string{full}}
		s.onKill = func(n int) {
			if n == 3 {
				s.set(clear)
			}
		}
		g := scripted(s)
		_, err := g.Kill(context.Background())
		ok(t, err)
		if _, err = g.WaitEmpty(context.Background()); err != nil || len(s.kills) != 3 {
			t.Errorf("%v after %d kills", err, len(s.kills))
		}
	})
	synctest.Test(t, func(t *testing.T) { // the schedule
		s := &script{texts: []string{full}}
		g := scripted(s)
		_, _ = g.Kill(context.Background()) // answers nil
		_, err := g.WaitEmpty(deadline(t, 3*time.Second))
		last, gaps := time.Duration(0), map[int64]bool{}
		for _, at := range s.kills[1:] {
			gaps[(at-last).Milliseconds()], last = true, at
		}
		if got := slices.Sorted(maps.Keys(gaps)); !slices.Equal(got, []int64{10, 20, 50}) {
			t.Errorf("kills at %v (%v), gaps of %v ms; want one of 20 ms, then 10, then 50", s.kills, err, got)
		}
	})
	synctest.Test(t, func(t *testing.T) { // control: without the second write the child lives
		s := &script{texts: []string{full}}
		s.onKill = func(n int) {
			if n == 2 {
				s.set(clear)
			}
		}
		g := scripted(s)
		_, err := g.Kill(context.Background())
		ok(t, err)
		if _, err := g.prove(deadline(t, 5*time.Second), false); !errors.Is(err, ErrUnproven) {
			t.Errorf("proven by one write: %v", err)
		}
	})
}

// A start in flight may clone after the kill: until it has come back, populated 0 proves nothing. So does an unreaped leader.
func TestProofWaitsForStartAndLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{texts: []string{clear}}
		g := scripted(s)
		inflight, err := g.begin()
		ok(t, err)
		_, err = g.Kill(context.Background())
		ok(t, err)
		if e, _, err := g.look(); e != (Empty{}) || err != nil { // and the read, had it been taken, would have lied
			t.Fatalf("proven while a start is in flight: %+v, %v", e, err)
		}
		landed := time.Now().Add(300 * time.Millisecond)
		time.AfterFunc(300*time.Millisecond, func() {
			s.set(full) // it cloned after every kill so far
			s.mu.Lock()
			s.onKill = func(int) { s.set(clear) }
			s.mu.Unlock()
			g.mu.Lock()
			g.process = &Process{g: g, reaped: make(chan struct{}), out: &output{done: make(chan struct{})}}
			close(g.process.out.done)
			g.mu.Unlock()
			close(inflight)
		})
		time.AfterFunc(700*time.Millisecond, func() { close(g.process.reaped) })
		e, err := g.WaitEmpty(context.Background())
		if err != nil || e.At().Before(landed.Add(400*time.Millisecond)) {
			t.Errorf("%+v, %v: before the leader was reaped", e, err)
		}
		if _, err := g.begin(); !errors.Is(err, ErrClosed) {
			t.Errorf("second start: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		g := scripted(&script{texts: []string{clear}})
		_, err := g.begin()
		ok(t, err)
		_, err = g.Kill(context.Background())
		ok(t, err)
		var u *UnprovenError
		if _, err := g.WaitEmpty(deadline(t, time.Second)); !errors.As(err, &u) || u.Reason != StartStuck {
			t.Errorf("a stuck start: %v", err)
		}
	})
	g := scripted(&script{texts: []string{clear}})
	if e, err := g.WaitEmpty(context.Background()); !errors.Is(err, ErrOpen) || e != (Empty{}) {
		t.Errorf("an open group: %+v, %v", e, err)
	}
}

// Kill racing Start, for real: whatever the order, nothing lives after the proof.
func TestKillAgainstStart(t *testing.T) {
	w := newWorld(t, Options{})
	started := 0
	for range 60 {
		g := w.create()
		result := make(chan error, 1)
		go func() {
			_, err := g.Start(context.Background(), w.command("sleep"))
			result <- err
		}()
		w.prove(g)
		if err := <-result; err == nil {
			started++
		}
		w.prove(g)
		if e, _, err := g.look(); err != nil || !e.Proves(g.ref) {
			t.Fatal(err)
		}
	}
	for range 60 { // this time the kill comes when the clone is under way
		g := w.create()
		inflight := make(chan struct{})
		go func() {
			close(inflight)
			_, _ = g.Start(context.Background(), w.command("sleep")) // either way
		}()
		<-inflight
		until(t, "start", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return g.inflight != nil })
		w.prove(g)
	}
	if left := w.marked(); len(left) > 0 {
		t.Fatalf("survivors %v (%d started)", left, started)
	}
}
