package txn

import (
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
func (w *Workspace) Observe(j *Journal) (Seen, error) { return w.observe(j, true) }

func (w *Workspace) observe(j *Journal, targets bool) (Seen, error) {
	seen := Seen{Job: InJobs, SameBoot: w.o.BootID != "" && w.o.BootID == j.BootID}
	job, err := w.fs.OpenDir("txn.observe.job", durable.Name{Dir: w.jobs, Name: j.Job})
	switch {
	case absent(err):
		seen.Job = Gone
		if _, err := w.fs.Stat("txn.observe.decided", durable.Name{Dir: w.conflicts, Name: j.Job}); err == nil {
			seen.Job = Decided
		} else if !absent(err) {
			return seen, op("observe", j.Job, err)
		}
	case err != nil:
		return seen, op("observe", j.Job, err)
	default:
		defer func() { _ = job.Close() }() // opened for reading
	}
	for _, o := range j.Outputs {
		s := SeenOutput{}
		if job != nil {
			if s.Staged, err = w.identify("txn.observe.staged", durable.Name{Dir: job, Name: fmt.Sprintf("o%d", o.Index)}); err != nil {
				return seen, op("observe", o.Staged, err)
			}
		}
		if targets {
			if err := w.observeTarget(o, &s); err != nil {
				return seen, op("observe", o.Target, err)
			}
		}
		s.Linked = s.Target.sameInode(s.Staged)
		if s.Kept, err = w.kept(j.Job, o.Index); err != nil {
			return seen, op("observe", j.Job, err)
		}
		seen.Outputs = append(seen.Outputs, s)
	}
	for _, dir := range j.CreatedDirs {
		s, err := w.observeDir(j, dir)
		if err != nil {
			return seen, op("observe", dir, err)
		}
		seen.Dirs = append(seen.Dirs, s)
	}
	return seen, nil
}

func (w *Workspace) observeTarget(o Output, s *SeenOutput) error {
	parent, name := jobPath(o.Target).split()
	dir, err := w.openPath("txn.observe.parent", w.root, parent)
	if displaced(err) {
		s.ParentGone = true
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // opened for reading
	st, err := w.fs.Stat("txn.observe.parent", durable.Name{Dir: dir})
	if err != nil {
		return err
	}
	s.Parent = dirID(st)
	s.Target, err = w.identify("txn.observe.target", durable.Name{Dir: dir, Name: name})
	return err
}

func (w *Workspace) observeDir(j *Journal, dir string) (SeenDir, error) {
	h, err := w.openPath("txn.observe.created", w.root, jobPath(dir))
	if displaced(err) {
		return SeenDir{}, nil
	}
	if err != nil {
		return SeenDir{}, err
	}
	defer func() { _ = h.Close() }() // opened for reading
	names, err := w.fs.List("txn.observe.created", h, maxTargets+1)
	ours := slices.Clone(j.CreatedDirs)
	for _, o := range j.Outputs {
		ours = append(ours, o.Target)
	}
	foreign := slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(ours, dir+"/"+name) })
	return SeenDir{Exists: true, Foreign: foreign}, err
}

// kept reports whether conflicts/<job>/ holds an object of output i.
func (w *Workspace) kept(job string, i int) (bool, error) {
	h, err := w.fs.OpenDir("txn.observe.kept", durable.Name{Dir: w.conflicts, Name: job})
	if absent(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = h.Close() }() // opened for reading
	_, err = w.fs.Stat("txn.observe.kept", durable.Name{Dir: h, Name: strconv.Itoa(i)})
	if absent(err) {
		return false, nil
	}
	return err == nil, err
}

