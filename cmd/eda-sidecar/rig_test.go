package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/sidecar"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// world is a workspace that the built program works in. Everything that its tools start carries a mark, by which
// survivors are found.
type world struct {
	t      *testing.T
	dir    string
	mark   string
	flags  []string // of every command that touches the workspace
	groups string   // where the program makes the groups of this workspace

	refused bool // the program never opened it: the self-test of doctor leaves an empty directory for groups
}

// newWorld makes a workspace with two targets that exist, in build/. What must not be left behind is checked at its end.
func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldIn(t, t.TempDir())
}

func newWorldIn(t *testing.T, dir string) *world {
	t.Helper()
	dir, err := filepath.EvalSymlinks(dir)
	ok(t, err)
	w := &world{t: t, dir: dir, mark: "MARK_" + strings.ReplaceAll(uuid.NewString(), "-", "")}
	var st unix.Stat_t
	ok(t, unix.Stat(dir, &st))
	w.groups = fmt.Sprintf("%s/eda-%x", cgroup2(t), sha256.Sum256(fmt.Appendf(nil, "%d:%d", st.Dev, st.Ino)))[:len(cgroup2(t))+len("/eda-")+12]
	_ = unix.Rmdir(w.groups) // of an earlier directory with this inode
	ok(t, os.MkdirAll(w.path("build"), 0o755))
	w.write("build/a.v", "old\n")
	w.write("build/b.v", "old\n")
	t.Cleanup(w.sweep)
	return w
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) write(name, text string) {
	w.t.Helper()
	ok(w.t, os.WriteFile(w.path(name), []byte(text), 0o644))
}

// read returns a file's text, or "absent".
func (w *world) read(name string) string {
	w.t.Helper()
	b, err := os.ReadFile(w.path(name))
	if errors.Is(err, os.ErrNotExist) {
		return "absent"
	}
	ok(w.t, err)
	return string(b)
}

// is fails unless each file holds its text: name, text, name, text.
func (w *world) is(pairs ...string) {
	w.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if got := w.read(pairs[i]); got != pairs[i+1] {
			w.t.Errorf("%s holds %q, want %q", pairs[i], short(got), pairs[i+1])
		}
	}
}

func short(s string) string {
	if len(s) > 300 {
		return s[:300] + "..."
	}
	return s
}

// config writes a configuration outside of the workspace, for every later command.
func (w *world) config(lines ...string) {
	w.t.Helper()
	file := filepath.Join(w.t.TempDir(), "config.yaml")
	ok(w.t, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644))
	w.flags = append(w.flags, "--config", file)
}

// answer is what one command of the program gave back.
type answer struct {
	exit     int // -1: ended by a signal
	out, err string
	job.Result
}

func (a answer) String() string {
	return fmt.Sprintf("exit %d, code %q\nstdout %s\nstderr %s", a.exit, a.Code, short(a.out), short(a.err))
}

// running is a command of the program that was started.
type running struct {
	w        *world
	cmd      *exec.Cmd
	out, err bytes.Buffer
	stop     context.CancelFunc
}

// program builds the program as it is shipped, once: scripts run the test binary in its place, under the race detector if
// that is on. It goes with the directory that testscript keeps its own in.
var program = sync.OnceValues(func() (string, error) {
	inPath, err := exec.LookPath("eda-sidecar")
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(inPath), "built", "eda-sidecar")
	c := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", path, ".")
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	out, err := c.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

// command prepares the program, or, with prefix, a program that runs it: strace, unshare.
func (w *world) command(prefix []string, args ...string) *running {
	w.t.Helper()
	path, err := program()
	ok(w.t, err)
	argv := append(slices.Clone(prefix), path, args[0])
	argv = append(append(argv, w.flags...), args[1:]...)
	return w.other(argv[0], argv[1:]...)
}

// other prepares any program. It has a minute, a server five.
func (w *world) other(name string, args ...string) *running {
	w.t.Helper()
	within := time.Minute
	if slices.Contains(args, "serve") {
		within = 5 * time.Minute
	}
	ctx, stop := context.WithTimeout(context.Background(), within)
	w.t.Cleanup(stop)
	r := &running{w: w, cmd: exec.CommandContext(ctx, name, args...), stop: stop}
	r.cmd.Dir, r.cmd.Stdout, r.cmd.Stderr = w.dir, &r.out, &r.err
	r.cmd.WaitDelay = 5 * time.Second
	return r
}

func (r *running) start() *running {
	r.w.t.Helper()
	ok(r.w.t, r.cmd.Start())
	return r
}

// pid is the program's, also below a prefix that execs it.
func (r *running) pid() int { return r.cmd.Process.Pid }

// wait waits for the end and decodes the result, if one was printed.
func (r *running) wait() answer {
	r.w.t.Helper()
	err := r.cmd.Wait()
	r.stop()
	a := answer{exit: r.cmd.ProcessState.ExitCode(), out: r.out.String(), err: r.err.String()}
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		r.w.t.Fatalf("%v: %v", r.cmd.Args, err)
	}
	if strings.HasPrefix(a.out, "{") {
		if err := json.Unmarshal(r.out.Bytes(), &a.Result); err != nil {
			a.Code = "CUT" // killed while it printed
		}
	}
	return a
}

