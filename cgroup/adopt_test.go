package cgroup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/cgroup/internal/witness"
)

// crash leaves everything as a killed sidecar would: the Parent is closed, its group lives on.
func (w *world) crash(g *Group) {
	w.close(w.p)
	g.closeFiles()
}

// leftover starts a daemon in a group and crashes; the clean-up kills by the path.
func (w *world) leftover() (Ref, string) {
	w.t.Helper()
	w.next++
	g, err := w.p.Create(context.Background(), "left", w.next, Limits{})
	ok(w.t, err)
	_, err = g.Start(context.Background(), w.command("sleep"))
	ok(w.t, err)
	ref, dir := g.Ref(), filepath.Join(w.p.site.Mount, g.Ref().Path)
	w.t.Cleanup(func() {
		_ = os.WriteFile(dir+"/cgroup.kill", []byte("1"), 0) // gone, if all went well
		until(w.t, "removal", func() bool { return unix.Rmdir(dir) != unix.EBUSY })
	})
	w.crash(g)
	return ref, dir
}

func TestAdoptKillsAndProves(t *testing.T) {
	w := newWorld(t, Options{})
	ref, _ := w.leftover()
	w.open(Options{})
	refs, err := w.p.Leftovers(t.Context(), "")
	ok(t, err)
	if len(refs) != 1 || refs[0] != ref {
		t.Fatalf("leftovers %+v, want %+v", refs, ref)
	}
	a, err := w.p.Adopt(t.Context(), ref)
	if err != nil || a.Group == nil || a.Group.Ref() != ref || len(w.marked()) != 1 {
		t.Fatalf("adopted %+v, %v", a, err)
	}
	if _, err := a.Group.Start(t.Context(), w.command("exit", "0")); !errors.Is(err, ErrClosed) {
		t.Errorf("start in an adopted group: %v", err)
	}
	e := w.prove(a.Group)
	if !e.Proves(ref) || len(w.marked()) > 0 {
		t.Errorf("proof %+v, alive %v", e, w.marked())
	}
	if refs, err := w.p.Leftovers(t.Context(), ""); err != nil || len(refs) > 0 {
		t.Errorf("leftovers %v, %v", refs, err) // it is ours now
	}
	a.Group.Remove(e)
	until(t, "removal", func() bool { return w.p.Stats().Removing == 0 })
	if a, err = w.p.Adopt(t.Context(), ref); err != nil || a.Empty.How() != witness.Gone || !a.Empty.Proves(ref) {
		t.Errorf("gone: %+v, %v", a, err)
	}
}

func TestAdoptBelievesOnlyWhatItSees(t *testing.T) {
	w := newWorld(t, Options{})
	ref, _ := w.leftover()
	w.open(Options{})
	for _, c := range []struct {
		name     string
		edit     func(*Ref)
		how      How
		confined bool
	}{
		{"rebooted", func(r *Ref) { r.BootID = "other" }, witness.Reboot, false},
		{"other_node", func(r *Ref) { r.BootID, r.Node = "other", "other" }, "", true},
		{"other_device", func(r *Ref) { r.Dev++ }, "", true},
		{"other_parent", func(r *Ref) { r.Parent++ }, "", true},
		{"no_parent", func(r *Ref) { r.Path = "/no/such" }, "", true},
		{"other_inode", func(r *Ref) { r.Inode++ }, "", true},
		{"absent", func(r *Ref) { r.Path += "x" }, witness.Gone, false},
		{"absent_other_namespace", func(r *Ref) { r.Path += "x"; r.CgroupNS = "1" }, "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := ref
			c.edit(&r)
			adopted, err := w.p.Adopt(t.Context(), r)
			ok(t, err)
			seen, err := Look(t.Context(), w.p.o, "", []Ref{r})
			ok(t, err)
			for _, a := range []Adopted{adopted, seen[r]} {
				if a.Group != nil || a.Empty.How() != c.how || a.Confined.Covers(r) != c.confined || a.Empty.Proves(r) == c.confined {
					t.Errorf("%+v", a)
				}
			}
		})
	}
	if len(w.marked()) != 1 {
		t.Error("the group was touched")
	}
	if _, err := w.p.Adopt(t.Context(), Ref{}); err == nil {
		t.Error("the zero Ref was adopted")
	}
	r := ref
	r.CgroupNS = "1" // reachable is enough
	a, err := w.p.Adopt(t.Context(), r)
	if err != nil || a.Group == nil || !w.prove(a.Group).Proves(r) {
		t.Errorf("%+v, %v", a, err)
	}
	a.Group.Remove(w.prove(a.Group))
}

