package txn

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
)

// BeginOptions say what a job directory holds before the tool starts.
type BeginOptions struct {
	Links    []string          // first components of inputs: work/<name> becomes a link to the workspace's entry
	Files    map[string][]byte // driver scripts by name, written into work/ 0644
	Products []string          // relative to work/: known to the adapter, hence not reported as undeclared
	Collect  map[int]string    // output index: name in work/ that the tool chose itself, moved into the slot by Inspect
}

// Txn is the transaction of one job: its directory, and the way of its outputs to their targets. Steps are called in the
// order of the protocol, by one goroutine.
type Txn struct {
	w       *Workspace
	j       *Journal
	a       *Admission // nil for a read
	o       BeginOptions
	name    string         // of the directory in jobs/
	dir     durable.Handle // jobs/<name>
	log     *os.File
	notes   durable.Handle            // recovery.json, and
	noted   int                       // its length
	outs    []*output                 // one an output, from Inspect on
	changed map[string]durable.Handle // by path: every directory that Exchange changed; the Admission closes them
}

// Begin makes jobs/<job> with s<i>, work, tmp, log and recovery.json. j is the journal as the ledger has it; a nil
// Admission makes the scratch directory r-<job> of a read. After an error nothing is left.
func (w *Workspace) Begin(j *Journal, a *Admission, o BeginOptions) (_ *Txn, err error) {
	t := &Txn{w: w, j: j, a: a, o: o, name: j.Job, changed: map[string]durable.Handle{}}
	if a == nil {
		t.name = scratch + j.Job
	} else if !slices.Equal(a.Outputs(j.Job), j.Outputs) {
		return nil, fmt.Errorf("begin %q: internal error: the journal's outputs are not the admission's", j.Job)
	}
	if !plainJob(j.Job) {
		return nil, fmt.Errorf("begin %q: job id is not plain: %w", j.Job, ErrDocument)
	}
	if err := w.mend(""); err != nil {
		return nil, op("begin", j.Job, err)
	}
	at := durable.Name{Dir: w.jobs, Name: t.name}
	mkdir := w.mkdir(at, sideMode, -1, -1)
	if exists(mkdir) { // another's: leave it
		return nil, op("begin", j.Job, mkdir)
	}
	defer func() {
		if err != nil {
			err = errors.Join(op("begin", j.Job, err), t.Close(), w.remove(at, maxDepth))
		}
	}()
	if mkdir != nil {
		return nil, mkdir
	}
	if t.dir, err = w.fs.OpenDir("txn.begin.open", at); err != nil {
		return nil, err
	}
	if err = t.layout(); err != nil {
		return nil, err
	}
	return t, t.note(WorkerRunning, 0)
}

func (t *Txn) at(name string) durable.Name { return durable.Name{Dir: t.dir, Name: name} }

// layout makes what a tool may write in, and the view of the inputs in its working directory.
func (t *Txn) layout() error {
	dirs := []string{"work", "tmp"}
	for i := range t.j.Outputs {
		dirs = append(dirs, fmt.Sprintf("s%d", i))
	}
	for _, d := range dirs {
		if err := t.w.mkdir(t.at(d), 0o700, t.w.o.ToolUID, t.w.o.ToolGID); err != nil {
			return err
		}
	}
	tmp, err := t.w.fs.OpenDir("txn.begin.open", t.at("tmp"))
	if err != nil {
		return err
	}
	defer shut(tmp)
	if err := t.w.mkdir(durable.Name{Dir: tmp, Name: "home"}, 0o700, t.w.o.ToolUID, t.w.o.ToolGID); err != nil {
		return err
	}
	work, err := t.w.fs.OpenDir("txn.begin.open", t.at("work"))
	if err != nil {
		return err
	}
	defer shut(work)
	for _, name := range t.o.Links {
		if p, why := parsePath(name); why != "" || len(p) != 1 {
			return &Error{Op: "link", Path: name, Why: cmp.Or(why, "is not one component"), Err: ErrInvalidPath}
		}
		if err := t.w.fs.Symlink("txn.begin.link", durable.Name{Dir: work, Name: name}, "../../../../"+name); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.o.Files)) {
		h, err := t.w.write(durable.Name{Dir: work, Name: name}, t.o.Files[name], 0o644)
		if err != nil {
			return err
		}
		if err := h.Close(); err != nil {
			return err
		}
	}
	log, err := t.w.write(t.at("log"), nil, 0o600)
	if err != nil {
		return err
	}
	t.log = log.File()
	return nil
}