// Apply does what Plan decided, but for ActRetire, and syncs every directory that it changed. ErrQuarantine if that is
// the decision. After an error observe and plan again.
func (w *Workspace) Apply(j *Journal, d Decision) error {
	if d.Resolution == Quarantined {
		return fmt.Errorf("job %q: %s: %w", j.Job, d.Actions[0].Why, ErrQuarantine)
	}
	if d.Only(ActRetire) {
		return nil
	}
	job, err := w.fs.OpenDir("txn.undo.job", durable.Name{Dir: w.jobs, Name: j.Job})
	if err != nil {
		return op("undo", j.Job, err)
	}
	dirs := map[string]durable.Handle{"": job} // to sync; "" cannot be a path
	defer func() {
		for _, h := range dirs {
			_ = h.Close() // opened for reading
		}
	}()
	for _, a := range d.Actions {
		if err := w.apply(j, a, dirs); err != nil {
			return err
		}
	}
	var ops []func() error
	for _, p := range sortedKeys(dirs) {
		ops = append(ops, func() error { return w.fs.Sync("txn.undo.sync", dirs[p]) })
	}
	return op("undo", j.Job, w.fs.Barrier("txn.undo", ops...))
}

func (w *Workspace) apply(j *Journal, a Action, dirs map[string]durable.Handle) error {
	dir := func(p path) (durable.Handle, error) {
		key := "/" + p.String()
		if dirs[key] == nil {
			h, err := w.openPath("txn.undo.parent", w.root, p)
			if err != nil {
				return nil, err
			}
			dirs[key] = h
		}
		return dirs[key], nil
	}
	switch a.Kind {
	case ActRetire, ActQuarantine:
		return nil
	case ActRemoveCreatedDir:
		parent, name := jobPath(a.Dir).split()
		h, err := dir(parent)
		if err == nil {
			err = w.fs.Rmdir("txn.undo.rmdir", durable.Name{Dir: h, Name: name})
		}
		if absent(err) || errors.Is(err, unix.ENOTEMPTY) {
			return nil
		}
		if k := "/" + a.Dir; err == nil && dirs[k] != nil {
			_ = dirs[k].Close() // the directory is gone
			delete(dirs, k)
		}
		return op("undo", a.Dir, err)
	case ActExchange, ActRenameNew, ActRestore, ActKeepForeign:
	}
	o := j.Outputs[a.Index]
	staged := durable.Name{Dir: dirs[""], Name: fmt.Sprintf("o%d", a.Index)}
	if a.Kind == ActKeepForeign {
		return op("undo", o.Target, w.keep(j, a, staged))
	}
	parent, name := jobPath(o.Target).split()
	h, err := dir(parent)
	if err != nil {
		return op("undo", o.Target, err)
	}
	return op("undo", o.Target, w.putBack(o, a.Kind, staged, durable.Name{Dir: h, Name: name}))
}

// putBack does one rename of an undo and then looks: what lies at the staged name must be ours, or it is kept.
func (w *Workspace) putBack(o Output, k ActionKind, staged, target durable.Name) error {
	var err error
	switch k {
	case ActExchange:
		err = w.fs.Exchange("txn.undo.exchange", staged, target)
	case ActRestore:
		err = w.fs.Move("txn.undo.restore", staged, target)
	case ActRenameNew:
		err = w.fs.Move("txn.undo.rename", target, staged)
	}
	now, lerr := w.identify("txn.undo.look", target)
	if lerr != nil {
		return errors.Join(err, lerr)
	}
	if k == ActRenameNew && exists(err) { // two names of one inode: a rename would leave both (rename(2))
		if now.sameInode(*o.New) {
			return w.fs.Unlink("txn.undo.unlink", target)
		}
	}
	done := now.sameInode(o.Old)
	if k == ActRenameNew {
		done = !now.Exists
	}
	if err == nil && !done {
		err = fmt.Errorf("somebody else changed it at the same time: %w", ErrConflict)
	}
	if done {
		return nil // also after an error: the errno proves nothing, the look does
	}
	return err
}

