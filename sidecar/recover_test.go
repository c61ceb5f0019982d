package sidecar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/cgroup/cgrouptest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable/durabletest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// TestDecide gives each reason for a quarantine its turn. Without it the job, whose tool had run, is discarded.
func TestDecide(t *testing.T) {
	sound := func() openJob {
		return openJob{
			row: ledger.Job{ID: "j", Phase: txn.WorkerRunning}, proof: "read", seen: txn.Seen{Job: txn.InJobs},
			journal: &txn.Journal{Job: "j", LandlockABI: minLandlock},
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*openJob)
		want   txn.Resolution
		reason string
	}{
		{"control", func(*openJob) {}, txn.Discarded, ""},
		{"disagree", func(o *openJob) { o.disagree = true }, txn.Quarantined, "edited the ledger"},
		{"disagree_decided", func(o *openJob) { o.disagree, o.seen.Job = true, txn.Decided }, txn.Quarantined, "edited the ledger"},
		{"unproven", func(o *openJob) { o.unproven = errors.New("it lives") }, txn.Quarantined, "it lives"},
		{"unproven_decided", func(o *openJob) { o.unproven, o.seen.Job = errors.New("it lives"), txn.Decided }, txn.Quarantined, "it lives"},
		{"unreadable", func(o *openJob) { o.unreadable = errors.New("version 9") }, txn.Quarantined, "version 9"},
		{"unreadable_decided", func(o *openJob) { o.unreadable, o.seen.Job = errors.New("version 9"), txn.Decided }, txn.ByOperator, ""},
		{"restored", func(o *openJob) { o.restored = true }, txn.Quarantined, "older ledger"},
		{"restored_publishing", func(o *openJob) { o.restored, o.row.Phase = true, txn.PublishingOutputs }, txn.Quarantined, "older ledger"},
		{"restored_committed", func(o *openJob) { o.restored, o.row.Phase = true, txn.Committed }, txn.RolledForward, ""},
		{"restored_decided", func(o *openJob) { o.restored, o.seen.Job = true, txn.Decided }, txn.ByOperator, ""},
		{"no_group", func(o *openJob) { o.proof = "" }, txn.Quarantined, "no group"},
		{"no_group_publishing", func(o *openJob) { o.proof, o.row.Phase = "", txn.PublishingOutputs }, txn.Discarded, ""},
		{"confined", func(o *openJob) { o.proof = "confined" }, txn.Discarded, ""},
		{"not_confined", func(o *openJob) { o.proof, o.journal.LandlockABI = "confined", minLandlock-1 }, txn.Quarantined, "not confined"},
		{"files", func(o *openJob) { o.seen.Outputs = make([]txn.SeenOutput, 1) }, txn.Quarantined, "not of this journal"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := sound()
			tt.change(&o)
			r, d := o.decide()
			if r.Resolution != tt.want || d.Resolution != tt.want || !strings.Contains(r.Reason, tt.reason) || (r.Reason != "") != (tt.reason != "") {
				t.Errorf("got %+v, %+v; want %s because of %q", r, d, tt.want, tt.reason)
			}
		})
	}
}

// newRecovery is a world with two targets that exist, and a check that its engines leave nothing behind.
func newRecovery(t *testing.T) *world {
	t.Helper()
	cgrouptest.Invariant(t)
	w := newWorld(t)
	w.write("a", "old")
	w.write("dir/b", "old")
	return w
}

// dies lets a process die in the call of kill_test.go.
func (w *world) dies(class, op string, after bool) {
	w.t.Helper()
	o := orders{Script: ": " + w.mark + " tool\n" + killedScript, Outs: killedOuts(), Die: class, N: 1, After: after}
	if op != "" {
		other := newWorld(w.t)
		other.write("a", "old")
		other.write("dir/b", "old")
		rep, _ := other.child(orders{Script: killedScript, Outs: killedOuts(), Die: class})
		o.N = 1 + slices.Index(rep.Ops, op)
	}
	if _, died := w.child(o); !died || o.N == 0 {
		w.t.Fatalf("no death at %s %q", class, op)
	}
}

