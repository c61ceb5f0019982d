package txn

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
)

const (
	maxEntries = 100_000 // of one walk
	maxDepth   = 64      // of one walk; it holds one descriptor a level
	hashChunk  = 256 << 10
)

// same reports whether seen is still what want journals: type, inode and birth time, then size and modification time, of
// a tree its manifest. Never ctime, which a rename changes; never mode or owner, which are not bytes.
func (seen FileID) same(want FileID) bool {
	if !seen.Exists || !want.Exists {
		return seen.Exists == want.Exists
	}
	if !seen.sameInode(want) || seen.Size != want.Size || seen.TreeSum != want.TreeSum {
		return false
	}
	return seen.Type == string(durable.Dir) || seen.MtimeNS == want.MtimeNS
}

func (seen FileID) sameInode(want FileID) bool {
	return seen.Exists && want.Exists && seen.Type == want.Type && seen.Ino == want.Ino && seen.Btime == want.Btime
}

func fileID(st durable.Stat) FileID {
	return FileID{
		Exists: true, Type: string(st.Type), Ino: st.Ino, Btime: st.Btime, Size: st.Size, MtimeNS: st.Mtime,
		Mode: st.Mode, UID: st.UID, GID: st.GID, Nlink: st.Nlink,
	}
}

func dirID(st durable.Stat) DirID { return DirID{Ino: st.Ino, Btime: st.Btime} }

// identify says what is at a name. Of a tree, Size is the sum of its files, MtimeNS the latest in it. With known
// identities only a tree that is one of them by inode is walked: of a foreign one nobody needs to know more.
func (w *Workspace) identify(site durable.Site, at durable.Name, known ...FileID) (FileID, error) {
	st, err := w.fs.Stat(site, at)
	if absent(err) {
		return FileID{}, nil
	}
	if err != nil {
		return FileID{}, err
	}
	id := fileID(st)
	if st.Type != durable.Dir || len(known) > 0 && !slices.ContainsFunc(known, id.sameInode) {
		return id, nil
	}
	h, err := w.fs.OpenDir(site, at)
	if err != nil {
		return FileID{}, err
	}
	defer shut(h)
	sum := sha256.New()
	id.Size = 0
	walk := walker{w: w, site: site, entries: maxEntries, depth: maxDepth}
	err = walk.run(h, "", func(e entry) error {
		if e.st.Type == durable.Regular {
			id.Size += e.st.Size
		}
		id.MtimeNS = max(id.MtimeNS, e.st.Mtime)
		size, mtime := e.st.Size, e.st.Mtime // of a link, too: it cannot be edited, only made anew
		if e.st.Type == durable.Dir {        // its own say nothing that its entries do not
			size, mtime = 0, 0
		}
		sum.Write(fmt.Appendf(nil, "%q %s %o %d %d\n", e.path, e.st.Type, e.st.Mode, size, mtime))
		return nil
	})
	id.TreeSum = hex.EncodeToString(sum.Sum(nil))
	if len(known) > 0 && (errors.Is(err, ErrQuota) || displaced(err) || errors.Is(err, unix.EACCES)) {
		id.TreeSum, err = "unreadable", nil // so somebody has changed it
	}
	return id, err
}

// entry is one object that a walk came by.
type entry struct {
	at   durable.Name
	path string // relative to the walk's prefix
	st   durable.Stat
}

// walker visits everything below a directory in sorted order, parents first, following no link and crossing no mount.
type walker struct {
	w       *Workspace
	site    durable.Site
	entries int  // left; ErrQuota beyond
	depth   int  // left; ErrQuota beyond
	racing  bool // entries may vanish meanwhile
}

func (k *walker) run(dir durable.Handle, prefix string, visit func(entry) error) error {
	names, err := k.w.fs.List(k.site, dir, k.entries+1)
	if err != nil {
		return err
	}
	if k.entries -= len(names); k.entries < 0 || k.depth == 0 {
		return &Error{Op: "walk", Path: prefix, Why: "too many entries or levels", Err: ErrQuota}
	}
	for _, name := range names {
		if err := k.one(durable.Name{Dir: dir, Name: name}, prefix+name, visit); err != nil {
			if k.racing && displaced(err) {
				continue
			}
			return err
		}
	}
	return nil
}

func (k *walker) one(at durable.Name, path string, visit func(entry) error) error {
	st, err := k.w.fs.Stat(k.site, at)
	if err != nil {
		return err
	}
	err = visit(entry{at: at, path: path, st: st})
	if err != nil || st.Type != durable.Dir {
		return err
	}
	h, err := k.w.fs.OpenDir(k.site, at)
	if err != nil {
		return err
	}
	defer shut(h)
	k.depth--
	err = k.run(h, path+"/", visit)
	k.depth++
	return err
}

