package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// attack tries everything that a tool must not be able to do, each by itself, and prints a line a try: name and errno or OK.
const attack = `import errno, os, socket, sys
target, rel, state, lock, other, cgroup, port, abstract = sys.argv[1:]
engine = os.getppid()
def write(path, flags=os.O_WRONLY):
    os.close(os.open(path, flags))
def create(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
def planted():
    os.symlink(target, "../s0/planted")
    write("../s0/planted")
def own_descriptor():
    write("/proc/self/fd/%d" % os.open(target, os.O_RDONLY))
def read(path):
    os.read(os.open(path, os.O_RDONLY), 1)
def leave():
    f = os.open(cgroup, os.O_WRONLY)
    os.write(f, b"0")
def connect(family, address):
    socket.socket(family, socket.SOCK_STREAM).connect(address)
tries = dict(
    write_absolute=lambda: write(target),
    write_dotdot=lambda: write(rel),
    write_through_planted_link=planted,
    write_through_own_descriptor=own_descriptor,
    write_through_proc_root=lambda: write("/proc/self/root" + target),
    write_through_proc_cwd=lambda: write("/proc/self/cwd/" + rel),
    truncate=lambda: os.truncate(target, 0),
    open_truncating=lambda: write(target, os.O_RDONLY | os.O_TRUNC),
    append=lambda: write(target, os.O_WRONLY | os.O_APPEND),
    link_target_in=lambda: os.link(target, "../s0/linked"),
    rename_target_in=lambda: os.rename(target, "../s0/moved"),
    rename_over_target=lambda: (create("../s0/mine"), os.rename("../s0/mine", target)),
    unlink_target=lambda: os.unlink(target),
    create_beside=lambda: create(target + ".new"),
    mkdir_beside=lambda: os.mkdir(target + ".d"),
    create_in_tmp=lambda: create("/tmp/" + os.environ["MARK"]),
    create_in_shm=lambda: create("/dev/shm/" + os.environ["MARK"]),
    write_own_log=lambda: write("../log"),
    write_own_journal=lambda: write("../recovery.json"),
    read_state=lambda: read(state),
    write_state=lambda: write(state),
    write_owner_lock=lambda: write(lock),
    read_other_job=lambda: read(other),
    write_other_job=lambda: write(other),
    engine_environ=lambda: read("/proc/%d/environ" % engine),
    engine_memory=lambda: write("/proc/%d/mem" % engine, os.O_RDWR),
    engine_stdout=lambda: write("/proc/%d/fd/1" % engine),
    engine_root=lambda: os.listdir("/proc/%d/root/" % engine),
    engine_signal=lambda: os.kill(engine, 0),
    leave_group=leave,
    tcp=lambda: connect(socket.AF_INET, ("127.0.0.1", int(port))),
    abstract_socket=lambda: connect(socket.AF_UNIX, "\0" + abstract),
)
for name in tries:
    if "CONTROL" in os.environ:
        open(target, "w").close()
    try:
        tries[name]()
        print(name, "OK", flush=True)
    except OSError as e:
        print(name, errno.errorcode[e.errno], flush=True)
`

