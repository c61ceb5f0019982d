package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// TestReaders: whoever reads a target at any time reads the whole old or the whole new file (G2). The control publishes
// as a careless script does, and is caught.
func TestReaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const size = 256 << 10
	content := func(c string) string { return strings.Repeat(c, size) }
	w.write("build/a.v", content("a"))
	// watched counts the reads that find a missing, cut or mixed file while f runs.
	watched := func(f func()) (reads, bad int) {
		var done atomic.Bool
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for !done.Load() {
				b, err := os.ReadFile(w.path("build/a.v"))
				if reads++; err != nil || len(b) != size || !bytes.Equal(b, bytes.Repeat(b[:1], size)) {
					bad++
				}
			}
		}()
		f()
		done.Store(true)
		<-ended
		return reads, bad
	}
	publish := func(c string) string { return "head -c 256K /dev/zero | tr '\\0' " + c + " >{x}" }
	reads, bad := watched(func() {
		for i := range 10 {
			w.want(w.sh(publish(string(rune('b'+i))), "x=build/a.v"), exitOK, job.OK)
		}
	})
	t.Logf("NOTE %d reads, %d bad", reads, bad)
	if bad > 0 || reads < 100 {
		t.Errorf("%d reads, %d of a file that is not whole", reads, bad)
	}
	if _, bad := watched(func() {
		for range 10 {
			system(t, "sh", "-c", strings.ReplaceAll(publish("z"), "{x}", w.path("build/a.v")))
		}
	}); bad == 0 {
		t.Error("control: a careless writer was never caught")
	}
	w.sound()
}

// TestFollow: audit --follow prints what becomes durable in another process, in order, and ends without an error.
func TestFollow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	follow := func() (r *running, printed *lockedBuffer) {
		printed = &lockedBuffer{}
		r = w.command(nil, "audit", "--follow", "--json", "--kind", "commit")
		r.cmd.Stdout = printed
		return r.start(), printed
	}
	early, all := follow() // of a workspace that was never used
	w.want(w.sh("echo first >{x}", "x=build/a.v"), exitOK, job.OK)
	w.until("the first event", func() bool { return all.lines() == 1 })
	early.signal(syscall.SIGINT)
	if a := early.wait(); a.exit != exitOK {
		t.Errorf("audit --follow of nothing: %v", a)
	}
	r, printed := follow()
	w.until("the past", func() bool { return printed.lines() == 1 })
	var ids []string
	for i := range 3 {
		a := w.sh(fmt.Sprintf("echo %d >{x}", i), "x=build/a.v")
		w.want(a, exitOK, job.OK)
		ids = append(ids, a.Job)
	}
	w.want(w.sh("echo >{x}; exit 3", "x=build/a.v"), exitFailed, job.ToolFailed)
	w.until("the present", func() bool { return printed.lines() == 4 })
	r.signal(syscall.SIGINT)
	if a := r.wait(); a.exit != exitOK || a.err != "" {
		t.Errorf("audit --follow: %v", a)
	}
	for i, line := range strings.Split(strings.TrimSpace(printed.String()), "\n")[1:] {
		var e struct{ Subject string }
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Subject != ids[i] {
			t.Errorf("line %d: %v: %s", i, err, line)
		}
	}
	w.sound()
}

// lockedBuffer is written by a command while a test reads it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

// Write implements io.Writer.
func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lockedBuffer) lines() int { return strings.Count(l.String(), "\n") }

// give lets any user pass to the world's directory, and gives that away.
func (w *world) give(uid int) {
	w.t.Helper()
	for dir := filepath.Dir(w.dir); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		ok(w.t, os.Chmod(dir, 0o755))
	}
	system(w.t, "chown", "-R", fmt.Sprintf("%d:%d", uid, uid), w.dir)
}

const nobody = 65534

// asNobody gives a world to nobody. The prefixes run a program as him: in a group that was delegated to him, and elsewhere.
func asNobody(t *testing.T) (w *world, delegated, elsewhere []string) {
	t.Helper()
	w = newWorld(t)
	w.give(nobody)
	path, err := program()
	ok(t, err)
	bin := filepath.Join(t.TempDir(), "eda-sidecar")
	system(t, "cp", path, bin)
	as := func(enter string) []string {
		return []string{"sh", "-c", enter + `; shift; exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all "$0" "$@"`, bin}
	}
	group := filepath.Join(cgroup2(t), "e2e-"+w.mark)
	ok(t, os.Mkdir(group, 0o755))
	t.Cleanup(func() { system(t, "find", group, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";") })
	for _, f := range []string{"", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"} {
		ok(t, os.Chown(filepath.Join(group, f), nobody, nobody))
	}
	return w, as("echo 0 >" + group + "/cgroup.procs"), as("true")
}