// jobID is the id of the one job that the ledger or the workspace knows.
func (w *world) jobID(e *engine) (id string) {
	w.t.Helper()
	ok(w.t, e.Ledger.Events(context.Background(), ledger.Query{Kind: audit.Allow}, func(r ledger.Record) error {
		id = r.Job
		return nil
	}))
	return id
}

// TestRecover leaves real states behind, and compares what the next start makes of each with the table.
func TestRecover(t *testing.T) {
	const exchange = "Exchange txn.publish.exchange"
	trash := func(w *world) { // as if an operator had lost it
		for _, name := range w.side("jobs") {
			ok(w.t, os.RemoveAll(filepath.Join(w.dir, ".eda-sidecar", "jobs", name)))
		}
	}
	replace := func(w *world) { ok(w.t, os.Remove(filepath.Join(w.dir, "a"))); w.write("a", "theirs") }
	for _, tt := range []struct {
		name      string
		class, op string
		after     bool
		then      func(*world)
		phase     txn.Phase // in which it is found
		want      txn.Resolution
		proof     string
		targets   string
		kinds     string
		conflicts int
	}{
		{"begun", "fs", "Mkdir txn.mkdir", false, nil, txn.WorkerRunning, txn.Discarded, "read", allOld, "allow recovered rollback", 0},
		{"ran", "fs", "Move txn.seal.move", false, nil, txn.WorkerRunning, txn.Discarded, "read", allOld, "allow recovered rollback", 0},
		{"sealed", "fs", exchange, false, nil, txn.PublishingOutputs, txn.RolledBackAll, "earlier", allOld, "allow start recovered rollback", 0},
		{"half", "fs", exchange, true, nil, txn.PublishingOutputs, txn.RolledBackAll, "earlier", allOld, "allow start recovered rollback", 0},
		{"half_and_replaced", "fs", exchange, true, replace, txn.PublishingOutputs, txn.Conflicted, "earlier", "theirs old -", "allow start recovered rollback", 1},
		{"half_and_deleted", "fs", exchange, true, func(w *world) { ok(w.t, os.Remove(filepath.Join(w.dir, "a"))) }, txn.PublishingOutputs, txn.RolledBackAll, "earlier", allOld, "allow start recovered rollback", 0},
		{"sealed_and_gone", "fs", exchange, false, trash, txn.PublishingOutputs, txn.RolledBackAll, "earlier", allOld, "allow start recovered rollback", 0},
		{"half_and_gone", "fs", exchange, true, trash, txn.PublishingOutputs, txn.Quarantined, "", "new old -", "allow start", 0},
		{"committed", "fs", "Sync txn.b2.job", true, nil, txn.PublishingOutputs, txn.RolledBackAll, "earlier", allOld, "allow start recovered rollback", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newRecovery(t)
			w.dies(tt.class, tt.op, tt.after)
			if tt.then != nil {
				tt.then(w)
			}
			e := w.open()
			r := e.only()
			if r.Phase != tt.phase || r.Resolution != tt.want || tt.want != txn.Quarantined && r.Proof != tt.proof {
				t.Errorf("recovered %+v", r)
			}
			if w.targets() != tt.targets || len(w.side("conflicts")) != tt.conflicts {
				t.Errorf("targets %q, conflicts %v", w.targets(), w.side("conflicts"))
			}
			if got := e.kinds(r.Job); got != tt.kinds && got != strings.Replace(tt.kinds, "start ", "", 1) && got != strings.Replace(tt.kinds, "allow ", "allow start ", 1) {
				t.Errorf("events %q, want %q", got, tt.kinds)
			}
			if tt.want == txn.Quarantined {
				w.heldFor(e, r.Job)
				e.close()
				return
			}
			if data := e.recovered(r.Job); data["resolution"] != string(tt.want) || data["proof"] != tt.proof {
				t.Errorf("event %v", data)
			}
			e.want(job.OK, killedScript, killedOuts()...)
			e.close()
			w.again()
		})
	}
}