// TestNothingOutside: a tool that tries is refused, each try by itself, and nothing has changed (G6). The control is the
// same script outside of the program: there every try must succeed.
func TestNothingOutside(t *testing.T) {
	t.Parallel()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	defer func() { ok(t, tcp.Close()) }()
	w := newWorld(t)
	abstract, err := net.Listen("unix", "@"+w.mark)
	ok(t, err)
	defer func() { ok(t, abstract.Close()) }()
	w.write("attack.py", attack)
	first := w.sh("echo first; echo old >{x}", "x=build/a.v")
	w.want(first, exitOK, job.OK)
	other := w.path(".eda-sidecar/jobs/" + first.Job + "/log")
	args := func(target, rel, state, lock, other string) string {
		return fmt.Sprintf("%s %s %s %s %s %s %d %s", target, rel, state, lock, other, filepath.Join(cgroup2(t), "cgroup.procs"), tcp.Addr().(*net.TCPAddr).Port, w.mark)
	}
	before := w.snapshot()
	a := w.sh("echo kept >{x}; exec python3 attack.py "+args(w.path("build/b.v"), "../../../../build/b.v", w.path(".eda-sidecar/state/ledger.db"), w.path(".eda-sidecar/owner.lock"), other)+"", "x=build/a.v")
	w.want(a, exitOK, job.OK)
	ok(t, os.WriteFile(w.path("build/a.v"), []byte("old\n"), 0o644))
	if after := w.snapshot(); after != before {
		t.Errorf("changed:\n%s\nwas\n%s", after, before)
	}
	var tries []string
	for line := range strings.Lines(a.Log.Head) {
		name, got, isTry := strings.Cut(strings.TrimSpace(line), " ")
		if !isTry || name == "--" {
			continue
		}
		tries = append(tries, name)
		if !slices.Contains([]string{"EACCES", "EPERM", "EXDEV"}, got) {
			t.Errorf("%s: %s", name, got)
		}
	}
	if len(tries) != strings.Count(attack, "=lambda: ")+3 {
		t.Errorf("%d tries: %q\n%s", len(tries), tries, a.Log.Head)
	}

	// The control: the same places in a workspace of nobody.
	root := t.TempDir()
	for _, d := range []string{"build", "j/work", "j/s0", "state", "other"} {
		ok(t, os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	at := func(p string) string { return filepath.Join(root, p) }
	for _, f := range []string{"build/b.v", "state/ledger.db", "owner.lock", "other/log", "j/log", "j/recovery.json"} {
		ok(t, os.WriteFile(at(f), []byte("old"), 0o644))
	}
	c := w.other("sh", "-c", "exec python3 "+w.path("attack.py")+" "+args(at("build/b.v"), "../../build/b.v", at("state/ledger.db"), at("owner.lock"), at("other/log")))
	c.cmd.Dir, c.cmd.Env = at("j/work"), append(os.Environ(), "CONTROL=1", "MARK="+w.mark)
	control := c.start().wait()
	for _, name := range tries {
		if !strings.Contains(control.out, name+" OK\n") {
			t.Errorf("control: %s fails outside of the program, too: %s %s", name, control.out, control.err)
		}
	}
	for _, dir := range []string{"/tmp/", "/dev/shm/"} { // the control's
		ok(t, os.Remove(dir+w.mark))
	}
	w.sound()
}

// snapshot is every file of the workspace outside of our own directory, with mode and bytes.
func (w *world) snapshot() string {
	w.t.Helper()
	return system(w.t, "sh", "-c", `cd "$1" && find . -path ./.eda-sidecar -prune -o -printf "%p %M %s %l " -exec sh -c 'test -f "$1" && sha256sum <"$1" || echo' sh {} \; | sort`, "sh", w.dir)
}

// TestOutputsOfTheWrongKind: what is no plain file of its own is not published (G4, G6).
func TestOutputsOfTheWrongKind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, script := range map[string]string{
		"fifo":          "mkfifo {x}",
		"symlink":       "echo real >../work/real; ln -s ../work/real {x}",
		"symlink_out":   "ln -s " + w.path("build/b.v") + " {x}",
		"directory":     "mkdir {x}",
		"hard_link":     "echo linked >{x}; ln {x} ../work/other",
		"socket":        `python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' {x}`,
		"missing":       "true {x}",
		"empty":         ": >{x}",
		"slot_replaced": "rm -rf ../s0; mkdir ../s0 && ln -s /etc/passwd {x}",
	} {
		a := w.sh(script, "x=build/a.v")
		if name == "slot_replaced" && a.Code == job.ToolFailed { // the slot itself cannot be removed
			continue
		}
		if a.Code != job.OutputInvalid || a.exit != exitFailed || !a.RolledBack {
			t.Errorf("%s: %v", name, a)
		}
		w.ordered(a.Job, "allow", "start", "error", "worker_terminated", "rollback")
		w.is("build/a.v", "old\n", "build/b.v", "old\n")
	}
	// What a file may not carry is stripped.
	w.want(w.sh("echo suid >{x}; chmod 6755 {x}", "x=build/a.v"), exitOK, job.OK)
	info, err := os.Lstat(w.path("build/a.v"))
	ok(t, err)
	if info.Mode() != 0o755 {
		t.Errorf("published with mode %v", info.Mode())
	}
	w.sound()
}

// TestDescriptorPassedOn: an output that a process outside of the group holds open for writing is not published, however
// dead the group is. The control lets go of it in time.
func TestDescriptorPassedOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: w.path("sock"), Net: "unix"})
	ok(t, err)
	defer func() { ok(t, l.Close()) }()
	script := `echo mine >{x}; python3 -c '
import socket, sys
s = socket.socket(socket.AF_UNIX)
f = open(sys.argv[2], "a")
s.connect(sys.argv[1])
socket.send_fds(s, [b"x"], [f.fileno()])
s.recv(1)' ` + w.path("sock") + ` {x}`
	for _, keep := range []bool{true, false} {
		fd := -1
		passed := make(chan error, 1)
		go func() {
			var err error
			if fd, err = receive(l, keep); err != nil {
				err = fmt.Errorf("receive a descriptor: %w", err)
			}
			passed <- err
		}()
		a := w.sh(script, "x=build/a.v")
		ok(t, <-passed)
		if !keep {
			w.want(a, exitOK, job.OK)
			w.is("build/a.v", "mine\n")
			continue
		}
		_, err := unix.Write(fd, []byte("late")) // it can be written, and nobody will read it
		ok(t, err)
		ok(t, unix.Close(fd))
		w.want(a, exitFailed, job.OutputInvalid)
		w.is("build/a.v", "old\n")
	}
	w.sound()
}

