package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func root(t *testing.T, o FS, dir string) Handle {
	t.Helper()
	h, err := o.OpenRoot("test", dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// must runs a system set-up step; a missing capability fails the test.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestBeneath: no lookup leaves its directory. Control: without the resolve flags every one of them succeeds.
func TestBeneath(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "in/real"), 0o755))
	must(t, os.MkdirAll(filepath.Join(dir, "in/mnt"), 0o755))
	must(t, os.Mkdir(filepath.Join(dir, "out"), 0o755))
	must(t, os.Symlink("../out", filepath.Join(dir, "in/link")))
	must(t, os.Symlink(".", filepath.Join(dir, "in/self")))
	must(t, unix.Mount(filepath.Join(dir, "out"), filepath.Join(dir, "in/mnt"), "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(filepath.Join(dir, "in/mnt"), 0)) })

	open := OS().(*osFS)
	open.resolve = 0
	for _, tt := range []struct {
		name string
		path string
		want error
	}{
		{"dotdot", "..", unix.EXDEV},
		{"absolute", "/", unix.EXDEV},
		{"through-link", "self/real", unix.ELOOP},
		{"through-magic-link", "../../../../../../proc/self/cwd", unix.EXDEV},
		{"bind-mount", "mnt", unix.EXDEV},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at := Name{root(t, OS(), filepath.Join(dir, "in")), tt.path}
			if _, err := OS().OpenDir("test", at); !errors.Is(err, tt.want) {
				t.Errorf("OpenDir(%q) = %v, want %v", tt.path, err, tt.want)
			}
			at = Name{root(t, open, filepath.Join(dir, "in")), tt.path}
			if tt.name == "through-magic-link" {
				return // ends in a link, which O_NOFOLLOW refuses by itself
			}
			h, err := open.OpenDir("test", at)
			if err != nil {
				t.Fatalf("control: OpenDir(%q) without flags = %v, want success", tt.path, err)
			}
			must(t, h.Close())
		})
	}
	if _, err := OS().OpenDir("test", Name{root(t, OS(), filepath.Join(dir, "in")), "link"}); err == nil {
		t.Error("OpenDir followed a final link")
	}
}

func TestStatKnowsMountsAndTypes(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), "12345")
	write(t, filepath.Join(dir, "mounted"), "")
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	must(t, os.Symlink("nowhere", filepath.Join(dir, "link")))
	must(t, unix.Mount(filepath.Join(dir, "file"), filepath.Join(dir, "mounted"), "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(filepath.Join(dir, "mounted"), 0)) })
	o := OS()
	h := root(t, o, dir)
	self, err := o.Stat("test", Name{Dir: h})
	must(t, err)
	for name, want := range map[string]Type{"file": Regular, "fifo": Other, "link": Link, "mounted": Regular} {
		st, err := o.Stat("test", Name{h, name})
		if err != nil || st.Type != want || st.Btime == 0 {
			t.Errorf("Stat(%q) = %+v, %v; want type %s with a birth time", name, st, err, want)
		}
		if foreign := st.Mount != self.Mount; foreign != (name == "mounted") || st.MountRoot != (name == "mounted") {
			t.Errorf("Stat(%q): mount %d (root %v), directory's is %d", name, st.Mount, st.MountRoot, self.Mount)
		}
	}
	if _, err := o.Stat("test", Name{h, "none"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat of nothing = %v", err)
	}
}

func TestRenames(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), "A")
	write(t, filepath.Join(dir, "b"), "B")
	o := OS()
	h := root(t, o, dir)
	must(t, o.Exchange("test", Name{h, "a"}, Name{h, "b"}))
	if err := o.Move("test", Name{h, "a"}, Name{h, "b"}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Move onto a name = %v, want EEXIST", err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "b"))
	if err != nil || string(got) != "A" {
		t.Errorf("b holds %q (%v), want A", got, err)
	}
	must(t, o.Move("test", Name{h, "a"}, Name{h, "c"}))
	must(t, o.Replace("test", Name{h, "b"}, Name{h, "c"}))
	names, err := o.List("test", h, 0)
	if err != nil || strings.Join(names, " ") != "c" {
		t.Errorf("List = %q, %v; want c", names, err)
	}
}

func TestListIsBounded(t *testing.T) {
	dir := t.TempDir()
	for i := range 1000 {
		write(t, filepath.Join(dir, fmt.Sprintf("%04d", i)), "")
	}
	h := root(t, OS(), dir)
	for _, tt := range []struct{ limit, want int }{{0, 1000}, {7, 7}, {2000, 1000}} {
		names, err := OS().List("test", h, tt.limit)
		if err != nil || len(names) != tt.want {
			t.Errorf("List(limit %d) = %d names, %v; want %d", tt.limit, len(names), err, tt.want)
		}
	}
}

// TestBarrier: everything is awaited, the first error in order wins, and no more than the pool and the caller run at once.
func TestBarrier(t *testing.T) {
	o := OS()
	var running, most, done atomic.Int64
	first, second := errors.New("first"), errors.New("second")
	var ops []func() error
	for i := range 100 {
		ops = append(ops, func() error {
			n := running.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			defer running.Add(-1)
			done.Add(1)
			switch i {
			case 40:
				return first
			case 70:
				return second
			}
			return nil
		})
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := o.Barrier("test", ops...); !errors.Is(err, first) {
				t.Errorf("Barrier = %v, want the first error in order", err)
			}
		})
	}
	wg.Wait()
	if done.Load() != 300 {
		t.Errorf("%d operations ran, want all 300", done.Load())
	}
	if m := most.Load(); m > poolSize+3 {
		t.Errorf("%d operations at once, want at most %d", m, poolSize+3)
	}
}

