package cgroup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// killpg is the usual way, and the control: it takes the leader's process group.
func killpg(_ testing.TB, _ *world, leader int) {
	_ = unix.Kill(-leader, unix.SIGKILL) // ESRCH when the group is gone: just so
}

// walk is the other usual way: the tree below the leader, by parent pids.
func walk(t testing.TB, w *world, leader int) {
	victims := map[int]bool{leader: true}
	for range 8 {
		for _, pid := range w.marked() {
			if _, ppid, err := procStat(strconv.Itoa(pid)); err == nil {
				n, err := strconv.Atoi(ppid)
				ok(t, err)
				if victims[n] {
					victims[pid] = true
				}
			}
		}
	}
	for pid := range victims {
		_ = unix.Kill(pid, unix.SIGKILL) // ESRCH: gone
	}
}

func TestEveryTreeDies(t *testing.T) {
	both := map[string]func(testing.TB, *world, int){"killpg": killpg, "walk": walk}
	for _, c := range []struct {
		name           string
		args           []string
		alive          int  // processes when it has settled
		says, orphaned bool // it says so; the leader ends
		loses          map[string]func(testing.TB, *world, int)
	}{
		{"setsid", []string{"daemon", "sleep"}, 1, true, true, both},
		{"double_fork", []string{"daemon2", "sleep"}, 2, true, false, both},
		{"fork_bomb", []string{"bomb", "200"}, 201, false, false, map[string]func(testing.TB, *world, int){"killpg": killpg}},
		{"sleepers", []string{"sleepers", "150"}, 150, false, true, both},
		{"term_ignored", []string{"stubborn"}, 1, true, false, nil},
		{"stopped", []string{"polite", "stop"}, 1, true, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, Options{})
			g, p := w.start(c.args...)
			beside := c.alive - 1 // the leader
			if c.orphaned {
				beside++
			}
			settle := func(g *Group, p *Process) {
				if c.says {
					printed(t, p, "ready")
				}
				until(t, "settled tree", func() bool {
					return (!c.orphaned || isClosed(p.reaped)) && g.count() == beside && len(w.marked()) == c.alive
				})
			}
			settle(g, p)
			killed, err := g.Kill(context.Background())
			ok(t, err)
			if killed.Count != beside || killed.AtLeast {
				t.Errorf("killed %+v, want %d", killed, beside)
			}
			w.prove(g)
			if left := w.marked(); len(left) > 0 {
				t.Fatalf("survivors after the proof: %v", left)
			}
			for name, kill := range c.loses {
				g, p := w.start(c.args...)
				settle(g, p)
				kill(t, w, p.PID())
				until(t, "the leader's death", func() bool { return isClosed(p.reaped) })
				if left := w.marked(); len(left) == 0 {
					t.Errorf("control %s: everything died, so the case proves nothing", name)
				}
				w.prove(g)
			}
		})
	}
}

// A tool whose leader is gone writes on; the deadline and the proof are about the group.
func TestLeaderExitsChildWritesOn(t *testing.T) {
	w := newWorld(t, Options{})
	file := filepath.Join(w.s0, "out")
	size := func() int64 {
		info, err := os.Stat(file)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	g := w.create()
	c := w.command("daemon", "append", file)
	c.Linger = time.Hour
	p, err := g.Start(context.Background(), c)
	ok(t, err)
	until(t, "the leader's exit", func() bool { return isClosed(p.reaped) })
	until(t, "first byte", func() bool { return size() > 0 })
	exit, err := p.Wait(deadline(t, 50*time.Millisecond))
	if exit.Cause != Context || exit.Code != 0 || exit.Alive != 1 || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the deadline was disarmed by the leader's exit: %+v, %v", exit, err)
	}
	// Control: publishing after the leader's clean exit, before the proof, meets a file that changes.
	before := size()
	until(t, "growth after exit 0", func() bool { return size() > before })
	w.prove(g)
	final := size()
	<-time.After(50 * time.Millisecond)
	if got := size(); got != final {
		t.Fatalf("the file grew from %d to %d after the proof", final, got)
	}
	if d, err := g.Kill(context.Background()); err != nil || d.Count != 1 || strings.Join(d.Names, "") == "" {
		t.Errorf("killed %+v, %v; want one with its name", d, err)
	}
}

func TestWaitReturnsWhenTheGroupIsEmpty(t *testing.T) {
	w := newWorld(t, Options{})
	g, p := w.start("exit", "3")
	p.linger = time.Hour
	exit, err := p.Wait(deadline(t, 10*time.Second))
	if err != nil || exit.Code != 3 || exit.Signal != 0 || exit.Cause != Exited || exit.Alive != 0 || exit.At.IsZero() {
		t.Errorf("exit %+v, %v", exit, err)
	}
	w.prove(g)
	g, p = w.start("sleep")
	w.prove(g)
	if exit, err = p.Wait(deadline(t, 10*time.Second)); err != nil || exit.Signal != unix.SIGKILL || exit.Code != -1 {
		t.Errorf("killed: %+v, %v", exit, err)
	}
	g, p = w.start("daemon", "sleep")
	if exit, err = p.Wait(deadline(t, 10*time.Second)); err != nil || exit.Cause != Exited || exit.Alive != 1 {
		t.Errorf("no linger: %+v, %v", exit, err)
	}
	w.prove(g)
}

func TestTerminate(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		signal unix.Signal
	}{
		{"polite", []string{"polite"}, 7, 0},
		{"stopped", []string{"polite", "stop"}, 7, 0}, // SIGCONT after SIGTERM
		{"stubborn", []string{"stubborn"}, -1, unix.SIGKILL},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, Options{})
			g, p := w.start(c.args...)
			printed(t, p, "ready")
			if len(c.args) > 1 {
				until(t, "stop", func() bool { s, _, _ := procStat(strconv.Itoa(p.PID())); return s == "T" }) // an error is not T
			}
			grace := 10 * time.Second
			if c.signal != 0 {
				grace = 50 * time.Millisecond
			}
			e, err := g.Terminate(context.Background(), grace)
			ok(t, err)
			exit, err := p.Wait(context.Background())
			if err != nil || !e.Proves(g.Ref()) || exit.Code != c.code || exit.Signal != c.signal {
				t.Errorf("exit %+v, %v", exit, err)
			}
			if _, err := g.Start(context.Background(), w.command("exit", "0")); err == nil {
				t.Error("a terminated group can be started")
			}
		})
	}
}
