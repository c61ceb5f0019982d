package sidecar

import (
	"slices"
	"strings"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// Primary result codes of SQLite, and what they mean at a COMMIT or a statement.
const (
	constraint = 19 // of a statement: refused
	full       = 13 // absent
	ioerr      = 10 // unknown; the ledger is poisoned
)

// fate is one answer of the ledger to one operation of a call, and what must be true of the call: in its process, and
// after the next start.
type fate struct {
	name, match, at string
	code            int
	fails           bool // the tool
	want            job.Code
	rolledBack      bool
	target          string   // in the process, before a second call
	second          job.Code // of a second call on the target: BUSY while its keys are held
	end             string   // the target after the next start
	phase           txn.Phase
	orders          []string // of events, one of these
}

const (
	beginOp   = "INSERT INTO jobs"
	publishOp = "phase = 'publishing_outputs', doc"
	commitOp  = "phase = 'committed'"
	undoneOp  = "phase = 'rolled_back'"
)

// fateTable is the table of 20-transaction.md section 5, by the operations that a call awaits.
func fateTable() []fate {
	undone := []string{"allow start error worker_terminated rollback"}
	found := []string{"allow start recovered rollback", "allow recovered rollback"}
	return []fate{
		{"begin_absent", beginOp, "before_commit", full, false, job.AuditUnavailable, true, "old", job.OK, "second", "", []string{"", "deny"}},
		{"begin_refused", beginOp, "statement", constraint, false, job.AuditUnavailable, true, "old", job.OK, "second", "", []string{"", "deny"}},
		{"begin_unknown", beginOp, "before_commit", ioerr, false, job.AuditUnavailable, true, "old", job.AuditUnavailable, "old", "", []string{""}},
		{"begin_unknown_done", beginOp, "after_commit", ioerr, false, job.AuditUnavailable, true, "old", job.AuditUnavailable, "old", txn.RolledBack, found},

		{"publishing_absent", publishOp, "before_commit", full, false, job.AuditUnavailable, true, "old", job.OK, "second", txn.RolledBack, undone},
		{"publishing_refused", publishOp, "statement", constraint, false, job.AuditUnavailable, true, "old", job.OK, "second", txn.RolledBack, undone},
		{"publishing_unknown", publishOp, "before_commit", ioerr, false, job.AuditUnavailable, false, "old", job.Busy, "old", txn.RolledBack, found},
		{"publishing_unknown_done", publishOp, "after_commit", ioerr, false, job.AuditUnavailable, false, "old", job.Busy, "old", txn.RolledBack, found},

		{"commit_absent", commitOp, "before_commit", full, false, job.AuditUnavailable, true, "old", job.OK, "second", txn.RolledBack, undone},
		{"commit_refused", commitOp, "statement", constraint, false, job.Internal, true, "old", job.OK, "second", txn.RolledBack, undone},
		{"commit_stale", "INSERT INTO sessions", "statement", constraint, false, job.SessionDestroyed, true, "old", job.OK, "second", txn.RolledBack, []string{"allow start cancel worker_terminated rollback"}},
		{"commit_unknown", commitOp, "before_commit", ioerr, false, job.CommitInDoubt, false, "new", job.Busy, "old", txn.RolledBack, found},
		{"commit_unknown_done", commitOp, "after_commit", ioerr, false, job.CommitInDoubt, false, "new", job.Busy, "new", txn.Committed, []string{"allow start commit recovered"}},

		{"undone_absent", undoneOp, "before_commit", full, true, job.ToolFailed, false, "old", job.Busy, "old", txn.RolledBack, found},
		{"undone_refused", undoneOp, "statement", constraint, true, job.ToolFailed, false, "old", job.Busy, "old", txn.RolledBack, found},
		{"undone_unknown", undoneOp, "before_commit", ioerr, true, job.ToolFailed, false, "old", job.Busy, "old", txn.RolledBack, found},
		{"undone_unknown_done", undoneOp, "after_commit", ioerr, true, job.ToolFailed, false, "old", job.Busy, "old", txn.RolledBack, undone},
	}
}

// meet runs a call that meets a fate in a process of its own, and then the next start. It says what is not as f wants it.
func meet(t *testing.T, f fate) (findings []string) {
	t.Helper()
	check := func(ok bool, what string) {
		if !ok {
			findings = append(findings, what)
		}
	}
	w := newWorld(t)
	w.write("a", "old")
	script := "echo new > {a}"
	if f.fails {
		script += "; exit 3"
	}
	rep, died := w.child(orders{Script: ": " + w.mark + " tool\n" + script, Outs: []string{"a=a"}, Match: f.match, At: f.at, Code: f.code})
	res := rep.Result
	check(!died && res.Code == f.want && res.RolledBack == f.rolledBack && res.WorkerTerminated, "result "+string(res.Code)+" "+res.Message)
	check(rep.Second.Code == f.second, "a second call: "+string(rep.Second.Code)+" "+rep.Second.Message)
	if f.second != job.OK {
		check(w.read("a") == f.target, "the target in the process: "+w.read("a"))
	}
	alone.Lock()
	defer alone.Unlock()
	e := w.open()
	defer e.close()
	check(w.read("a") == f.end, "the target after the next start: "+w.read("a"))
	check(e.phase(res.Job) == f.phase, "phase "+string(e.phase(res.Job)))
	check(slices.Contains(f.orders, e.kinds(res.Job)), "events "+e.kinds(res.Job))
	if _, err := e.Ledger.Verify(t.Context()); err != nil {
		findings = append(findings, err.Error())
	}
	if open, err := e.Ledger.OpenJobs(t.Context()); err != nil || len(open) > 0 {
		findings = append(findings, "a row is open")
	}
	e.want(job.OK, "echo last > {a}", "a=a")
	return findings
}

// TestFates has the ledger answer Absent, Refused and Unknown to each operation that a call awaits. The control expects
// what a ledger would deserve that takes every error for "nothing was done".
func TestFates(t *testing.T) {
	for _, f := range fateTable() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			for _, finding := range meet(t, f) {
				t.Error(finding)
			}
		})
		if strings.HasPrefix(f.name, "commit_unknown") || f.name == "undone_unknown" {
			t.Run("control_"+f.name, func(t *testing.T) {
				t.Parallel()
				hopeful := f
				hopeful.rolledBack, hopeful.second, hopeful.end = true, job.OK, "second"
				if len(meet(t, hopeful)) == 0 {
					t.Error("an unknown answer that is taken for an absent one was not noticed")
				}
			})
		}
	}
}