// heldFor wants a quarantined job to hold its session and its targets, and nobody else's.
func (w *world) heldFor(e *engine, id string) {
	w.t.Helper()
	busy := e.want(job.Busy, "echo taken > {x}", "x=free")
	if !strings.Contains(busy.Message, id) || !strings.Contains(busy.Message, "which waits for an operator") {
		w.t.Errorf("message %q", busy.Message)
	}
	row, err := e.Runner.OpenSession(context.Background(), me, "other")
	ok(w.t, err)
	run := func(target string, want job.Code) {
		req := w.request("echo taken > {x}", "x="+target)
		req.Session = row.ID
		if res := e.Runner.Run(context.Background(), req); res.Code != want {
			w.t.Errorf("a call of another session on %q: %s (%s), want %s", target, res.Code, res.Message, want)
		}
	}
	run("a", job.Busy)
	run("elsewhere", job.OK)
}

// TestCommitted finds a job whose commit is durable, and does not touch its targets: later writers are legal.
func TestCommitted(t *testing.T) {
	w := newRecovery(t)
	if _, died := w.child(orders{Script: killedScript, Outs: killedOuts(), Die: "commit", N: 6}); !died { // after the third COMMIT
		t.Fatal("the child lived")
	}
	w.write("a", "later")
	e := w.open()
	if r := e.only(); r.Resolution != txn.RolledForward || r.Proof != "earlier" || w.targets() != "later new new" {
		t.Errorf("recovered %+v, targets %q", r, w.targets())
	}
	if got := e.kinds(w.jobID(e)); got != "allow start commit recovered" {
		t.Errorf("events %q", got)
	}
	e.close()
	w.again()
	w.cfg.BackupRetention = time.Nanosecond
	e = w.open()
	if left := w.side("jobs"); len(left) > 0 || w.targets() != "later new new" {
		t.Errorf("after the retention: left %v, targets %q", left, w.targets())
	}
	e.close()
}

// TestOwned gives a workspace one engine at a time.
func TestOwned(t *testing.T) {
	w := newRecovery(t)
	e := w.open()
	_, err := w.try(seams{})
	var failed *job.Error
	if !errors.As(err, &failed) || failed.Code != job.Busy {
		t.Errorf("a second engine: %v", err)
	}
	if _, err := DryRun(t.Context(), w.cfg); !errors.As(err, &failed) || failed.Code != job.Busy {
		t.Errorf("a dry run beside it: %v", err)
	}
	e.want(job.OK, "echo new > {a}", "a=a")
	e.close()
	w.again()
}

// TestOneState: a copied workspace has the identity of the first, and its state directory, if that lies outside of both: one
// engine at a time has it.
func TestOneState(t *testing.T) {
	a, b := newRecovery(t), newRecovery(t)
	a.cfg.StateDir = filepath.Join(t.TempDir(), "state")
	b.cfg.StateDir = a.cfg.StateDir
	e := a.open()
	ok(t, os.CopyFS(filepath.Join(b.dir, ".eda-sidecar"), os.DirFS(filepath.Join(a.dir, ".eda-sidecar"))))
	_, err := b.try(seams{})
	var failed *job.Error
	if !errors.As(err, &failed) || failed.Code != job.Busy {
		t.Errorf("the copy beside the first: %v", err)
	}
	e.want(job.OK, "echo new > {a}", "a=a")
	e.close()
	b.open().close() // the control: alone it may
}

// TestDryRunOfNothing finds nothing in a workspace that was never used, and makes nothing.
func TestDryRunOfNothing(t *testing.T) {
	w := newWorld(t)
	found, err := DryRun(t.Context(), w.cfg)
	ok(t, err)
	entries, err := os.ReadDir(w.dir)
	ok(t, err)
	if found != nil || len(entries) > 0 {
		t.Errorf("found %v, made %v", found, entries)
	}
}

// TestOrphans keeps what somebody put into jobs/, and a read's scratch for a day. What holds no file goes.
func TestOrphans(t *testing.T) {
	w := newRecovery(t)
	w.open().close()
	w.write(".eda-sidecar/jobs/stranger/deep/file", "theirs")
	w.write(".eda-sidecar/jobs/r-read/work/file", "scratch")
	ok(t, os.MkdirAll(filepath.Join(w.dir, ".eda-sidecar/jobs/empty/deep"), 0o755))
	e := w.open()
	if r := e.Recovered; len(r) != 2 || r[0].Job != "empty" || r[0].Resolution != txn.Discarded || r[1].Job != "stranger" || r[1].Resolution != txn.Conflicted {
		t.Errorf("recovered %+v", r)
	}
	if names := w.side("conflicts"); !slices.Equal(names, []string{"stranger"}) {
		t.Errorf("conflicts holds %q", names)
	}
	kept, err := filepath.Glob(w.dir + "/.eda-sidecar/trash/r-read.until-*")
	if w.read(".eda-sidecar/conflicts/stranger/deep/file") != "theirs" || len(w.side("jobs")) > 0 || len(kept) != 1 || err != nil {
		t.Errorf("jobs %v, conflicts %v, trash %v", w.side("jobs"), w.side("conflicts"), w.side("trash"))
	}
	e.close()
	w.again()
}

