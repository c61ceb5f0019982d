package cgroup

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"
)

// Options says where groups live. The zero value of each field but Workspace works.
type Options struct {
	Parent         string // absolute cgroup directory to use instead of our own group; "" = discover
	Workspace      string // absolute; its device and inode name our directory of groups. Required
	Node           string // name of this machine in a Ref; "" = host name
	LimitsRequired bool   // a limit that cannot be set fails Create, instead of being listed in Usage.Unlimited
	NoReaper       bool   // the process waits for children of its own (tests with os/exec): orphans are not adopted or reaped

	guest bool     // a doctor beside a living server: leaves the directory of groups alone
	host  *host    // fixture tree
	off   switches // protections switched off by negative controls
}

// switches are the protections that a negative control switches off. All are zero in the product.
type switches struct {
	mainThread  bool     // launch on whatever thread the scheduler gives
	landlock    bool     // no ruleset at all
	bounding    bool     // keep the capability bounding set
	fs          uint64   // file rights that are not handled
	scopes      uint64   // scopes that are not handled
	abi         int      // highest Landlock ABI to use; 0 = the kernel's
	clone3      error    // what clone3 answers
	controllers []string // wanted controllers, instead of the product's
	readBack    bool     // limits are not read back
	steal       bool     // the reaper takes every zombie, as wait4(-1) would
}

// Entry is the way a tool gets into its group.
type Entry string

// The entries.
const (
	EntryClone3 Entry = "clone3" // CLONE_INTO_CGROUP: born inside
	EntryShim   Entry = "shim"   // our own binary joins, then execs: for seccomp profiles that refuse clone3
)

// Capabilities says what is in force here. It is printed by doctor and kept in audit events.
type Capabilities struct {
	Site
	HostMode    string   `json:"host_mode"`           // unified, hybrid, legacy or unavailable, at /sys/fs/cgroup
	Dir         string   `json:"dir"`                 // absolute directory that holds the groups
	Controllers []string `json:"controllers"`         // enabled for groups; sorted
	Missing     []string `json:"missing_controllers"` // wanted, but not enabled; sorted
	MissingWhy  string   `json:"missing_why,omitempty"`
	Entry       Entry    `json:"entry"`
	EntryWhy    string   `json:"entry_why,omitempty"` // why not clone3
	LandlockABI int      `json:"landlock_abi"`        // of the kernel, at most what we know
	ProofMicros int64    `json:"self_test_proof_us"`  // from the kill of the self-test's daemon to the proof
	Bounding    bool     `json:"bounding_set_dropped"`
	Subreaper   bool     `json:"subreaper"`
	UID         int      `json:"uid"` // of this process
}

// Parent is our directory of groups. Its methods may be called by several goroutines at once.
type Parent struct {
	// fixed after Open
	o         Options
	site      Site
	caps      Capabilities
	node      string
	bootID    string
	ns        string // inode of our cgroup namespace
	dev       uint64
	mount     *os.File
	middle    *os.File // directory that holds the groups
	middleIno uint64
	ours      bool            // the directory is ours to remove once it is empty
	own       map[uint64]bool // groups that contain ourselves: never killed
	null      *os.File        // /dev/null
	system    []grant         // what every tool may use
	reaper    *reaper         // idle with NoReaper
	ctx       context.Context // ends at Close
	stop      context.CancelFunc
	wg        sync.WaitGroup // sweepers, removals, reaper
	slots     chan struct{}  // removals that may run at once

	mu       sync.Mutex
	unproven int                  // guarded by mu: groups being swept
	groups   map[*Group]time.Time // guarded by mu: made or adopted, and not removed yet: since when that is tried; zero = it is not
}

// Open prepares the place for groups: moves us out of the way if controllers are to be enabled, enables them, makes our
// directory, and starts, kills, proves and removes a probe. Errors are *UnavailableError, with every reason found.
// Only one Parent of a process may have a reaper. The caller holds the workspace's owner lock.
func Open(ctx context.Context, o Options) (*Parent, error) {
	p := newParent(ctx, o)
	reasons := p.open(ctx)
	if len(reasons) > 0 {
		_ = p.Close(ctx) // the reasons tell more
		return nil, &UnavailableError{reasons}
	}
	return p, nil
}

