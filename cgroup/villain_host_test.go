package cgroup

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// rehost runs a sidecar of its own in a process of its own, for what a process has only once. What it may have left behind
// when it failed is killed and removed.
func rehost(t *testing.T, files []*os.File, args ...string) string {
	t.Helper()
	ws := t.TempDir()
	t.Cleanup(func() {
		site, err := Discover(Options{})
		ok(t, err)
		var st unix.Stat_t
		ok(t, unix.Stat(ws, &st))
		middle := filepath.Join(site.Mount, site.Base, fmt.Sprintf("%s%x", middlePrefix, sha256.Sum256(fmt.Appendf(nil, "%d:%d", st.Dev, st.Ino)))[:len(middlePrefix)+12])
		groups, err := filepath.Glob(middle + "/*/cgroup.kill")
		ok(t, err)
		for _, kill := range groups {
			ok(t, os.WriteFile(kill, []byte("1"), 0))
			until(t, "removal", func() bool { return unix.Rmdir(filepath.Dir(kill)) == nil })
		}
		if err := unix.Rmdir(middle); err != nil && err != unix.ENOENT {
			t.Error(err)
		}
	})
	c := exec.CommandContext(deadline(t, 60*time.Second), selfExe)
	c.Args = append([]string{villainName}, args...)
	c.ExtraFiles = files
	c.Env = append(os.Environ(), "VILLAIN_WORKSPACE="+ws)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v, %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// hostMain is the work of a re-executed process that is a sidecar itself, for tests of what a process has only once.
func hostMain(what string, args []string) {
	if what == "inherit" && args[0] == "secure" {
		fatal(SecureProcess())
	}
	if what == "evacuate" {
		hostEvacuate(args[0])
		return
	}
	if what == "enable" {
		fatal(os.WriteFile(filepath.Join(args[0], "cgroup.procs"), []byte("0"), 0))
	}
	o := Options{Workspace: os.Getenv("VILLAIN_WORKSPACE"), NoReaper: what != "reap" && what != "escape"}
	o.off.mainThread = what == "launches" && args[1] == "naive"
	o.off.steal = what == "reap" && args[0] == "steal"
	if what == "enable" {
		o.Parent, o.off.controllers = args[0], []string{"hugetlb"}
	}
	p, err := Open(context.Background(), o)
	fatal(err)
	switch what {
	case "inherit":
		out := hostRun(p, 0, "report")
		var fds []string
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); f[0] == "fd" && len(fds) < 4 {
				fds = append(fds, f[1])
			}
		}
		say(strings.Join(fds, " "))
	case "launches":
		threads := func() int {
			all, err := filepath.Glob("/proc/self/task/*")
			fatal(err)
			return len(all)
		}
		before := threads()
		for i := range number(args[0]) {
			hostRun(p, i)
		}
		status, err := os.ReadFile("/proc/self/status")
		fatal(err)
		_, after, _ := strings.Cut(string(status), "NoNewPrivs:")
		verdict := "threads flat"
		if now := threads(); now > before+12 {
			verdict = "threads " + strconv.Itoa(now)
		}
		say("NoNewPrivs", strings.Fields(after)[0]+",", verdict)
	case "reap":
		hostReap(p, o.off.steal)
	case "enable":
		g, err := p.Create(context.Background(), "host", 0, Limits{})
		fatal(err)
		text, err := os.ReadFile("/proc/self/cgroup")
		fatal(err)
		own, _ := ownPath(string(text))
		say(p.caps.Kind, "enabled", p.caps.Controllers, "missing", fmt.Sprint(p.caps.Missing)+",", "own", strings.TrimPrefix(own, p.site.Base)+",", "file", existsAt(fd(g.dir), "hugetlb.2MB.max"))
		_, err = g.Kill(context.Background())
		fatal(err)
		e, err := g.WaitEmpty(context.Background())
		fatal(err)
		g.Remove(e)
	case "escape":
		hostEscape(p)
	default:
		fatal(os.ErrInvalid)
	}
	fatal(p.Close(context.Background()))
}

