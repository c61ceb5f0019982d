package job

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/durable/durabletest"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job/outcome"
	"github.com/eda-sidecar/eda-sidecar/sidecar/lock"
)

// TestCancelAnywhere aborts a call at each point of its way: until publication begins the abort wins, after it the call
// commits. The points are operations on files, by site, and what a job does with its group.
func TestCancelAnywhere(t *testing.T) {
	for _, tt := range []struct {
		point  string
		want   Code
		events []string // one of these
	}{
		{"txn.admit.root", CodeCancelled, []string{"deny"}},
		{"create", CodeCancelled, []string{"allow cancel rollback"}},
		{"txn.begin.open", CodeCancelled, []string{"allow cancel rollback"}},
		{"start", CodeCancelled, []string{"allow cancel rollback", cancelOrder}}, // the kernel may be quicker
		{"wait", CodeCancelled, []string{cancelOrder}},
		{"empty", CodeCancelled, []string{cancelOrder}},
		{"txn.inspect.stat", CodeCancelled, []string{cancelOrder}},
		{"txn.seal.move", CodeCancelled, []string{cancelOrder}},
		{"txn.b1.jobs", CodeCancelled, []string{cancelOrder}},
		{"txn.publish.lookup", OK, []string{committedOrder}},
		{"txn.publish.exchange", OK, []string{committedOrder}},
		{"txn.b2.job", OK, []string{committedOrder}},
	} {
		t.Run(tt.point, func(t *testing.T) {
			var c *call
			hit := 0
			at := func(point string) {
				if c != nil && point == tt.point {
					hit++
					c.cell.Abort(outcome.Cancelled)
				}
			}
			r := newRig(t, parts{
				fs: func(fs durable.FS) durable.FS {
					return durabletest.Wrap(fs, func(op durabletest.Op, do func() error) error {
						at(string(op.Site))
						return do()
					})
				},
				groups: hooks{
					create: func(int) error { at("create"); return nil },
					start:  func(int, cgroup.Command) error { at("start"); return nil },
					wait: func(ctx context.Context, p *cgroup.Process) (cgroup.Exit, error) {
						at("wait")
						return p.Wait(ctx)
					},
					empty: func(g *cgroup.Group, _ int) (cgroup.Empty, error) {
						at("empty")
						return dead(t, g), nil
					},
				},
			})
			r.write("a", "old")
			c = r.newCall(r.sh("echo new > {a}", "a=a"))
			res := c.answer(c.run())
			c = nil
			if hit == 0 {
				t.Fatal("the call did not come to this point")
			}
			if res.Code != tt.want || (r.read("a") == "old") != (tt.want != OK) {
				t.Errorf("got %s (%s) and target %q, want %s", res.Code, res.Message, r.read("a"), tt.want)
			}
			if got := r.kinds(res.Job); !slices.Contains(tt.events, got) {
				t.Errorf("events %q, want one of %q", got, tt.events)
			}
			if left := r.jobs(); tt.want != OK && len(left) > 0 {
				t.Errorf("left %v", left)
			}
			r.must(r.sh("echo newer > {a}", "a=a"))
		})
	}
}

// TestCancelByCaller ends the caller's context while the tool runs: the answer comes after the tool is dead and undone.
func TestCancelByCaller(t *testing.T) {
	for name, script := range map[string]string{
		"sleeps":       "echo new > {a}; echo go; sleep 300",
		"ignores_term": "trap '' TERM; echo new > {a}; echo go; while :; do sleep 0.1; done",
		"daemon":       "setsid sh -c 'trap \"\" TERM HUP; sleep 300' & echo new > {a}; echo go; wait",
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, parts{})
			r.write("a", "old")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req := r.sh(script, "a=a")
			req.Tool.Progress = func(line []byte) (adapters.Progress, bool) {
				return adapters.Progress{}, string(line) == "go"
			}
			req.Progress = func(adapters.Progress) { cancel() }
			res := r.Run(ctx, req)
			if res.Code != CodeCancelled || !res.RolledBack || !res.WorkerTerminated || r.read("a") != "old" {
				t.Errorf("result %+v, target %q", res, r.read("a"))
			}
			r.order(res.Job, cancelOrder)
		})
	}
}

// TestTerminateAsksFirst lets a cancelled tool end by itself: it may give back a licence.
func TestTerminateAsksFirst(t *testing.T) {
	r := newRig(t, parts{o: Options{Grace: 10 * time.Second}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req := r.sh("trap 'echo returned; exit 0' TERM; echo go; while :; do sleep 0.05; done")
	req.Tool.Progress = func([]byte) (adapters.Progress, bool) { return adapters.Progress{}, true }
	req.Progress = func(adapters.Progress) { cancel() }
	if res := r.Run(ctx, req); res.Code != CodeCancelled || !strings.Contains(res.Log.Head, "returned") {
		t.Errorf("%s, log %q", res.Code, res.Log.Head)
	}
}

// hold takes a session's key for the test.
func (r *rig) hold(keys ...lock.Key) (release func()) {
	r.t.Helper()
	release, err := r.table.Acquire(nil, lock.Request{Owner: lock.Owner{Job: "holder", Tool: "blocker", Principal: me, Since: time.Now().UnixMilli()}, Keys: keys})
	ok(r.t, err)
	return release
}

// TestCancelQueued cancels calls that wait for their turn, and one that was cancelled before it came: they leave the
// queue, and no trace but a denial.
func TestCancelQueued(t *testing.T) {
	for _, before := range []bool{false, true} {
		r := newRig(t, parts{})
		r.write("a", "old")
		release := r.hold(lock.Session(DefaultSession + "\x00" + me))
		ctx, cancel := context.WithCancel(t.Context())
		if before {
			cancel()
		}
		got := make(chan Result, 1)
		go func() { got <- r.Run(ctx, r.sh("echo new > {a}", "a=a")) }()
		if !before {
			until(t, "a waiter", func() bool { return r.table.Queued() == 1 })
			cancel()
		}
		res := <-got
		if res.Code != CodeCancelled || r.table.Queued() != 0 || r.read("a") != "old" || r.phase(res.Job) != "" {
			t.Errorf("got %s, %d queued, target %q", res.Code, r.table.Queued(), r.read("a"))
		}
		r.order(res.Job, "deny")
		release()
		r.must(r.sh("echo new > {a}", "a=a"))
		cancel()
	}
}
