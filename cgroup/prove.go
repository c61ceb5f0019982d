package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/cgroup/internal/witness"
)

// killTimeout bounds WaitEmpty when the caller's context has a later deadline or none.
const killTimeout = 10 * time.Second

// kernel is what the proof goes through. Tests script it, because real kernels up to 6.18 show populated 0 at the first
// look after a wait: every protection would pass by luck.
type kernel interface {
	events() (string, error) // content of the held cgroup.events
	kill() error             // one write to cgroup.kill; nil if the group is removed already
	wait(d time.Duration)    // until cgroup.events may have changed, d at most. A hint, no more
	survivors() []Survivor   // who is left, for people; at most eight
}

// WaitEmpty blocks until the kernel reports that no process is left in g or below it, and returns the proof.
// It returns a *UnprovenError if ctx or 10 s end first or cgroup.events cannot be read: unreadable is not empty.
// After an error nothing may be published or deleted. It may be called again, and by several goroutines.
// Source: Linux Documentation/admin-guide/cgroup-v2.rst, "[Un]populated Notification".
func (g *Group) WaitEmpty(ctx context.Context) (Empty, error) {
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if !closed {
		return Empty{}, fmt.Errorf("prove %q empty: %w", g.ref.Path, ErrOpen)
	}
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	empty, err := g.prove(ctx, true)
	if err == nil {
		g.mu.Lock()
		process := g.process
		g.mu.Unlock()
		if process != nil {
			process.out.finish()
		}
	}
	return empty, err
}

// prove is the loop of WaitEmpty; with rekill it writes cgroup.kill again and again: one write misses a child that was
// forked during the kill (Linux 5.14 to 6.13, fixed by b69bb476dee9), and whoever is cloned into the group after it.
func (g *Group) prove(ctx context.Context, rekill bool) (Empty, error) {
	begin := time.Now()
	for i := 0; ; i++ {
		if rekill && i >= eager {
			_ = g.kill() // kept in killErr
		}
		empty, pending, err := g.look()
		if empty != (Empty{}) {
			return empty, nil
		}
		if ctx.Err() != nil {
			return Empty{}, g.unproven(pending, time.Since(begin), err)
		}
		if pending == nil {
			g.kernel.wait(pauseOf(i))
			continue
		}
		timer := time.NewTimer(pauseOf(i))
		select { // the leader reaped, then read: at once, where POLLPRI alone takes 15 ms (kernel rate limit)
		case <-pending:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// eager is how many looks are 1 ms apart. Then most groups are empty, or the kill is written again before each look.
const eager = 20

func pauseOf(look int) time.Duration {
	switch {
	case look < eager:
		return time.Millisecond
	case look < eager+10:
		return 10 * time.Millisecond
	}
	return 50 * time.Millisecond
}

// look takes one reading. It is a proof only of a closed group that no start can enter any more and whose leader was
// reaped; until then pending is the channel that ends the wait for those two. All three stay true once they are.
func (g *Group) look() (_ Empty, pending <-chan struct{}, _ error) {
	g.mu.Lock()
	empty, closed, inflight, process := g.empty, g.closed, g.inflight, g.process
	g.mu.Unlock()
	switch {
	case empty != (Empty{}):
		return empty, nil, nil
	case !closed:
		return Empty{}, nil, ErrOpen
	case inflight != nil && !isClosed(inflight):
		return Empty{}, inflight, nil
	case process != nil && !isClosed(process.reaped):
		return Empty{}, process.reaped, nil
	}
	how := witness.Read
	text, err := g.kernel.events()
	if errors.Is(err, unix.ENODEV) {
		how = witness.Removed // this very directory: and the kernel removes none with a live task in it
	} else if err != nil {
		return Empty{}, nil, err
	} else if ev, err := parseEvents(text); err != nil || ev.populated {
		return Empty{}, nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.empty == (Empty{}) {
		g.empty = witness.NewEmpty(g.ref, time.Now(), how)
	}
	return g.empty, nil, nil
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// unproven says why, as precisely as it can be seen.
func (g *Group) unproven(pending <-chan struct{}, waited time.Duration, err error) error {
	e := &UnprovenError{Ref: g.ref, Reason: Alive, Waited: waited, Err: err, Survivors: g.kernel.survivors()}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case err != nil:
		e.Reason = Unreadable
	case slices.ContainsFunc(e.Survivors, func(s Survivor) bool { return s.State == "D" }):
		e.Reason = Uninterruptible
	case g.killErr != nil:
		e.Reason, e.Err = KillRefused, g.killErr
	case pending != nil && g.inflight == pending:
		e.Reason = StartStuck
	}
	return e
}

// heldGroup is the kernel itself, through the descriptors that Create opened.
type heldGroup struct{ g *Group }

func (h heldGroup) events() (string, error) {
	data, more, err := readAll(h.g.events, 4<<10)
	if more {
		err = errors.Join(err, errors.New("cgroup.events is too long"))
	}
	return string(data), err
}

// kill refuses a group that is not the one we made, or that contains ourselves.
func (h heldGroup) kill() error {
	_, ino, err := inode(h.g.dir)
	if err != nil {
		return fmt.Errorf("stat group: %w", err)
	}
	if ino != h.g.ref.Inode || h.g.p.own[ino] {
		return fmt.Errorf("internal error: group %q has inode %d, not %d, or holds ourselves", h.g.ref.Path, ino, h.g.ref.Inode)
	}
	_, err = h.g.killer.WriteString("1")
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) { // removed: before the write, or during it
		return nil
	}
	return err
}

func (h heldGroup) wait(d time.Duration) {
	conn, err := h.g.events.SyscallConn()
	if err == nil {
		err = conn.Control(func(fd uintptr) {
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}}, int(d.Milliseconds())) // EINTR: read again
		})
	}
	if err != nil && !errors.Is(err, unix.EINTR) {
		<-time.After(d) // closed: do not spin
	}
}

func (h heldGroup) survivors() (all []Survivor) {
	data, _, err := readAll(h.g.procs, 4<<10)
	if err != nil {
		return nil
	}
	for pid := range strings.FieldsSeq(string(data)) {
		if len(all) < 8 {
			all = append(all, survivor(pid))
		}
	}
	return all
}

// survivor describes a process; what cannot be read is left out. A thread in state D speaks for its process: the first
// thread may be a zombie that waits for it.
func survivor(pid string) Survivor {
	read := func(dir, name string) string {
		data, _ := os.ReadFile(path.Join("/proc", dir, name)) // it may be gone
		return strings.TrimSpace(string(data))
	}
	n, _ := strconv.Atoi(pid)    // from the kernel's own list
	state, _, _ := procStat(pid) // it may be gone
	s := Survivor{PID: n, Comm: read(pid, "comm"), State: state, Wchan: read(pid, "wchan")}
	tasks, _ := filepath.Glob("/proc/" + pid + "/task/*") // the pattern is well-formed
	for _, t := range tasks[:min(len(tasks), 64)] {
		task := strings.TrimPrefix(t, "/proc/")
		if state, _, err := procStat(task); err == nil && state == "D" {
			s.State, s.Wchan = state, read(task, "wchan")
			break
		}
	}
	return s
}
