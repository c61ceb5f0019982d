package txn

import (
	"fmt"
	"slices"
)

// StagedArg returns the path, relative to work, that the tool is told for this output: ../s0/out.json.
func (o Output) StagedArg() string { return fmt.Sprintf("../s%d/%s", o.Index, slotName(o)) }

// maxTop bounds the listing of a workspace's top level.
const maxTop = 4096

// Entries returns the names at the workspace's top level but our own, at most 4096 of them, sorted.
func (w *Workspace) Entries() ([]string, error) {
	h, err := w.openPath("txn.entries", w.root, nil) // a reading position of our own
	if err != nil {
		return nil, op("list", w.path, err)
	}
	defer shut(h)
	names, err := w.fs.List("txn.entries", h, maxTop)
	if err != nil {
		return nil, op("list", w.path, err)
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == reserved }), nil
}
