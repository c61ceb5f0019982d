package txn

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/cgroup/cgrouptest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable/durabletest"
)

const foreignBytes = "precious bytes of somebody else"

// edits are what somebody else may do to the target build/a.json (or to build/tree), as functions of the target's path.
var edits = map[string]func(t *testing.T, p string){
	"replace": func(t *testing.T, p string) {
		put(t, p+".tmp", foreignBytes)
		must(t, os.Rename(p+".tmp", p))
	},
	"in-place": func(t *testing.T, p string) {
		f, err := os.OpenFile(p, os.O_WRONLY|os.O_TRUNC, 0)
		must(t, err)
		_, err = f.WriteString(foreignBytes)
		must(t, errors.Join(err, f.Close()))
	},
	"delete": func(t *testing.T, p string) { must(t, os.Remove(p)) },
	"into-tree": func(t *testing.T, p string) {
		put(t, filepath.Join(filepath.Dir(p), "tree/added"), foreignBytes)
	},
	"create-new": func(t *testing.T, p string) {
		put(t, filepath.Join(filepath.Dir(p), "../new/deep/c.txt"), foreignBytes)
	},
	"move-parent": func(t *testing.T, p string) {
		dir := filepath.Dir(p)
		must(t, os.Rename(dir, dir+".moved"))
		put(t, p, foreignBytes)
	},
}

// hookAt runs do once, before the operation at site is done.
func hookAt(site durable.Site, nth int, do func()) durable.FS {
	n := 0
	return durabletest.Wrap(durable.OS(), func(op durabletest.Op, run func() error) error {
		if op.Site == site {
			if n++; n == nth {
				do()
			}
		}
		return run()
	})
}

// lost fails the test unless the foreign bytes are at a target or in conflicts/, and what was old or new is whole.
func lost(t *testing.T, l *lab) string {
	t.Helper()
	found := ""
	for p, content := range show(t, l.root) {
		if content == foreignBytes {
			found = p
		}
	}
	for p, content := range show(t, l.path(reserved+"/conflicts")) {
		if content == foreignBytes {
			found = "conflicts/" + p
		}
	}
	return found
}

// TestForeignEdits: somebody else edits a target while the job runs, in the instant of its exchange, and after it. The
// job ends with a conflict, every other target is old, and the bytes are at the target or in conflicts/.
func TestForeignEdits(t *testing.T) {
	for _, when := range []string{"during-the-run", "at-the-exchange", "after-the-exchange"} {
		for name, edit := range edits {
			if when != "during-the-run" && (name == "create-new" || name == "move-parent") {
				continue // needs a place that the job has not made yet; the parent case is below
			}
			t.Run(when+"/"+name, func(t *testing.T) {
				var l *lab
				do := func() { edit(t, l.path("build/a.json")) }
				f := durable.OS()
				nth := 1
				if name == "into-tree" {
					nth = 3 // exchanges: a, b, tree
				}
				if when == "at-the-exchange" {
					f = hookAt("txn.publish.exchange", nth, do)
				}
				l = newLab(t, f, Options{BootID: "same"})
				l.seed()
				l.mustRun("b1")
				if when == "during-the-run" {
					do()
				}
				err := l.tx.Exchange(l.proofs)
				if when == "after-the-exchange" {
					must(t, err)
					do()
				} else if !errors.Is(err, ErrConflict) {
					t.Errorf("Exchange = %v, want ErrConflict", err)
				}
				d, err := l.tx.Undo()
				must(t, err)
				if d.Resolution != Conflicted && d.Resolution != RolledBackAll {
					t.Errorf("Undo = %+v", d)
				}
				if name != "delete" && lost(t, l) == "" {
					t.Errorf("the foreign bytes are gone: %v", show(t, l.root))
				}
				l.drop()
				l.recover(d.Resolution)
				l.retire(FateRolledBack)
				must(t, l.w.EmptyTrash())
				if name != "delete" && lost(t, l) == "" {
					t.Errorf("the foreign bytes are gone after Retire: %v", show(t, l.root))
				}
				got, want := show(t, l.root), oldState()
				for _, p := range []string{"rtl/b.v", "build/tree/one"} {
					if name != "move-parent" && got[p] != want[p] {
						t.Errorf("%s = %q, want %q", p, got[p], want[p])
					}
				}
				if when == "after-the-exchange" && (name == "replace" || name == "in-place") {
					if why := show(t, l.path(reserved+"/conflicts"))[job+"/why.json"]; !strings.Contains(why, `"target": "build/a.json"`) {
						t.Errorf("why.json = %s", why)
					}
				}
			})
		}
	}
}