// receive takes one descriptor from the next connection, lets go of it unless it is to be kept, and answers.
func receive(l *net.UnixListener, keep bool) (int, error) {
	if err := l.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return -1, err
	}
	c, err := l.AcceptUnix()
	if err != nil {
		return -1, err
	}
	oob := make([]byte, 64)
	_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return -1, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return -1, err
	}
	if !keep {
		if err := unix.Close(fds[0]); err != nil {
			return -1, err
		}
	}
	if _, err := c.Write([]byte("x")); err != nil {
		return -1, err
	}
	return fds[0], c.Close()
}

// TestUnproven: a process in state D cannot be proven dead, and the answer says so: the target is untouched, staging is
// kept, and the next start ends it once the volume thaws (G3). The control thaws in time.
func TestUnproven(t *testing.T) {
	for _, thawed := range []bool{false, true} {
		t.Run(fmt.Sprintf("thawed=%t", thawed), func(t *testing.T) {
			t.Parallel()
			w := newWorldIn(t, volume(t, 16, "mkfs.ext4", "-q", "-F"))
			w.config("kill_timeout: 1s", "grace: 100ms", "min_free_bytes: 1MiB")
			w.flags = append(w.flags, "--state-dir", filepath.Join(t.TempDir(), "state"))
			frozen := false
			thaw := func() {
				if frozen {
					system(t, "fsfreeze", "--unfreeze", w.dir)
					frozen = false
				}
			}
			t.Cleanup(thaw)
			r := w.command(nil, w.shArgs("while :; do echo late >>{x}; done", "x=build/a.v", "--timeout=1s")...).start()
			w.until("staging", w.staged)
			system(t, "fsfreeze", "--freeze", w.dir)
			frozen = true
			if thawed {
				thaw()
			}
			a := r.wait()
			if thawed {
				w.want(a, exitTimeout, job.ToolTimeout)
				w.is("build/a.v", "old\n")
				w.sound()
				return
			}
			w.want(a, exitInternal, job.TerminationUnproven)
			if a.WorkerTerminated || a.RolledBack {
				t.Errorf("terminated %t, rolled back %t", a.WorkerTerminated, a.RolledBack)
			}
			if len(w.marked()) == 0 || !w.staged() {
				t.Errorf("alive %q, staging kept %t: the case is void", w.marked(), w.staged())
			}
			w.is("build/a.v", "old\n")
			w.ordered(a.Job, "allow", "start", "timeout", "termination_unproven")
			thaw()
			found := w.recovered()
			if len(found) != 1 || found[0].Job != a.Job || found[0].Resolution != "discarded" {
				t.Errorf("recovery: %+v", found)
			}
			if left := w.marked(); len(left) != 0 {
				t.Errorf("alive after recovery: %q", left)
			}
			w.ordered(a.Job, "allow", "start", "timeout", "termination_unproven", "recovered", "rollback")
			w.is("build/a.v", "old\n")
			w.want(w.sh("echo new >{x}", "x=build/a.v"), exitOK, job.OK)
			w.sound()
		})
	}
}

