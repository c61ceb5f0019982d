package txn

import (
	"errors"
	"fmt"
	"slices"

	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
)

// Spec declares one output.
type Spec struct {
	Name        string // parameter name, such as netlist
	Target      string // workspace-relative, as the caller gave it
	Kind        Kind
	Optional    bool // may be absent: the target stays as it is
	AllowEmpty  bool // a file of no bytes, a tree of no entries
	MakeParents bool // missing parents are made at publication
}

// Edge is one step of a target's way from the root: a name in a directory. Edges make lock keys.
type Edge struct {
	Dev, Ino uint64 // of the directory
	Name     string
}

// Admission holds the checked targets of one job: their parents, open, and their pre-images. It has touched nothing.
type Admission struct {
	w       *Workspace
	specs   []Spec
	dirs    map[string]*openDir // by workspace-relative path, "" is the root
	targets []target
	notes   []string
}

type openDir struct {
	h  durable.Handle
	st durable.Stat
}

type target struct {
	path    path
	dir     *openDir // parent, or the last of its ancestors that exists
	missing path     // workspace-relative directories to make, outermost first
	chain   []Edge
	old     FileID
}

// Admit resolves every target beneath the workspace, opens its parent and takes its pre-image. It changes nothing.
// An [*Error] that wraps ErrInvalidPath or ErrFull names the target and the way out. Close the Admission.
func (w *Workspace) Admit(specs []Spec) (*Admission, error) {
	if len(specs) > maxTargets {
		return nil, &Error{Op: "admit", Path: specs[maxTargets].Target, Why: "more than 64 targets", Fix: "split the call", Err: ErrInvalidPath}
	}
	a := &Admission{w: w, specs: slices.Clone(specs)}
	if err := a.resolve(); err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

func (a *Admission) resolve() error {
	if err := a.w.room(a.w.root); err != nil {
		return err
	}
	st, err := a.w.fs.Stat("txn.admit.root", durable.Name{Dir: a.w.root})
	if err != nil {
		return err
	}
	a.dirs = map[string]*openDir{"": {h: a.w.root, st: st}}
	for i, spec := range a.specs {
		for _, other := range a.specs[:i] {
			if within(spec.Target, other.Target) || within(other.Target, spec.Target) {
				return refuse(spec, "overlaps target \""+other.Target+"\"", "give each output a place of its own", nil)
			}
		}
		t, err := a.target(spec)
		if err != nil {
			return err
		}
		a.targets = append(a.targets, t)
	}
	return a.fits()
}

func refuse(spec Spec, why, fix string, cause error) error {
	if ours(cause) {
		return op("admit", spec.Target, cause)
	}
	return &Error{Op: "admit", Path: spec.Target, Why: why, Fix: fix, Err: because(ErrInvalidPath, cause)}
}

// target resolves one target from the root down and takes its pre-image.
func (a *Admission) target(spec Spec) (target, error) {
	p, why := parsePath(spec.Target)
	if why != "" {
		return target{}, refuse(spec, why, "name a path below the workspace", nil)
	}
	t := target{path: p, dir: a.dirs[""]}
	for i, name := range p {
		t.chain = append(t.chain, Edge{Dev: t.dir.st.Dev, Ino: t.dir.st.Ino, Name: name})
		if i == len(p)-1 {
			break
		}
		next, err := a.open(t.dir, p[:i+1])
		if absent(err) {
			if !spec.MakeParents {
				return t, refuse(spec, fmt.Sprintf("its directory %q does not exist", p[:i+1]), "make it, or ask for missing parents", err)
			}
			for k := i + 1; k < len(p); k++ {
				t.missing = append(t.missing, p[:k].String())
			}
			break
		}
		if err != nil {
			return t, refuse(spec, notThrough(err), "name a path through plain directories of the workspace's own volume", err)
		}
		t.dir = next
	}
	v, err := a.w.fs.Statfs("txn.admit.casefold", t.dir.h)
	if err != nil {
		return t, err
	}
	if v.Casefold {
		return t, refuse(spec, "its directory ignores case", "use a directory with chattr -F", nil)
	}
	if len(t.missing) > 0 {
		return t, nil
	}
	return t, a.preimage(spec, &t)
}

// open opens one directory of a target's way, once a job.
func (a *Admission) open(parent *openDir, p path) (*openDir, error) {
	if d := a.dirs[p.String()]; d != nil {
		return d, nil
	}
	h, err := a.w.fs.OpenDir("txn.admit.open", durable.Name{Dir: parent.h, Name: p[len(p)-1]})
	if err != nil {
		return nil, err
	}
	st, err := a.w.fs.Stat("txn.admit.stat", durable.Name{Dir: h})
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	d := &openDir{h: h, st: st}
	a.dirs[p.String()] = d
	return d, nil
}

func (a *Admission) preimage(spec Spec, t *target) error {
	at := t.at()
	st, err := a.w.fs.Stat("txn.admit.target", at)
	if absent(err) {
		return nil
	}
	if err != nil {
		return refuse(spec, "cannot be looked at", "", err)
	}
	want := map[Kind]durable.Type{File: durable.Regular, Tree: durable.Dir}[spec.Kind]
	switch {
	case st.Type == durable.Link:
		return refuse(spec, "is a symbolic link", "remove it, or name what it points to", nil)
	case st.Type != durable.Regular && st.Type != durable.Dir:
		return refuse(spec, "is neither a regular file nor a directory", "choose another name", nil)
	case st.MountRoot || st.Mount != a.w.mount:
		return refuse(spec, "is a mount point", "choose a name on the workspace's own volume", nil)
	case st.Type != want:
		return refuse(spec, fmt.Sprintf("is a %s, the output a %s", st.Type, spec.Kind), "move it away, or choose another name", nil)
	case st.Type == durable.Regular && st.Mode&0o6000 != 0:
		return refuse(spec, "is setuid or setgid", "choose another name", nil)
	case st.Type == durable.Regular && st.Nlink > 1:
		a.notes = append(a.notes, fmt.Sprintf("target %q has %d names: the others keep the old content", spec.Target, st.Nlink))
	}
	t.old, err = a.w.identify("txn.admit.preimage", at)
	if err != nil {
		return refuse(spec, "its content cannot be recorded", "choose another name", err)
	}
	return nil
}

func (t *target) at() durable.Name { return durable.Name{Dir: t.dir.h, Name: t.path[len(t.path)-1]} }

// Room returns an error that wraps ErrFull if the workspace's volume is nearly full: no job would be admitted.
func (w *Workspace) Room() error { return w.room(w.root) }

// room refuses a job on a volume that is nearly full.
func (w *Workspace) room(dir durable.Handle) error {
	v, err := w.fs.Statfs("txn.admit.room", dir)
	if err != nil {
		return err
	}
	low := ""
	switch {
	case v.FreeBytes < w.o.MinFreeBytes:
		low = fmt.Sprintf("%d bytes free, %d required", v.FreeBytes, w.o.MinFreeBytes)
	case v.TotalInodes > 0 && v.FreeInodes < w.o.MinFreeInodes:
		low = fmt.Sprintf("%d inodes free, %d required", v.FreeInodes, w.o.MinFreeInodes)
	default:
		return nil
	}
	return &Error{Op: "admit", Path: w.path, Why: low, Fix: "free space on the workspace's volume", Err: ErrFull}
}

// fits refuses targets whose journal would not fit, groups and identities of the new files included.
func (a *Admission) fits() error {
	j := Journal{Version: documentVersion, Job: "j", CreatedDirs: a.CreatedDirs(), Outputs: a.Outputs("j")}
	for i := range j.Outputs {
		j.Outputs[i].New = &FileID{Exists: true}
	}
	b, err := j.Encode()
	const rest = 32 << 10 // 64 identities with digests, groups, names
	if err == nil && len(b) > documentMax-rest {
		err = ErrDocument
	}
	if err != nil {
		return &Error{Op: "admit", Path: a.specs[0].Target, Why: "the paths of all targets are too long together", Fix: "shorten them", Err: because(ErrInvalidPath, err)}
	}
	return nil
}

// Chains returns for each target its edges from the root down. With missing parents the last edge is the first missing one.
func (a *Admission) Chains() [][]Edge {
	chains := make([][]Edge, len(a.targets))
	for i, t := range a.targets {
		chains[i] = t.chain
	}
	return chains
}

// Refresh resolves everything again and takes fresh pre-images, once the locks are held: what an earlier job published
// is now the pre-image. changed reports that the chains differ, so that the keys are no longer the right ones.
func (a *Admission) Refresh() (changed bool, err error) {
	b := &Admission{w: a.w, specs: a.specs}
	if err := b.resolve(); err != nil {
		b.Close()
		return false, err
	}
	changed = !slices.EqualFunc(a.Chains(), b.Chains(), func(x, y []Edge) bool { return slices.Equal(x, y) })
	a.Close()
	*a = *b
	return changed, nil
}

// Outputs returns the outputs as job's journal holds them while its tool runs.
func (a *Admission) Outputs(job string) []Output {
	outs := make([]Output, len(a.targets))
	for i, t := range a.targets {
		o := Output{
			Index: i, Name: a.specs[i].Name, Kind: a.specs[i].Kind, Target: t.path.String(),
			Staged: staged(job, i), Method: NoReplace, Old: t.old,
		}
		if len(t.missing) == 0 {
			o.Parent = dirID(t.dir.st)
		}
		if t.old.Exists {
			o.Method = Exchange
		}
		outs[i] = o
	}
	return outs
}

// CreatedDirs returns the missing parents, outermost first, workspace-relative.
func (a *Admission) CreatedDirs() (all []CreatedDir) {
	var dirs []string
	for _, t := range a.targets {
		dirs = append(dirs, t.missing...)
	}
	slices.Sort(dirs)
	for _, p := range slices.Compact(dirs) {
		all = append(all, CreatedDir{Path: p})
	}
	return all
}

// Notes returns what the caller should hear about the targets, such as a hard link that keeps its old content.
func (a *Admission) Notes() []string { return a.notes }

// Close releases the parents. It may be called twice.
func (a *Admission) Close() {
	for p, d := range a.dirs {
		if p != "" {
			shut(d.h)
		}
	}
	a.dirs = nil
}
