package cgroup

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Group is the cgroup of one step of a job. Its methods may be called by several goroutines at once.
type Group struct {
	// fixed at creation
	p         *Parent
	ref       Ref
	unlimited []string // limits that were asked for but cannot be set here
	kernel    kernel   // what proof and kill go through; tests script it

	// set at creation, closed by Remove
	up, dir, events, killer, procs *os.File
	oom                            *os.File // memory.events; nil without the memory controller

	mu       sync.Mutex
	gone     bool          // guarded by mu: Remove has begun
	closed   bool          // guarded by mu: no start from now on
	inflight chan struct{} // guarded by mu: nil before Start; closed when the start has come back
	joining  int           // guarded by mu: pidfd of a shim that has not joined yet; -1 = none
	process  *Process      // guarded by mu: nil until a start succeeded
	killed   *Descendants  // guarded by mu: what the first Kill found
	killErr  error         // guarded by mu: of the last write to cgroup.kill
	empty    Empty         // guarded by mu: the proof, once there is one
}

// Descendants are processes that outlived the tool's leader.
type Descendants struct {
	Count   int      `json:"count"`
	AtLeast bool     `json:"at_least"` // there were more than could be listed
	Names   []string `json:"names"`    // command names; at most eight
}

// Create makes the group "<job>.<step>" and sets its limits. It never takes over what exists: that is an error
// (fs.ErrExist). After an error there is no group. job consists of letters, digits, '.', '_' and '-'.
func (p *Parent) Create(ctx context.Context, job string, step int, l Limits) (*Group, error) {
	name := job + "." + strconv.Itoa(step)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("create group %q: %w", name, context.Cause(ctx))
	}
	if job == "" || job[0] == '.' || len(job) > 128 || step < 0 || strings.ContainsFunc(job, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
	}) {
		return nil, fmt.Errorf("create group %q: %w", name, fs.ErrInvalid)
	}
	if err := unix.Mkdirat(fd(p.middle), name, 0o755); err != nil {
		return nil, fmt.Errorf("create group %q: %w", name, err)
	}
	g, err := p.openGroup(p.middle, path.Join(p.site.Base, path.Base(p.caps.Dir), name))
	if err == nil {
		err = g.limit(l)
	}
	if err == nil {
		err = writeAt(fd(g.dir), "cgroup.max.descendants", "0") // a tool's mkdir fails with EAGAIN
	}
	if err != nil {
		g.closeFiles()
		_ = unix.Unlinkat(fd(p.middle), name, unix.AT_REMOVEDIR) // made above, holds nothing
		return nil, fmt.Errorf("create group %q: %w", name, err)
	}
	p.note(g, time.Time{})
	return g, nil
}

// openGroup opens the group at rel (relative to the mount), whose parent is the open directory up. The files that
// it could open are in g also after an error.
func (p *Parent) openGroup(up *os.File, rel string) (g *Group, err error) {
	g = &Group{p: p, joining: -1}
	g.kernel = heldGroup{g}
	if g.up, err = openDir(fd(up), "."); err != nil {
		return g, err
	}
	if g.dir, err = openDir(fd(up), path.Base(rel)); err != nil {
		return g, err
	}
	_, parentIno, err := inode(up)
	if err != nil {
		return g, err
	}
	_, ino, err := inode(g.dir)
	if err != nil {
		return g, err
	}
	g.ref = p.ref(parentIno, rel, ino)
	for _, f := range []struct {
		to    **os.File
		name  string
		flags int
	}{{&g.events, "cgroup.events", unix.O_RDONLY}, {&g.killer, "cgroup.kill", unix.O_WRONLY}, {&g.procs, "cgroup.procs", unix.O_RDONLY}} {
		if *f.to, err = openAt(fd(g.dir), f.name, f.flags); err != nil {
			return g, err
		}
	}
	if existsAt(fd(g.dir), "memory.events") {
		g.oom, err = openAt(fd(g.dir), "memory.events", unix.O_RDONLY)
	}
	return g, err
}

func (p *Parent) ref(parentIno uint64, rel string, ino uint64) Ref {
	return Ref{Node: p.node, BootID: p.bootID, CgroupNS: p.ns, Dev: p.dev, Parent: parentIno, Path: rel, Inode: ino}
}

func (g *Group) closeFiles() {
	for _, f := range []*os.File{g.up, g.dir, g.events, g.killer, g.procs, g.oom} {
		closeFile(f)
	}
}

// Ref returns the group's identity, for the journal.
func (g *Group) Ref() Ref { return g.ref }

// Kill closes the group to starts and kills everything in it. The first call counts what was alive beside the leader
// just before; later calls return that count and write again. It is no proof: WaitEmpty follows, always.
func (g *Group) Kill(context.Context) (Descendants, error) {
	g.mu.Lock()
	g.closed = true
	if g.killed == nil {
		d := g.descendantsLocked()
		g.killed = &d
	}
	d, gone := *g.killed, g.gone
	g.mu.Unlock()
	if gone {
		return d, nil
	}
	if err := g.kill(); err != nil {
		return d, fmt.Errorf("kill group %q: %w", g.ref.Path, err)
	}
	return d, nil
}

// kill writes cgroup.kill once, and kills a shim that is not inside yet.
func (g *Group) kill() error {
	err := g.kernel.kill()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.killErr = err
	if g.joining >= 0 {
		_ = unix.PidfdSendSignal(g.joining, unix.SIGKILL, nil, 0) // WaitEmpty waits for it
	}
	return err
}

// Terminate asks the leader to end (SIGTERM, SIGCONT), waits up to grace for the group to be empty, then kills and proves.
// Nobody else gets the signal: a signal over a list of processes races with forks.
func (g *Group) Terminate(ctx context.Context, grace time.Duration) (Empty, error) {
	g.mu.Lock()
	g.closed = true
	process := g.process
	g.mu.Unlock()
	if process != nil && grace > 0 {
		process.signal(unix.SIGTERM)
		process.signal(unix.SIGCONT)
		ctx, cancel := context.WithTimeout(ctx, grace)
		_, err := g.prove(ctx, false)
		cancel()
		if err == nil {
			grace = 0 // empty already; Kill and WaitEmpty follow all the same
		}
	}
	_, _ = g.Kill(ctx) // WaitEmpty writes again, and says so if the kernel refuses
	return g.WaitEmpty(ctx)
}

// descendantsLocked counts the processes in the group beside the leader. A hint for people, never a proof.
func (g *Group) descendantsLocked() (d Descendants) {
	leader := ""
	if g.process != nil && !isClosed(g.process.reaped) {
		leader = strconv.Itoa(g.process.pid)
	}
	data, more, err := readAll(g.procs, 64<<10)
	if err != nil {
		return d // removed or not ours: nothing to count
	}
	d.AtLeast = more
	for pid := range strings.FieldsSeq(string(data)) {
		if pid == leader {
			continue
		}
		d.Count++
		if len(d.Names) < 8 {
			d.Names = append(d.Names, survivor(pid).Comm)
		}
	}
	return d
}
