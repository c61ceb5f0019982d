package ledger

import (
	"context"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/session"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

func TestStraight(t *testing.T) {
	l, err := Open(t.Context(), Options{Dir: t.TempDir(), Workspace: "ws"})
	if err != nil {
		t.Fatal(err)
	}
	ev := func(k audit.Kind) audit.Event {
		return audit.Event{Kind: k, Job: "j1", Session: "s1", Tool: "tool", Principal: "me"}
	}
	wait := func(tk *Ticket, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		<-tk.Done()
		if tk.Ack() != Durable {
			t.Fatal(tk.Ack(), tk.Err())
		}
	}
	j := &txn.Journal{Version: 1, Job: "j1", Session: "s1", Tool: "tool", Principal: "me"}
	wait(l.Begin(j, ev(audit.Allow)))
	wait(l.Publishing(j, ev(audit.Start)))
	st, err := session.State{}.Apply(session.Delta{Patch: map[string]any{"a": 1.0}, Keys: session.Keys{Any: true}})
	if err != nil {
		t.Fatal(err)
	}
	wait(l.Commit("j1", Session{ID: "s1", Owner: "me", Name: "default", State: st}, ev(audit.Commit)))
	got, err := l.Session(t.Context(), "s1")
	t.Log(got, err)
	job, err := l.Job(t.Context(), "j1")
	t.Log(job, err)
	t.Log(l.Events(t.Context(), Query{}, func(r Record) error { t.Log(r.Seq, r.Kind, string(r.Body)); return nil }))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		t.Fatal(err)
	}
	l, err = Open(t.Context(), Options{Dir: l.o.Dir, Workspace: "ws"})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(l.Opening())
	if err := l.Close(ctx); err != nil {
		t.Fatal(err)
	}
}