// TestWithoutRoot: in a delegated group the program keeps its word without any privilege; elsewhere it refuses.
func TestWithoutRoot(t *testing.T) {
	t.Parallel()
	w, delegated, elsewhere := asNobody(t)
	if a := w.command(elsewhere, w.shArgs("echo new >{x}", "x=build/a.v")...).start().wait(); a.exit != exitNoSupport || !strings.Contains(a.err, "not ours to write") {
		t.Errorf("without a delegated group: %v", a)
	}
	a := w.command(delegated, w.shArgs("id -u; echo new >{x}; setsid sleep 1000 &", "x=build/a.v")...).start().wait()
	w.want(a, exitOK, job.OK)
	if a.DescendantsKilled != 1 || !strings.HasPrefix(a.Log.Head, "65534\n") {
		t.Errorf("%d killed, log %q", a.DescendantsKilled, a.Log.Head)
	}
	w.is("build/a.v", "new\n")
	a = w.command(delegated, w.shArgs("setsid sleep 1000 & echo bad >{x}; sleep 1000", "x=build/a.v", "--timeout=300ms")...).start().wait()
	w.want(a, exitTimeout, job.ToolTimeout)
	w.is("build/a.v", "new\n")
	if left := w.marked(); len(left) > 0 {
		t.Errorf("alive: %q", left)
	}
	if a := w.command(delegated, "audit", "verify").start().wait(); a.exit != exitOK {
		t.Errorf("audit verify: %v", a)
	}
}

// TestToolTakesModes: a tool of the engine's own user can take every permission from the engine's files, as Landlock does
// not stop chmod. The engine gives them back: the job ends as its tool deserves, and so do those after it.
func TestToolTakesModes(t *testing.T) {
	t.Parallel()
	w, delegated, _ := asNobody(t)
	do := func(args ...string) answer { return w.command(delegated, args...).start().wait() }
	const take = "cd ../../..; chmod 000 owner.lock state/* state conflicts trash jobs/*/log jobs/*/recovery.json; cd - >/dev/null; chmod 000 ../../.. ../.. ..; "
	serves := func(after string) {
		t.Helper()
		w.want(do(w.shArgs("echo "+after+" >{x}", "x=build/b.v")...), exitOK, job.OK)
		w.is("build/b.v", after+"\n")
		if a := do("recover"); a.exit != exitOK || a.out != "nothing to recover\n" {
			t.Errorf("recovery after %s: %v", after, a)
		}
	}
	for name, c := range map[string]struct {
		script, a string
		args      []string
		exit      int
		code      job.Code
	}{
		"nothing":           {"", "new", nil, exitOK, job.OK},
		"the tool's own":    {"chmod 000 ../s0 ../tmp .", "", nil, exitFailed, job.OutputInvalid},
		"all":               {take, "new", nil, exitOK, job.OK},
		"all, and failed":   {take + "exit 3", "", nil, exitFailed, job.ToolFailed},
		"all, and late":     {take + "sleep 1000", "", []string{"--timeout=1s"}, exitTimeout, job.ToolTimeout},
		"all, and no bytes": {": >{x}; " + take, "", nil, exitFailed, job.OutputInvalid},
	} {
		w.write("build/a.v", "old\n")
		a := do(w.shArgs("echo new >{x}; "+c.script, append(c.args, "x=build/a.v")...)...)
		if a.exit != c.exit || a.Code != c.code || !a.WorkerTerminated || a.RolledBack != (a.Code != job.OK) {
			t.Errorf("%s: %v", name, a)
		}
		w.is("build/a.v", cmp.Or(c.a, "old")+"\n")
		serves(strings.ReplaceAll(name, "'", ""))
	}
	w.want(do(w.shArgs(take+"sleep 1000", "--timeout=1s")...), exitTimeout, job.ToolTimeout) // a read
	serves("a read")
	for _, args := range [][]string{{"recover", "--dry-run"}, {"recover"}} { // the engine is killed meanwhile
		r := w.command(delegated, w.shArgs("echo bad >{x}; "+take+"sleep 1000", "x=build/b.v")...).start()
		w.until("the modes are taken", func() bool {
			info, err := os.Stat(w.path(".eda-sidecar/jobs"))
			return err == nil && info.Mode().Perm() == 0
		})
		r.signal(syscall.SIGKILL)
		r.wait()
		if a := do(args...); a.exit != exitOK || !strings.Contains(a.out, "discarded") {
			t.Errorf("%q: %v", args, a)
		}
		do("recover")
		serves("killed")
	}
	if a := do("audit", "verify"); a.exit != exitOK {
		t.Errorf("audit verify: %v", a)
	}
}

// TestOddNames: no target is called too oddly for the whole way, from argument to audit trail. A workspace whose path
// tools cannot be told is refused, untouched.
func TestOddNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"-a", "\u00e4\u4e2d", "a b", "a\nb", `a'"$(b)`, "a\\134b"} {
		dir := filepath.Join(t.TempDir(), name)
		ok(t, os.Mkdir(dir, 0o755))
		w := newWorldIn(t, dir)
		odd := []string{"build/-x.v", "b c/'\"$(d).v", "\u00e4\u4e2d/\\134.v", "e.", "..f"}
		var outs []string
		var script strings.Builder
		for i, target := range odd {
			outs = append(outs, fmt.Sprintf("o%d=%s", i, target))
			fmt.Fprintf(&script, "echo new >{o%d};", i)
		}
		a := w.sh(script.String()+"cat build/a.v", outs...)
		if len(name) != 2 && name[0] == 'a' {
			w.want(a, exitUsage, job.InvalidArgument)
			if names := w.list("."); len(names) != 1 {
				t.Errorf("a refused workspace holds %q", names)
			}
			continue
		}
		w.want(a, exitOK, job.OK)
		for i, target := range odd {
			w.is(target, "new\n")
			if a.Outputs[i].Path != target {
				t.Errorf("%q is called %q", target, a.Outputs[i].Path)
			}
		}
		commit := w.trail(a.Job)[2]
		if got := fmt.Sprint(commit.Data["outputs"]); !strings.Contains(got, odd[1]) {
			t.Errorf("the trail has %s", got)
		}
		w.sound()
	}
}
