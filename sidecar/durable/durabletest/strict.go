package durabletest

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"io"
	"iter"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
)

// Strict is a volume in memory that promises no more than POSIX does, and can lose power. Every operation on a directory
// becomes durable by itself, in any order, unless a completed sync of a directory that it touched covers it; the content
// of a file by a sync of that file alone. One rename or exchange is atomic. Real file systems hide a missing sync behind
// their journal; this one does not. Barrier runs its operations one after another. Owners and attributes are not kept, and
// there are no hard links.
type Strict struct {
	mu sync.Mutex
	// guarded by mu
	live   image
	start  image // what was durable when log began
	log    []Step
	inodes []inode // by number; 0 is none, 1 the root
	locked map[int]bool
	clock  int64 // nanoseconds; each change takes one
}

// Step is one change, one sync or one mark in the log of a Strict.
type Step struct {
	N      int    // in the log of its Strict, from 1; 0: somebody made it up
	Method string // of durable.FS; empty: a mark
	Site   durable.Site
	Name   string // that was changed or, of a sync, under which the object was opened
	Mark   any

	writes []write
	synced int // inode
}

// write changes one slot: an entry of a directory, or what a file holds.
type write struct {
	of    int    // inode of the directory or file
	entry string // empty: what a file holds
	ino   int    // 0: no entry
	file  *content
}

type inode struct {
	typ   durable.Type
	mode  uint32
	btime int64
	link  string
}

// content is what a file holds. It is never changed.
type content struct {
	data  []byte
	mode  uint32
	mtime int64
	sum   uint64
}

// image is the content of a volume. Its inner maps are never changed, but replaced.
type image struct {
	dirs  map[int]map[string]int
	files map[int]*content
}

func (im image) clone() image { return image{maps.Clone(im.dirs), maps.Clone(im.files)} }

func (im image) apply(w write) {
	if w.entry == "" {
		im.files[w.of] = w.file
		return
	}
	dir := maps.Clone(im.dirs[w.of])
	if dir == nil {
		dir = map[string]int{}
	}
	if dir[w.entry] = w.ino; w.ino == 0 {
		delete(dir, w.entry)
	}
	im.dirs[w.of] = dir
}

// NewStrict returns an empty volume.
func NewStrict() *Strict {
	return &Strict{
		live: image{map[int]map[string]int{}, map[int]*content{}}, inodes: []inode{{}, {typ: durable.Dir, mode: 0o755, btime: 1}},
		locked: map[int]bool{}, clock: 1,
	}
}

// Settle makes all that is there durable, and forgets the log.
func (s *Strict) Settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start, s.log = image{}, nil
}

// Mark puts something else that happened into the log.
func (s *Strict) Mark(what any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(Step{Mark: what})
}

