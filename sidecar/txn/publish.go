package txn

import (
	"errors"
	"fmt"
	"slices"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
)

// Seal moves each output from its slot to jobs/<job>/o<i> and returns the journal of phase publishing_outputs, with the
// identity of every new file. It comes after Inspect.
func (t *Txn) Seal() (*Journal, error) {
	j := *t.j
	j.Outputs = append([]Output(nil), t.j.Outputs...)
	if len(t.outs) != len(j.Outputs) {
		return nil, fmt.Errorf("seal %q: internal error: outputs were not inspected", t.name)
	}
	for i, o := range t.outs {
		if o.h == nil {
			continue
		}
		if err := t.seal(i, o); err != nil {
			return nil, &Error{Op: "seal", Path: o.spec.Target, Why: err.Error(), Err: err}
		}
		id := o.id
		j.Outputs[i].New = &id
	}
	var err error
	if j.CreatedDirs, err = t.makeDirs(); err != nil {
		return nil, op("seal", t.name, err)
	}
	t.j = &j
	_ = t.note(PublishingOutputs, 0) // best effort: for a human eye
	return &j, nil
}

// makeDirs makes, in the job's directory, the directories that new targets need, and says which they are.
func (t *Txn) makeDirs() ([]CreatedDir, error) {
	dirs := t.a.CreatedDirs()
	for i, tg := range t.a.targets {
		above := tg.dir // of the next one to make
		for _, p := range tg.missing {
			if t.outs[i].h == nil {
				break // an optional output that was not written
			}
			if t.a.dirs[p] == nil { // once a job
				n := slices.IndexFunc(dirs, func(d CreatedDir) bool { return d.Path == p })
				at := t.madeAt(n)
				uid, gid := t.w.owner(above.st)
				if err := t.w.mkdir(at, 0o777&^umask|above.st.Mode&setgid, uid, gid); err != nil {
					return nil, err
				}
				h, err := t.w.fs.OpenDir("txn.seal.dir", at)
				if err != nil {
					return nil, err
				}
				made := &openDir{h: h}
				t.a.dirs[p] = made
				if made.st, err = t.w.fs.Stat("txn.seal.dir", durable.Name{Dir: h}); err != nil {
					return nil, err
				}
				dirs[n].DirID = dirID(made.st)
			}
			above = t.a.dirs[p]
		}
	}
	return dirs, nil
}

// madeAt is jobs/<job>/d<n>, where the nth directory to be created waits for its place.
func (t *Txn) madeAt(n int) durable.Name { return t.at(fmt.Sprintf("d%d", n)) }

func (t *Txn) seal(i int, o *output) error {
	slot, err := t.w.fs.OpenDir("txn.seal.slot", t.at(fmt.Sprintf("s%d", i)))
	if err != nil {
		return err
	}
	defer shut(slot)
	if err := t.w.fs.Move("txn.seal.move", durable.Name{Dir: slot, Name: o.slot}, t.stagedAt(i)); err != nil {
		return err
	}
	now, err := t.w.identify("txn.seal.identify", t.stagedAt(i))
	if err == nil && !now.same(o.id) {
		err = because(ErrOutput, errors.New("changed since it was inspected"))
	}
	return err
}

// stagedAt is jobs/<job>/o<i>.
func (t *Txn) stagedAt(i int) durable.Name { return t.at(fmt.Sprintf("o%d", i)) }

// SyncStaged is barrier B1: every staged file and directory, jobs/<job> and jobs/ in parallel, and with them also, which
// waits for the ledger to hold the sealed journal; also may be nil. A failed sync is final: discard.
func (t *Txn) SyncStaged(proofs []cgroup.Empty, also func() error) error {
	if err := t.proven(proofs); err != nil {
		return err
	}
	var ops []func() error
	if also != nil {
		ops = append(ops, also)
	}
	for i, o := range t.outs {
		if o.h == nil {
			continue
		}
		ops = append(ops, t.sync("txn.b1.output", o.h))
		for _, m := range o.members {
			ops = append(ops, t.syncMember(i, m))
		}
	}
	ops = append(ops, t.sync("txn.b1.job", t.dir), t.sync("txn.b1.jobs", t.w.jobs))
	return op("sync staged", t.name, t.w.fs.Barrier("txn.b1", ops...))
}

func (t *Txn) sync(site durable.Site, h durable.Handle) func() error {
	return func() error { return t.w.sync(site, h) }
}

// syncMember opens one member of a tree only while it is synced.
func (t *Txn) syncMember(i int, member string) func() error {
	return func() error {
		h, err := t.w.fs.OpenFile("txn.b1.open", durable.Name{Dir: t.outs[i].h, Name: member})
		if err != nil {
			return err
		}
		defer shut(h)
		return t.w.sync("txn.b1.member", h)
	}
}

// Exchange publishes: each target changes places with its staged output in one atomic call, and what was displaced must
// be the pre-image. ErrConflict says that it was not, or that a parent moved; whatever the error, Undo puts right.
// It is called once the sealed journal is durable.
func (t *Txn) Exchange(proofs []cgroup.Empty) error {
	if err := t.proven(proofs); err != nil {
		return err
	}
	for i, o := range t.outs {
		if o.h == nil {
			continue
		}
		if err := t.exchange(i); err != nil {
			return err
		}
	}
	return nil
}

