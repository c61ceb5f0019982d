package txn

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
)

// Quotas bound what a job may leave behind. A zero field has no bound but the built-in ones.
type Quotas struct {
	OutputBytes int64 // of one output, apparent size and blocks
	JobBytes    int64 // of the job directory, apparent size and blocks
	Entries     int   // of the job directory; at most, and by default, 100,000
}

// Inspection is what the staging walk found.
type Inspection struct {
	Outputs         []Inspected
	Undeclared      []string // relative to the job directory, at most 100
	UndeclaredTotal int
}

// Inspected is one declared output.
type Inspected struct {
	Name   string
	Index  int
	Absent bool   // optional and not there
	Bytes  int64  // of a tree: of its files together
	SHA256 string // hex; of a tree: of its manifest with the digests of its files
}

// output is one staged output between Inspect and publication.
type output struct {
	spec    Spec
	slot    string         // out<ext>, in s<i>/ until Seal
	h       durable.Handle // held for its fsync, so that a write-back error is not lost; nil: absent
	members []string       // of a tree: its files and directories, relative to it
	id      FileID
}

const maxUndeclared = 100

// Inspect judges what the tool left, before anybody opens it: types, names, writers, sizes. It needs a proof for every
// group of the journal (ErrUnproven), strips what a published file must not carry, and takes digests. ErrOutput and
// ErrQuota name the output. Nothing is published yet.
func (t *Txn) Inspect(proofs []cgroup.Empty, q Quotas) (*Inspection, error) {
	if err := t.proven(proofs); err != nil {
		return nil, err
	}
	if err := t.mend(); err != nil {
		return nil, op("inspect", t.name, err)
	}
	in := &Inspection{}
	err := t.survey(in, q)
	if errors.Is(err, fs.ErrPermission) { // ours are mended: the tool took it from its own
		err = because(ErrOutput, err)
	}
	if err != nil {
		return nil, op("inspect", t.name, err)
	}
	t.outs = make([]*output, len(t.j.Outputs))
	for i := range t.j.Outputs {
		got, err := t.inspect(i, q)
		if err != nil {
			return nil, err
		}
		in.Outputs = append(in.Outputs, got)
	}
	return in, nil
}

// survey walks the whole job directory: quotas, and what nobody declared.
func (t *Txn) survey(in *Inspection, q Quotas) error {
	known := map[string]bool{"log": true, recoveryFile: true}
	for _, name := range slices.Concat(t.o.Links, t.o.Products) {
		known["work/"+name] = true
	}
	for name := range t.o.Files {
		known["work/"+name] = true
	}
	for _, name := range t.o.Collect {
		known["work/"+name] = true
	}
	var slots []string
	for i, o := range t.j.Outputs {
		slots = append(slots, fmt.Sprintf("s%d/%s", i, slotName(o)))
	}
	return t.w.measure(t.dir, q, false, func(e entry) {
		declared := slices.ContainsFunc(slots, func(s string) bool { return within(e.path, s) })
		if e.st.Type == durable.Dir || known[e.path] || declared {
			return
		}
		if in.UndeclaredTotal++; in.UndeclaredTotal <= maxUndeclared {
			in.Undeclared = append(in.Undeclared, e.path)
		}
	})
}

// measure walks a job directory and holds it against the job's quotas.
func (w *Workspace) measure(dir durable.Handle, q Quotas, racing bool, visit func(entry)) error {
	var size, blocks int64
	k := walker{w: w, site: "txn.measure", entries: cmp.Or(min(q.Entries, maxEntries), maxEntries), depth: maxDepth, racing: racing}
	return k.run(dir, "", func(e entry) error {
		visit(e)
		if e.st.Type == durable.Regular {
			size += e.st.Size
		}
		blocks += e.st.Blocks * 512
		if q.JobBytes > 0 && max(size, blocks) > q.JobBytes {
			return &Error{Op: "measure", Path: e.path, Why: fmt.Sprintf("the job holds more than %d bytes", q.JobBytes), Err: ErrQuota}
		}
		return nil
	})
}