// Log returns the steps since Settle.
func (s *Strict) Log() []Step {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

func (s *Strict) note(step Step) {
	if s.start.dirs == nil {
		s.start = s.live.clone()
	}
	step.N = len(s.log) + 1
	s.log = append(s.log, step)
}

// change does and logs one operation.
func (s *Strict) change(method string, site durable.Site, name string, writes ...write) {
	s.note(Step{Method: method, Site: site, Name: name, writes: writes})
	for _, w := range writes {
		s.live.apply(w)
	}
	s.clock++
}

// Losses yields what a loss of power may leave after each step of a log from the step first on, on the volume as it was when
// the log of s began: all subsets of what no sync has covered. An operation that is durable without an earlier one that it
// rests on is read in both ways: it puts into its names what it put there, or what its names hold on the disk. A step that
// only takes possibilities away, a sync, yields nothing; a change yields those that hold it, all that was done last. At steps for which settled says
// yes the change is durable at once: nobody looks at it. The index is that of the last step that was done.
func (s *Strict) Losses(log []Step, first int, settled func(Step) bool) iter.Seq2[int, *Strict] {
	return func(yield func(int, *Strict) bool) {
		s.mu.Lock()
		base := s.start.clone()
		s.mu.Unlock()
		var pending []Step
		for i, step := range log {
			switch {
			case step.Method == "Sync":
				pending = cover(base, pending, func(w write) bool { return w.of == step.synced })
				continue
			case step.Method == "":
			case settled(step):
				pending = cover(base, append(pending, step), func(w write) bool { return slices.Contains(step.writes, w) })
				continue
			default:
				pending = append(pending, step)
			}
			if i >= first && !subsets(base, pending, step.Method != "", func(disk image) bool { return yield(i, s.volume(disk.clone())) }) {
				return
			}
		}
	}
}

// subsets calls visit with disk and all subsets of the pending operations, or with those that hold the last of them, until
// it says no.
func subsets(disk image, pending []Step, last bool, visit func(image) bool) bool {
	if len(pending) == 0 {
		return visit(disk)
	}
	op, rest := pending[0], pending[1:]
	if !(last && len(rest) == 0) && !subsets(disk, rest, last, visit) {
		return false
	}
	with := func(writes []write) bool {
		next := disk.clone()
		for _, w := range writes {
			next.apply(w)
		}
		return subsets(next, rest, last, visit)
	}
	if len(op.writes) == 2 { // a rename from the first name to the second, or an exchange
		a, b := op.writes[0], op.writes[1]
		if a.ino != 0 {
			a.ino = disk.dirs[b.of][b.entry]
		}
		b.ino = disk.dirs[a.of][a.entry]
		if (a != op.writes[0] || b != op.writes[1]) && !with([]write{a, b}) {
			return false
		}
	}
	return with(op.writes)
}

// cover makes durable what wrote to a slot that is synced, whole, and takes from earlier operations what it overwrites.
func cover(base image, pending []Step, synced func(write) bool) (left []Step) {
	done := map[write]bool{} // slots
	slot := func(w write) write { return write{of: w.of, entry: w.entry} }
	for _, step := range slices.Backward(pending) {
		covered := slices.ContainsFunc(step.writes, synced)
		rest := slices.DeleteFunc(slices.Clone(step.writes), func(w write) bool { return done[slot(w)] })
		for _, w := range rest {
			if covered {
				base.apply(w)
				done[slot(w)] = true
			}
		}
		if !covered && len(rest) > 0 {
			step.writes = rest
			left = append(left, step)
		}
	}
	slices.Reverse(left)
	return left
}

// volume is another volume that holds disk, and knows what s knows of its inodes.
func (s *Strict) volume(disk image) *Strict {
	return &Strict{live: disk, inodes: slices.Clip(s.inodes), locked: map[int]bool{}, clock: s.clock + 1}
}

// Copy is another volume with the same content, all of it durable.
func (s *Strict) Copy() *Strict {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.volume(s.live.clone())
}

var seed = maphash.MakeSeed()

// Sum tells volumes apart: by the names, inodes and contents that a path leads to.
func (s *Strict) Sum() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sum(1)
}

func (s *Strict) sum(ino int) uint64 {
	sum := uint64(ino) * 0x9e3779b97f4a7c15
	if f := s.live.files[ino]; f != nil {
		sum ^= f.sum
	}
	for name, child := range s.live.dirs[ino] { // a sum: any order
		x := (maphash.String(seed, name) ^ s.sum(child)) * 0xff51afd7ed558ccd
		sum += x ^ x>>32
	}
	return sum
}

// Files returns what is below the root but for one name: path to content. A directory ends in a slash.
func (s *Strict) Files(but string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[string]string{}
	s.walk(1, "", but, found)
	return found
}

func (s *Strict) walk(dir int, prefix, but string, found map[string]string) {
	for name, ino := range s.live.dirs[dir] {
		switch p := prefix + name; {
		case p == but:
		case s.inodes[ino].typ == durable.Dir:
			found[p+"/"] = ""
			s.walk(ino, p+"/", but, found)
		case s.inodes[ino].typ == durable.Link:
			found[p] = s.inodes[ino].link
		default:
			found[p] = string(s.live.files[ino].data)
		}
	}
}

// The methods of durable.FS.

type strictHandle struct {
	s    *Strict
	ino  int
	name string
	lock bool
}

func (h *strictHandle) File() *os.File { return nil }

func (h *strictHandle) Close() error {
	if h.lock {
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		delete(h.s.locked, h.ino)
		h.lock = false
	}
	return nil
}

func failed(method, name string, err error) error { return fmt.Errorf("%s %q: %w", method, name, err) }

func (s *Strict) of(h durable.Handle) int { return h.(*strictHandle).ino }

// find follows a path; the entry at its end may be absent: 0.
func (s *Strict) find(at durable.Name) (ino int, err error) {
	ino = s.of(at.Dir)
	for name := range strings.SplitSeq(path.Clean(at.Name), "/") {
		switch {
		case name == ".":
			continue
		case ino == 0:
			return 0, unix.ENOENT
		case s.inodes[ino].typ == durable.Link:
			return 0, unix.ELOOP
		case s.inodes[ino].typ != durable.Dir:
			return 0, unix.ENOTDIR
		}
		ino = s.live.dirs[ino][name]
	}
	return ino, nil
}