// statAt is an FS that shows a protection at site something else than what is there: its control.
type statAt struct {
	durable.FS
	site durable.Site
	edit func(durable.Name, *durable.Stat)
}

func (f statAt) Stat(site durable.Site, at durable.Name) (durable.Stat, error) {
	st, err := f.FS.Stat(site, at)
	if site == f.site && err == nil {
		f.edit(at, &st)
	}
	return st, err
}

// movedParent is an FS on which the fresh lookup of build/ leads to where it was moved.
type movedParent struct{ durable.FS }

func (f movedParent) OpenDir(site durable.Site, at durable.Name) (durable.Handle, error) {
	if site == "txn.publish.lookup" && at.Name == "build" {
		at.Name = "build.moved"
	}
	return f.FS.OpenDir(site, at)
}

// TestForeignEditControls: each protection off, the same edit loses bytes or publishes over them.
func TestForeignEditControls(t *testing.T) {
	for _, tt := range []struct {
		name string
		off  func(l *lab)
		edit string
		when durable.Site
	}{
		{"late-pre-image", func(l *lab) {
			now, err := l.w.identify("test", l.a.targets[0].at())
			must(t, err)
			l.j.Outputs[0].Old = now
		}, "in-place", ""},
		{"displaced-object-not-compared", func(l *lab) {
			old := l.j.Outputs[0].Old
			l.w.fs = statAt{l.w.fs, "txn.publish.displaced", func(at durable.Name, st *durable.Stat) {
				if at.Name == "o0" {
					st.Ino, st.Btime, st.Size, st.Mtime = old.Ino, old.Btime, old.Size, old.MtimeNS
				}
			}}
		}, "replace", "txn.publish.exchange"},
		{"parent-not-looked-up-again", func(l *lab) { l.w.fs = movedParent{l.w.fs} }, "move-parent", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var l *lab
			f := durable.OS()
			if tt.when != "" {
				f = hookAt(tt.when, 1, func() { edits[tt.edit](t, l.path("build/a.json")) })
			}
			l = newLab(t, f, Options{})
			l.seed()
			l.mustRun("b1")
			if tt.when == "" {
				edits[tt.edit](t, l.path("build/a.json"))
			}
			tt.off(l)
			if err := l.tx.Exchange(l.proofs); err != nil {
				t.Fatalf("control: Exchange = %v, want it to go through", err)
			}
			if b, err := os.ReadFile(l.path("build/a.json")); err == nil && string(b) == foreignBytes && tt.edit != "move-parent" {
				t.Errorf("control: the edit is still at the target")
			}
		})
	}
}

// TestRetireCompares: an old file's last writer comes after the commit, through a descriptor opened before it.
// Control: without the comparison his bytes go with the backup.
func TestRetireCompares(t *testing.T) {
	for _, off := range []bool{false, true} {
		l := newLab(t, durable.OS(), Options{})
		l.seed()
		writer, err := os.OpenFile(l.path("build/a.json"), os.O_RDWR, 0)
		must(t, err)
		l.mustRun("b2")
		_, err = writer.WriteAt([]byte(foreignBytes), 0)
		must(t, errors.Join(err, writer.Close()))
		l.drop()
		if off {
			l.w.plan = trustBackups
		}
		if foreign := l.retire(FateCommitted); (len(foreign) == 1) == off || !off && foreign[0].Index != 0 {
			t.Errorf("comparison off %v: Retire says that it kept %+v", off, foreign)
		}
		must(t, l.w.EmptyTrash())
		l.is(newState())
		if got := lost(t, l); (got == "") != off {
			t.Errorf("comparison off %v: bytes written through an old descriptor are at %q", off, got)
		}
	}
}

