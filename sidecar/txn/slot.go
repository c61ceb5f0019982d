package txn

import (
	"fmt"
	"io/fs"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
)

// StagedArg returns the path, relative to work, that the tool is told for this output: ../s0/out.json.
func (o Output) StagedArg() string { return fmt.Sprintf("../s%d/%s", o.Index, slotName(o)) }

// StepFS is StagedFS between two steps: it needs a proof for the first n groups; the others have not been started.
func (t *Txn) StepFS(proofs []cgroup.Empty, n int) (fs.FS, error) {
	sofar := *t.j
	sofar.Groups = t.j.Groups[:n]
	if err := t.w.covered(&sofar, proofs, nil); err != nil {
		return nil, err
	}
	return t.view(), nil
}

// maxTop bounds the listing of a workspace's top level.
const maxTop = 4096

// Entries returns the names at the workspace's top level but our own, at most 4096 of them, sorted.
func (w *Workspace) Entries() ([]string, error) {
	h, err := w.fs.OpenDir("txn.entries", durable.Name{Dir: w.root, Name: "."}) // a reading position of our own
	if err != nil {
		return nil, op("list", w.path, err)
	}
	defer shut(h)
	names, err := w.fs.List("txn.entries", h, maxTop)
	if err != nil {
		return nil, op("list", w.path, err)
	}
	var others []string
	for _, name := range names {
		if name != reserved {
			others = append(others, name)
		}
	}
	return others, nil
}