// do runs one command of the program to its end.
func (w *world) do(args ...string) answer {
	w.t.Helper()
	return w.command(nil, args...).start().wait()
}

// sh runs a shell script as a transaction; outs are NAME=TARGET. The script and all that it starts carry the mark.
func (w *world) sh(script string, outs ...string) answer {
	w.t.Helper()
	return w.do(w.shArgs(script, outs...)...)
}

func (w *world) shArgs(script string, outs ...string) []string {
	args := []string{"run", "--json"}
	for _, o := range outs {
		if strings.HasPrefix(o, "-") {
			args = append(args, o)
		} else {
			args = append(args, "--out", o)
		}
	}
	return append(args, "--", "sh", "-c", "export MARK="+w.mark+"; "+script)
}

// want fails unless a command ended with this exit status and code.
func (w *world) want(a answer, exit int, code job.Code) {
	w.t.Helper()
	if a.exit != exit || a.Code != code {
		w.t.Fatalf("want exit %d, code %q; got %v", exit, code, a)
	}
}

// events returns the kinds of a job's events, in order; of all jobs for an empty id.
func (w *world) events(id string) (kinds []string) {
	w.t.Helper()
	for _, e := range w.trail(id) {
		kinds = append(kinds, strings.TrimPrefix(e.Type, "io.eda-sidecar."))
	}
	return kinds
}

type event struct {
	Type string         `json:"type"`
	Data map[string]any `json:"data"`
}

func (w *world) trail(id string) (all []event) {
	w.t.Helper()
	a := w.do("audit", "--json", "--job", id)
	if a.exit != 0 {
		w.t.Fatalf("audit: %v", a)
	}
	for line := range strings.Lines(a.out) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			w.t.Fatalf("audit --json: %v: %q", err, line)
		}
		if id != "" || !strings.Contains(e.Type, ".ledger.") {
			all = append(all, e)
		}
	}
	return all
}

// ordered fails unless the job has exactly these events.
func (w *world) ordered(id string, kinds ...string) {
	w.t.Helper()
	if got := w.events(id); !slices.Equal(got, kinds) {
		w.t.Errorf("job %s has the events %q, want %q", id, got, kinds)
	}
}

// recovered runs recovery and returns what it found.
func (w *world) recovered(args ...string) (found []sidecar.Recovered) {
	w.t.Helper()
	args = append([]string{"recover", "--json"}, args...)
	a := w.do(args...)
	// A child that the killed program was about to start holds its lock until the exec, which a busy machine delays.
	for end := time.Now().Add(10 * time.Second); a.exit == exitRetry && strings.Contains(a.err, "own the workspace") && time.Now().Before(end); {
		a = w.do(args...)
	}
	if a.exit != 0 {
		w.t.Fatalf("%q: %v", args, a)
	}
	if err := json.Unmarshal([]byte(a.out), &found); err != nil {
		w.t.Fatalf("recover --json: %v: %q", err, a.out)
	}
	return found
}

// sound fails unless the trail verifies, nothing waits for recovery, no tool lives, and the directories hold nothing
// but the jobs that committed.
func (w *world) sound() {
	w.t.Helper()
	w.soundAfter(w.trail(""))
}

// soundAfter is sound, where the trail was read already.
func (w *world) soundAfter(trail []event) {
	w.t.Helper()
	if a := w.do("audit", "verify"); a.exit != 0 {
		w.t.Errorf("audit verify: %v", a)
	}
	if found := w.recovered(); len(found) != 0 {
		w.t.Errorf("recovery finds %+v", found)
	}
	if left := w.marked(); len(left) != 0 {
		w.t.Errorf("alive: %q", left)
	}
	committed := map[string]bool{}
	for _, e := range trail {
		if id, isJob := e.Data["execution_job_id"].(string); isJob && e.Type == "io.eda-sidecar.commit" {
			committed[id] = true
		}
	}
	for _, name := range w.list(".eda-sidecar/jobs") {
		if !committed[name] {
			w.t.Errorf("jobs/%s is not of a committed job", name)
		}
	}
	if left := append(w.list(".eda-sidecar/trash"), w.list(".eda-sidecar/conflicts")...); len(left) > 0 {
		w.t.Errorf("trash and conflicts hold %q", left)
	}
}

