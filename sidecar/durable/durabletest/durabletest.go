// Package durabletest wraps a durable.FS so that a test can count its operations, or make one of them fail.
// A layering test keeps it out of the product.
package durabletest

import (
	"fmt"
	"slices"
	"sync"

	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
)

// Op is one operation as a hook sees it. N counts from 1, across goroutines, in the order in which operations begin.
type Op struct {
	N      int
	Method string // of durable.FS, such as Exchange
	Site   durable.Site
	Name   string // the (first) name; empty for operations on a handle
}

// Hook runs an operation by calling do, or does not. What it returns is the operation's error.
type Hook func(op Op, do func() error) error

// Hooked is an FS with a hook around every operation but Barrier, whose own operations pass it one by one.
type Hooked struct {
	fs   durable.FS
	hook Hook

	mu sync.Mutex
	n  int
}

// Wrap puts hook around every operation of fs.
func Wrap(fs durable.FS, hook Hook) *Hooked { return &Hooked{fs: fs, hook: hook} }

func (f *Hooked) run(method string, site durable.Site, name string, do func() error) error {
	f.mu.Lock()
	f.n++
	op := Op{N: f.n, Method: method, Site: site, Name: name}
	f.mu.Unlock()
	return f.hook(op, do)
}

// get is run for operations with a result; one that failed has none.
func get[T any](f *Hooked, method string, site durable.Site, name string, do func() (T, error)) (T, error) {
	var got T
	err := f.run(method, site, name, func() (err error) { got, err = do(); return err })
	if err != nil {
		if h, ok := any(got).(durable.Handle); ok {
			_ = h.Close() // the hook says that it was never opened
		}
		var zero T
		return zero, err
	}
	return got, nil
}

// The methods of durable.FS.

func (f *Hooked) OpenRoot(s durable.Site, path string) (durable.Handle, error) {
	return get(f, "OpenRoot", s, path, func() (durable.Handle, error) { return f.fs.OpenRoot(s, path) })
}

func (f *Hooked) OpenDir(s durable.Site, at durable.Name) (durable.Handle, error) {
	return get(f, "OpenDir", s, at.Name, func() (durable.Handle, error) { return f.fs.OpenDir(s, at) })
}

func (f *Hooked) OpenFile(s durable.Site, at durable.Name) (durable.Handle, error) {
	return get(f, "OpenFile", s, at.Name, func() (durable.Handle, error) { return f.fs.OpenFile(s, at) })
}

func (f *Hooked) Create(s durable.Site, at durable.Name, mode uint32) (durable.Handle, error) {
	return get(f, "Create", s, at.Name, func() (durable.Handle, error) { return f.fs.Create(s, at, mode) })
}

func (f *Hooked) Lock(s durable.Site, at durable.Name) (durable.Handle, error) {
	return get(f, "Lock", s, at.Name, func() (durable.Handle, error) { return f.fs.Lock(s, at) })
}

func (f *Hooked) Mkdir(s durable.Site, at durable.Name, mode uint32) error {
	return f.run("Mkdir", s, at.Name, func() error { return f.fs.Mkdir(s, at, mode) })
}

func (f *Hooked) Symlink(s durable.Site, at durable.Name, target string) error {
	return f.run("Symlink", s, at.Name, func() error { return f.fs.Symlink(s, at, target) })
}

func (f *Hooked) Stat(s durable.Site, at durable.Name) (durable.Stat, error) {
	return get(f, "Stat", s, at.Name, func() (durable.Stat, error) { return f.fs.Stat(s, at) })
}

func (f *Hooked) List(s durable.Site, dir durable.Handle, limit int) ([]string, error) {
	return get(f, "List", s, "", func() ([]string, error) { return f.fs.List(s, dir, limit) })
}

func (f *Hooked) Exchange(s durable.Site, a, b durable.Name) error {
	return f.run("Exchange", s, b.Name, func() error { return f.fs.Exchange(s, a, b) })
}

func (f *Hooked) Move(s durable.Site, from, to durable.Name) error {
	return f.run("Move", s, to.Name, func() error { return f.fs.Move(s, from, to) })
}

func (f *Hooked) Replace(s durable.Site, from, to durable.Name) error {
	return f.run("Replace", s, to.Name, func() error { return f.fs.Replace(s, from, to) })
}

func (f *Hooked) Unlink(s durable.Site, at durable.Name) error {
	return f.run("Unlink", s, at.Name, func() error { return f.fs.Unlink(s, at) })
}

func (f *Hooked) Rmdir(s durable.Site, at durable.Name) error {
	return f.run("Rmdir", s, at.Name, func() error { return f.fs.Rmdir(s, at) })
}

func (f *Hooked) Chmod(s durable.Site, at durable.Name, mode uint32) error {
	return f.run("Chmod", s, at.Name, func() error { return f.fs.Chmod(s, at, mode) })
}

func (f *Hooked) Chown(s durable.Site, at durable.Name, uid, gid int) error {
	return f.run("Chown", s, at.Name, func() error { return f.fs.Chown(s, at, uid, gid) })
}

func (f *Hooked) Xattr(s durable.Site, h durable.Handle, attr string) ([]byte, error) {
	return get(f, "Xattr", s, attr, func() ([]byte, error) { return f.fs.Xattr(s, h, attr) })
}

