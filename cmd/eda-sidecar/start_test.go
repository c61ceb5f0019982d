package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// TestRecoveryWithoutRoom: an exchange needs no block, so what was published is undone on a full volume, too.
func TestRecoveryWithoutRoom(t *testing.T) {
	t.Parallel()
	w := newWorldIn(t, volume(t, 24, "mkfs.ext4", "-q", "-F", "-m", "0", "-N", "1024", "-E", "nodiscard"))
	w.flags = append(w.flags, "--state-dir", filepath.Join(t.TempDir(), "state"))
	w.config("min_free_bytes: 1MiB", "min_free_inodes: 8")
	w.published()
	free := fill(t, w.dir)
	w.recovered()
	w.is("build/a.v", "old\n", "build/b.v", "old\n")
	free()
	w.sound()
}

// TestHalfBornLedger: a ledger that a crash left empty is none: nothing is to be recovered, and nothing was recorded.
func TestHalfBornLedger(t *testing.T) {
	t.Parallel()
	for _, there := range []bool{false, true} {
		w := newWorld(t)
		if there {
			ok(t, os.MkdirAll(w.path(".eda-sidecar/state"), 0o700))
			w.write(".eda-sidecar/state/ledger.db", "")
		}
		w.recovered("--dry-run")
		if a := w.do("audit", "--json"); a.exit == exitInternal {
			t.Errorf("audit where nothing was recorded, empty file %t: %v", there, a)
		}
		w.want(w.sh("echo new >{x}", "x=build/a.v"), exitOK, job.OK)
		w.sound()
	}
}

// TestKilledRead: a read has no row in the ledger, yet what a killed engine left of it is found, ended and recorded: also
// by a start in another scope, which makes its groups elsewhere.
func TestKilledRead(t *testing.T) {
	t.Parallel()
	for _, scoped := range []bool{false, true} {
		w := newWorld(t)
		var prefix []string
		if scoped {
			scope := filepath.Join(cgroup2(t), "e2e-"+w.mark)
			ok(t, os.Mkdir(scope, 0o755))
			t.Cleanup(func() { ok(t, os.Remove(scope)) })
			prefix = []string{"sh", "-c", `echo 0 >"$0/cgroup.procs" && exec "$@"`, scope}
		}
		r := w.command(prefix, w.shArgs("echo running; sleep 1000")...).start()
		w.until("the tool runs", func() bool {
			logs, err := filepath.Glob(w.path(".eda-sidecar/jobs/r-*/log"))
			return err == nil && len(logs) == 1 && strings.Contains(w.read(strings.TrimPrefix(logs[0], w.dir+"/")), "running")
		})
		r.signal(syscall.SIGKILL)
		r.wait()
		if len(w.marked()) == 0 {
			t.Fatal("nothing survived: there is nothing to show")
		}
		// A start that comes no further than the ledger does not forget where to look.
		elsewhere := filepath.Join(t.TempDir(), "config.yaml")
		ok(t, os.WriteFile(elsewhere, []byte("cgroup_parent: /tmp\n"), 0o644))
		if a := w.do("recover", "--config", elsewhere); a.exit != exitNoSupport {
			t.Errorf("a start without groups: %v", a)
		}
		dry := w.recovered("--dry-run")
		if len(w.marked()) == 0 {
			t.Error("a dry run killed")
		}
		found := w.recovered()
		if len(dry) != 1 || len(found) != 1 || dry[0].Job != found[0].Job || dry[0].Resolution != txn.Discarded || dry[0].If == "" {
			t.Errorf("another scope %t: a dry run says %+v, recovery %+v", scoped, dry, found)
		}
		if len(found) != 1 || found[0].Resolution != txn.Discarded || len(w.marked()) != 0 {
			t.Errorf("another scope %t: recovered %+v, alive %v", scoped, found, w.marked())
		}
		if kinds := strings.Join(w.events(found[0].Job), " "); !strings.HasSuffix(kinds, "recovered") {
			t.Errorf("another scope %t: events %q", scoped, kinds)
		}
		if scoped {
			dirs, err := filepath.Glob(filepath.Join(cgroup2(t), "e2e-"+w.mark, "eda-*"))
			ok(t, err)
			for _, dir := range dirs {
				ok(t, os.Remove(dir)) // empty: else this fails
			}
		}
		if a := w.do("audit", "verify"); a.exit != exitOK { // its scratch stays in the trash for a day
			t.Errorf("%v", a)
		}
	}
}

