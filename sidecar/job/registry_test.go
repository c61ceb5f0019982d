package job

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/eda-sidecar/eda-sidecar/sidecar/lock"
)

// in is a call in a session of its own.
func (r *rig) in(session, script string, outs ...string) Request {
	r.t.Helper()
	row, err := r.OpenSession(context.Background(), me, session)
	ok(r.t, err)
	req := r.sh(script, outs...)
	req.Session = row.ID
	return req
}

// TestSideBySide runs jobs of different sessions at once: each waits for the others' marks, so that they could not end one
// after another. The control gives two of them one target.
func TestSideBySide(t *testing.T) {
	const n = 4
	meet := func(same bool) (codes []string) {
		r := newRig(t, parts{})
		reg := NewRegistry(r.Runner, RegistryOptions{})
		for i := range n {
			r.write(fmt.Sprintf("in/%d", i), "")
		}
		var all []*Handle
		for i := range n {
			target := fmt.Sprintf("out%d", i)
			if same {
				target = "out"
			}
			// The log of every other job shows that it runs: a tool can read the workspace, not write it, so the test speaks for it.
			req := r.in(fmt.Sprint("s", i), fmt.Sprintf("echo here; while [ ! -s in/%d ]; do :; done; echo new > {a}", i), "a="+target)
			req.Timeout = 5 * time.Second
			all = append(all, reg.Start(req))
		}
		running := func() (n int) {
			for _, h := range all {
				if p, err := h.Log(0, 10); err == nil && string(p.Bytes) == "here\n" {
					n++
				}
			}
			return n
		}
		if !same {
			until(t, "all jobs run", func() bool { return running() == n })
		} else {
			until(t, "one job runs, the rest waits", func() bool { return running() == 1 && reg.Counts().Queued == n-1 })
		}
		for i := range n {
			r.write(fmt.Sprintf("in/%d", i), "go")
		}
		for _, h := range all {
			codes = append(codes, string(h.Result().Code))
		}
		return codes
	}
	for _, same := range []bool{false, true} {
		if got := strings.Join(meet(same), " "); got != "OK OK OK OK" {
			t.Errorf("one target: %v: got %s", same, got)
		}
	}
}

// TestQueuedBehind tells a waiting caller for whom it waits, and a foreign one less.
func TestQueuedBehind(t *testing.T) {
	r := newRig(t, parts{})
	reg := NewRegistry(r.Runner, RegistryOptions{})
	first := reg.Start(r.in("one", "while :; do :; done; echo > {a}", "a=a"))
	until(t, "the first runs", func() bool { return !first.Status().Deadline.IsZero() })
	second := reg.Start(r.in("two", "echo new > {a}", "a=a"))
	until(t, "the second waits", func() bool { return reg.Counts() == Counts{Running: 1, Queued: 1} && r.table.Queued() == 1 })
	third := r.sh("echo newer > {a}", "a=a")
	third.Principal = "somebody"
	last := reg.Start(third)
	until(t, "the others wait", func() bool { return r.table.Queued() == 2 })
	if s := second.Status(); s.State != StateQueued || !strings.HasPrefix(s.Message, "queued behind job "+first.ID()+" (run, ") || !strings.HasSuffix(s.Message, "0 ahead") {
		t.Errorf("got %+v", s)
	}
	if s := last.Status(); !strings.HasPrefix(s.Message, "queued behind a job of somebody else (run, ") || !strings.HasSuffix(s.Message, ", 1 ahead") {
		t.Errorf("got %+v", s)
	}
	if reg.Find(Who{Name: "somebody"}, first.ID()) != nil || reg.Find(Who{Name: me}, first.ID()) != first || len(reg.List(Who{Name: me})) != 2 || reg.List(Who{Name: me})[0] != second {
		t.Error("a principal sees other than its own jobs")
	}
	if !first.Cancel() || first.Cancel() {
		t.Error("a job can be cancelled once")
	}
	for h, want := range map[*Handle]Code{first: CodeCancelled, second: OK, last: OK} {
		if res := h.Result(); res.Code != want {
			t.Errorf("got %s (%s), want %s", res.Code, res.Message, want)
		}
	}
}