// hostRun runs a villain to its end and returns what it printed.
func hostRun(p *Parent, step int, args ...string) string {
	ctx := context.Background()
	g, err := p.Create(ctx, "host", step, Limits{})
	fatal(err)
	c := Command{Path: selfExe, Args: append([]string{villainName}, args...), Dir: "/", Linger: NoLinger, Sandbox: Sandbox{UID: -1, GID: -1}}
	if len(args) == 0 {
		c.Path, c.Args = "/bin/true", []string{"true"} // quicker
	}
	process, err := g.Start(ctx, c)
	fatal(err)
	_, err = process.Wait(ctx)
	fatal(err)
	_, err = g.Kill(ctx)
	fatal(err)
	e, err := g.WaitEmpty(ctx)
	fatal(err)
	g.Remove(e)
	return string(process.Output().Head)
}

// hostReap starts leaders that leave orphans while others exit with codes of their own, and says what became of them.
func hostReap(p *Parent, steal bool) {
	const leaders, orphans = 40, 25
	ctx := context.Background()
	wrong, slots := make(chan int, leaders), make(chan struct{}, 8)
	for i := range leaders {
		go func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			g, err := p.Create(ctx, "host", i, Limits{})
			fatal(err)
			want, args := i+1, []string{villainName, "exit", strconv.Itoa(i + 1)}
			if i%4 == 0 {
				want, args = 0, []string{villainName, "orphans", strconv.Itoa(orphans)}
			}
			process, err := g.Start(ctx, Command{Path: selfExe, Args: args, Dir: "/", Sandbox: Sandbox{UID: -1, GID: -1}})
			fatal(err)
			exit, err := process.Wait(ctx)
			fatal(err)
			_, err = g.Kill(ctx)
			fatal(err)
			e, err := g.WaitEmpty(ctx)
			fatal(err)
			g.Remove(e)
			n := 0
			if exit.Code != want {
				n = 1
			}
			wrong <- n
		}()
	}
	sum := 0
	for range leaders {
		sum += <-wrong
	}
	for end := time.Now().Add(10 * time.Second); p.Stats().Zombies > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if steal && sum > 0 { // how many depends on who is quicker
		sum = 1
	}
	say(sum, "wrong,", p.Stats().Zombies, "zombies")
}

// hostEscape lets a tool without Landlock leave its group, and says whether the reaper found it.
func hostEscape(p *Parent) {
	p.o.off.landlock = true
	ctx := context.Background()
	g, err := p.Create(ctx, "host", 0, Limits{})
	fatal(err)
	c := Command{Path: selfExe, Args: []string{villainName, "daemon", "move", filepath.Join(p.site.Mount, p.site.Base, "cgroup.procs")}, Dir: "/", Linger: NoLinger, Sandbox: Sandbox{UID: -1, GID: -1}}
	process, err := g.Start(ctx, c)
	fatal(err)
	for end := time.Now().Add(10 * time.Second); p.Stats().Escapes == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	s := p.Stats()
	for _, e := range s.Escaped {
		fatal(unix.Kill(e.PID, unix.SIGKILL))
	}
	_, err = process.Wait(ctx)
	fatal(err)
	_, err = g.Kill(ctx)
	fatal(err)
	e, err := g.WaitEmpty(ctx)
	fatal(err)
	g.Remove(e)
	say(s.Escapes, "escaped", len(s.Escaped))
}

// hostEvacuate enters the group at base with a child, and moves both to its supervisor group.
func hostEvacuate(base string) {
	fatal(os.WriteFile(filepath.Join(base, "cgroup.procs"), []byte("0"), 0))
	child, err := syscall.ForkExec(selfExe, []string{villainName, "sleep"}, &syscall.ProcAttr{})
	fatal(err)
	o := Options{Parent: base}
	site, err := Discover(o)
	fatal(err)
	p := newParent(context.Background(), o)
	p.site = site
	dir, err := openDir(-1, base)
	fatal(err)
	fatal(p.evacuate(context.Background(), fd(dir)))
	left, err := readAt(fd(dir), "cgroup.procs")
	fatal(err)
	moved, err := readAt(fd(dir), supervisorName+"/cgroup.procs")
	fatal(err)
	verdict := "moved"
	if !descends(strconv.Itoa(os.Getppid())) {
		verdict = "refused"
	}
	fatal(unix.Kill(child, unix.SIGKILL))
	say(site.Kind, "left", strconv.Itoa(len(strings.Fields(left)))+",", "supervisor", strconv.Itoa(len(strings.Fields(moved)))+",", "stranger", verdict)
}