// forge leaves the open row of a job of another process, with its directory, as an engine leaves them that dies while the
// tool runs. change makes its journal what the case needs.
func (w *world) forge(e *engine, change func(*txn.Journal)) (j *txn.Journal, dir string) {
	w.t.Helper()
	a, err := e.files.Admit([]txn.Spec{{Name: "a", Target: "a", Kind: txn.File}})
	ok(w.t, err)
	defer a.Close()
	id := uuid.Must(uuid.NewV7()).String()
	j = &txn.Journal{
		Version: 1, Job: id, Session: uuid.Must(uuid.NewV7()).String(), Tool: "run", Principal: me, LandlockABI: 7, BootID: e.bootID,
		Epoch: e.Ledger.Opening().Epoch, NewGen: 1, Outputs: a.Outputs(id), Groups: []cgroup.Ref{{Node: "x", BootID: "x"}},
	}
	change(j)
	ok(w.t, durably(e.Ledger.Begin(j, audit.Event{Kind: audit.Allow, Job: id, Session: j.Session, Tool: j.Tool, Principal: me})))
	tx, err := e.files.Begin(j, a, txn.BeginOptions{})
	ok(w.t, err)
	ok(w.t, os.WriteFile(filepath.Join(tx.Dir(), "s0", "out"), []byte("staged"), 0o644))
	ok(w.t, tx.Close())
	return j, tx.Dir()
}

// group makes a group that this engine does not know.
func (e *engine) group(name string) cgroup.Ref {
	e.w.t.Helper()
	ok(e.w.t, os.Mkdir(filepath.Join(e.groups.Capabilities().Dir, name), 0o755))
	refs, err := e.groups.Leftovers(context.Background(), "")
	ok(e.w.t, err)
	for _, ref := range refs {
		if filepath.Base(ref.Path) == name {
			return ref
		}
	}
	e.w.t.Fatalf("group %s is not in %v", name, refs)
	return cgroup.Ref{}
}

// ended kills what is in g, proves it, and removes the group.
func ended(t testing.TB, g *cgroup.Group) {
	t.Helper()
	_, err := g.Kill(context.Background())
	ok(t, err)
	empty, err := g.WaitEmpty(context.Background())
	ok(t, err)
	g.Remove(empty)
}

// TestProofs tells by a group's identity what may be said of it.
func TestProofs(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*cgroup.Ref)
		abi    int
		want   txn.Resolution
		proof  string
	}{
		{"gone", func(*cgroup.Ref) {}, 7, txn.Discarded, "gone"},
		{"rebooted", func(r *cgroup.Ref) { r.BootID = "another" }, 7, txn.Discarded, "reboot"},
		{"another_node", func(r *cgroup.Ref) { r.BootID, r.Node = "another", "another" }, 7, txn.Discarded, "confined"},
		{"another_namespace", func(r *cgroup.Ref) { r.CgroupNS = "1" }, 7, txn.Discarded, "confined"},
		{"another_parent", func(r *cgroup.Ref) { r.Parent++ }, 3, txn.Discarded, "confined"},
		{"another_device", func(r *cgroup.Ref) { r.Dev++ }, 7, txn.Discarded, "confined"},
		{"not_confined", func(r *cgroup.Ref) { r.Parent++ }, 2, txn.Quarantined, ""},
		{"not_confined_but_gone", func(*cgroup.Ref) {}, 2, txn.Discarded, "gone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newRecovery(t)
			e := w.open()
			ref := e.group("job.0")
			ok(t, os.Remove(e.groups.Capabilities().Dir+"/job.0"))
			e.group("other.0") // keeps the directory of groups beyond the engine
			tt.change(&ref)
			j, dir := w.forge(e, func(j *txn.Journal) { j.Groups, j.LandlockABI = []cgroup.Ref{ref}, tt.abi })
			ok(t, e.Close())
			e = w.open()
			got := e.only()
			if got.Resolution != tt.want || tt.want != txn.Quarantined && got.Proof != tt.proof {
				t.Errorf("recovered %+v, want %s by %s", got, tt.want, tt.proof)
			}
			if tt.want == txn.Quarantined {
				w.heldFor(e, j.Job)
				if w.read(strings.TrimPrefix(dir, w.dir)+"/s0/out") != "staged" {
					t.Error("staging was touched")
				}
				e.close()
				return
			}
			if kept := w.side("trash"); (tt.proof == "confined") != (len(kept) == 1) {
				t.Errorf("trash %v", kept)
			}
			e.want(job.OK, "echo new > {a}", "a=a")
			e.close()
			w.again()
		})
	}
}