// Sample holds a running job's directory against its quotas: ErrQuota. What comes and goes meanwhile is no error.
func (w *Workspace) Sample(j *Journal, q Quotas) error {
	for _, name := range []string{j.Job, scratch + j.Job} {
		h, err := w.fs.OpenDir("txn.sample.open", durable.Name{Dir: w.jobs, Name: name})
		if absent(err) {
			continue
		}
		if err != nil {
			return op("sample", name, err)
		}
		err = w.measure(h, q, true, func(entry) {})
		return errors.Join(err, h.Close())
	}
	return nil
}

func (t *Txn) inspect(i int, q Quotas) (got Inspected, err error) {
	o := &output{spec: t.a.specs[i], slot: slotName(t.j.Outputs[i])}
	t.outs[i] = o
	got = Inspected{Name: o.spec.Name, Index: i}
	defer func() {
		var known *Error
		if err != nil && (!errors.As(err, &known) || known.Op != "inspect") {
			err = o.bad("cannot be inspected", err)
		}
	}()
	slot, err := t.w.fs.OpenDir("txn.inspect.slot", t.at(fmt.Sprintf("s%d", i)))
	if err != nil {
		return got, err
	}
	defer shut(slot)
	at := durable.Name{Dir: slot, Name: o.slot}
	if from := t.o.Collect[i]; from != "" {
		if err := t.collect(from, at); err != nil && !absent(err) {
			return got, err
		}
	}
	st, err := t.w.fs.Stat("txn.inspect.stat", at)
	want := map[Kind]durable.Type{File: durable.Regular, Tree: durable.Dir}[o.spec.Kind]
	switch {
	case absent(err) && o.spec.Optional:
		got.Absent = true
		return got, nil
	case absent(err):
		return got, o.bad("was not written", err)
	case err != nil:
		return got, err
	case st.Type != want:
		return got, o.bad(fmt.Sprintf("is a %s, not a %s", st.Type, want), nil)
	}
	names := map[uint64]uint64{} // names of each inode, all in this output
	scan := func(visit func(entry) error) error {
		k := walker{w: t.w, site: "txn.inspect.walk", entries: maxEntries, depth: maxDepth}
		return k.one(at, "", visit)
	}
	if err := scan(func(e entry) error { names[e.st.Ino]++; return nil }); err != nil {
		return got, err
	}
	sum, blocks := sha256.New(), int64(0)
	err = scan(func(e entry) error {
		one, err := t.inspectEntry(i, e, names[e.st.Ino], q)
		got.Bytes, blocks = got.Bytes+one.Bytes, blocks+e.st.Blocks*512
		got.SHA256 = one.SHA256
		if err == nil && q.OutputBytes > 0 && max(got.Bytes, blocks) > q.OutputBytes {
			err = o.bad(fmt.Sprintf("is larger than %d bytes", q.OutputBytes), ErrQuota)
		}
		sum.Write(fmt.Appendf(nil, "%q %s %o %q\n", e.path, e.st.Type, t.mode(e.st), one.SHA256))
		return err
	})
	if err != nil {
		return got, err
	}
	if !o.spec.AllowEmpty && (o.spec.Kind == File && got.Bytes == 0 || o.spec.Kind == Tree && len(names) == 1) {
		return got, o.bad("is empty", nil)
	}
	if o.spec.Kind == Tree {
		got.SHA256 = hex.EncodeToString(sum.Sum(nil))
	}
	o.id, err = t.w.identify("txn.inspect.identify", at)
	o.id.SHA256 = got.SHA256
	return got, err
}

// bad is a refusal of this output: ErrQuota if that is the cause, else ErrOutput.
func (o *output) bad(why string, cause error) error {
	if errors.Is(cause, ErrQuota) {
		return &Error{Op: "inspect", Path: o.spec.Target, Why: why, Err: cause}
	}
	return &Error{Op: "inspect", Path: o.spec.Target, Why: why, Err: because(ErrOutput, cause)}
}

