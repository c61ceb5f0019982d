package durable

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	workspaceFix = "put it on a local or block volume (ext4, xfs)"
	stateFix     = "give --state-dir a local volume"
	noExchange   = "which has no atomic exchange"
)

// refusal says what a file system is called and why it cannot carry a workspace (empty: let the probe decide) or a state directory.
type refusal struct{ name, workspace, state string }

// refusals by statfs f_type (statfs(2), linux/magic.h).
func refusals(magic uint32) refusal {
	const remote = "SQLite's WAL needs memory shared by all openers"
	switch magic {
	case unix.BTRFS_SUPER_MAGIC:
		return refusal{"btrfs", "its subvolume ioctls pass Landlock", ""}
	case unix.BCACHEFS_SUPER_MAGIC:
		return refusal{"bcachefs", "its subvolume ioctls pass Landlock", ""}
	case unix.OVERLAYFS_SUPER_MAGIC:
		return refusal{"overlayfs", "inode numbers and directory renames are not stable there", ""}
	case unix.NFS_SUPER_MAGIC:
		return refusal{"NFS", noExchange, remote}
	case unix.V9FS_MAGIC:
		return refusal{"9p", noExchange, remote}
	case unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.SMB_SUPER_MAGIC:
		return refusal{"SMB", noExchange, remote}
	case unix.CEPH_SUPER_MAGIC:
		return refusal{"Ceph", noExchange, remote}
	case unix.FUSE_SUPER_MAGIC:
		return refusal{"FUSE", "", remote}
	}
	return refusal{}
}

// CheckWorkspace refuses by name the volumes that cannot carry a workspace, with a [*VolumeError]. FUSE is left to [Probe].
func CheckWorkspace(fs FS, dir Handle) error {
	v, err := fs.Statfs("durable.volume.workspace", dir)
	if err != nil {
		return err
	}
	if r := refusals(v.Magic); r.workspace != "" {
		return &VolumeError{Use: "workspace", FS: r.name, Why: r.workspace, Fix: workspaceFix}
	}
	return nil
}

// CheckState refuses by name the volumes that are not local, as SQLite's WAL needs one, with a [*VolumeError].
func CheckState(fs FS, dir Handle) error {
	v, err := fs.Statfs("durable.volume.state", dir)
	if err != nil {
		return err
	}
	if r := refusals(v.Magic); r.state != "" {
		return &VolumeError{Use: "state directory", FS: r.name, Why: r.state, Fix: stateFix}
	}
	return nil
}

// Probe tries every operation that a transaction rests on, in a directory of its own below dir, and looks at the effects:
// ceph-fuse ignored rename flags without an errno (tracker.ceph.com/issues/54733). It returns a [*VolumeError].
// A crash leaves a directory probe.* behind.
func Probe(fs FS, dir Handle) error { return probe(fs, dir, false) }

// probe is Probe; with trustErrno it looks at nothing but errors (a negative control).
func probe(fs FS, dir Handle, trustErrno bool) error {
	at := Name{dir, "probe." + rand.Text()}
	p := &prober{fs: fs, trustErrno: trustErrno}
	err := fs.Mkdir("durable.probe.mkdir", at, 0o700)
	if err == nil {
		if p.dir, err = fs.OpenDir("durable.probe.open", at); err == nil {
			err = p.run()
			err = cmp.Or(err, p.clean(), p.dir.Close())
		}
		err = cmp.Or(err, fs.Rmdir("durable.probe.rmdir", at))
	}
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
	fs         FS
	dir        Handle
	trustErrno bool
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
		p.noReplace(), p.lock(), p.lease(), p.xattr(), p.fs.Sync("durable.probe.sync", p.dir),
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
	if err == nil && !p.trustErrno && (p.look(a) != wasB || p.look(b) != wasA) {
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
	if p.trustErrno {
		return nil
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

// xattr requires that an attribute can be read back, or that there are none at all: then there is nothing to strip.
func (p *prober) xattr() error {
	const attr = "user.eda-sidecar"
	err := p.fs.SetXattr("durable.probe.xattr", p.dir, attr, []byte("1"))
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	got, rerr := p.fs.Xattr("durable.probe.xattr", p.dir, attr)
	if err == nil && rerr == nil && string(got) != "1" {
		err = fmt.Errorf("attribute reads back as %q", got)
	}
	return cmp.Or(err, rerr)
}

func (p *prober) clean() error {
	names, err := p.fs.List("durable.probe.list", p.dir, 0)
	for _, name := range names {
		st, serr := p.fs.Stat("durable.probe.stat", p.at(name))
		remove := p.fs.Unlink
		if st.Type == Dir {
			remove = p.fs.Rmdir
		}
		err = cmp.Or(err, serr, remove("durable.probe.remove", p.at(name)))
	}
	return err
}
