package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func itoa(n int) string { return strconv.Itoa(n) }

// disk is an ext4 on a loop device that can be frozen.
type disk struct {
	t    testing.TB
	dir  string
	thaw func() // once
}

const (
	fiFreeze = 0xc0045877 // FIFREEZE of linux/fs.h
	fiThaw   = 0xc0045878
)

func frozenDisk(t *testing.T) *disk {
	t.Helper()
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	ok(t, os.WriteFile(image, nil, 0o600))
	ok(t, os.Truncate(image, 8<<20))
	command := func(args ...string) string {
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v, %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	command("mkfs.ext4", "-q", "-F", image)
	loop := command("losetup", "--find", "--show", image)
	t.Cleanup(func() { command("losetup", "-d", loop) })
	ok(t, unix.Mount(loop, dir, "ext4", 0, ""))
	t.Cleanup(func() { // what was in state D lets go of the mount when it has died
		until(t, "unmount", func() bool { return unix.Unmount(dir, 0) == nil })
	})
	f, err := os.Open(dir)
	ok(t, err)
	d := &disk{t: t, dir: dir}
	d.thaw = sync.OnceFunc(func() {
		if err := unix.IoctlSetInt(int(f.Fd()), fiThaw, 0); err != nil && err != unix.EINVAL { // EINVAL: not frozen
			t.Error(err)
		}
		closeFile(f)
	})
	t.Cleanup(d.thaw)
	return d
}

func (d *disk) freeze() {
	f, err := os.Open(d.dir)
	ok(d.t, err)
	defer closeIt(d.t, f)
	ok(d.t, unix.IoctlSetInt(int(f.Fd()), fiFreeze, 0))
}