// TestOutlivesItsCaller hands one job over and abandons it too late, and abandons another in time.
func TestOutlivesItsCaller(t *testing.T) {
	r := newRig(t, parts{})
	reg := NewRegistry(r.Runner, RegistryOptions{})
	r.write("go", "")
	kept := reg.Start(r.in("one", "while [ ! -s go ]; do :; done; echo new > {a}", "a=a"))
	left := reg.Start(r.in("two", "while [ ! -s go ]; do :; done; echo new > {b}", "b=b"))
	if !kept.Detach() || kept.Abandon() {
		t.Error("a job that was handed over was abandoned")
	}
	if !left.Abandon() || left.Detach() {
		t.Error("an abandoned job was handed over")
	}
	if res := left.Result(); res.Code != CodeCancelled || !res.RolledBack || !res.WorkerTerminated {
		t.Errorf("the abandoned one: %+v", res)
	}
	r.write("go", "now")
	if res := kept.Result(); res.Code != OK {
		t.Errorf("the one that was handed over: %s", res.Message)
	}
	if a, b := r.read("a"), r.read("b"); a != "new\n" || b != "-" {
		t.Errorf("got %q and %q", a, b)
	}
}

// TestBusy refuses what is too much, records it, and says who is in the way.
func TestBusy(t *testing.T) {
	r := newRig(t, parts{})
	reg := NewRegistry(r.Runner, RegistryOptions{MaxRunning: 1})
	first := reg.Start(r.in("one", "while :; do :; done; echo > {a}", "a=a"))
	res := reg.Start(r.sh("echo")).Result()
	if res.Code != Busy || res.RetryAfter == 0 || !res.RolledBack {
		t.Errorf("got %+v", res)
	}
	r.order(res.Job, "deny")
	until(t, "the first runs", func() bool { return !first.Status().Deadline.IsZero() })
	short := NewRunner(r.files, r.dir, r.ledger, r.groups, r.table, Options{QueueTimeout: 20 * time.Millisecond, ToolUID: -1, ToolGID: -1})
	defer short.Close()
	if res := short.Run(t.Context(), r.in("two", "echo > {a}", "a=a")); res.Code != Busy || res.Holder == nil || res.Holder.Job != first.ID() || res.Holder.Tool != "run" {
		t.Errorf("got %s, holder %v", res.Code, res.Holder)
	}
	req := r.sh("echo > {a}", "a=a")
	req.Principal = "somebody"
	if res := short.Run(t.Context(), req); res.Code != Busy || res.Holder == nil || res.Holder.Job != "" || strings.Contains(res.Message, first.ID()) {
		t.Errorf("told somebody else: %s, holder %v", res.Message, res.Holder)
	}
	first.Cancel()
	first.Result()
	refused := r.sh("echo")
	refused.Refused = failf(Denied, "the principal may not")
	if res := reg.Start(refused).Result(); res.Code != Denied {
		t.Errorf("got %s", res.Code)
	}
}

// TestDrain lets what runs go on, ends what waits, and refuses what comes; Stop ends the rest.
func TestDrain(t *testing.T) {
	r := newRig(t, parts{})
	reg := NewRegistry(r.Runner, RegistryOptions{})
	running := reg.Start(r.in("one", "echo here; while :; do :; done; echo > {a}", "a=a"))
	until(t, "the first runs", func() bool { return !running.Status().Deadline.IsZero() })
	queued := reg.Start(r.in("two", "echo > {a}", "a=a"))
	until(t, "the other waits", func() bool { return r.table.Queued() == 1 })
	ended := reg.Drain()
	late := reg.Start(r.sh("echo"))
	for _, h := range []*Handle{queued, late} {
		if res := h.Result(); res.Code != ShuttingDown || res.RetryAfter == 0 {
			t.Errorf("got %s", res.Code)
		}
		r.order(h.ID(), "deny")
	}
	if _, err := reg.OpenSession(t.Context(), me, "new"); err == nil || asError(err).Code != ShuttingDown {
		t.Errorf("a session was opened: %v", err)
	}
	select {
	case <-ended:
		t.Error("drained while a job runs")
	default:
	}
	if running.Status().State != StateRunning {
		t.Errorf("the running job is %+v", running.Status())
	}
	ok(t, reg.Stop(t.Context()))
	<-ended
	if res := running.Result(); res.Code != ShuttingDown || !res.RolledBack || !res.WorkerTerminated {
		t.Errorf("got %+v", res)
	}
	r.order(running.ID(), cancelOrder)
}

