package durable

import "os"

// Site names one call in the source, such as "txn.publish.exchange": the point at which a test counts, fails or kills it.
// It is always a constant.
type Site string

// Handle is an open file or directory of one [FS]. Whoever opened it closes it, after its last use.
type Handle interface {
	// Close releases the descriptor. A second Close does nothing.
	Close() error
	// File returns the open file; closing either closes both. Nil in a model.
	File() *os.File
}

// Name is one entry of a directory. Name is a single component; empty, or a path of plain ones, where a method says so.
type Name struct {
	Dir  Handle
	Name string
}

// Type says what an inode is.
type Type string

// The types that matter here; everything else, such as a FIFO, socket or device, is Other.
const (
	Regular Type = "file"
	Dir     Type = "dir"
	Link    Type = "link"
	Other   Type = "other"
)

// Stat is what statx(2) says. Times are nanoseconds since the epoch, Size is bytes, Blocks units of 512 bytes.
type Stat struct {
	Type      Type
	Dev, Ino  uint64
	Mount     uint64 // STATX_MNT_ID_UNIQUE, before Linux 6.8 STATX_MNT_ID
	MountRoot bool   // something is mounted here
	Nlink     uint64
	Btime     int64 // 0: the volume keeps none
	Mtime     int64
	Size      int64
	Blocks    int64
	Mode      uint32 // permission bits with setuid, setgid and sticky
	UID, GID  uint32
}

// Volume is what statfs(2) and the directory's flags say.
type Volume struct {
	Magic                   uint32 // statfs f_type
	FreeBytes, TotalBytes   int64  // free to an ordinary user
	FreeInodes, TotalInodes int64  // total 0: allocated on demand
	Casefold                bool   // names in this directory ignore case
}

// FS is the seam: every file operation whose durability or identity matters, on a directory handle and one name.
// No method follows a symbolic link or crosses a mount; none retries but after EINTR (and EAGAIN of openat2).
// Errors wrap the errno. A wrapper can fail an operation before or after it was done: after an error look again.
type FS interface {
	// OpenRoot opens the directory at an absolute path. Links in it are followed: the operator chose it.
	OpenRoot(site Site, path string) (Handle, error)
	// OpenDir opens a directory, or a path of them in one walk, for reading and syncing: ELOOP for a link, EXDEV for a
	// mount, ENOTDIR for a file.
	OpenDir(site Site, at Name) (Handle, error)
	// OpenFile opens a file, or the one at the end of such a path, for reading, without blocking on a FIFO.
	OpenFile(site Site, at Name) (Handle, error)
	// Create makes a new file, open for writing; an existing name is EEXIST.
	Create(site Site, at Name, mode uint32) (Handle, error)
	// Lock opens or makes a file (0644) and takes its open-file-description write lock, or returns ErrLocked at once.
	Lock(site Site, at Name) (Handle, error)
	Mkdir(site Site, at Name, mode uint32) error
	Symlink(site Site, at Name, target string) error
	// Stat looks at the entry itself; an empty name is the handle's own object.
	Stat(site Site, at Name) (Stat, error)
	// List returns the names in dir, sorted; at most limit of them (whichever come first) if limit > 0.
	List(site Site, dir Handle, limit int) ([]string, error)
	// Exchange swaps two entries atomically (RENAME_EXCHANGE).
	Exchange(site Site, a, b Name) error
	// Move renames; an existing destination is EEXIST (RENAME_NOREPLACE).
	Move(site Site, from, to Name) error
	// Replace renames over whatever is there: for the sidecar's own files only.
	Replace(site Site, from, to Name) error
	Unlink(site Site, at Name) error
	Rmdir(site Site, at Name) error
	// Chmod changes the entry itself, before Linux 6.6 by handle only: an empty name.
	Chmod(site Site, at Name, mode uint32) error
	// Chown changes the entry itself, a link too; an empty name is the handle's own object; -1 keeps an id.
	Chown(site Site, at Name, uid, gid int) error
	// Xattr returns an attribute; nil if the object or its volume has none.
	Xattr(site Site, h Handle, attr string) ([]byte, error)
	// SetXattr sets an attribute; nil removes it, and it is no error if there is none.
	SetXattr(site Site, h Handle, attr string, value []byte) error
	// Lease takes a read lease and lets it go: EAGAIN means that somebody holds the file open for writing (fcntl(2)).
	Lease(site Site, h Handle) error
	// ReadAt fills p from off; io.EOF as in io.ReaderAt.
	ReadAt(site Site, h Handle, p []byte, off int64) (int, error)
	// WriteAt writes all of p at off.
	WriteAt(site Site, h Handle, p []byte, off int64) error
	// Writeback starts writing dirty pages and does not wait: it promises nothing.
	Writeback(site Site, h Handle) error
	// Sync is fsync(2) of a file or directory. A failed one is final: the kernel may have dropped the dirty pages.
	Sync(site Site, h Handle) error
	// Statfs describes the volume and the directory dir.
	Statfs(site Site, dir Handle) (Volume, error)
	// Barrier runs ops in parallel, the first on the caller's goroutine, the others on one pool of 16 that all callers
	// share. All are awaited; the error is that of the first in order that failed.
	Barrier(site Site, ops ...func() error) error
}
