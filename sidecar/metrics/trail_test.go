package metrics

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// counted are the series that the trail of the last process in dir says, counted anew.
func counted(t *testing.T, dir string) map[string]float64 {
	t.Helper()
	r, err := ledger.OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }() // opened for reading
	want := map[string]float64{}
	err = r.Events(context.Background(), ledger.Query{}, func(rec ledger.Record) error {
		e, err := audit.Decode(rec.Body)
		switch e.Kind {
		case audit.LedgerOpened:
			clear(want)
		case audit.Commit:
			want[fmt.Sprintf("commits_total{tool=%q}", e.Tool)]++
		case audit.Timeout:
			want[fmt.Sprintf("timeouts_total{tool=%q}", e.Tool)]++
		case audit.Cancel:
			want[fmt.Sprintf("cancellations_total{tool=%q}", e.Tool)]++
		case audit.Rollback:
			want[fmt.Sprintf("rollbacks_total{reason=%q,tool=%q}", strings.ToLower(fmt.Sprint(e.Data["code"])), e.Tool)]++
		case audit.Recovered:
			want[fmt.Sprintf("recovered_jobs_total{proof=%q,resolution=%q}", e.Data["proof"], e.Data["resolution"])]++
		case audit.Allow, audit.Deny, audit.Start, audit.Finish, audit.Error, audit.WorkerTerminated, audit.TerminationUnproven,
			audit.LedgerRestored, audit.LedgerPruned, audit.LedgerClosed: // of these answers or nobody count
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return want
}

// TestTrail runs two processes' worth of events through a real ledger and compares the second one's page with the trail.
func TestTrail(t *testing.T) {
	dir, s := t.TempDir(), sink()
	for i, sinks := range [][]func(audit.Event){nil, {s.Event}} {
		l, err := ledger.Open(context.Background(), ledger.Options{Dir: dir, Sinks: sinks})
		if err != nil {
			t.Fatal(err)
		}
		for j := range 3 {
			write(t, l, fmt.Sprintf("%d-%d", i, j))
		}
		if err := l.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	want := counted(t, dir)
	if len(want) != 5 || want[`rollbacks_total{reason="tool_timeout",tool="run"}`] != 3 {
		t.Fatalf("the trail says %v", want)
	}
	if err := compare(t, s, want); err != nil {
		t.Error(err)
	}
	want[`commits_total{tool="session"}`]--
	if compare(t, s, want) == nil {
		t.Error("control: one commit more than the trail has is accepted")
	}
}

// write adds a session, a job that was late, a cancelled read and a recovered one, and an operation that is refused.
func write(t *testing.T, l *ledger.Ledger, id string) {
	t.Helper()
	event := func(job, tool string, k audit.Kind, data map[string]any) audit.Event {
		return audit.Event{Kind: k, Job: job + id, Tool: tool, Data: data}
	}
	durable := func(ticket *ledger.Ticket, err error) {
		t.Helper()
		if err == nil {
			<-ticket.Done()
			err = ticket.Err()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	durable(l.SessionOp(ledger.Session{ID: "s" + id, Owner: "me", Name: id}, event("a", "session", audit.Allow, nil), event("a", "session", audit.Commit, nil)))
	durable(l.Begin(&txn.Journal{Version: 1, Job: "b" + id, Session: "s" + id, Tool: "run", Principal: "me"}, event("b", "run", audit.Allow, nil)))
	durable(l.RolledBack("b"+id, event("b", "run", audit.Start, nil), event("b", "run", audit.Timeout, nil), event("b", "run", audit.WorkerTerminated, nil),
		event("b", "run", audit.Rollback, map[string]any{"code": "TOOL_TIMEOUT"})))
	if _, err := l.Record(event("c", "icarus_sim", audit.Allow, nil), event("c", "icarus_sim", audit.Start, nil), event("c", "icarus_sim", audit.Cancel, nil)); err != nil {
		t.Fatal(err)
	}
	durable(l.Record(event("d", "icarus_sim", audit.Recovered, map[string]any{"resolution": "discarded", "proof": "read"})))
	if refused, err := l.RolledBack("e"+id, event("e", "run", audit.Rollback, map[string]any{"code": "BUSY"})); err == nil {
		<-refused.Done()
		if refused.Err() == nil {
			t.Fatal("the ledger takes a rollback of no job")
		}
	}
}