// TestUndoOfDirectories: a directory that the job made goes, if nothing else lies in it; one that it only meant to make is
// somebody else's: for an output that was not written, or if he came first. The control is in the table: the first row shows
// that an empty one goes.
func TestUndoOfDirectories(t *testing.T) {
	for _, tt := range []struct {
		name    string
		foreign string // made by somebody else before the undo
		first   bool   // even before the publication, which is then a conflict
		want    []string
	}{
		{"alone", "elsewhere/", false, []string{"elsewhere/"}},
		{"foreign-name-inside", "made/deep/foreign", false, []string{"made/", "made/deep/", "made/deep/foreign"}},
		{"foreign-name-above", "made/foreign", false, []string{"made/", "made/foreign"}},
		{"not-made", "meant/", false, []string{"meant/"}},
		{"made-by-somebody-else", "made/", true, []string{"made/"}},
		{"both-made-by-somebody-else", "made/deep/", true, []string{"made/", "made/deep/"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, durable.OS(), Options{})
			must(t, l.admit(Spec{Name: "x", Target: "made/deep/x", Kind: File, MakeParents: true},
				Spec{Name: "y", Target: "meant/y", Kind: File, MakeParents: true, Optional: true}))
			must(t, l.begin(BeginOptions{}))
			l.tool()
			must(t, errors.Join(l.inspect(), l.seal(), l.tx.SyncStaged(l.proofs, nil)))
			if !tt.first {
				must(t, l.tx.Exchange(l.proofs))
			}
			if dir, ok := strings.CutSuffix(tt.foreign, "/"); ok {
				must(t, os.MkdirAll(l.path(dir), 0o755))
			} else {
				put(t, l.path(tt.foreign), foreignBytes)
			}
			if tt.first {
				if err := l.tx.Exchange(l.proofs); !errors.Is(err, ErrConflict) {
					t.Errorf("publication: %v", err)
				}
			}
			l.drop()
			l.recover(RolledBackAll)
			if got := slices.Sorted(maps.Keys(show(t, l.root))); !slices.Equal(got, tt.want) {
				t.Errorf("after the undo %q, want %q", got, tt.want)
			}
		})
	}
}

// TestQuarantine: what is not recognised is not touched, until an operator decides.
func TestQuarantine(t *testing.T) {
	l := newLab(t, durable.OS(), Options{})
	l.seed()
	l.mustRun("b2")
	l.drop()
	backup := l.path(reserved + "/jobs/" + job + "/o0")
	must(t, os.Rename(backup, backup+".away"))
	before := show(t, l.root)
	seen, err := l.w.Observe(l.j)
	must(t, err)
	d := Plan(l.j, seen, FateOpen)
	if err := l.w.Apply(l.j, d); d.Resolution != Quarantined || !errors.Is(err, ErrQuarantine) {
		t.Errorf("Plan without a backup = %+v, Apply = %v; want a quarantine", d, err)
	}
	if after := show(t, l.root); after["rtl/b.v"] != before["rtl/b.v"] || after["build/a.json"] != before["build/a.json"] {
		t.Errorf("a quarantine changed targets: %v", after)
	}
	must(t, os.Rename(l.path(reserved+"/jobs/"+job), l.path(reserved+"/conflicts/"+job)))
	l.recover(ByOperator)
	l.is(before)
}

// TestTakenName: what has the name of a job's directory in conflicts/, and is none, stays; the next name is used. The
// control is that name when it is free.
func TestTakenName(t *testing.T) {
	for name, take := range map[string]func(p string){
		"":     func(string) {},
		"file": func(p string) { put(t, p, "somebody's") },
		"link": func(p string) { must(t, os.Symlink(t.TempDir(), p)) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, durable.OS(), Options{BootID: "same"})
			l.seed()
			l.mustRun("b2")
			edits["replace"](t, l.path("build/a.json"))
			conflicts := l.path(reserved + "/conflicts/")
			take(conflicts + "/" + job)
			d, err := l.tx.Undo()
			must(t, err)
			l.drop()
			l.recover(d.Resolution) // finds what was kept
			kept := []string{job, job + ".1"}
			if name == "" {
				kept = kept[:1]
			}
			l.retire(FateRolledBack)
			l.clean(kept...)
			if d.Resolution != Conflicted || show(t, conflicts)[kept[len(kept)-1]+"/why.json"] == "" || lost(t, l) == "" {
				t.Errorf("Undo = %+v, conflicts %v", d, show(t, conflicts))
			}
		})
	}
}

// TestNotDecided: only a directory in conflicts/ is an operator's word.
func TestNotDecided(t *testing.T) {
	l := newLab(t, durable.OS(), Options{})
	l.seed()
	l.mustRun("b2")
	l.drop()
	must(t, os.RemoveAll(l.path(reserved+"/jobs/"+job)))
	put(t, l.path(reserved+"/conflicts/"+job), "a note")
	seen, err := l.w.Observe(l.j)
	must(t, err)
	if d := Plan(l.j, seen, FateOpen); d.Resolution != Quarantined {
		t.Errorf("a note in the place of the directory: %+v", d)
	}
	must(t, os.Remove(l.path(reserved+"/conflicts/"+job)))
	must(t, os.Mkdir(l.path(reserved+"/conflicts/"+job), 0o755))
	l.recover(ByOperator)
}