const childEnv = "EDA_SIDECAR_DURABLE_CHILD"

// TestMain is also the child that inherits descriptors: it waits until its stdin ends.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		buf := make([]byte, 1)
		for {
			if _, err := os.Stdin.Read(buf); err != nil {
				return
			}
		}
	}
	os.Exit(m.Run())
}

// TestOwner: one owner; the error names him; a child does not inherit the lock; age does not matter.
// Control: without O_CLOEXEC a child keeps a dead owner's lock.
func TestOwner(t *testing.T) {
	for _, tt := range []struct {
		name    string
		cloexec int
		want    error
	}{
		{"cloexec", unix.O_CLOEXEC, nil},
		{"control-inherited", 0, ErrLocked},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			o := OS().(*osFS)
			o.cloexec = tt.cloexec
			h := root(t, o, dir)
			l, err := Own(o, h)
			must(t, err)
			if l.Previous != (Owner{}) {
				t.Errorf("new lock has previous owner %+v", l.Previous)
			}
			me := Owner{WorkspaceID: "w", Instance: "i-1", Epoch: 7, BootID: "b"}
			must(t, l.Write(me))
			longAgo := time.Unix(1, 0)
			must(t, os.Chtimes(filepath.Join(dir, OwnerFile), longAgo, longAgo))
			var owned *OwnedError
			if _, err := Own(o, h); !errors.As(err, &owned) || owned.Owner != me || !errors.Is(err, ErrLocked) {
				t.Fatalf("second Own = %v, want an OwnedError that names %+v", err, me)
			}
			child := exec.Command(os.Args[0])
			child.Env = append(os.Environ(), childEnv+"=1")
			stdin, err := child.StdinPipe()
			must(t, err)
			must(t, child.Start())
			t.Cleanup(func() {
				must(t, stdin.Close())
				must(t, child.Wait())
			})
			must(t, l.Release())
			next, err := Own(o, h)
			if !errors.Is(err, tt.want) {
				t.Fatalf("Own beside a child of the last owner = %v, want %v", err, tt.want)
			}
			if err == nil {
				if next.Previous != me {
					t.Errorf("previous owner = %+v, want %+v", next.Previous, me)
				}
				must(t, next.Release())
			}
		})
	}
}

func TestOwnerRefusesGarbage(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, OwnerFile), "{")
	if l, err := Own(OS(), root(t, OS(), dir)); err == nil {
		t.Errorf("Own with an unreadable record = %+v, want an error", l)
	}
}

// lying is a volume that says yes and does something else.
type lying struct {
	FS
	exchange func(FS, Name, Name) error
	move     func(FS, Name, Name) error
}

func (l lying) Exchange(s Site, a, b Name) error {
	if l.exchange != nil {
		return l.exchange(l.FS, a, b)
	}
	return l.FS.Exchange(s, a, b)
}

func (l lying) Move(s Site, from, to Name) error {
	if l.move != nil {
		return l.move(l.FS, from, to)
	}
	return l.FS.Move(s, from, to)
}

type noLock struct{ FS }

func (noLock) Lock(_ Site, at Name) (Handle, error) {
	return OS().OpenFile("test", Name{at.Dir, "file2"})
}

type noLease struct{ FS }

func (noLease) Lease(Site, Handle) error { return nil }

type noBtime struct{ FS }

func (n noBtime) Stat(s Site, at Name) (Stat, error) {
	st, err := n.FS.Stat(s, at)
	st.Btime = 0
	return st, err
}

// TestProbe: real volumes pass, liars do not. The silent ones, which return no error, are the controls: a probe that
// trusts errors would let them pass.
func TestProbe(t *testing.T) {
	plain := func(f FS, a, b Name) error { return f.Replace("test", a, b) }
	nothing := func(FS, Name, Name) error { return nil }
	for _, tt := range []struct {
		name string
		dir  string
		fs   FS
		want error
	}{
		{"ext4", t.TempDir(), OS(), nil},
		{"tmpfs", shm(t), OS(), nil},
		{"exchange-does-nothing", t.TempDir(), lying{FS: OS(), exchange: nothing}, ErrVolume},
		{"exchange-is-a-plain-rename", t.TempDir(), lying{FS: OS(), exchange: plain}, ErrVolume},
		{"noreplace-replaces", t.TempDir(), lying{FS: OS(), move: plain}, ErrVolume},
		{"exchange-einval", t.TempDir(), lying{FS: OS(), exchange: func(FS, Name, Name) error { return unix.EINVAL }}, unix.EINVAL},
		{"noreplace-enosys", t.TempDir(), lying{FS: OS(), move: func(FS, Name, Name) error { return unix.ENOSYS }}, unix.ENOSYS},
		{"no-lock", t.TempDir(), noLock{OS()}, ErrVolume},
		{"no-lease", t.TempDir(), noLease{OS()}, ErrVolume},
		{"no-btime", t.TempDir(), noBtime{OS()}, ErrVolume},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := Probe(tt.fs, root(t, tt.fs, tt.dir)); !errors.Is(err, tt.want) {
				t.Errorf("Probe = %v, want %v", err, tt.want)
			}
		})
	}
}