// TestConfined recovers a job whose processes live on where this engine cannot see them. They write wherever they can; no
// target changes. In the control they are not confined, and one does.
func TestConfined(t *testing.T) {
	changed := func(t *testing.T, confined bool) bool {
		w := newRecovery(t)
		far, err := os.MkdirTemp("/dev/shm", "far") // names another directory of groups
		ok(t, err)
		t.Cleanup(func() { ok(t, os.RemoveAll(far)) })
		elsewhere, err := cgroup.Open(t.Context(), cgroup.Options{Workspace: far, NoReaper: true})
		ok(t, err)
		defer func() { ok(t, elsewhere.Close(context.Background())) }()
		g, err := elsewhere.Create(t.Context(), "villain", 0, cgroup.Limits{})
		ok(t, err)
		defer ended(t, g)
		e := w.open()
		j, dir := w.forge(e, func(j *txn.Journal) {
			ref := g.Ref()
			ref.Parent++
			j.Groups = []cgroup.Ref{ref}
		})
		script := ": " + w.mark + " tool\ntrap '' TERM HUP; exec 3>>../s0/out; while :; do echo evil >&3; echo evil > " + w.dir + "/a; echo evil > ../../../../a; ln -f " +
			w.dir + "/a taken; echo evil >> taken; echo > " + dir + "/../../state/ledger.db; done"
		c := cgroup.Command{
			Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: cgroup.BaseEnv(dir+"/tmp", "/usr/bin:/bin"), Dir: dir + "/work",
			Sandbox: cgroup.Sandbox{Job: []string{dir + "/work", dir + "/tmp", dir + "/s0"}, Workspace: w.dir, UID: -1, GID: -1},
		}
		if !confined {
			c.Sandbox.Job = append(c.Sandbox.Job, w.dir)
			c.Args[2] = strings.Replace(script, "echo > "+dir+"/../../state/ledger.db", ":", 1)
		}
		_, err = g.Start(t.Context(), c)
		ok(t, err)
		staged := filepath.Join(dir, "s0", "out")
		grown := func(path string) func() bool {
			return func() bool { info, err := os.Stat(path); return err == nil && info.Size() > 100 }
		}
		until(t, "the villain's work", grown(staged))
		e.close()
		if confined && w.read("a") != "old" {
			t.Fatalf("target %q before the crash", w.read("a"))
		}

		e = w.open()
		if r := e.only(); r.Proof != "confined" || r.Resolution != txn.Discarded {
			t.Errorf("recovered %+v", r)
		}
		if e.kinds(j.Job) != "allow recovered rollback" || e.recovered(j.Job)["proof"] != "confined" {
			t.Errorf("events %q, %v", e.kinds(j.Job), e.recovered(j.Job))
		}
		trash := filepath.Join(w.dir, ".eda-sidecar", "trash")
		kept := w.side("trash")
		if len(kept) != 1 || !strings.HasPrefix(kept[0], j.Job+".until-") || len(w.side("jobs")) > 0 {
			t.Fatalf("trash %v, jobs %v", kept, w.side("jobs"))
		}
		res := e.Runner.Run(t.Context(), w.request("echo next > {a}", "a=a"))
		if confined && res.Code != job.OK {
			t.Errorf("the next call: %s %s", res.Code, res.Message)
		}
		staged = filepath.Join(trash, kept[0], "s0", "out")
		ok(t, os.Truncate(staged, 0))
		until(t, "the villain's work in the trash", grown(staged))
		if len(w.alive()) == 0 {
			t.Fatal("no villain is alive")
		}
		if _, err := e.Ledger.Verify(t.Context()); err != nil {
			t.Error(err)
		}
		ok(t, e.Close())
		if !slices.Equal(w.side("trash"), kept) {
			t.Errorf("trash %v after Close, before it %v", w.side("trash"), kept)
		}
		return w.read("a") != "next"
	}
	if !changed(t, false) {
		t.Error("control: a villain that may write everywhere changed no target")
	}
	if changed(t, true) {
		t.Error("the villain changed a target")
	}
}