// inspectEntry judges one file or directory of an output, the output itself included (its path is empty), and
// normalises its attributes. names is how many names of the object were found in the output.
func (t *Txn) inspectEntry(i int, e entry, names uint64, q Quotas) (got Inspected, err error) {
	o := t.outs[i]
	what := strings.TrimPrefix(e.path, "/")
	bad := func(why string, cause error) error { return o.bad(strings.TrimSpace(what+" "+why), cause) }
	open := t.w.fs.OpenFile
	switch e.st.Type {
	case durable.Other, durable.Link:
		return got, bad("is neither a file nor a directory", nil)
	case durable.Dir:
		open = t.w.fs.OpenDir
	case durable.Regular:
	}
	h, err := open("txn.inspect.open", e.at)
	if err != nil {
		return got, err
	}
	if e.path == "" {
		o.h = h
	} else {
		defer shut(h)
		o.members = append(o.members, what)
	}
	st, err := t.w.fs.Stat("txn.inspect.fstat", durable.Name{Dir: h})
	switch {
	case err != nil:
		return got, err
	case st.Ino != e.st.Ino || st.Type != e.st.Type:
		return got, bad("was replaced meanwhile", nil)
	case st.Type == durable.Dir:
		return got, t.normalise(i, h, st)
	case st.Nlink != names:
		return got, bad("has another name, through which it could still be written", nil)
	case q.OutputBytes > 0 && st.Size > q.OutputBytes:
		return got, bad(fmt.Sprintf("is larger than %d bytes", q.OutputBytes), ErrQuota)
	}
	if err := t.w.fs.Lease("txn.inspect.lease", h); err != nil {
		return got, bad("is open for writing by a process outside the job's group", err)
	}
	if err := t.normalise(i, h, st); err != nil {
		return got, err
	}
	if got.SHA256, got.Bytes, err = t.w.digest("txn.inspect.read", h, st.Size, q.OutputBytes); err != nil {
		return got, err
	}
	return got, t.w.fs.Writeback("txn.inspect.writeback", h)
}

// collect moves what the tool named itself into its slot.
func (t *Txn) collect(name string, slot durable.Name) error {
	parent, base := jobPath("work/" + name).split()
	dir, err := t.w.openPath("txn.collect.open", t.dir, parent)
	if err != nil {
		return err
	}
	defer shut(dir)
	return t.w.fs.Move("txn.collect.move", durable.Name{Dir: dir, Name: base}, slot)
}

// mode is what a published object may have: the tool's permission bits, less our umask.
func (t *Txn) mode(st durable.Stat) uint32 { return st.Mode & 0o777 &^ umask }

// owner returns whose a new object in a directory is; -1: ours.
func (w *Workspace) owner(dir durable.Stat) (uid, gid int) {
	if dir.Mode&setgid != 0 {
		return w.o.ToolUID, int(dir.GID)
	}
	return w.o.ToolUID, w.o.ToolGID
}

// normalise gives a staged object the attributes of a new one in its target's parent: rename keeps those of staging.
func (t *Txn) normalise(i int, h durable.Handle, st durable.Stat) error {
	parent := t.a.targets[i].dir
	at := durable.Name{Dir: h}
	uid, gid := t.w.owner(parent.st)
	if uid >= 0 && uint32(uid) != st.UID || gid >= 0 && uint32(gid) != st.GID {
		if err := t.w.chown(at, uid, gid); err != nil {
			return err
		}
	}
	const defaultACL, accessACL, label = "system.posix_acl_default", "system.posix_acl_access", "security.selinux"
	inherited := []struct{ attr, from string }{{"security.capability", ""}, {accessACL, defaultACL}, {label, label}}
	if st.Type == durable.Dir {
		inherited = append(inherited, struct{ attr, from string }{defaultACL, defaultACL})
	}
	for _, x := range inherited {
		var want []byte
		var err error
		if x.from != "" {
			if want, err = t.w.fs.Xattr("txn.normalise.xattr", parent.h, x.from); err != nil {
				return err
			}
		}
		have, err := t.w.fs.Xattr("txn.normalise.xattr", h, x.attr)
		if err == nil && string(have) != string(want) && (want != nil || x.attr != label) {
			err = t.w.fs.SetXattr("txn.normalise.setxattr", h, x.attr, want)
		}
		if err != nil {
			return err
		}
	}
	return t.w.fs.Chmod("txn.normalise.chmod", at, t.mode(st))
}