func shm(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "eda-sidecar-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

type scripted struct {
	FS
	magic uint32
}

func (s scripted) Statfs(Site, Handle) (Volume, error) { return Volume{Magic: s.magic}, nil }

func TestVolumesByName(t *testing.T) {
	for _, tt := range []struct {
		name             string
		magic            uint32
		workspace, state bool
	}{
		{"ext4", unix.EXT4_SUPER_MAGIC, true, true},
		{"xfs", unix.XFS_SUPER_MAGIC, true, true},
		{"tmpfs", unix.TMPFS_MAGIC, true, true},
		{"btrfs", unix.BTRFS_SUPER_MAGIC, false, true},
		{"bcachefs", unix.BCACHEFS_SUPER_MAGIC, false, true},
		{"overlayfs", unix.OVERLAYFS_SUPER_MAGIC, false, true},
		{"NFS", unix.NFS_SUPER_MAGIC, false, false},
		{"9p", unix.V9FS_MAGIC, false, false},
		{"SMB", unix.SMB2_SUPER_MAGIC, false, false},
		{"SMB", unix.CIFS_SUPER_MAGIC, false, false},
		{"Ceph", unix.CEPH_SUPER_MAGIC, false, false},
		{"FUSE", unix.FUSE_SUPER_MAGIC, true, false},
		{"cgroupfs", unix.CGROUP2_SUPER_MAGIC, false, false},
		{"cgroupfs", unix.CGROUP_SUPER_MAGIC, false, false},
		{"procfs", unix.PROC_SUPER_MAGIC, false, false},
		{"sysfs", unix.SYSFS_MAGIC, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := scripted{OS(), tt.magic}
			h := root(t, f, t.TempDir())
			if got, err := OnCgroupfs(f, h); got != (tt.name == "cgroupfs") || err != nil {
				t.Errorf("on cgroupfs: %t, %v", got, err)
			}
			for use, got := range map[string]error{"workspace": CheckWorkspace(f, h), "state directory": CheckState(f, h)} {
				want := map[string]bool{"workspace": tt.workspace, "state directory": tt.state}[use]
				var v *VolumeError
				if want != (got == nil) || got != nil && (!errors.As(got, &v) || v.FS != tt.name || v.Use != use || v.Fix == "") {
					t.Errorf("%s on %s: %v, want accepted %v", use, tt.name, got, want)
				}
			}
		})
	}
}

// TestMend gives back what was taken from the owner, and nothing that somebody chose: not what is narrower for others, not
// another user's, not what a link leads to.
func TestMend(t *testing.T) {
	dir := t.TempDir()
	f := OS()
	h := root(t, f, dir)
	for _, tt := range []struct {
		name      string
		was, want os.FileMode
		uid       int
	}{
		{"taken", 0, 0o711, os.Geteuid()},
		{"half", 0o511, 0o711, os.Geteuid()},
		{"narrow", 0o700, 0o700, os.Geteuid()},
		{"wide", 0o777, 0o777, os.Geteuid()},
		{"theirs", 0, 0, 65534},
	} {
		p := filepath.Join(dir, tt.name)
		must(t, os.WriteFile(p, nil, 0o600))
		must(t, errors.Join(os.Chown(p, tt.uid, -1), os.Chmod(p, tt.was)))
		must(t, Mend(f, Name{h, tt.name}, 0o711))
		if info, err := os.Lstat(p); err != nil || info.Mode().Perm() != tt.want {
			t.Errorf("%s: %v, %v, want %v", tt.name, info.Mode(), err, tt.want)
		}
	}
	must(t, os.Chmod(filepath.Join(dir, "taken"), 0))
	must(t, os.Symlink("taken", filepath.Join(dir, "link")))
	must(t, errors.Join(Mend(f, Name{h, "link"}, 0o711), Mend(f, Name{h, "absent"}, 0o711)))
	if info, err := os.Stat(filepath.Join(dir, "taken")); err != nil || info.Mode().Perm() != 0 {
		t.Errorf("behind a link: %v, %v", info.Mode(), err)
	}
	must(t, os.Chmod(dir, 0))
	must(t, Mend(f, Name{Dir: h}, 0o700))
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("an open directory: %v, %v", info.Mode(), err)
	}
}
