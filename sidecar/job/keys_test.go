package job

import (
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
)

// commits are how many jobs of the tool have committed.
func (r *rig) commits() (n int) {
	r.t.Helper()
	ok(r.t, r.ledger.Events(r.t.Context(), ledger.Query{Kind: audit.Commit}, func(rec ledger.Record) error {
		if rec.Tool != SessionTool {
			n++
		}
		return nil
	}))
	return n
}

// TestKeys sends calls with one key: at once, after the first's end, to a registry that knows it from the trail alone, after
// a rollback, and with other arguments.
func TestKeys(t *testing.T) {
	r := newRig(t, parts{})
	reg := NewRegistry(r.Runner, RegistryOptions{})
	r.write("go", "")
	req := r.in("one", "while [ ! -s go ]; do :; done; echo new > {a}", "a=a")
	req.Key = Key{"key", "args"}
	first, second := reg.Start(req), reg.Start(req)
	if first.ID() != second.ID() || len(reg.List(Who{Name: me})) != 1 {
		t.Fatal("two jobs of one key")
	}
	other := req
	other.Key.Args = "others"
	if res := reg.Start(other).Result(); res.Code != InvalidArgument {
		t.Errorf("other arguments: %+v", res)
	}
	foreign := r.sh("echo new > {a}", "a=b")
	foreign.Principal, foreign.Key = "somebody", req.Key
	if res := reg.Start(foreign).Result(); res.Code != OK || res.Replayed {
		t.Errorf("somebody else's: %+v", res)
	}
	if first.Abandon() {
		t.Error("a job ended with one of its two callers")
	}
	r.write("go", "now")
	if res := second.Result(); res.Code != OK || res.Replayed {
		t.Errorf("joined: %+v", res)
	}
	for name, later := range map[string]*Registry{"same": reg, "restarted": NewRegistry(r.Runner, RegistryOptions{})} {
		for range 2 {
			if res := later.Start(req).Result(); res.Code != OK || !res.Replayed || res.Job != first.ID() || len(res.Outputs) != 1 {
				t.Errorf("%s: %+v", name, res)
			}
		}
		if res := later.Start(other).Result(); res.Code != InvalidArgument {
			t.Errorf("%s: other arguments: %+v", name, res)
		}
	}
	if n := r.commits(); n != 2 {
		t.Errorf("%d commits", n)
	}
	fails := r.in("one", ": {a}; exit 1", "a=a")
	fails.Key = Key{"fails", "args"}
	for _, reg := range []*Registry{reg, reg, NewRegistry(r.Runner, RegistryOptions{})} {
		if res := reg.Start(fails).Result(); res.Code != ToolFailed || res.Replayed {
			t.Errorf("after a rollback: %+v", res)
		}
	}
	fails.Key.Args = "corrected"
	if res := reg.Start(fails).Result(); res.Code != ToolFailed {
		t.Errorf("other arguments after a rollback: %+v", res)
	}
	old := NewRegistry(r.Runner, RegistryOptions{KeepFor: time.Nanosecond})
	if res := old.Start(req).Result(); res.Code != OK || res.Replayed {
		t.Errorf("a key that is too old: %+v", res)
	}
}

// TestLastCaller: a job of several callers ends with the last of them, and the next call runs anew behind it.
func TestLastCaller(t *testing.T) {
	r := newRig(t, parts{})
	reg := NewRegistry(r.Runner, RegistryOptions{})
	r.write("go", "")
	req := r.in("one", "while [ ! -s go ]; do :; done; echo new > {a}", "a=a")
	req.Key = Key{"key", "args"}
	first, second := reg.Start(req), reg.Start(req)
	if first.Abandon() || !second.Abandon() {
		t.Error("a job ends with its last caller")
	}
	third := reg.Start(req)
	if res := second.Result(); res.Code != CodeCancelled || third.ID() == second.ID() {
		t.Errorf("got %+v", res)
	}
	fourth := reg.Start(req)
	if !third.Detach() || fourth.Abandon() {
		t.Error("a job that was handed over ended with another caller")
	}
	r.write("go", "now")
	if res := third.Result(); res.Code != OK || r.commits() != 1 {
		t.Errorf("%d commits, %+v", r.commits(), res)
	}
}
