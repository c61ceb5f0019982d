package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// TestVolumesRefused: volumes on which transactions would break their word are refused by name, before anything runs.
func TestVolumesRefused(t *testing.T) {
	for name, c := range map[string]struct {
		make func(t *testing.T) string
		says string
	}{
		"btrfs": {func(t *testing.T) string { return volume(t, 128, "mkfs.btrfs", "-q") }, "btrfs"},
		"overlay": {func(t *testing.T) string {
			dir := t.TempDir()
			for _, d := range []string{"lower", "upper", "work", "merged"} {
				ok(t, os.Mkdir(filepath.Join(dir, d), 0o755))
			}
			// The upper layer may be on a volume that is no overlay itself.
			mount(t, "overlay", filepath.Join(dir, "merged"), "overlay", 0, "lowerdir="+dir+"/lower,upperdir="+dir+"/upper,workdir="+dir+"/work")
			return filepath.Join(dir, "merged")
		}, "overlayfs"},
		"read_only": {func(t *testing.T) string { return t.TempDir() }, "read-only"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorldIn(t, c.make(t))
			if name == "read_only" {
				mount(t, w.dir, w.dir, "", unix.MS_BIND, "")
				ok(t, unix.Mount("", w.dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
			}
			w.flags = append(w.flags, "--state-dir", filepath.Join(t.TempDir(), "state"))
			w.refused = true
			before := w.snapshot()
			a := w.sh("echo new >{x}", "x=build/a.v")
			w.want(a, exitUsage, job.InvalidArgument)
			if !strings.Contains(a.err, c.says) || !strings.Contains(a.err, "hint: ") {
				t.Errorf("it does not say %q: %v", c.says, a)
			}
			w.want(w.do("recover"), exitUsage, "")
			if a := w.do("doctor"); a.exit != exitNoSupport || !strings.Contains(a.out, "FAIL workspace") || !strings.Contains(a.out, c.says) {
				t.Errorf("doctor: %v", a)
			}
			if after := w.snapshot(); after != before {
				t.Errorf("changed:\n%s\nwas\n%s", after, before)
			}
		})
	}
}

// TestKernelVolumesRefused: what the kernel keeps for itself is no workspace, and nothing is made there: on cgroupfs a
// directory would be a group.
func TestKernelVolumesRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.refused = true
	group := filepath.Join(cgroup2(t), "e2e-"+w.mark)
	ok(t, os.Mkdir(group, 0o755))
	t.Cleanup(func() { ok(t, os.Remove(group)) }) // fails if anything was made in it
	for name, dir := range map[string]string{"cgroupfs": group, "procfs": "/proc/sys", "sysfs": "/sys/kernel"} {
		a := w.do("recover", "-w", dir, "--state-dir", filepath.Join(t.TempDir(), "state"))
		if a.exit != exitUsage || !strings.Contains(a.err, "workspace on "+name) || !strings.Contains(a.err, "put it on a local or block volume") {
			t.Errorf("in %s: %v", dir, a)
		}
	}
}

// TestVolumes: the control of those refused, a whole transaction on the others.
func TestVolumes(t *testing.T) {
	for name, make := range map[string]func(t *testing.T) string{
		"ext4": func(t *testing.T) string { return volume(t, 32, "mkfs.ext4", "-q", "-F") },
		"xfs":  func(t *testing.T) string { return volume(t, 320, "mkfs.xfs", "-q") },
		"tmpfs": func(t *testing.T) string {
			dir := t.TempDir()
			mount(t, "tmpfs", dir, "tmpfs", 0, "size=128m")
			return dir
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorldIn(t, make(t))
			w.config("min_free_bytes: 1MiB")
			w.want(w.sh(three, threeOuts...), exitOK, job.OK)
			w.is("build/a.v", "new\n", "build/b.v", "new\n", "new/c.v", "new\n")
			w.want(w.sh("echo third >{x}; exit 3", "x=build/a.v"), exitFailed, job.ToolFailed)
			w.is("build/a.v", "new\n")
			w.sound()
		})
	}
}

// fill writes a file until the volume has no block left, and returns what frees it again.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	ok(t, err)
	for size := 1 << 20; size >= 1; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	ok(t, f.Close())
	return func() {
		ok(t, os.Remove(f.Name()))
		eventually(t, "room", func() bool { // the kernel frees a tool's Landlock rules late, and they hold on to the file
			var st unix.Statfs_t
			ok(t, unix.Statfs(dir, &st))
			return int64(st.Bavail)*st.Bsize > 4<<20
		})
	}
}