// TestCloseByForce cancels the job that holds the session; without force the close waits for it.
func TestCloseByForce(t *testing.T) {
	r := newRig(t, parts{})
	reg := NewRegistry(r.Runner, RegistryOptions{})
	req := r.in("one", "while :; do :; done; echo > {a}", "a=a")
	first := reg.Start(req)
	until(t, "the first runs", func() bool { return !first.Status().Deadline.IsZero() })
	second := reg.Start(req)
	until(t, "the second waits", func() bool { return reg.Counts().Queued == 1 })
	patient, cancel := context.WithCancel(t.Context())
	waits := make(chan error, 1)
	go func() { waits <- reg.CloseSession(patient, Who{Name: me}, req.Session, false) }()
	until(t, "the close waits", func() bool { return r.table.Queued() == 2 })
	cancel()
	if err := <-waits; err == nil || first.Ended() {
		t.Fatalf("a close without force: %v", err)
	}
	ok(t, reg.CloseSession(t.Context(), Who{Name: me}, req.Session, true))
	if res := first.Result(); res.Code != CodeCancelled || !res.RolledBack {
		t.Errorf("the running one: %s (%s)", res.Code, res.Message)
	}
	if res := second.Result(); res.Code != SessionDestroyed {
		t.Errorf("the queued one: %s (%s)", res.Code, res.Message)
	}
	row, err := r.ledger.Session(t.Context(), req.Session)
	if err != nil || row.DestroyedAt.IsZero() {
		t.Errorf("the session: %+v, %v", row, err)
	}
}

// TestParts reads logs and outputs, also of a job that was undone and of a target that somebody has changed since.
func TestParts(t *testing.T) {
	r := newRig(t, parts{})
	reg := NewRegistry(r.Runner, RegistryOptions{})
	done := reg.Start(r.sh("echo first; echo second; echo 0123456789 > {a}", "a=a"))
	done.Result()
	if p, err := done.Log(6, 6); err != nil || string(p.Bytes) != "second" || p.Gone {
		t.Errorf("got %q, %v", p.Bytes, err)
	}
	if p, err := done.Output("a", 3, 4); err != nil || string(p.Bytes) != "3456" || p.Size != 11 || p.Gone {
		t.Errorf("got %q of %d, %v, %v", p.Bytes, p.Size, p.Gone, err)
	}
	if p, err := done.Output("a", 100, 4); err != nil || len(p.Bytes) != 0 {
		t.Errorf("behind the end: %q, %v", p.Bytes, err)
	}
	if _, err := done.Output("../a", 0, 4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such output: %v", err)
	}
	r.write("a", "theirs")
	if p, err := done.Output("a", 0, 100); err != nil || string(p.Bytes) != "theirs" || !p.Gone {
		t.Errorf("got %q, gone %v, %v", p.Bytes, p.Gone, err)
	}
	failed := reg.Start(r.sh("echo why; exit 1; {b}", "b=b"))
	failed.Result()
	if p, err := failed.Log(0, 3); err != nil || string(p.Bytes) != "why" || !p.Gone {
		t.Errorf("got %q, %v, %v", p.Bytes, p.Gone, err)
	}
	if _, err := failed.Output("b", 0, 4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("output of a failed job: %v", err)
	}
}

// TestForgets keeps as many answers as it may, but none away from a job whose keys are held.
func TestForgets(t *testing.T) {
	r := newRig(t, parts{})
	reg := NewRegistry(r.Runner, RegistryOptions{MaxFinished: 2})
	var all []*Handle
	for range 4 {
		h := reg.Start(r.sh("true"))
		h.Result()
		all = append(all, h)
	}
	until(t, "the last one ends", func() bool { return len(reg.List(Who{Name: me})) == 2 })
	if reg.Find(Who{Name: me}, all[0].ID()) != nil || reg.Find(Who{Name: me}, all[3].ID()) == nil {
		t.Error("the wrong ones were forgotten")
	}
	tight := NewRegistry(r.Runner, RegistryOptions{MaxBytes: 3000})
	for range 4 {
		tight.Start(r.sh("head -c 1000 /dev/zero | tr '\\0' x")).Result()
	}
	until(t, "the last one ends", func() bool { return len(tight.List(Who{Name: me})) == 1 })
}

