package txn

import (
	"io"
	"io/fs"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
)

// stagedFS is an fs.FS on a job directory that follows no link and opens nothing but regular files and directories.
type stagedFS struct {
	w   *Workspace
	dir durable.Handle
}

// Open implements fs.FS.
func (s stagedFS) Open(name string) (fs.File, error) {
	f, err := s.open(name)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return f, nil
}

func (s stagedFS) open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, fs.ErrInvalid
	}
	parent, base := jobPath(name).split()
	dir, err := s.w.openPath("txn.staged.open", s.dir, parent)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // opened for reading
	at := durable.Name{Dir: dir, Name: base}
	st, err := s.w.fs.Stat("txn.staged.stat", at)
	if err != nil {
		return nil, err
	}
	f := &stagedFile{w: s.w, name: base, st: st}
	switch st.Type {
	case durable.Dir:
		f.h, err = s.w.fs.OpenDir("txn.staged.open", at)
	case durable.Regular:
		f.h, err = s.w.fs.OpenFile("txn.staged.open", at)
	case durable.Link, durable.Other:
		return nil, fs.ErrInvalid
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

type stagedFile struct {
	w    *Workspace
	h    durable.Handle
	name string
	st   durable.Stat
	off  int64
	left []string // of a directory, from the first ReadDir on
	read bool
}

func (f *stagedFile) Stat() (fs.FileInfo, error) { return info{f.name, f.st}, nil }
func (f *stagedFile) Close() error               { return f.h.Close() }

func (f *stagedFile) Read(p []byte) (int, error) {
	n, err := f.ReadAt(p, f.off)
	f.off += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

func (f *stagedFile) ReadAt(p []byte, off int64) (int, error) {
	return f.w.fs.ReadAt("txn.staged.read", f.h, p, off)
}

func (f *stagedFile) ReadDir(n int) ([]fs.DirEntry, error) {
	if !f.read {
		var err error
		if f.left, err = f.w.fs.List("txn.staged.list", f.h, maxEntries); err != nil {
			return nil, err
		}
		f.read = true
	}
	if n > 0 && len(f.left) == 0 {
		return nil, io.EOF
	}
	if n <= 0 {
		n = len(f.left)
	}
	var entries []fs.DirEntry
	for _, name := range f.left[:min(n, len(f.left))] {
		st, err := f.w.fs.Stat("txn.staged.stat", durable.Name{Dir: f.h, Name: name})
		if err != nil {
			return entries, err
		}
		entries = append(entries, fs.FileInfoToDirEntry(info{name, st}))
	}
	f.left = f.left[len(entries):]
	return entries, nil
}

type info struct {
	name string
	st   durable.Stat
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.st.Size }
func (i info) ModTime() time.Time { return time.Unix(0, i.st.Mtime) }
func (i info) IsDir() bool        { return i.st.Type == durable.Dir }
func (i info) Sys() any           { return nil }
func (i info) Mode() fs.FileMode {
	mode := fs.FileMode(i.st.Mode & 0o777)
	switch i.st.Type {
	case durable.Dir:
		return mode | fs.ModeDir
	case durable.Link:
		return mode | fs.ModeSymlink
	case durable.Other:
		return mode | fs.ModeIrregular
	case durable.Regular:
	}
	return mode
}
