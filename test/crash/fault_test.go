package crash

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable/durabletest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/lock"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// bench runs one job after another, each on a new volume and for a new principal, on a ledger that serves until it is
// poisoned.
type bench struct {
	t     *testing.T
	clean *durabletest.Strict // a volume that nothing has run on
	l     *ledger.Ledger
	runs  int

	mu sync.Mutex
	// guarded by mu
	fault func(point string) error // of the ledger; nil: none
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, clean: durabletest.NewStrict()}
	for _, name := range slices.Sorted(maps.Keys(old())) {
		write(t, b.clean, name, old()[name])
	}
	files, err := txn.Open(b.clean, root, txn.Options{ToolUID: -1, ToolGID: -1})
	ok(t, err)
	ok(t, files.Close())
	b.open()
	t.Cleanup(b.close)
	return b
}

func (b *bench) open() {
	dir, err := os.MkdirTemp("/dev/shm", "crash")
	ok(b.t, err)
	b.t.Cleanup(func() { ok(b.t, os.RemoveAll(dir)) })
	b.l, err = ledger.Open(b.t.Context(), ledger.Options{Dir: dir, Fault: func(point string) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.fault == nil {
			return nil
		}
		return b.fault(point)
	}})
	ok(b.t, err)
}

func (b *bench) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := b.l.Close(ctx); err != nil && b.l.Poisoned() == nil {
		b.t.Error(err)
	}
}

func (b *bench) inject(fault func(point string) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault = fault
}

// job runs a job that publishes over a file and makes another with its directory, on a volume and a ledger that may fail, and
// returns every promise that is broken: at once, and after a restart on a volume that is healed.
func (b *bench) job(wrap func(durable.FS) durable.FS, fault func(point string) error) outcome {
	t := b.t
	if b.l.Poisoned() != nil {
		b.close()
		b.open()
	}
	b.runs++
	w := &world{t: t, vol: b.clean.Copy(), l: b.l}
	var err error
	w.files, err = txn.Open(wrap(w.vol), root, txn.Options{ToolUID: -1, ToolGID: -1, BootID: "before"})
	ok(t, err)
	table := lock.New(lock.Options{})
	w.runner = job.NewRunner(w.files, root, b.l, groups{w}, table, job.Options{BootID: "before", ToolUID: -1, ToolGID: -1})
	principal := fmt.Sprint("p", b.runs)
	b.inject(fault)
	w.wait("the end of the job", w.start("one", principal, "build/a", "made/c"))
	w.runner.Close()
	b.inject(nil)
	ok(t, w.files.Close())
	log := w.vol.Log()
	told := log[slices.IndexFunc(log, func(s durabletest.Step) bool { return s.Mark != nil })].Mark.(answer)
	var findings []string
	now := w.vol.Files(side)
	if told.RolledBack && !maps.Equal(now, old()) {
		findings = append(findings, fmt.Sprintf("%s: told that all was rolled back, and the workspace holds %v", lost, now))
	}
	held := len(table.Holders(lock.Key{}))
	if done := told.Code == job.OK || told.RolledBack; done != (held == 0) {
		findings = append(findings, fmt.Sprintf("%s: told %s, rolled back %t, and %d have keys", conflict, told.Code, told.RolledBack, held))
	}
	s := state{w.vol.Copy(), ofJob(t, b.l, told.Job, principal), []answer{told}}
	findings = append(findings, judge(s, nil)...)
	if told.Code == job.OK { // then no loss of power takes it back
		w.vol.Mark("the end")
		log = w.vol.Log()
		for _, s.disk = range w.vol.Losses(log, len(log)-1, quiet) {
			findings = append(findings, judge(s, nil)...)
		}
	}
	return outcome{told, w.vol, s.ledger, findings}
}

// outcome is what a job came to: its answer, what it left, and every promise that is broken.
type outcome struct {
	answer
	vol      *durabletest.Strict
	ledger   *book
	findings []string
}

// ofJob is what the ledger holds of one job and of the default session of a principal.
func ofJob(t *testing.T, l *ledger.Ledger, id, principal string) *book {
	t.Helper()
	b := newBook()
	ctx := context.Background()
	ok(t, b.read(ctx, l, ledger.Query{Job: id}))
	row, err := l.SessionByName(ctx, principal, job.DefaultSession)
	if err == nil {
		b.sessions[row.ID] = row
	} else if !errors.Is(err, ledger.ErrNotFound) {
		t.Fatal(err)
	}
	return b
}