// TestFlood: what a tool prints costs disk up to the log's limit, and no memory (G7).
func TestFlood(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ok(t, os.Mkdir(w.path("ctl"), 0o755))
	const mib = 1 << 20
	// peak runs a script until it waits, and returns the program's peak of resident memory by then, and its answer.
	peak := func(script string) (int, answer) {
		ok(t, os.RemoveAll(w.path("ctl/go")))
		r := w.command(nil, w.shArgs(script+"; echo done >{x}; until [ -e ctl/go ]; do sleep 0.01; done", "x=build/a.v")...).start()
		w.until("the flood to end", func() bool {
			staged, err := filepath.Glob(w.path(".eda-sidecar/jobs/*/s0/out.v"))
			ok(t, err)
			return len(staged) > 0
		})
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.pid()))
		ok(t, err)
		_, line, _ := bytes.Cut(status, []byte("VmHWM:"))
		var kib int
		_, err = fmt.Sscan(string(line), &kib)
		ok(t, err)
		w.write("ctl/go", "")
		a := r.wait()
		w.want(a, exitOK, job.OK)
		return kib << 10, a
	}
	quiet, a := peak("true")
	if a.Log.Truncated || a.Log.Bytes != 0 {
		t.Errorf("a quiet tool's log: %+v", a.Log)
	}
	flood, a := peak("yes 0123456789abcde | head -c 512M")
	if !a.Log.Truncated || a.Log.Bytes != 512*mib || len(a.Log.Head) > 64<<10 || len(a.Log.Tail) > 64<<10 {
		t.Errorf("log: %d bytes, truncated %t, head %d, tail %d", a.Log.Bytes, a.Log.Truncated, len(a.Log.Head), len(a.Log.Tail))
	}
	info, err := os.Stat(w.path(a.Log.Path))
	ok(t, err)
	if info.Size() < 63*mib || info.Size() > 65*mib {
		t.Errorf("the log file holds %d bytes", info.Size())
	}
	t.Logf("NOTE peak memory: %.1f MiB quiet, %.1f MiB in a flood of 512 MiB", float64(quiet)/mib, float64(flood)/mib)
	if flood-quiet > 8*mib {
		t.Errorf("a flood costs %d bytes of memory", flood-quiet)
	}

	// A limit of the configuration.
	w.config("allow_script: true", "tool_limits: {flood: {log: 64KiB}}", "tools:",
		"  - name: flood", "    title: Flood", "    doc: Prints a MiB.", "    trust: script", "    program: {name: sh, interpreter: true}",
		"    params: [{name: x, kind: output, doc: an output, format: text, required: true}]",
		"    steps: [{name: flood, argv: [sh, -c, 'yes 0123456789abcde | head -c 1M; echo done >\"$1\"', sh, '{{x}}']}]",
		"    verdict: {ok_exit: [0]}", "    limits: {wall: 1m, log: 2MiB}")
	a = w.do("call", "--json", "flood", "x=build/a.txt")
	w.want(a, exitOK, job.OK)
	info, err = os.Stat(w.path(a.Log.Path))
	ok(t, err)
	if !a.Log.Truncated || a.Log.Bytes != mib || info.Size() > 65<<10 {
		t.Errorf("log: %d bytes, truncated %t, file %d", a.Log.Bytes, a.Log.Truncated, info.Size())
	}
	w.sound()
}

