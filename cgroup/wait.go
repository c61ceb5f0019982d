package cgroup

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Cause says why Wait returned.
type Cause string

// The causes.
const (
	Exited  Cause = "exited"  // the leader exited
	Context Cause = "context" // the context ended first: deadline or cancel
	OOM     Cause = "oom"     // the kernel killed something in the group for lack of memory
)

// Exit is how the wait for a tool ended. It says nothing about the group being empty.
type Exit struct {
	Code   int         // exit code of the leader; -1 when it was killed by a signal or still runs
	Signal unix.Signal // that killed the leader; 0 = none
	At     time.Time   // when the leader was reaped; zero while it runs
	Alive  int         // processes alive in the group beside the leader, when Wait returned
	Cause  Cause
}

const (
	defaultLinger = time.Second
	oomEvery      = 100 * time.Millisecond
)

// Process is the leader of a group: the program that Start started. Its group is what must be killed and proven.
type Process struct {
	// fixed at creation
	g      *Group
	pid    int
	pidfd  *os.File
	linger time.Duration
	out    *output
	reaped chan struct{} // closed when the leader was reaped; exit is set before

	mu   sync.Mutex
	dead bool // guarded by mu: reaped, pidfd closed
	exit Exit // fixed when reaped is closed
}

// siginfo is siginfo_t of a 64-bit Linux, as waitid(2) fills it.
type siginfo struct {
	signo, errno, code, _ int32
	pid, uid, status, _   int32
	_                     [96]byte
}

// waitid waits for a change of a child. With WNOHANG and nothing to report, pid is 0.
func waitid(kind, id, options int) (siginfo, error) {
	return retry(func() (info siginfo, err error) {
		err = unix.Waitid(kind, id, (*unix.Siginfo)(unsafe.Pointer(&info)), options, nil)
		return info, err
	})
}

// codes of SIGCHLD: the child exited; every other one is a death by signal.
const cldExited = 1

// reap waits for the leader, and nobody else does. It ends with the leader.
func (p *Process) reap() {
	info, err := waitid(unix.P_PIDFD, int(p.pidfd.Fd()), unix.WEXITED)
	p.exit = Exit{Code: -1, At: time.Now(), Cause: Exited}
	switch {
	case err != nil: // ECHILD: somebody else took the status; it is dead all the same
	case info.code == cldExited:
		p.exit.Code = int(info.status)
	default:
		p.exit.Signal = unix.Signal(info.status)
	}
	p.mu.Lock()
	p.dead = true
	closeFile(p.pidfd)
	p.mu.Unlock()
	p.g.p.reaper.unregister(p.pid)
	close(p.reaped)
}

// signal sends sig to the leader if it is not reaped yet, by its pidfd: never to a pid that was given to another.
func (p *Process) signal(sig unix.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.dead {
		_ = unix.PidfdSendSignal(int(p.pidfd.Fd()), sig, nil, 0) // a zombie answers ESRCH
	}
}

// PID returns the leader's process id, for people: it may belong to another process once the leader was reaped.
func (p *Process) PID() int { return p.pid }

// Wait returns at the first of: leader exited and group empty; leader exited and Linger over; ctx done; an OOM kill in
// the group. The leader's exit does not disarm ctx, which belongs to the group. The error is the cause of ctx, and nil
// otherwise. Kill and WaitEmpty follow always, also after exit 0 with nothing alive.
func (p *Process) Wait(ctx context.Context) (Exit, error) {
	var oom <-chan time.Time
	if p.g.oom != nil {
		ticker := time.NewTicker(oomEvery)
		defer ticker.Stop()
		oom = ticker.C
	}
	for {
		select {
		case <-p.reaped:
			return p.lingerOn(ctx)
		case <-ctx.Done():
			return p.ended(Context), context.Cause(ctx)
		case <-oom:
			if p.oomKilled() {
				return p.ended(OOM), nil
			}
		}
	}
}

// lingerOn gives what the leader left behind time to end by itself.
func (p *Process) lingerOn(ctx context.Context) (Exit, error) {
	linger := p.linger
	if linger == 0 {
		linger = defaultLinger
	}
	until := p.exit.At.Add(linger)
	for look := 0; ; look++ {
		text, err := p.g.kernel.events()
		ev, parseErr := parseEvents(text)
		switch {
		case p.oomKilled():
			return p.ended(OOM), nil
		case errors.Is(err, unix.ENODEV), err == nil && parseErr == nil && !ev.populated: // a hint here, not the proof
			return p.ended(Exited), nil
		case ctx.Err() != nil:
			return p.ended(Context), context.Cause(ctx)
		case !time.Now().Before(until):
			return p.ended(Exited), nil
		}
		p.g.kernel.wait(max(time.Millisecond, min(pauseOf(look), time.Until(until))))
	}
}

func (p *Process) ended(cause Cause) Exit {
	exit := Exit{Code: -1}
	if isClosed(p.reaped) {
		exit = p.exit
	}
	exit.Cause = cause
	p.g.mu.Lock()
	defer p.g.mu.Unlock()
	exit.Alive = p.g.descendantsLocked().Count
	return exit
}

// oomKilled reports whether the kernel has killed a process of the group for lack of memory.
func (p *Process) oomKilled() bool {
	if p.g.oom == nil {
		return false
	}
	data, _, err := readAll(p.g.oom, 4<<10)
	kv, parseErr := keyValues(string(data))
	return err == nil && parseErr == nil && kv["oom_kill"] > 0
}
