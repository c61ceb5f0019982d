package txn

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
)

func exists(err error) bool { return errors.Is(err, fs.ErrExist) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// Observe looks at every name of one job. A path that leads nowhere is an observation, not an error.
func (w *Workspace) Observe(j *Journal) (Seen, error) {
	if err := w.mend(j.Job); err != nil {
		return Seen{}, op("observe", j.Job, err)
	}
	seen := Seen{Job: InJobs, SameBoot: w.o.BootID != "" && w.o.BootID == j.BootID}
	job, err := w.fs.OpenDir("txn.observe.job", durable.Name{Dir: w.jobs, Name: j.Job})
	if absent(err) {
		seen.Job = Gone
		var st durable.Stat
		if st, err = w.fs.Stat("txn.observe.decided", durable.Name{Dir: w.conflicts, Name: j.Job}); err == nil && st.Type == durable.Dir {
			seen.Job = Decided
		}
	}
	if err != nil && !absent(err) {
		return seen, op("observe", j.Job, err)
	}
	if job != nil {
		defer shut(job)
	}
	for _, o := range j.Outputs {
		s, err := w.observe(j.Job, o, job)
		if err != nil {
			return seen, op("observe", o.Target, err)
		}
		seen.Outputs = append(seen.Outputs, s)
	}
	seen.Dirs = make([]SeenDir, len(j.CreatedDirs))
	for i, made := range slices.Backward(j.CreatedDirs) { // the inner ones first
		if seen.Dirs[i], err = w.observeDir(j, made.Path, seen); err != nil {
			return seen, op("observe", made.Path, err)
		}
	}
	return seen, nil
}

// observeDir looks at the place of a created directory. What the job has in it are published outputs and further such
// directories, if nobody has put anything into those.
func (w *Workspace) observeDir(j *Journal, dir string, seen Seen) (s SeenDir, err error) {
	h, err := w.openPath("txn.observe.made", w.root, jobPath(dir))
	if displaced(err) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	defer shut(h)
	st, err := w.fs.Stat("txn.observe.made", durable.Name{Dir: h})
	if err != nil {
		return s, err
	}
	s.DirID = dirID(st)
	names, err := w.fs.List("txn.observe.made", h, len(j.Outputs)+len(j.CreatedDirs)+1)
	for _, name := range names {
		o := slices.IndexFunc(j.Outputs, func(o Output) bool { return o.Target == dir+"/"+name })
		d := slices.IndexFunc(j.CreatedDirs, func(d CreatedDir) bool { return d.Path == dir+"/"+name })
		ours := o >= 0 && j.Outputs[o].New != nil && seen.Outputs[o].Target.sameInode(*j.Outputs[o].New) ||
			d >= 0 && seen.Dirs[d].DirID == j.CreatedDirs[d].DirID && !seen.Dirs[d].Others
		s.Others = s.Others || !ours
	}
	return s, err
}

func (w *Workspace) observe(name string, o Output, job durable.Handle) (s SeenOutput, err error) {
	if job != nil {
		at := durable.Name{Dir: job, Name: fmt.Sprintf("o%d", o.Index)}
		if s.Staged, err = w.identify("txn.observe.staged", at, o.known()...); err != nil {
			return s, err
		}
	}
	if s.Kept, err = w.kept(name, o.Index); err != nil {
		return s, err
	}
	parent, base := jobPath(o.Target).split()
	dir, err := w.openPath("txn.observe.parent", w.root, parent)
	if displaced(err) {
		s.ParentGone = true
		return s, nil
	}
	if err != nil {
		return s, err
	}
	defer shut(dir)
	st, err := w.fs.Stat("txn.observe.parent", durable.Name{Dir: dir})
	if err != nil {
		return s, err
	}
	s.Parent = dirID(st)
	s.Target, err = w.identify("txn.observe.target", durable.Name{Dir: dir, Name: base}, o.known()...)
	return s, err
}

// known returns the identities that an output's two names may have; with New, a tree's manifest is compared with both.
func (o Output) known() []FileID {
	if o.New == nil {
		return []FileID{o.Old}
	}
	return []FileID{o.Old, *o.New}
}

// kept reports whether conflicts/<job>/ holds an object of output i.
func (w *Workspace) kept(job string, i int) (bool, error) {
	h, err := w.openKept("txn.observe.kept", job, false)
	if err == nil {
		defer shut(h)
		_, err = w.fs.Stat("txn.observe.kept", durable.Name{Dir: h, Name: strconv.Itoa(i)})
	}
	if absent(err) {
		return false, nil
	}
	return err == nil, err
}

// openKept opens conflicts/<job>, and makes it if asked to. A name that holds something else is taken: the next one is
// conflicts/<job>.1, and so on.
func (w *Workspace) openKept(site durable.Site, job string, make bool) (h durable.Handle, err error) {
	at := durable.Name{Dir: w.conflicts, Name: job}
	for try := 1; try <= maxTargets; try++ {
		h, err = w.fs.OpenDir(site, at)
		if absent(err) && make {
			if err := w.mkdir(at, 0o700, w.o.ToolUID, w.o.ToolGID); err != nil && !exists(err) {
				return nil, err
			}
			h, err = w.fs.OpenDir(site, at)
		}
		if !displaced(err) || absent(err) {
			return h, err
		}
		at.Name = fmt.Sprintf("%s.%d", job, try)
	}
	return h, err
}

// Apply does what Plan decided for an open job, but for ActRetire, and makes durable what it, or an earlier attempt that
// was cut short, has changed. An error that wraps ErrQuarantine touched nothing. After any other observe and plan again.
func (w *Workspace) Apply(j *Journal, d Decision) error {
	u := w.NewUndo()
	return cmp.Or(u.Apply(j, d), op("undo", j.Job, u.Sync()))
}

// Undo is Apply for several jobs whose syncs are shared: nothing of it is durable, and no row may be closed, before Sync.
// It is one goroutine's own.
type Undo struct {
	w       *Workspace
	changed []durable.Handle // by any of the jobs, or by an earlier attempt; each directory once
	known   map[[2]uint64]bool
	failed  error // of a sync, which is final
}

// NewUndo returns an Undo of no job yet. Whoever asks for one calls Sync in the end.
func (w *Workspace) NewUndo() *Undo { return &Undo{w: w, known: map[[2]uint64]bool{}} }

// maxHeld bounds the descriptors of an Undo; a sync comes in between.
const maxHeld = 64

// Apply is Workspace.Apply without the sync, but for one that wraps ErrSync of what came before.
func (s *Undo) Apply(j *Journal, d Decision) error {
	switch d.Resolution {
	case Quarantined:
		return fmt.Errorf("job %q: %s: %w", j.Job, d.Actions[0].Why, ErrQuarantine)
	case Discarded, ByOperator:
		if d.Only(ActRetire) {
			return nil
		}
	case RolledBackAll, Conflicted, RolledForward:
	}
	u := &undoing{w: s.w, j: j, dirs: map[string]durable.Handle{}}
	err := u.open(d)
	for _, a := range d.Actions {
		if err == nil {
			err = u.apply(a)
		}
	}
	for _, p := range sortedKeys(u.dirs) {
		err = s.keep(u.dirs[p], err)
	}
	if err == nil && len(s.changed) >= maxHeld {
		err = s.Sync()
	}
	return op("undo", j.Job, err)
}

// keep takes a directory over for the sync, unless there was an error, or it has it.
func (s *Undo) keep(h durable.Handle, err error) error {
	var st durable.Stat
	if err == nil {
		st, err = s.w.fs.Stat("txn.undo.dir", durable.Name{Dir: h})
	}
	if id := [2]uint64{st.Dev, st.Ino}; err != nil || s.known[id] {
		shut(h)
	} else {
		s.known[id], s.changed = true, append(s.changed, h)
	}
	return err
}

// Sync makes durable what Apply has changed. The error wraps ErrSync and is final: it stays the answer, as nobody knows whose
// directories are not durable.
func (s *Undo) Sync() error {
	if len(s.changed) == 0 {
		return s.failed
	}
	var ops []func() error
	for _, h := range s.changed {
		ops = append(ops, func() error { return s.w.sync("txn.undo.sync", h) })
		defer shut(h)
	}
	s.changed, s.known = nil, map[[2]uint64]bool{}
	s.failed = cmp.Or(s.failed, s.w.fs.Barrier("txn.undo", ops...))
	return s.failed
}

// undoing is one Apply: the directories that it, or an earlier attempt, changed, by path. "." is jobs/<job>.
type undoing struct {
	w    *Workspace
	j    *Journal
	dirs map[string]durable.Handle
}

// open collects jobs/<job> and, of every target's parent that publication may have changed, the deepest that exists.
func (u *undoing) open(d Decision) error {
	h, err := u.w.fs.OpenDir("txn.undo.job", durable.Name{Dir: u.w.jobs, Name: u.j.Job})
	if err == nil {
		u.dirs["."] = h
	} else if !absent(err) || !d.Only(ActRetire) {
		return err
	}
	if d.Resolution == RolledForward {
		return nil // its targets are not touched
	}
	for _, o := range u.j.Outputs {
		p, _ := jobPath(o.Target).split()
		for o.New != nil {
			_, err := u.dir(p)
			if err != nil && !displaced(err) {
				return err
			}
			if err == nil || len(p) == 0 {
				break
			}
			p = p[:len(p)-1]
		}
	}
	return nil
}

func (u *undoing) dir(p path) (durable.Handle, error) {
	key := "/" + p.String()
	if u.dirs[key] == nil {
		h, err := u.w.openPath("txn.undo.parent", u.w.root, p)
		if err != nil {
			return nil, err
		}
		u.dirs[key] = h
	}
	return u.dirs[key], nil
}

// removeDir takes back a directory that publication made: no other one that has its name now, and none that holds
// something.
func (u *undoing) removeDir(made CreatedDir) error {
	parent, name := jobPath(made.Path).split()
	h, err := u.dir(parent)
	if err != nil {
		return err
	}
	at := durable.Name{Dir: h, Name: name}
	st, err := u.w.fs.Stat("txn.undo.look", at)
	if err == nil && dirID(st) == made.DirID {
		err = u.w.fs.Rmdir("txn.undo.rmdir", at)
	}
	if displaced(err) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EBUSY) {
		return nil
	}
	return err
}