// write makes a new file of our own with exactly this mode.
func (w *Workspace) write(at durable.Name, content []byte, mode uint32) (durable.Handle, error) {
	h, err := w.fs.Create("txn.write.create", at, mode)
	if err != nil {
		return nil, err
	}
	err = w.fs.WriteAt("txn.write.write", h, content, 0)
	if err == nil {
		err = w.fs.Chmod("txn.write.chmod", durable.Name{Dir: h}, mode)
	}
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// recoveryFile is for a human eye. Nothing reads it.
const recoveryFile = "recovery.json"

// note rewrites recovery.json, in place: a new file would be allocated, written back and renamed between two barriers, a
// third of what publication costs. Blanks keep what is shorter than before valid. Only its first writing may fail a job.
func (t *Txn) note(p Phase, pid int) (err error) {
	b, err := json.MarshalIndent(struct {
		*Journal
		Phase     Phase     `json:"phase"`
		PID       int       `json:"pid,omitempty"`
		UpdatedAt time.Time `json:"updated_at"`
	}{t.j, p, pid, t.w.o.Now().UTC()}, "", "  ")
	if err != nil {
		return err
	}
	if t.notes == nil {
		t.notes, err = t.w.write(t.at(recoveryFile), b, 0o600)
	} else {
		b = append(b, bytes.Repeat([]byte(" "), max(0, t.noted-len(b)))...)
		err = t.w.fs.WriteAt("txn.note.write", t.notes, b, 0)
	}
	t.noted = len(b)
	return err
}

// replace writes a file of our own anew. It is not synced: a barrier, or nobody, needs it.
func (w *Workspace) replace(at durable.Name, content []byte, mode uint32) error {
	tmp := durable.Name{Dir: at.Dir, Name: at.Name + ".tmp"}
	if err := w.fs.Unlink("txn.replace.unlink", tmp); err != nil && !absent(err) {
		return err
	}
	h, err := w.write(tmp, content, mode)
	if err != nil {
		return err
	}
	if err := h.Close(); err != nil {
		return err
	}
	return w.fs.Replace("txn.replace.rename", tmp, at)
}

// Started notes the pid of the tool's leader in recovery.json.
func (t *Txn) Started(pid int) {
	_ = t.note(WorkerRunning, pid) // best effort: for a human eye
}

// Dir returns the absolute path of the job directory.
func (t *Txn) Dir() string { return filepath.Join(t.w.path, reserved, "jobs", t.name) }

// Work returns the absolute path of the tool's working directory.
func (t *Txn) Work() string { return filepath.Join(t.Dir(), "work") }

// Log returns the job's log, open for writing until Close.
func (t *Txn) Log() *os.File { return t.log }

// slotName is out with the extension of the target, if that is plain; tools choose the format by it.
func slotName(o Output) string {
	ext := filepath.Ext(o.Target)
	if o.Kind == Tree || len(ext) < 2 || len(ext) > 17 {
		return "out"
	}
	for _, r := range ext[1:] {
		if !plainJob("x" + string(r)) {
			return "out"
		}
	}
	return "out" + ext
}

// proven reports ErrUnproven unless every group of the journal, at least one, has a proof.
func (t *Txn) proven(proofs []cgroup.Empty) error { return t.w.covered(t.j, proofs, nil) }

func (w *Workspace) covered(j *Journal, proofs []cgroup.Empty, confined []cgroup.Confined) error {
	for _, ref := range j.Groups {
		ok := slices.ContainsFunc(proofs, func(e cgroup.Empty) bool { return e.Proves(ref) }) ||
			slices.ContainsFunc(confined, func(c cgroup.Confined) bool { return c.Covers(ref) })
		if !ok {
			return fmt.Errorf("job %q: group %q: %w", j.Job, ref.Path, ErrUnproven)
		}
	}
	if len(j.Groups) == 0 {
		return fmt.Errorf("job %q: no group in the journal: %w", j.Job, ErrUnproven)
	}
	return nil
}

// mend is Workspace.mend for a job whose tool is dead, with the log.
func (t *Txn) mend() error {
	if t.w.o.Mend != nil {
		t.w.o.Mend()
	}
	return cmp.Or(t.w.mend(t.name), durable.Mend(t.w.fs, t.at("log"), 0o600))
}

// StagedFS shows the job directory to validators: regular files and directories, no links. Names as in s0/out.json, work/x.
func (t *Txn) StagedFS(proofs []cgroup.Empty) (fs.FS, error) {
	return t.StepFS(proofs, len(t.j.Groups))
}

// StepFS is StagedFS between two steps: it needs a proof for the first n groups; the others have not been started.
func (t *Txn) StepFS(proofs []cgroup.Empty, n int) (fs.FS, error) {
	sofar := *t.j
	sofar.Groups = t.j.Groups[:n]
	if err := cmp.Or(t.w.covered(&sofar, proofs, nil), t.mend()); err != nil {
		return nil, err
	}
	return stagedFS{os.DirFS(t.Dir())}, nil
}

// Close releases the handles. The Admission is closed by whoever made it. It may be called twice.
func (t *Txn) Close() error {
	var errs []error
	for _, o := range t.outs {
		if o != nil && o.h != nil {
			errs = append(errs, o.h.Close())
		}
	}
	if t.log != nil {
		errs = append(errs, t.log.Close())
	}
	for _, h := range []durable.Handle{t.notes, t.dir} {
		if h != nil {
			errs = append(errs, h.Close())
		}
	}
	t.outs, t.log = nil, nil
	return errors.Join(errs...)
}