// TestUnprovenAtStart keeps the keys of a job whose group is not known to be empty, and serves the rest. The next start
// that can prove it decides. A file in the place of cgroup.events says that somebody lives.
func TestUnprovenAtStart(t *testing.T) {
	w := newRecovery(t)
	e := w.open()
	ref := e.group("job.0")
	j, dir := w.forge(e, func(j *txn.Journal) { j.Groups = []cgroup.Ref{ref} })
	events := filepath.Join(e.groups.Capabilities().Dir, "job.0", "cgroup.events")
	ok(t, e.Close())
	w.write("lie", "populated 1\nfrozen 0\n")
	ok(t, unix.Mount(filepath.Join(w.dir, "lie"), events, "", unix.MS_BIND, ""))
	mounted := true
	defer func() {
		if mounted {
			ok(t, unix.Unmount(events, unix.MNT_DETACH))
		}
	}()
	dry, err := DryRun(t.Context(), w.cfg)
	ok(t, err)
	if len(dry) != 1 || dry[0].Resolution != txn.Discarded || dry[0].If == "" {
		t.Errorf("a dry run, which kills nobody, said %+v", dry)
	}
	s, err := w.try(seams{adopt: 200 * time.Millisecond})
	ok(t, err)
	e = &engine{s, w}
	if r := e.only(); r.Resolution != txn.Quarantined || !strings.Contains(r.Reason, "alive") {
		t.Errorf("recovered %+v", r)
	}
	if e.kinds(j.Job) != "allow" || e.phase(j.Job) != txn.WorkerRunning || w.read(strings.TrimPrefix(dir, w.dir)+"/s0/out") != "staged" {
		t.Errorf("events %q, phase %s, jobs %v", e.kinds(j.Job), e.phase(j.Job), w.side("jobs"))
	}
	w.heldFor(e, j.Job)
	ok(t, unix.Unmount(events, unix.MNT_DETACH))
	mounted = false
	ok(t, e.Close())
	e = w.open()
	if r := e.only(); r.Resolution != txn.Discarded || r.Proof != "read" && r.Proof != "gone" {
		t.Errorf("recovered %+v", r)
	}
	e.want(job.OK, "echo new > {a}", "a=a")
	e.close()
	w.again()
}