// apply does one action. After a rename it looks: the errno proves nothing, what lies at the target does.
func (u *undoing) apply(a Action) error {
	if a.Kind == ActRetire || a.Kind == ActQuarantine {
		return nil
	}
	if a.Kind == ActRemoveDir {
		return u.removeDir(u.j.CreatedDirs[a.Index])
	}
	o, staged := u.j.Outputs[a.Index], durable.Name{Dir: u.dirs["."], Name: fmt.Sprintf("o%d", a.Index)}
	if a.Kind == ActKeepForeign {
		return u.w.keep(u.j, a, staged)
	}
	parent, name := jobPath(o.Target).split()
	h, err := u.dir(parent)
	if err != nil {
		return err
	}
	target := durable.Name{Dir: h, Name: name}
	switch a.Kind {
	case ActExchange:
		err = u.w.fs.Exchange("txn.undo.exchange", staged, target)
	case ActRestore:
		err = u.w.fs.Move("txn.undo.restore", staged, target)
	case ActRenameNew:
		err = u.w.fs.Move("txn.undo.rename", target, staged)
	case ActKeepForeign, ActRemoveDir, ActRetire, ActQuarantine: // done above
	}
	now, lerr := u.w.identify("txn.undo.look", target, o.known()...)
	if lerr != nil {
		return errors.Join(err, lerr)
	}
	if a.Kind == ActRenameNew && exists(err) && now.sameInode(*o.New) { // two names of one inode: rename leaves both (rename(2))
		return u.w.fs.Unlink("txn.undo.unlink", target)
	}
	if a.Kind == ActRenameNew && !now.Exists || now.sameInode(o.Old) {
		return nil
	}
	return cmp.Or(err, fmt.Errorf("somebody else changed %q at the same time: %w", o.Target, ErrConflict))
}

