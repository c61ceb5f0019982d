package txn

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
)

// umask is that of published files and of the directories made for them.
const umask = 0o022

// sideMode is that of our directories: a tool of another uid passes through to its own job directory and lists nothing.
const sideMode = 0o711

// setgid of a directory: what is made in it has its group, and a directory the bit (inode(7)).
const setgid = 0o2000

// scratch is the prefix of a read job's directory in jobs/.
const scratch = "r-"

// Options of a Workspace. The zero value is for tests as root: tools run as root, nothing is reserved.
type Options struct {
	ToolUID, ToolGID int    // of the tools, hence of their directories and of published files; -1: ours
	MinFreeBytes     int64  // admission refuses below; 0: no minimum
	MinFreeInodes    int64  // admission refuses below; 0: no minimum
	Mend             func() // called when a tool is dead: gives back what it took from the caller's own files; may be nil
	BootID           string // of the running kernel: in a journal of the same boot no power was lost; empty: unknown
	Now              func() time.Time
}

// Workspace is an open workspace with its .eda-sidecar. Its methods may run at once, for different jobs.
type Workspace struct {
	fs   durable.FS
	path string
	o    Options

	root, side, jobs, trash, conflicts durable.Handle
	mount                              uint64
	plan                               func(*Journal, Seen, Fate) Decision // Plan, but in negative controls
}

// Open opens the workspace at root, an absolute path, and makes what is missing of .eda-sidecar. A volume refused by
// name is a *durable.VolumeError; whether the volume keeps its word is for Probe.
func Open(fsys durable.FS, root string, o Options) (_ *Workspace, err error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	w := &Workspace{fs: fsys, path: root, o: o, plan: Plan}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	if w.root, err = fsys.OpenRoot("txn.open.root", root); err != nil {
		return nil, err
	}
	if err = durable.CheckWorkspace(fsys, w.root); err != nil {
		return nil, err
	}
	st, err := fsys.Stat("txn.open.root", durable.Name{Dir: w.root})
	if err != nil {
		return nil, err
	}
	w.mount = st.Mount
	for _, d := range []struct {
		h    *durable.Handle
		at   *durable.Handle
		name string
		mode uint32
	}{
		{&w.side, &w.root, reserved, sideMode},
		{&w.jobs, &w.side, "jobs", sideMode},
		{&w.trash, &w.side, "trash", 0o700},
		{&w.conflicts, &w.side, "conflicts", sideMode},
	} {
		if *d.h, err = w.ensureDir(durable.Name{Dir: *d.at, Name: d.name}, d.mode); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// mend gives our directories, and that of a job, the modes back that a tool of our uid may have taken.
func (w *Workspace) mend(job string) error {
	of := func(h durable.Handle, mode uint32) error { return durable.Mend(w.fs, durable.Name{Dir: h}, mode) }
	err := cmp.Or(of(w.side, sideMode), of(w.jobs, sideMode), of(w.conflicts, sideMode), of(w.trash, 0o700))
	if err == nil && job != "" {
		err = durable.Mend(w.fs, durable.Name{Dir: w.jobs, Name: job}, sideMode)
	}
	return err
}

// Probe tries the operations that transactions rest on, by their effects, in a directory of its own in the trash.
func (w *Workspace) Probe() error {
	at := durable.Name{Dir: w.trash, Name: "probe." + rand.Text()}
	if err := w.mkdir(at, 0o700, -1, -1); err != nil {
		return err
	}
	h, err := w.fs.OpenDir("txn.probe.open", at)
	if err != nil {
		return err
	}
	defer shut(h)
	return cmp.Or(durable.Probe(w.fs, h), w.remove(at, maxDepth))
}

// Side is the handle of .eda-sidecar, for the owner lock. The Workspace keeps it.
func (w *Workspace) Side() durable.Handle { return w.side }

// Close releases the handles.
func (w *Workspace) Close() error {
	var errs []error
	for _, h := range []durable.Handle{w.conflicts, w.trash, w.jobs, w.side, w.root} {
		if h != nil {
			errs = append(errs, h.Close())
		}
	}
	return errors.Join(errs...)
}

// ensureDir opens a directory of our own and makes it durable if it is new.
func (w *Workspace) ensureDir(at durable.Name, mode uint32) (durable.Handle, error) {
	if err := durable.Mend(w.fs, at, mode); err != nil {
		return nil, err
	}
	h, err := w.fs.OpenDir("txn.open.dir", at)
	if !errors.Is(err, fs.ErrNotExist) {
		return h, err
	}
	if err := w.mkdir(at, mode, -1, -1); err != nil && !exists(err) { // two processes may open a new workspace at once
		return nil, err
	}
	if err := w.sync("txn.open.sync", at.Dir); err != nil {
		return nil, err
	}
	return w.fs.OpenDir("txn.open.dir", at)
}

// mkdir makes a directory with exactly this mode and owner, whatever our umask.
func (w *Workspace) mkdir(at durable.Name, mode uint32, uid, gid int) error {
	if err := w.fs.Mkdir("txn.mkdir", at, mode); err != nil {
		return err
	}
	h, err := w.fs.OpenDir("txn.mkdir", at)
	if err != nil {
		return err
	}
	defer shut(h)
	if err := w.fs.Chmod("txn.mkdir", durable.Name{Dir: h}, mode); err != nil {
		return err
	}
	return w.chown(durable.Name{Dir: h}, uid, gid)
}

// chown gives an object away. Who is not root can only keep it, and a group that is not his stays what it is.
func (w *Workspace) chown(at durable.Name, uid, gid int) error {
	if uid < 0 && gid < 0 {
		return nil
	}
	err := w.fs.Chown("txn.chown", at, uid, gid)
	if errors.Is(err, unix.EPERM) && os.Geteuid() != 0 {
		return nil
	}
	return err
}

// openPath opens the directory at a path beneath from. An empty path opens from itself.
func (w *Workspace) openPath(site durable.Site, from durable.Handle, p path) (durable.Handle, error) {
	return w.fs.OpenDir(site, durable.Name{Dir: from, Name: cmp.Or(p.String(), ".")})
}

// sync makes an object durable. That it failed is final, also for want of room: the kernel may have dropped the pages.
func (w *Workspace) sync(site durable.Site, h durable.Handle) error {
	if err := w.fs.Sync(site, h); err != nil {
		return fmt.Errorf("%w: %w", ErrSync, err)
	}
	return nil
}

// shut closes a handle that nothing was written through, or whose content is synced by a barrier: its error says nothing.
func shut(h durable.Handle) { _ = h.Close() } // see above

// absent reports whether err says that a name is not there.
func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// displaced reports whether err says that a path no longer leads through plain directories of this mount.
func displaced(err error) bool {
	return absent(err) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV)
}

// ours reports whether err says nothing of the path: this process, or the machine, is short of something.
func ours(err error) bool {
	return slices.ContainsFunc([]error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EIO}, func(e error) bool { return errors.Is(err, e) })
}

// jobPath is a path relative to a job directory as components, for openPath.
func jobPath(s string) path { return strings.Split(s, "/") }

func op(name, object string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %q: %w", name, object, err)
}