// TestRestored puts a ledger back that was copied while a job published, which has committed since. What is open in it is
// not what the files say: it is quarantined at each start, until an operator decides. By its row alone it would be undone.
func TestRestored(t *testing.T) {
	w := newRecovery(t)
	saved := filepath.Join(t.TempDir(), "state")
	other := newRecovery(t)
	way, _ := other.child(orders{Script: killedScript, Outs: killedOuts(), Die: "fs"})
	n := 1 + slices.Index(way.Ops, "Sync txn.b2.job") // after the last exchange
	rep, _ := w.child(orders{Script: ": " + w.mark + " tool\n" + killedScript, Outs: killedOuts(), Die: "fs", N: n, Copy: saved})
	id := rep.Result.Job
	if rep.Result.Code != job.OK || n == 0 {
		t.Fatalf("%+v", rep)
	}
	e := w.open()
	later := e.want(job.OK, "echo later > {x}", "x=later")
	e.close()
	state := filepath.Join(w.dir, ".eda-sidecar", "state")
	ok(t, os.RemoveAll(state))
	var failed *job.Error
	if _, err := DryRun(t.Context(), w.cfg); !errors.Is(err, ledger.ErrFresh) || !errors.As(err, &failed) {
		t.Errorf("a dry run without the ledger: %v", err)
	}
	ok(t, os.CopyFS(state, os.DirFS(saved)))

	e = w.open()
	if len(e.Recovered) != 2 || e.Recovered[0].Job != id || e.Recovered[0].Resolution != txn.Quarantined || e.Recovered[1].Job != later.Job || e.Recovered[1].Resolution != txn.Conflicted {
		t.Errorf("recovered %+v; want the open job quarantined, and a directory that the ledger does not know kept", e.Recovered)
	}
	w.heldFor(e, id)
	e.close()
	e = w.open()
	if r := e.only(); r.Job != id || r.Resolution != txn.Quarantined || r.Phase != txn.PublishingOutputs {
		t.Errorf("the second start recovered %+v", r)
	}
	w.heldFor(e, id)
	if w.targets() != allNew {
		t.Errorf("targets %q: a committed job was undone", w.targets())
	}
	e.close()

	side := filepath.Join(w.dir, ".eda-sidecar")
	ok(t, os.Rename(filepath.Join(side, "jobs", id), filepath.Join(side, "conflicts", id))) // the operator's word
	e = w.open()
	if r := e.only(); r.Resolution != txn.ByOperator || e.phase(id) != txn.RolledBack || w.targets() != allNew {
		t.Errorf("recovered %+v, phase %s, targets %q", r, e.phase(id), w.targets())
	}
	if why := e.data(id, audit.Rollback)["reason"]; !strings.Contains(fmt.Sprint(why), "nothing was undone") {
		t.Errorf("the rollback says %q", why)
	}
	e.want(job.OK, "echo last > {a}; echo last > {b}; echo last > {c}", killedOuts()...)
	e.close()
	w.again()
}