func (w *world) list(dir string) (names []string) {
	w.t.Helper()
	entries, err := os.ReadDir(w.path(dir))
	ok(w.t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// marked returns the command lines of living processes that the world's tools started.
func (w *world) marked() (alive []string) {
	w.t.Helper()
	for _, pid := range w.markedPIDs() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may be gone
		alive = append(alive, strconv.Itoa(pid)+" "+strings.ReplaceAll(string(line), "\x00", " "))
	}
	return alive
}

func (w *world) markedPIDs() (pids []int) {
	w.t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	ok(w.t, err)
	for _, dir := range dirs {
		env, _ := os.ReadFile(dir + "/environ")  // it may be gone, and then it is not alive
		argv, _ := os.ReadFile(dir + "/cmdline") // as above
		if !strings.Contains(string(env)+string(argv), w.mark) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		ok(w.t, err)
		pids = append(pids, pid)
	}
	return pids
}

// sweep ends what a failed test left, found by the mark: ours. It is an error if there was anything.
func (w *world) sweep() {
	if left, err := filepath.Glob(w.groups + "/*/"); err != nil || len(left) > 0 {
		w.t.Errorf("groups are left: %q, %v", left, err)
	}
	for _, pid := range w.markedPIDs() {
		w.t.Errorf("left alive: %d", pid)
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			w.t.Error(err)
		}
	}
	if _, err := os.Lstat(w.groups); !errors.Is(err, os.ErrNotExist) {
		if !w.refused {
			w.t.Errorf("%s is left", w.groups)
		}
		system(w.t, "find", w.groups, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";")
	}
}

// until waits for what other processes bring about.
func (w *world) until(what string, cond func() bool) {
	w.t.Helper()
	eventually(w.t, what, cond)
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("timed out: %s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// staged reports whether the running job's slot 0 holds a file.
func (w *world) staged() bool {
	found, err := filepath.Glob(w.path(".eda-sidecar/jobs/*/s0/*"))
	ok(w.t, err)
	return len(found) > 0
}

// system runs a command of the system that must succeed, and returns what it printed.
func system(t testing.TB, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// volume makes a file system on a new image of its own, explicitly attached: mount -o loop could reuse a stale device.
func volume(t *testing.T, megabytes int64, mkfs ...string) string {
	t.Helper()
	dir := t.TempDir()
	image, mnt := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	ok(t, os.WriteFile(image, nil, 0o600))
	ok(t, os.Truncate(image, megabytes<<20))
	system(t, mkfs[0], append(mkfs[1:], image)...)
	device := system(t, "losetup", "--find", "--show", image)
	t.Cleanup(func() { system(t, "losetup", "--detach", device) })
	ok(t, os.Mkdir(mnt, 0o755))
	kind, _ := strings.CutPrefix(mkfs[0], "mkfs.")
	mount(t, device, mnt, kind, 0, "")
	return mnt
}

// mount mounts until the end of the test. What was in state D lets go of a mount once it has died.
func mount(t *testing.T, source, target, kind string, flags uintptr, data string) {
	t.Helper()
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		t.Fatalf("mount %s on %s: %v", source, target, err)
	}
	t.Cleanup(func() {
		end := time.Now().Add(15 * time.Second)
		err := unix.Unmount(target, 0)
		for ; errors.Is(err, unix.EBUSY) && time.Now().Before(end); err = unix.Unmount(target, 0) {
			<-time.After(20 * time.Millisecond)
		}
		if err != nil {
			t.Errorf("umount %s: %v", target, errors.Join(err, unix.Unmount(target, unix.MNT_DETACH)))
		}
	})
}

// cgroup2 is where the cgroup2 file system is mounted.
func cgroup2(t testing.TB) string {
	t.Helper()
	mount, err := cgroupMount()
	ok(t, err)
	return mount
}

var cgroupMount = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("findmnt", "-n", "-o", "TARGET", "-t", "cgroup2").Output()
	if err != nil {
		return "", fmt.Errorf("find the cgroup2 file system: %w", err)
	}
	return strings.Fields(string(out))[0], nil
})

// signal sends to a process that the test started.
func (r *running) signal(s syscall.Signal) {
	r.w.t.Helper()
	ok(r.w.t, r.cmd.Process.Signal(s))
}
