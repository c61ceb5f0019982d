package cgroup

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The test binary is its own misbehaving tool: argv is villainName, what to do, arguments.
const villainName = "villain"

func villainMain() {
	if filepath.Base(os.Args[0]) != villainName {
		return
	}
	args := os.Args[2:]
	switch os.Args[1] {
	case "exit":
		unix.Exit(number(args[0]))
	case "daemon": // leaves villain args behind, in a session of its own
		spawn(args...)
	case "daemon2": // the same by a double fork
		spawn(append([]string{"daemon"}, args...)...)
		time.Sleep(time.Minute)
	case "sleep":
		say("ready")
		time.Sleep(time.Hour)
	case "sleepers": // cheap processes, each in a session of its own
		for range number(args[0]) {
			rawSleeper(true)
		}
	case "crowd": // that many processes, all in the leader's process group
		for range number(args[0]) - 1 {
			rawSleeper(false)
		}
		time.Sleep(time.Hour)
	case "bomb":
		bomb(int64(number(args[0])))
	case "append": // writes for ever
		f, err := os.OpenFile(args[0], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		fatal(err)
		for {
			_, err := f.WriteString("x")
			fatal(err)
			time.Sleep(time.Millisecond)
		}
	case "stubborn":
		signal.Ignore(unix.SIGTERM)
		say("ready")
		time.Sleep(time.Hour)
	case "polite": // stopped, and ends by 7 when asked to
		ch := make(chan os.Signal, 1)
		signal.Notify(ch, unix.SIGTERM)
		say("ready")
		if len(args) > 0 {
			fatal(unix.Kill(os.Getpid(), unix.SIGSTOP))
		}
		<-ch
		unix.Exit(7)
	case "flood":
		block := make([]byte, 64<<10)
		for range number(args[0]) * 16 {
			_, err := os.Stdout.Write(block)
			fatal(err)
		}
	case "orphans": // n children of a child that ends first
		for range number(args[0]) {
			rawOrphan()
		}
	case "report": // what a tool sees of itself; the files in /sys are the Go runtime's
		entries, err := filepath.Glob("/proc/self/fd/*")
		fatal(err)
		for _, fd := range entries {
			if to, err := os.Readlink(fd); err == nil && !strings.HasPrefix(to, "/proc/") && !strings.HasPrefix(to, "/sys/fs/cgroup/") && !strings.HasPrefix(to, "anon_inode:[event") {
				say("fd", filepath.Base(fd), strings.SplitN(to, ":", 2)[0])
			}
		}
		_, err = os.Open("/dev/tty")
		say("tty", errno(err))
		for _, e := range os.Environ() {
			say("env", e)
		}
		status, err := os.ReadFile("/proc/self/status")
		fatal(err)
		for line := range strings.Lines(string(status)) {
			if f := strings.Fields(line); strings.HasPrefix(line, "Cap") || f[0] == "Uid:" || f[0] == "Groups:" || f[0] == "NoNewPrivs:" {
				say(strings.Join(f, " "))
			}
		}
	case "attack":
		say(errno(attack(args[0], args[1])))
	case "escapist": // a child moves to another group, if it can, and lives on
		spawn("move", args[0])
		time.Sleep(time.Hour)
	case "move":
		say("move", errno(os.WriteFile(args[0], []byte("0"), 0)))
		time.Sleep(time.Hour)
	default:
		hostMain(os.Args[1], args)
	}
	unix.Exit(0) // os.Exit of a race build takes a second
}

func say(words ...any) {
	var all []string
	for _, w := range words {
		all = append(all, strings.TrimSpace(fmt.Sprint(w)))
	}
	fmt.Println(strings.Join(all, " "))
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	fatal(err)
	return n
}

func fatal(err error) {
	if err != nil {
		fmt.Println("villain:", err)
		unix.Exit(99)
	}
}

// errno names the system error at the bottom of err; OK without one.
func errno(err error) string {
	var e syscall.Errno
	switch {
	case err == nil:
		return "OK"
	case errors.As(err, &e):
		return unix.ErrnoName(e)
	}
	return err.Error()
}

func spawn(args ...string) {
	_, err := syscall.ForkExec(selfExe, append([]string{villainName}, args...), &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	fatal(err)
}

// attack tries one thing that a tool must not do, on path.
func attack(what, path string) error {
	switch what {
	case "read":
		_, err := os.ReadFile(path)
		return err
	case "list":
		_, err := os.ReadDir(path)
		return err
	case "write":
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString("villain")
		}
		return err
	case "truncate":
		return unix.Truncate(path, 0)
	case "create":
		_, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		return err
	case "remove":
		return unix.Unlink(path)
	case "mkdir":
		return unix.Mkdir(path, 0o755)
	case "symlink":
		return unix.Symlink("/etc", path)
	case "fifo":
		return unix.Mkfifo(path, 0o644)
	case "device":
		return unix.Mknod(path, unix.S_IFCHR|0o666, 1<<8|3)
	case "link": // a target into the job directory, which is the working directory
		return unix.Link(path, "linked")
	case "rename":
		return unix.Rename(path, "renamed")
	case "exec":
		return syscall.Exec(path, []string{path}, nil)
	case "signal":
		return unix.Kill(number(path), unix.SIGCONT)
	case "connect":
		c, err := net.DialTimeout("tcp", path, 5*time.Second)
		if err == nil {
			err = c.Close()
		}
		return err
	case "abstract":
		c, err := net.Dial("unix", "@"+path)
		if err == nil {
			err = c.Close()
		}
		return err
	}
	return errors.New("unknown attack")
}

// Processes without a Go runtime: after a raw clone only system calls are safe, no allocation, no new stack.

//go:norace
//go:nosplit
func rawClone() uintptr {
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return ^uintptr(0)
	}
	return pid
}

//go:norace
//go:nosplit
func rawForever() {
	for {
		_, _, _ = syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0) // nothing to do about it here
	}
}

//go:norace
func rawSleeper(session bool) {
	if rawClone() == 0 {
		if session {
			_, _, _ = syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0) // nothing to do about it here
		}
		rawForever()
	}
}

//go:norace
func rawOrphan() {
	if rawClone() == 0 {
		if rawClone() == 0 {
			_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) // nothing to do about it here
		}
		_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0) // nothing to do about it here
	}
}

// bomb forks from every process, each in a session of its own, until there are limit of them; then all live on.
//
//go:norace
func bomb(limit int64) {
	page, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED|syscall.MAP_ANON)
	fatal(err)
	count := (*int64)(unsafe.Pointer(&page[0]))
	for atomic.AddInt64(count, 1) <= limit {
		if rawClone() == 0 {
			_, _, _ = syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0) // nothing to do about it here
		}
	}
	rawForever()
}
