package job

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable/durabletest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/lock"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// volume fails operations by their site, as long as the test wants.
type volume struct {
	mu sync.Mutex
	// guarded by mu
	errs  map[durable.Site]error
	after map[durable.Site]int // operations at a site that still succeed
	tried map[durable.Site]int
}

func newVolume() *volume {
	return &volume{errs: map[durable.Site]error{}, after: map[durable.Site]int{}, tried: map[durable.Site]int{}}
}

func (v *volume) wrap(fs durable.FS) durable.FS {
	return durabletest.Wrap(fs, func(op durabletest.Op, do func() error) error {
		v.mu.Lock()
		err := v.errs[op.Site]
		v.tried[op.Site]++
		if err != nil && v.after[op.Site] > 0 {
			v.after[op.Site]--
			err = nil
		}
		v.mu.Unlock()
		if err != nil {
			return fmt.Errorf("%s: %w", op.Site, err)
		}
		return do()
	})
}

// fail makes operations at a site fail, but for the next after of them; a nil err ends that.
func (v *volume) fail(site durable.Site, err error, after int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.errs[site], v.after[site] = err, after
}

func (v *volume) count(site durable.Site) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.tried[site]
}

// TestFirstErrorDecides fills the volume under a call that is being undone. Its code stays its own, its keys stay held,
// and the undo goes on when there is room.
func TestFirstErrorDecides(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		timeout      time.Duration
		site         durable.Site // of the undo
		during       txn.Phase
		want         Code
		order        string
	}{
		{"late", "echo new > {a}; echo new > {b}; sleep 300", 100 * time.Millisecond, "txn.trash.move", txn.WorkerRunning, ToolTimeout, timeoutOrder},
		{"failed", "echo new > {a}; echo new > {b}; exit 3", 0, "txn.trash.move", txn.WorkerRunning, ToolFailed, failedOrder},
		{"publishing", "echo new > {a}; echo new > {b}", 0, "txn.undo.exchange", txn.PublishingOutputs, PublishFailed, failedOrder},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := newVolume()
			r := newRig(t, parts{fs: v.wrap, o: Options{QueueTimeout: 50 * time.Millisecond}})
			r.undoEvery = 10 * time.Millisecond
			r.write("a", "old")
			r.write("b", "old")
			if tt.during == txn.PublishingOutputs {
				v.fail("txn.publish.exchange", unix.EIO, 1) // the second
			}
			v.fail(tt.site, unix.ENOSPC, 0)
			req := r.sh(tt.script, "a=a", "b=b")
			req.Timeout = tt.timeout
			res := r.want(req, tt.want)
			decides := func(code Code) bool { return code == res.Code }
			if first := errors.New("the first"); decides(codeOf(errors.Join(first, fmt.Errorf("undo: %w", unix.ENOSPC)))) {
				t.Error("control: the code of all errors together would do as well")
			}
			if res.RolledBack || res.Phase != tt.during || r.phase(res.Job) != tt.during {
				t.Errorf("result %+v, phase %s", res, r.phase(res.Job))
			}
			for _, f := range r.held("a") {
				t.Error(f)
			}
			until(t, "another try", func() bool { return v.count(tt.site) >= 3 })
			v.fail("txn.publish.exchange", nil, 0)
			v.fail(tt.site, nil, 0)
			until(t, "the rollback", func() bool { return r.phase(res.Job) == txn.RolledBack && len(r.table.Holders(r.key("a"))) == 0 })
			r.order(res.Job, tt.order)
			if got := r.read("a") + r.read("b"); got != "oldold" {
				t.Errorf("targets %q", got)
			}
			if len(r.held("a")) == 0 {
				t.Error("control: keys that are free pass for held")
			}
			r.must(r.sh("echo newer > {a}; echo newer > {b}", "a=a", "b=b"))
		})
	}
}

// TestFailedSyncIsFinal never tries an undo again whose sync failed: the kernel may have dropped the pages and say yes.
func TestFailedSyncIsFinal(t *testing.T) {
	t.Run("broken", func(t *testing.T) { failedSync(t, unix.EIO) })
	t.Run("full", func(t *testing.T) { failedSync(t, unix.ENOSPC) })
}

func failedSync(t *testing.T, errno unix.Errno) {
	v := newVolume()
	r := newRig(t, parts{fs: v.wrap, o: Options{QueueTimeout: 50 * time.Millisecond}, leaks: true}) // the job keeps its descriptors
	r.undoEvery = time.Millisecond
	r.write("a", "old")
	v.fail("txn.b2.parent", unix.EIO, 0)
	v.fail("txn.undo.sync", errno, 0)
	res := r.want(r.sh("echo new > {a}", "a=a"), PublishFailed)
	v.fail("txn.undo.sync", nil, 0)
	v.fail("txn.b2.parent", nil, 0)
	ended := make(chan struct{})
	go func() { r.behind.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the undo goes on")
	}
	if res.RolledBack || r.phase(res.Job) != txn.PublishingOutputs || r.read("a") != "old" {
		t.Errorf("result %+v, phase %s, target %q", res, r.phase(res.Job), r.read("a"))
	}
	if len(r.table.Holders(lock.Key{})) != 1 {
		t.Error("its keys are free")
	}
	row, err := r.OpenSession(t.Context(), me, "other")
	ok(t, err)
	other := r.sh("echo new > {b}", "b=b")
	other.Session = row.ID
	r.want(other, PublishFailed) // every mutator, until a restart
	r.want(r.sh("true"), OK)     // a read
}

