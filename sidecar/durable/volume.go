package durable

import (
	"cmp"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	workspaceFix = "put it on a local or block volume (ext4, xfs)"
	stateFix     = "give --state-dir a local volume"
	noExchange   = "which has no atomic exchange"
	cgroupfs     = "cgroupfs"
)

// refusal says what a file system is called and why it cannot carry a workspace (empty: let the probe decide) or a state directory.
type refusal struct{ name, workspace, state string }

const (
	passesLandlock = "its subvolume ioctls pass Landlock"
	remote         = "SQLite's WAL needs memory shared by all openers"
	kernels        = "it is the kernel's own and keeps no files"
)

// refusals by statfs f_type (statfs(2), linux/magic.h). FUSE is left to [Probe].
func refusals(magic uint32) refusal {
	return map[uint32]refusal{
		unix.BTRFS_SUPER_MAGIC:     {"btrfs", passesLandlock, ""},
		unix.BCACHEFS_SUPER_MAGIC:  {"bcachefs", passesLandlock, ""},
		unix.OVERLAYFS_SUPER_MAGIC: {"overlayfs", "inode numbers and directory renames are not stable there", ""},
		unix.NFS_SUPER_MAGIC:       {"NFS", noExchange, remote},
		unix.V9FS_MAGIC:            {"9p", noExchange, remote},
		unix.CIFS_SUPER_MAGIC:      {"SMB", noExchange, remote},
		unix.SMB2_SUPER_MAGIC:      {"SMB", noExchange, remote},
		unix.SMB_SUPER_MAGIC:       {"SMB", noExchange, remote},
		unix.CEPH_SUPER_MAGIC:      {"Ceph", noExchange, remote},
		unix.FUSE_SUPER_MAGIC:      {"FUSE", "", remote},
		unix.CGROUP2_SUPER_MAGIC:   {cgroupfs, kernels, kernels},
		unix.CGROUP_SUPER_MAGIC:    {cgroupfs, kernels, kernels},
		unix.PROC_SUPER_MAGIC:      {"procfs", kernels, kernels},
		unix.SYSFS_MAGIC:           {"sysfs", kernels, kernels},
	}[magic]
}

// CheckWorkspace refuses by name the volumes that cannot carry a workspace, with a [*VolumeError].
func CheckWorkspace(fs FS, dir Handle) error {
	v, err := fs.Statfs("durable.volume.workspace", dir)
	if r := refusals(v.Magic); err == nil && r.workspace != "" {
		err = &VolumeError{Use: "workspace", FS: r.name, Why: r.workspace, Fix: workspaceFix}
	}
	return err
}

// CheckState refuses by name the volumes that are not local, as SQLite's WAL needs one, with a [*VolumeError].
func CheckState(fs FS, dir Handle) error {
	v, err := fs.Statfs("durable.volume.state", dir)
	if r := refusals(v.Magic); err == nil && r.state != "" {
		err = &VolumeError{Use: "state directory", FS: r.name, Why: r.state, Fix: stateFix}
	}
	return err
}

// OnCgroupfs reports whether dir is in a cgroup file system, of either version.
func OnCgroupfs(fs FS, dir Handle) (bool, error) {
	v, err := fs.Statfs("durable.volume.cgroupfs", dir)
	return err == nil && refusals(v.Magic).name == cgroupfs, err
}

// Probe tries every operation that a transaction rests on, in the empty directory dir, and looks at the effects:
// ceph-fuse ignored rename flags without an errno (tracker.ceph.com/issues/54733). It returns a [*VolumeError].
// What it made stays in dir, for the caller to delete.
func Probe(fs FS, dir Handle) error {
	p := &prober{fs: fs, dir: dir}
	err := p.run()
	if err == nil {
		return nil
	}
	why := "an operation that transactions rest on does not work"
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
		why = noExchange
	}
	return &VolumeError{Use: "workspace", Why: why, Fix: workspaceFix, Err: err}
}

