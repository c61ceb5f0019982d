package cgroup

import (
	"context"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// reaper takes the orphans of tools, which become ours because this process is a subreaper. Leaders are left to their Process.
type reaper struct {
	p    *Parent
	poke chan struct{} // a leader was reaped or a start came back: look again

	mu      sync.Mutex
	leaders map[int]bool     // guarded by mu: pids that a Process waits for
	starts  int              // guarded by mu: in flight
	escaped map[int]Survivor // guarded by mu: seen outside of every group of ours at the last look
	count   int64            // guarded by mu
}

// startReaper makes this process a subreaper and starts the reaper; it ends at Close.
func (p *Parent) startReaper(context.Context) error {
	if p.o.NoReaper {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, err := os.FindProcess(os.Getpid()); err != nil { // Go's one-time pidfd check forks a child of its own: now, not later
		return err
	}
	p.caps.Subreaper = true
	p.wg.Go(p.reaper.run)
	return nil
}

func (r *reaper) run() {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	defer signal.Stop(children)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		r.reapAll()
		select {
		case <-r.p.ctx.Done():
			return
		case <-children:
		case <-r.poke:
		case <-tick.C:
			r.findEscapes()
		}
	}
}

// reapAll takes every zombie that belongs to nobody, looking before it takes: wait4(-1) would steal from leaders.
func (r *reaper) reapAll() {
	for r.p.ctx.Err() == nil {
		info, err := waitid(unix.P_ALL, 0, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT)
		if err != nil || info.pid == 0 {
			return
		}
		pid := int(info.pid)
		if !r.p.o.off.steal && !r.orphan(pid) {
			return // its Process pokes us when it has it
		}
		_, _ = waitid(unix.P_PID, pid, unix.WEXITED|unix.WNOHANG) // the pid cannot have been reused: it was a zombie
	}
}

// orphan reports whether a zombie is no leader. It may be one whose Start has not returned: while one is in flight nobody
// can be judged, and its end pokes.
func (r *reaper) orphan(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.starts == 0 && !r.leaders[pid]
}

// starting marks a start in flight; landed ends it, after register.
func (r *reaper) starting() (landed func()) {
	count := func(n int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.starts += n
	}
	count(1)
	return func() { count(-1); r.wake() }
}

func (r *reaper) register(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaders[pid] = true
}

func (r *reaper) unregister(pid int) {
	r.mu.Lock()
	delete(r.leaders, pid)
	r.mu.Unlock()
	r.wake()
}

func (r *reaper) wake() {
	select {
	case r.poke <- struct{}{}:
	default: // it will look anyway
	}
}

// findEscapes looks for living children outside of every group of ours. While a start is in flight nobody can be judged:
// a shim joins its group only after its birth.
func (r *reaper) findEscapes() {
	quiet := func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.starts == 0
	}
	if !quiet() {
		return
	}
	ours := path.Join(r.p.site.root, r.p.site.Base, path.Base(r.p.caps.Dir)) + "/"
	out := map[int]Survivor{}
	for _, c := range children() {
		text, err := os.ReadFile(path.Join("/proc", strconv.Itoa(c.PID), "cgroup"))
		own, ok := ownPath(string(text))
		if err == nil && ok && c.State != "Z" && !strings.HasPrefix(own, ours) {
			out[c.PID] = c
		}
	}
	if !quiet() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for pid := range out {
		if _, known := r.escaped[pid]; !known {
			r.count++
		}
	}
	r.escaped = out
}

// escapes returns how many were seen in all, and some of those of the last look.
func (r *reaper) escapes() (int64, []Survivor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var some []Survivor
	for _, s := range r.escaped {
		some = append(some, s)
	}
	slices.SortFunc(some, func(a, b Survivor) int { return a.PID - b.PID })
	return r.count, some[:min(len(some), 8)]
}

// children lists the children of this process, dead ones too. Source: proc_tid_children(5).
func children() (all []Survivor) {
	lists, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is well-formed
	for _, list := range lists {
		data, _ := os.ReadFile(list) // the thread may be gone
		for pid := range strings.FieldsSeq(string(data)) {
			all = append(all, survivor(pid))
		}
	}
	return all
}