// TestStrangeDirectory: what somebody put into jobs/ is announced by a dry run, and told of by its name.
func TestStrangeDirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.want(w.sh("echo new >{x}", "x=build/a.v"), exitOK, job.OK)
	ok(t, os.Mkdir(w.path(".eda-sidecar/jobs/strange"), 0o755))
	w.write(".eda-sidecar/jobs/strange/file", "theirs")
	ok(t, os.Mkdir(w.path(".eda-sidecar/jobs/void"), 0o755))
	for _, args := range [][]string{{"recover", "--dry-run"}, {"recover"}} {
		a := w.do(args...)
		if a.exit != exitOK || strings.Contains(a.out, "a read") || !strings.Contains(a.out, "jobs/strange: conflict (") || !strings.Contains(a.out, "jobs/void: discarded (") {
			t.Errorf("%q: %v", args, a)
		}
	}
	w.is(".eda-sidecar/conflicts/strange/file", "theirs")
	ok(t, os.RemoveAll(w.path(".eda-sidecar/conflicts/strange")))
	w.sound()
}

// TestLostLedger: a workspace that was used has evidence, or the trail is not whole.
func TestLostLedger(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.want(w.sh("echo new >{x}", "x=build/a.v"), exitOK, job.OK)
	ok(t, os.Rename(w.path(".eda-sidecar/state"), w.path("away")))
	for _, command := range [][]string{{"audit"}, {"audit", "verify"}} {
		if a := w.do(command...); a.exit != exitInternal {
			t.Errorf("%v without a ledger: %v", command, a)
		}
	}
	ok(t, os.Rename(w.path("away"), w.path(".eda-sidecar/state")))
	w.sound()
}

// TestSharedState: a state directory serves one workspace, at a time and for ever.
func TestSharedState(t *testing.T) {
	t.Parallel()
	a, b, state := newWorld(t), newWorld(t), filepath.Join(t.TempDir(), "state")
	a.flags = append(a.flags, "--state-dir", state)
	b.flags = append(b.flags, "--state-dir", state)
	a.want(a.sh("echo new >{x}", "x=build/a.v"), exitOK, job.OK)
	if r := b.do("recover"); r.exit != exitUsage {
		t.Errorf("the ledger of another workspace: %v", r)
	}
	b.is("build/a.v", "old\n")
	a.sound()
}

// TestFullDuringTheRun: what was written to a full disk is not whole, whatever the tool makes of it.
func TestFullDuringTheRun(t *testing.T) {
	t.Parallel()
	w := newWorldIn(t, volume(t, 24, "mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard"))
	w.flags = append(w.flags, "--state-dir", filepath.Join(t.TempDir(), "state"))
	w.config("min_free_bytes: 1MiB", "min_free_inodes: 8")
	w.want(w.sh("dd if=/dev/zero of={x} bs=64k; true", "x=build/a.v"), exitRetry, job.WorkspaceFull)
	w.is("build/a.v", "old\n")
	w.want(w.sh("echo new >{x}", "x=build/a.v"), exitOK, job.OK)
	w.sound()
}

// TestKilledOnAFullVolume: without room for the ledger nothing can be decided, but what an earlier engine left running is
// ended all the same; the next start with room decides.
func TestKilledOnAFullVolume(t *testing.T) {
	t.Parallel()
	w := newWorldIn(t, volume(t, 24, "mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard"))
	w.config("min_free_bytes: 1KiB", "min_free_inodes: 0")
	w.want(w.sh("echo new >{x}", "x=build/b.v"), exitOK, job.OK)
	engine := w.command(nil, w.shArgs("echo never >{x}; setsid sleep 1000 & sleep 1000", "x=build/a.v")...).start()
	w.until("the tool writes", w.staged)
	ok(t, engine.cmd.Process.Kill())
	engine.wait()
	if len(w.marked()) == 0 {
		t.Fatal("the tool did not outlive the engine")
	}
	fill := w.other("sh", "-c", "head -c 60000000 /dev/zero >fill").start().wait()
	if a := w.do("recover"); a.exit != exitRetry || strings.Contains(a.err, "put it on a local") {
		t.Errorf("recover on a full volume (%d): %v", fill.exit, a)
	}
	if left := w.marked(); len(left) != 0 {
		t.Errorf("alive: %q", left)
	}
	ok(t, os.Remove(w.path("fill")))
	w.until("there is room again", func() bool { // ext4 gives it back with its journal
		var st unix.Statfs_t
		ok(t, unix.Statfs(w.dir, &st))
		probe := os.Mkdir(w.path("room"), 0o700)
		if probe == nil {
			ok(t, os.Remove(w.path("room")))
		}
		return probe == nil && st.Bavail*uint64(st.Bsize) > 4<<20
	})
	if found := w.recovered(); len(found) != 1 || found[0].Resolution != txn.Discarded {
		t.Errorf("recovered %+v", found)
	}
	w.is("build/a.v", "old\n")
	w.sound()
}

