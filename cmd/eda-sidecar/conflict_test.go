package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// TestForeignEdits: whoever else writes to a target while the tool runs keeps his bytes, and the call says so (G2). The
// control is a neighbour of the target, which nobody minds.
func TestForeignEdits(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(w *world)
		want []string // files and their text afterwards
	}{
		"edited":     {func(w *world) { w.write("build/a.v", "theirs\n") }, []string{"build/a.v", "theirs\n"}},
		"appended":   {func(w *world) { system(w.t, "sh", "-c", "echo theirs >>"+w.path("build/a.v")) }, []string{"build/a.v", "old\ntheirs\n"}},
		"replaced":   {func(w *world) { w.replace("build/a.v", "theirs\n") }, []string{"build/a.v", "theirs\n"}},
		"same_bytes": {func(w *world) { w.replace("build/a.v", "old\n") }, []string{"build/a.v", "old\n"}},
		"deleted":    {func(w *world) { ok(w.t, os.Remove(w.path("build/a.v"))) }, []string{"build/a.v", "absent"}},
		"a_link": {func(w *world) {
			ok(w.t, os.Remove(w.path("build/a.v")))
			ok(w.t, os.Symlink("b.v", w.path("build/a.v")))
		}, []string{"build/a.v", "old\n", "build/b.v", "old\n"}},
		"a_directory": {func(w *world) {
			ok(w.t, os.Remove(w.path("build/a.v")))
			ok(w.t, os.Mkdir(w.path("build/a.v"), 0o755))
			w.write("build/a.v/theirs", "theirs\n")
		}, []string{"build/a.v/theirs", "theirs\n"}},
		"created":      {func(w *world) { ok(w.t, os.Mkdir(w.path("new"), 0o755)); w.write("new/c.v", "theirs\n") }, []string{"new/c.v", "theirs\n"}},
		"parent_moved": {func(w *world) { ok(w.t, os.Rename(w.path("build"), w.path("moved"))) }, []string{"moved/a.v", "old\n", "moved/b.v", "old\n", "build/a.v", "absent"}},
		"parent_exchanged": {func(w *world) {
			ok(w.t, os.Rename(w.path("build"), w.path("moved")))
			ok(w.t, os.Mkdir(w.path("build"), 0o755))
			w.write("build/a.v", "theirs\n")
		}, []string{"moved/a.v", "old\n", "build/a.v", "theirs\n"}},
		"neighbour": {func(w *world) { w.write("build/z.v", "theirs\n") }, []string{"build/z.v", "theirs\n", "build/a.v", "new\n", "build/b.v", "new\n", "new/c.v", "new\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			ok(t, os.MkdirAll(w.path("ctl"), 0o755))
			r := w.command(nil, w.shArgs(three, threeOuts...)...).start()
			w.until("staging", func() bool {
				found, err := filepath.Glob(w.path(".eda-sidecar/jobs/*/s2/*"))
				ok(t, err)
				return len(found) > 0
			})
			c.edit(w)
			w.write("ctl/go", "")
			a := r.wait()
			w.is(c.want...)
			if name == "neighbour" {
				w.want(a, exitOK, job.OK)
			} else {
				w.want(a, exitFailed, job.OutputConflict)
				if !a.RolledBack || !strings.Contains(a.Hint, "theirs was kept") {
					t.Errorf("rolled back %t, hint %q", a.RolledBack, a.Hint)
				}
				w.ordered(a.Job, "allow", "start", "error", "worker_terminated", "rollback")
				for _, f := range []string{"build/a.v", "build/b.v", "new/c.v", "moved/a.v"} {
					if info, err := os.Lstat(w.path(f)); err == nil && info.Mode().IsRegular() && w.read(f) == "new\n" {
						t.Errorf("%s is new", f)
					}
				}
			}
			w.sound()
		})
	}
}

// replace puts another file in a target's place, as editors do.
func (w *world) replace(name, text string) {
	w.t.Helper()
	w.write("theirs.tmp", text)
	ok(w.t, os.Rename(w.path("theirs.tmp"), w.path(name)))
}

