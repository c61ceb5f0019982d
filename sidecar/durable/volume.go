package durable

import (
	"bytes"
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
	refuse := func(err error) error {
		why := "an operation that transactions rest on does not work"
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
			why = noExchange
		}
		return &VolumeError{Use: "workspace", Why: why, Fix: workspaceFix, Err: err}
	}
	if err := fs.Mkdir("durable.probe.mkdir", at, 0o700); err != nil {
		return refuse(err)
	}
	h, err := fs.OpenDir("durable.probe.open", at)
	if err != nil {
		return errors.Join(refuse(err), fs.Rmdir("durable.probe.rmdir", at))
	}
	p := &prober{fs: fs, h: h, trustErrno: trustErrno}
	err = p.run()
	clean := errors.Join(p.clean(), h.Close(), fs.Rmdir("durable.probe.rmdir", at))
	if err != nil {
		return refuse(err)
	}
	if clean != nil {
		return refuse(clean)
	}
	return nil
}

type prober struct {
	fs         FS
	h          Handle
	trustErrno bool
}

func (p *prober) at(name string) Name { return Name{p.h, name} }

func (p *prober) run() error {
	steps := []func() error{
		p.fill,
		func() error { return p.exchange("file1", "file2") },
		func() error { return p.exchange("dir1", "dir2") },
		func() error { return p.exchange("file1", "dir1") },
		func() error { return p.exchange("file1", "dir1") },
		p.noReplace, p.lock, p.lease, p.xattr,
		func() error { return p.fs.Sync("durable.probe.sync", p.h) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// fill makes two files that hold their own names, two directories, and requires a birth time and a mount id.
func (p *prober) fill() error {
	for _, name := range []string{"file1", "file2"} {
		f, err := p.fs.Create("durable.probe.create", p.at(name), 0o600)
		if err != nil {
			return err
		}
		err = errors.Join(p.fs.WriteAt("durable.probe.write", f, []byte(name), 0), f.Close())
		if err != nil {
			return err
		}
		if err := p.fs.Mkdir("durable.probe.mkdir", p.at("dir"+name[4:]), 0o700); err != nil {
			return err
		}
	}
	st, err := p.fs.Stat("durable.probe.stat", p.at("file1"))
	if err == nil && (st.Btime == 0 || st.Mount == 0) {
		err = fmt.Errorf("statx: btime %d, mount id %d: one is missing", st.Btime, st.Mount)
	}
	return err
}

func (p *prober) exchange(a, b string) error {
	before, err := p.inodes(a, b)
	if err != nil {
		return err
	}
	if err := p.fs.Exchange("durable.probe.exchange", p.at(a), p.at(b)); err != nil || p.trustErrno {
		return err
	}
	after, err := p.inodes(a, b)
	if err != nil {
		return fmt.Errorf("exchange %s and %s lost one: %w", a, b, err)
	}
	if before[0] != after[1] || before[1] != after[0] {
		return fmt.Errorf("exchange %s and %s said yes and did not swap", a, b)
	}
	if a == "file1" && b == "file2" {
		return p.holds(a, b)
	}
	return nil
}

func (p *prober) inodes(names ...string) (inos [2]uint64, err error) {
	for i, name := range names {
		st, err := p.fs.Stat("durable.probe.stat", p.at(name))
		if err != nil {
			return inos, err
		}
		inos[i] = st.Ino
	}
	return inos, nil
}

func (p *prober) holds(name, want string) error {
	f, err := p.fs.OpenFile("durable.probe.read", p.at(name))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading
	got := make([]byte, len(want))
	if _, err := p.fs.ReadAt("durable.probe.read", f, got, 0); err != nil || !bytes.Equal(got, []byte(want)) {
		return fmt.Errorf("exchange: %s holds %q, want %q: %w", name, got, want, errors.Join(err, errors.ErrUnsupported))
	}
	return nil
}

func (p *prober) noReplace() error {
	before, err := p.inodes("file1", "file2")
	if err != nil {
		return err
	}
	err = p.fs.Move("durable.probe.noreplace", p.at("file1"), p.at("file2"))
	switch {
	case p.trustErrno && (err == nil || errors.Is(err, unix.EEXIST)):
		return nil
	case err == nil:
		return errors.New("rename without replacement replaced a file")
	case !errors.Is(err, unix.EEXIST):
		return err
	}
	if after, err := p.inodes("file1", "file2"); err != nil || after != before {
		return fmt.Errorf("refused rename changed something: inodes %v, were %v: %w", after, before, errors.Join(err, errors.ErrUnsupported))
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
	if !errors.Is(err, ErrLocked) {
		return err
	}
	return nil
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
	err = p.fs.Lease("durable.probe.lease", r)
	if cerr := w.Close(); cerr != nil {
		return cerr
	}
	if err == nil {
		return errors.New("a read lease was granted beside a writer")
	}
	if !errors.Is(err, unix.EAGAIN) {
		return err
	}
	return p.fs.Lease("durable.probe.lease", r)
}

// xattr requires that an attribute can be read back, or that there are none at all: then there is nothing to strip.
func (p *prober) xattr() error {
	const attr = "user.eda-sidecar"
	err := p.fs.SetXattr("durable.probe.xattr", p.h, attr, []byte("1"))
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		return err
	}
	got, err := p.fs.Xattr("durable.probe.xattr", p.h, attr)
	if err == nil && string(got) != "1" {
		err = fmt.Errorf("attribute reads back as %q", got)
	}
	return err
}

func (p *prober) clean() error {
	names, err := p.fs.List("durable.probe.list", p.h, 0)
	errs := []error{err}
	for _, name := range names {
		st, err := p.fs.Stat("durable.probe.stat", p.at(name))
		switch {
		case err != nil:
		case st.Type == Dir:
			err = p.fs.Rmdir("durable.probe.rmdir", p.at(name))
		default:
			err = p.fs.Unlink("durable.probe.unlink", p.at(name))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