// TestStateThatIsNoFile: a link or FIFO where the next state is expected is the tool's fault, not ours.
func TestStateThatIsNoFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, script := range []string{"ln -s /etc/passwd _state.next.json", "mkfifo _state.next.json", "ln -s nowhere _state.next.json"} {
		a := w.sh(script+"; echo new >{x}", "--session=s", "x=build/a.v")
		if a.Code != job.OutputInvalid || !a.RolledBack {
			t.Errorf("%s: %v", script, a)
		}
		w.is("build/a.v", "old\n")
	}
	w.sound()
}

// TestToolOfAnotherUser: as root the program runs tools as the workspace's owner, who gets the files and no right more.
func TestToolOfAnotherUser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.give(nobody)
	a := w.sh("id -u; id -G; echo new >{x}; echo new >{z}; cat build/b.v; chown 0 {x}; kill -0 $PPID; cat ../log; ls ../../../state; setsid sleep 1000 &", "x=build/a.v", "z=new/c.v")
	w.want(a, exitOK, job.OK)
	if !strings.HasPrefix(a.Log.Head, "65534\n65534\nold\n") || a.DescendantsKilled != 1 {
		t.Errorf("%d killed, log %q", a.DescendantsKilled, a.Log.Head)
	}
	if got := strings.Count(a.Log.Head, "not permitted") + strings.Count(a.Log.Head, "denied"); got != 4 {
		t.Errorf("%d refusals, want 4: %q", got, a.Log.Head)
	}
	for _, f := range []string{"build/a.v", "new", "new/c.v"} {
		var st unix.Stat_t
		ok(t, unix.Stat(w.path(f), &st))
		if st.Uid != nobody || st.Gid != nobody {
			t.Errorf("%s belongs to %d:%d", f, st.Uid, st.Gid)
		}
	}
	w.sound()
}

// TestNestedWorkspace: what is the engine's own, of whichever workspace, is no target.
func TestNestedWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ok(t, os.Mkdir(w.path("inner"), 0o755))
	if a := w.do("run", "-w", "inner", "--json", "--out", "x=a.v", "--", "sh", "-c", "echo new >{x}"); a.exit == exitOK { // refusing it is right, too
		for _, target := range []string{"inner/.eda-sidecar/owner.lock", "inner/.eda-sidecar/state/ledger.db", "inner/.eda-sidecar/new"} {
			if a := w.sh("echo mine >{x}", "x="+target); a.exit != exitUsage || a.Code != job.InvalidArgument {
				t.Errorf("%s as a target: %v", target, a)
			}
		}
	}
	// Once the outer one is a workspace, nothing below it can become one.
	if a := w.do("run", "-w", "build", "--", "true"); a.exit != exitUsage {
		t.Errorf("a workspace inside of another: %v", a)
	}
}

// TestCancelledStart: a signal while the program starts ends it without a trace, or its call is cancelled in order.
func TestCancelledStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 8 {
		r := w.command(nil, w.shArgs("echo new >{x}; sleep 1000", "x=build/a.v")...).start()
		<-time.After(time.Duration(i*7) * time.Millisecond)
		r.signal(syscall.SIGTERM)
		a := r.wait()
		if a.exit != exitCancelled && a.exit != -1 { // -1: before the handler was there
			t.Errorf("after %d ms: %v", i*7, a)
		}
		for _, found := range w.recovered() {
			if found.Resolution != txn.Discarded {
				t.Errorf("after %d ms: %+v", i*7, found)
			}
		}
		w.is("build/a.v", "old\n")
	}
	w.sound()
}

// TestFirstStartsTogether: of processes that open a new workspace at once one has it, and the others are told so.
func TestFirstStartsTogether(t *testing.T) {
	t.Parallel()
	for range 12 {
		w := newWorld(t)
		var all []*running
		for range 3 {
			all = append(all, w.command(nil, "recover").start())
		}
		for _, r := range all {
			if a := r.wait(); a.exit != exitOK && a.exit != exitRetry {
				t.Errorf("%v", a)
			}
		}
		w.sound()
	}
}
