package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// startTimeout bounds a Start: a clone into a frozen group, say, returns never.
const startTimeout = 5 * time.Second

// oomScore is the oom_score_adj of a tool: under memory pressure it dies before us.
const oomScore = "1000"

// NoLinger is the Command.Linger that gives descendants no time.
const NoLinger = -time.Nanosecond

// Command is one program to run.
type Command struct {
	Path    string   // absolute path of the program
	Args    []string // argv, with argv[0]
	Env     []string // the whole environment, "name=value"; see BaseEnv
	Dir     string   // absolute working directory
	Log     *os.File // gets stdout and stderr up to LogCap; nil = none. The caller closes it, after the proof
	LogCap  int64    // bytes; 0 = 64 MiB
	Sandbox Sandbox
	Linger  time.Duration // how long Wait gives descendants after the leader's exit; 0 = 1 s; NoLinger
	// Line gets whole lines of output of 4 KiB at most, without the newline, at most four a second; nil = none. It is
	// called by the goroutine that empties the pipe and must not block; line is valid during the call only.
	Line        func(line []byte)
	FileSizeMax int64 // RLIMIT_FSIZE in bytes; 0 = none. Set right after exec: what forks within microseconds escapes it
}

// BaseEnv returns the base environment of a tool: all of it lies in jobTmp, the job's absolute temporary directory.
// path is the PATH. Nothing of the caller's own environment is in it.
func BaseEnv(jobTmp, path string) []string {
	home := filepath.Join(jobTmp, "home")
	return []string{
		"PATH=" + path, "HOME=" + home, "TMPDIR=" + jobTmp, "TMP=" + jobTmp, "TEMP=" + jobTmp,
		"XDG_CONFIG_HOME=" + home + "/.config", "XDG_CACHE_HOME=" + home + "/.cache", "XDG_DATA_HOME=" + home + "/.local/share",
		"XDG_STATE_HOME=" + home + "/.local/state", "XDG_RUNTIME_DIR=" + home + "/.run",
		"LC_ALL=C.UTF-8", "TZ=UTC", "USER=eda", "LOGNAME=eda",
	}
}

// SecureProcess prepares this process for children: no descriptor above 2 that it was born with reaches a tool, umask
// 0022, no core files. main calls it first thing, after Child.
func SecureProcess() error {
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close_range: %w", err)
	}
	unix.Umask(0o022)
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("set RLIMIT_CORE: %w", err)
	}
	return nil
}

// launch is one start on its way.
type launch struct {
	g          *Group
	c          Command
	credential *syscall.Credential
	ruleset    *os.File // nil without Landlock (negative controls only)
	out        *output
	write      *os.File // our end for the child
	pid, pidfd int
}

// Start starts c inside the group, under the sandbox; at most once a group. It returns after the exec. Success does
// not mean that the tool ran: a group killed meanwhile kills it at birth. Errors are *StartError, also for ErrClosed,
// ErrStarted, ErrFrozen, ErrSandbox, and for ctx or 5 s at their end.
func (g *Group) Start(ctx context.Context, c Command) (*Process, error) {
	fail := func(op string, err error) (*Process, error) {
		if errors.As(err, new(*StartError)) {
			return nil, err
		}
		return nil, &StartError{op, c.Path, err}
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	inflight, err := g.begin()
	if err != nil {
		return fail("start", err)
	}
	l := &launch{g: g, c: c, pidfd: -1}
	if op, err := l.prepare(); err != nil {
		l.release()
		close(inflight)
		return fail(op, err)
	}
	result := make(chan error, 1)
	go func() { result <- l.run(inflight) }()
	select {
	case err = <-result:
	case <-ctx.Done(): // it may come through later: WaitEmpty waits for it
		return fail("start", context.Cause(ctx))
	}
	if err != nil {
		return fail("exec", err)
	}
	return g.process, nil
}

// begin takes the one start that a group has.
func (g *Group) begin() (inflight chan struct{}, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return nil, ErrClosed
	case g.inflight != nil:
		return nil, ErrStarted
	}
	g.inflight = make(chan struct{})
	return g.inflight, nil
}

// prepare does what needs no special thread: look at the program, the freezer and the uid; ruleset and pipe.
func (l *launch) prepare() (op string, err error) {
	p, c := l.g.p, l.c
	if !filepath.IsAbs(c.Path) || len(c.Args) == 0 {
		return "stat", fs.ErrInvalid
	}
	info, err := os.Stat(c.Path)
	if err == nil && (!info.Mode().IsRegular() || info.Mode()&0o111 == 0) {
		err = fs.ErrPermission
	}
	if err != nil {
		return "stat", err
	}
	if dir, err := os.Stat(c.Dir); err != nil || !dir.IsDir() { // else its ENOENT would read as the program's
		return "chdir", fmt.Errorf("working directory %q: %w", c.Dir, fs.ErrInvalid)
	}
	text, err := l.g.kernel.events()
	if ev, parseErr := parseEvents(text); err != nil || parseErr != nil || ev.frozen {
		return "start", errors.Join(err, parseErr, ErrFrozen)
	}
	if l.credential, err = p.credential(c.Sandbox); err != nil {
		return "start", err
	}
	if !p.o.off.landlock {
		if l.ruleset, err = p.ruleset(c); err != nil {
			return "landlock", err
		}
	}
	l.out, l.write, err = newOutput(c)
	return "pipe", err
}