// TestConfined: an engine that cannot see the group of its predecessor claims no death. It rolls the job back all the same,
// as the survivor can reach no target: the next job commits beside it, and the survivor's directory is kept apart (G9). The
// control restarts where the group can be seen.
func TestConfined(t *testing.T) {
	for _, seen := range []bool{false, true} {
		t.Run(fmt.Sprintf("seen=%t", seen), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r := w.command(nil, w.shArgs("while :; do echo late >>{x}; cp {x} "+w.path("build/a.v")+" 2>/dev/null; sleep 0.01; done", "x=build/a.v")...).start()
			w.until("staging", w.staged)
			r.signal(syscall.SIGKILL)
			r.wait()
			id := w.list(".eda-sidecar/jobs")[0]
			if len(w.marked()) == 0 {
				t.Fatal("nothing survived: the case is void")
			}
			var prefix []string
			if !seen {
				prefix = w.apart()
			}
			a := w.command(prefix, "recover", "--json").start().wait()
			if want := map[bool]string{true: "read", false: "confined"}[seen]; a.exit != exitOK || !strings.Contains(a.out, `"proof": "`+want+`"`) {
				t.Fatalf("recovery: %v", a)
			}
			if kinds := w.events(id); kinds[0] != "allow" || !slices.Equal(kinds[len(kinds)-2:], []string{"recovered", "rollback"}) {
				t.Errorf("events %q", kinds) // start may have died with the engine
			}
			w.is("build/a.v", "old\n")
			if alive := len(w.marked()) > 0; alive == seen {
				t.Errorf("alive %t", alive)
			}
			if !seen {
				kept := w.list(".eda-sidecar/trash")
				if len(kept) != 1 || !strings.HasPrefix(kept[0], id) {
					t.Fatalf("trash holds %q", kept)
				}
				lateSize := func() int64 { return fileSize(t, w.path(".eda-sidecar/trash/"+kept[0]+"/s0/out.v")) }
				size := lateSize()
				w.until("the survivor to write on", func() bool { return lateSize() > size })
				w.want(w.command(prefix, w.shArgs("echo new >{x}", "x=build/a.v")...).start().wait(), exitOK, job.OK)
				size = lateSize()
				w.until("the survivor to write on", func() bool { return lateSize() > size })
				w.is("build/a.v", "new\n")
				// Where it can be seen it is killed, though its job has ended.
				w.recovered()
				w.is("build/a.v", "new\n")
			}
			if left := w.marked(); len(left) > 0 {
				t.Errorf("alive: %q", left)
			}
			if a := w.do("audit", "verify"); a.exit != exitOK {
				t.Errorf("audit verify: %v", a)
			}
		})
	}
}

// apart makes a cgroup and returns a prefix that runs a program in it, in cgroup and mount namespaces of its own.
func (w *world) apart() []string {
	w.t.Helper()
	root := cgroup2(w.t)
	group := filepath.Join(root, "e2e-"+w.mark)
	ok(w.t, os.Mkdir(group, 0o755))
	w.t.Cleanup(func() {
		system(w.t, "find", group, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";")
	})
	return []string{"sh", "-c", `echo 0 >"$1/cgroup.procs" && root=$2 && shift 2 && exec unshare -C -m sh -c 'umount -l "$0" && mount -t cgroup2 none "$0" && exec "$@"' "$root" "$@"`, "sh", group, root}
}