func newParent(ctx context.Context, o Options) *Parent {
	p := &Parent{o: o, slots: make(chan struct{}, 8), groups: map[*Group]time.Time{}}
	p.reaper = &reaper{p: p, poke: make(chan struct{}, 1), leaders: map[int]bool{}, escaped: map[int]Survivor{}}
	p.ctx, p.stop = context.WithCancel(context.WithoutCancel(ctx))
	return p
}

// open runs the steps of Open and returns what stands in the way. What it learned is in p.caps also then.
func (p *Parent) open(ctx context.Context) (reasons []Reason) {
	p.caps.HostMode = map[cgroups.CGMode]string{cgroups.Unavailable: "unavailable", cgroups.Legacy: "legacy", cgroups.Hybrid: "hybrid", cgroups.Unified: "unified"}[cgroups.Mode()]
	p.caps.UID, p.caps.Bounding = unix.Geteuid(), canDropBounding()
	p.caps.LandlockABI = landlockABI(p.o.off.abi)
	if p.caps.LandlockABI < minABI {
		reasons = append(reasons, Reason{
			"landlock", fmt.Sprintf("Landlock ABI is %d, %d is needed", p.caps.LandlockABI, minABI), "",
			"use Linux 6.2 or later with landlock in the lsm= boot parameter, and a seccomp profile that permits it",
		})
	}
	var err error
	var refused *UnavailableError
	if p.site, err = Discover(p.o); errors.As(err, &refused) {
		return append(reasons, refused.Reasons...)
	}
	p.caps.Site = p.site
	for _, step := range []struct {
		check, fix string
		run        func(context.Context) error
	}{
		{"identity", "mount /proc, /dev and the workspace", p.identify},
		{"writable", writableFix(p.site.Base), p.makeMiddle},
		{"cgroup.kill", "use Linux 5.14 or later", func(context.Context) error { return unix.Faccessat(fd(p.middle), "cgroup.kill", unix.W_OK, 0) }},
		{"controllers", "delegate the controllers to this group, or set limits: best-effort", p.enoughControllers},
		{"cgroup2", "mount the cgroup2 file system of this cgroup namespace", p.findOwn},
		{"sandbox", "make the system directories readable", p.openSystem},
		{"subreaper", "permit PR_SET_CHILD_SUBREAPER", p.startReaper},
		{"self-test", "a seccomp or security profile refuses clone3, cgroup.procs or landlock: permit them", p.selfTest},
	} {
		if step.check == "self-test" && len(reasons) > 0 {
			return reasons // no tool runs without Landlock, not even the probe
		}
		if err := step.run(ctx); err != nil {
			return append(reasons, Reason{step.check, err.Error(), p.caps.Dir, step.fix})
		}
	}
	return reasons
}

func relative(p string) string { return "." + path.Clean("/"+p) }