// TestTrash: Confined keeps for 24 h, deletion follows no link, copes with depth and with modes, and starts nothing early.
func TestTrash(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	l := newLab(t, durable.OS(), Options{Now: func() time.Time { return now }})
	l.seed()
	l.mustRun("begin")
	outside := filepath.Join(t.TempDir(), "outside")
	put(t, outside+"/kept", "x")
	must(t, os.Symlink(outside, filepath.Join(l.tx.Work(), "link")))
	must(t, os.Symlink(outside+"/kept", filepath.Join(l.tx.Work(), "file-link")))
	deep := l.tx.Work()
	for range 3 {
		must(t, os.MkdirAll(deep+strings.Repeat("/d", 100), 0o755))
		deep += strings.Repeat("/d", 100)
	}
	put(t, filepath.Join(l.tx.Work(), "locked/x"), "x")
	must(t, os.Chmod(filepath.Join(l.tx.Work(), "locked"), 0))
	l.drop()
	must(t, l.w.Trash(l.j, nil, []cgroup.Confined{cgrouptest.Confined(cgrouptest.Ref(job), "another node")}))
	must(t, l.w.EmptyTrash())
	names, err := os.ReadDir(l.path(reserved + "/trash"))
	must(t, err)
	if len(names) != 1 || !strings.HasPrefix(names[0].Name(), job+".until-") {
		t.Fatalf("trash of a confined job holds %v", names)
	}
	now = now.Add(24*time.Hour - time.Second)
	must(t, l.w.EmptyTrash())
	if names, err := os.ReadDir(l.path(reserved + "/trash")); err != nil || len(names) != 1 {
		t.Fatalf("a confined job was deleted early (%v)", err)
	}
	now = now.Add(time.Second)
	l.clean()
	if _, err := os.Stat(outside + "/kept"); err != nil {
		t.Errorf("deletion followed a link: %v", err)
	}
}

// follower is an FS that follows links to directories: the control of the trash.
type follower struct{ durable.FS }

func (f follower) Stat(s durable.Site, at durable.Name) (durable.Stat, error) {
	st, err := f.FS.Stat(s, at)
	if err == nil && st.Type == durable.Link && s == "txn.remove.stat" {
		st.Type, st.Mode = durable.Dir, 0o755
	}
	return st, err
}

func (f follower) OpenDir(s durable.Site, at durable.Name) (durable.Handle, error) {
	if to, err := os.Readlink(filepath.Join("/proc/self/fd", strconv.Itoa(int(at.Dir.File().Fd())), at.Name)); err == nil {
		return f.OpenRoot(s, to)
	}
	return f.FS.OpenDir(s, at)
}

func TestTrashControlFollowsLinks(t *testing.T) {
	l := newLab(t, durable.OS(), Options{})
	l.seed()
	l.mustRun("begin")
	outside := filepath.Join(t.TempDir(), "outside")
	put(t, outside+"/kept", "x")
	must(t, os.Symlink(outside, filepath.Join(l.tx.Work(), "link")))
	must(t, l.tx.Discard(l.proofs))
	l.w.fs = follower{l.w.fs}
	_ = l.w.EmptyTrash() // it fails at the link, after the damage
	l.w.fs = l.fs
	if _, err := os.Stat(outside + "/kept"); err == nil {
		t.Error("control: a deletion that follows links deleted nothing")
	}
}

func TestOrphans(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	l := newLab(t, durable.OS(), Options{Now: func() time.Time { return now }})
	jobs := l.path(reserved + "/jobs")
	put(t, jobs+"/r-read/work/x", "x")
	put(t, jobs+"/full/s0/out", foreignBytes)
	must(t, os.MkdirAll(jobs+"/empty/s0/deep", 0o755))
	must(t, os.Symlink("/etc/passwd", jobs+"/empty/s0/link"))
	want := map[string]Resolution{"full": Conflicted, "r-read": "", "empty": Discarded}
	names, err := l.w.Orphans()
	if err != nil || !slices.Equal(names, sortedKeys(want)) {
		t.Fatalf("Orphans = %q, %v", names, err)
	}
	for _, name := range names {
		end, err := l.w.Orphan(name), l.w.EndOrphan(name)
		if err != nil || end != want[name] {
			t.Errorf("the end of %q is %q (%v), want %q", name, end, err, want[name])
		}
	}
	must(t, l.w.EmptyTrash())
	if names, err := os.ReadDir(l.path(reserved + "/trash")); err != nil || len(names) != 1 {
		t.Errorf("a read's scratch is not kept for 24 h: %v (%v)", names, err)
	}
	now = now.Add(25 * time.Hour)
	l.clean("full")
	if lost(t, l) == "" {
		t.Error("an unknown job directory lost its files")
	}
}
