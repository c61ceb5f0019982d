package cgroup

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Each attack by itself: refused under the sandbox; and with that right off (or, where the kernel denies it under any ruleset,
// with no Landlock at all) it must succeed, else the case is void.
func TestOnlyTheJobIsWritable(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	defer closeIt(t, listener)
	abstract, err := net.Listen("unix", "@eda-test-"+strconv.Itoa(os.Getpid()))
	ok(t, err)
	defer closeIt(t, abstract)
	w := newWorld(t, Options{})
	none := switches{landlock: true}
	fs := func(right uint64) switches { return switches{fs: right} }
	for _, c := range []struct {
		name, op string
		path     func(w *world) string
		abi      int
		off      switches
		want     string
	}{
		{"write_target", "write", func(w *world) string { return w.target }, 1, fs(unix.LANDLOCK_ACCESS_FS_WRITE_FILE), "EACCES"},
		{"truncate_target", "truncate", func(w *world) string { return w.target }, 3, fs(unix.LANDLOCK_ACCESS_FS_TRUNCATE), "EACCES"},
		{"create_beside_target", "create", func(w *world) string { return w.target + ".new" }, 1, fs(unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_WRITE_FILE), "EACCES"},
		{"remove_target", "remove", func(w *world) string { return w.target }, 1, fs(unix.LANDLOCK_ACCESS_FS_REMOVE_FILE), "EACCES"},
		{"mkdir", "mkdir", func(w *world) string { return filepath.Join(w.ws, "d") }, 1, fs(unix.LANDLOCK_ACCESS_FS_MAKE_DIR), "EACCES"},
		{"symlink", "symlink", func(w *world) string { return filepath.Join(w.ws, "l") }, 1, fs(unix.LANDLOCK_ACCESS_FS_MAKE_SYM), "EACCES"},
		{"fifo", "fifo", func(w *world) string { return filepath.Join(w.ws, "f") }, 1, fs(unix.LANDLOCK_ACCESS_FS_MAKE_FIFO), "EACCES"},
		{"link_target_in", "link", func(w *world) string { return w.target }, 1, none, "EXDEV"},
		{"rename_target_in", "rename", func(w *world) string { return w.target }, 1, none, "EACCES"},
		{"read_state", "read", func(w *world) string { return w.state }, 1, fs(unix.LANDLOCK_ACCESS_FS_READ_FILE), "EACCES"},
		{"list_tmp", "list", func(w *world) string { return os.TempDir() }, 1, fs(unix.LANDLOCK_ACCESS_FS_READ_DIR), "EACCES"},
		{"write_log", "create", func(w *world) string { return w.log }, 1, fs(unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_WRITE_FILE), "EACCES"},
		{"other_job", "create", func(w *world) string { return filepath.Join(w.ws, stateName, "jobs", "other") }, 1, none, "EACCES"},
		{"exec_foreign", "exec", func(w *world) string {
			path := filepath.Join(w.ws, stateName, "prog")
			syscall.ForkLock.RLock()
			defer syscall.ForkLock.RUnlock()
			data, err := os.ReadFile("/bin/true")
			ok(t, err)
			ok(t, os.WriteFile(path, data, 0o755))
			return path
		}, 1, fs(unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE), "EACCES"},
		{"cgroup_procs", "write", func(w *world) string { return filepath.Join(w.p.site.Mount, "cgroup.subtree_control") }, 1, none, "EACCES"},
		{"connect", "connect", func(*world) string { return listener.Addr().String() }, 4, none, "EACCES"},
		{"abstract_socket", "abstract", func(*world) string { return abstract.Addr().String()[1:] }, 6, switches{scopes: unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET}, "EPERM"},
		{"signal_sidecar", "signal", func(*world) string { return strconv.Itoa(os.Getpid()) }, 6, switches{scopes: unix.LANDLOCK_SCOPE_SIGNAL}, "EPERM"},
		{"environ_through_landlock", "read", func(*world) string { return "/proc/" + strconv.Itoa(os.Getpid()) + "/environ" }, 1, switches{bounding: true}, "EACCES"},
	} {
		t.Run(c.name, func(t *testing.T) {
			kernel := landlockABI(0)
			if kernel < c.abi {
				t.Fatalf("Landlock ABI %d is needed, the kernel has %d", c.abi, kernel)
			}
			w.t = t
			ok(t, os.WriteFile(w.target, []byte("old"), 0o644))
			first := max(c.abi, minABI)
			if refusedClone3() {
				first = kernel
			}
			for abi := first; abi <= kernel; abi++ { // as on an older kernel
				w.p.caps.LandlockABI = abi
				if got := w.run(w.command("attack", c.op, c.path(w))); !slices.Equal(got, []string{c.want}) {
					t.Errorf("ABI %d: %q, want %s", abi, got, c.want)
				}
			}
			if old, err := os.ReadFile(w.target); err != nil || string(old) != "old" {
				t.Errorf("the target is %q, %v", old, err)
			}
			w.p.o.off = c.off
			defer func() { w.p.o.off = switches{} }()
			got := w.run(w.command("attack", c.op, c.path(w)))
			if c.op == "exec" && len(got) == 0 { // it became /bin/true
				got = []string{"OK"}
			}
			if c.path(w) != "" && !slices.Equal(got, []string{"OK"}) && !(c.name == "cgroup_procs" && got[0] == "EINVAL") {
				t.Errorf("control: without the protection %q, want OK", got)
			}
		})
	}
}

// What a tool must be able to do.
func TestTheJobIsUsable(t *testing.T) {
	w := newWorld(t, Options{})
	for _, c := range []struct{ op, path string }{
		{"create", filepath.Join(w.s0, "out")},
		{"write", filepath.Join(w.s0, "out")},
		{"truncate", filepath.Join(w.s0, "out")},
		{"link", filepath.Join(w.s0, "out")},
		{"rename", filepath.Join(w.s0, "out")},
		{"mkdir", filepath.Join(w.work, "d")},
		{"symlink", filepath.Join(w.work, "l")},
		{"read", w.target},
		{"read", filepath.Join(w.ws, "sub", "input")},
		{"list", w.ws},
		{"write", "/dev/null"},
		{"read", "/etc/passwd"},
		{"read", "/proc/self/environ"},
		{"exec", "/bin/true"},
	} {
		if got := w.run(w.command("attack", c.op, c.path)); c.op != "exec" && !slices.Equal(got, []string{"OK"}) || len(got) > 1 {
			t.Errorf("%s %s: %q", c.op, c.path, got)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	defer closeIt(t, listener)
	c := w.command("attack", "connect", listener.Addr().String())
	c.Sandbox.Network = true
	if got := w.run(c); !slices.Equal(got, []string{"OK"}) {
		t.Errorf("connect with network: %q", got)
	}
}

// A link in the workspace opens nothing that it points to, and no rule may open what is hidden.
func TestGrants(t *testing.T) {
	w := newWorld(t, Options{})
	secret := t.TempDir()
	ok(t, os.WriteFile(filepath.Join(secret, "f"), []byte("s"), 0o644))
	ok(t, os.Symlink(secret, filepath.Join(w.ws, "link")))
	if got := w.run(w.command("attack", "read", filepath.Join(w.ws, "link", "f"))); !slices.Equal(got, []string{"EACCES"}) {
		t.Errorf("through a link of the workspace: %q", got)
	}
	c := w.command("attack", "read", filepath.Join(secret, "f"))
	c.Sandbox.Readable = []string{secret, "/does/not/exist"}
	if got := w.run(c); !slices.Equal(got, []string{"OK"}) {
		t.Errorf("readable: %q", got)
	}
	for _, path := range []string{w.ws, filepath.Join(w.ws, stateName), "/", w.p.site.Mount, filepath.Join(w.ws, "link")} {
		c := w.command("exit", "0")
		c.Sandbox.Readable = []string{path}
		if filepath.Base(path) == "link" {
			c.Sandbox.Hidden = []string{filepath.Join(secret)}
		}
		_, err := w.create().Start(t.Context(), c)
		var e *StartError
		if !errors.As(err, &e) || e.Op != "landlock" || !errors.Is(err, ErrSandbox) {
			t.Errorf("grant %q: %v", path, err)
		}
	}
	if _, err := Open(t.Context(), Options{Workspace: w.ws, NoReaper: true, off: switches{abi: 2}}); err == nil {
		t.Error("opened with Landlock ABI 2")
	} else if u := new(UnavailableError); !errors.As(err, &u) || u.Reasons[0].Check != "landlock" {
		t.Error(err)
	}
}

// A tool that can leave its group makes populated 0 worthless.
func TestToolCannotLeaveItsGroup(t *testing.T) {
	for _, uid := range []int{-1, 65534} {
		t.Run(strconv.Itoa(uid), func(t *testing.T) {
			w := newWorld(t, Options{})
			ok(t, os.Chmod(w.ws, 0o755))
			elsewhere := filepath.Join(w.p.site.Mount, w.p.site.Base, "cgroup.procs")
			c := w.command("escapist", elsewhere)
			c.Sandbox.UID, c.Sandbox.GID = uid, uid
			c.Dir = "/"
			run := func() string {
				g := w.create()
				p, err := g.Start(t.Context(), c)
				ok(t, err)
				until(t, "verdict", func() bool { return strings.Contains(string(p.Output().Head), "move ") })
				w.prove(g)
				return strings.TrimSpace(string(p.Output().Head))
			}
			if got := run(); got != "move EACCES" || len(w.marked()) > 0 {
				t.Fatalf("%s, survivors %v", got, w.marked())
			}
			if uid != -1 { // the file's mode keeps it in, too: there is no control
				return
			}
			w.p.o.off.landlock = true
			got, left := run(), w.marked()
			killAll(t, left)
			until(t, "death", func() bool { return len(w.marked()) == 0 })
			for _, pid := range left { // it is an orphan of the machine's init, or ours if this process is a subreaper
				_, _ = waitid(unix.P_PID, pid, unix.WEXITED|unix.WNOHANG) // ECHILD: the machine's init has it
			}
			if got != "move OK" || len(left) != 1 {
				t.Fatalf("control: without Landlock the escape must succeed: %s, survivors %v", got, left)
			}
		})
	}
}

func TestWhatAToolSees(t *testing.T) {
	t.Setenv("SECRET_TOKEN", "x")
	w := newWorld(t, Options{})
	c := w.command("report")
	lines := w.run(c)
	value := func(key string) string {
		for _, l := range lines {
			if rest, found := strings.CutPrefix(l, key); found {
				return strings.Join(strings.Fields(rest), " ")
			}
		}
		return "absent"
	}
	var fds, env []string
	for _, l := range lines {
		if rest, found := strings.CutPrefix(l, "fd "); found {
			fds = append(fds, rest)
		} else if rest, found := strings.CutPrefix(l, "env "); found {
			env = append(env, rest)
		}
	}
	if want := []string{"0 /dev/null", "1 pipe", "2 pipe"}; !slices.Equal(fds, want) {
		t.Errorf("descriptors %q, want %q", fds, want)
	}
	if !slices.Equal(env, c.Env) {
		t.Errorf("environment %q, want %q", env, c.Env)
	}
	for key, want := range map[string]string{
		"tty ": "EACCES", "CapEff:": "0000000000000000", "CapPrm:": "0000000000000000", "CapBnd:": "0000000000000000",
		"CapInh:": "0000000000000000", "CapAmb:": "0000000000000000", "NoNewPrivs:": "1", "Groups:": "", "Uid:": "0 0 0 0",
	} {
		if got := value(key); got != want {
			t.Errorf("%s %q, want %q", key, got, want)
		}
	}
	sleeper := w.command("sleep") // limit and score come a moment after the exec
	sleeper.FileSizeMax = 1 << 20
	p, err := w.create().Start(t.Context(), sleeper)
	ok(t, err)
	var limit unix.Rlimit
	ok(t, unix.Prlimit(p.PID(), unix.RLIMIT_FSIZE, nil, &limit))
	if oom, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID()) + "/oom_score_adj"); err != nil || strings.TrimSpace(string(oom)) != oomScore || limit.Cur != 1<<20 || limit.Max != 1<<20 {
		t.Errorf("oom_score_adj %s, %v, RLIMIT_FSIZE %+v", oom, err, limit)
	}
	w.p.o.off.bounding = true // control
	for _, l := range w.run(w.command("report")) {
		if strings.HasPrefix(l, "CapEff:") && strings.HasSuffix(l, "0000000000000000") {
			t.Error("control: a root tool with the bounding set kept has no capabilities")
		}
	}
	w.p.o.off.bounding = false
	ok(t, os.Chown(w.work, 65534, 65534))
	c = w.command("report")
	c.Dir, c.Sandbox.UID, c.Sandbox.GID = "/", 65534, 65534
	if lines = w.run(c); value("Uid:") != "65534 65534 65534 65534" || value("Groups:") != "" {
		t.Errorf("as nobody: %q", lines)
	}
}
