package cgrouptest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
)

// NeedCgroup2 fails unless groups can be made here; with doctor's words.
func NeedCgroup2(t testing.TB) {
	t.Helper()
	if _, err := cgroup.Discover(cgroup.Options{}); err != nil {
		t.Fatal(err)
	}
}

// NeedRoot fails unless the test runs as root.
func NeedRoot(t testing.TB) {
	t.Helper()
	if unix.Geteuid() != 0 {
		t.Fatal("this test needs root")
	}
}

// NeedLandlock fails unless the kernel has Landlock ABI abi or a later one.
func NeedLandlock(t testing.TB, abi int) {
	t.Helper()
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 || int(n) < abi {
		t.Fatalf("this test needs Landlock ABI %d, the kernel has %d (%v)", abi, int(n), errno)
	}
}

// threadSlack is how many threads the Go runtime may keep for itself: it never gives back those that waited in system calls.
const threadSlack = 24

// Invariant registers a check that runs after the test and the clean-ups registered later: no child (a zombie is one) and
// no descriptor more than now, no thread beyond what the runtime keeps, and no entry in dirs, which may be absent.
func Invariant(t testing.TB, dirs ...string) {
	t.Helper()
	before := take(dirs...)
	t.Cleanup(func() {
		var more string
		for deadline := time.Now().Add(5 * time.Second); ; { // removals are asynchronous
			if more = before.diff(take(dirs...)); more == "" {
				return
			}
			if time.Now().After(deadline) {
				break
			}
			<-time.After(5 * time.Millisecond)
		}
		t.Errorf("the test left something behind: %s", more)
	})
}

// count is what a process holds.
type count struct {
	children, fds map[string]string
	threads       int
	entries       []string
}

// take counts what this process holds now.
func take(dirs ...string) count {
	c := count{children: map[string]string{}, fds: map[string]string{}}
	lists, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is well-formed
	c.threads = len(lists)
	for _, list := range lists {
		data, _ := os.ReadFile(list) // the thread may be gone
		for pid := range strings.FieldsSeq(string(data)) {
			stat, _ := os.ReadFile("/proc/" + pid + "/stat") // it may be gone
			c.children[pid] = string(stat)
		}
	}
	fds, _ := filepath.Glob("/proc/self/fd/*") // the pattern is well-formed
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil { // the one of the listing itself is gone
			c.fds[fd] = to
		}
	}
	for _, dir := range dirs {
		entries, _ := os.ReadDir(dir) // it may be absent
		for _, e := range entries {
			if e.IsDir() {
				c.entries = append(c.entries, filepath.Join(dir, e.Name()))
			}
		}
	}
	return c
}

// diff says what after has more than c; "" if nothing.
func (c count) diff(after count) string {
	var more []string
	for pid, stat := range after.children {
		if _, ok := c.children[pid]; !ok {
			more = append(more, "child "+stat)
		}
	}
	for fd, to := range after.fds {
		// The poller of the runtime appears with the first use and stays.
		if c.fds[fd] == "" && !strings.HasPrefix(to, "anon_inode:[event") {
			more = append(more, "descriptor "+fd+" of "+to)
		}
	}
	if after.threads > c.threads+threadSlack {
		more = append(more, fmt.Sprintf("%d threads after %d", after.threads, c.threads))
	}
	return strings.Join(append(more, after.entries...), "; ")
}
