package durable

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// poolSize bounds the syncs in flight of all jobs: enough to fill a device queue, few enough threads (20-transaction section 2).
const poolSize = 16

// openTries bounds the retries of openat2, which answers EAGAIN when a rename or mount raced it (openat2(2)).
const openTries = 8

// beneath keeps every lookup inside the directory it starts from: no link, no magic link, no mount.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// OS returns the real FS, with a pool of its own for barriers: make one a process.
func OS() FS {
	return &osFS{slots: make(chan struct{}, poolSize), resolve: beneath, cloexec: unix.O_CLOEXEC}
}

type osFS struct {
	slots   chan struct{}
	resolve uint64 // beneath, but in negative controls
	cloexec int    // O_CLOEXEC, but in negative controls
}

type handle struct {
	f    *os.File
	list *sync.Mutex // a directory's position is one for all who list it
}

func (h handle) Close() error {
	if err := h.f.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

func (h handle) File() *os.File { return h.f }

// file returns the file of a handle that this FS made; anything else is a bug of the caller and panics.
func file(h Handle) *os.File { return h.(handle).f }

func fd(h Handle) int { return int(file(h).Fd()) }

func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %q: %w", op, name, err)
}

// do makes a call again after EINTR and gives its error the operation and the object.
func do(op, name string, call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return wrap(op, name, err)
		}
	}
}

func (o *osFS) open(op string, at Name, flags int, mode uint32) (Handle, error) {
	how := &unix.OpenHow{Flags: uint64(flags | o.cloexec | unix.O_NOFOLLOW), Mode: uint64(mode), Resolve: o.resolve}
	for try := 1; ; try++ {
		n, err := unix.Openat2(fd(at.Dir), at.Name, how)
		switch {
		case err == nil:
			return handle{os.NewFile(uintptr(n), at.Name), new(sync.Mutex)}, nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN) && try < openTries:
		default:
			return nil, wrap(op, at.Name, err)
		}
	}
}

func (o *osFS) OpenRoot(_ Site, path string) (Handle, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return handle{f, new(sync.Mutex)}, nil
}

