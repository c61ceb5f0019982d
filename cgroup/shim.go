package cgroup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
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
	specMax         = 64 << 10
)

// Descriptors that a shim inherits beside 0, 1 and 2.
const (
	shimSpec    = 3 + iota // the spec, JSON
	shimProcs              // cgroup.procs of the group
	shimReport             // one line when joined, then nothing (exec succeeded) or the error
	shimRuleset            // Landlock ruleset
)

// shimJob is the spec of one launch.
type shimJob struct {
	Path        string
	Args, Env   []string
	Cgroup      string // what /proc/self/cgroup must show after joining
	Landlock    bool
	Bounding    bool // keep the bounding set (negative control)
	UID, GID    int  // -1 = as it is
	FileSizeMax int64
}

// shimFailure is the report of a shim that could not exec.
type shimFailure struct {
	Op    string
	Errno syscall.Errno
	Text  string
}

const joined = "joined\n"

// Child does the work of this binary's own child processes and ends them: the shim that joins a group and executes a
// tool, and the probe. It returns in every other process. main calls it before anything else.
func Child() {
	switch filepath.Base(os.Args[0]) {
	case shimName:
		shimMain()
	case probeName:
		os.Stdout.WriteString("probe\n") // read by the self-test, which misses it otherwise
		_, err := syscall.ForkExec(selfExe, []string{probeDaemonName}, &syscall.ProcAttr{
			Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
		})
		if err != nil {
			fmt.Println(err)
			unix.Exit(1)
		}
		unix.Exit(0)
	case probeDaemonName:
		for {
			_ = unix.Pause() // until it is killed: that is its work
		}
	}
}

// viaShim starts the tool through our own binary, which joins the group and only then executes it. No instruction of
// the tool runs outside of the group, and a Kill meanwhile takes the shim by its pidfd.
func (l *launch) viaShim() error {
	p, g := l.g.p, l.g
	job := shimJob{Path: l.c.Path, Args: l.c.Args, Env: l.c.Env, Cgroup: path.Join(p.site.root, g.ref.Path), Landlock: l.ruleset != nil,
		Bounding: p.o.off.bounding, UID: -1, GID: -1, FileSizeMax: l.c.FileSizeMax}
	if l.credential != nil {
		job.UID, job.GID = int(l.credential.Uid), int(l.credential.Gid)
	}
	data, err := json.Marshal(job)
	if err == nil && len(data) > specMax {
		err = unix.E2BIG
	}
	if err != nil {
		return &StartError{"shim", l.c.Path, err}
	}
	memfd, err := unix.MemfdCreate("spec", unix.MFD_CLOEXEC)
	if err != nil {
		return &StartError{"shim", l.c.Path, err}
	}
	spec := os.NewFile(uintptr(memfd), "spec")
	defer closeFile(spec)
	if _, err := spec.WriteAt(data, 0); err != nil {
		return &StartError{"shim", l.c.Path, err}
	}
	procs, err := openAt(fd(g.dir), "cgroup.procs", unix.O_WRONLY)
	if err != nil {
		return &StartError{"shim", l.c.Path, err}
	}
	defer closeFile(procs)
	report, child, err := os.Pipe()
	if err != nil {
		return &StartError{"shim", l.c.Path, err}
	}
	defer closeFile(report)
	ruleset := p.null
	if l.ruleset != nil {
		ruleset = l.ruleset
	}
	w := l.write.Fd()
	pid, err := syscall.ForkExec(selfExe, []string{shimName}, &syscall.ProcAttr{
		Dir: l.c.Dir, Files: []uintptr{p.null.Fd(), w, w, spec.Fd(), procs.Fd(), child.Fd(), ruleset.Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &l.pidfd},
	})
	closeFile(child)
	if err != nil {
		return &StartError{"shim", l.c.Path, err}
	}
	l.pid = pid // from here on the process is registered and reaped, whatever the shim says
	l.setJoining(l.pidfd)
	defer l.setJoining(-1)
	return l.listen(report)
}

// setJoining names the process that Kill must take by its pidfd, since it is not in the group.
func (l *launch) setJoining(pidfd int) {
	l.g.mu.Lock()
	defer l.g.mu.Unlock()
	l.g.joining = pidfd
	if l.g.closed && pidfd >= 0 {
		_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0) // Kill came before the shim
	}
}

// listen reads the report to its end: the shim's exec, or its death.
func (l *launch) listen(report io.Reader) error {
	head := make([]byte, len(joined))
	if _, err := io.ReadFull(report, head); err == nil && string(head) == joined {
		l.setJoining(-1)
		head = nil
	}
	rest, err := io.ReadAll(io.LimitReader(report, specMax))
	if err != nil {
		return &StartError{"shim", l.c.Path, err}
	}
	text := append(bytes.Trim(head, "\x00"), rest...)
	if len(text) == 0 && head == nil {
		return nil
	}
	var f shimFailure
	if err := json.Unmarshal(text, &f); err != nil {
		return &StartError{"shim", l.c.Path, fmt.Errorf("it died before the exec, report %q", text)}
	}
	if f.Errno != 0 {
		return &StartError{f.Op, l.c.Path, f.Errno}
	}
	return &StartError{f.Op, l.c.Path, errors.New(f.Text)}
}

// shimMain is the shim. It never returns.
func shimMain() {
	runtime.LockOSThread() // what follows is per thread, and exec keeps the calling thread's
	report := os.NewFile(shimReport, "report")
	op, err := shim(report)
	f := shimFailure{Op: op, Text: err.Error()}
	errors.As(err, &f.Errno)
	_ = json.NewEncoder(report).Encode(f) // else the silence tells it
	unix.Exit(127)
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
		return "join", fmt.Errorf("we are in %q, not in %q: %w", strings.TrimSpace(string(text)), job.Cgroup, errors.Join(err, unix.EXDEV))
	}
	if _, err := report.WriteString(joined); err != nil {
		return "shim", err
	}
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(oomScore), 0) // best effort, as in run
	ruleset := -1
	if job.Landlock {
		ruleset = shimRuleset
	}
	if err := restrictThread(ruleset, job.Bounding); err != nil {
		return "thread", err
	}
	if err := becomeUser(job.UID, job.GID); err != nil {
		return "setuid", err
	}
	if limit := uint64(job.FileSizeMax); limit > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return "rlimit", err
		}
	}
	return "exec", syscall.Exec(job.Path, job.Args, job.Env)
}

// becomeUser sets groups, gid and uid of the calling thread alone: the others do not survive the exec.
func becomeUser(uid, gid int) error {
	if uid < 0 {
		return nil
	}
	for _, call := range [][2]uintptr{{unix.SYS_SETGROUPS, 0}, {unix.SYS_SETGID, uintptr(gid)}, {unix.SYS_SETUID, uintptr(uid)}} {
		if _, _, errno := unix.RawSyscall(call[0], call[1], 0, 0); errno != 0 {
			return fmt.Errorf("system call %s: %w", strconv.Itoa(int(call[0])), errno)
		}
	}
	return nil
}
