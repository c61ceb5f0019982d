package job

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// Recall rebuilds the answer to a job from its durable events: of a job that the registry has forgotten, or
// that an earlier process ran. Log, diagnostics and data are gone. An error with INVALID_ARGUMENT: there is no such job of
// this principal, or none that has ended.
func (r *Registry) Recall(ctx context.Context, who Who, id string) (Result, error) {
	res := Result{Job: id, Recalled: true, Outputs: []Published{}, Undeclared: []string{}, Diagnostics: []adapters.Diagnostic{}}
	err := r.runner.ledger.Events(ctx, ledger.Query{Job: id, Principal: who.query()}, func(rec ledger.Record) error {
		e, err := audit.Decode(rec.Body)
		if err == nil {
			res.replay(e.Event)
		}
		return err
	})
	if err == nil && res.Code == "" {
		err = failf(InvalidArgument, "there is no job %q that has ended", id)
	}
	if _, row := r.runner.ledger.Job(ctx, id); errors.Is(row, ledger.ErrNotFound) && res.Code != OK { // a read: nothing is to be undone
		res.RolledBack = true
	}
	return res, err
}

// number is a number of an event, which keeps them as they were written.
func number(v any) int64 {
	n, _ := strconv.ParseInt(fmt.Sprint(v), 10, 64) // 0: it is none
	return n
}

// replay is what an answer becomes by one more event of its job.
func (r *Result) replay(e audit.Event) {
	r.Tool, r.Session = e.Tool, e.Session
	text := func(key string) string { s, _ := e.Data[key].(string); return s } // absent: empty
	failed := func() {
		r.Code, r.Message = Code(text("code")), "cannot complete "+e.Tool+": "+text("reason")
		r.Hint = r.Code.Hint()
	}
	switch e.Kind {
	case audit.Allow:
	case audit.Start:
		r.Started = true
	case audit.Commit:
		r.Code, r.Phase, r.WorkerTerminated, r.Verdict = OK, txn.Committed, true, adapters.Verdict(text("verdict"))
		r.SessionVersion = number(e.Data["new_gen"])
		outputs, _ := e.Data["outputs"].([]any) // of a session there are none
		for _, o := range outputs {
			if o, ok := o.(map[string]any); ok {
				r.Outputs = append(r.Outputs, Published{Name: fmt.Sprint(o["name"]), Path: fmt.Sprint(o["path"]), Bytes: number(o["bytes"]), SHA256: fmt.Sprint(o["sha256"])})
			}
		}
	case audit.Finish:
		r.Code, r.WorkerTerminated, r.Verdict = OK, true, adapters.Verdict(text("verdict"))
	case audit.Deny:
		failed()
		r.RolledBack, r.WorkerTerminated = true, true
	case audit.Timeout, audit.Cancel, audit.Error:
		failed()
		r.RolledBack = false
	case audit.WorkerTerminated:
		r.WorkerTerminated = true
	case audit.TerminationUnproven:
		failed()
		r.Code, r.WorkerTerminated = TerminationUnproven, false
	case audit.Rollback:
		failed()
		r.Phase, r.RolledBack, r.WorkerTerminated = txn.RolledBack, true, true
	case audit.Recovered:
		if r.Code == "" { // a read, or a row whose rollback follows
			r.Code, r.Message, r.RolledBack, r.WorkerTerminated = Internal, "cannot complete "+e.Tool+": the engine ended before it had recorded the end of the call", true, true
			r.Hint = r.Code.Hint()
		}
	case audit.LedgerOpened, audit.LedgerRestored, audit.LedgerPruned, audit.LedgerClosed:
	}
}
