package cgroup

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/test/bench/sample"
)

// BenchmarkTrue runs /bin/true: create, start, reap, kill, prove, rmdir. Beside it the same program by os/exec, and every
// tenth time by the usual sandboxes that are installed and run here.
func BenchmarkTrue(b *testing.B) {
	w := newWorld(b, Options{})
	usual := sandboxes(b)
	m := sample.Modes{}
	ours := func(mode string, entry Entry, off switches) {
		w.p.caps.Entry, w.p.o.off = entry, off
		m.Time(mode, func() {
			w.true()
			w.p.wg.Wait() // for the removal
		})
	}
	defer func() { w.p.caps.Entry, w.p.o.off = EntryClone3, switches{} }()
	run := func(mode string, argv ...string) {
		m.Time(mode, func() { ok(b, exec.Command(argv[0], argv[1:]...).Run()) })
	}
	for i := 0; b.Loop(); i++ {
		run("exec", "/bin/true")
		ours("clone3", EntryClone3, switches{landlock: true, bounding: true})
		ours("sandbox", EntryClone3, switches{})
		ours("shim", EntryShim, switches{})
		for mode, argv := range usual {
			if i%10 == 0 {
				run(mode, argv...)
			}
		}
	}
	m.Report(b)
}

// true runs /bin/true in a group of its own to the proof.
func (w *world) true() {
	w.t.Helper()
	w.next++
	g, err := w.p.Create(context.Background(), "job", w.next, Limits{})
	ok(w.t, err)
	c := w.command()
	c.Path, c.Args, c.Linger = "/bin/true", []string{"true"}, 0
	p, err := g.Start(context.Background(), c)
	ok(w.t, err)
	exit, err := p.Wait(context.Background())
	ok(w.t, err)
	if exit.Code != 0 {
		w.t.Fatalf("/bin/true: %+v", exit)
	}
	g.Remove(w.prove(g))
}

// sandboxes are the commands by which those that are installed run /bin/true: system directories to read, namespaces of
// its own, no capability.
func sandboxes(t testing.TB) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	if path, err := exec.LookPath("bwrap"); err == nil {
		all["bwrap"] = []string{path, "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--cap-drop", "ALL", "/bin/true"}
	}
	bundle := t.TempDir()
	mounts := []any{map[string]any{"destination": "/proc", "type": "proc", "source": "proc"}}
	for _, dir := range []string{"/usr", "/bin", "/lib", "/lib64"} {
		if _, err := os.Stat(dir); err == nil {
			ok(t, os.MkdirAll(filepath.Join(bundle, "rootfs", dir), 0o755))
			mounts = append(mounts, map[string]any{"destination": dir, "type": "none", "source": dir, "options": []string{"rbind", "ro"}})
		}
	}
	var namespaces []any
	for _, ns := range []string{"pid", "ipc", "uts", "mount"} {
		namespaces = append(namespaces, map[string]any{"type": ns})
	}
	ok(t, os.MkdirAll(filepath.Join(bundle, "rootfs", "proc"), 0o755))
	spec, err := json.Marshal(map[string]any{
		"ociVersion": "1.0.2", "root": map[string]any{"path": "rootfs"}, "mounts": mounts,
		"process": map[string]any{"args": []string{"/bin/true"}, "cwd": "/", "user": map[string]any{"uid": 0, "gid": 0}, "noNewPrivileges": true},
		"linux":   map[string]any{"namespaces": namespaces},
	})
	ok(t, err)
	ok(t, os.WriteFile(filepath.Join(bundle, "config.json"), spec, 0o644))
	for _, name := range []string{"crun", "runc"} {
		if path, err := exec.LookPath(name); err == nil {
			all[name] = []string{path, "--root", filepath.Join(bundle, name), "run", "--bundle", bundle, "bench-" + strconv.Itoa(os.Getpid())}
		}
	}
	for name, argv := range all {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Logf("%s is left out, it does not run here: %v, %s", name, err, out)
			delete(all, name)
		}
	}
	return all
}

// BenchmarkKill is from the kill of a crowd to the proof, which is the same for all: the usual ways differ in the kill alone.
// All of the crowd are in one process group and below one parent, so that the usual ways reach them.
func BenchmarkKill(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			w := newWorld(b, Options{})
			m := sample.Modes{}
			for b.Loop() {
				for mode, kill := range map[string]func(*Group, int){
					"ours":   func(g *Group, _ int) { _, err := g.Kill(context.Background()); ok(b, err) },
					"freeze": func(g *Group, _ int) { freezeAndList(b, g) },
					"killpg": func(g *Group, leader int) { killpg(b, w, leader); g.shut() },
					"walk":   func(g *Group, leader int) { walkProc(b, leader); g.shut() },
				} {
					g, p := w.start("crowd", strconv.Itoa(n))
					until(b, "the crowd", func() bool { return g.count() == n-1 })
					m.Time(mode, func() {
						kill(g, p.PID())
						_, err := g.prove(deadline(b, 10*time.Second), mode == "ours")
						ok(b, err)
					})
				}
			}
			m.Report(b)
		})
	}
}