func (s *Strict) open(method string, at durable.Name, want durable.Type) (durable.Handle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ino, err := s.find(at)
	switch typ := s.inodes[ino].typ; {
	case err != nil:
	case ino == 0:
		err = unix.ENOENT
	case typ == durable.Link:
		err = unix.ELOOP
	case want != "" && typ != want:
		err = unix.ENOTDIR
	}
	if err != nil {
		return nil, failed(method, at.Name, err)
	}
	return &strictHandle{s: s, ino: ino, name: at.Name}, nil
}

func (s *Strict) OpenRoot(durable.Site, string) (durable.Handle, error) {
	return &strictHandle{s: s, ino: 1}, nil
}

func (s *Strict) OpenDir(_ durable.Site, at durable.Name) (durable.Handle, error) {
	return s.open("open directory", at, durable.Dir)
}

func (s *Strict) OpenFile(_ durable.Site, at durable.Name) (durable.Handle, error) {
	return s.open("open", at, "")
}

// add makes a new inode with its first name.
func (s *Strict) add(method string, site durable.Site, at durable.Name, i inode) (durable.Handle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addLocked(method, site, at, i)
}

func (s *Strict) addLocked(method string, site durable.Site, at durable.Name, i inode) (durable.Handle, error) {
	old, err := s.find(at)
	if err == nil && old != 0 {
		err = unix.EEXIST
	}
	if err != nil {
		return nil, failed(method, at.Name, err)
	}
	i.btime = s.clock
	s.inodes = append(s.inodes, i)
	ino := len(s.inodes) - 1
	if i.typ == durable.Regular {
		s.live.files[ino] = s.content(nil, i.mode)
		if s.start.dirs != nil {
			s.start.files[ino] = s.live.files[ino] // whoever finds its name finds it empty
		}
	}
	s.change(method, site, at.Name, write{of: s.of(at.Dir), entry: at.Name, ino: ino})
	return &strictHandle{s: s, ino: ino, name: at.Name}, nil
}

func (s *Strict) content(data []byte, mode uint32) *content {
	return &content{data, mode, s.clock, maphash.Bytes(seed, data) ^ uint64(s.clock)<<32 ^ uint64(mode)}
}

func (s *Strict) Create(site durable.Site, at durable.Name, mode uint32) (durable.Handle, error) {
	return s.add("Create", site, at, inode{typ: durable.Regular, mode: mode})
}

func (s *Strict) Mkdir(site durable.Site, at durable.Name, mode uint32) error {
	_, err := s.add("Mkdir", site, at, inode{typ: durable.Dir, mode: mode})
	return err
}

func (s *Strict) Symlink(site durable.Site, at durable.Name, target string) error {
	_, err := s.add("Symlink", site, at, inode{typ: durable.Link, mode: 0o777, link: target})
	return err
}

func (s *Strict) Lock(site durable.Site, at durable.Name) (durable.Handle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ino, err := s.find(at)
	if err == nil && ino == 0 {
		var h durable.Handle
		if h, err = s.addLocked("Create", site, at, inode{typ: durable.Regular, mode: 0o644}); err == nil {
			ino = s.of(h)
		}
	}
	if err == nil && s.locked[ino] {
		err = durable.ErrLocked
	}
	if err != nil {
		return nil, failed("lock", at.Name, err)
	}
	s.locked[ino] = true
	return &strictHandle{s: s, ino: ino, name: at.Name, lock: true}, nil
}

func (s *Strict) Stat(_ durable.Site, at durable.Name) (durable.Stat, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ino, err := s.find(at)
	if err == nil && ino == 0 {
		err = unix.ENOENT
	}
	if err != nil {
		return durable.Stat{}, failed("stat", at.Name, err)
	}
	i := s.inodes[ino]
	st := durable.Stat{Type: i.typ, Dev: 1, Ino: uint64(ino), Mount: 1, Nlink: 1, Btime: i.btime, Mtime: i.btime, Mode: i.mode, Size: int64(len(i.link))}
	if f := s.live.files[ino]; f != nil {
		st.Mtime, st.Mode, st.Size, st.Blocks = f.mtime, f.mode, int64(len(f.data)), int64(len(f.data)+511)/512
	}
	return st, nil
}

func (s *Strict) List(_ durable.Site, dir durable.Handle, limit int) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := slices.Sorted(maps.Keys(s.live.dirs[s.of(dir)]))
	if limit > 0 && len(names) > limit {
		names = names[:limit]
	}
	return names, nil
}