// TestFullVolume: without room a call is refused, or ends in all old or all new; once there is room the next one works.
func TestFullVolume(t *testing.T) {
	for _, state := range []string{"elsewhere", "on the same volume"} {
		t.Run(strings.ReplaceAll(state, " ", "_"), func(t *testing.T) {
			t.Parallel()
			w := newWorldIn(t, volume(t, 24, "mkfs.ext4", "-q", "-F", "-m", "0", "-N", "1024", "-E", "nodiscard"))
			if state == "elsewhere" {
				w.flags = append(w.flags, "--state-dir", filepath.Join(t.TempDir(), "state"))
			}
			w.config("min_free_bytes: 1MiB", "min_free_inodes: 8")
			w.want(w.sh("echo first >{x}", "x=build/a.v"), exitOK, job.OK)
			full := func(what string, a answer) {
				t.Helper()
				if a.exit != exitRetry || a.out != "" && a.Code != job.WorkspaceFull || !strings.Contains(a.err+a.out, "free space") {
					t.Errorf("%s: %v", what, a)
				}
				w.is("build/a.v", "first\n", "build/b.v", "old\n")
			}

			// less than the minimum
			free := fill(t, w.dir)
			ok(t, os.Truncate(w.path("filler"), fileSize(t, w.path("filler"))-(768<<10)))
			full("below the minimum", w.sh("echo second >{x}", "x=build/a.v"))
			free()
			w.want(w.sh("echo first >{x}", "x=build/a.v"), exitOK, job.OK)

			// nothing at all
			free = fill(t, w.dir)
			full("full", w.sh("echo second >{x}", "x=build/a.v"))
			if a := w.do("doctor"); strings.Contains(a.out, "install it") || !strings.Contains(a.out, "free space") {
				t.Errorf("doctor on a full volume: %v", a)
			}
			free()
			w.want(w.sh("echo first >{x}", "x=build/a.v"), exitOK, job.OK)

			// filled by the tool
			a := w.sh("head -c 100M /dev/zero >{x}", "x=build/a.v")
			w.want(a, exitRetry, job.WorkspaceFull)
			w.is("build/a.v", "first\n")

			// filled by somebody else while the tool runs
			ok(t, os.Mkdir(w.path("ctl"), 0o755))
			r := w.command(nil, w.shArgs("echo second >{x}; echo second >{y}; until [ -e ctl/go ]; do sleep 0.01; done", "x=build/a.v", "y=build/b.v")...).start()
			w.until("staging", w.staged)
			ok(t, os.WriteFile(w.path("ctl/gone"), nil, 0o644))
			free = fill(t, w.dir)
			ok(t, os.Rename(w.path("ctl/gone"), w.path("ctl/go")))
			a = r.wait()
			t.Logf("NOTE filled during the run: %s, rolled back %t", a.Code, a.RolledBack)
			switch {
			case a.Code == job.OK:
				w.is("build/a.v", "second\n", "build/b.v", "second\n")
			case a.RolledBack:
				w.is("build/a.v", "first\n", "build/b.v", "old\n")
			}
			if a.exit != exitOf(a.Code) || a.exit == exitUsage || a.Code == job.Internal {
				t.Errorf("filled during the run: %v", a)
			}
			free()
			w.recovered()
			if a.Code == job.OK {
				w.is("build/a.v", "second\n", "build/b.v", "second\n")
			} else {
				w.is("build/a.v", "first\n", "build/b.v", "old\n")
			}
			w.want(w.sh("echo third >{x}", "x=build/a.v"), exitOK, job.OK)
			w.sound()
		})
	}
}

// TestFullState: a session that cannot be recorded for want of room is refused as that, and made once there is room.
func TestFullState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mnt := volume(t, 24, "mkfs.ext4", "-q", "-F", "-m", "0", "-N", "1024", "-E", "nodiscard")
	w.flags = append(w.flags, "--state-dir", filepath.Join(mnt, "state"))
	s := w.launch(nil, "--auth", "local")
	w.until("the server serves", func() bool { return s.log.address("serving") != "" })
	s.mcp = s.log.address("serving")
	c := s.connect(nil)
	free := fill(t, mnt)
	a := toolAnswer{Result: job.Result{Code: job.OK}}
	for i := 0; i < 1000 && a.Code == job.OK; i++ { // until the room that the ledger has is used up
		a = s.must(c, "session_open", nil)
	}
	if a.Code != job.WorkspaceFull || strings.Contains(a.Message, `""`) || !strings.Contains(a.Hint, "free space") {
		t.Errorf("on a full volume: %+v", a.Result)
	}
	free()
	if a := s.must(c, "session_open", nil); a.Code != job.OK {
		t.Errorf("with room: %+v", a.Result)
	}
	if exit := s.stop(); exit != 0 {
		t.Errorf("exit %d: %s", exit, s.log)
	}
	w.sound()
}

func fileSize(t *testing.T, file string) int64 {
	t.Helper()
	info, err := os.Stat(file)
	ok(t, err)
	return info.Size()
}

// TestMountedTargets: what lies on another mount cannot be exchanged, though its device be the same; it is refused before
// the tool runs. The control is the same call after the mount is gone.
func TestMountedTargets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("build/c.v", "old\n")
	ok(t, os.MkdirAll(w.path("real"), 0o755))
	w.write("real/a.v", "old\n")
	for what, c := range map[string]struct{ source, at, kind string }{
		"bind of a directory": {w.path("real"), w.path("build"), ""},
		"bind of a target":    {w.path("real/a.v"), w.path("build/a.v"), ""},
		"tmpfs":               {"tmpfs", w.path("build"), "tmpfs"},
	} {
		var flags uintptr
		if c.kind == "" {
			flags = unix.MS_BIND
		}
		ok(t, unix.Mount(c.source, c.at, c.kind, flags, ""))
		a := w.sh("echo new >{x}", "x=build/a.v")
		ok(t, unix.Unmount(c.at, 0))
		if a.exit != exitUsage || a.Code != job.InvalidArgument || !strings.Contains(a.Message, "mount") {
			t.Errorf("%s: %v", what, a)
		}
		w.ordered(a.Job, "deny")
		w.is("build/a.v", "old\n", "real/a.v", "old\n")
	}
	w.want(w.sh("echo new >{x}", "x=build/a.v"), exitOK, job.OK)
	w.is("build/a.v", "new\n")
	w.sound()
}