// keep moves an object that holds somebody else's bytes to conflicts/<job>/<i>, beside a why.json, durably.
func (w *Workspace) keep(j *Journal, a Action, from durable.Name) error {
	dir, err := w.conflictDir(j.Job)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // synced below
	why, err := json.MarshalIndent(map[string]any{
		"job": j.Job, "output": a.Index, "target": j.Outputs[a.Index].Target, "why": a.Why, "at": w.o.Now().UTC(),
	}, "", "  ")
	if err != nil {
		return err
	}
	base := strconv.Itoa(a.Index)
	for try := 0; ; try++ { // a name that is taken holds an earlier object of the same output
		name := base
		if try > 0 {
			name = fmt.Sprintf("%s.%d", base, try)
		}
		err = w.fs.Move("txn.keep.move", from, durable.Name{Dir: dir, Name: name})
		if !exists(err) || try == maxTargets {
			break
		}
	}
	if err != nil {
		return err
	}
	h, err := w.write(durable.Name{Dir: dir, Name: "why.json.tmp"}, why, 0o644)
	if exists(err) {
		if err = w.fs.Unlink("txn.keep.unlink", durable.Name{Dir: dir, Name: "why.json.tmp"}); err == nil {
			h, err = w.write(durable.Name{Dir: dir, Name: "why.json.tmp"}, why, 0o644)
		}
	}
	if err != nil {
		return err
	}
	if err := errors.Join(w.fs.Sync("txn.keep.sync", h), h.Close()); err != nil {
		return err
	}
	if err := w.fs.Replace("txn.keep.replace", durable.Name{Dir: dir, Name: "why.json.tmp"}, durable.Name{Dir: dir, Name: "why.json"}); err != nil {
		return err
	}
	return w.fs.Barrier("txn.keep", func() error { return w.fs.Sync("txn.keep.sync", dir) },
		func() error { return w.fs.Sync("txn.keep.sync", w.conflicts) })
}

// conflictDir opens conflicts/<job>, which the workspace's owner may read.
func (w *Workspace) conflictDir(job string) (durable.Handle, error) {
	at := durable.Name{Dir: w.conflicts, Name: job}
	if err := w.mkdir(at, 0o700, w.o.ToolUID, w.o.ToolGID); err != nil && !exists(err) {
		return nil, err
	}
	return w.fs.OpenDir("txn.keep.open", at)
}

// Retire ends a job whose row is final: every backup is compared with the journal once more, what changed goes to
// conflicts/, the rest to the trash. It may be called again.
func (w *Workspace) Retire(j *Journal, fate Fate) error {
	if fate == FateOpen {
		return fmt.Errorf("retire %q: internal error: its row is open", j.Job)
	}
	seen, err := w.observe(j, false)
	if err != nil {
		return err
	}
	d := Plan(j, seen, fate)
	if w.controls.noRetireCheck {
		d.Actions = nil
	}
	if err := w.Apply(j, d); err != nil {
		return err
	}
	return w.toTrash(j.Job, "")
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
	return w.syncMoved("txn.trash")
}

func (w *Workspace) until() string {
	return untilMark + strconv.FormatInt(w.o.Now().Add(confinedKeep).Unix(), 10)
}

func (w *Workspace) syncMoved(site durable.Site) error {
	return w.fs.Barrier(site, func() error { return w.fs.Sync(site, w.jobs) }, func() error { return w.fs.Sync(site, w.trash) })
}

// toTrash moves jobs/<name> away. Gone already is fine; a name that a power loss brought back gets another suffix.
func (w *Workspace) toTrash(name, suffix string) error {
	for try := 0; ; try++ {
		to := durable.Name{Dir: w.trash, Name: name + suffix}
		if try > 0 {
			to.Name = fmt.Sprintf("%s.%d%s", name, try, suffix)
		}
		err := w.fs.Move("txn.trash.move", durable.Name{Dir: w.jobs, Name: name}, to)
		switch {
		case absent(err):
			return nil
		case exists(err) && try < maxTargets:
		default:
			return op("trash", name, err)
		}
	}
}