// TestRecall rebuilds answers of forgotten jobs from their events: the same but for what no event holds.
func TestRecall(t *testing.T) {
	r := newRig(t, parts{})
	reg := NewRegistry(r.Runner, RegistryOptions{})
	late := r.sh("sleep 1000; {a}", "a=a")
	late.Timeout = 50 * time.Millisecond
	for name, req := range map[string]Request{
		"commit": r.sh("echo new > {a}; echo newer > {b}", "a=a", "b=b"), "read": r.sh("true"), "failure": r.sh("exit 1; {a}", "a=a"),
		"failed-read": r.sh("exit 1"), "timeout": late, "refused": r.sh("{a}", "a=none/a/a"),
	} {
		got := reg.Start(req).Result()
		r.settled()
		want, err := reg.Recall(t.Context(), Who{Name: me}, got.Job)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got.Recalled = true
		got.Summary, got.Duration, got.Diagnostics, got.Log, got.Programs, got.Data = "", 0, want.Diagnostics, Log{}, nil, nil
		got.Usage, got.DescendantsKilled = want.Usage, 0
		if got.Code != OK { // no event holds these of a failure
			got.Verdict, got.SessionVersion = "", 0
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: recalled, answered: %s", name, d)
		}
		if _, err := reg.Recall(t.Context(), Who{Name: "somebody"}, got.Job); err == nil {
			t.Errorf("%s: told somebody else", name)
		}
	}
	if _, err := reg.Recall(t.Context(), Who{Name: me}, "none"); err == nil || asError(err).Code != InvalidArgument {
		t.Errorf("a job that is none: %v", err)
	}
}

// TestReadsSideBySide lets reads run at once, beside a mutating job of the same session.
func TestReadsSideBySide(t *testing.T) {
	r := newRig(t, parts{})
	reg := NewRegistry(r.Runner, RegistryOptions{})
	r.write("go", "")
	wait := "echo here; while [ ! -s go ]; do :; done"
	writer := r.in("one", wait+"; echo new > {a}", "a=a")
	all := []*Handle{reg.Start(writer)}
	for range 3 {
		reader := r.sh(wait)
		reader.Session = writer.Session
		all = append(all, reg.Start(reader))
	}
	until(t, "all run at once", func() bool {
		for _, h := range all {
			if p, err := h.Log(0, 5); err != nil || string(p.Bytes) != "here\n" {
				return false
			}
		}
		return true
	})
	r.write("go", "now")
	for _, h := range all {
		if res := h.Result(); res.Code != OK {
			t.Errorf("got %s (%s)", res.Code, res.Message)
		}
	}
}

// TestDestroyRacesEverything closes sessions, by force and without, while calls start, run, are cancelled, abandoned and
// handed over. Each call and each close has one answer; nothing commits after its session is gone; all keys are free.
func TestDestroyRacesEverything(t *testing.T) {
	r := newRig(t, parts{})
	reg := NewRegistry(r.Runner, RegistryOptions{})
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 15 {
		req := r.in(fmt.Sprint("s", round), "echo new > {a}; sleep 0.0"+fmt.Sprint(random.IntN(9)), "a=a"+fmt.Sprint(round%3))
		var all sync.WaitGroup
		var handles []*Handle
		for i := range 5 {
			h := reg.Start(req)
			handles = append(handles, h)
			all.Go(func() {
				switch i {
				case 1:
					h.Cancel()
				case 2:
					h.Abandon()
				case 3:
					h.Detach()
					h.Abandon()
				}
				h.Result()
			})
		}
		force := round%2 == 0
		errs := make(chan error, 2)
		for range 2 {
			all.Go(func() { errs <- reg.CloseSession(t.Context(), Who{Name: me}, req.Session, force) })
		}
		all.Wait()
		closed := 0
		for range 2 {
			switch err := <-errs; {
			case err == nil:
				closed++
			case asError(err).Code != SessionDestroyed:
				t.Errorf("round %d: a close got %v", round, err)
			}
		}
		row, err := r.ledger.Session(t.Context(), req.Session)
		if err != nil || closed != 1 || row.DestroyedAt.IsZero() {
			t.Errorf("round %d: %d closes succeeded; %+v, %v", round, closed, row, err)
		}
		commits := int64(0)
		for _, h := range handles {
			res := h.Result()
			if res.Code == OK {
				commits++
			} else if res.Code != CodeCancelled && res.Code != SessionDestroyed || !res.RolledBack || !res.WorkerTerminated {
				t.Errorf("round %d: %+v", round, res)
			}
		}
		if row.Generation != commits+2 { // and its creation and its end
			t.Errorf("round %d: generation %d after %d commits", round, row.Generation, commits)
		}
	}
	if n := len(r.table.Holders(lock.Key{})) + r.table.Queued(); n != 0 {
		t.Errorf("%d keys are held or waited for", n)
	}
}
