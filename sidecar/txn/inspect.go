package txn

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

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
	at      durable.Name   // s<i>/out<ext> until Seal
	h       durable.Handle // open file or directory, for identity and fsync; nil: absent
	slot    durable.Handle
	members []string // of a tree: its files and directories, relative to it
	empty   bool
	id      FileID
	sum     string // SHA-256 as in Inspected
}

const maxUndeclared = 100

// Inspect judges what the tool left, before anybody opens it: types, names, writers, sizes. It needs a proof for every
// group of the journal (ErrUnproven), strips what a published file must not carry, and takes digests. ErrOutput and
// ErrQuota name the output. Nothing is published yet.
func (t *Txn) Inspect(proofs []cgroup.Empty, q Quotas) (*Inspection, error) {
	if err := t.proven(proofs); err != nil {
		return nil, err
	}
	in := &Inspection{}
	if err := t.survey(in, q); err != nil {
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

func (t *Txn) inspect(i int, q Quotas) (Inspected, error) {
	o := &output{spec: t.a.specs[i]}
	t.outs[i] = o
	name := slotName(t.j.Outputs[i])
	got := Inspected{Name: o.spec.Name, Index: i}
	bad := func(why string, cause error) error {
		sentinel := ErrOutput
		if errors.Is(cause, ErrQuota) {
			sentinel = ErrQuota
		}
		return &Error{Op: "inspect", Path: o.spec.Target, Why: why, Err: because(sentinel, cause)}
	}
	var err error
	if o.slot, err = t.w.fs.OpenDir("txn.inspect.slot", t.at(fmt.Sprintf("s%d", i))); err != nil {
		return got, bad("its slot is gone", err)
	}
	defer shut(o.slot)
	o.at = durable.Name{Dir: o.slot, Name: name}
	if from := t.o.Collect[i]; from != "" {
		if err := t.collect(from, o.at); err != nil && !absent(err) {
			return got, bad("cannot be collected", err)
		}
	}
	st, err := t.w.fs.Stat("txn.inspect.stat", o.at)
	switch {
	case absent(err) && o.spec.Optional:
		got.Absent = true
		return got, nil
	case absent(err):
		return got, bad("was not written", err)
	case err != nil:
		return got, bad("cannot be looked at", err)
	}
	want := map[Kind]durable.Type{File: durable.Regular, Tree: durable.Dir}[o.spec.Kind]
	if st.Type != want {
		return got, bad(fmt.Sprintf("is a %s, not a %s", st.Type, want), nil)
	}
	if o.spec.Kind == Tree {
		o.h, err = t.w.fs.OpenDir("txn.inspect.open", o.at)
	} else {
		o.h, err = t.w.fs.OpenFile("txn.inspect.open", o.at)
	}
	if err != nil {
		return got, bad("cannot be opened", err)
	}
	why := ""
	if o.spec.Kind == Tree {
		why, err = t.inspectTree(i, &got, q)
	} else {
		why, err = t.inspectFile(i, &got, q, o.h, st, 1)
		o.empty = got.Bytes == 0
	}
	if err != nil || why != "" {
		return got, bad(cmp.Or(why, "cannot be read"), err)
	}
	if o.empty && !o.spec.AllowEmpty {
		return got, bad("is empty", nil)
	}
	o.sum = got.SHA256
	if o.id, err = t.w.identify("txn.inspect.identify", o.at); err != nil {
		return got, bad("cannot be looked at", err)
	}
	return got, nil
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

// inspectFile judges one regular file, normalises its attributes and adds its digest and size to got.
func (t *Txn) inspectFile(i int, got *Inspected, q Quotas, h durable.Handle, seen durable.Stat, names uint64) (why string, err error) {
	st, err := t.w.fs.Stat("txn.inspect.fstat", durable.Name{Dir: h})
	switch {
	case err != nil:
		return "cannot be looked at", err
	case st.Ino != seen.Ino || st.Type != durable.Regular:
		return "was replaced meanwhile", nil
	case st.Nlink != names && !t.w.controls.noLinkCount:
		return "has another name, through which it could still be written", nil
	case q.OutputBytes > 0 && max(st.Size, st.Blocks*512) > q.OutputBytes:
		return fmt.Sprintf("is larger than %d bytes", q.OutputBytes), ErrQuota
	}
	if err := t.w.fs.Lease("txn.inspect.lease", h); err != nil {
		if errors.Is(err, unix.EAGAIN) {
			return "is open for writing by a process outside the job's group", err
		}
		return "cannot be leased", err
	}
	if err := t.normalise(i, h, st); err != nil {
		return "its attributes cannot be set", err
	}
	got.SHA256, got.Bytes, err = t.w.digest("txn.inspect.read", h, q.OutputBytes)
	if err != nil {
		return "cannot be read", err
	}
	return "", t.w.fs.Writeback("txn.inspect.writeback", h)
}

// inspectTree judges every member of a tree. Its digest covers path, type, mode and content.
func (t *Txn) inspectTree(i int, got *Inspected, q Quotas) (why string, err error) {
	o := t.outs[i]
	names := map[uint64]uint64{} // names found of each inode, all in this tree
	scan := func(visit func(entry) error) error {
		k := walker{w: t.w, site: "txn.inspect.tree", entries: maxEntries, depth: maxDepth}
		return k.run(o.h, "", visit)
	}
	if err := scan(func(e entry) error { names[e.st.Ino]++; return nil }); err != nil {
		return "", err
	}
	sum := sha256.New()
	rootStat, err := t.w.fs.Stat("txn.inspect.fstat", durable.Name{Dir: o.h})
	if err != nil {
		return "", err
	}
	if err := t.normalise(i, o.h, rootStat); err != nil {
		return "its attributes cannot be set", err
	}
	o.empty = len(names) == 0
	blocks := int64(0)
	err = scan(func(e entry) error {
		var one Inspected
		var detail string
		switch e.st.Type {
		case durable.Other:
			why = fmt.Sprintf("holds %q, which is no file, directory or link", e.path)
		case durable.Link:
			detail, why = t.inspectLink(o, e)
		case durable.Dir, durable.Regular:
			why, err = t.inspectMember(i, &one, q, e, names[e.st.Ino])
			if err != nil {
				return err
			}
			o.members = append(o.members, e.path)
		}
		if why != "" {
			why = fmt.Sprintf("%q: %s", e.path, why)
			return errSkipAll
		}
		got.Bytes += one.Bytes
		blocks += e.st.Blocks * 512
		if q.OutputBytes > 0 && max(got.Bytes, blocks) > q.OutputBytes {
			why = fmt.Sprintf("is larger than %d bytes", q.OutputBytes)
			return ErrQuota
		}
		_, err := fmt.Fprintf(sum, "%q %s %o %s %q\n", e.path, e.st.Type, t.mode(e.st), one.SHA256, detail)
		return err
	})
	if errors.Is(err, errSkipAll) {
		return why, nil
	}
	got.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return why, err
}

// errSkipAll ends a walk whose verdict is in.
var errSkipAll = errors.New("end this walk")

func (t *Txn) inspectMember(i int, got *Inspected, q Quotas, e entry, names uint64) (why string, err error) {
	if e.st.Type == durable.Dir {
		h, err := t.w.fs.OpenDir("txn.inspect.open", e.at)
		if err != nil {
			return "", err
		}
		defer shut(h)
		return "", t.normalise(i, h, e.st)
	}
	h, err := t.w.fs.OpenFile("txn.inspect.open", e.at)
	if err != nil {
		return "", err
	}
	defer shut(h)
	return t.inspectFile(i, got, q, h, e.st, names)
}

// inspectLink accepts a relative link whose leading ".." stay in the tree and that has none behind a name: such a one
// could climb out through another link.
func (t *Txn) inspectLink(o *output, e entry) (target, why string) {
	if !o.spec.AllowLinks {
		return "", "is a symbolic link"
	}
	target, err := t.w.fs.Readlink("txn.inspect.readlink", e.at)
	if err != nil {
		return "", "cannot be read as a link"
	}
	up, rest := strings.Count(e.path, "/"), target
	for {
		after, ok := strings.CutPrefix(rest, "../")
		if !ok {
			break
		}
		up, rest = up-1, after
	}
	if rest == ".." {
		up, rest = up-1, "."
	}
	if up < 0 || strings.HasPrefix(target, "/") || slices.Contains(strings.Split(rest, "/"), "..") {
		return "", "is a link that leaves the output"
	}
	return target, ""
}

// mode is what a published object may have: the tool's permission bits, less our umask.
func (t *Txn) mode(st durable.Stat) uint32 { return st.Mode & 0o777 &^ t.w.o.Umask }

// normalise gives a staged object the attributes of a new one in its target's parent: rename keeps those of staging.
func (t *Txn) normalise(i int, h durable.Handle, st durable.Stat) error {
	parent := t.a.targets[i].dir
	at := durable.Name{Dir: h}
	gid := t.w.o.ToolGID
	if parent.st.Mode&0o2000 != 0 {
		gid = int(parent.st.GID)
	}
	if t.w.o.ToolUID >= 0 && uint32(t.w.o.ToolUID) != st.UID || gid >= 0 && uint32(gid) != st.GID {
		if err := t.w.chown(at, t.w.o.ToolUID, gid); err != nil {
			return err
		}
	}
	const defaultACL, accessACL = "system.posix_acl_default", "system.posix_acl_access"
	acl, err := t.w.fs.Xattr("txn.normalise.xattr", parent.h, defaultACL)
	if err != nil {
		return err
	}
	label, err := t.w.fs.Xattr("txn.normalise.xattr", parent.h, "security.selinux")
	if err != nil {
		return err
	}
	type xattr struct {
		name  string
		value []byte
	}
	want := []xattr{{"security.capability", nil}, {accessACL, acl}}
	if st.Type == durable.Dir {
		want = append(want, xattr{defaultACL, acl})
	}
	if label != nil {
		want = append(want, xattr{"security.selinux", label})
	}
	for _, x := range want {
		have, err := t.w.fs.Xattr("txn.normalise.xattr", h, x.name)
		if err != nil {
			return err
		}
		if string(have) != string(x.value) {
			if err := t.w.fs.SetXattr("txn.normalise.setxattr", h, x.name, x.value); err != nil {
				return err
			}
		}
	}
	return t.w.fs.Chmod("txn.normalise.chmod", at, t.mode(st))
}
