package txn

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
)

// loop makes a file system on a new image of its own, explicitly attached: mount -o loop could reuse a stale device.
func loop(t *testing.T, megabytes int64, mkfs ...string) string {
	t.Helper()
	dir := t.TempDir()
	img := filepath.Join(dir, "img")
	f, err := os.Create(img)
	must(t, err)
	must(t, errors.Join(f.Truncate(megabytes<<20), f.Close()))
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run(mkfs[0], append(mkfs[1:], img)...)
	dev := run("losetup", "--find", "--show", img)
	t.Cleanup(func() { run("losetup", "--detach", dev) })
	mnt := filepath.Join(dir, "mnt")
	must(t, os.Mkdir(mnt, 0o755))
	kind, _ := strings.CutPrefix(mkfs[0], "mkfs.")
	must(t, unix.Mount(dev, mnt, kind, 0, ""))
	t.Cleanup(func() {
		if err := unix.Unmount(mnt, 0); err != nil {
			t.Errorf("umount: %v", err)
			must(t, unix.Unmount(mnt, unix.MNT_DETACH))
		}
	})
	return mnt
}

// fill writes until the volume is full.
func fill(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	must(t, err)
	for size := 1 << 20; size > 0; size /= 2 {
		for {
			if _, err = f.Write(make([]byte, size)); err != nil {
				break
			}
		}
	}
	must(t, f.Close())
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the volume ended with %v", err)
	}
}

// TestFullVolume: on a full ext4 an admission with a minimum is refused, a job fails before anything changed, and a
// publication that is already staged goes through or is undone.
func TestFullVolume(t *testing.T) {
	mnt := loop(t, 16, "mkfs.ext4", "-q", "-m", "0", "-E", "nodiscard")
	l := newLabIn(t, mnt, durable.OS(), Options{MinFreeBytes: 64 << 10})
	l.seed()
	l.mustRun("b1")
	fill(t, mnt)
	if _, err := l.w.Admit(labSpecs); !errors.Is(err, ErrFull) {
		t.Errorf("Admit on a full volume = %v, want ErrFull", err)
	}
	err := l.tx.Exchange(l.proofs)
	if err == nil {
		err = l.tx.SyncTargets()
	}
	t.Logf("publication on a full volume: %v", err)
	if err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Errorf("publication on a full volume = %v, want success or ENOSPC", err)
	}
	if _, err := l.tx.Undo(); err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Undo on a full volume = %v, want success or ENOSPC", err)
	}
	if bad := whole(t, l); len(bad) > 0 {
		t.Errorf("after Undo: %q", bad)
	}
	must(t, os.Remove(filepath.Join(mnt, "filler")))
	if _, err := l.tx.Undo(); err != nil {
		t.Errorf("Undo once space is freed = %v", err)
	}
	got := show(t, l.root)
	delete(got, "lost+found/")
	for p, want := range oldState() {
		if got[p] != want {
			t.Errorf("%s = %q, want %q", p, got[p], want)
		}
	}
	if len(got) != len(oldState()) {
		t.Errorf("workspace holds %v", got)
	}
	l.drop()
	l.retire(FateRolledBack)
	must(t, l.w.EmptyTrash())

	// A job that begins on a full volume, with no minimum to refuse it.
	l.w.o.MinFreeBytes = 0
	fill(t, mnt)
	must(t, l.admit(labSpecs...))
	begun := l.begin(BeginOptions{Files: map[string][]byte{"_big": make([]byte, 64<<10)}})
	if !errors.Is(begun, unix.ENOSPC) {
		t.Errorf("Begin on a full volume = %v, want ENOSPC", begun)
	}
	l.clean()
}

// TestBtrfsIsRefused on a real one, before anything is written to it.
func TestBtrfsIsRefused(t *testing.T) {
	mnt := loop(t, 128, "mkfs.btrfs", "-q")
	w, err := Open(durable.OS(), mnt, Options{})
	var v *durable.VolumeError
	if !errors.As(err, &v) || v.FS != "btrfs" {
		t.Fatalf("Open on btrfs = %v, %v; want a VolumeError that names it", w, err)
	}
	if len(show(t, mnt)) != 0 {
		t.Errorf("Open left %v", show(t, mnt))
	}
}

// TestWholeTransactionOnXFS is the second volume of the matrix; ext4 and tmpfs are TestStraight.
func TestWholeTransactionOnXFS(t *testing.T) {
	mnt := loop(t, 320, "mkfs.xfs", "-q")
	l := newLabIn(t, mnt, durable.OS(), Options{})
	must(t, l.w.Probe())
	l.seed()
	l.mustRun("b2")
	l.is(newState())
	if _, err := l.tx.Undo(); err != nil {
		t.Errorf("Undo = %v", err)
	}
	l.is(oldState())
}

// TestMountedSide: a workspace whose .eda-sidecar is another mount of the same file system would meet EXDEV at the first
// exchange; it is refused at opening.
func TestMountedSide(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, reserved), 0o755))
	mount(t, t.TempDir(), filepath.Join(root, reserved))
	if w, err := Open(durable.OS(), root, Options{}); !errors.Is(err, unix.EXDEV) {
		t.Errorf("Open = %v, %v; want EXDEV", w, err)
	}
}