// TestLook touches nobody, and claims death only where nobody is.
func TestLook(t *testing.T) {
	w := newWorld(t, Options{})
	ref, dir := w.leftover()
	look := func() Adopted {
		t.Helper()
		seen, err := Look(t.Context(), w.p.o, "", nil) // it is found
		ok(t, err)
		if _, found := seen[ref]; !found || len(seen) != 1 {
			t.Fatalf("found %+v, want %+v", seen, ref)
		}
		return seen[ref]
	}
	if a := look(); a != (Adopted{}) || len(w.marked()) != 1 {
		t.Errorf("of a living group: %+v, alive %v", a, w.marked())
	}
	ok(t, os.WriteFile(dir+"/cgroup.kill", []byte("1"), 0)) // the control: now nobody is
	until(t, "death", func() bool { return look().Empty.Proves(ref) })
	if a := look(); a.Empty.How() != witness.Read || a.Group != nil {
		t.Errorf("of an empty group: %+v", a)
	}
	if _, err := Look(t.Context(), Options{Parent: t.TempDir()}, "", []Ref{ref}); err == nil {
		t.Error("a look where no group can be seen")
	}
}

// A group that took the name of an old one is never killed.
func TestAnotherInodeIsNeverKilled(t *testing.T) {
	w := newWorld(t, Options{})
	old, dir := w.leftover()
	ok(t, os.WriteFile(dir+"/cgroup.kill", []byte("1"), 0))
	until(t, "removal", func() bool { return unix.Rmdir(dir) == nil })
	w.open(Options{})
	g, err := w.p.Create(t.Context(), "left", w.next, Limits{}) // the same name
	ok(t, err)
	_, err = g.Start(t.Context(), w.command("sleep"))
	ok(t, err)
	if g.Ref().Path != old.Path || g.Ref().Inode == old.Inode {
		t.Fatalf("%+v, %+v", g.Ref(), old)
	}
	a, err := w.p.Adopt(t.Context(), old)
	if err != nil || !a.Confined.Covers(old) || len(w.marked()) != 1 {
		t.Errorf("%+v, %v, alive %v", a, err, w.marked())
	}
	old.Inode = g.Ref().Inode // control
	a, err = w.p.Adopt(t.Context(), old)
	ok(t, err)
	w.prove(a.Group)
	if len(w.marked()) > 0 {
		t.Error("control: but for the inode the stranger must die")
	}
	a.Group.Remove(w.prove(a.Group))
	g.Remove(w.prove(g))
}

// Kill of a group whose directory is another one, or holds this process, is refused whoever asks.
func TestKillRefusesWhatIsNotOurs(t *testing.T) {
	w := newWorld(t, Options{})
	g := w.create()
	g.ref.Inode++
	if err := (heldGroup{g}).kill(); err == nil {
		t.Error("another inode was killed")
	}
	g.ref.Inode--
	w.p.own[g.ref.Inode] = true
	if err := (heldGroup{g}).kill(); err == nil {
		t.Error("our own group was killed")
	}
	delete(w.p.own, g.ref.Inode)
	if len(w.p.own) == 0 {
		t.Error("this process is in no group")
	}
}

// A group is removed with its own proof only.
func TestRemove(t *testing.T) {
	w := newWorld(t, Options{})
	g := w.create()
	dir := filepath.Join(w.p.site.Mount, g.Ref().Path)
	if err := unix.Mkdir(filepath.Join(dir, "child"), 0o755); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("a group in a group: %v, want EAGAIN", err)
	}
	g.Remove(Empty{}) // no proof: nothing happens
	other := w.create()
	g.Remove(w.prove(other)) // nor with another group's
	if s := w.p.Stats(); s.Groups != 2 {
		t.Errorf("%+v", s)
	}
	g.Remove(w.prove(g))
	until(t, "removal", func() bool { _, err := os.Stat(dir); return errors.Is(err, os.ErrNotExist) })
	if _, err := g.Usage(); err == nil {
		t.Error("usage of a removed group")
	}
}