// keep moves an object that holds somebody else's bytes to conflicts/<job>/<i>, beside a why.json, durably.
func (w *Workspace) keep(j *Journal, a Action, from durable.Name) error {
	dir, err := w.openKept("txn.keep.open", j.Job, true)
	if err != nil {
		return err
	}
	defer shut(dir)
	why, err := json.MarshalIndent(map[string]any{
		"job": j.Job, "output": a.Index, "target": j.Outputs[a.Index].Target, "why": a.Why, "at": w.o.Now().UTC(),
	}, "", "  ")
	if err != nil {
		return err
	}
	if err := w.replace(durable.Name{Dir: dir, Name: "why.json"}, why, 0o644); err != nil {
		return err
	}
	if err := w.moveTo("txn.keep.move", from, dir, strconv.Itoa(a.Index), ""); err != nil {
		return err
	}
	return w.syncDirs("txn.keep.sync", dir, w.conflicts)
}

// moveTo moves an object to a free name in dir: name, or name.1 and so on, with suffix behind it.
func (w *Workspace) moveTo(site durable.Site, from durable.Name, dir durable.Handle, name, suffix string) error {
	to := name + suffix
	for try := 1; ; try++ {
		err := w.fs.Move(site, from, durable.Name{Dir: dir, Name: to})
		if !exists(err) || try > maxTargets {
			return err
		}
		to = fmt.Sprintf("%s.%d%s", name, try, suffix)
	}
}