func (t *Txn) exchange(i int) error {
	o := t.j.Outputs[i]
	conflict := func(why string, cause error) error {
		return &Error{Op: "publish", Path: o.Target, Why: why, Fix: "look at it, then run the job again", Err: because(ErrConflict, cause)}
	}
	parent, err := t.parent(i)
	if displaced(err) || errors.Is(err, errMoved) {
		return conflict("its directory changed while the job ran", err)
	}
	if err != nil {
		return op("publish", o.Target, err)
	}
	target, staged := durable.Name{Dir: parent.h, Name: t.a.targets[i].at().Name}, t.stagedAt(i)
	now, err := t.w.identify("txn.publish.look", target, o.known()...)
	if err != nil {
		return op("publish", o.Target, err)
	}
	if !now.same(o.Old) {
		return conflict("was changed while the job ran", nil)
	}
	if o.Method == NoReplace {
		err = t.w.fs.Move("txn.publish.noreplace", staged, target)
	} else {
		err = t.w.fs.Exchange("txn.publish.exchange", staged, target)
	}
	if err != nil { // whether it was done is for Undo to see; whether somebody came between, for us
		now, lerr := t.w.identify("txn.publish.reobserve", target, o.known()...)
		if k := classify(now, o.Old, o.New); lerr == nil && k != isNew && !now.same(o.Old) {
			return conflict("was changed while the job ran", err)
		}
		return op("publish", o.Target, err)
	}
	if o.Method == NoReplace {
		return nil
	}
	was, err := t.w.identify("txn.publish.displaced", staged, o.known()...)
	if err != nil {
		return op("publish", o.Target, err)
	}
	if !was.same(o.Old) {
		err := t.w.fs.Exchange("txn.publish.swapback", staged, target)
		return conflict("was changed while it was published", err)
	}
	return nil
}

// errMoved says that a parent is another directory than at admission, or that one to be made is there.
var errMoved = errors.New("directory was moved, replaced or made by somebody else")

// parent returns the target's parent: the one that admission opened, if a fresh lookup still leads to it, or one that gets
// its place now. Every directory that changes is remembered for the barrier.
func (t *Txn) parent(i int) (*openDir, error) {
	tg := &t.a.targets[i]
	above, _ := tg.path.split()
	there := above[:len(above)-len(tg.missing)]
	h, err := t.w.openPath("txn.publish.lookup", t.w.root, there)
	if err != nil {
		return nil, err
	}
	st, err := t.w.fs.Stat("txn.publish.lookup", durable.Name{Dir: h})
	if err = errors.Join(err, h.Close()); err != nil {
		return nil, err
	}
	if dirID(st) != dirID(tg.dir.st) {
		return nil, fmt.Errorf("directory %q: %w", there, errMoved)
	}
	d := tg.dir
	t.changed[there.String()] = d.h
	for _, p := range tg.missing {
		if t.changed[p] == nil { // once a job
			_, name := jobPath(p).split()
			n := slices.IndexFunc(t.j.CreatedDirs, func(d CreatedDir) bool { return d.Path == p })
			if err := t.w.fs.Move("txn.publish.mkdir", t.madeAt(n), durable.Name{Dir: d.h, Name: name}); err != nil {
				if exists(err) {
					err = errors.Join(errMoved, err)
				}
				return nil, err
			}
		}
		d = t.a.dirs[p]
		t.changed[p] = d.h
	}
	return d, nil
}

// SyncTargets is barrier B2: every distinct parent of a target, every parent of a created directory, and jobs/<job>.
// A failed sync is final: undo.
func (t *Txn) SyncTargets() error {
	ops := []func() error{t.sync("txn.b2.job", t.dir)}
	for _, p := range sortedKeys(t.changed) {
		ops = append(ops, t.sync("txn.b2.parent", t.changed[p]))
	}
	if err := t.w.fs.Barrier("txn.b2", ops...); err != nil {
		return op("sync targets", t.name, err)
	}
	_ = t.note(CommittingState, 0) // best effort: for a human eye
	return nil
}

// Discard ends a transaction that has published nothing: the job directory goes to the trash. It needs a proof for every
// group, as it deletes what a live tool could still be writing.
func (t *Txn) Discard(proofs []cgroup.Empty) error {
	if err := t.proven(proofs); err != nil {
		return err
	}
	return errors.Join(t.w.Trash(t.j, proofs, nil), t.Close())
}

// Shed moves to the trash what a committed job needs no longer: all of its directory but the displaced originals, the log
// and the journal for a human eye.
func (t *Txn) Shed() error {
	names := []string{"work", "tmp"}
	for i := range t.j.Outputs {
		names = append(names, fmt.Sprintf("s%d", i))
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, t.w.fs.Move("txn.shed.move", t.at(name), durable.Name{Dir: t.w.trash, Name: t.name + "." + name}))
	}
	return op("shed", t.name, errors.Join(errs...))
}

// Undo puts every target back as Plan decides, and syncs what it changed. It needs no proof: Exchange had one. After an
// error targets may be new or old, the job's row stays open, and Undo may be called again. An error that wraps
// ErrQuarantine touched nothing.
func (t *Txn) Undo() (Decision, error) {
	seen, err := t.w.Observe(t.j)
	if err != nil {
		return Decision{}, err
	}
	d := t.w.plan(t.j, seen, FateOpen)
	return d, t.w.Apply(t.j, d)
}