// shut closes the group to starts without a kill, so that it can be proven.
func (g *Group) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// freezeAndList stops the group, so that the list of its processes cannot change, and kills each of them.
func freezeAndList(t testing.TB, g *Group) {
	g.shut()
	ok(t, writeAt(fd(g.dir), "cgroup.freeze", "1"))
	for {
		text, err := g.kernel.events()
		ok(t, err)
		if ev, err := parseEvents(text); err != nil || ev.frozen {
			break
		}
		g.kernel.wait(time.Millisecond)
	}
	text, err := readAt(fd(g.dir), "cgroup.procs")
	ok(t, err)
	for pid := range strings.FieldsSeq(text) {
		kill(t, pid)
	}
}

// walkProc kills what it finds below leader in the process table, and leader.
func walkProc(t testing.TB, leader int) {
	all, err := filepath.Glob("/proc/[0-9]*")
	ok(t, err)
	children := map[string][]string{}
	for _, dir := range all {
		if _, ppid, err := procStat(filepath.Base(dir)); err == nil { // else it is gone
			children[ppid] = append(children[ppid], filepath.Base(dir))
		}
	}
	victims := []string{strconv.Itoa(leader)}
	for i := 0; i < len(victims); i++ {
		victims = append(victims, children[victims[i]]...)
	}
	for _, pid := range victims {
		kill(t, pid)
	}
}

func kill(t testing.TB, pid string) {
	n, err := strconv.Atoi(pid)
	ok(t, err)
	if err := unix.Kill(n, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		t.Fatal(err)
	}
}

// BenchmarkNotice is from the last exit to the proof: of a leader alone, and of an orphan that outlives it. Who exits last
// is date, which tells the time just before. Beside it POLLPRI of cgroup.events alone, which the kernel holds back to one in 10 ms.
func BenchmarkNotice(b *testing.B) {
	w := newWorld(b, Options{})
	m := sample.Modes{}
	for b.Loop() {
		for mode, script := range map[string]string{"leader": "exec date +%s%N", "orphan": "date +%s%N &"} {
			for _, alone := range []bool{false, true} {
				g := w.create()
				c := w.command()
				c.Path, c.Args, c.Linger = "/bin/sh", []string{"sh", "-c", script}, 0
				p, err := g.Start(context.Background(), c)
				ok(b, err)
				name := mode
				if alone {
					name = "pollpri-" + mode
					pollAlone(b, g)
				} else {
					_, err := p.Wait(deadline(b, 10*time.Second))
					ok(b, err)
					w.prove(g)
				}
				now := time.Now().UnixNano()
				w.prove(g)
				last, err := strconv.ParseInt(strings.TrimSpace(string(p.Output().Head)), 10, 64)
				ok(b, err)
				m[name] = append(m[name], time.Duration(now-last))
			}
		}
	}
	m.Report(b)
}

// pollAlone waits until the group is empty by POLLPRI alone.
func pollAlone(t testing.TB, g *Group) {
	for {
		text, err := g.kernel.events()
		ok(t, err)
		if ev, err := parseEvents(text); err == nil && !ev.populated {
			return
		}
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd(g.events)), Events: unix.POLLPRI}}, 5000)
		if err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
}

// BenchmarkSurvivors counts who of n daemons, each in a session of its own, is alive after our proof, and after killpg.
func BenchmarkSurvivors(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			w := newWorld(b, Options{})
			left := map[string]int{}
			for b.Loop() {
				for _, mode := range []string{"ours", "killpg"} {
					g, p := w.start("sleepers", strconv.Itoa(n))
					until(b, "the daemons", func() bool { return isClosed(p.reaped) && g.count() == n })
					if mode == "ours" {
						w.prove(g)
					} else {
						killpg(b, w, p.PID())
					}
					left[mode] = max(left[mode], len(w.marked()))
					w.prove(g)
				}
			}
			for mode, count := range left {
				b.ReportMetric(float64(count), mode+"-alive")
			}
		})
	}
}

// BenchmarkBomb lets a fork bomb, each of whose processes makes a session of its own, grow to 300, and kills it on its way.
func BenchmarkBomb(b *testing.B) {
	w := newWorld(b, Options{})
	m := sample.Modes{}
	left := map[string]int{}
	for b.Loop() {
		for _, mode := range []string{"ours", "killpg"} {
			g, p := w.start("bomb", "300")
			until(b, "the bomb", func() bool { return g.count() >= 200 })
			if mode == "ours" {
				m.Time(mode, func() { w.prove(g) })
			} else {
				killpg(b, w, p.PID())
				until(b, "the leader's death", func() bool { return isClosed(p.reaped) })
			}
			left[mode] = max(left[mode], len(w.marked()))
			w.prove(g)
		}
	}
	m.Report(b)
	for mode, count := range left {
		b.ReportMetric(float64(count), mode+"-alive")
	}
}

// BenchmarkLeft counts what jobs, one after another, leave in this process and in the directory of groups.
func BenchmarkLeft(b *testing.B) {
	w := newWorld(b, Options{})
	count := func() map[string]int {
		w.p.wg.Wait()
		s := w.p.Stats()
		return map[string]int{"threads": entries(b, "/proc/self/task"), "fds": entries(b, "/proc/self/fd"), "zombies": s.Zombies, "groups": s.Groups + s.Removing}
	}
	for range 20 { // the runtime's own threads and poller appear
		w.true()
	}
	before := count()
	for b.Loop() {
		w.true()
	}
	for what, n := range count() {
		b.ReportMetric(float64(n-before[what]), what)
	}
}

func entries(t testing.TB, dir string) int {
	all, err := os.ReadDir(dir)
	ok(t, err)
	return len(all)
}