func plain(fs durable.FS) durable.FS { return fs }

// errnos are those of operations on files.
func errnos() []unix.Errno {
	return []unix.Errno{
		unix.EIO, unix.ENOSPC, unix.EDQUOT, unix.EACCES, unix.EPERM, unix.EROFS, unix.ENOENT, unix.EEXIST, unix.EXDEV, unix.EINVAL,
		unix.ENOTEMPTY, unix.EBUSY, unix.EMFILE, unix.ENOMEM, unix.EINTR,
	}
}

// TestFaults fails every operation of a job, on the volume and in the ledger: before it was done and after, once and from
// there on; then every operation of the undo of each failed publication, and every one of a recovery.
func TestFaults(t *testing.T) {
	b := newBench(t)
	bad := 0
	check := func(name string, findings []string) {
		t.Helper()
		if bad += min(len(findings), 1); len(findings) > 0 && bad <= 5 {
			t.Errorf("%s: %.600q", name, findings)
		}
	}
	var counted *durabletest.Counting
	check("no fault", b.job(func(fs durable.FS) durable.FS { counted = durabletest.NewCounting(fs); return counted }, nil).findings)
	trace := counted.Trace()
	first := slices.IndexFunc(trace, func(op durabletest.Op) bool { return op.Site == "txn.admit.room" }) // before it: a start
	for _, method := range []string{"OpenDir", "OpenFile", "Create", "Mkdir", "Stat", "List", "Exchange", "Move", "Chmod", "Xattr", "Lease", "ReadAt", "WriteAt", "Writeback", "Sync", "Statfs"} {
		if counted.Count(method, "") == 0 {
			t.Errorf("a job has no %s", method)
		}
	}
	// faults runs a job with f at each of its operations that is one.
	faults := func(f durabletest.Fault, is func(durabletest.Op) bool) {
		for n := first; n < len(trace); n++ {
			if !is(trace[n]) {
				continue
			}
			var y *durabletest.Faulty
			f.N = n + 1
			o := b.job(func(fs durable.FS) durable.FS { y = durabletest.NewFaulty(fs, f); return y }, nil)
			if len(y.Fired()) == 0 {
				t.Fatalf("operation %d, %+v, did not come", f.N, trace[n])
			}
			check(fmt.Sprintf("%v %s %d %s at %s, persistent %t: %s", f.Err, f.Flavour, f.N, trace[n].Method, trace[n].Site, f.Persistent, o.Code), o.findings)
		}
	}
	all := func(durabletest.Op) bool { return true }
	changes := func(op durabletest.Op) bool {
		return !slices.Contains([]string{"Stat", "List", "ReadAt", "Statfs", "Xattr", "Lease", "OpenDir", "OpenFile"}, op.Method)
	}
	for _, errno := range errnos() {
		faults(durabletest.Fault{Err: errno, Flavour: durabletest.Before}, all)
	}
	for _, errno := range []unix.Errno{unix.EIO, unix.ENOSPC} {
		faults(durabletest.Fault{Err: errno, Flavour: durabletest.After}, changes)
		faults(durabletest.Fault{Err: errno, Flavour: durabletest.Before, Persistent: true}, changes)
	}
	faults(durabletest.Fault{Err: unix.ENOSPC, Flavour: durabletest.Short}, func(op durabletest.Op) bool { return op.Method == "WriteAt" })
	single := b.runs

	// pairs: a publication that fails, and its undo
	published := func(op durabletest.Op) bool {
		return changes(op) && (strings.HasPrefix(string(op.Site), "txn.publish.") || strings.HasPrefix(string(op.Site), "txn.b2."))
	}
	for n := first; n < len(trace); n++ {
		for _, errno := range []unix.Errno{unix.EIO, unix.ENOSPC} {
			for m, fired := n+2, 2; published(trace[n]) && fired == 2; m++ {
				o := b.job(func(fs durable.FS) durable.FS {
					fired = 0
					return durabletest.Wrap(fs, func(op durabletest.Op, do func() error) error {
						if op.N != n+1 && op.N != m {
							return do()
						}
						fired++
						return fmt.Errorf("%s: %w", op.Site, map[bool]unix.Errno{true: unix.EIO, false: errno}[op.N == n+1])
					})
				}, nil)
				check(fmt.Sprintf("EIO at %s, then %v of operation %d: %s", trace[n].Site, errno, m, o.Code), o.findings)
			}
		}
	}
	pairs := b.runs - single

	// recovery from a publication on a volume that then failed for good
	broken := b.job(func(fs durable.FS) durable.FS {
		from := slices.IndexFunc(trace, func(op durabletest.Op) bool { return op.Site == "txn.b2.job" })
		return durabletest.NewFaulty(fs, durabletest.Fault{N: from + 1, Err: unix.EIO, Flavour: durabletest.Before, Persistent: true})
	}, nil)
	check("a volume that failed", broken.findings)
	recoveries := 0
	for _, f := range []durabletest.Fault{{Err: unix.EIO}, {Err: unix.ENOSPC}, {Err: unix.EIO, Flavour: durabletest.After}, {Err: unix.ENOSPC, Persistent: true}} {
		for fired := true; fired; recoveries++ {
			f.N++
			var y *durabletest.Faulty
			disk := broken.vol.Copy()
			ledger := broken.ledger.copy(nil)
			_, err := restart(disk, ledger, func(fs durable.FS, _ *book) durable.FS { y = durabletest.NewFaulty(fs, f); return y })
			fired = len(y.Fired()) > 0
			check(fmt.Sprintf("recovery, %v %s %d: %v", f.Err, f.Flavour, f.N, err), judge(state{disk, ledger, nil}, nil))
		}
	}

	// the ledger
	var points []string
	b.job(plain, func(point string) error { points = append(points, point); return nil })
	before := b.runs
	for _, f := range []struct {
		code       sqlite
		persistent bool
	}{{5, false}, {7, false}, {9, false}, {10, false}, {11, false}, {13, false}, {13, true}, {19, false}} {
		absent := f.code == 5 || f.code == 13 || f.code == 19 // SQLite says so only of what was not done
		for n, at := range points {
			i := -1
			o := b.job(plain, func(point string) error {
				if i++; (i == n || f.persistent && i > n) && !(absent && point == "after COMMIT") {
					return f.code
				}
				return nil
			})
			check(fmt.Sprintf("%v at %q, persistent %t: %s", f.code, at, f.persistent, o.Code), o.findings)
		}
	}

	statements := b.runs - before

	// a sync of a file that fails, and then says yes: the kernel has dropped what it could not write. The control is an engine
	// that does not hear of it.
	caught := 0
	for n := range counted.Count("Sync", "") {
		forget := func(fs durable.FS) durable.FS { return &forgetful{FS: fs, n: n} }
		o := b.job(forget, nil)
		check(fmt.Sprintf("sync %d: %s", n, o.Code), o.findings)
		o = b.job(func(fs durable.FS) durable.FS { return deaf{forget(fs)} }, nil)
		caught += min(len(o.findings), 1)
	}
	if caught == 0 {
		t.Error("control: nobody need hear of a failed sync")
	}
	if single < 1500 || pairs < 300 || recoveries < 200 || statements < 200 {
		t.Error("the sweep does not reach what it is for")
	}
	if !t.Failed() {
		fmt.Printf("RIG fault positions=%d runs=%d violations=0 controls=all\n", len(trace)-first, b.runs+recoveries)
	}
	t.Logf("%d runs with one fault on the volume, %d with two, %d of recovery, %d with one in the ledger, at %d points", single, pairs, recoveries, statements, len(points))
}

// forgetful fails the nth sync of a file, and takes every later one of that file for done.
type forgetful struct {
	durable.FS
	n       int
	dropped map[uint64]bool // inodes
}

func (f *forgetful) Sync(site durable.Site, h durable.Handle) error {
	st, err := f.Stat(site, durable.Name{Dir: h})
	if err != nil || st.Type != durable.Regular {
		return cmp.Or(err, f.FS.Sync(site, h))
	}
	if f.n--; f.n == -1 {
		f.dropped = map[uint64]bool{st.Ino: true}
		return fmt.Errorf("%s: %w", site, unix.EIO)
	}
	if f.dropped[st.Ino] {
		return nil
	}
	return f.FS.Sync(site, h)
}

// deaf takes every sync for done.
type deaf struct{ durable.FS }

func (d deaf) Sync(site durable.Site, h durable.Handle) error {
	_ = d.FS.Sync(site, h) // that is the fault
	return nil
}