func (o *osFS) OpenDir(_ Site, at Name) (Handle, error) {
	return o.open("open directory", at, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

func (o *osFS) OpenFile(_ Site, at Name) (Handle, error) {
	return o.open("open", at, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
}

func (o *osFS) Create(_ Site, at Name, mode uint32) (Handle, error) {
	return o.open("create", at, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, mode)
}

func (o *osFS) Lock(_ Site, at Name) (Handle, error) {
	h, err := o.open("open lock", at, unix.O_RDWR|unix.O_CREAT, 0o644)
	if err != nil {
		return nil, err
	}
	whole := &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	err = do("lock", at.Name, func() error { return unix.FcntlFlock(uintptr(fd(h)), unix.F_OFD_SETLK, whole) })
	if errors.Is(err, unix.EAGAIN) {
		err = wrap("lock", at.Name, ErrLocked)
	}
	if err != nil {
		_ = h.Close() // nothing was written through it
		return nil, err
	}
	return h, nil
}

func (o *osFS) Mkdir(_ Site, at Name, mode uint32) error {
	return do("mkdir", at.Name, func() error { return unix.Mkdirat(fd(at.Dir), at.Name, mode) })
}

func (o *osFS) Symlink(_ Site, at Name, target string) error {
	return do("symlink", at.Name, func() error { return unix.Symlinkat(target, fd(at.Dir), at.Name) })
}

func (o *osFS) Stat(_ Site, at Name) (Stat, error) {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_EMPTY_PATH
	const mask = unix.STATX_BASIC_STATS | unix.STATX_BTIME | unix.STATX_MNT_ID | unix.STATX_MNT_ID_UNIQUE
	var st unix.Statx_t
	if err := do("stat", at.Name, func() error { return unix.Statx(fd(at.Dir), at.Name, flags, mask, &st) }); err != nil {
		return Stat{}, err
	}
	s := Stat{
		Type: Other, Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino, Mount: st.Mnt_id,
		MountRoot: st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, Nlink: uint64(st.Nlink),
		Mtime: nanos(st.Mtime), Size: int64(st.Size), Blocks: int64(st.Blocks),
		Mode: uint32(st.Mode) & 0o7777, UID: st.Uid, GID: st.Gid,
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		s.Type = Regular
	case unix.S_IFDIR:
		s.Type = Dir
	case unix.S_IFLNK:
		s.Type = Link
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		s.Btime = nanos(st.Btime)
	}
	return s, nil
}

func nanos(t unix.StatxTimestamp) int64 { return t.Sec*1e9 + int64(t.Nsec) }

func (o *osFS) List(_ Site, dir Handle, limit int) ([]string, error) {
	if h, ours := dir.(handle); ours {
		h.list.Lock()
		defer h.list.Unlock()
	}
	if _, err := file(dir).Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	names, err := file(dir).Readdirnames(limit)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	slices.Sort(names)
	return names, nil
}

func (o *osFS) rename(op string, from, to Name, flags uint) error {
	return do(op, to.Name, func() error { return unix.Renameat2(fd(from.Dir), from.Name, fd(to.Dir), to.Name, flags) })
}

func (o *osFS) Exchange(_ Site, a, b Name) error {
	return o.rename("exchange", a, b, unix.RENAME_EXCHANGE)
}

func (o *osFS) Move(_ Site, from, to Name) error {
	return o.rename("rename", from, to, unix.RENAME_NOREPLACE)
}

func (o *osFS) Replace(_ Site, from, to Name) error { return o.rename("replace", from, to, 0) }

func (o *osFS) Unlink(_ Site, at Name) error {
	return do("unlink", at.Name, func() error { return unix.Unlinkat(fd(at.Dir), at.Name, 0) })
}

func (o *osFS) Rmdir(_ Site, at Name) error {
	return do("rmdir", at.Name, func() error { return unix.Unlinkat(fd(at.Dir), at.Name, unix.AT_REMOVEDIR) })
}

func (o *osFS) Chmod(_ Site, at Name, mode uint32) error {
	return do("chmod", at.Name, func() error {
		if at.Name == "" {
			return unix.Fchmod(fd(at.Dir), mode)
		}
		return unix.Fchmodat(fd(at.Dir), at.Name, mode, unix.AT_SYMLINK_NOFOLLOW)
	})
}

func (o *osFS) Chown(_ Site, at Name, uid, gid int) error {
	return do("chown", at.Name, func() error {
		return unix.Fchownat(fd(at.Dir), at.Name, uid, gid, unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH)
	})
}

func (o *osFS) Xattr(_ Site, h Handle, attr string) ([]byte, error) {
	buf := make([]byte, 4<<10) // an ACL of some 500 entries; more is refused as ERANGE
	n, err := unix.Fgetxattr(fd(h), attr, buf)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	if err != nil {
		return nil, wrap("getxattr", attr, err)
	}
	return bytes.Clone(buf[:n]), nil // which keeps buf on the stack: most files have none
}

func (o *osFS) SetXattr(_ Site, h Handle, attr string, value []byte) error {
	if value != nil {
		return wrap("setxattr", attr, unix.Fsetxattr(fd(h), attr, value, 0))
	}
	err := unix.Fremovexattr(fd(h), attr)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return wrap("removexattr", attr, err)
}

func (o *osFS) Lease(_ Site, h Handle) error {
	if _, err := unix.FcntlInt(uintptr(fd(h)), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return wrap("lease", "", err)
	}
	_, err := unix.FcntlInt(uintptr(fd(h)), unix.F_SETLEASE, unix.F_UNLCK)
	return wrap("release lease", "", err)
}

func (o *osFS) ReadAt(_ Site, h Handle, p []byte, off int64) (int, error) {
	return file(h).ReadAt(p, off)
}

func (o *osFS) WriteAt(_ Site, h Handle, p []byte, off int64) error {
	_, err := file(h).WriteAt(p, off)
	return err
}

func (o *osFS) Writeback(_ Site, h Handle) error {
	return wrap("write back", "", unix.SyncFileRange(fd(h), 0, 0, unix.SYNC_FILE_RANGE_WRITE))
}

func (o *osFS) Sync(_ Site, h Handle) error { return file(h).Sync() }

func (o *osFS) Statfs(_ Site, dir Handle) (Volume, error) {
	var st unix.Statfs_t
	if err := do("statfs", "", func() error { return unix.Fstatfs(fd(dir), &st) }); err != nil {
		return Volume{}, err
	}
	const casefoldFlag = 0x40000000                                  // FS_CASEFOLD_FL, linux/fs.h
	flags, err := unix.IoctlGetUint32(fd(dir), unix.FS_IOC_GETFLAGS) // ENOTTY where a volume has no flags
	if err != nil && !errors.Is(err, unix.ENOTTY) && !errors.Is(err, unix.EOPNOTSUPP) {
		return Volume{}, wrap("get flags", "", err)
	}
	return Volume{
		Magic: uint32(st.Type), Casefold: flags&casefoldFlag != 0,
		FreeBytes: int64(st.Bavail) * st.Bsize, TotalBytes: int64(st.Blocks) * st.Bsize,
		FreeInodes: int64(st.Ffree), TotalInodes: int64(st.Files),
	}, nil
}

func (o *osFS) Barrier(_ Site, ops ...func() error) error {
	if len(ops) == 0 {
		return nil
	}
	errs := make([]error, len(ops))
	var wg sync.WaitGroup
	for i, op := range ops[1:] {
		o.slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-o.slots }()
			errs[i+1] = op()
		})
	}
	errs[0] = ops[0]()
	wg.Wait()
	return cmp.Or(errs...)
}
