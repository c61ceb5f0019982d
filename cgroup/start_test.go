package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestStartRefuses(t *testing.T) {
	w := newWorld(t, Options{})
	text := filepath.Join(w.work, "text")
	ok(t, os.WriteFile(text, []byte("no program"), 0o755))
	for _, c := range []struct {
		name string
		edit func(g *Group, c *Command)
		want error
		op   string
	}{
		{"not_installed", func(_ *Group, c *Command) { c.Path = "/no/such/tool" }, fs.ErrNotExist, "stat"},
		{"not_executable", func(_ *Group, c *Command) { c.Path = w.target }, fs.ErrPermission, "stat"},
		{"directory", func(_ *Group, c *Command) { c.Path = "/usr" }, fs.ErrPermission, "stat"},
		{"relative", func(_ *Group, c *Command) { c.Path = "sh" }, fs.ErrInvalid, "stat"},
		{"not_a_program", func(_ *Group, c *Command) { c.Path = text }, unix.ENOEXEC, "exec"},
		{"closed", func(g *Group, _ *Command) { w.prove(g) }, ErrClosed, "start"},
		{"frozen", func(g *Group, _ *Command) {
			ok(t, writeAt(fd(g.dir), "cgroup.freeze", "1"))
			until(t, "freeze", func() bool { text, err := g.kernel.events(); return err == nil && strings.Contains(text, "frozen 1") })
		}, ErrFrozen, "start"},
		{"no_directory", func(_ *Group, c *Command) { c.Dir = "/no/such" }, fs.ErrInvalid, "chdir"},
		{"no_job_directory", func(_ *Group, c *Command) { c.Sandbox.Job = []string{"/no/such"} }, ErrSandbox, "landlock"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, command := w.create(), w.command("exit", "0")
			c.edit(g, &command)
			_, err := g.Start(t.Context(), command)
			var e *StartError
			if op := c.op; !errors.As(err, &e) || !errors.Is(err, c.want) || e.Op != op && !(refusedClone3() && e.Op == "shim") {
				t.Errorf("%v (%+v)", err, e)
			}
			w.prove(g)
		})
	}
	g, _ := w.start("exit", "0")
	if _, err := g.Start(t.Context(), w.command("exit", "0")); !errors.Is(err, ErrStarted) {
		t.Errorf("second start: %v", err)
	}
}

func TestCreateIsExclusive(t *testing.T) {
	w := newWorld(t, Options{})
	g := w.create()
	if _, err := w.p.Create(t.Context(), "job", w.next, Limits{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("created twice: %v", err)
	}
	same, err := w.p.openGroup(w.p.middle, g.Ref().Path) // control: what follows takes whatever has the name
	ok(t, err)
	if same.closeFiles(); same.Ref() != g.Ref() {
		t.Error("control: without exclusive creation another's group is not taken over")
	}
	for _, job := range []string{"", ".", "..", "a/b", "ä", "a b", strings.Repeat("x", 129)} {
		if _, err := w.p.Create(t.Context(), job, 0, Limits{}); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("job %q: %v", job, err)
		}
	}
	if err := unix.Mkdirat(fd(g.dir), "below", 0o755); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("a group below a job's: %v", err)
	}
}

// Go parks a main thread that was locked at its goroutine's end; the kernel judges the process by it.
func TestMainThreadStaysFree(t *testing.T) {
	if got := rehost(t, nil, "launches", "200", "guarded"); got != "NoNewPrivs 0, threads flat" {
		t.Errorf("guarded: %s", got)
	}
	if got := rehost(t, nil, "launches", "200", "naive"); !refusedClone3() && got != "NoNewPrivs 1, threads flat" {
		t.Errorf("control: without the check 200 launches left the main thread alone: %s", got)
	}
}

func TestInheritedDescriptor(t *testing.T) {
	stray, err := os.Open("/etc/hostname")
	ok(t, err)
	defer closeIt(t, stray)
	if got := rehost(t, []*os.File{stray}, "inherit", "secure"); got != "0 1 2" {
		t.Errorf("descriptors %s", got)
	}
	if got := rehost(t, []*os.File{stray}, "inherit", "insecure"); got != "0 1 2 3" && !refusedClone3() { // the shim sees to it itself
		t.Errorf("control: without SecureProcess %s, want 0 1 2 3", got)
	}
}

func TestSelfTestIsRefused(t *testing.T) {
	for _, err := range []error{unix.EACCES, unix.EBUSY} {
		_, got := Open(t.Context(), Options{Workspace: t.TempDir(), NoReaper: true, off: switches{clone3: err}})
		if u := new(UnavailableError); !errors.As(got, &u) || u.Reasons[0].Check != "self-test" {
			t.Errorf("%v: %v", err, got)
		}
	}
	for _, err := range []error{unix.ENOSYS, unix.EPERM} {
		p, got := Open(t.Context(), Options{Workspace: t.TempDir(), NoReaper: true, off: switches{clone3: err}})
		ok(t, got)
		if p.caps.Entry != EntryShim || p.caps.EntryWhy == "" {
			t.Errorf("%v: %+v", err, p.caps)
		}
		ok(t, p.Close(t.Context()))
	}
}