type prober struct {
	fs  FS
	dir Handle
}

func (p *prober) at(name string) Name { return Name{p.dir, name} }

func (p *prober) run() error {
	for _, name := range []string{"file1", "file2"} {
		f, err := p.fs.Create("durable.probe.create", p.at(name), 0o600)
		if err != nil {
			return err
		}
		if err := errors.Join(p.fs.WriteAt("durable.probe.write", f, []byte(name), 0), f.Close()); err != nil {
			return err
		}
	}
	return cmp.Or(
		p.fs.Mkdir("durable.probe.mkdir", p.at("dir1"), 0o700), p.fs.Mkdir("durable.probe.mkdir", p.at("dir2"), 0o700),
		p.identity(), p.swaps("file1", "file2"), p.swaps("dir1", "dir2"), p.swaps("file1", "dir1"), p.swaps("file1", "dir1"),
		p.noReplace(), p.lock(), p.lease(), p.fs.Sync("durable.probe.sync", p.dir),
	)
}

// look describes an object by inode and content; an error is part of the description.
func (p *prober) look(name string) string {
	st, err := p.fs.Stat("durable.probe.stat", p.at(name))
	if err != nil || st.Type != Regular {
		return fmt.Sprint(st.Ino, err)
	}
	f, err := p.fs.OpenFile("durable.probe.read", p.at(name))
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }() // opened for reading
	content := make([]byte, len("file1"))
	_, err = p.fs.ReadAt("durable.probe.read", f, content, 0)
	return fmt.Sprint(st.Ino, string(content), err)
}

func (p *prober) identity() error {
	st, err := p.fs.Stat("durable.probe.stat", p.at("file1"))
	if err == nil && (st.Btime == 0 || st.Mount == 0) {
		err = fmt.Errorf("statx: btime %d, mount id %d: one is missing", st.Btime, st.Mount)
	}
	return err
}

func (p *prober) swaps(a, b string) error {
	wasA, wasB := p.look(a), p.look(b)
	err := p.fs.Exchange("durable.probe.exchange", p.at(a), p.at(b))
	if err == nil && (p.look(a) != wasB || p.look(b) != wasA) {
		err = fmt.Errorf("exchange %s and %s said yes and did not swap", a, b)
	}
	return err
}

func (p *prober) noReplace() error {
	was := p.look("file1") + p.look("file2")
	err := p.fs.Move("durable.probe.noreplace", p.at("file1"), p.at("file2"))
	refused := errors.Is(err, unix.EEXIST)
	if err != nil && !refused {
		return err
	}
	if !refused || p.look("file1")+p.look("file2") != was {
		return errors.New("rename without replacement replaced a file")
	}
	return p.fs.Move("durable.probe.noreplace", p.at("file1"), p.at("file3"))
}

func (p *prober) lock() error {
	first, err := p.fs.Lock("durable.probe.lock", p.at("lock"))
	if err != nil {
		return err
	}
	defer func() { _ = first.Close() }() // nothing was written through it
	second, err := p.fs.Lock("durable.probe.lock", p.at("lock"))
	if err == nil {
		return errors.Join(errors.New("a second lock was granted beside the first"), second.Close())
	}
	if errors.Is(err, ErrLocked) {
		return nil
	}
	return err
}

func (p *prober) lease() error {
	w, err := p.fs.Create("durable.probe.create", p.at("leased"), 0o600)
	if err != nil {
		return err
	}
	r, err := p.fs.OpenFile("durable.probe.read", p.at("leased"))
	if err != nil {
		return errors.Join(err, w.Close())
	}
	defer func() { _ = r.Close() }() // opened for reading
	beside := p.fs.Lease("durable.probe.lease", r)
	if err := w.Close(); err != nil {
		return err
	}
	if beside == nil {
		return errors.New("a read lease was granted beside a writer")
	}
	if !errors.Is(beside, unix.EAGAIN) {
		return beside
	}
	return p.fs.Lease("durable.probe.lease", r)
}