// TestSharedQuarantine starts although two quarantined jobs have one session and one target, or name no group.
func TestSharedQuarantine(t *testing.T) {
	w := newRecovery(t)
	e := w.open()
	session := ""
	for range 2 {
		w.forge(e, func(j *txn.Journal) {
			j.LandlockABI = 2
			if session == "" {
				session = j.Session
			}
			j.Session = session
		})
	}
	w.forge(e, func(j *txn.Journal) { j.Groups = nil })
	e.close()
	opened := make(chan error, 1)
	var s *Sidecar
	go func() {
		var err error
		s, err = w.try(seams{})
		opened <- err
	}()
	select {
	case err := <-opened:
		ok(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("the start hangs")
	}
	for _, r := range s.Recovered {
		if r.Resolution != txn.Quarantined {
			t.Errorf("recovered %+v", r)
		}
	}
	if len(s.Recovered) != 3 {
		t.Errorf("recovered %+v", s.Recovered)
	}
	ok(t, s.Close())
}

// TestFullAtStart leaves undecided what there is no room for, holds its keys also while admission would refuse its
// targets, and decides at the next start. A start that cannot sync ends.
func TestFullAtStart(t *testing.T) {
	w := newRecovery(t)
	w.dies("fs", "Exchange txn.publish.exchange", true)
	w.cfg.MinFreeBytes = 1 << 50
	full := func(site durable.Site) seams {
		return seams{fs: durabletest.Wrap(durable.OS(), func(op durabletest.Op, do func() error) error {
			if op.Site == site {
				return unix.ENOSPC
			}
			return do()
		})}
	}
	s, err := w.try(full("txn.undo.exchange"))
	ok(t, err)
	e := &engine{s, w}
	if r := e.only(); r.Resolution != txn.Quarantined || !strings.Contains(r.Reason, "room") {
		t.Errorf("recovered %+v", r)
	}
	for _, target := range []string{"a", "dir/b", "made/c"} {
		if holders := s.table.Holders(job.PathKey(chain(w.dir, target))); len(holders) != 1 {
			t.Errorf("holders of %s: %+v", target, holders)
		}
	}
	e.close()
	if _, err := w.try(full("txn.undo.sync")); !errors.Is(err, txn.ErrSync) { // no second try tells
		t.Errorf("a start whose sync failed: %v", err)
	}
	w.cfg.MinFreeBytes = 0
	e = w.open()
	if r := e.only(); r.Resolution != txn.RolledBackAll || w.targets() != allOld {
		t.Errorf("recovered %+v, targets %q", r, w.targets())
	}
	e.close()
	w.again()
}

// TestChain names a target as admission does.
func TestChain(t *testing.T) {
	w := newRecovery(t)
	e := w.open()
	defer e.close()
	for _, target := range []string{"a", "dir/b", "dir/new", "made/deep/c"} {
		a, err := e.files.Admit([]txn.Spec{{Name: "a", Target: target, Kind: txn.File, MakeParents: true}})
		ok(t, err)
		if got, want := chain(w.dir, target), a.Chains()[0]; !slices.Equal(got, want) {
			t.Errorf("%s: got %+v, want %+v", target, got, want)
		}
		a.Close()
	}
}

// TestUnreadable quarantines a row whose document a newer program may have written, and verify names it, until an
// operator decides.
func TestUnreadable(t *testing.T) {
	w := newRecovery(t)
	e := w.open()
	j, dir := w.forge(e, func(j *txn.Journal) { j.Groups = []cgroup.Ref{e.group("job.0")} })
	ok(t, e.Close())
	db := filepath.Join(w.dir, ".eda-sidecar", "state", "ledger.db") // closed, so all of it is in this file
	text, err := os.ReadFile(db)
	ok(t, err)
	was := []byte(`{"version":1,"job":"` + j.Job)
	if bytes.Count(text, was) != 1 {
		t.Fatalf("%d documents in the ledger", bytes.Count(text, was))
	}
	ok(t, os.WriteFile(db, bytes.Replace(text, was, []byte(`{"version":9,"job":"`+j.Job), 1), 0o600))
	for range 2 {
		e = w.open()
		if r := e.only(); r.Resolution != txn.Quarantined || !strings.Contains(r.Reason, "version 9") {
			t.Errorf("recovered %+v", r)
		}
		e.want(job.Busy, "echo taken > {x}", "x=free") // its session alone: nobody knows its targets
		if w.read(strings.TrimPrefix(dir, w.dir)+"/s0/out") != "staged" {
			t.Error("staging was touched")
		}
		var fault *audit.Fault
		if _, err := e.Ledger.Verify(t.Context()); !errors.As(err, &fault) || fault.Job != j.Job {
			t.Errorf("verify: %v", err)
		}
		ok(t, e.Close())
	}
	side := filepath.Join(w.dir, ".eda-sidecar")
	ok(t, os.Rename(filepath.Join(side, "jobs", j.Job), filepath.Join(side, "conflicts", j.Job)))
	e = w.open()
	if r := e.only(); r.Resolution != txn.ByOperator || e.kinds(j.Job) != "allow recovered rollback" {
		t.Errorf("recovered %+v, events %q", r, e.kinds(j.Job))
	}
	e.want(job.OK, "echo new > {a}", "a=a")
	e.close()
	w.again()
}

// TestSessionsAcrossStarts keeps what was destroyed destroyed, and the rest as it was.
func TestSessionsAcrossStarts(t *testing.T) {
	w := newRecovery(t)
	e := w.open()
	gone, err := e.Runner.OpenSession(t.Context(), me, "gone")
	ok(t, err)
	kept, err := e.Runner.OpenSession(t.Context(), me, "kept")
	ok(t, err)
	ok(t, e.Runner.CloseSession(t.Context(), job.Who{Name: me}, gone.ID))
	e.close()
	e = w.open()
	var failed *job.Error
	if _, err := e.Runner.Session(t.Context(), job.Who{Name: me}, gone.ID); !errors.As(err, &failed) || failed.Code != job.SessionDestroyed {
		t.Errorf("the destroyed session: %v", err)
	}
	for name, id := range map[string]string{"gone": gone.ID, "kept": kept.ID} {
		row, err := e.Runner.OpenSession(t.Context(), me, name)
		ok(t, err)
		if (row.ID == id) != (name == "kept") {
			t.Errorf("session %s: was %s, is %s", name, id, row.ID)
		}
	}
	e.close()
}