// identify learns what a Ref of this boot, namespace and mount looks like.
func (p *Parent) identify(context.Context) (err error) {
	if p.node = p.o.Node; p.node == "" {
		if p.node, err = os.Hostname(); err != nil {
			return err
		}
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	p.bootID = strings.TrimSpace(string(boot))
	var ns, ws unix.Stat_t
	if err := errors.Join(unix.Stat("/proc/self/ns/cgroup", &ns), unix.Stat(p.o.Workspace, &ws)); err != nil {
		return fmt.Errorf("stat cgroup namespace and workspace %q: %w", p.o.Workspace, err)
	}
	p.ns = strconv.FormatUint(ns.Ino, 10)
	id := sha256.Sum256(fmt.Appendf(nil, "%d:%d", ws.Dev, ws.Ino))
	p.caps.Dir = path.Join(p.site.Mount, p.site.Base, fmt.Sprintf("%s%x", middlePrefix, id[:6]))
	if p.null, err = os.Open(os.DevNull); err != nil {
		return err
	}
	if p.mount, err = openDir(unix.AT_FDCWD, p.site.Mount); err != nil {
		return err
	}
	p.dev, _, err = inode(p.mount)
	return err
}

// makeMiddle makes and opens the directory that holds our groups, with the controllers enabled for them. By the owner lock
// it is ours alone, so one that exists is ours, too.
func (p *Parent) makeMiddle(ctx context.Context) error {
	base, err := openDir(fd(p.mount), relative(p.site.Base))
	if err != nil {
		return err
	}
	defer closeFile(base)
	p.enable(ctx, fd(base))
	name := path.Base(p.caps.Dir)
	err = unix.Mkdirat(fd(base), name, 0o755)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	p.ours = err == nil || !p.o.guest // a living server's stays, even if it is empty
	if p.middle, err = openDir(fd(base), name); err != nil {
		return err
	}
	if _, p.middleIno, err = inode(p.middle); err != nil {
		return err
	}
	for _, c := range p.caps.Controllers {
		if err := writeAt(fd(p.middle), "cgroup.subtree_control", "+"+c); err != nil {
			p.caps.MissingWhy = err.Error()
		}
	}
	text, err := readAt(fd(p.middle), "cgroup.subtree_control")
	p.caps.Controllers = nil
	for _, c := range p.wanted() {
		if slices.Contains(strings.Fields(text), c) {
			p.caps.Controllers = append(p.caps.Controllers, c)
		} else {
			p.caps.Missing = append(p.caps.Missing, c)
		}
	}
	return err
}

func (p *Parent) enoughControllers(context.Context) error {
	if p.o.LimitsRequired && len(p.caps.Missing) > 0 {
		return fmt.Errorf("limits are required, but controllers are missing: %v %s", p.caps.Missing, p.caps.MissingWhy)
	}
	return nil
}

func (p *Parent) wanted() []string {
	if p.o.off.controllers != nil {
		return p.o.off.controllers
	}
	return []string{"cpu", "io", "memory", "pids"}
}

// enable turns the wanted controllers on in base, as far as they are available and the place is ours.
func (p *Parent) enable(ctx context.Context, base int) {
	available, err1 := readAt(base, "cgroup.controllers")
	enabled, err2 := readAt(base, "cgroup.subtree_control")
	err := errors.Join(err1, err2)
	moved := false
	for _, c := range p.wanted() {
		if slices.Contains(strings.Fields(enabled), c) {
			p.caps.Controllers = append(p.caps.Controllers, c)
			continue
		} else if err != nil || !slices.Contains(strings.Fields(available), c) {
			continue
		}
		if p.site.Kind == KindRoot {
			err = errors.New("the root group belongs to the host")
		} else if !moved {
			err, moved = p.evacuate(ctx, base), true
		}
		if err == nil { // each alone: one refusal does not cost the others
			if refused := writeAt(base, "cgroup.subtree_control", "+"+c); refused != nil {
				p.caps.MissingWhy = refused.Error()
				continue
			}
			p.caps.Controllers = append(p.caps.Controllers, c)
		}
	}
	if err != nil {
		p.caps.MissingWhy = err.Error()
	}
}

// evacuate moves every process of base into base/supervisor, because a group with processes cannot enable controllers
// for its children ("no internal process constraint", cgroup-v2.rst). In a delegated group all of them must be ours.
func (p *Parent) evacuate(ctx context.Context, base int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := unix.Mkdirat(base, supervisorName, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make %s: %w", supervisorName, err)
	}
	for {
		text, err := readAt(base, "cgroup.procs")
		if err != nil {
			return err
		}
		pids := strings.Fields(text)
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			if p.site.Kind == KindDelegated && !descends(pid) {
				return fmt.Errorf("process %s in our group is not ours to move", pid)
			}
			err := writeAt(base, supervisorName+"/cgroup.procs", pid)
			if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EBUSY) {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("move processes to %s: %w", supervisorName, context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
}

// descends reports whether pid is ours or has us among its ancestors.
func descends(pid string) bool {
	self := strconv.Itoa(os.Getpid())
	for range 1 << 10 {
		if pid == self {
			return true
		}
		_, ppid, err := procStat(pid)
		if err != nil || ppid == "0" {
			return errors.Is(err, os.ErrNotExist) // gone: the write says ESRCH
		}
		pid = ppid
	}
	return false
}

// procStat returns the state letter and the parent of a process.
func procStat(pid string) (state, ppid string, err error) {
	data, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return "", "", err
	}
	text := string(data)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) // the name may hold anything
	if len(fields) < 2 {
		return "", "", fmt.Errorf("parse /proc/%s/stat %q", pid, text)
	}
	return fields[0], fields[1], nil
}

// findOwn notes the groups that contain this process, from its own up to the mount's root: they are never killed.
func (p *Parent) findOwn(context.Context) error {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	own, _ := ownPath(string(text)) // Discover saw it
	_, dir, ok := holding([]mount{{root: p.site.root}}, own, func(m mount) string { return m.root })
	p.own = map[uint64]bool{}
	for ; ok; dir = path.Dir(dir) { // none below a configured mount that does not show us
		var st unix.Stat_t
		if err := unix.Fstatat(fd(p.mount), relative(dir), &st, 0); err != nil {
			return fmt.Errorf("stat group %q: %w", dir, err)
		}
		p.own[st.Ino] = true
		ok = dir != "/"
	}
	return nil
}

// Capabilities returns what is in force; fixed after Open.
func (p *Parent) Capabilities() Capabilities { return p.caps }

// Stats counts what lives.
type Stats struct {
	Groups        int           `json:"groups"`   // made or adopted, removal not begun
	Unproven      int           `json:"unproven"` // being swept
	Removing      int           `json:"removing"`
	OldestRemoval time.Duration `json:"oldest_removal_ns"` // 0 = none; above 30 s doctor warns
	Zombies       int           `json:"zombies"`           // dead children that nobody has reaped
	Escapes       int64         `json:"escapes"`           // adopted children found outside of every group of ours, since Open
	Escaped       []Survivor    `json:"escaped"`           // those alive at the last look; at most eight
}

// Stats returns the counts of now.
func (p *Parent) Stats() Stats {
	s := Stats{}
	for _, c := range children() {
		if c.State == "Z" {
			s.Zombies++
		}
	}
	s.Escapes, s.Escaped = p.reaper.escapes()
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Unproven = p.unproven
	for _, since := range p.groups {
		if since.IsZero() {
			s.Groups++
		} else {
			s.Removing++
			s.OldestRemoval = max(s.OldestRemoval, time.Since(since))
		}
	}
	return s
}

// note says since when g is being removed; zero: it is not.
func (p *Parent) note(g *Group, removing time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.groups[g] = removing
}

// insist calls try in the background until it says that it is done, with pauses that double to 30 s, and once more at Close.
func (p *Parent) insist(pause time.Duration, try func() (done bool), end func()) {
	p.wg.Go(func() {
		defer end()
		for ; !try() && p.ctx.Err() == nil; pause = min(2*pause, 30*time.Second) {
			select {
			case <-p.ctx.Done():
			case <-time.After(pause):
			}
		}
	})
}

// Close ends sweepers and reaper, waits for removals until ctx ends, and removes our directory if it is empty.
// Groups that are left stay for the next start to adopt. It may be called again.
func (p *Parent) Close(ctx context.Context) error {
	p.stop()
	done := make(chan struct{})
	go func() { p.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("close groups of %q: %w", p.caps.Dir, context.Cause(ctx))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.middle != nil && p.ours {
		_ = unix.Unlinkat(fd(p.mount), relative(path.Join(p.site.Base, path.Base(p.caps.Dir))), unix.AT_REMOVEDIR) // not empty: the next start adopts
	}
	closeFile(p.middle)
	closeFile(p.mount)
	closeFile(p.null)
	for _, g := range p.system {
		closeFile(g.f)
	}
	return nil
}