// TestCloseEndsUndo tries no undo after Close: the workspace may have another owner then.
func TestCloseEndsUndo(t *testing.T) {
	v := newVolume()
	r := newRig(t, parts{fs: v.wrap, leaks: true}) // the job keeps its descriptors
	r.undoEvery = time.Millisecond
	v.fail("txn.trash.move", unix.ENOSPC, 0)
	res := r.want(r.sh("exit 3 # {a}", "a=a"), ToolFailed)
	until(t, "another try", func() bool { return v.count("txn.trash.move") >= 3 })
	r.Close()
	tried := v.count("txn.trash.move")
	v.fail("txn.trash.move", nil, 0)
	<-time.After(20 * time.Millisecond)
	if v.count("txn.trash.move") != tried || r.phase(res.Job) != txn.WorkerRunning {
		t.Errorf("tried again after Close, phase %s", r.phase(res.Job))
	}
}

// slow holds back the COMMIT that follows a statement, until it is opened; then err is its answer.
type slow struct {
	match string
	err   error
	open  chan struct{}
	seen  bool // owned by the writer
	done  bool
}

func (s *slow) fault(point string) error {
	switch {
	case s.done:
	case strings.HasPrefix(point, "before ") && strings.Contains(point, s.match):
		s.seen = true
	case point == "before COMMIT" && s.seen:
		<-s.open
		s.done = true
		return s.err
	}
	return nil
}

// full is SQLITE_FULL, as the driver says it.
type full struct{}

func (full) Error() string { return "database or disk is full" }
func (full) Code() int     { return 13 }

// TestLateAnswers has the ledger answer after the call has given up on it. Until then its keys are held; then the job ends
// as the ledger says.
func TestLateAnswers(t *testing.T) {
	for _, tt := range []struct {
		name, match, script string
		answer              error
		want                Code
		end                 txn.Phase
		order               string
	}{
		{"begin", "INSERT INTO jobs", "echo new > {a}", nil, AuditUnavailable, txn.RolledBack, "allow error rollback"},
		{"commit", "'committed'", "echo new > {a}", nil, CommitInDoubt, txn.Committed, committedOrder},
		{"commit_absent", "'committed'", "echo new > {a}", full{}, CommitInDoubt, txn.RolledBack, failedOrder},
		{"rollback", "'rolled_back'", "echo new > {a}; exit 3", nil, ToolFailed, txn.RolledBack, failedOrder},
		{"rollback_absent", "'rolled_back'", "echo new > {a}; exit 3", full{}, ToolFailed, txn.RolledBack, failedOrder},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &slow{match: tt.match, err: tt.answer, open: make(chan struct{})}
			r := newRig(t, parts{fault: s.fault, o: Options{LedgerTimeout: 300 * time.Millisecond, QueueTimeout: 20 * time.Millisecond}})
			r.undoEvery = time.Millisecond
			r.write("a", "old")
			res := r.want(r.sh(tt.script, "a=a"), tt.want)
			if res.RolledBack {
				t.Errorf("result %+v", res)
			}
			if busy := r.run(r.sh("echo taken > {a}", "a=a")); busy.Code != Busy {
				t.Errorf("a second call while the first is open: %s", busy.Code)
			}
			close(s.open)
			until(t, "the end", func() bool { return r.phase(res.Job) == tt.end && len(r.table.Holders(r.key("a"))) == 0 })
			r.order(res.Job, tt.order)
			if got := r.read("a"); (got == "new\n") != (tt.end == txn.Committed) {
				t.Errorf("%s, and the target holds %q", tt.end, got)
			}
			r.must(r.sh("echo newer > {a}", "a=a"))
		})
	}
}

// TestLateTombstone says that a destroy is not known to be done, and does not fail the session's jobs for it.
func TestLateTombstone(t *testing.T) {
	s := &slow{match: "UPDATE sessions", open: make(chan struct{})}
	r := newRig(t, parts{fault: s.fault, o: Options{LedgerTimeout: 100 * time.Millisecond}})
	row, err := r.OpenSession(t.Context(), me, "work")
	ok(t, err)
	if err := r.CloseSession(t.Context(), Who{Name: me}, row.ID); asError(err).Code != AuditUnavailable {
		t.Errorf("got %v", err)
	}
	close(s.open)
	until(t, "the tombstone", func() bool {
		row, err := r.ledger.Session(t.Context(), row.ID)
		return err == nil && !row.DestroyedAt.IsZero()
	})
}