// credential returns the tool's uid and gid, without supplementary groups. As root the tool must not keep capabilities:
// CAP_PERFMON, say, reads our environment through Landlock.
func (p *Parent) credential(s Sandbox) (*syscall.Credential, error) {
	uid, gid := s.UID, s.GID
	if uid < 0 {
		uid = unix.Geteuid()
	}
	if gid < 0 {
		gid = unix.Getegid()
	}
	if uid == 0 && !canDropBounding() && !boundingEmpty() {
		return nil, errors.New("a tool as root would keep our capabilities: CAP_SETPCAP is missing")
	}
	if unix.Geteuid() != 0 && uid == unix.Geteuid() && gid == unix.Getegid() {
		return nil, nil
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// release closes what the launch holds.
func (l *launch) release() {
	closeFile(l.ruleset)
	closeFile(l.write)
	if l.out != nil && l.pid == 0 {
		closeFile(l.out.read)
	}
}

// run launches and registers the process; then the start is over, whoever still waits for it.
func (l *launch) run(inflight chan struct{}) error {
	defer close(inflight)
	defer l.release()
	reaper := l.g.p.reaper
	landed := reaper.starting()
	defer landed()
	var err error
	if l.g.p.caps.Entry == EntryShim {
		err = l.viaShim()
	} else {
		onThrowaway(l.g.p.o.off.mainThread, func() { err = l.onThread() })
	}
	if l.pid == 0 {
		return err
	}
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", l.pid), []byte(oomScore), 0) // best effort
	if err == nil && l.c.FileSizeMax > 0 {
		limit := uint64(l.c.FileSizeMax)
		err = unix.Prlimit(l.pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}, nil)
		if errors.Is(err, unix.EPERM) && !l.g.p.o.LimitsRequired { // another uid, and we lack CAP_SYS_RESOURCE
			l.g.unlimited, err = append(l.g.unlimited, "RLIMIT_FSIZE"), nil
		}
	}
	process := &Process{g: l.g, pid: l.pid, pidfd: os.NewFile(uintptr(l.pidfd), "pidfd"), reaped: make(chan struct{}), linger: l.c.Linger, out: l.out}
	reaper.register(l.pid)
	l.g.mu.Lock()
	l.g.process = process
	closed := l.g.closed
	l.g.mu.Unlock()
	go process.reap()
	go l.out.copy()
	if closed || err != nil {
		_ = l.g.kill() // it was killed before this process came in; WaitEmpty writes again
	}
	return err
}

// onThrowaway runs f on an OS thread of its own and destroys the thread, because what f does to it cannot be undone. Never on the
// main thread: Go parks that one for ever, and the kernel judges signals to our pid and /proc/<pid> by the main
// thread's Landlock domain: this process would count as a member of the job.
func onThrowaway(anyThread bool, f func()) {
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread() // and never unlocked: the runtime destroys the thread with the goroutine
		if unix.Gettid() == unix.Getpid() && !anyThread {
			onThrowaway(false, f) // held here, the main thread cannot be the next one
			runtime.UnlockOSThread()
		} else {
			f()
		}
		close(done)
	}()
	<-done
}

// onThread restricts the calling thread and starts the tool in its group, by one clone3.
func (l *launch) onThread() (err error) {
	p := l.g.p
	if err := p.o.off.clone3; err != nil {
		return err
	}
	ruleset := -1
	if l.ruleset != nil {
		ruleset = fd(l.ruleset)
	}
	if err := restrictThread(ruleset, p.o.off.bounding); err != nil {
		return &StartError{"thread", l.c.Path, err}
	}
	// No Pdeathsig: it fires when the forking thread dies, which is at once. No os/exec: nothing else waits or signals.
	w := l.write.Fd()
	l.pid, err = syscall.ForkExec(l.c.Path, l.c.Args, &syscall.ProcAttr{
		Dir: l.c.Dir, Env: l.c.Env, Files: []uintptr{p.null.Fd(), w, w},
		Sys: &syscall.SysProcAttr{Setsid: true, Credential: l.credential, UseCgroupFD: true, CgroupFD: fd(l.g.dir), PidFD: &l.pidfd},
	})
	return err
}