// TestQuarantine: what recovery does not recognise it leaves alone, and keeps others away from, until an operator decides.
func TestQuarantine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config("queue_timeout: 300ms")
	killed := w.attached("-o", "/dev/null", "-e", "trace=renameat2", "-e", "inject=renameat2:signal=KILL:when=2", "-P", w.path("build"))
	if killed.exit != -1 || w.read("build/a.v") != "new\n" || w.read("build/b.v") != "old\n" {
		t.Fatalf("not killed between two exchanges: %v", killed)
	}
	id := w.list(".eda-sidecar/jobs")[0]
	ok(t, os.Rename(w.path("build"), w.path("moved")))
	staged := w.list(".eda-sidecar/jobs/" + id)
	for _, when := range []string{"first", "second"} {
		if found := w.recovered(); len(found) != 1 || found[0].Job != id || found[0].Resolution != txn.Quarantined || found[0].Reason == "" {
			t.Fatalf("%s recovery: %+v", when, found)
		}
		w.is("moved/a.v", "new\n", "moved/b.v", "old\n")
		if now := w.list(".eda-sidecar/jobs/" + id); !slices.Equal(now, staged) {
			t.Errorf("the job directory holds %q, was %q", now, staged)
		}
	}
	w.ordered(id, "allow", "start")
	if a := w.do("doctor"); a.exit != exitNoSupport || !strings.Contains(a.out, "FAIL quarantine") || !strings.Contains(a.out, id) || !strings.Contains(a.out, "conflicts/"+id) {
		t.Errorf("doctor: %v", a)
	}
	// its target, its session
	for what, a := range map[string]answer{
		"a target":             w.sh("echo again >{x}", "x=build/a.v", "--session=other"),
		"a target above":       w.sh("echo again >{x}", "x=build", "--session=other"),
		"a target beside":      w.sh("echo again >{x}", "x=new/c.v", "--session=other"),
		"the session":          w.sh("echo again >{x}", "x=free.v"),
		"the session, by name": w.sh("echo again >{x}", "x=free.v", "--session=default"),
	} {
		if a.exit != exitRetry || a.Code != job.Busy || !strings.Contains(a.Message, id) {
			t.Errorf("%s of a quarantined job: %v", what, a)
		}
	}
	// everything else runs
	w.want(w.sh("echo free >{x}", "x=free.v", "--session=other"), exitOK, job.OK)
	w.want(w.do("run", "--json", "--", "cat", "moved/a.v"), exitOK, job.OK)
	// an operator puts it right and says so
	ok(t, os.Rename(w.path("moved"), w.path("build")))
	w.write("build/a.v", "mine\n")
	ok(t, os.Rename(w.path(".eda-sidecar/jobs/"+id), w.path(".eda-sidecar/conflicts/"+id)))
	if found := w.recovered(); len(found) != 1 || found[0].Resolution == txn.Quarantined {
		t.Errorf("after the operator: %+v", found)
	}
	w.ordered(id, "allow", "start", "recovered", "rollback")
	w.is("build/a.v", "mine\n", "build/b.v", "old\n")
	w.want(w.sh("echo again >{x}", "x=build/a.v"), exitOK, job.OK)
	if got := w.list(".eda-sidecar/conflicts"); !slices.Equal(got, []string{id}) {
		t.Errorf("conflicts holds %q", got)
	}
	if a := w.do("audit", "verify"); a.exit != exitOK {
		t.Errorf("audit verify: %v", a)
	}
}

// TestForeignEditsAfterCrash: what somebody wrote between a crash and its recovery is kept, too.
func TestForeignEditsAfterCrash(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.published()
	w.write("build/a.v", "theirs, in place\n")
	w.replace("build/b.v", "theirs, another file\n")
	found := w.recovered()
	if len(found) != 1 || found[0].Resolution != txn.Conflicted {
		t.Fatalf("recovery: %+v", found)
	}
	// b.v was replaced: it stays, and what it was before is kept. a.v is old again, and the edit of the new one is kept.
	dir := ".eda-sidecar/conflicts/" + found[0].Job
	w.is("build/a.v", "old\n", "build/b.v", "theirs, another file\n", "new/c.v", "absent", dir+"/0", "theirs, in place\n", dir+"/1", "old\n")
	w.ordered(found[0].Job, "allow", "start", "recovered", "rollback")
	if again := w.recovered(); len(again) != 0 {
		t.Errorf("recovery again: %+v", again)
	}
	w.want(w.sh("echo again >{x}", "x=build/a.v"), exitOK, job.OK)
}
