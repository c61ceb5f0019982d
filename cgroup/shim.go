package cgroup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// argv[0] of the children that are this binary itself.
const (
	shimName        = "eda-cgroup-shim"
	probeName       = "eda-cgroup-probe"
	probeDaemonName = "eda-cgroup-probe-daemon"
	selfExe         = "/proc/self/exe"
)

// Descriptors that a shim inherits beside 0, 1 and 2.
const (
	shimSpec    = 3 + iota // the spec, JSON
	shimProcs              // cgroup.procs of the group
	shimReport             // "joined", then the end of file when the exec succeeded, else "op errno text"
	shimRuleset            // Landlock ruleset
)

const (
	specMax = 64 << 10
	joined  = "joined\n"
)

// shimJob is the spec of one launch.
type shimJob struct {
	Path       string
	Args, Env  []string
	Cgroup     string // what /proc/self/cgroup must show after joining
	Landlock   bool
	Bounding   bool // keep the bounding set (negative control)
	Credential *syscall.Credential
}

// Child does the work of this binary's own child processes and ends them: the shim that joins a group and executes a
// tool, and the self-test's probe. It returns in every other process. main calls it before anything else.
func Child() {
	switch filepath.Base(os.Args[0]) {
	case shimName:
		runtime.LockOSThread() // what follows is per thread, and exec keeps the calling thread's
		report := os.NewFile(shimReport, "report")
		op, err := shim(report)
		var errno syscall.Errno
		errors.As(err, &errno)
		_, _ = fmt.Fprintf(report, "%s %d %v", op, int(errno), err) // else the silence tells it
		unix.Exit(127)
	case probeName:
		_, err := syscall.ForkExec(selfExe, []string{probeDaemonName}, &syscall.ProcAttr{
			Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
		})
		fmt.Println("probe", err)
		unix.Exit(0)
	case probeDaemonName:
		stdout := []unix.PollFd{{Fd: 1}}
		for stdout[0].Revents == 0 {
			_, _ = unix.Poll(stdout, -1) // until it is killed: that is its work; or until who should do it is dead, and nobody reads
		}
		unix.Exit(0)
	}
}

// viaShim starts the tool through our own binary, which joins the group and only then executes it. No instruction of
// the tool runs outside of the group, and a Kill meanwhile takes the shim by its pidfd.
func (l *launch) viaShim() error {
	p, g := l.g.p, l.g
	data, err := json.Marshal(shimJob{l.c.Path, l.c.Args, l.c.Env, path.Join(p.site.root, g.ref.Path), l.ruleset != nil, p.o.off.bounding, l.credential})
	if err != nil || len(data) > specMax {
		return &StartError{"shim", l.c.Path, errors.Join(err, unix.E2BIG)}
	}
	memfd, err := unix.MemfdCreate("spec", unix.MFD_CLOEXEC)
	if err != nil {
		return &StartError{"shim", l.c.Path, err}
	}
	spec := os.NewFile(uintptr(memfd), "spec")
	defer closeFile(spec)
	_, err = spec.WriteAt(data, 0)
	procs, openErr := openAt(fd(g.dir), "cgroup.procs", unix.O_WRONLY)
	defer closeFile(procs)
	report, child, pipeErr := os.Pipe()
	defer closeFile(report)
	defer closeFile(child)
	if err := errors.Join(err, openErr, pipeErr); err != nil {
		return &StartError{"shim", l.c.Path, err}
	}
	ruleset := l.ruleset
	if ruleset == nil {
		ruleset = p.null
	}
	w := l.write.Fd()
	l.pid, err = syscall.ForkExec(selfExe, []string{shimName}, &syscall.ProcAttr{
		Dir: l.c.Dir, Files: []uintptr{p.null.Fd(), w, w, spec.Fd(), procs.Fd(), child.Fd(), ruleset.Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &l.pidfd},
	})
	if err != nil {
		return &StartError{"shim", l.c.Path, err}
	}
	closeFile(child) // ours; from here on the process is registered and reaped, whatever the shim says
	l.setJoining(l.pidfd)
	defer l.setJoining(-1)
	text, err := io.ReadAll(io.LimitReader(report, specMax)) // ends with the exec, or the shim's death
	failure := strings.TrimPrefix(string(text), joined)
	if err == nil && failure == "" && len(text) > 0 {
		return nil
	}
	var op string
	var errno syscall.Errno
	if n, scanErr := fmt.Sscan(failure, &op, (*uintptr)(&errno)); scanErr != nil || n < 2 || errno == 0 {
		return &StartError{"shim", l.c.Path, errors.Join(fmt.Errorf("it died before the exec, report %q", text), err)}
	}
	return &StartError{op, l.c.Path, errno}
}

// setJoining names the process that Kill must take by its pidfd, since it may not be in the group yet.
func (l *launch) setJoining(pidfd int) {
	l.g.mu.Lock()
	defer l.g.mu.Unlock()
	l.g.joining = pidfd
	if l.g.closed && pidfd >= 0 {
		_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0) // Kill came before the shim
	}
}

// shim joins the group, restricts itself and executes the tool. It returns only errors.
func shim(report *os.File) (op string, err error) {
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return "shim", err
	}
	var job shimJob
	if err := json.NewDecoder(io.NewSectionReader(os.NewFile(shimSpec, "spec"), 0, specMax)).Decode(&job); err != nil {
		return "shim", err
	}
	if _, err := os.NewFile(shimProcs, "cgroup.procs").WriteString("0"); err != nil {
		return "join", err
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if own, _ := ownPath(string(text)); err != nil || own != job.Cgroup {
		return "join", fmt.Errorf("we are in %q, not in %q: %w", own, job.Cgroup, errors.Join(err, unix.EXDEV))
	}
	if _, err := report.WriteString(joined); err != nil {
		return "shim", err
	}
	ruleset := -1
	if job.Landlock {
		ruleset = shimRuleset
	}
	if err := restrictThread(ruleset, job.Bounding); err != nil {
		return "thread", err
	}
	if c := job.Credential; c != nil { // of this thread alone: the others do not survive the exec
		for _, call := range [][2]uintptr{{unix.SYS_SETGROUPS, 0}, {unix.SYS_SETGID, uintptr(c.Gid)}, {unix.SYS_SETUID, uintptr(c.Uid)}} {
			if _, _, errno := unix.RawSyscall(call[0], call[1], 0, 0); errno != 0 {
				return "setuid", errno
			}
		}
	}
	return "exec", syscall.Exec(job.Path, job.Args, job.Env)
}