// EmptyTrash deletes what is due in trash/, following no link. It goes on after an error and returns all of them.
func (w *Workspace) EmptyTrash() error {
	names, err := w.fs.List("txn.empty.list", w.trash, 0)
	errs := []error{err}
	for _, name := range names {
		if _, until, ok := strings.Cut(name, untilMark); ok {
			if sec, err := strconv.ParseInt(until, 10, 64); err == nil && w.o.Now().Unix() < sec {
				continue
			}
		}
		errs = append(errs, op("delete", name, w.remove(durable.Name{Dir: w.trash, Name: name})))
	}
	return errors.Join(errs...)
}

// remove deletes an object and all below it.
func (w *Workspace) remove(at durable.Name) error { return w.removeBelow(at, maxDepth) }

func (w *Workspace) removeBelow(at durable.Name, depth int) error {
	st, err := w.fs.Stat("txn.remove.stat", at)
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Type != durable.Dir {
		return w.fs.Unlink("txn.remove.unlink", at)
	}
	if depth == 0 { // too deep for our descriptors: it becomes an entry of the trash itself
		return w.fs.Move("txn.remove.move", at, durable.Name{Dir: w.trash, Name: fmt.Sprintf("deep-%d-%d", st.Ino, st.Btime)})
	}
	if st.Mode&0o700 != 0o700 {
		if err := w.fs.Chmod("txn.remove.chmod", at, 0o700); err != nil {
			return err
		}
	}
	h, err := w.fs.OpenDir("txn.remove.open", at)
	if err != nil {
		return err
	}
	defer func() { _ = h.Close() }() // opened for reading
	for {
		names, err := w.fs.List("txn.remove.list", h, maxTargets)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			break
		}
		for _, name := range names {
			if err := w.removeBelow(durable.Name{Dir: h, Name: name}, depth-1); err != nil {
				return err
			}
		}
	}
	return w.fs.Rmdir("txn.remove.rmdir", at)
}

// Orphans returns the names in jobs/, sorted. Those that no row of the ledger knows are for KeepOrphan.
func (w *Workspace) Orphans() ([]string, error) { return w.fs.List("txn.orphans.list", w.jobs, 0) }

// KeepOrphan ends a directory in jobs/ that no row knows: a read's scratch goes to the trash for 24 h, one without any
// regular file is removed, any other goes whole to conflicts/: kept is true then, and somebody must look.
func (w *Workspace) KeepOrphan(name string) (kept bool, err error) {
	if strings.HasPrefix(name, scratch) {
		return false, errors.Join(w.toTrash(name, w.until()), w.syncMoved("txn.orphan.sync"))
	}
	at := durable.Name{Dir: w.jobs, Name: name}
	st, err := w.fs.Stat("txn.orphan.stat", at)
	if err != nil {
		return false, op("orphan", name, err)
	}
	holds := st.Type == durable.Regular
	if st.Type == durable.Dir {
		h, err := w.fs.OpenDir("txn.orphan.open", at)
		if err != nil {
			return false, op("orphan", name, err)
		}
		k := walker{w: w, site: "txn.orphan.walk", entries: maxEntries, depth: maxDepth}
		err = k.run(h, "", func(e entry) error {
			holds = holds || e.st.Type == durable.Regular
			return nil
		})
		if err = errors.Join(err, h.Close()); err != nil && !errors.Is(err, ErrQuota) {
			return false, op("orphan", name, err)
		}
		holds = holds || err != nil
	}
	if !holds {
		return false, op("orphan", name, w.remove(at))
	}
	to := durable.Name{Dir: w.conflicts, Name: name}
	for try := 1; ; try++ {
		err = w.fs.Move("txn.orphan.move", at, to)
		if !exists(err) || try > maxTargets {
			break
		}
		to.Name = fmt.Sprintf("%s.%d", name, try)
	}
	if err != nil {
		return false, op("orphan", name, err)
	}
	return true, w.fs.Barrier("txn.orphan", func() error { return w.fs.Sync("txn.orphan.sync", w.jobs) },
		func() error { return w.fs.Sync("txn.orphan.sync", w.conflicts) })
}