func (f *Hooked) SetXattr(s durable.Site, h durable.Handle, attr string, value []byte) error {
	return f.run("SetXattr", s, attr, func() error { return f.fs.SetXattr(s, h, attr, value) })
}

func (f *Hooked) Lease(s durable.Site, h durable.Handle) error {
	return f.run("Lease", s, "", func() error { return f.fs.Lease(s, h) })
}

func (f *Hooked) ReadAt(s durable.Site, h durable.Handle, p []byte, off int64) (n int, err error) {
	err = f.run("ReadAt", s, "", func() error { n, err = f.fs.ReadAt(s, h, p, off); return err })
	return n, err
}

func (f *Hooked) WriteAt(s durable.Site, h durable.Handle, p []byte, off int64) error {
	return f.run("WriteAt", s, "", func() error { return f.fs.WriteAt(s, h, p, off) })
}

func (f *Hooked) Writeback(s durable.Site, h durable.Handle) error {
	return f.run("Writeback", s, "", func() error { return f.fs.Writeback(s, h) })
}

func (f *Hooked) Sync(s durable.Site, h durable.Handle) error {
	return f.run("Sync", s, "", func() error { return f.fs.Sync(s, h) })
}

func (f *Hooked) Statfs(s durable.Site, dir durable.Handle) (durable.Volume, error) {
	return get(f, "Statfs", s, "", func() (durable.Volume, error) { return f.fs.Statfs(s, dir) })
}

// Barrier passes on: its operations go through f one by one, as they were made with it.
func (f *Hooked) Barrier(s durable.Site, ops ...func() error) error { return f.fs.Barrier(s, ops...) }

// Counting is an FS that records every operation.
type Counting struct {
	*Hooked

	mu    sync.Mutex
	trace []Op
}

// NewCounting counts the operations of fs.
func NewCounting(fs durable.FS) *Counting {
	c := &Counting{}
	c.Hooked = Wrap(fs, func(op Op, do func() error) error {
		c.mu.Lock()
		c.trace = append(c.trace, op)
		c.mu.Unlock()
		return do()
	})
	return c
}

// Trace returns the operations so far, in the order in which they began.
func (c *Counting) Trace() []Op {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.trace)
}

// Count returns how often method was called, at site or (empty) anywhere.
func (c *Counting) Count(method string, site durable.Site) int {
	n := 0
	for _, op := range c.Trace() {
		if op.Method == method && (site == "" || op.Site == site) {
			n++
		}
	}
	return n
}

// Flavour is how an operation fails.
type Flavour string

// The flavours.
const (
	Before Flavour = "before" // not done, and says so
	After  Flavour = "after"  // done, and says that it was not
	Short  Flavour = "short"  // half of a write is done; Before for any other operation
)

// Fault says which operation fails, and how.
type Fault struct {
	N          int // from 1
	Err        error
	Flavour    Flavour
	Persistent bool // N and every operation after it that can fail so, reads excepted
}

// Faulty is an FS that fails at one operation.
type Faulty struct {
	durable.FS
	fault Fault

	mu    sync.Mutex
	fired []Op
}

// NewFaulty fails fs as f says.
func NewFaulty(fs durable.FS, f Fault) *Faulty {
	y := &Faulty{fault: f}
	y.FS = Wrap(fs, func(op Op, do func() error) error {
		if op.N != f.N && !(f.Persistent && op.N > f.N && mutates(op.Method)) {
			return do()
		}
		y.mu.Lock()
		y.fired = append(y.fired, op)
		y.mu.Unlock()
		if f.Flavour == After {
			if err := do(); err != nil {
				return err
			}
		}
		return fmt.Errorf("%s at %s: fault: %w", op.Method, op.Site, f.Err)
	})
	return y
}

// Fired returns the operations that were made to fail; empty: the run had fewer than N.
func (y *Faulty) Fired() []Op {
	y.mu.Lock()
	defer y.mu.Unlock()
	return slices.Clone(y.fired)
}

// WriteAt does half of a short write first.
func (y *Faulty) WriteAt(s durable.Site, h durable.Handle, p []byte, off int64) error {
	before := len(y.Fired())
	err := y.FS.WriteAt(s, h, p, off)
	if y.fault.Flavour == Short && len(y.Fired()) > before && len(p) > 1 {
		inner := y.FS.(*Hooked).fs
		if werr := inner.WriteAt(s, h, p[:len(p)/2], off); werr != nil {
			return werr
		}
	}
	return err
}

func mutates(method string) bool {
	return slices.Contains([]string{
		"Create", "Lock", "Mkdir", "Symlink", "Exchange", "Move", "Replace", "Unlink", "Rmdir", "Chmod", "Chown", "SetXattr",
		"WriteAt", "Writeback", "Sync",
	}, method)
}

// Scripted is an FS whose Statfs answers what a test says; everything else is fs.
type Scripted struct {
	durable.FS
	Volume durable.Volume
}

// Statfs returns the script.
func (s Scripted) Statfs(durable.Site, durable.Handle) (durable.Volume, error) { return s.Volume, nil }