// rename moves, exchanges or replaces, as the two entries are allowed to be.
func (s *Strict) rename(method string, site durable.Site, from, to durable.Name, exchange, free bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, err := s.find(from)
	b, errTo := s.find(to)
	switch err = cmp.Or(err, errTo); {
	case err != nil:
	case a == 0 || exchange && b == 0:
		err = unix.ENOENT
	case free && b != 0:
		err = unix.EEXIST
	}
	if err != nil {
		return failed(method, to.Name, err)
	}
	if !exchange {
		b = 0
	}
	s.change(method, site, from.Name, write{of: s.of(from.Dir), entry: from.Name, ino: b}, write{of: s.of(to.Dir), entry: to.Name, ino: a})
	return nil
}

func (s *Strict) Exchange(site durable.Site, a, b durable.Name) error {
	return s.rename("Exchange", site, a, b, true, false)
}

func (s *Strict) Move(site durable.Site, from, to durable.Name) error {
	return s.rename("Move", site, from, to, false, true)
}

func (s *Strict) Replace(site durable.Site, from, to durable.Name) error {
	return s.rename("Replace", site, from, to, false, false)
}

func (s *Strict) remove(method string, site durable.Site, at durable.Name, dir bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ino, err := s.find(at)
	switch isDir := s.inodes[ino].typ == durable.Dir; {
	case err != nil:
	case ino == 0:
		err = unix.ENOENT
	case dir && !isDir:
		err = unix.ENOTDIR
	case !dir && isDir:
		err = unix.EISDIR
	case len(s.live.dirs[ino]) > 0:
		err = unix.ENOTEMPTY
	}
	if err != nil {
		return failed(method, at.Name, err)
	}
	s.change(method, site, at.Name, write{of: s.of(at.Dir), entry: at.Name})
	return nil
}

func (s *Strict) Unlink(site durable.Site, at durable.Name) error {
	return s.remove("Unlink", site, at, false)
}

func (s *Strict) Rmdir(site durable.Site, at durable.Name) error {
	return s.remove("Rmdir", site, at, true)
}

// Chmod is durable at once for a directory, and with its content for a file.
func (s *Strict) Chmod(site durable.Site, at durable.Name, mode uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ino, err := s.find(at)
	if err == nil && ino == 0 {
		err = unix.ENOENT
	}
	if err != nil {
		return failed("chmod", at.Name, err)
	}
	if f := s.live.files[ino]; f == nil {
		s.inodes = slices.Clone(s.inodes) // others may share it
		s.inodes[ino].mode = mode
	} else if f.mode != mode {
		next := s.content(f.data, mode)
		next.mtime = f.mtime
		s.change("Chmod", site, cmp.Or(at.Name, at.Dir.(*strictHandle).name), write{of: ino, file: next})
	}
	return nil
}

func (s *Strict) Chown(durable.Site, durable.Name, int, int) error { return nil }

func (s *Strict) Xattr(durable.Site, durable.Handle, string) ([]byte, error) { return nil, nil }

func (s *Strict) SetXattr(durable.Site, durable.Handle, string, []byte) error { return nil }

func (s *Strict) Lease(durable.Site, durable.Handle) error { return nil }

func (s *Strict) ReadAt(_ durable.Site, h durable.Handle, p []byte, off int64) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.live.files[s.of(h)]
	if f == nil || off >= int64(len(f.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (s *Strict) WriteAt(site durable.Site, h durable.Handle, p []byte, off int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ino := s.of(h)
	old := s.live.files[ino]
	if old == nil {
		return failed("write", "", unix.EBADF)
	}
	data := make([]byte, max(int(off)+len(p), len(old.data)))
	copy(data, old.data)
	copy(data[off:], p)
	s.change("WriteAt", site, h.(*strictHandle).name, write{of: ino, file: s.content(data, old.mode)})
	return nil
}

func (s *Strict) Writeback(durable.Site, durable.Handle) error { return nil }

func (s *Strict) Sync(site durable.Site, h durable.Handle) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(Step{Method: "Sync", Site: site, Name: h.(*strictHandle).name, synced: s.of(h)})
	return nil
}

func (s *Strict) Statfs(durable.Site, durable.Handle) (durable.Volume, error) {
	return durable.Volume{Magic: unix.EXT4_SUPER_MAGIC, FreeBytes: 1 << 40, TotalBytes: 1 << 40, FreeInodes: 1 << 20, TotalInodes: 1 << 20}, nil
}

func (s *Strict) Barrier(_ durable.Site, ops ...func() error) error {
	var errs []error
	for _, op := range ops {
		errs = append(errs, op())
	}
	return cmp.Or(errs...)
}