func (w *Workspace) syncDirs(site durable.Site, a, b durable.Handle) error {
	return w.fs.Barrier(site, func() error { return w.sync(site, a) }, func() error { return w.sync(site, b) })
}

// Retire ends a job whose row is final: every backup is compared with the journal once more, what changed goes to
// conflicts/, the rest to the trash. It may be called again. foreign says what was kept, or is to be after an error.
func (w *Workspace) Retire(j *Journal, fate Fate) (foreign []Action, err error) {
	if fate == FateOpen {
		return nil, fmt.Errorf("retire %q: internal error: its row is open", j.Job)
	}
	seen, err := w.Observe(j)
	if err != nil {
		return nil, err
	}
	d := w.plan(j, seen, fate)
	if foreign = d.Foreign(); len(foreign) > 0 {
		d.Resolution = RolledForward
		if err := w.Apply(j, d); err != nil {
			return foreign, err
		}
	}
	return foreign, w.toTrash(j.Job, "")
}

// untilMark separates a name in trash/ from the second, since the epoch, until which it is kept.
const untilMark = ".until-"

// confinedKeep is how long a directory stays in the trash whose writers may be alive out of sight (10-containment section 9).
const confinedKeep = 24 * time.Hour

// Trash moves a job's directory, or a read's scratch, to trash/. Every group of the journal needs an Empty or a
// Confined (ErrUnproven). With a Confined the move is durable and the directory is kept for 24 h.
func (w *Workspace) Trash(j *Journal, proofs []cgroup.Empty, confined []cgroup.Confined) error {
	if err := w.covered(j, proofs, confined); err != nil {
		return err
	}
	suffix := ""
	if w.covered(j, proofs, nil) != nil {
		suffix = w.until()
	}
	for _, name := range []string{j.Job, scratch + j.Job} {
		if err := w.toTrash(name, suffix); err != nil {
			return err
		}
	}
	if suffix == "" {
		return nil
	}
	return w.syncDirs("txn.trash.sync", w.jobs, w.trash)
}

func (w *Workspace) until() string {
	return untilMark + strconv.FormatInt(w.o.Now().Add(confinedKeep).Unix(), 10)
}

// toTrash moves jobs/<name> away. Gone already is fine.
func (w *Workspace) toTrash(name, suffix string) error {
	if err := w.mend(name); err != nil { // a directory that moves is written to
		return op("trash", name, err)
	}
	err := w.moveTo("txn.trash.move", durable.Name{Dir: w.jobs, Name: name}, w.trash, name, suffix)
	if absent(err) {
		return nil
	}
	return op("trash", name, err)
}

