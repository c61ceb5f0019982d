package txn

import (
	"fmt"
	"slices"
)

// StagedArg returns the path, relative to work, that the tool is told for this output: ../s0/out.json.
func (o Output) StagedArg() string { return fmt.Sprintf("../s%d/%s", o.Index, slotName(o)) }

// enough is the room, in bytes, below which a tool's writes may have failed.
const enough = 64 << 10

// Exhausted reports whether the workspace's volume has no room, so that what a tool wrote last may be lost.
func (w *Workspace) Exhausted() bool {
	v, err := w.fs.Statfs("txn.exhausted", w.root)
	return err == nil && (v.FreeBytes < enough || v.TotalInodes > 0 && v.FreeInodes == 0)
}

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