// The group's directory vanishes under us: ENODEV on the held file is a proof, and says how.
func TestRemovedByAnother(t *testing.T) {
	w := newWorld(t, Options{})
	g := w.create()
	ok(t, unix.Rmdir(filepath.Join(w.p.site.Mount, g.Ref().Path)))
	if e := w.prove(g); e.How() != witness.Removed {
		t.Errorf("%+v", e)
	}
}

func TestUnprovenIsSwept(t *testing.T) {
	w := newWorld(t, Options{})
	disk := frozenDisk(t)
	file := filepath.Join(disk.dir, "f")
	g := w.create()
	c := w.command("append", file)
	c.Sandbox.Job = append(c.Sandbox.Job, disk.dir)
	_, err := g.Start(t.Context(), c)
	ok(t, err)
	size := func() int64 {
		info, err := os.Stat(file)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	until(t, "first byte", func() bool { return size() > 0 })
	disk.freeze()
	until(t, "state D", func() bool {
		s := g.kernel.survivors()
		return len(s) == 1 && s[0].State == "D"
	})
	_, err = g.Kill(t.Context())
	ok(t, err) // control: the kernel took the kill, and the writer lives: success of the kill is no proof
	if len(g.kernel.survivors()) == 0 {
		t.Error("control: the writer is dead although it cannot die")
	}
	var u *UnprovenError
	if _, err := g.WaitEmpty(deadline(t, 100*time.Millisecond)); !errors.As(err, &u) || u.Reason != Uninterruptible || len(u.Survivors) != 1 {
		t.Fatalf("%v", err)
	}
	proofs := make(chan Empty, 2)
	w.p.Sweep(g, func(e Empty) { proofs <- e })
	if s := w.p.Stats(); s.Unproven != 1 {
		t.Errorf("%+v", s)
	}
	w.prove(w.create()) // other jobs are not held up
	disk.thaw()
	select {
	case e := <-proofs:
		if !e.Proves(g.Ref()) || len(w.marked()) > 0 {
			t.Errorf("%+v, alive %v", e, w.marked())
		}
	case <-time.After(15 * time.Second):
		t.Fatal("the sweeper did not prove")
	}
	until(t, "end of the sweep", func() bool { return w.p.Stats().Unproven == 0 })
}

func TestFrozenByV1(t *testing.T) {
	w := newWorld(t, Options{})
	v1 := t.TempDir()
	ok(t, unix.Mount("freezer", v1, "cgroup", 0, "freezer"))
	t.Cleanup(func() { ok(t, unix.Unmount(v1, 0)) })
	ice := filepath.Join(v1, filepath.Base(w.p.caps.Dir))
	ok(t, os.Mkdir(ice, 0o755))
	t.Cleanup(func() { until(t, "removal", func() bool { return unix.Rmdir(ice) == nil }) })
	put := func(name, value string) { ok(t, os.WriteFile(filepath.Join(ice, name), []byte(value), 0)) }
	t.Cleanup(func() { put("freezer.state", "THAWED") })
	g, p := w.start("sleep")
	put("cgroup.procs", itoa(p.PID()))
	put("freezer.state", "FROZEN")
	_, err := g.Kill(t.Context())
	ok(t, err)
	var u *UnprovenError
	if _, err := g.WaitEmpty(deadline(t, 100*time.Millisecond)); !errors.As(err, &u) || u.Reason != Uninterruptible {
		t.Errorf("%v", err)
	}
	put("freezer.state", "THAWED")
	w.prove(g)
	g, _ = w.start("sleep") // the v2 freezer does not stop a kill
	ok(t, writeAt(fd(g.dir), "cgroup.freeze", "1"))
	until(t, "freeze", func() bool { text, err := g.kernel.events(); return err == nil && text == "populated 1\nfrozen 1\n" })
	w.prove(g)
}