// EmptyTrash deletes what is due in trash/, following no link. It goes on after an error and returns all of them.
func (w *Workspace) EmptyTrash() error {
	for range maxEntries { // each round unpacks what was too deep for the one before
		names, err := w.fs.List("txn.empty.list", w.trash, 0)
		errs, done := []error{err}, 0
		for _, name := range names {
			_, until, kept := strings.Cut(name, untilMark)
			if sec, err := strconv.ParseInt(until, 10, 64); kept && err == nil && w.o.Now().Unix() < sec {
				continue
			}
			done++
			errs = append(errs, op("delete", name, w.remove(durable.Name{Dir: w.trash, Name: name}, maxDepth)))
		}
		if err := errors.Join(errs...); err != nil || done == 0 {
			return err
		}
	}
	return nil
}

// remove deletes an object and all below it. What lies deeper than our descriptors reach becomes an entry of the trash.
func (w *Workspace) remove(at durable.Name, depth int) error {
	st, err := w.fs.Stat("txn.remove.stat", at)
	switch {
	case absent(err):
		return nil
	case err != nil:
		return err
	case st.Type != durable.Dir:
		return w.fs.Unlink("txn.remove.unlink", at)
	case depth == 0:
		return w.moveTo("txn.remove.move", at, w.trash, fmt.Sprintf("deep-%d", st.Ino), "")
	case st.Mode&0o700 != 0o700:
		if err := w.fs.Chmod("txn.remove.chmod", at, 0o700); err != nil {
			return err
		}
	}
	h, err := w.fs.OpenDir("txn.remove.open", at)
	if err != nil {
		return err
	}
	defer shut(h)
	for range maxEntries / maxTargets {
		names, err := w.fs.List("txn.remove.list", h, maxTargets)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := w.remove(durable.Name{Dir: h, Name: name}, depth-1); err != nil {
				return err
			}
		}
		if err := w.fs.Rmdir("txn.remove.rmdir", at); !errors.Is(err, unix.ENOTEMPTY) { // there was more
			return err
		}
	}
	return &Error{Op: "delete", Path: at.Name, Why: "holds very many entries, or somebody still writes in it", Fix: "it is tried again", Err: ErrQuota}
}

// Orphans returns the names in jobs/, sorted. Those that no row of the ledger knows are for EndOrphan.
func (w *Workspace) Orphans() ([]string, error) { return w.fs.List("txn.orphans.list", w.jobs, 0) }

// Orphan says what EndOrphan does to a directory in jobs/ that no row knows: Discarded if there is no file in it,
// Conflicted if there is one, and somebody must look; empty for a read's scratch.
func (w *Workspace) Orphan(name string) Resolution {
	switch {
	case strings.HasPrefix(name, scratch):
		return ""
	case w.holdsFile(durable.Name{Dir: w.jobs, Name: name}, maxDepth):
		return Conflicted
	}
	return Discarded
}

// EndOrphan moves a directory in jobs/ that no row knows: whole to conflicts/, to the trash if there is no file in it, and
// a read's scratch to the trash for 24 h.
func (w *Workspace) EndOrphan(name string) error {
	if err := w.mend(name); err != nil {
		return op("orphan", name, err)
	}
	to, suffix := w.trash, ""
	if end := w.Orphan(name); end == Conflicted {
		to = w.conflicts
	} else if end == "" {
		suffix = w.until()
	}
	if err := w.moveTo("txn.orphan.move", durable.Name{Dir: w.jobs, Name: name}, to, name, suffix); err != nil {
		return op("orphan", name, err)
	}
	return op("orphan", name, w.syncDirs("txn.orphan.sync", w.jobs, to))
}

// holdsFile reports whether an object is a regular file or holds one. What cannot be looked into may.
func (w *Workspace) holdsFile(at durable.Name, depth int) bool {
	st, err := w.fs.Stat("txn.orphan.stat", at)
	if err != nil || st.Type != durable.Dir {
		return err != nil || st.Type == durable.Regular
	}
	h, err := w.fs.OpenDir("txn.orphan.open", at)
	if err != nil || depth == 0 {
		return true
	}
	defer shut(h)
	names, err := w.fs.List("txn.orphan.list", h, 0)
	return err != nil || slices.ContainsFunc(names, func(name string) bool { return w.holdsFile(durable.Name{Dir: h, Name: name}, depth-1) })
}