// digest returns the SHA-256 of an open file of about size bytes in hex, and ErrQuota beyond limit bytes; limit 0: none.
func (w *Workspace) digest(site durable.Site, h durable.Handle, size, limit int64) (string, int64, error) {
	sum := sha256.New()
	buf := make([]byte, min(hashChunk, max(size, 4<<10)+1)) // one more: the end of a small file comes with it
	for off := int64(0); ; {
		n, err := w.fs.ReadAt(site, h, buf, off)
		sum.Write(buf[:n])
		off += int64(n)
		if limit > 0 && off > limit {
			return "", off, fmt.Errorf("more than %d bytes: %w", limit, ErrQuota)
		}
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(sum.Sum(nil)), off, nil
		}
		if err != nil {
			return "", off, err
		}
	}
}

// Input is one checked input of a tool.
type Input struct {
	Path   string // as given
	Dir    bool
	Size   int64  // bytes; 0 for a directory
	SHA256 string // hex; empty for a directory
}

// OpenInput checks and hashes a regular file below the workspace, at most maxBytes long (0: no limit). ErrInvalidPath
// names what is wrong with the path, ErrQuota with the size.
func (w *Workspace) OpenInput(rel string, maxBytes int64) (Input, error) {
	h, err := w.openInput(rel, w.fs.OpenFile)
	if err != nil {
		return Input{}, err
	}
	defer shut(h)
	refuse := func(why string, err error) error {
		return &Error{Op: "open input", Path: rel, Why: why, Fix: "name a regular file below the workspace", Err: err}
	}
	st, err := w.fs.Stat("txn.input.stat", durable.Name{Dir: h})
	if err != nil || st.Type != durable.Regular {
		return Input{}, refuse("is not a regular file but "+string(st.Type), because(ErrInvalidPath, err))
	}
	sum, size, err := w.digest("txn.input.read", h, st.Size, maxBytes)
	if errors.Is(err, ErrQuota) {
		return Input{}, refuse(fmt.Sprintf("is larger than %d bytes", maxBytes), ErrQuota)
	}
	return Input{Path: rel, Size: size, SHA256: sum}, op("read input", rel, err)
}

// OpenInputDir checks a directory below the workspace.
func (w *Workspace) OpenInputDir(rel string) (Input, error) {
	h, err := w.openInput(rel, w.fs.OpenDir)
	if err != nil {
		return Input{}, err
	}
	return Input{Path: rel, Dir: true}, h.Close()
}

// OpenOutput opens what is at the target of a job's output, a regular file, for reading, and says whether it is still what
// the job published. The error wraps fs.ErrNotExist if the job has no such output, or nothing is there.
func (w *Workspace) OpenOutput(j *Journal, name string) (f *os.File, current bool, err error) {
	i := slices.IndexFunc(j.Outputs, func(o Output) bool { return o.Name == name })
	if i < 0 {
		return nil, false, fmt.Errorf("job %q has no output %q: %w", j.Job, name, fs.ErrNotExist)
	}
	o := j.Outputs[i]
	h, err := w.openInput(o.Target, w.fs.OpenFile)
	if err != nil {
		return nil, false, err
	}
	st, err := w.fs.Stat("txn.output.stat", durable.Name{Dir: h})
	if err != nil || st.Type != durable.Regular {
		shut(h)
		return nil, false, &Error{Op: "open output", Path: o.Target, Why: "is not a regular file but " + string(st.Type), Err: because(ErrInvalidPath, err)}
	}
	return h.File(), o.New != nil && fileID(st).sameInode(*o.New) && fileID(st).same(*o.New), nil
}

// openInput opens a file without waiting for the other end of a FIFO, or a directory.
func (w *Workspace) openInput(rel string, open func(durable.Site, durable.Name) (durable.Handle, error)) (durable.Handle, error) {
	p, why := parsePath(rel)
	if why != "" {
		return nil, &Error{Op: "open input", Path: rel, Why: why, Err: ErrInvalidPath}
	}
	h, err := open("txn.input.open", durable.Name{Dir: w.root, Name: p.String()})
	if ours(err) {
		return nil, op("open input", rel, err)
	}
	if err != nil {
		return nil, &Error{Op: "open input", Path: rel, Why: notThrough(err), Err: because(ErrInvalidPath, err)}
	}
	return h, nil
}

// notThrough explains why a path could not be opened.
func notThrough(err error) string {
	switch {
	case absent(err):
		return "does not exist"
	case errors.Is(err, unix.ELOOP):
		return "leads through a symbolic link"
	case errors.Is(err, unix.EXDEV):
		return "leads to another mount"
	case errors.Is(err, unix.ENOTDIR):
		return "leads through a link or something that is no directory"
	}
	return "cannot be opened"
}
