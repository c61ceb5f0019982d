package job

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job/outcome"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

// Key makes a mutating call of one principal to one tool happen once, however often it is sent. Both digests are hex and
// go into the allow event, by which a later process knows them.
type Key struct {
	SHA256 string // of the caller's idempotency key
	Args   string // of what a call must have in common with the first
}

// scope is where a key means one job.
type scope struct{ principal, tool, key string }

// keyed is the job of a key. One that is known to be rolled back is not kept: nothing happened.
type keyed struct {
	args, job string
	at        time.Time
}

// maxKeys is how many are kept: about 5 MiB.
const maxKeys = 16 << 10

func scopeOf(req Request) scope { return scope{req.Principal, req.Tool.Name, req.Key.SHA256} }

// learn reads the keys of earlier processes, once.
func (r *Registry) learn() error {
	r.learning.Lock()
	defer r.learning.Unlock()
	if r.learned {
		return nil
	}
	keys, ctx := map[scope]keyed{}, context.Background()
	err := r.runner.ledger.Events(ctx, ledger.Query{Kind: audit.Allow, Since: r.runner.o.Now().Add(-r.o.KeepFor)}, func(rec ledger.Record) error {
		e, err := audit.Decode(rec.Body)
		text := func(name string) string { s, _ := e.Data[name].(string); return s } // absent: empty
		key := text("key_sha256")
		if err != nil || key == "" {
			return err
		}
		switch row, err := r.runner.ledger.Job(ctx, e.Job); {
		case err != nil && !errors.Is(err, ledger.ErrNotFound): // pruned meanwhile
			return err
		case err == nil && row.Phase != txn.RolledBack:
			keys[scope{e.Principal, e.Tool, key}] = keyed{text("key_args_sha256"), e.Job, e.At}
		}
		return nil
	})
	if err != nil {
		return fail(AuditUnavailable, "look for the idempotency key", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys, r.learned = keys, true
	return nil
}

// repeatLocked is a call whose key has a job: it joins the job, or has its answer. Nil: the call is to run; behind a job
// that is being stopped, whose keys it waits for.
func (r *Registry) repeatLocked(req Request) (*Handle, error) {
	now := r.runner.o.Now()
	before, known := r.keys[scopeOf(req)]
	if !known || now.Sub(before.at) > r.o.KeepFor {
		if len(r.keys) >= maxKeys {
			maps.DeleteFunc(r.keys, func(_ scope, k keyed) bool { return now.Sub(k.at) > r.o.KeepFor })
		}
		if len(r.keys) >= maxKeys {
			return nil, failf(Busy, "%d idempotency keys were used in %v, which is as many as are kept", maxKeys, r.o.KeepFor)
		}
		return nil, nil
	}
	first := r.jobs[before.job]
	switch {
	case first != nil && first.Ended() && first.result.RolledBack: // and forgotten in a moment
		return nil, nil
	case before.args != req.Key.Args:
		return nil, failf(InvalidArgument, "the idempotency key was used with other arguments, by job %s", before.job)
	case first == nil: // of an earlier process, or long ago
		h := r.newHandle(req)
		h.c.id, h.c.asked, h.replayed = before.job, before.at, true
		return h, nil
	case first.Ended():
		return &Handle{run: first.run, replayed: true}, nil
	case first.c.cell.Aborted() == outcome.None && first.c.cell.Join():
		return &Handle{run: first.run}, nil
	}
	return nil, nil
}

// recalled is the answer to the job of h, as its events have it.
func (r *Registry) recalled(h *Handle) Result {
	res, err := r.Recall(context.Background(), Who{Name: h.c.req.Principal}, h.c.id)
	if err != nil {
		return Failed(h.c.req.Tool.Name, err)
	}
	return res
}
